//! What reservations mean to the commands of one queue; see the invariants in [`super`].

use nvme::opcode::NvmOpcode;
use nvme::reservation::Access;
use nvme::{NSID_ALL, Status, Submission};

use super::{Asked, Change, HostId, Request, asked, of_command};
use crate::subsystem::connection::Connection;
use crate::subsystem::controller::Controller;
use crate::subsystem::stats::CommandKind;

impl Connection {
    /// Of a connection without a controller there are no I/O commands.
    fn host_id(&self) -> HostId {
        self.controller.as_ref().map_or(HostId::default(), |controller| controller.host_id())
    }

    /// Whether the reservation on a namespace of the queue's list lets this host have the command, at this moment.
    pub(in crate::subsystem) fn is_admitted(&mut self, found: usize, command: &Submission) -> bool {
        let wanted = Access::wanted_by(NvmOpcode(command.opcode));
        let host = self.host_id();
        self.namespaces[found].reservations.admits(&mut self.rights[found], &host, wanted)
    }

    /// The request of a reservation command that begins.
    pub(in crate::subsystem) fn reserve(&self, command: &Submission, data: &[u8]) -> Box<Request> {
        let found = match &self.controller {
            Some(controller) => of_command(&self.shared, controller, command).map(|found| (controller.clone(), found)),
            None => Err(Status::INVALID_NAMESPACE.do_not_retry()),
        };
        let persist = command.cdw11.get() & 1 != 0;
        let asked =
            if self.queue.qid == 0 { Ok(Asked::Change(Change::Persist(persist))) } else { asked(command, data) };
        let of_all = command.nsid.get() == NSID_ALL;
        Box::new(Request { shared: self.shared.clone(), found, of_all, asked })
    }

    /// Set Features, Reservation Persistence (NVMe Base 2.0 §5.27.1.27): executed as the reservation commands are.
    pub(in crate::subsystem) fn set_persistence(&mut self, slot: u16, controller: &Controller) {
        let command = self.slots.at(slot).command;
        match of_command(&self.shared, controller, &command) {
            Ok(found) => {
                let first = found.into_iter().next();
                let entry = self.slots.at(slot);
                entry.kind = Some(CommandKind::Reservation);
                entry.addressed = first.map(|found| found.addressed());
                self.ready.push_back(slot);
            }
            Err(status) => self.answer(slot, status, 0),
        }
    }
}
