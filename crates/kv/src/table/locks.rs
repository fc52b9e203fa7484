//! One writer of this host at a time per page.
//!
//! Compare-and-write alone keeps pages right; but of fifty writers on this host that race for one page, forty-nine would
//! read and try again, each round. Here they queue, and each hands the image it has just written to the next, who need not
//! read. Writers on other hosts are still met by compare-and-write only.
//!
//! No lock is held while another is awaited (placing a value elsewhere happens between two locks), so no cycle can form.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::View;
use engine::sync::{Permit, Semaphore};

/// Locks by number.
#[derive(Default)]
pub(crate) struct Locks {
    slots: RefCell<BTreeMap<u64, Rc<Slot>>>,
}

struct Slot {
    turn: Semaphore,
    users: Cell<usize>,
    image: RefCell<Option<View>>,
}

/// The right to write a page, until dropped.
pub(crate) struct Guard<'a> {
    // Dropped in this order: the next in line is let in, then the slot is forgotten if nobody uses it.
    _turn: Permit,
    user: User<'a>,
}

struct User<'a> {
    locks: &'a Locks,
    number: u64,
    slot: Rc<Slot>,
}

impl Locks {
    /// Waits for the right to write page `number`; first come, first served.
    pub(crate) async fn lock(&self, number: u64) -> Guard<'_> {
        let new = || Rc::new(Slot { turn: Semaphore::new(1), users: Cell::new(0), image: RefCell::new(None) });
        let slot = self.slots.borrow_mut().entry(number).or_insert_with(new).clone();
        slot.users.set(slot.users.get() + 1);
        let user = User { locks: self, number, slot };
        let turn = user.slot.turn.acquire(1).await;
        Guard { _turn: turn, user }
    }
}

impl Guard<'_> {
    /// The image the writer before wrote, acknowledged and stable.
    pub(super) fn image(&self) -> Option<View> {
        self.user.slot.image.borrow().clone()
    }

    /// What the page holds now, as acknowledged to us; `None` if that is not known.
    pub(super) fn set_image(&self, image: Option<View>) {
        *self.user.slot.image.borrow_mut() = image;
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.slot.users.set(self.slot.users.get() - 1);
        if self.slot.users.get() == 0 {
            self.locks.slots.borrow_mut().remove(&self.number);
        }
    }
}
