//! [`OpenFile`]: a file's bytes as its users see them: what they have written is gathered, and goes out as stripes.
//!
//! Invariants:
//! - A read sees every write that came before it here, whether it is in stripes yet or not.
//! - After a flush that has succeeded all that was written before it is stable, and others that open the file see it.
//! - A fault of a write that goes out later is told by the next flush, or by a write that has no room for it; the bytes are
//!   kept and
//!   tried again by the next flush, until the file is closed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use engine::sync::{Notify, Permit, Semaphore};
use engine::{Buf, task};

use crate::data::Contents;
use crate::data::{FILE_BYTES_MAX, Inode as _, Rope};
use crate::dirty::{BLOCK_BYTES, Dirty, Piece};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::ops::Attributes;
use crate::record::inode::Inode;
use crate::record::{Kind, Time};
use crate::stored::Stored;

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
    /// Truncation and writes take turns with it.
    turn: Semaphore,
}

impl OpenFile {
    pub(crate) fn new(shared: &Rc<Shared>, ino: u64, inode: &Inode) -> Result<OpenFile, Error> {
        match inode.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::IsDirectory(format!("inode {ino}"))),
            _ => return Err(Error::Invalid("only files have bytes")),
        }
        let shape = shared.contents.members().layout().shape;
        Ok(OpenFile {
            shared: Rc::clone(shared),
            ino,
            handles: Cell::new(1),
            inode: Stored::new(Rc::clone(&shared.names), ino, shape),
            dirty: RefCell::default(),
            permits: RefCell::default(),
            leaving: Semaphore::new(LEAVING_MAX),
            ended: Notify::new(),
            fault: RefCell::default(),
            turn: Semaphore::new(1),
        })
    }

    /// Its inode's number.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// What others have written since is seen.
    pub(crate) async fn look_again(&self) -> Result<(), Error> {
        self.shared.contents.forget(self.ino);
        self.inode.load(true).await.map(drop)
    }

    /// What of its attributes is not in the inode yet.
    pub(crate) fn overlay(&self, told: &mut Attributes) {
        told.size = told.size.max(self.dirty.borrow().end().unwrap_or(0));
        if let Some(written) = self.inode.written() {
            (told.modified, told.changed) = (written, told.changed.max(written));
        }
    }

    /// Bytes of the file, as far as it goes; holes are zeroes.
    ///
    /// # Errors
    /// [`Error::Lost`] where too many members are.
    pub async fn read(&self, at: u64, length: usize) -> Result<Rope, Error> {
        let asked = at..at.saturating_add(length as u64);
        // First: what arrives in the stripes meanwhile is then in both, and not in neither.
        let (dirty, dirty_end) = {
            let dirty = self.dirty.borrow();
            (dirty.pieces(asked.clone()), dirty.end().unwrap_or(0))
        };
        let (state, _) = self.inode.load(false).await?;
        let end = state.size.max(dirty_end).min(asked.end);
        let wanted = at.min(end)..end;
        let stored = self.shared.contents.read(&self.inode, wanted.clone(), false).await?;
        let length = (wanted.end - wanted.start) as usize;
        if dirty.is_empty() && stored.len() == length {
            return Ok(stored);
        }
        Ok(laid_over(&stored, &dirty, wanted))
    }

    /// Writes bytes, which go out later.
    ///
    /// # Errors
    /// The file would be too long; there is no room in memory, as what was written before could not go out.
    pub async fn write(self: &Rc<Self>, at: u64, bytes: &[u8]) -> Result<(), Error> {
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Error::TooLong(FILE_BYTES_MAX));
        }
        let (mut at, mut bytes) = (at, bytes);
        while !bytes.is_empty() {
            let _turn = self.turn.acquire(1).await;
            let length = bytes.len().min(BLOCK_BYTES - (at % BLOCK_BYTES as u64) as usize);
            let (now, rest) = bytes.split_at(length);
            if !self.dirty.borrow().has_room(at) {
                let permit = self.room().await?;
                self.permits.borrow_mut().push(permit);
            }
            self.dirty.borrow_mut().write(at, now);
            self.inode.set_written(Some(Time::now()));
            self.settle_permits();
            (at, bytes) = (at + length as u64, rest);
            self.begin(false);
        }
        Ok(())
    }

    /// Writes bytes at the file's end, wherever others have moved that: where they are. They are stable when it returns.
    ///
    /// # Errors
    /// As a flush, and a write.
    pub async fn append(self: &Rc<Self>, bytes: &[u8]) -> Result<u64, Error> {
        let _turn = self.turn.acquire(1).await;
        self.go_out().await?;
        let mut rope = Rope::default();
        bytes.chunks(BLOCK_BYTES).for_each(|part| rope.push(Buf::copy_from(part).freeze()));
        self.shared.contents.append(&self.inode, rope).await
    }

    /// Room for one more block: where there is none, blocks go out first, this file's and those of others.
    async fn room(self: &Rc<Self>) -> Result<Permit, Error> {
        loop {
            if let Some(permit) = self.shared.room.try_acquire(1) {
                return Ok(permit);
            }
            let fault = self.fault.borrow_mut().take();
            if let Some(error) = fault {
                return Err(error);
            }
            let mut others = self.shared.dirty_files();
            if others.is_empty() {
                // What is on its way belongs to files that are closed.
                return Ok(self.shared.room.acquire(1).await);
            }
            others.sort_by_key(|file| !Rc::ptr_eq(file, self));
            let (mut has_room, mut fault) = (false, None);
            for file in others {
                file.send_some().await;
                has_room = self.shared.room.available() > 0;
                if has_room {
                    break;
                }
                fault = fault.or_else(|| file.fault.borrow().clone());
            }
            if !has_room && let Some(error) = fault {
                return Err(error);
            }
        }
    }

    /// Waits until a block that is dirty or on its way has arrived, or has not.
    async fn send_some(self: &Rc<Self>) {
        let ended = self.ended.notified();
        if !self.is_clean() {
            self.begin(true);
            ended.await;
        }
    }

    fn settle_permits(&self) {
        let blocks = self.dirty.borrow().held() / BLOCK_BYTES;
        self.permits.borrow_mut().truncate(blocks);
    }

    /// Blocks leave in the background, a few at a time: whole ones, or all.
    fn begin(self: &Rc<Self>, all: bool) {
        while let Some(permit) = self.leaving.try_acquire(1) {
            let Some((number, pieces)) = self.dirty.borrow_mut().take(all) else { return };
            let file = Rc::clone(self);
            task::spawn(async move {
                file.send(number, pieces).await;
                drop(permit);
                file.ended.notify_all();
            })
            .detach();
        }
    }

    /// Has what is dirty go out without waiting for it.
    pub(crate) fn go_on(self: &Rc<Self>) {
        self.begin(true);
    }

    /// Puts a block into stripes; a fault is noted.
    async fn send(&self, number: u64, pieces: Vec<Piece>) {
        let mut result = Ok(());
        for Piece { at, view } in pieces {
            result = self.shared.contents.write(&self.inode, at, view.into()).await;
            if result.is_err() {
                break;
            }
        }
        match result {
            Ok(()) => self.dirty.borrow_mut().arrived(number),
            Err(error) => {
                self.dirty.borrow_mut().failed(number);
                tracing::warn!(inode = self.ino, %error, "bytes of a file could not be stored yet");
                *self.fault.borrow_mut() = Some(error);
            }
        }
        self.settle_permits();
    }

    /// Has everything go out that is dirty now; the first fault ends it.
    async fn go_out(self: &Rc<Self>) -> Result<(), Error> {
        loop {
            if let Some(error) = self.fault.borrow_mut().take() {
                return Err(error);
            }
            let ended = self.ended.notified();
            if self.is_clean() {
                self.inode.set_written(None);
                return Ok(());
            }
            self.begin(true);
            ended.await;
        }
    }

    /// What was written before is stable, and seen by others that open the file.
    ///
    /// # Errors
    /// Some of it could not be stored; it is tried again by the next flush.
    pub async fn flush(self: &Rc<Self>) -> Result<(), Error> {
        let _turn = self.turn.acquire(1).await;
        self.go_out().await
    }

    /// Makes the file so long.
    pub async fn truncate(self: &Rc<Self>, size: u64) -> Result<(), Error> {
        let _turn = self.turn.acquire(1).await;
        self.go_out().await?;
        self.shared.contents.truncate(&self.inode, size).await
    }

    /// Makes a hole.
    pub async fn punch(self: &Rc<Self>, from: u64, to: u64) -> Result<(), Error> {
        let _turn = self.turn.acquire(1).await;
        self.go_out().await?;
        self.shared.contents.punch(&self.inode, from..to).await
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

/// What stripes hold of a range, which may end earlier, with what is dirty laid over it.
fn laid_over(stored: &Rope, dirty: &[Piece], range: Range<u64>) -> Rope {
    let (mut rope, length) = (Rope::default(), (range.end - range.start) as usize);
    for from in (0..length).step_by(BLOCK_BYTES) {
        let to = length.min(from + BLOCK_BYTES);
        let mut buf = Buf::zeroed(to - from);
        stored.slice(from.min(stored.len()), to.min(stored.len())).copy_to(&mut buf);
        let here = range.start + from as u64..range.start + to as u64;
        for Piece { at, view } in dirty {
            let (first, end) = ((*at).max(here.start), (at + view.len() as u64).min(here.end));
            if first < end {
                let part = (first - at) as usize..(end - at) as usize;
                buf[(first - here.start) as usize..(end - here.start) as usize].copy_from_slice(&view[part]);
            }
        }
        rope.push(buf.freeze());
    }
    rope
}
