//! [`Handle`]: one of those that have a file open.

use std::cell::Cell;
use std::rc::Rc;

use engine::task::LocalFuture;

use super::OpenFile;
use crate::error::Error;

/// One of those that have a file open: each is told once that bytes were dropped which it may have written, whoever has met the
/// fault.
pub struct Handle {
    /// What [`OpenFile::dropped`] was then.
    told: Cell<u64>,
}

impl Handle {
    /// # Errors
    /// Bytes of the file were dropped since this was asked last.
    pub fn told(&self, file: &OpenFile) -> Result<(), Error> {
        let dropped = file.dropped.get();
        match file.dropped_for.borrow().clone().filter(|_| self.told.replace(dropped) != dropped) {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// As [`OpenFile::flush`].
    ///
    /// # Errors
    /// The same, and bytes that were dropped before.
    pub fn flush<'a>(&'a self, file: &'a Rc<OpenFile>) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let flushed = file.flush().await;
            flushed.and(self.told(file))
        })
    }
}

impl OpenFile {
    /// For one that has it open: what is dropped from now on it is told.
    pub fn handle(&self) -> Handle {
        Handle { told: Cell::new(self.dropped.get()) }
    }
}
