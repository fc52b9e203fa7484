//! [`Work`]: what all parts of one copy share.

use std::cell::RefCell;

use engine::sync::Semaphore;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::cli::FileCpArgs;
use crate::file::session::Session;

/// Bytes in memory, of all files. Chosen: what keeps a fast network busy for some tens of milliseconds.
const MEMORY_BYTES_MAX: usize = 128 << 20;
/// In units of so many.
const MEMORY_UNIT: usize = 64 << 10;
/// What a copy did.
#[derive(Serialize, Default)]
pub struct Copied {
    pub files: u64,
    pub directories: u64,
    pub links: u64,
    pub bytes: u64,
    /// Bytes of holes, which were not copied.
    pub holes: u64,
    pub verified: bool,
    pub failed: u64,
    pub seconds: f64,
}

/// What all parts of one copy share.
pub struct Work<'a> {
    pub session: &'a Session,
    pub args: &'a FileCpArgs,
    memory: Semaphore,
    pub bar: ProgressBar,
    pub copied: RefCell<Copied>,
}

impl<'a> Work<'a> {
    /// Of one copy.
    pub fn new(session: &'a Session, args: &'a FileCpArgs, bar: ProgressBar) -> Work<'a> {
        let memory = Semaphore::new(MEMORY_BYTES_MAX / MEMORY_UNIT);
        Work { session, args, memory, bar, copied: RefCell::default() }
    }

    /// A share of the memory for so many bytes, however many they are.
    pub async fn room(&self, bytes: usize) -> engine::sync::Permit {
        self.memory.acquire(bytes.div_ceil(MEMORY_UNIT).clamp(1, MEMORY_BYTES_MAX / MEMORY_UNIT)).await
    }

    /// Notes what was done.
    pub fn count(&self, change: impl FnOnce(&mut Copied)) {
        change(&mut self.copied.borrow_mut());
    }
}
