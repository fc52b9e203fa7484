//! What a queue may do with its namespaces, and the end of what it may not do any more.
//!
//! A right is to have a namespace attached, in a group whose state lets commands through at the queue's port, under
//! reservations that admit its host. Whoever takes one publishes that, and then calls the queues: the generation moves, or they
//! are asked to drain.
//! Invariants:
//! - A command has its rights when its capsule arrives and when it begins. In between its host decides how much time passes, by
//!   its data: a right that was looked at on arrival alone would be the host's for as long as it keeps silent.
//! - What has not begun when its right ends never begins, and gives up its buffers and the namespace when its queue hears of it.
//! - Neither half of a fused pair is executed without the other: both end (NVMe Base 2.0c §3.4.2).
//! - The blocks of a command lie in the namespace that it was checked against, which looks at them once more when it executes.
//!   The identifier may have been given to another one meanwhile: that is not what the host meant.

use nvme::{Status, Submission};

use super::connection::{Connection, Fusing};
use super::reservation::Rights;

impl Connection {
    pub(super) fn find_namespace(&self, nsid: u32) -> Option<usize> {
        self.namespaces.binary_search_by_key(&nsid, |attached| attached.nsid).ok()
    }

    /// Looks again at what the subsystem has, if that has changed, and ends what has lost its right by that.
    pub(super) fn look_again(&mut self) {
        let generation = self.shared.generation();
        if generation == self.generation || self.queue.qid == 0 {
            return;
        }
        let Some(controller) = &self.controller else { return };
        self.namespaces = self.shared.namespaces(controller);
        self.rights.clear();
        self.rights.resize(self.namespaces.len(), Rights::default());
        self.generation = generation;
        let unbegun = self.slots.iter().filter(|(_, entry)| entry.stage.is_unbegun() && entry.addressed.is_some());
        let unbegun: Vec<u16> = unbegun.map(|(slot, _)| slot).collect();
        for slot in unbegun {
            self.end_if_refused(slot);
        }
    }

    /// Why the queue may not have a command at this moment, if so. `life`: of the namespace that the command is for.
    pub(super) fn refusal(&mut self, command: &Submission, life: Option<u64>) -> Option<Status> {
        let found = self.find_namespace(command.nsid.get());
        let found = found.filter(|&found| life.is_none_or(|life| life == self.namespaces[found].life));
        let Some(found) = found else { return Some(Status::INVALID_NAMESPACE.do_not_retry()) };
        if let Some(status) = self.namespaces[found].access.refusal() {
            return Some(status);
        }
        let admitted = self.is_admitted(found, command);
        (!admitted).then_some(Status::RESERVATION_CONFLICT.do_not_retry())
    }

    /// Whether a command, or a fused pair as one, may begin; it is answered if not.
    pub(super) fn may_begin(&mut self, slot: u16) -> bool {
        if self.queue.qid == 0 {
            return true; // the opcodes of admin commands mean other things
        }
        for half in [Some(slot), self.slots.at(slot).partner].into_iter().flatten() {
            if let Some(status) = self.refusal_of(half) {
                self.end_unbegun(half, status);
                return false;
            }
        }
        true
    }

    fn refusal_of(&mut self, slot: u16) -> Option<Status> {
        let entry = self.slots.at(slot);
        let (command, life) = (entry.command, entry.life());
        self.refusal(&command, life)
    }

    /// Ends a command that has not begun if it may not begin at this moment.
    pub(super) fn end_if_refused(&mut self, slot: u16) {
        if self.slots.at(slot).stage.is_unbegun()
            && let Some(status) = self.refusal_of(slot)
        {
            self.end_unbegun(slot, status);
        }
    }

    /// Ends a command that has not begun, and the other half of its pair with it.
    pub(super) fn end_unbegun(&mut self, slot: u16, status: Status) {
        let partner = self.part(slot);
        if self.fusing == Fusing::First(slot) {
            self.fusing = Fusing::Failed;
        }
        self.fail(slot, status);
        if let Some(partner) = partner {
            self.fail(partner, Status::FAILED_FUSED);
        }
    }

    /// Makes the halves of a fused pair strangers, so that each is answered once.
    pub(super) fn part(&mut self, slot: u16) -> Option<u16> {
        let partner = self.slots.at(slot).partner.take()?;
        self.slots.at(partner).partner = None;
        Some(partner)
    }
}
