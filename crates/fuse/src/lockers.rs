//! [`Lockers`]: by which open file an owner has asked for its locks. No I/O.
//!
//! Locks of an owner that has flushed are gone already; with an open file go those that were asked for by it and by no other since.
//! **The kernel says late that an open file is gone**: by then its owner may have opened the file again and locked it, and a
//! number of an owner (a kernel's address) may be another's.

use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub struct Lockers {
    /// By inode and owner: the handle that was last.
    last: BTreeMap<(u64, u64), u64>,
}

impl Lockers {
    /// An owner asks for a lock by a handle, or has got it.
    pub fn ask(&mut self, ino: u64, owner: u64, handle: u64) {
        self.last.insert((ino, owner), handle);
    }

    /// An owner gives back all that it has of a file, by whatever handle.
    pub fn flush(&mut self, ino: u64, owner: u64) {
        self.last.remove(&(ino, owner));
    }

    /// Whether an owner has asked by any handle, and has not given back what it has since.
    pub fn knows(&self, ino: u64, owner: u64) -> bool {
        self.last.contains_key(&(ino, owner))
    }

    /// A handle is gone: whose locks go with it.
    pub fn release(&mut self, ino: u64, handle: u64) -> Vec<u64> {
        let gone = self.last.extract_if((ino, 0)..=(ino, u64::MAX), |_, last| *last == handle);
        gone.map(|((_, owner), _)| owner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_takes_no_locks_that_were_got_by_another_open_file() {
        let mut lockers = Lockers::default();
        // Closed, opened again, locked; then the kernel says that the first is gone.
        lockers.ask(7, 100, 1);
        lockers.flush(7, 100);
        lockers.ask(7, 100, 2);
        assert_eq!(lockers.release(7, 1), []);
        // As the child has it open yet, the first goes when that ends.
        lockers.ask(7, 100, 3);
        assert_eq!(lockers.release(7, 2), []);
        assert_eq!(lockers.release(7, 3), [100]);
        assert_eq!(lockers.release(7, 3), [], "once");
        // While its locks are given back it asks again.
        assert!(!lockers.knows(7, 100));
        lockers.ask(7, 100, 4);
        assert!(lockers.knows(7, 100) && !lockers.knows(8, 100));
    }

    #[test]
    fn with_an_open_file_go_all_that_have_locked_by_it() {
        let mut lockers = Lockers::default();
        for (ino, owner) in [(7, 0), (7, u64::MAX), (7, 5), (8, 5), (6, 5)] {
            lockers.ask(ino, owner, 1);
        }
        lockers.flush(7, 5);
        assert_eq!(lockers.release(7, 1), [0, u64::MAX]);
        assert_eq!(lockers.release(8, 1), [5]);
    }
}
