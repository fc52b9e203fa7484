//! [`AnyRemote`]: a namespace as a thread reaches it, of any kind, so that what is built on namespaces is compiled once.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use device::Namespace;

use super::remote::RemoteNamespace;

/// See the module. A remote namespace is reached by a `match`; any other kind, as a volume, costs a box per command. A clone is the
/// same connection.
#[derive(Clone)]
pub enum AnyRemote {
    /// Over NVMe/TCP.
    Remote(Rc<RemoteNamespace>),
    /// Any other kind.
    Other(Rc<dyn device::ErasedMethods>),
}

/// The same connection, not merely the same namespace.
impl PartialEq for AnyRemote {
    fn eq(&self, other: &AnyRemote) -> bool {
        match (self, other) {
            (AnyRemote::Remote(left), AnyRemote::Remote(right)) => Rc::ptr_eq(left, right),
            (AnyRemote::Other(left), AnyRemote::Other(right)) => Rc::ptr_eq(left, right),
            _ => false,
        }
    }
}

impl<N: Namespace> From<Rc<N>> for AnyRemote {
    fn from(namespace: Rc<N>) -> AnyRemote {
        let any: Rc<dyn Any> = namespace.clone();
        any.downcast().map_or_else(|_| AnyRemote::Other(namespace), AnyRemote::Remote)
    }
}

impl From<RemoteNamespace> for AnyRemote {
    fn from(remote: RemoteNamespace) -> AnyRemote {
        AnyRemote::Remote(Rc::new(remote))
    }
}

impl<N: Namespace> From<Arc<N>> for AnyRemote {
    fn from(namespace: Arc<N>) -> AnyRemote {
        AnyRemote::Other(Rc::new(namespace))
    }
}

impl Namespace for AnyRemote {
    device::delegate_namespace!(this => {
        AnyRemote::Remote(remote) => (**remote),
        AnyRemote::Other(other) => (**other),
    });
}
