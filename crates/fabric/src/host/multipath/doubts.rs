//! Ranges with a change whose outcome is not known, and which may take effect yet. Others wait for them.
//!
//! A doubt ends in one of two ways: its command comes to an end (it was sent again and answered), or nobody waits for the
//! command any more and the association that carried it has surely ended.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use engine::sync::Notify;

use super::super::association::Association;

struct Doubt {
    id: u64,
    blocks: Range<u64>,
    /// Whose end makes the command's first copy harmless.
    association: Rc<Association>,
    /// Somebody waits for the command, and may send it again.
    held: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Doubts {
    doubts: RefCell<Vec<Doubt>>,
    next: Cell<u64>,
    settled: Notify,
}

/// Stands for a change that is under way; dropped, it is over, or becomes a doubt without an owner.
pub(super) struct UnderWay<'a> {
    doubts: &'a Doubts,
    id: u64,
    blocks: Range<u64>,
    /// The association that carries the command now.
    carrier: Option<Rc<Association>>,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Doubts {
    /// Waits until no change of these blocks is in doubt.
    pub(super) async fn clear(&self, blocks: &Range<u64>) {
        loop {
            let settled = self.settled.notified();
            self.doubts.borrow_mut().retain(|doubt| doubt.held || doubt.association.may_act());
            let wait = {
                let doubts = self.doubts.borrow();
                // One without an owner harms nobody while its association lives: commands of one controller that are under
                // way at a time have no order (NVMe Base 2.0 §3.4.1).
                let in_way =
                    |doubt: &&Doubt| overlap(&doubt.blocks, blocks) && (doubt.held || !doubt.association.is_alive());
                doubts.iter().find(in_way).map(|doubt| (doubt.held, Rc::clone(&doubt.association)))
            };
            match wait {
                None => return,
                Some((true, _)) => settled.await,
                Some((false, association)) => association.surely_ended().await,
            }
        }
    }

    /// A change of these blocks that is about to be sent.
    pub(super) fn under_way(&self, blocks: Range<u64>) -> UnderWay<'_> {
        let id = self.next.get();
        self.next.set(id + 1);
        UnderWay { doubts: self, id, blocks, carrier: None }
    }

    fn remove(&self, id: u64) {
        let mut doubts = self.doubts.borrow_mut();
        let before = doubts.len();
        doubts.retain(|doubt| doubt.id != id);
        let removed = doubts.len() != before;
        drop(doubts);
        if removed {
            self.settled.notify_all();
        }
    }
}

impl UnderWay<'_> {
    /// The command goes out over this association.
    pub(super) fn carried_by(&mut self, association: &Rc<Association>) {
        self.carrier = Some(Rc::clone(association));
    }

    /// The command has ended on its association; it may be sent again.
    pub(super) fn answered(&mut self) {
        self.carrier = None;
    }

    fn hold(&self, association: &Rc<Association>) {
        let mut doubts = self.doubts.doubts.borrow_mut();
        doubts.retain(|doubt| doubt.id != self.id);
        let association = Rc::clone(association);
        doubts.push(Doubt { id: self.id, blocks: self.blocks.clone(), association, held: true });
    }

    /// The association is lost and the outcome unknown: others wait from now on. Ends when the association surely has.
    pub(super) async fn lost(&self) {
        let Some(association) = self.carrier.clone() else { return };
        self.hold(&association);
        association.surely_ended().await;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.doubts.remove(self.id);
        if let Some(association) = self.carrier.take()
            && association.may_act()
        {
            let mut doubts = self.doubts.doubts.borrow_mut();
            doubts.retain(|doubt| doubt.held || doubt.association.may_act());
            let orphan = |doubt: &&mut Doubt| !doubt.held && Rc::ptr_eq(&doubt.association, &association);
            let orphans = doubts.iter().filter(|doubt| !doubt.held).count();
            match doubts.iter_mut().find(orphan).filter(|_| orphans >= ORPHANS_MAX) {
                // One range that covers both holds back more than it need, and forgets nothing.
                Some(known) => {
                    let (start, end) =
                        (known.blocks.start.min(self.blocks.start), known.blocks.end.max(self.blocks.end));
                    known.blocks = start..end;
                }
                None => doubts.push(Doubt { id: self.id, blocks: self.blocks.clone(), association, held: false }),
            }
        }
    }
}

/// Doubts without an owner that are kept apart; further ones of the same association are joined. Guessed: as many commands as a
/// caller drops while one association lives.
const ORPHANS_MAX: usize = 64;
