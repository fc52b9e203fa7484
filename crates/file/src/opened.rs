//! [`OpenFile`]: a file's bytes as its users see them: what they have written is gathered, and goes out as stripes.
//!
//! Invariants:
//! - A read sees every write that came before it here, whether it is in stripes yet or not.
//! - After a flush that has succeeded all that was written before it is stable, and others that open the file see it.
//! - A fault of a write that goes out later is told by the next flush that fails to make it good, or by a write that has no room
//!   for it; the bytes are kept and tried again by the next flush, until the file is closed.
//! - Once there was no room for what is gathered, of whatever file, a write is taken only where all before it in its file is in
//!   stripes: who writes on is told by the write, and not when he closes the file.

mod aside;
mod handle;
mod leaving;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::Buf;
use engine::sync::{Notify, Permit, Semaphore};
use engine::task::LocalFuture;

use crate::access::Held;
use crate::data::Contents;
use crate::data::{FILE_BYTES_MAX, Inode as _, Rope};
use crate::dirty::{BLOCK_BYTES, Dirty, Piece, laid_over};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::ops::Attributes;
use crate::record::inode::Inode;
use crate::record::{Kind, Time};
use crate::stored::Stored;

pub use handle::Handle;

/// Blocks of one file that go out at once. Chosen: one is encoded while others are on the network.
const LEAVING_MAX: usize = 4;

/// What the open files of a client share.
pub(crate) struct Shared {
    pub(crate) names: Rc<FileSystem>,
    pub(crate) contents: Rc<Contents>,
    /// Files that are open, each once.
    pub(crate) opened: RefCell<BTreeMap<u64, Rc<OpenFile>>>,
    /// One for each block of what is dirty.
    pub(crate) room: Semaphore,
    /// Members had no room for the last block that went out.
    pub(crate) is_full: Cell<bool>,
}

impl Shared {
    /// Files of which something is not in stripes yet.
    pub(crate) fn dirty_files(&self) -> Vec<Rc<OpenFile>> {
        self.opened.borrow().values().filter(|file| !file.is_clean()).cloned().collect()
    }
}

/// See the module.
pub struct OpenFile {
    shared: Rc<Shared>,
    ino: u64,
    /// How many have it open here.
    handles: Cell<usize>,
    inode: Stored,
    dirty: RefCell<Dirty>,
    /// One for each block that is dirty or on its way.
    permits: RefCell<Vec<Permit>>,
    leaving: Semaphore,
    /// A block has arrived, or has not.
    ended: Notify,
    fault: RefCell<Option<Error>>,
    /// How often one has not.
    failed: Cell<u64>,
    /// Blocks that were dirty when it was said last that what nobody flushes is to go out.
    due: RefCell<BTreeSet<u64>>,
    /// The file was removed by another host: nothing of it can go out.
    is_gone: Cell<bool>,
    /// How often what was written was dropped, and why last.
    dropped: Cell<u64>,
    dropped_for: RefCell<Option<Error>>,
    /// Truncation and writes take turns with it.
    turn: Semaphore,
    /// What is set aside of a quota beside what is gathered.
    through: Cell<u64>,
}

