//! [`UnderWay`]: the writes that a client has under way, so that one behind a file's end waits for those before it.
//!
//! A writer that sends a file's blocks at once has them arrive in any order. If one that is early made the file longer at once, it
//! would have to cut it first, for what may lie in the gap; and what the others write into the gap would have been there before
//! that cut, or after it. They know of one another, and so do without.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::sync::Notify;

/// See the module.
#[derive(Default)]
pub(crate) struct UnderWay {
    /// Of each write its inode and its first byte.
    writes: RefCell<BTreeMap<u64, (u64, u64)>>,
    next: Cell<u64>,
    ended: Notify,
}

/// A write under way, until it is dropped.
pub(crate) struct Underway {
    all: Rc<UnderWay>,
    number: u64,
}

impl UnderWay {
    /// A write begins.
    pub(crate) fn begin(self: &Rc<Self>, inode: u64, at: u64) -> Underway {
        let number = self.next.get();
        self.next.set(number + 1);
        self.writes.borrow_mut().insert(number, (inode, at));
        Underway { all: Rc::clone(self), number }
    }

    /// Those of a file that begin before a place. Each waits for such as begin before itself alone: there is always one that does
    /// not wait.
    pub(crate) fn before(&self, inode: u64, at: u64) -> Vec<u64> {
        let writes = self.writes.borrow();
        writes.iter().filter(|(_, write)| write.0 == inode && write.1 < at).map(|(number, _)| *number).collect()
    }

    /// Waits until all of these have ended, however they do.
    pub(crate) async fn wait_for(&self, numbers: &[u64]) {
        while numbers.iter().any(|number| self.writes.borrow().contains_key(number)) {
            self.ended.notified().await;
        }
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.all.writes.borrow_mut().remove(&self.number);
        self.all.ended.notify_all();
    }
}
