//! Shutdown of a controller: the volatile caches of its namespaces are flushed, then CSTS says so (NVMe Base 2.0 §3.6.2).
//!
//! Invariants:
//! - A shutdown is complete when flushes have ended that began after it was asked for: what the host wrote before is stable then.
//! - A controller has one round of flushes under way, one flush for each namespace. A flush has no slot, and Property Set is
//!   answered at once: a host that asks for a shutdown, takes it back and asks again, as fast as it can write, would have as many
//!   flushes as it likes otherwise. All that it asks for meanwhile is one more round.

use super::connection::Connection;
use super::controller::Controller;
use super::io::{Operation, Work};
use super::shared::Attached;

/// See the module.
#[derive(Default)]
pub(super) struct Shutdown {
    /// Namespaces whose flush has not begun.
    flushes: Vec<Attached>,
    /// Flushes of the round that have not ended.
    pending: usize,
    /// A shutdown was asked for since the round began.
    again: bool,
}

impl Shutdown {
    pub fn next_flush(&mut self) -> Option<Operation> {
        let namespace = self.flushes.pop()?.namespace;
        Some(Operation { slot: None, namespace, commit: false, work: Work::Flush })
    }

    pub fn has_flushes(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// The connection has come to its end.
    pub fn give_up(&mut self) {
        self.flushes.clear();
        self.again = false;
    }
}

impl Connection {
    /// The host has asked for a shutdown.
    pub(super) fn shut_down(&mut self, controller: &Controller) {
        if self.shutdown.pending > 0 {
            self.shutdown.again = true;
            return;
        }
        let mut caches = self.shared.namespaces(controller);
        caches.retain(|attached| attached.info.volatile_cache);
        self.shutdown.pending = caches.len();
        self.shutdown.flushes = caches;
        if self.shutdown.pending == 0 {
            controller.shutdown_complete();
        }
    }

    /// One namespace is flushed. A flush that failed is not reported: the shutdown ends all the same, and the medium has latched
    /// the error for whoever uses it next (NVMe Base 2.0 §3.6.2 has no status for it).
    pub(super) fn flushed(&mut self) {
        self.shutdown.pending -= 1;
        if self.shutdown.pending > 0 {
            return;
        }
        let Some(controller) = self.controller.clone() else { return };
        match std::mem::take(&mut self.shutdown.again) {
            true => self.shut_down(&controller),
            false => controller.shutdown_complete(),
        }
    }
}
