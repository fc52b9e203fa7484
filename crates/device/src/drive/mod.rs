//! [`Drive`]: one file or block device carved into thin namespaces, with snapshots, clones and a checksum on every block.
//!
//! The design with byte-exact pictures, and the argument why no crash hurts it, is in `docs/drive.md`. In short:
//!
//! | part | what it does | module |
//! |---|---|---|
//! | layout | where everything lies; the superblock, written once | `layout` |
//! | metadata | namespaces, maps, references, free extents, in memory | `state`, `map` |
//! | journal | every change as a record, many in one durable write | `record`, `frame`, `commit` |
//! | checkpoint | the metadata at one moment; the journal before it is no longer needed | `checkpoint` |
//! | checksums | a page for 512 units, cached, written back by checkpoints | `pages` |
//! | data path | read and verify; intent, write, checksum; copy on write | `read`, `write`, `overlay` |
//! | recovery | checkpoint, journal, and which of its candidates each unit in doubt is | `recover`, `resolve` |
//!
//! Why not an embedded store: the journal is on the data path (each write's checksum goes through it), must batch with what
//! other reactors have under way, and may not block a reactor's thread, as a store that does its own I/O would.

mod bytes;
mod check;
mod checkpoint;
mod commit;
mod core;
mod differences;
mod dump;
mod error;
mod figures;
mod frame;
#[doc(hidden)]
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod layout;
mod manage;
mod map;
mod namespace;
mod overlay;
mod pages;
mod read;
mod record;
mod recover;
mod registry;
mod reserve;
mod resolve;
mod scrub;
mod seen;
mod span;
mod state;
mod window;
mod write;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::Buf;
use engine::file::File;
use engine::task::LocalFuture;

pub use self::check::Report;
pub use self::differences::Differences;
pub use self::error::DriveError;
pub use self::figures::tell;
pub use self::layout::{EXTENT_BYTES, EXTENT_BYTES_MAX, EXTENT_BYTES_MIN};
pub use self::manage::{CopySpec, NamespaceSpec};
pub use self::namespace::DriveNamespace;
pub use self::scrub::{Damage, Scrub};
pub use self::state::{NAME_BYTES_MAX, NAMESPACE_BYTES_MAX, NAMESPACES_MAX};

use self::checkpoint::Header;
use self::core::Inner;
use self::layout::{JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, Layout, PAGE};
use self::recover::Opening;
use self::state::State;
use crate::claim;
use crate::zoned_file::is_zoned;

/// Memory for checksums that the medium has as well, in bytes, unless asked otherwise: those of 32 GiB in blocks of 4 KiB.
/// Guessed.
pub const CACHE_BYTES: u64 = 64 << 20;
/// The least of it: more pages than a command can need. Derived.
const CACHE_PAGES_MIN: usize = 64;

/// How to make a drive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatOptions {
    /// If the file does not exist, create it with this many bytes.
    pub create: Option<u64>,
    /// Bytes that are allocated at a time: a power of two from [`EXTENT_BYTES_MIN`] to [`EXTENT_BYTES_MAX`].
    pub extent_bytes: u32,
    /// Bytes under one checksum: 4096, or 512 for namespaces with blocks of 512.
    pub unit: u32,
    /// Bytes of the journal; otherwise by the drive's size.
    pub journal_bytes: Option<u64>,
    /// Destroy the drive that is there.
    pub force: bool,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        FormatOptions { create: None, extent_bytes: EXTENT_BYTES, unit: 4096, journal_bytes: None, force: false }
    }
}

/// How to open a drive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriveOptions {
    /// Change nothing on the medium, not even what recovery finds.
    pub read_only: bool,
    /// Memory for checksums that the medium has as well, in bytes.
    pub cache_bytes: u64,
}

impl Default for DriveOptions {
    fn default() -> DriveOptions {
        DriveOptions { read_only: false, cache_bytes: CACHE_BYTES }
    }
}

/// An open drive; a clone is the same drive, also on another thread.
#[derive(Clone)]
pub struct Drive {
    inner: Arc<Inner>,
}

