//! [`Files`]: names and contents as one: what a mount or a program works with.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use engine::sync::Semaphore;
use engine::task::LocalFuture;
use engine::time;

use crate::data::{self, Contents, Hold, Lain, Members, Shape, Space};
use crate::dirty::BLOCK_BYTES;
use crate::error::Error;
use crate::fs::{FileSystem, Reap};
use crate::meta::Meta;
use crate::opened::{OpenFile, Shared};
use crate::ops::{Attributes, Change, LockRequest, New, Turns};
use crate::record::inode::Inode;
use crate::record::lock::Lock;
use crate::renewal::renewing;
use crate::roster::Roster;
use crate::stored::{Stored, content_of};

/// Bytes that were written and are in no stripe yet, of all files of a client. Chosen: what keeps a fast network busy for some
/// tens of milliseconds, many times over.
pub const DIRTY_BYTES_MAX: usize = 256 << 20;

/// How much fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes of data, about.
    pub bytes: u64,
    /// Of these, free ones.
    pub free: u64,
    /// Inodes that may be there, and that may be made yet, where that has a limit.
    pub files: Option<(u64, u64)>,
}

/// One client of a file system.
pub struct Files {
    shared: Rc<Shared>,
    roster: Rc<Roster>,
    /// Names of drafts that are neither finished nor given up, each with its directory.
    drafts: RefCell<BTreeSet<(u64, Vec<u8>)>>,
    /// Who changes names of drafts, by their directory.
    naming: Turns,
}

/// Frees stripes of inodes that go.
struct Freeing {
    contents: Rc<Contents>,
    shape: Shape,
}

impl Reap for Freeing {
    fn reap<'a>(&'a self, ino: u64, inode: &'a Inode, hold: &'a Hold) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let content = content_of(inode, self.shape)?;
            self.contents.remove(ino, &content, hold).await
        })
    }
}

impl Files {
    /// A new client of the file system of this name. Its members can be reached when [`Members::connect`] has said so.
    ///
    /// # Errors
    /// There is no such file system; the store does not answer.
    pub fn open<'a>(meta: Rc<dyn Meta>, name: &'a str, host: &'a str) -> LocalFuture<'a, Result<Rc<Files>, Error>> {
        Box::pin(async move {
            let sent = time::now();
            let names = Rc::new(FileSystem::open(Rc::clone(&meta), name, host).await?);
            let roster = Roster::of(Rc::clone(&meta), name, names.root.clone())?;
            let members = Rc::clone(roster.members());
            let shape = members.layout().shape;
            let space = Space::new(Rc::clone(&meta), Rc::clone(&members), names.client());
            space.renewed(sent);
            let contents = Contents::new(meta, Rc::clone(&members), space)?;
            names.set_reap(Rc::new(Freeing { contents: Rc::clone(&contents), shape }));
            let weak = Rc::downgrade(&roster);
            members.set_learn(Rc::new(move || {
                let roster = weak.upgrade();
                Box::pin(async move {
                    let Some(roster) = roster else { return };
                    if let Err(error) = roster.refresh().await {
                        tracing::warn!(%error, "members that have joined are not known");
                    }
                })
            }));
            let renew = renewing(&names, contents.space());
            names.quotas.set_renew(Rc::clone(&renew));
            contents.space().set_renew(renew);
            let room = Semaphore::new(DIRTY_BYTES_MAX / BLOCK_BYTES);
            let shared =
                Rc::new(Shared { names, contents, opened: RefCell::default(), room, is_full: Cell::default() });
            Ok(Rc::new(Files { shared, roster, drafts: RefCell::default(), naming: Turns::default() }))
        })
    }

    /// Names, attributes, links.
    pub fn names(&self) -> &Rc<FileSystem> {
        &self.shared.names
    }

    /// Where the bytes are.
    pub fn members(&self) -> &Rc<Members> {
        self.shared.contents.members()
    }

    /// Which members there are, and how that changes.
    pub fn roster(&self) -> &Rc<Roster> {
        &self.roster
    }

