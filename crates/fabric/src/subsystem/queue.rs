//! The queue that a connection becomes, and how far it is.

use engine::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Until ICReq.
    Opening,
    /// Until a Connect command succeeds.
    Connecting,
    /// A queue of a controller.
    Live,
    /// A C2HTermReq is on its way; the host should close.
    Terminating,
    /// It had the time to.
    Closed,
}

/// The queue that a connection has become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    pub qid: u16,
    pub entries: u16,
    /// SQHD: entries taken, modulo `entries`.
    pub head: u16,
    /// SQHD is reported and no SUCCESS flag is used.
    pub flow_control: bool,
    /// The controller's epoch when the queue was connected.
    pub epoch: u32,
}

/// The command that the next one may fuse with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Fusing {
    #[default]
    None,
    /// The command before was a first half.
    First(u16),
    /// It was, but it has failed and was answered.
    Failed,
}

/// A Connect for an I/O queue that is still there: a host that has closed the old connection may come back before we have
/// seen its end.
#[derive(Clone, Copy)]
pub(super) struct HeldConnect {
    pub slot: u16,
    /// When to look again, and when for the last time.
    pub next: Instant,
    pub until: Instant,
}
