//! [`NamespaceStore`]: where a subsystem's namespaces come from when a host makes them, and go when it deletes them.

use device::drive::{CopySpec, Differences};
use device::{AnyNamespace, Drive, DriveError, Error, NamespaceSpec};
use engine::task::LocalFuture;
use nvme::extension::CopyKind;

use super::attachment::ATTRIBUTE;

/// Room of a store, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// All of it (TNVMCAP).
    pub total: u64,
    /// What nobody has (UNVMCAP).
    pub free: u64,
}

/// A namespace to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewNamespace<'a> {
    /// Its size.
    pub bytes: u64,
    /// One of [`NamespaceStore::block_sizes`].
    pub block_size: u32,
    /// What is kept with it from its first moment on, as the attribute [`ATTACHMENT_ATTRIBUTE`].
    pub record: &'a [u8],
}

/// A copy of a namespace to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewCopy<'a> {
    /// NGUID of the source.
    pub source: [u8; 16],
    /// What kind of copy.
    pub kind: CopyKind,
    /// As [`NewNamespace::record`].
    pub record: &'a [u8],
}

/// The attribute of a namespace that says where it belongs.
pub const ATTACHMENT_ATTRIBUTE: &str = ATTRIBUTE;

/// Why a store does not do it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// It has no room for such a namespace.
    #[error("no room for it: {0}")]
    NoRoom(String),
    /// No namespace can become what is asked for.
    #[error("it can't be so: {0}")]
    Unfit(String),
    /// A namespace that is asked for is not its own.
    #[error("the store has no such namespace")]
    Unknown,
    /// Its medium failed, or takes no changes.
    #[error(transparent)]
    Device(#[from] Error),
}

/// Makes and deletes namespaces. What it has answered survives power loss; what power loss cuts short has happened wholly,
/// record included, or not at all.
pub trait NamespaceStore: Send + Sync {
    /// Its room at this moment.
    fn room(&self) -> Room;

    /// Block sizes it offers: the first so many of 4096 and 512.
    fn block_sizes(&self) -> &'static [u32];

    /// Makes a namespace; it reads as zeroes.
    fn create<'a>(&'a self, wanted: NewNamespace<'a>) -> LocalFuture<'a, Result<AnyNamespace, StoreError>>;

    /// Deletes the namespace with this NGUID, once the commands that are under way on it have ended.
    fn delete<'a>(&'a self, nguid: [u8; 16]) -> LocalFuture<'a, Result<(), StoreError>>;

    /// Copies, growth and differences, where it can do that.
    fn copying(&self) -> Option<&dyn CopyStore> {
        None
    }
}

/// A store whose namespaces can be copied without their bytes being moved. What it promises is what [`NamespaceStore`] does.
pub trait CopyStore {
    /// Makes a namespace of what the source holds at one moment, of what was acknowledged before all.
    fn copy<'a>(&'a self, wanted: NewCopy<'a>) -> LocalFuture<'a, Result<AnyNamespace, StoreError>>;

    /// Makes a namespace larger: `bytes` in all.
    fn grow<'a>(&'a self, nguid: [u8; 16], bytes: u64) -> LocalFuture<'a, Result<(), StoreError>>;

    /// Where `newer` may differ from `base`, or from zeroes; see [`Drive::differences`].
    fn differences(
        &self,
        newer: [u8; 16],
        base: Option<[u8; 16]>,
        from: u64,
        ranges_max: usize,
    ) -> Result<Differences, StoreError>;
}

/// Every block size there is.
pub(super) const BLOCK_SIZES: [u32; 2] = [4096, 512];

fn store_error(error: DriveError) -> StoreError {
    match error {
        DriveError::Device(error) => StoreError::Device(error),
        DriveError::MetadataFull { .. } | DriveError::Size { .. } => StoreError::NoRoom(error.to_string()),
        DriveError::Shrink { .. } | DriveError::NameTaken(_) => StoreError::Unfit(error.to_string()),
        DriveError::NoNamespace(_) => StoreError::Unknown,
        DriveError::Snapshot(_) => StoreError::Device(Error::ReadOnly("it is a snapshot")),
        DriveError::ReadOnly(_) => StoreError::Device(Error::ReadOnly("the drive takes no changes")),
        other => StoreError::Device(Error::WriteFault(other.to_string())),
    }
}

impl NamespaceStore for Drive {
    fn room(&self) -> Room {
        let usage = self.usage();
        Room { total: usage.bytes, free: usage.bytes.saturating_sub(usage.used_bytes) }
    }

    fn block_sizes(&self) -> &'static [u32] {
        if self.usage().unit == 512 { &BLOCK_SIZES } else { &BLOCK_SIZES[..1] }
    }

    fn create<'a>(&'a self, wanted: NewNamespace<'a>) -> LocalFuture<'a, Result<AnyNamespace, StoreError>> {
        Box::pin(async move {
            let spec = NamespaceSpec { name: random_name(), bytes: wanted.bytes, block_size: wanted.block_size };
            let made = self.create_with(&spec, Some((ATTRIBUTE, wanted.record))).await.map_err(store_error)?;
            Ok(AnyNamespace::from(made))
        })
    }

    fn delete<'a>(&'a self, nguid: [u8; 16]) -> LocalFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            match self.find_nguid(nguid) {
                Ok(number) => Drive::delete(self, number).await.map_err(store_error),
                Err(_) => Ok(()), // the operator was faster
            }
        })
    }

    fn copying(&self) -> Option<&dyn CopyStore> {
        Some(self)
    }
}

impl CopyStore for Drive {
    fn copy<'a>(&'a self, wanted: NewCopy<'a>) -> LocalFuture<'a, Result<AnyNamespace, StoreError>> {
        Box::pin(async move {
            let source = self.find_nguid(wanted.source).map_err(store_error)?;
            let spec = CopySpec { source, name: random_name(), read_only: wanted.kind == CopyKind::Snapshot };
            let made = self.copy_with(&spec, Some((ATTRIBUTE, wanted.record))).await.map_err(store_error)?;
            Ok(AnyNamespace::from(made))
        })
    }

    fn grow<'a>(&'a self, nguid: [u8; 16], bytes: u64) -> LocalFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let number = self.find_nguid(nguid).map_err(store_error)?;
            Drive::grow(self, number, bytes).await.map_err(store_error)
        })
    }

    fn differences(
        &self,
        newer: [u8; 16],
        base: Option<[u8; 16]>,
        from: u64,
        ranges_max: usize,
    ) -> Result<Differences, StoreError> {
        let looked = self.find_nguid(newer).and_then(|newer| {
            let base = base.map(|base| self.find_nguid(base)).transpose()?;
            Drive::differences(self, newer, base, from, ranges_max)
        });
        looked.map_err(store_error)
    }
}

/// The name of a namespace that a host makes; nobody is told of it but who looks at the drive.
fn random_name() -> String {
    format!("nvme-{:016x}", u128::from_be_bytes(device::random_nguid()) as u64)
}