    /// All stripes of a file, each with the first place of the file that lies in it: where its bytes are.
    ///
    /// # Errors
    /// It is gone; what the store says.
    pub fn stripes_of(&self, ino: u64) -> LocalFuture<'_, Result<Vec<Lain>, Error>> {
        Box::pin(async move {
            let held = self.shared.names.inode(ino).await?.ok_or(Error::Stale)?;
            let inode = Stored::new(Rc::clone(&self.shared.names), ino, self.members().layout().shape, held)?;
            self.shared.contents.stripes_of(&inode).await
        })
    }

    /// What has become of members since counts from now on, and what this client has of those that are to be empty goes back.
    pub fn refresh_members(&self) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.roster.refresh().await?;
            self.shared.contents.space().leave().await;
            self.shared.contents.space().tend().await;
            Ok(())
        })
    }

    /// Contents of its files.
    pub(crate) fn contents(&self) -> &Rc<Contents> {
        &self.shared.contents
    }

    /// Files of which something is not in stripes yet.
    pub(crate) fn dirty_files(&self) -> Vec<Rc<OpenFile>> {
        self.shared.dirty_files()
    }

    /// Bytes of memory that hold what is in no stripe yet, and how many files are open.
    pub(crate) fn held(&self) -> (usize, usize) {
        let free = self.shared.room.available() * BLOCK_BYTES;
        (DIRTY_BYTES_MAX.saturating_sub(free), self.shared.opened.borrow().len())
    }

    pub(crate) fn naming(&self) -> &Turns {
        &self.naming
    }

    pub(crate) fn drafts(&self) -> &RefCell<BTreeSet<(u64, Vec<u8>)>> {
        &self.drafts
    }

    /// Bytes of each member that hold columns, and those of them that are free, about: what it has of whole regions.
    pub fn room(&self) -> LocalFuture<'_, Result<Vec<(u64, u64)>, Error>> {
        Box::pin(async move { self.shared.contents.space().room().await })
    }

    /// Room where an inode is: that of the quota for which counts what is made there, or written, as far as it has limits; else of
    /// all.
    pub fn usage_at(&self, ino: u64) -> LocalFuture<'_, Result<Usage, Error>> {
        Box::pin(async move {
            let (bytes, free) = self.usage().await?;
            let all = Usage { bytes, free, files: None };
            // Of what is gone, or is damaged, it is that of all.
            let Ok(Some(quota)) = self.shared.names.quota_of(ino).await else { return Ok(all) };
            let left = |limit: u64, used: i64| limit.saturating_sub(used as u64);
            let files = quota.limits.files.map(|limit| (limit, left(limit, quota.used.files)));
            Ok(match quota.limits.bytes {
                Some(limit) => Usage { bytes: limit, free: left(limit, quota.used.bytes).min(free), files },
                None => Usage { files, ..all },
            })
        })
    }

    /// Bytes that fit, and that fit besides what is there, about.
    pub fn usage(&self) -> LocalFuture<'_, Result<(u64, u64), Error>> {
        Box::pin(async move { self.shared.contents.space().usage().await })
    }

    /// Opens a file for reading and writing of its bytes: what others have written and closed before is seen. All that have it
    /// open here share what is not in stripes yet.
    ///
    /// # Errors
    /// It is no file; it is gone.
    pub fn open_file<'a>(self: &'a Rc<Self>, ino: u64) -> LocalFuture<'a, Result<Rc<OpenFile>, Error>> {
        Box::pin(async move { self.open_as(ino, false).await })
    }

    /// Makes a file of a free name, and opens it.
    ///
    /// # Errors
    /// The name is taken, and whatever making and opening say.
    pub fn create_file<'a>(
        self: &'a Rc<Self>,
        dir: u64,
        name: &'a [u8],
        new: &'a New,
    ) -> LocalFuture<'a, Result<(Attributes, Rc<OpenFile>), Error>> {
        Box::pin(async move {
            let told = self.shared.names.make(dir, name, new).await?;
            let file = self.open_as(told.ino, true).await?;
            Ok((told, file))
        })
    }

    async fn open_as(self: &Rc<Self>, ino: u64, is_new: bool) -> Result<Rc<OpenFile>, Error> {
        self.shared.names.check_locks(ino)?;
        let held = self.shared.names.open_held(ino, is_new).await?;
        let known = self.shared.opened.borrow().get(&ino).cloned();
        if let Some(file) = known {
            file.add_handle();
            // What names count goes with the last handle.
            let released = self.shared.names.release(ino).await;
            return match released.and_then(|()| file.look_again(held)) {
                Ok(()) => Ok(file),
                Err(error) => {
                    self.close_file(&file).await?;
                    Err(error)
                }
            };
        }
        self.shared.contents.forget(ino);
        let file = match OpenFile::new(&self.shared, ino, held) {
            Ok(file) => Rc::new(file),
            Err(error) => {
                self.shared.names.release(ino).await?;
                return Err(error);
            }
        };
        self.shared.opened.borrow_mut().insert(ino, Rc::clone(&file));
        Ok(file)
    }

    /// Gives back what [`Files::open_file`] gave. With the last handle the file is closed.
    ///
    /// # Errors
    /// Bytes that could not be stored, also by the flushes before, are lost.
    pub fn close_file<'a>(&'a self, file: &'a Rc<OpenFile>) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if !file.take_handle() {
                return Ok(());
            }
            // A fault of before was told, or is by this; what it left is tried once more before it is given up.
            let flushed = match file.flush().await {
                Err(Error::Stale) => Err(Error::Stale),
                Err(_) => file.flush().await,
                done => done,
            };
            let is_ours = self.shared.opened.borrow().get(&file.ino()).is_some_and(|known| Rc::ptr_eq(known, file));
            if !file.is_closed() || !is_ours {
                return flushed; // opened again meanwhile, or closed by another who has opened it meanwhile
            }
            self.shared.opened.borrow_mut().remove(&file.ino());
            self.contents().figures().add_dropped(file.blocks());
            flushed.and(self.shared.names.release(file.ino()).await)
        })
    }

    /// Takes a lock of a range, in the place of what its owner has there. With `goes_on` it waits for it as long as that says so,
    /// which is asked a few times a second. What others have written under theirs is seen from then on.
    ///
    /// # Errors
    /// [`Error::Locked`]: another has one there; [`Error::Interrupted`]: it was not to wait any longer; [`Error::LostLock`].
    pub fn lock<'a>(
        &'a self,
        file: &'a Rc<OpenFile>,
        wanted: &'a LockRequest,
        goes_on: Option<&'a dyn Fn() -> bool>,
    ) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let (names, ino) = (&self.shared.names, file.ino());
            names.check_locks(ino)?;
            // It may be less than what there was: others see what was written under that. And what was written under none comes
            // before what is read under this one.
            file.flush().await?;
            let had = names.locks.has(ino, wanted.owner);
            let locked = async {
                names.take_lock(ino, wanted, goes_on).await?;
                file.look_again(names.inode(ino).await?.ok_or(Error::Stale)?)
            };
            match locked.await {
                Err(error @ (Error::Locked | Error::Interrupted | Error::NoLocks | Error::LostLock)) => Err(error),
                Err(error) if !had => {
                    // It may have it, and does not know: what fails is tried again.
                    let _left = names.disown(ino, wanted).await;
                    Err(error)
                }
                locked => locked,
            }
        })
    }

    /// Whether an owner has, or may have, a lock of a file.
    pub fn has_locked(&self, file: &OpenFile, owner: u64) -> bool {
        self.shared.names.locks.has(file.ino(), owner)
    }

    /// Gives a range back, after what was written under its lock is stable.
    ///
    /// # Errors
    /// That could not be stored: the lock stays. [`Error::LostLock`].
    pub fn unlock<'a>(&'a self, file: &'a Rc<OpenFile>, freed: &'a LockRequest) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let (names, ino) = (&self.shared.names, file.ino());
            names.check_locks(ino)?;
            if !names.locks.has(ino, freed.owner) {
                return Ok(());
            }
            file.flush().await?;
            names.give_back(ino, freed).await
        })
    }

    /// A flush by an owner that has closed the file, or is gone: with it go all its locks.
    ///
    /// # Errors
    /// What was written could not be stored. If the owner had a lock it never will be, as others may write there from now on.
    pub fn leave<'a>(&'a self, file: &'a Rc<OpenFile>, owner: u64) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.leave_unless(file, owner, &|| false).await })
    }

    /// The same, unless the owner is back by when that was flushed, and may have asked for a lock again.
    ///
    /// # Errors
    /// As [`Files::leave`].
    pub fn leave_unless<'a>(
        &'a self,
        file: &'a Rc<OpenFile>,
        owner: u64,
        is_back: &'a dyn Fn() -> bool,
    ) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let (names, ino) = (&self.shared.names, file.ino());
            let flushed = file.flush().await;
            if !names.locks.has(ino, owner) {
                return flushed;
            }
            let flushed = match flushed {
                Ok(()) => Ok(()),
                Err(_) => file.flush().await,
            };
            if is_back() {
                return flushed;
            }
            if let Err(error) = &flushed {
                file.give_up(error.clone());
                names.note_failure(ino);
            }
            let freed = names.give_back_all(ino, owner).await;
            if names.locks.has_failed(ino) {
                // It is owed, and no fault of who leaves.
                return flushed;
            }
            flushed.and(freed)
        })
    }

    /// A lock that is in the way of this one; its process is 0 where it is not one of this client's.
    pub fn test_lock<'a>(
        &'a self,
        file: &'a Rc<OpenFile>,
        wanted: &'a LockRequest,
    ) -> LocalFuture<'a, Result<Option<Lock>, Error>> {
        Box::pin(async move {
            let names = &self.shared.names;
            names.check_locks(file.ino())?;
            let found = names.test_lock(file.ino(), wanted).await?;
            Ok(found.map(|lock| Lock { pid: if lock.holder.client == names.client() { lock.pid } else { 0 }, ..lock }))
        })
    }

    /// Waits until locks on a file that is open here are lost: which. Every use of it fails until it is closed by all.
    pub fn next_lost(&self) -> LocalFuture<'_, u64> {
        Box::pin(async move {
            let ino = self.shared.names.next_lost().await;
            let open = self.shared.opened.borrow().get(&ino).cloned();
            // What was written is of no use any more, and others want the room.
            let _lost = open.map(|file| file.check_locks());
            ino
        })
    }

    /// What `stat` tells, with what this client has written and is not in stripes yet.
    pub fn getattr(&self, ino: u64) -> LocalFuture<'_, Result<Attributes, Error>> {
        Box::pin(async move { self.shared.names.getattr(ino).await.map(|told| self.overlaid(told)) })
    }

    /// What a name leads to, likewise.
    pub fn lookup<'a>(&'a self, dir: u64, name: &'a [u8]) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move { self.shared.names.lookup(dir, name).await.map(|told| self.overlaid(told)) })
    }

    /// Gives an inode one more name.
    pub fn link<'a>(&'a self, ino: u64, dir: u64, name: &'a [u8]) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move { self.shared.names.link(ino, dir, name).await.map(|told| self.overlaid(told)) })
    }

    fn overlaid(&self, mut told: Attributes) -> Attributes {
        if let Some(file) = self.shared.opened.borrow().get(&told.ino) {
            file.overlay(&mut told);
        }
        told
    }

    /// Changes attributes, and the size of a file.
    pub fn setattr<'a>(self: &'a Rc<Self>, ino: u64, change: &'a Change) -> LocalFuture<'a, Result<Attributes, Error>> {
        Box::pin(async move {
            let sets_time = change.modified.or(change.accessed).is_some();
            let open = self.shared.opened.borrow().get(&ino).filter(|_| sets_time).cloned();
            if let Some(file) = open {
                // What goes out later would bring its own time.
                file.flush().await?;
            }
            if let Some(size) = change.size {
                let file = self.open_file(ino).await?;
                let truncated = file.truncate(size).await;
                self.close_file(&file).await.and(truncated)?;
            }
            let told = self.shared.names.setattr(ino, &Change { size: None, ..change.clone() }).await?;
            Ok(self.overlaid(told))
        })
    }

    /// Has everything go out that is dirty: the first fault.
    pub fn flush_all(&self) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let mut result = Ok(());
            for file in self.shared.dirty_files() {
                result = result.and(file.flush().await);
            }
            result
        })
    }

    /// Ends this client: what is dirty goes out, and what it had is given back.
    pub fn close(&self) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.flush_all().await;
            self.discard_drafts().await;
            self.shared.contents.space().settle().await;
            self.shared.contents.space().close().await;
            result.and(self.shared.names.close().await)
        })
    }
}

impl From<&data::Content> for crate::record::inode::Content {
    fn from(content: &data::Content) -> Self {
        match content {
            data::Content::Inline(bytes) => Self::Inline(bytes.clone()),
            other => Self::Stripes(other.encode()),
        }
    }
}
