//! Creating, growing, copying and deleting namespaces, and their attributes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::{Core, Inner, journal_need};
use super::record::Record;
use super::registry::Shared;
use super::state::{NAME_BYTES_MAX, NAMESPACES_MAX, namespace_bytes_max};
use super::{Drive, DriveError, DriveNamespace};
use crate::identity::random_nguid;
use crate::range_lock::Mode;
use crate::{ATTRIBUTE_BYTES_MAX, ATTRIBUTE_KEY_BYTES_MAX, Error, GrowError};
use engine::task::LocalFuture;

/// A namespace to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceSpec {
    /// Its name on the drive.
    pub name: String,
    /// Its size in bytes, which may be more than the drive has.
    pub bytes: u64,
    /// Bytes per block: 4096, or the drive's unit.
    pub block_size: u32,
}

/// A snapshot or a clone to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopySpec {
    /// The number of the namespace that it begins as, which may be a snapshot.
    pub source: u32,
    /// Its name on the drive.
    pub name: String,
    /// It is a snapshot.
    pub read_only: bool,
}

/// An attribute that a new namespace has from its first moment on.
type First<'a> = Option<(&'static str, &'a [u8])>;

impl Drive {
    fn changeable(&self) -> Result<(), DriveError> {
        self.inner.with(|core| match (core.writable(), &core.failed) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(reason)) => Err(DriveError::ReadOnly(reason.clone())),
            (Err(error), None) => Err(DriveError::ReadOnly(error.to_string())),
        })
    }

    /// Makes a namespace. It takes no room until it is written to.
    pub async fn create(&self, spec: &NamespaceSpec) -> Result<DriveNamespace, DriveError> {
        self.create_with(spec, None).await
    }

    /// The same with an attribute: after a crash there are both, or neither.
    pub fn create_with<'a>(
        &'a self,
        spec: &'a NamespaceSpec,
        attribute: First<'a>,
    ) -> LocalFuture<'a, Result<DriveNamespace, DriveError>> {
        Box::pin(async move {
            self.changeable()?;
            let NamespaceSpec { name, bytes, block_size } = spec;
            check_name(name)?;
            let unit = self.inner.layout.unit;
            if *block_size != 4096 && *block_size != unit {
                return Err(DriveError::BlockSize { asked: *block_size, unit });
            }
            check_size(*bytes, *block_size, self.inner.layout.extent_bytes)?;
            let nguid = random_nguid();
            let (block_size, bytes) = (*block_size, *bytes);
            self.add(name, attribute, |_, namespace| {
                Ok((Record::Create { namespace, nguid, block_size, bytes, name }, 0))
            })
            .await
        })
    }

    /// Makes a read-only namespace that keeps what `source` holds now.
    pub fn snapshot<'a>(&'a self, source: u32, name: &'a str) -> LocalFuture<'a, Result<DriveNamespace, DriveError>> {
        Box::pin(async move { self.share(&CopySpec { source, name: name.into(), read_only: true }, None).await })
    }

    /// Makes a writable namespace that begins with what `source` (a snapshot or another namespace) holds now.
    pub fn clone_of<'a>(&'a self, source: u32, name: &'a str) -> LocalFuture<'a, Result<DriveNamespace, DriveError>> {
        Box::pin(async move { self.share(&CopySpec { source, name: name.into(), read_only: false }, None).await })
    }

    /// Makes either with an attribute: after a crash there are both, or neither.
    pub fn copy_with<'a>(
        &'a self,
        spec: &'a CopySpec,
        attribute: First<'a>,
    ) -> LocalFuture<'a, Result<DriveNamespace, DriveError>> {
        Box::pin(async move { self.share(spec, attribute).await })
    }

    async fn share(&self, spec: &CopySpec, attribute: First<'_>) -> Result<DriveNamespace, DriveError> {
        let CopySpec { source, name, read_only } = spec;
        let (source, read_only) = (*source, *read_only);
        self.changeable()?;
        check_name(name)?;
        let from = self.shared(source)?;
        // Most of what is to be flushed is, before anybody waits.
        self.inner.flush().await?;
        // Nobody writes meanwhile: what is shared is one moment, and nobody finds his extent shared half way through a write.
        let _quiet = from.locks.lock(0, u64::MAX, Mode::Exclusive).await;
        // A copy that is there after power loss would hold older blocks than it was told to hold.
        self.inner.flush().await?;
        let nguid = random_nguid();
        self.add(name, attribute, |core, namespace| {
            let space = core.state.space(source).map_err(|_| DriveError::NoNamespace(source.to_string()))?;
            let entries = u64::from(space.map.len());
            Ok((Record::Share { namespace, source, nguid, read_only, name }, entries))
        })
        .await
    }

    /// Makes a namespace by the record that `record` says for its number, beside how many extents that maps.
    async fn add<'a>(
        &self,
        name: &str,
        attribute: First<'_>,
        record: impl FnOnce(&Core, u32) -> Result<(Record<'a>, u64), DriveError>,
    ) -> Result<DriveNamespace, DriveError> {
        let attribute_bytes = match attribute {
            Some((key, value)) if key.len() > ATTRIBUTE_KEY_BYTES_MAX || value.len() > ATTRIBUTE_BYTES_MAX => {
                return Err(DriveError::Device(Error::OutOfSpace));
            }
            Some((key, value)) => key.len() + value.len() + 8,
            None => 0,
        };
        let admission = self.inner.admit(journal_need(&[64 + NAME_BYTES_MAX + 32 + attribute_bytes])).await?;
        let (sequence, shared) = self.inner.with(|core| {
            let number = core.state.next_namespace;
            let (record, entries) = record(core, number)?;
            room_for(core, &self.inner, name, entries, attribute_bytes as u64)?;
            core.begin();
            core.add(&record);
            if let Some((key, value)) = attribute {
                core.add(&Record::Attribute { namespace: number, key, value });
            }
            let sequence = core.end();
            let space = core.state.space(number).map_err(|misfit| DriveError::ReadOnly(misfit.into()))?;
            let shared = Shared::new(number, space);
            // In the same step as the record: whoever sees the namespace can open it.
            self.inner.registry.add(Arc::clone(&shared));
            Ok::<_, DriveError>((sequence, shared))
        })?;
        self.inner.commit(sequence).await?;
        drop(admission);
        Ok(DriveNamespace { inner: Arc::clone(&self.inner), shared })
    }

    /// Makes a namespace larger; what is added reads as zeroes.
    pub fn grow(&self, number: u32, bytes: u64) -> LocalFuture<'_, Result<(), DriveError>> {
        Box::pin(async move {
            self.changeable()?;
            let shared = self.shared(number)?;
            check_size(bytes, shared.block_size, self.inner.layout.extent_bytes)?;
            let _admission = self.inner.admit(journal_need(&[32])).await?;
            let sequence = self.inner.with(|core| {
                let space = core.state.space(number).map_err(|_| DriveError::NoNamespace(number.to_string()))?;
                if space.read_only {
                    return Err(DriveError::Snapshot(space.name.clone()));
                }
                if bytes < space.bytes {
                    return Err(DriveError::Shrink { name: space.name.clone(), bytes: space.bytes, asked: bytes });
                }
                Ok(core.log(&Record::Grow { namespace: number, bytes }))
            })?;
            self.inner.commit(sequence).await?;
            self.inner.with(|core| {
                // It may have been deleted meanwhile, and stays so.
                core.state.space(number).map_err(|_| DriveError::NoNamespace(number.to_string()))?;
                shared.blocks.fetch_max(bytes / u64::from(shared.block_size), Ordering::AcqRel);
                Ok(())
            })
        })
    }

    /// Deletes a namespace. Commands under way end first; later ones find nothing in range.
    pub fn delete(&self, number: u32) -> LocalFuture<'_, Result<(), DriveError>> {
        Box::pin(async move {
            self.changeable()?;
            let shared = self.shared(number)?;
            let _quiet = shared.locks.lock(0, u64::MAX, Mode::Exclusive).await;
            let _admission = self.inner.admit(journal_need(&[32])).await?;
            let sequence = self.inner.with(|core| {
                core.state.space(number).map_err(|_| DriveError::NoNamespace(number.to_string()))?;
                shared.blocks.store(0, Ordering::Release);
                self.inner.registry.remove(number);
                Ok::<_, DriveError>(core.log(&Record::Delete { namespace: number }))
            })?;
            self.inner.commit(sequence).await?;
            Ok(())
        })
    }

    pub(super) fn shared(&self, number: u32) -> Result<Arc<Shared>, DriveError> {
        self.inner.registry.get(number).ok_or_else(|| DriveError::NoNamespace(number.to_string()))
    }
}