impl OpenFile {
    pub(crate) fn new(shared: &Rc<Shared>, ino: u64, held: Held<Inode>) -> Result<OpenFile, Error> {
        match held.record.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::IsDirectory(format!("inode {ino}"))),
            _ => return Err(Error::Invalid("only files have bytes")),
        }
        let shape = shared.contents.members().layout().shape;
        Ok(OpenFile {
            shared: Rc::clone(shared),
            ino,
            handles: Cell::new(1),
            inode: Stored::new(Rc::clone(&shared.names), ino, shape, held)?,
            dirty: RefCell::default(),
            permits: RefCell::default(),
            leaving: Semaphore::new(LEAVING_MAX),
            ended: Notify::new(),
            fault: RefCell::default(),
            failed: Cell::default(),
            due: RefCell::default(),
            is_gone: Cell::default(),
            dropped: Cell::default(),
            dropped_for: RefCell::default(),
            turn: Semaphore::new(1),
            through: Cell::default(),
        })
    }

    /// Its inode's number.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    pub(crate) fn contents(&self) -> &Rc<Contents> {
        &self.shared.contents
    }

    pub(crate) fn inode(&self) -> &Stored {
        &self.inode
    }

    /// What others have written since is seen.
    pub(crate) fn look_again(&self, held: Held<Inode>) -> Result<(), Error> {
        self.shared.contents.forget(self.ino);
        self.inode.see(held).map(drop)
    }

    fn check_there(&self) -> Result<(), Error> {
        if self.is_gone.get() { Err(Error::Stale) } else { self.check_locks() }
    }

    /// # Errors
    /// [`Error::LostLock`], from then on. What others may have locked by now goes nowhere.
    pub(crate) fn check_locks(&self) -> Result<(), Error> {
        let checked = self.inode.may_change();
        if checked.is_err() {
            self.drop_dirty();
        }
        checked
    }

    /// Takes note of what the inode says now, and adds what is not in it yet. Whoever has been told that the file goes further
    /// reads it that far. What has arrived since it was told is in neither: the inode has been seen with that.
    pub(crate) fn overlay(&self, told: &mut Attributes) {
        if self.inode.forget_before(told.changes) {
            self.shared.contents.forget(self.ino);
        }
        if let Some(since) = self.inode.seen_since(told.changes) {
            *told = since;
        }
        told.size = told.size.max(self.dirty.borrow().end().unwrap_or(0));
        if let Some(written) = self.inode.written().filter(|_| !self.is_clean()) {
            (told.modified, told.changed) = (written, told.changed.max(written));
        }
    }

    /// Where it ends, what is not in stripes yet among it.
    pub(crate) async fn end(&self) -> Result<u64, Error> {
        let (state, _) = self.inode.load(false).await?;
        Ok(state.size.max(self.dirty.borrow().end().unwrap_or(0)))
    }

    /// Bytes of the file, as far as it goes; holes are zeroes.
    ///
    /// # Errors
    /// [`Error::Lost`] where too many members are.
    pub fn read(&self, at: u64, length: usize) -> LocalFuture<'_, Result<Rope, Error>> {
        Box::pin(async move {
            self.check_locks()?;
            let asked = at..at.saturating_add(length as u64);
            // First: what arrives in the stripes meanwhile is then in both, and not in neither.
            let (dirty, dirty_end) = {
                let dirty = self.dirty.borrow();
                (dirty.pieces(asked.clone()), dirty.end().unwrap_or(0))
            };
            let (state, _) = self.inode.load(false).await?;
            let end = state.size.max(dirty_end).min(asked.end);
            let mut wanted = at.min(end)..end;
            let stored = self.shared.contents.read(&self.inode, wanted.clone(), false).await?;
            // Another may have made it shorter meanwhile: zeroes stand for holes below what is dirty, and for nothing else.
            let stored_end = wanted.start + stored.len() as u64;
            wanted.end = wanted.end.min(stored_end.max(dirty_end)).max(wanted.start);
            self.shared.contents.figures.bytes_read.update(|sum| sum + (wanted.end - wanted.start));
            if dirty.is_empty() && stored_end == wanted.end {
                return Ok(stored);
            }
            Ok(laid_over(&stored, &dirty, wanted))
        })
    }

    /// Writes bytes, which go out later; returns how many: all, or those before the first block that a quota has no room for.
    ///
    /// # Errors
    /// The file would be too long; there is no room in memory, as what was written before could not go out; a quota is used up.
    pub fn write<'a>(self: &'a Rc<Self>, at: u64, bytes: &'a [u8]) -> LocalFuture<'a, Result<usize, Error>> {
        Box::pin(async move {
            if at.checked_add(bytes.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
                return Err(Error::TooLong(FILE_BYTES_MAX));
            }
            let mut written = 0;
            while written < bytes.len() {
                match self.write_in_block(at + written as u64, &bytes[written..]).await {
                    Ok(more) => written += more,
                    // They are in the file: whoever writes the rest is told.
                    Err(Error::Quota(_) | Error::NoSpace(_)) if written > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(written)
        })
    }

    /// The same of all of them, whatever is written before there is an error: for those whom nobody tells how many were.
    ///
    /// # Errors
    /// The same, and a quota that has no room for some of them.
    pub fn write_all<'a>(self: &'a Rc<Self>, at: u64, bytes: &'a [u8]) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let mut written = 0;
            while written < bytes.len() {
                written += self.write(at + written as u64, &bytes[written..]).await?;
            }
            Ok(())
        })
    }

    /// As [`OpenFile::write`], of those that lie in one block.
    async fn write_in_block(self: &Rc<Self>, at: u64, bytes: &[u8]) -> Result<usize, Error> {
        let _turn = self.turn.acquire(1).await;
        self.check_there()?;
        if self.shared.is_full.get() {
            self.go_out().await?;
        }
        let length = bytes.len().min(BLOCK_BYTES - (at % BLOCK_BYTES as u64) as usize);
        // Until they are gathered: a block that arrives meanwhile gives back what nothing is gathered for.
        let aside = self.set_aside(at, length).await?;
        if !self.dirty.borrow().has_room(at) {
            let permit = self.room().await?;
            // That may have taken long.
            self.check_there()?;
            self.permits.borrow_mut().push(permit);
        }
        self.dirty.borrow_mut().write(at, &bytes[..length]);
        self.shared.contents.figures.add_written(length);
        aside.gathered();
        self.inode.set_written(Some(Time::now()));
        self.settle_permits();
        self.begin(false);
        Ok(length)
    }

    /// Writes bytes past what is gathered, straight into stripes, without a copy: they are stable when it returns. Several at once
    /// are written at once; of such that overlap, and of other writes meanwhile, any may come last.
    ///
    /// # Errors
    /// As a flush, and a write.
    pub fn write_through<'a>(self: &'a Rc<Self>, at: u64, bytes: Rope) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if at.checked_add(bytes.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
                return Err(Error::TooLong(FILE_BYTES_MAX));
            }
            if !self.is_clean() {
                // What was written before must not come over it.
                let _turn = self.turn.acquire(1).await;
                self.go_out().await?;
            }
            self.check_there()?;
            let _aside = self.set_aside_through(Some(at), bytes.len()).await?;
            let (contents, length) = (&self.shared.contents, bytes.len());
            contents.write(&self.inode, at, bytes).await.inspect(|()| contents.figures.add_written(length))
        })
    }

    /// Writes bytes at the file's end, wherever others have moved that: where they are. They are stable when it returns.
    ///
    /// # Errors
    /// As a flush, and a write.
    pub fn append<'a>(self: &'a Rc<Self>, bytes: &'a [u8]) -> LocalFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let _turn = self.turn.acquire(1).await;
            self.go_out().await?;
            let mut rope = Rope::default();
            let _aside = self.set_aside_through(None, bytes.len()).await?;
            bytes.chunks(BLOCK_BYTES).for_each(|part| rope.push(Buf::copy_from(part).freeze()));
            let contents = &self.shared.contents;
            contents.append(&self.inode, rope).await.inspect(|_| contents.figures.add_written(bytes.len()))
        })
    }

    /// Blocks that are dirty or on their way.
    pub(crate) fn blocks(&self) -> usize {
        self.dirty.borrow().held() / BLOCK_BYTES
    }

    fn settle_permits(&self) {
        self.permits.borrow_mut().truncate(self.blocks());
    }

    /// What was written before is stable, and seen by others that open the file.
    ///
    /// # Errors
    /// Some of it could not be stored; it is tried again by the next flush.
    pub fn flush<'a>(self: &'a Rc<Self>) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let _turn = self.turn.acquire(1).await;
            self.go_out().await
        })
    }

    /// Makes the file so long. What was written behind that and is in no stripe yet goes nowhere: a file is emptied also where
    /// there is no room for it.
    ///
    /// # Errors
    /// As a flush; a quota is used up, and bytes that lie in the inode would go into a stripe.
    pub fn truncate<'a>(self: &'a Rc<Self>, size: u64) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let _turn = self.turn.acquire(1).await;
            // What is cut may be wanted once more.
            let counted = self.dirty.borrow().counted();
            let aside = self.aside(counted, 0).await?;
            let (cut, written) = (self.dirty.borrow_mut().cut(size), self.inode.written());
            let of_cut: Vec<Permit> = {
                let mut permits = self.permits.borrow_mut();
                let left = self.blocks().min(permits.len());
                permits.drain(left..).collect()
            };
            if self.is_clean() {
                // It was of bytes that are not wanted any more, and so was the time.
                *self.fault.borrow_mut() = None;
                self.inode.set_written(None);
            }
            let truncated = self.truncate_stored(size).await;
            if !matches!(truncated, Ok(()) | Err(Error::Stale | Error::LostLock)) && !cut.is_empty() {
                // The file is as long as it was, and they are in it.
                self.permits.borrow_mut().extend(of_cut);
                cut.iter().for_each(|Piece { at, view }| self.dirty.borrow_mut().write(*at, view));
                self.inode.set_written(written);
            }
            drop(aside);
            self.settle_permits();
            truncated
        })
    }

    /// The same of what is in stripes, and below that.
    async fn truncate_stored(self: &Rc<Self>, size: u64) -> Result<(), Error> {
        self.go_out().await?;
        let _aside = self.set_aside_for_end(size).await?;
        self.shared.contents.truncate(&self.inode, size).await
    }

    /// Makes the file so long if it is shorter: what it gains is a hole.
    ///
    /// # Errors
    /// As [`OpenFile::truncate`].
    pub fn grow<'a>(self: &'a Rc<Self>, size: u64) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let _turn = self.turn.acquire(1).await;
            self.go_out().await?;
            let _aside = self.set_aside_for_end(size).await?;
            self.shared.contents.grow(&self.inode, size).await
        })
    }

    /// Makes a hole.
    pub fn punch<'a>(self: &'a Rc<Self>, from: u64, to: u64) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let _turn = self.turn.acquire(1).await;
            self.go_out().await?;
            self.shared.contents.punch(&self.inode, from..to).await
        })
    }

    /// What is not in stripes yet goes nowhere, as this says. All that have the file open are to be told.
    pub(crate) fn give_up(&self, why: Error) {
        if !self.is_clean() {
            self.dropped.set(self.dropped.get() + 1);
            *self.dropped_for.borrow_mut() = Some(why);
        }
        self.drop_dirty();
    }

    fn drop_dirty(&self) {
        // What is on its way is counted where it ends.
        self.shared.contents.figures.add_dropped(self.dirty.borrow().numbers().len());
        self.dirty.borrow_mut().cut(0);
        *self.fault.borrow_mut() = None;
        if self.is_clean() {
            self.inode.set_written(None);
        }
        self.settle_permits();
        self.trim_aside();
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.borrow().is_clean()
    }

    pub(crate) fn add_handle(&self) {
        self.handles.set(self.handles.get() + 1);
    }

    /// Whether it was the last one.
    pub(crate) fn take_handle(&self) -> bool {
        self.handles.set(self.handles.get().saturating_sub(1));
        self.is_closed()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.handles.get() == 0
    }
}
