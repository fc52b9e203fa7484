//! [`Draft`]: a file that gets its name when it is whole.
//!
//! Invariant: its name leads to what it led to before, or to the whole file. Until then it has a name of its own in the same
//! directory; of a client that dies, that is left.

use std::rc::Rc;

use engine::task::LocalFuture;

use crate::access::draw;
use crate::error::Error;
use crate::files::Files;
use crate::opened::OpenFile;
use crate::ops::{Change, New, RenameFlags};

/// Names of drafts that are changed at once in one directory. Chosen: they are changes of few records, and more of them would only
/// be in each other's way, up to where one gives up.
const NAMED_AT_ONCE: usize = 4;
/// How names of drafts begin.
pub const DRAFT_PREFIX: &[u8] = b".yagura-draft-";

/// See the module. One that is dropped goes at the latest when [`Files::close`] is called.
pub struct Draft {
    files: Rc<Files>,
    file: Rc<OpenFile>,
    dir: u64,
    name: Vec<u8>,
}

impl Files {
    /// Begins a file that is to get a name in a directory.
    ///
    /// # Errors
    /// As [`crate::FileSystem::make`], and [`Files::open_file`].
    pub fn draft<'a>(self: &'a Rc<Self>, dir: u64, new: &'a New) -> LocalFuture<'a, Result<Draft, Error>> {
        Box::pin(async move {
            let name = [DRAFT_PREFIX, format!("{:016x}", draw()).as_bytes()].concat();
            // Before it is there: of one whose making is given up half-way nobody knows whether it is.
            self.drafts().borrow_mut().insert((dir, name.clone()));
            let turn = self.naming().one_of(dir, NAMED_AT_ONCE).await;
            let made = self.names().make(dir, &name, new).await;
            drop(turn);
            let made = match made {
                Ok(made) => self.open_file(made.ino).await,
                Err(error) => Err(error),
            };
            match made {
                Ok(file) => Ok(Draft { files: Rc::clone(self), file, dir, name }),
                Err(error) => {
                    self.discard(dir, &name).await;
                    Err(error)
                }
            }
        })
    }

    /// Removes a draft's own name, if it is there.
    async fn discard(&self, dir: u64, name: &[u8]) {
        let turn = self.naming().one_of(dir, NAMED_AT_ONCE).await;
        let gone = self.names().unlink(dir, name).await;
        drop(turn);
        match gone {
            // What it took is free for what comes next: it may be given up for want of room.
            Ok(()) => self.contents().space().settle().await,
            Err(Error::NotFound(_)) => {}
            Err(error) => {
                tracing::warn!(%error, "{} in directory {dir} is left, and may be removed", name.escape_ascii());
            }
        }
        self.drafts().borrow_mut().remove(&(dir, name.to_vec()));
    }

    /// Removes those that were neither finished nor given up.
    pub(crate) async fn discard_drafts(&self) {
        let left: Vec<(u64, Vec<u8>)> = self.drafts().borrow().iter().cloned().collect();
        for (dir, name) in left {
            self.discard(dir, &name).await;
        }
    }
}

impl Draft {
    /// Its bytes.
    pub fn file(&self) -> &Rc<OpenFile> {
        &self.file
    }

    /// The whole file gets its name in the directory, and attributes; what had the name goes, if that is no directory, and is not
    /// refused. Where this fails the draft is given up. The inode's number.
    ///
    /// # Errors
    /// Bytes that could not be stored; what the name says.
    pub fn finish<'a>(
        self,
        name: &'a [u8],
        change: &'a Change,
        flags: RenameFlags,
    ) -> LocalFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let Draft { files, file, dir, name: own } = self;
            let ino = file.ino();
            let done = async {
                files.close_file(&file).await?;
                if *change != Change::default() {
                    files.setattr(ino, change).await?;
                }
                let _turn = files.naming().one_of(dir, NAMED_AT_ONCE).await;
                files.names().rename((dir, &own), (dir, name), flags).await
            };
            match done.await {
                Ok(()) => {
                    files.drafts().borrow_mut().remove(&(dir, own));
                    Ok(ino)
                }
                Err(error) => {
                    files.discard(dir, &own).await;
                    Err(error)
                }
            }
        })
    }

    /// It goes, with its bytes.
    pub fn give_up(self) -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let Draft { files, file, dir, name } = self;
            // What is dirty is wanted nowhere: else it would be stored first.
            let _nothing = file.truncate(0).await;
            let _lost = files.close_file(&file).await;
            files.discard(dir, &name).await;
        })
    }
}
