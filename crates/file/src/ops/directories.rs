//! Open directories. One that is removed is gone, whoever has it open: what `stat` tells of it then is what it was when this client
//! last saw it, with no links.

use engine::task::LocalFuture;

use super::told::{Attributes, OpenDir};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::Kind;

impl FileSystem {
    /// Opens a directory, once more if it is open: each takes a [`FileSystem::release_dir`].
    pub fn open_dir(&self, ino: u64) -> LocalFuture<'_, Result<Attributes, Error>> {
        Box::pin(async move {
            let told = self.getattr(ino).await?;
            if told.kind != Kind::Directory {
                return Err(Error::NotDirectory(format!("inode {ino}")));
            }
            let mut open = self.open_dirs.borrow_mut();
            open.entry(ino).or_insert_with(|| OpenDir { count: 0, seen: told.clone() }).count += 1;
            Ok(told)
        })
    }

    /// Closes a directory.
    pub fn release_dir(&self, ino: u64) {
        let mut open = self.open_dirs.borrow_mut();
        if let Some(dir) = open.get_mut(&ino) {
            dir.count -= 1;
            if dir.count == 0 {
                open.remove(&ino);
            }
        }
    }

    pub(super) fn see_open_dir(&self, told: &Attributes) {
        if let Some(dir) = self.open_dirs.borrow_mut().get_mut(&told.ino) {
            dir.seen = told.clone();
        }
    }

    /// Of a directory that is gone, and open here.
    pub(super) fn attributes_of_removed(&self, ino: u64) -> Result<Attributes, Error> {
        let open = self.open_dirs.borrow();
        let dir = open.get(&ino).ok_or(Error::Stale)?;
        Ok(Attributes { links: 0, ..dir.seen.clone() })
    }
}
