//! Ranges with a change that is under way, or whose outcome is not known, and which may take effect yet. Others wait for them.
//!
//! Invariants:
//! - No two changes of a common block are under way at a time. Were a second one acknowledged while the first one's answer is
//!   on its way, and that answer then lost, the first one would be sent again, and take effect once before the second one and
//!   once after.
//! - A doubt is what is left of a change whose caller has gone: nobody sends it again, and it ends when its command was
//!   answered, or the association that carried it has surely ended.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use engine::sync::Notify;

use super::super::association::Association;

/// Doubts that are kept apart; further ones of the same association are joined. Guessed: as many commands as a caller drops while
/// one association lives.
const DOUBTS_MAX: usize = 64;

struct Doubt {
    blocks: Range<u64>,
    /// Whose end makes the command harmless.
    association: Rc<Association>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Doubts {
    doubts: RefCell<Vec<Doubt>>,
    /// Changes under way, by their first block; they never overlap. As many as there are callers: a queue's depth or two, so that
    /// moving what stands behind costs less than a tree would, and allocates nothing once it has grown.
    under_way: RefCell<Vec<Range<u64>>>,
    waiting: Cell<usize>,
    ended: Notify,
}

/// Stands for a change that is under way; dropped, it is over, or becomes a doubt.
pub(super) struct UnderWay<'a> {
    doubts: &'a Doubts,
    blocks: Range<u64>,
    /// The association that carries the command now.
    carrier: Option<Rc<Association>>,
    /// It is among those under way.
    entered: bool,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Doubts {
    /// Waits until no change of these blocks is under way or in doubt, and enters one.
    pub(super) async fn enter(&self, blocks: Range<u64>) -> UnderWay<'_> {
        self.admitted(blocks, true).await
    }

    /// The same for one that is never sent again, which is not entered: others need not wait for it, unless it becomes a doubt.
    pub(super) async fn pass(&self, blocks: Range<u64>) -> UnderWay<'_> {
        self.admitted(blocks, false).await
    }

    async fn admitted(&self, blocks: Range<u64>, enters: bool) -> UnderWay<'_> {
        loop {
            let ended = self.ended.notified();
            if let Some(association) = self.in_way(&blocks) {
                association.abandoned_over().await;
                continue;
            }
            let is_free = match enters {
                true => self.begin(&blocks),
                false => !self.under_way.borrow().iter().any(|other| overlap(other, &blocks)),
            };
            if is_free {
                let entered = enters && !blocks.is_empty();
                return UnderWay { doubts: self, blocks, carrier: None, entered };
            }
            let _waiting = Waiting::new(&self.waiting);
            ended.await;
        }
    }

    /// Enters a change, unless one of a common block is under way.
    fn begin(&self, blocks: &Range<u64>) -> bool {
        let mut under_way = self.under_way.borrow_mut();
        let at = under_way.partition_point(|other| other.start < blocks.start);
        let mut neighbours = under_way[at.saturating_sub(1)..].iter().take(2);
        if neighbours.any(|other| overlap(other, blocks)) {
            return false;
        }
        // What has no blocks is refused by whoever sends it, or does nothing.
        if !blocks.is_empty() {
            under_way.insert(at, blocks.clone());
        }
        true
    }

    /// The association of a doubt about these blocks.
    fn in_way(&self, blocks: &Range<u64>) -> Option<Rc<Association>> {
        let mut doubts = self.doubts.borrow_mut();
        if doubts.is_empty() {
            return None;
        }
        doubts.retain(|doubt| !doubt.association.is_abandoned_over());
        let doubt = doubts.iter().find(|doubt| overlap(&doubt.blocks, blocks))?;
        Some(Rc::clone(&doubt.association))
    }

    fn doubt(&self, blocks: Range<u64>, association: Rc<Association>) {
        let mut doubts = self.doubts.borrow_mut();
        doubts.retain(|doubt| !doubt.association.is_abandoned_over());
        let same = |doubt: &&mut Doubt| Rc::ptr_eq(&doubt.association, &association);
        let full = doubts.len() >= DOUBTS_MAX;
        match doubts.iter_mut().find(same).filter(|_| full) {
            // One range that covers both holds back more than it need, and forgets nothing.
            Some(known) => known.blocks = known.blocks.start.min(blocks.start)..known.blocks.end.max(blocks.end),
            None => doubts.push(Doubt { blocks, association }),
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

    /// The association is lost and the outcome unknown. Ends when the association surely has.
    pub(super) async fn lost(&self) {
        if let Some(association) = &self.carrier {
            association.surely_ended().await;
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // The doubt is there before the way is free.
        if let Some(association) = self.carrier.take()
            && !association.is_abandoned_over()
        {
            self.doubts.doubt(self.blocks.clone(), association);
        }
        if !self.entered {
            return;
        }
        let mut under_way = self.doubts.under_way.borrow_mut();
        let at = under_way.partition_point(|other| other.start < self.blocks.start);
        debug_assert_eq!(under_way.get(at), Some(&self.blocks));
        under_way.remove(at);
        drop(under_way);
        if self.doubts.waiting.get() > 0 {
            self.doubts.ended.notify_all();
        }
    }
}

/// Somebody waits.
struct Waiting<'a>(&'a Cell<usize>);

impl Waiting<'_> {
    fn new(count: &Cell<usize>) -> Waiting<'_> {
        count.set(count.get() + 1);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
