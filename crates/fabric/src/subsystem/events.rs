//! What reaches a connection from elsewhere, and is told to the host where it has asked for it: the end of its association,
//! a reset, aborts, and asynchronous events (NVMe Base 2.0c §5.2).

use nvme::Status;

use super::connection::{Connection, Phase};
use super::controller::Controller;
use super::end::End;
use super::limits::ASYNC_EVENTS_MAX;
use super::slots::Stage;

impl Connection {
    /// Somebody has called.
    pub(super) fn attend(&mut self) {
        let Some(controller) = self.controller.clone() else { return };
        self.drain_requested();
        if let Some(end) = self.controller_end() {
            // A queue may wait for its last answers to be read; a host that never does must not hold it.
            match self.end {
                Some(End::Disconnected) => self.end = None,
                // That stays the reason.
                Some(End::AuthenticationFailed(_)) => self.phase = Phase::Closed,
                _ => {}
            }
            self.finish(end);
        } else if self.queue.qid == 0 {
            self.settle_aborts();
            self.tell_events(&controller);
        } else {
            self.abort_requested();
            self.look_again();
        }
    }

    /// Why the queue has no controller any more: its association has ended, or a reset has ended its I/O queues.
    pub(super) fn controller_end(&self) -> Option<End> {
        let controller = self.controller.as_ref()?;
        if controller.is_ended() {
            return Some(End::AssociationEnded);
        }
        (self.queue.qid != 0 && controller.io_epoch() != self.queue.epoch).then_some(End::ControllerReset)
    }

    pub(super) fn tell_events(&mut self, controller: &Controller) {
        while !self.events.is_empty() {
            let Some(event) = controller.next_event() else { return };
            if let Some(slot) = self.events.pop_front() {
                self.answer(slot, Status::SUCCESS, event.to_result());
            }
        }
    }

    /// An Asynchronous Event Request: it waits until there is something to tell.
    pub(super) fn park_event(&mut self, slot: u16, controller: &Controller) {
        if self.events.len() == ASYNC_EVENTS_MAX {
            return self.answer(slot, Status::ASYNC_EVENT_LIMIT_EXCEEDED.do_not_retry(), 0);
        }
        self.slots.at(slot).stage = Stage::Parked;
        self.events.push_back(slot);
        self.tell_events(controller);
    }
}
