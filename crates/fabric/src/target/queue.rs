//! The queue that a connection becomes, and how far it is.

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
