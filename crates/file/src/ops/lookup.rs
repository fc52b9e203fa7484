//! Looking up names, and links' paths.

use engine::task::LocalFuture;

use super::not_found;
use super::told::Attributes;
use crate::access::Tries;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::Kind;
use crate::record::inode::Content;
use crate::record::node::{Target, check_name};

impl FileSystem {
    /// [`FileSystem::find`] of a name that is to be there.
    pub(super) async fn found(&self, dir: u64, name: &[u8]) -> Result<Target, Error> {
        self.find(dir, name).await?.ok_or_else(|| not_found(name))
    }

    /// What a name in a directory leads to; also `.` and `..`.
    pub fn lookup<'a>(&'a self, dir: u64, name: &'a [u8]) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move {
            match name {
                b"." => return self.getattr(dir).await,
                b".." => return self.getattr(self.parent(dir).await?).await,
                _ => check_name(name)?,
            }
            let mut tries = Tries::new();
            let mut missed = None;
            loop {
                let target = self.found(dir, name).await?;
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
        })
    }

    /// The path that a symbolic link leads to.
    pub fn readlink(&self, ino: u64) -> LocalFuture<'_, Result<Vec<u8>, Error>> {
        Box::pin(async move {
            let inode = self.get_inode(ino).await?;
            match inode.content {
                Content::Inline(path) if inode.kind == Kind::Symlink => Ok(path),
                _ => Err(Error::Invalid("it is no symbolic link")),
            }
        })
    }
}
