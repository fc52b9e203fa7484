//! [`AnyNamespace`]: any kind of namespace behind one type, so that what serves namespaces is compiled once.
//!
//! The kinds that a target serves by the million commands are dispatched by a `match`. Every other kind is behind a table of
//! functions, and pays one box per command.

use std::rc::Rc;
use std::sync::Arc;

use engine::file::Lifetime;
use engine::{Buf, View};

use crate::erased::Erased;
use crate::{
    DriveNamespace, Durability, Error, FileNamespace, GrowError, Lba, Memory, Namespace, NamespaceInfo, Writability,
};

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

/// Hands every command on: `$target` is an expression over `$this` (`self`), or a list of patterns with one.
macro_rules! delegate {
    ($this:ident => { $($pattern:pat => $target:expr),+ $(,)? }) => {
        fn info(&self) -> NamespaceInfo {
            let $this = self;
            match $this { $($pattern => $target.info()),+ }
        }

        async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
            let $this = self;
            match $this { $($pattern => $target.read(lba, buf).await),+ }
        }

        async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
            let $this = self;
            match $this { $($pattern => $target.write(lba, data, durability).await),+ }
        }

        async fn flush(&self) -> Result<(), Error> {
            let $this = self;
            match $this { $($pattern => $target.flush().await),+ }
        }

        async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
            let $this = self;
            match $this { $($pattern => $target.compare(lba, expected).await),+ }
        }

        async fn compare_and_write(
            &self,
            lba: Lba,
            expected: View,
            new: View,
            durability: Durability,
        ) -> Result<(), Error> {
            let $this = self;
            match $this { $($pattern => $target.compare_and_write(lba, expected, new, durability).await),+ }
        }

        async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
            let $this = self;
            match $this { $($pattern => $target.write_zeroes(lba, blocks, durability).await),+ }
        }

        async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
            let $this = self;
            match $this { $($pattern => $target.deallocate(lba, blocks).await),+ }
        }

        async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
            let $this = self;
            match $this { $($pattern => $target.verify(lba, blocks).await),+ }
        }

        async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
            let $this = self;
            match $this { $($pattern => $target.write_uncorrectable(lba, blocks).await),+ }
        }

        async fn hint_lifetime(&self, lifetime: Lifetime) -> bool {
            let $this = self;
            match $this { $($pattern => $target.hint_lifetime(lifetime).await),+ }
        }

        fn writability(&self) -> Writability {
            let $this = self;
            match $this { $($pattern => $target.writability()),+ }
        }

        fn used_blocks(&self) -> u64 {
            let $this = self;
            match $this { $($pattern => $target.used_blocks()),+ }
        }

        fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error> {
            let $this = self;
            match $this { $($pattern => $target.attribute(key)),+ }
        }

        async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
            let $this = self;
            match $this { $($pattern => $target.set_attribute(key, value).await),+ }
        }
    };
}

impl Namespace for AnyNamespace {
    delegate!(this => {
        AnyNamespace::Memory(inner) => inner,
        AnyNamespace::File(inner) => inner,
        AnyNamespace::Drive(inner) => inner,
        AnyNamespace::Other(inner) => inner,
    });
}

impl<N: Namespace> Namespace for Arc<N> {
    delegate!(this => { inner => (**inner) });
}

impl<N: Namespace> Namespace for Rc<N> {
    delegate!(this => { inner => (**inner) });
}