/// A namespace of a drive, in figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceUsage {
    /// Its number on the drive; never used again.
    pub number: u32,
    /// Its name on the drive.
    pub name: String,
    /// Its identity.
    pub nguid: [u8; 16],
    /// Bytes per block.
    pub block_size: u32,
    /// Its size.
    pub bytes: u64,
    /// Bytes of the drive behind it, those that it shares too.
    pub allocated_bytes: u64,
    /// Those of them that no other namespace has: what deleting it gives back.
    pub own_bytes: u64,
    /// It is a snapshot.
    pub read_only: bool,
    /// The namespace it was made from, which may be gone.
    pub source: Option<u32>,
}

/// A drive in figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes for data.
    pub bytes: u64,
    /// Those in use.
    pub used_bytes: u64,
    /// Bytes that all namespaces but snapshots would have, were they full.
    pub promised_bytes: u64,
    /// Bytes per extent.
    pub extent_bytes: u32,
    /// Bytes under one checksum.
    pub unit: u32,
    /// Blocks found damaged since the drive was opened: they did not match their checksum, or a scrub could not read them. Each
    /// as often as it was found.
    pub mismatches: u64,
    /// Why it takes no more writes, if so.
    pub fault: Option<String>,
}

impl fmt::Debug for Drive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

async fn open_file(path: &Path, create: Option<u64>, read_only: bool) -> Result<File, DriveError> {
    if is_zoned(path) {
        return Err(DriveError::Zoned { path: path.to_owned() });
    }
    claim::open(path, create, read_only).await.map_err(|source| match source.kind() {
        io::ErrorKind::ResourceBusy => DriveError::Busy { path: path.to_owned() },
        _ => DriveError::Io { path: path.to_owned(), source },
    })
}

impl Drive {
    /// Makes an empty drive of a file or block device and opens it.
    pub fn format<'a>(path: &'a Path, options: &'a FormatOptions) -> LocalFuture<'a, Result<Drive, DriveError>> {
        Box::pin(async move {
            let FormatOptions { create, extent_bytes, unit, journal_bytes, force } = *options;
            if !extent_bytes.is_power_of_two() || !(EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&extent_bytes) {
                return Err(DriveError::ExtentSize(extent_bytes));
            }
            if ![512, 4096].contains(&unit) {
                return Err(DriveError::Options(format!("checksums over {unit} bytes: must be 512 or 4096")));
            }
            if let Some(bytes) = journal_bytes.filter(|bytes| !(JOURNAL_BYTES_MIN..=JOURNAL_BYTES_MAX).contains(bytes))
            {
                let text =
                    format!("a journal of {bytes} bytes: {JOURNAL_BYTES_MIN} to {JOURNAL_BYTES_MAX} are possible");
                return Err(DriveError::Options(text));
            }
            let file = open_file(path, create, false).await?;
            recover::check_medium(file.logical_block_size(), unit)?;
            if !force && recover::holds_a_drive(path, &file).await {
                return Err(DriveError::IsADrive { path: path.to_owned() });
            }
            if !force && recover::is_in_use(path, &file).await? {
                return Err(DriveError::InUse { path: path.to_owned() });
            }
            let layout = Layout::new(crate::identity::random_nguid(), file.size(), unit, extent_bytes, journal_bytes);
            let layout = layout.ok_or_else(|| DriveError::TooSmall {
                path: path.to_owned(),
                bytes: file.size(),
                bytes_min: Layout::bytes_min(unit, extent_bytes),
            })?;
            write_empty(&file, &layout).await.map_err(|source| DriveError::Io { path: path.to_owned(), source })?;
            let opening = Opening { path, read_only: false, pages_max: pages_max(CACHE_BYTES) };
            Ok(Drive { inner: recover::open(opening, file).await? })
        })
    }

    /// Opens the drive at `path`; no other process can while this one has it open.
    pub fn open<'a>(path: &'a Path, options: &'a DriveOptions) -> LocalFuture<'a, Result<Drive, DriveError>> {
        Box::pin(async move {
            let file = open_file(path, None, options.read_only).await?;
            let opening = Opening { path, read_only: options.read_only, pages_max: pages_max(options.cache_bytes) };
            Ok(Drive { inner: recover::open(opening, file).await? })
        })
    }

    /// Opens a namespace.
    pub fn namespace(&self, number: u32) -> Result<DriveNamespace, DriveError> {
        let shared = self.shared(number)?;
        Ok(DriveNamespace { inner: Arc::clone(&self.inner), shared })
    }

