//! What was gathered goes out: block by block, in the background or because somebody waits for it.

use std::rc::Rc;

use engine::sync::Permit;
use engine::task;

use super::OpenFile;
use crate::dirty::{Batch, PARTS_MAX, Piece};
use crate::error::Error;

impl OpenFile {
    /// Room for one more block: where there is none, blocks go out first, this file's and those of others.
    pub(super) async fn room(self: &Rc<Self>) -> Result<Permit, Error> {
        loop {
            if let Some(permit) = self.shared.room.try_acquire(1) {
                return Ok(permit);
            }
            let mut others = self.shared.dirty_files();
            if others.is_empty() {
                // What is on its way belongs to files that are closed.
                return Ok(self.shared.room.acquire(1).await);
            }
            others.sort_by_key(|file| !Rc::ptr_eq(file, self));
            let (mut has_room, mut fault) = (false, None);
            for file in others {
                let failed = file.failed.get();
                file.send_some().await;
                has_room = self.shared.room.available() > 0;
                if has_room {
                    break;
                }
                // One of before may be over.
                if file.failed.get() != failed {
                    fault = fault.or_else(|| file.fault.borrow().clone());
                    if Rc::ptr_eq(&file, self) {
                        break;
                    }
                }
            }
            if !has_room && let Some(error) = fault {
                return Err(error);
            }
        }
    }

    /// Waits until a block that is dirty or on its way has arrived, or has not.
    pub(super) async fn send_some(self: &Rc<Self>) {
        let ended = self.ended.notified();
        if !self.is_clean() {
            self.begin(true);
            ended.await;
        }
    }

    /// Blocks leave in the background, a few batches at a time: whole ones and those that are due, or all.
    pub(super) fn begin(self: &Rc<Self>, all: bool) {
        while let Some(permit) = self.leaving.try_acquire(1) {
            let taken = self.dirty.borrow_mut().take(all);
            let taken = taken.or_else(|| self.dirty.borrow_mut().take_of(&mut self.due.borrow_mut()));
            let Some(batch) = taken else { return };
            let file = Rc::clone(self);
            task::spawn(async move {
                file.send(batch).await;
                drop(permit);
                // What has failed waits for somebody to ask for it.
                if file.fault.borrow().is_none() {
                    file.begin(false);
                }
                file.ended.notify_all();
            })
            .detach();
        }
    }

    /// Has what is dirty now go out without waiting for it.
    pub(crate) fn go_on(self: &Rc<Self>) {
        *self.due.borrow_mut() = self.dirty.borrow().numbers();
        if !self.dirty.borrow().has_leaving() {
            // It is of a try that is over, and there is another one now.
            *self.fault.borrow_mut() = None;
        }
        self.begin(false);
    }

    /// Puts what has left into stripes.
    async fn put<'a>(&self, pieces: impl Iterator<Item = &'a Piece>) -> Result<(), Error> {
        let mut pieces = pieces.peekable();
        while pieces.peek().is_some() {
            // Others may have what was locked for these bytes.
            self.check_locks()?;
            let parts = pieces.by_ref().take(PARTS_MAX).map(|Piece { at, view }| (*at, view.clone().into())).collect();
            self.shared.contents.write_parts(&self.inode, parts).await?;
        }
        Ok(())
    }

    /// The same of blocks; a fault is noted. **What one of them meets keeps no other from arriving**: they go once more, each by
    /// itself, until a second one fails, as then it is not the block.
    async fn send(&self, batch: Batch) {
        let mut sent = self.put(batch.iter().flat_map(|(_, pieces)| pieces)).await;
        let numbers: Vec<u64> = batch.iter().map(|(number, _)| *number).collect();
        if batch.len() == 1 || matches!(sent, Ok(()) | Err(Error::Stale | Error::LostLock)) {
            return self.note(&numbers, &sent);
        }
        let mut failed = 0;
        for (number, pieces) in &batch {
            if failed < 2 {
                sent = self.put(pieces.iter()).await;
                failed += usize::from(sent.is_err());
            }
            self.note(&[*number], &sent);
        }
    }

    /// Takes note of blocks that have arrived, or have not.
    fn note(&self, numbers: &[u64], sent: &Result<(), Error>) {
        match sent {
            Ok(()) => {
                numbers.iter().for_each(|number| self.dirty.borrow_mut().arrived(*number));
                // What lies in the inode takes no room.
                if self.shared.is_full.get() && !self.inode.is_inline() {
                    self.shared.is_full.set(false);
                }
            }
            Err(error @ (Error::Stale | Error::LostLock)) => {
                self.shared.contents.figures.add_dropped(numbers.len() + self.dirty.borrow().numbers().len());
                // Nothing of it can ever go out, and what others write needs the room.
                self.is_gone.set(self.is_gone.get() || *error == Error::Stale);
                let mut dirty = self.dirty.borrow_mut();
                numbers.iter().for_each(|number| dirty.arrived(*number));
                dirty.cut(0);
            }
            Err(error) => {
                self.shared.contents.figures.blocks_failed.update(|sum| sum + numbers.len() as u64);
                numbers.iter().for_each(|number| self.dirty.borrow_mut().failed(*number));
                self.failed.set(self.failed.get() + 1);
                self.shared.is_full.set(self.shared.is_full.get() || matches!(error, Error::NoSpace(_)));
                tracing::warn!(inode = self.ino, %error, "bytes of a file could not be stored yet");
                *self.fault.borrow_mut() = Some(error.clone());
            }
        }
        if self.is_clean() {
            self.inode.set_written(None);
        }
        self.settle_permits();
        self.trim_aside();
    }

    /// Has everything go out that is dirty now. A fault ends it, but not before what is on its way has ended: it would come
    /// over what is written after it.
    pub(super) async fn go_out(self: &Rc<Self>) -> Result<(), Error> {
        // It is of a try before this one, which has all go out that is not: there is nobody else who waits to tell it.
        *self.fault.borrow_mut() = None;
        loop {
            let ended = self.ended.notified();
            // First, also where there is a fault: with the last close all that is known of the loss goes but what is noted here.
            self.check_locks()?;
            if self.fault.borrow().is_none() {
                self.check_there()?;
                if self.is_clean() {
                    return Ok(());
                }
                self.begin(true);
            } else if !self.dirty.borrow().has_leaving()
                && let Some(error) = self.fault.borrow_mut().take()
            {
                return Err(error);
            }
            ended.await;
        }
    }
}
