//! [`AnyNamespace`]: any kind of namespace behind one type, so that what serves namespaces is compiled once.
//!
//! The kinds that a target serves by the million commands are dispatched by a `match`. Every other kind is behind a table of
//! functions, and pays one box per command.

use std::rc::Rc;
use std::sync::Arc;

use crate::erased::Erased;
use crate::{DriveNamespace, FileNamespace, GrowError, Mailed, Memory, Namespace};

/// A namespace of any kind; a clone is the same namespace, also on another thread.
#[derive(Clone)]
pub enum AnyNamespace {
    /// In memory.
    Memory(Arc<Memory>),
    /// In a file or on a block device.
    File(Arc<FileNamespace>),
    /// A part of a drive.
    Drive(Arc<DriveNamespace>),
    /// Any other kind; made by [`AnyNamespace::other`].
    Other(Erased),
}

macro_rules! from_kind {
    ($($kind:ident => $variant:ident),+) => { $(
        impl From<$kind> for AnyNamespace {
            fn from(namespace: $kind) -> AnyNamespace {
                AnyNamespace::$variant(Arc::new(namespace))
            }
        }

        impl From<Arc<$kind>> for AnyNamespace {
            fn from(namespace: Arc<$kind>) -> AnyNamespace {
                AnyNamespace::$variant(namespace)
            }
        }
    )+ };
}

from_kind!(Memory => Memory, FileNamespace => File, DriveNamespace => Drive);

impl From<Mailed> for AnyNamespace {
    fn from(mailed: Mailed) -> AnyNamespace {
        AnyNamespace::Other(mailed.erased())
    }
}

impl AnyNamespace {
    /// A namespace of a kind that has no variant of its own.
    pub fn other(namespace: impl Namespace + Send + Sync) -> AnyNamespace {
        AnyNamespace::Other(Erased::new(namespace))
    }

    /// Clones that there are, this one among them; whoever has the only one may take its medium for free.
    pub fn holders(&self) -> usize {
        match self {
            AnyNamespace::Memory(inner) => Arc::strong_count(inner),
            AnyNamespace::File(inner) => Arc::strong_count(inner),
            AnyNamespace::Drive(inner) => Arc::strong_count(inner),
            AnyNamespace::Other(inner) => inner.holders(),
        }
    }

    /// Makes it larger: `bytes` in all. Commands go on meanwhile.
    ///
    /// # Errors
    /// A kind of namespace whose size is fixed, or as [`FileNamespace::grow`].
    pub async fn grow(&self, bytes: u64) -> Result<(), GrowError> {
        match self {
            AnyNamespace::Memory(_) => Err(GrowError::Fixed("memory is taken when it is made")),
            AnyNamespace::File(file) => file.grow(bytes).await,
            AnyNamespace::Drive(drive) => drive.grow(bytes).await,
            AnyNamespace::Other(_) => {
                Err(GrowError::Fixed("it is served for another program, which alone can change it"))
            }
        }
    }
}

impl Namespace for AnyNamespace {
    crate::delegate_namespace!(this => {
        AnyNamespace::Memory(inner) => inner,
        AnyNamespace::File(inner) => inner,
        AnyNamespace::Drive(inner) => inner,
        AnyNamespace::Other(inner) => inner,
    });
}

impl<N: Namespace> Namespace for Arc<N> {
    crate::delegate_namespace!(this => { inner => (**inner) });
}

impl<N: Namespace> Namespace for Rc<N> {
    crate::delegate_namespace!(this => { inner => (**inner) });
}