    /// The number of the namespace called `name`.
    pub fn find(&self, name: &str) -> Result<u32, DriveError> {
        let found = self.inner.with(|core| {
            let mut named = core.state.namespaces.iter().filter(|(_, space)| space.name == name);
            named.next().map(|(&number, _)| number)
        });
        found.ok_or_else(|| DriveError::NoNamespace(format!("{name:?}")))
    }

    /// The number of the namespace with this NGUID.
    pub fn find_nguid(&self, nguid: [u8; 16]) -> Result<u32, DriveError> {
        let found = self.inner.with(|core| {
            let mut same = core.state.namespaces.iter().filter(|(_, space)| space.nguid == nguid);
            same.next().map(|(&number, _)| number)
        });
        found.ok_or_else(|| DriveError::NoNamespace(format!("with the NGUID {:032x}", u128::from_be_bytes(nguid))))
    }

    /// Every namespace, by number.
    pub fn namespaces(&self) -> Vec<NamespaceUsage> {
        let extent_bytes = u64::from(self.inner.layout.extent_bytes);
        self.inner.with(|core| {
            let state = &core.state;
            let figures = state.namespaces.iter().map(|(&number, space)| {
                let own = space.map.iter().filter(|(_, extent)| state.references[*extent as usize] == 1).count() as u64;
                NamespaceUsage {
                    number,
                    name: space.name.clone(),
                    nguid: space.nguid,
                    block_size: space.block_size,
                    bytes: space.bytes,
                    allocated_bytes: u64::from(space.map.len()) * extent_bytes,
                    own_bytes: own * extent_bytes,
                    read_only: space.read_only,
                    source: (space.source > 0).then_some(space.source),
                }
            });
            figures.collect()
        })
    }

    /// The drive's figures.
    pub fn usage(&self) -> Usage {
        let layout = &self.inner.layout;
        let mismatches = self.inner.mismatches.load(Ordering::Relaxed);
        self.inner.with(|core| Usage {
            bytes: layout.extents * u64::from(layout.extent_bytes),
            used_bytes: core.state.used() * u64::from(layout.extent_bytes),
            promised_bytes: core
                .state
                .namespaces
                .values()
                .filter(|space| !space.read_only)
                .map(|space| space.bytes)
                .sum(),
            extent_bytes: layout.extent_bytes,
            unit: layout.unit,
            mismatches,
            fault: core.failed.clone(),
        })
    }

    /// Makes a checkpoint now, so that the next opening has nothing to replay. Not needed for safety.
    pub fn checkpoint(&self) -> LocalFuture<'_, Result<(), DriveError>> {
        Box::pin(async move { Ok(self.inner.checkpoint().await?) })
    }

    /// Ends the drive's own work with a last checkpoint: once all handles are dropped, too, somebody else can open it. A drive
    /// that is merely dropped is as safe, but may be busy until a checkpoint under way has ended.
    pub fn close(self) -> LocalFuture<'static, Result<(), DriveError>> {
        Box::pin(async move {
            match self.inner.with(|core| core.read_only) {
                true => Ok(()),
                false => self.checkpoint().await,
            }
        })
    }
}

fn pages_max(cache_bytes: u64) -> usize {
    ((cache_bytes / PAGE as u64) as usize).max(CACHE_PAGES_MIN)
}

/// Writes an empty drive: the superblocks go first and come last, so that what is cut short is no drive.
async fn write_empty(file: &File, layout: &Layout) -> io::Result<()> {
    for at in layout.superblocks() {
        file.write_at(at, Buf::zeroed(PAGE).freeze(), true).await?;
    }
    file.write_zeroes(layout.journal_at, layout.extents_at - layout.journal_at).await?;
    let mut body = checkpoint::encode_state(&State::new(layout));
    checkpoint::encode_table(&mut body, &[]);
    let body_sum = xxhash_rust::xxh3::xxh3_64(&body.0);
    for generation in 0..2 {
        let header = Header { generation, sequence: 0, frame: 1, head: 0, body_bytes: body.0.len() as u64, body_sum };
        let mut slot = Buf::zeroed(3 * PAGE);
        slot[..2 * PAGE].copy_from_slice(&header.encode(&layout.id));
        slot[2 * PAGE..2 * PAGE + body.0.len()].copy_from_slice(&body.0);
        file.write_at(layout.slot_at(generation), slot.freeze(), false).await?;
    }
    file.sync_data().await?;
    for at in layout.superblocks() {
        file.write_at(at, Buf::copy_from(&layout.encode()).freeze(), true).await?;
    }
    Ok(())
}
