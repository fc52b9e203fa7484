//! What reservations mean to the commands of one queue; see the invariants in [`super`].

use std::sync::Arc;

use nvme::opcode::NvmOpcode;
use nvme::reservation::Access;
use nvme::{NSID_ALL, Status, Submission};

use super::{Asked, Change, Drain, DrainRequest, HostId, Request, asked, of_command};
use crate::target::connection::{Connection, Fusing};
use crate::target::controller::Controller;
use crate::target::shared::Attached;
use crate::target::slots::{Addressed, Stage};
use crate::target::stats::CommandKind;

const CONFLICT: Status = Status::RESERVATION_CONFLICT.do_not_retry();

impl Connection {
    /// Of a connection without a controller there are no I/O commands.
    fn host_id(&self) -> HostId {
        self.controller.as_ref().map_or(HostId::default(), |controller| controller.host_id())
    }

    /// Whether the reservation on the command's namespace lets this host have it, at this moment.
    pub(in crate::target) fn is_admitted(&mut self, command: &Submission) -> bool {
        let wanted = Access::wanted_by(NvmOpcode(command.opcode));
        // A namespace that was taken away has no reservations any more; what is under way on it runs to its end.
        let Some(found) = self.find_namespace(command.nsid.get()) else { return true };
        let host = self.host_id();
        self.namespaces[found].reservations.admits(&mut self.rights[found], &host, wanted)
    }

    /// Whether a command, or a fused pair as one, may begin; it is answered if not.
    pub(in crate::target) fn may_begin(&mut self, slot: u16) -> bool {
        if self.queue.qid == 0 {
            return true; // the opcodes of admin commands mean other things
        }
        let entry = self.slots.at(slot);
        let (first, partner) = (entry.command, entry.partner);
        let second = partner.map(|partner| (partner, self.slots.at(partner).command));
        let first_admitted = self.is_admitted(&first);
        match second {
            None if first_admitted => return true,
            None => self.answer(slot, CONFLICT, 0),
            Some((_, second)) if first_admitted && self.is_admitted(&second) => return true,
            Some((partner, _)) => {
                let of_first = if first_admitted { Status::FAILED_FUSED } else { CONFLICT };
                let of_second = if first_admitted { CONFLICT } else { Status::FAILED_FUSED };
                self.part(slot);
                self.answer(slot, of_first, 0);
                self.answer(partner, of_second, 0);
            }
        }
        false
    }

    /// Makes the halves of a fused pair strangers, so that each is answered once.
    fn part(&mut self, slot: u16) {
        if let Some(partner) = self.slots.at(slot).partner.take() {
            self.slots.at(partner).partner = None;
        }
    }

    /// The request of a reservation command that begins.
    pub(in crate::target) fn reserve(&self, command: &Submission, data: &[u8]) -> Box<Request> {
        let namespaces = match &self.controller {
            Some(controller) => of_command(&self.shared, controller, command),
            None => Err(Status::INVALID_NAMESPACE.do_not_retry()),
        };
        let persist = command.cdw11.get() & 1 != 0;
        let asked =
            if self.queue.qid == 0 { Ok(Asked::Change(Change::Persist(persist))) } else { asked(command, data) };
        let host = self.host_id();
        let of_all = command.nsid.get() == NSID_ALL;
        Box::new(Request { shared: self.shared.clone(), namespaces, of_all, host, asked })
    }

    /// Set Features, Reservation Persistence (NVMe Base 2.0 §5.27.1.27): executed as the reservation commands are.
    pub(in crate::target) fn set_persistence(&mut self, slot: u16, controller: &Controller) {
        let command = self.slots.at(slot).command;
        match of_command(&self.shared, controller, &command) {
            Ok(found) => {
                let first = found.into_iter().next();
                let entry = self.slots.at(slot);
                entry.kind = Some(CommandKind::Reservation);
                entry.addressed = first.map(|found| Addressed { namespace: found.namespace, info: found.info });
                self.ready.push_back(slot);
            }
            Err(status) => self.answer(slot, status, 0),
        }
    }

    /// Does what others have asked of this queue.
    pub(in crate::target) fn drain_requested(&mut self) {
        for request in self.attention.take_drains() {
            self.drain(&request);
        }
    }

    /// Lets go of what this queue has under way on a namespace: see [`DrainRequest`]. Reservation commands are left alone:
    /// they wait for each other's turn, and the one that asked is perhaps among them.
    fn drain(&mut self, request: &DrainRequest) {
        let same = |found: &Attached| Arc::ptr_eq(&found.reservations, &request.reservations);
        let Some(nsid) = self.namespaces.iter().find(|found| same(found)).map(|found| found.nsid) else { return };
        let concerned = self.slots.iter().filter(|(_, entry)| {
            entry.command.nsid.get() == nsid && entry.kind.is_some_and(|kind| kind != CommandKind::Reservation)
        });
        let (executing, waiting): (Vec<_>, Vec<_>) = concerned
            .filter(|(_, entry)| entry.stage != Stage::Answered)
            .map(|(slot, entry)| (slot, entry.stage))
            .partition(|(_, stage)| *stage == Stage::Executing);
        for (slot, _) in executing {
            let command = self.slots.at(slot).command;
            if request.how == Drain::Abort || !self.is_admitted(&command) {
                self.slots.at(slot).hold = Some(request.hold.clone());
            }
        }
        if request.how == Drain::Abort {
            for (slot, _) in waiting {
                self.part(slot);
                self.ready.retain(|&ready| ready != slot);
                if self.fusing == Fusing::First(slot) {
                    self.fusing = Fusing::Failed;
                }
                self.fail(slot, Status::ABORTED_PREEMPT.do_not_retry());
            }
        }
    }
}
