//! Abort (NVMe Base 2.0c §5.1): a command is named on the admin queue and stopped on its own, which is another connection,
//! often on another reactor.
//!
//! ```text
//!  admin connection ── AbortRequest, by the queue's Attention ─► I/O connection: stops the command, or lets it run
//!         ▲                                                          │ its answer is sent
//!         └────────── number and outcome, by our Attention ◄── AbortTicket, however it ends
//! ```
//! Invariants:
//! - A command that is executing runs to its end: what a medium has been told can't be taken back, and an answer that says
//!   "aborted" over data that is written all the same would let a host reuse what it has not got back.
//! - A command that was aborted never takes effect, and its answer is encoded before the Abort's (NVMe Base 2.0c §5.1.1).
//! - Every Abort is answered: the ticket tells its outcome when it is dropped, with the connection if need be.
//! - Commands that are not aborted see of this one relaxed load per turn of their connection.

use std::sync::Arc;

use nvme::{Status, Submission};

use super::attention::Attention;
use super::connection::Connection;
use super::controller::Controller;
use super::limits::ABORTS_MAX;
use super::slots::{Slot, Stage};

/// What an admin connection asks of the connection of an I/O queue.
pub(super) struct AbortRequest {
    /// Identifier of the command to be aborted.
    command_id: u16,
    ticket: AbortTicket,
}

/// The Abort command that waits for an outcome.
pub(super) struct AbortTicket {
    number: u64,
    admin: Arc<Attention>,
    aborted: bool,
}

impl AbortTicket {
    /// The command's answer is on its way with `status`.
    pub fn settle(mut self, status: Status) {
        self.aborted = status.kind() == Status::ABORT_REQUESTED;
    }
}

impl Drop for AbortTicket {
    fn drop(&mut self) {
        self.admin.tell_abort(self.number, self.aborted);
    }
}

/// The Abort commands of an admin connection that wait for their outcome: number and slot.
#[derive(Default)]
pub(super) struct Aborts {
    begun: u64,
    waiting: Vec<(u64, u16)>,
}

/// Bit 0 of an Abort's result: the command was not aborted.
const NOT_ABORTED: u64 = 1;

impl Connection {
    /// The Abort command in `slot`.
    pub(super) fn abort(&mut self, slot: u16, command: &Submission, controller: &Controller) {
        let (sqid, command_id) = (command.cdw10.get() as u16, (command.cdw10.get() >> 16) as u16);
        if sqid == 0 {
            return self.abort_event_request(slot, command_id);
        }
        if self.aborts.waiting.len() >= usize::from(ABORTS_MAX) {
            return self.answer(slot, Status::ABORT_LIMIT_EXCEEDED, 0);
        }
        let Some(queue) = controller.queue(sqid) else { return self.answer(slot, Status::SUCCESS, NOT_ABORTED) };
        let number = self.aborts.begun;
        self.aborts.begun += 1;
        self.aborts.waiting.push((number, slot));
        self.slots.at(slot).stage = Stage::Executing;
        let ticket = AbortTicket { number, admin: self.attention.clone(), aborted: false };
        queue.ask_to_abort(AbortRequest { command_id, ticket });
    }

    /// Of the commands on the admin queue only event requests wait for anything; the others are done at once.
    fn abort_event_request(&mut self, slot: u16, command_id: u16) {
        let named = |entry: &Slot| entry.stage == Stage::Parked && entry.command.command_id.get() == command_id;
        let found = self.slots.iter().find(|(_, entry)| named(entry)).map(|(index, _)| index);
        let Some(found) = found else { return self.answer(slot, Status::SUCCESS, NOT_ABORTED) };
        self.events.retain(|&parked| parked != found);
        self.answer(found, Status::ABORT_REQUESTED, 0);
        self.answer(slot, Status::SUCCESS, 0);
    }

    /// Answers the Aborts whose outcome has come.
    pub(super) fn settle_aborts(&mut self) {
        for (number, aborted) in self.attention.take_outcomes() {
            let Some(at) = self.aborts.waiting.iter().position(|&(waiting, _)| waiting == number) else { continue };
            let (_, slot) = self.aborts.waiting.swap_remove(at);
            self.answer(slot, Status::SUCCESS, if aborted { 0 } else { NOT_ABORTED });
        }
    }

    /// A reset leaves no Abort waiting: the host may use its identifier for a command of the new start.
    pub(super) fn give_up_aborts(&mut self) {
        for (_, slot) in std::mem::take(&mut self.aborts.waiting) {
            self.answer(slot, Status::ABORT_REQUESTED, 0);
        }
    }

    /// Stops the commands of this queue that others ask to be aborted, where they have not begun.
    pub(super) fn abort_requested(&mut self) {
        for AbortRequest { command_id, ticket } in self.attention.take_requests() {
            let named = |entry: &Slot| entry.owns_id && entry.command.command_id.get() == command_id;
            let found = self.slots.iter().find(|(_, entry)| named(entry)).map(|(index, _)| index);
            match found {
                Some(slot) => self.abort_command(slot, ticket),
                None => drop(ticket), // it was answered: the ticket says that nothing was aborted
            }
        }
    }

    fn abort_command(&mut self, slot: u16, ticket: AbortTicket) {
        let entry = self.slots.at(slot);
        match entry.stage {
            Stage::Executing | Stage::Parked | Stage::Answered => return,
            // It fails for another reason, as soon as its data is here.
            _ if entry.doomed.is_some() => return,
            Stage::Capsule | Stage::Waiting | Stage::Transfer | Stage::Ready => {}
        }
        entry.abort = Some(ticket);
        self.end_unbegun(slot, Status::ABORT_REQUESTED);
    }
}
