//! What is going to happen, and when. (Timers of tasks are kept apart, by the heap that the real reactor uses.)
//!
//! Invariant: events fire in order of time, and of scheduling within the same nanosecond; so their order is a function
//! of the seed. A key names one event for ever: cancelling a fired one does nothing.

use std::collections::BTreeMap;

use super::id::{ConnId, ConnectId, OpId, Side};

/// Something that will happen.
#[derive(Debug)]
pub(super) enum Event {
    /// The next item of a connection reaches `to`.
    Arrive { conn: ConnId, to: Side },
    /// The sender at `side` learns that its peer has consumed bytes.
    Credit { conn: ConnId, side: Side },
    /// What `side` sent has been held by a partition for the connection timeout; void unless `stall` is still current.
    Stalled { conn: ConnId, side: Side, stall: u64 },
    /// `side` learns that the connection was reset by the network.
    Severed { conn: ConnId, side: Side },
    /// A connection request reaches the far node.
    Syn(ConnectId),
    /// The answer to a connection request comes back: the connection, or refusal.
    SynAnswer { connect: ConnectId, conn: Option<ConnId> },
    /// A connection request was not answered in time.
    ConnectTimeout(ConnectId),
    /// Part number `part` of a disk operation takes effect.
    DiskPart { op: OpId, part: usize },
    /// A disk operation ends.
    DiskDone(OpId),
}

/// Names a scheduled event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EventKey {
    at: u64,
    sequence: u64,
}

/// The queue of events.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: BTreeMap<EventKey, Event>,
    sequence: u64,
}

impl Events {
    /// Makes `event` happen at `at` (nanoseconds of virtual time).
    pub(super) fn schedule(&mut self, at: u64, event: Event) -> EventKey {
        self.sequence += 1;
        let key = EventKey { at, sequence: self.sequence };
        self.queue.insert(key, event);
        key
    }

    /// Takes an event back that has not fired.
    pub(super) fn cancel(&mut self, key: EventKey) {
        self.queue.remove(&key);
    }

    /// When the next event is due.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.queue.first_key_value().map(|(key, _)| key.at)
    }

    /// The next event, if it is due at or before `now`.
    pub(super) fn pop_due(&mut self, now: u64) -> Option<Event> {
        let first = self.queue.first_entry()?;
        (first.key().at <= now).then(|| first.remove())
    }
}