impl DriveNamespace {
    /// Makes it larger: `bytes` in all. Commands go on meanwhile.
    pub async fn grow(&self, bytes: u64) -> Result<(), GrowError> {
        let drive = Drive { inner: Arc::clone(&self.inner) };
        drive.grow(self.shared.number, bytes).await.map_err(|error| match error {
            DriveError::Shrink { bytes: has, asked, .. } => GrowError::Smaller { has, asked },
            DriveError::Size { bytes: asked, block_size, .. } if !asked.is_multiple_of(block_size.into()) => {
                GrowError::Blocks { asked, block_size }
            }
            DriveError::Snapshot(_) => GrowError::Fixed("it is a snapshot"),
            other => GrowError::Io { path: self.inner.path.clone(), source: std::io::Error::other(other.to_string()) },
        })
    }
}

fn check_name(name: &str) -> Result<(), DriveError> {
    let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if letters && (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('-') {
        return Ok(());
    }
    Err(DriveError::Name(name.to_owned()))
}

fn check_size(bytes: u64, block_size: u32, extent_bytes: u32) -> Result<(), DriveError> {
    let bytes_max = namespace_bytes_max(extent_bytes);
    if bytes > 0 && bytes <= bytes_max && bytes.is_multiple_of(u64::from(block_size)) {
        return Ok(());
    }
    Err(DriveError::Size { bytes, block_size, bytes_max })
}

/// The metadata has room for one more namespace with so many extents mapped and bytes of attributes, and the name is free. What a
/// snapshot shares leaves an entry for every extent that none names yet: else whoever has the right to snapshots could take from
/// everybody the use of what is free.
fn room_for(core: &Core, inner: &Inner, name: &str, entries: u64, attribute_bytes: u64) -> Result<(), DriveError> {
    let namespaces = &core.state.namespaces;
    if namespaces.values().any(|space| space.name == name) {
        return Err(DriveError::NameTaken(name.to_owned()));
    }
    let words: u64 = namespaces.values().map(|space| space.words_bytes()).sum();
    let most = 256 + NAME_BYTES_MAX as u64 + attribute_bytes;
    let state = &core.state;
    let kept = if entries > 0 { u64::from(state.free.len()) + state.unsettled() } else { 0 };
    if namespaces.len() >= NAMESPACES_MAX
        || words + most > inner.layout.words_bytes_max()
        || state.entries + state.entries_promised + entries + kept > inner.layout.entries_max()
    {
        return Err(DriveError::MetadataFull { entries_max: inner.layout.entries_max() });
    }
    Ok(())
}
