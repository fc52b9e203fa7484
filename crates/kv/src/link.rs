//! [`Link`]: what a store must know of a member's connection beside its commands; [`AnyLink`]: one of any kind.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use device::{AnyNamespace, Fault, FileNamespace, Memory, Namespace};
use fabric::host::RemoteNamespace;

/// A namespace whose connection may come and go. The defaults are those of one that is always there.
pub trait Link: Namespace {
    /// Whether commands can be sent now.
    fn is_connected(&self) -> bool {
        true
    }

    /// Changes with every new connection: what answers now may not be what answered before.
    fn epoch(&self) -> u64 {
        0
    }
}

/// A member's connection, so that the store is compiled once, here. A remote namespace, which is what members are in practice, is
/// reached by a `match`; any other kind costs a box per command. A clone is the same connection.
#[derive(Clone)]
pub enum AnyLink {
    /// Over NVMe/TCP.
    Remote(Rc<RemoteNamespace>),
    /// Any other kind.
    Other(Rc<dyn ErasedLink>),
}

/// The same connection, not merely the same namespace.
impl PartialEq for AnyLink {
    fn eq(&self, other: &AnyLink) -> bool {
        match (self, other) {
            (AnyLink::Remote(left), AnyLink::Remote(right)) => Rc::ptr_eq(left, right),
            (AnyLink::Other(left), AnyLink::Other(right)) => Rc::ptr_eq(left, right),
            _ => false,
        }
    }
}

impl<L: Link> From<Rc<L>> for AnyLink {
    fn from(link: Rc<L>) -> AnyLink {
        let any: Rc<dyn Any> = link.clone();
        any.downcast().map_or_else(|_| AnyLink::Other(link), AnyLink::Remote)
    }
}

impl From<RemoteNamespace> for AnyLink {
    fn from(remote: RemoteNamespace) -> AnyLink {
        AnyLink::Remote(Rc::new(remote))
    }
}

impl<L: Link> From<Arc<L>> for AnyLink {
    fn from(link: Arc<L>) -> AnyLink {
        AnyLink::Other(Rc::new(link))
    }
}

impl Link for Memory {}
impl Link for FileNamespace {}
impl Link for AnyNamespace {}
impl<N: Namespace> Link for Fault<N> {}

impl Link for RemoteNamespace {
    fn is_connected(&self) -> bool {
        RemoteNamespace::is_connected(self)
    }

    fn epoch(&self) -> u64 {
        RemoteNamespace::epoch(self)
    }
}

impl<N: Link> Link for Arc<N> {
    fn is_connected(&self) -> bool {
        N::is_connected(self)
    }

    fn epoch(&self) -> u64 {
        N::epoch(self)
    }
}

impl<N: Link> Link for Rc<N> {
    fn is_connected(&self) -> bool {
        N::is_connected(self)
    }

    fn epoch(&self) -> u64 {
        N::epoch(self)
    }
}

impl Link for AnyLink {
    fn is_connected(&self) -> bool {
        match self {
            AnyLink::Remote(remote) => remote.is_connected(),
            AnyLink::Other(other) => other.link_is_connected(),
        }
    }

    fn epoch(&self) -> u64 {
        match self {
            AnyLink::Remote(remote) => remote.epoch(),
            AnyLink::Other(other) => other.link_epoch(),
        }
    }
}

/// The methods of [`Link`] beside those of [`Namespace`], behind a table of functions.
#[allow(missing_docs)] // as those of `Link`
pub trait ErasedLink: device::ErasedMethods {
    fn link_is_connected(&self) -> bool;
    fn link_epoch(&self) -> u64;
}

impl<L: Link> ErasedLink for L {
    fn link_is_connected(&self) -> bool {
        self.is_connected()
    }

    fn link_epoch(&self) -> u64 {
        self.epoch()
    }
}

impl Namespace for AnyLink {
    device::delegate_namespace!(this => {
        AnyLink::Remote(remote) => (**remote),
        AnyLink::Other(other) => (**other),
    });
}
