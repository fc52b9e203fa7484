//! [`Wishes`]: what the list of this client's record is to say of inodes, in the order in which that was wished. One whose owner
//! has gone is fulfilled like the others: what is listed without need is harmless, and what comes after it has its place behind it.

use std::cell::RefCell;
use std::rc::Rc;

use crate::error::Error;
use crate::record::small::ORPHANS_MAX;

/// The turn of this client's record: no inode has this number.
pub(super) const RECORD: u64 = u64::MAX;

/// See the module.
#[derive(Default)]
pub(crate) struct Wishes(RefCell<Vec<Rc<Wish>>>);

/// What the list is to say of an inode.
pub(super) struct Wish {
    ino: u64,
    listed: bool,
    /// What has come of it.
    outcome: RefCell<Option<Result<bool, Error>>>,
}

impl Wishes {
    /// One more.
    pub(super) fn wish(&self, ino: u64, listed: bool) -> Rc<Wish> {
        let wish = Rc::new(Wish { ino, listed, outcome: RefCell::default() });
        self.0.borrow_mut().push(Rc::clone(&wish));
        wish
    }

    /// Those that are open.
    pub(super) fn all(&self) -> Vec<Rc<Wish>> {
        self.0.borrow().clone()
    }

    /// Forgets those of which something has come.
    pub(super) fn tidy(&self) {
        self.0.borrow_mut().retain(|wish| wish.outcome.borrow().is_none());
    }
}

impl Wish {
    /// What has come of it, once.
    pub(super) fn outcome(&self) -> Option<Result<bool, Error>> {
        self.outcome.borrow_mut().take()
    }

    pub(super) fn end(&self, outcome: Result<bool, Error>) {
        *self.outcome.borrow_mut() = Some(outcome);
    }

    /// False: the list is full.
    pub(super) fn fulfil(&self, orphans: &mut Vec<u64>) -> bool {
        match (orphans.binary_search(&self.ino), self.listed) {
            (Err(_), true) if orphans.len() >= ORPHANS_MAX => return false,
            (Err(at), true) => orphans.insert(at, self.ino),
            (Ok(at), false) => drop(orphans.remove(at)),
            (Ok(_), true) | (Err(_), false) => {}
        }
        true
    }
}
