//! [`Wishes`]: what the list of this client's record is to say of inodes, in the order in which that was wished. One whose owner
//! has gone is fulfilled like the others: what is listed without need is harmless, and what comes after it has its place behind it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::error::Error;
use crate::record::small::ORPHANS_MAX;

/// See the module.
#[derive(Default)]
pub(crate) struct Wishes(RefCell<Vec<Rc<Wish>>>);

/// What the list is to say of an inode.
pub(super) struct Wish {
    ino: u64,
    listed: bool,
    /// The list had no room for it at the last try.
    is_full: Cell<bool>,
    /// What has come of it.
    outcome: RefCell<Option<Result<bool, Error>>>,
}

impl Wishes {
    /// One more.
    pub(super) fn wish(&self, ino: u64, listed: bool) -> Rc<Wish> {
        let wish = Rc::new(Wish { ino, listed, is_full: Cell::default(), outcome: RefCell::default() });
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

    /// This has come of the change that it was part of.
    pub(super) fn end(&self, changed: &Result<bool, Error>) {
        let too_many = || Err(Error::NoSpace("too many files are open that have no name".to_owned()));
        let is_full = self.is_full.get() && *changed == Ok(true);
        *self.outcome.borrow_mut() = Some(if is_full { too_many() } else { changed.clone() });
    }

    /// Has a list say it, if there is room.
    pub(super) fn fulfil(&self, orphans: &mut Vec<u64>) {
        let found = orphans.binary_search(&self.ino);
        self.is_full.set(self.listed && found.is_err() && orphans.len() >= ORPHANS_MAX);
        match (found, self.listed) {
            (Err(at), true) if !self.is_full.get() => orphans.insert(at, self.ino),
            (Ok(at), false) => drop(orphans.remove(at)),
            _ => {}
        }
    }
}
