//! Namespaces: the [`Namespace`] trait and its local kinds.
//!
//! | kind | medium | for |
//! |---|---|---|
//! | [`Memory`] | this process's memory | tests, caches, pools marked volatile |
//! | [`FileNamespace`] | a file or block device, by direct I/O | everything else |
//! | [`DriveNamespace`] | a part of a [`Drive`], thin, with checksums, snapshots and clones | media that many share |
//! | [`ZonedFile`] | a zoned block device of Linux | what writes in order, as the media manager of `flash` |
//! | `ZonedMemory` | zones in this process's memory | tests, with the feature `testing` |
//! | `Fault` | another namespace, failing as told | tests, with the feature `testing` |
//!
//! A remote namespace behind NVMe/TCP implements the same trait, in `fabric`.

mod any;
mod attributes;
mod claim;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod delegate;
pub mod drive;
mod erased;
#[cfg(any(test, feature = "testing"))]
mod fault;
mod file;
mod grow;
mod identity;
mod in_zones;
mod latch;
mod lba;
pub mod limits;
mod mailed;
mod memory;
pub mod namespace;
mod range_lock;
pub mod sealed;
mod sidecar;
mod uncorrectable;
mod zone;
mod zoned_file;
#[cfg(any(test, feature = "testing"))]
mod zoned_memory;

pub use any::AnyNamespace;
pub use attributes::{Attributes, COPY_BYTES as ATTRIBUTES_BYTES_MAX};
pub use drive::{Drive, DriveError, DriveNamespace, DriveOptions, FormatOptions, NamespaceSpec};
pub use erased::{Erased, ErasedMethods, Known};
#[cfg(any(test, feature = "testing"))]
pub use fault::{Fault, FaultConfig};
pub use file::{FileNamespace, FileOptions, OpenError};
pub use grow::GrowError;
pub use identity::{IdentityError, random_nguid};
pub use lba::Lba;
pub use limits::{BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, COMPARE_AND_WRITE_BYTES_MAX, TRANSFER_BYTES_MAX};
pub use mailed::Mailed;
pub use memory::{MEMORY_BYTES_MAX, Memory, MemoryError};
pub use namespace::{
    ATTRIBUTE_BYTES_MAX, ATTRIBUTE_KEY_BYTES_MAX, ATTRIBUTES_MAX, Durability, Error, Link, Namespace, NamespaceInfo,
    VERIFY_BYTES_MAX, Writability, verify_by_reading,
};
pub use range_lock::{Lock, Mode, RangeGuard, RangeLocks};
pub use zone::{Zone, ZoneAction, ZoneError, ZoneState, ZonedInfo};
pub use zoned_file::{ZonedFile, is_zoned};
#[cfg(any(test, feature = "testing"))]
pub use zoned_memory::ZonedMemory;
