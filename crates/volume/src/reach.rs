//! How one holder of a volume is reached.

use std::rc::Rc;

use device::Namespace;
use engine::task::LocalFuture;
use fabric::host::{AnyRemote, CopyTag, NamespaceCopy, RemoteNamespace};

use crate::error::Error;

/// A connection that has the holder's reservation for itself.
///
/// The connection is known to the target by an identity and a key that were never used before. Whoever had the reservation was
/// preempted, and no command of theirs executes any more: also not one of ours over a connection before this one.
#[derive(Clone)]
pub struct Taken {
    /// The namespace over this connection.
    pub namespace: AnyRemote,
    /// [`device::Link::epoch`] when it was taken. Another one is another connection, which is not ours to use: what was under way
    pub epoch: u64,
    /// Where the target offers snapshots of the namespace.
    pub copies: Option<Rc<dyn Copies>>,
}

/// Snapshots of the namespace that a connection leads to, which are its target's. Each command is sent once.
pub trait Copies: 'static {
    /// Takes one, as one step, between this call and its answer: the same one, where the namespace has one of this tag.
    fn snapshot(&self, tag: CopyTag) -> LocalFuture<'_, Result<u32, device::Error>>;

    /// Those that there are, and clones.
    fn copies(&self) -> LocalFuture<'_, Result<Vec<NamespaceCopy>, device::Error>>;

    /// Deletes one, by its identifier and its NGUID: identifiers are used again. One that is gone is no error.
    fn delete_copy(&self, nsid: u32, nguid: [u8; 16]) -> LocalFuture<'_, Result<(), device::Error>>;
}

impl Copies for RemoteNamespace {
    fn snapshot(&self, tag: CopyTag) -> LocalFuture<'_, Result<u32, device::Error>> {
        RemoteNamespace::snapshot(self, tag)
    }

    fn copies(&self) -> LocalFuture<'_, Result<Vec<NamespaceCopy>, device::Error>> {
        RemoteNamespace::copies(self)
    }

    fn delete_copy(&self, nsid: u32, nguid: [u8; 16]) -> LocalFuture<'_, Result<(), device::Error>> {
        RemoteNamespace::delete_copy(self, nsid, nguid)
    }
}

impl Taken {
    /// Whether the connection is still the one that was taken.
    pub fn is_up(&self) -> bool {
        let link = self.namespace.link();
        link.is_up && link.epoch == self.epoch
    }
}

/// What may be taken, and from whom.
///
/// A namespace that is a holder has a reservation at all times, by a key that only hosts of volumes use. So what has none and no
/// label is no holder, and what another key has is another program's: both may be named by mistake, and are left as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// What has a label of a volume, or a reservation of a host of one.
    Holder,
    /// What no other program has reserved.
    Unreserved,
    /// Whatever it is: somebody has said so.
    Anything,
}

/// How one holder is reached. Each call makes a connection of its own.
///
/// Nothing gives a reservation up: where nobody holds one everybody's commands are let through, also late ones of a host that
/// lost it long ago. It is only ever taken over.
pub trait Reach: 'static {
    /// The holder in words, as errors name it.
    fn name(&self) -> String;

    /// Connects, and takes nothing.
    fn look(&self) -> LocalFuture<'_, Result<AnyRemote, Error>>;

    /// Connects as somebody who was never there before, and takes the reservation for exclusive access from whoever has it, if
    /// `takes` says that it may. It survives power loss.
    fn take(&self, takes: Takes) -> LocalFuture<'_, Result<Taken, Error>>;

    /// Connects to the snapshot of the holder that has this tag, and takes nothing.
    fn look_at_snapshot(&self, _tag: CopyTag) -> LocalFuture<'_, Result<AnyRemote, Error>> {
        Box::pin(async move { Err(Error::Lacks { holder: self.name(), what: "snapshots" }) })
    }
}
