//! How the machines of the world, and what goes on between them, are named: what an event says of them.

/// A machine of the simulated world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(super) u32);

/// The node on which the future given to `run_until` itself runs. It is never crashed or paused.
pub(super) const HARNESS: NodeId = NodeId(0);

/// Names a connection; never used again within a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ConnId(pub(super) u64);

/// Names a request for a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ConnectId(pub(super) u64);

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Side(pub(super) u8);

impl Side {
    /// The end that asked for the connection.
    pub(crate) const CLIENT: Side = Side(0);
    /// The end that accepted it.
    pub(crate) const SERVER: Side = Side(1);

    pub(super) fn other(self) -> Side {
        Side(1 - self.0)
    }
}

/// Names a disk operation; never used again within a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct OpId(pub(super) u64);
