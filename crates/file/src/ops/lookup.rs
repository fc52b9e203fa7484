//! Looking up names, and links' paths.

use super::not_found;
use super::told::Attributes;
use crate::access::Tries;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::Kind;
use crate::record::inode::Content;
use crate::record::node::check_name;

impl FileSystem {
    /// What a name in a directory leads to; also `.` and `..`.
    pub async fn lookup(&self, dir: u64, name: &[u8]) -> Result<Attributes, Error> {
        match name {
            b"." => return self.getattr(dir).await,
            b".." => return self.getattr(self.parent(dir).await?).await,
            _ => check_name(name)?,
        }
        let mut tries = Tries::new();
        let mut missed = None;
        loop {
            let target = self.find(dir, name).await?.ok_or_else(|| not_found(name))?;
            let told = match self.inode(target.ino).await? {
                Some(held) => self.attributes_of(target.ino, &held.record).await,
                None => Err(Error::Stale),
            };
            match told {
                // Gone since the name was read: the name is gone, too, or leads elsewhere.
                Err(Error::Stale) if missed != Some(target) => missed = Some(target),
                Err(Error::Stale) => {
                    let name = super::shown(name);
                    return Err(Error::Damaged(format!(
                        "{name} in directory {dir} leads to inode {}, which is not there",
                        target.ino
                    )));
                }
                told => return told,
            }
            tries.again("names change faster than they are looked up").await?;
        }
    }

    /// The path that a symbolic link leads to.
    pub async fn readlink(&self, ino: u64) -> Result<Vec<u8>, Error> {
        let inode = self.get_inode(ino).await?;
        match inode.content {
            Content::Inline(path) if inode.kind == Kind::Symlink => Ok(path),
            _ => Err(Error::Invalid("it is no symbolic link")),
        }
    }
}
