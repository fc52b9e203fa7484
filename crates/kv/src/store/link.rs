//! [`Link`]: what a store must know of a member's connection beside its commands.

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
