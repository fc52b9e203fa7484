//! [`FileNamespace`]: a namespace in a file or on a block device, by direct I/O past the page cache.
//!
//! Invariants:
//! - Every command holds the lock of its range from before its first to after its last access to the medium, also when its
//!   future is dropped in between: a write that is under way can't be called back, and were its range free for others,
//!   a compare-and-write could find the old bytes, succeed, be acknowledged, and then be overwritten by the late write.
//! - After a write or a flush failed, nothing is written any more: what the medium holds in place of the failed write, and
//!   whether an earlier cached write is still there, is unknown (a second fdatasync may well report success over lost data).
//!   The latch is cleared by opening the namespace anew, which is the operator's decision.
//! - One opener at a time: two processes with locks of their own would break the atomicity of every command.
//!
//! Stable is what was written with `RWF_DSYNC`, or before a successful `fdatasync`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::file::{File, Lifetime};
use engine::task::LocalFuture;
use engine::{Buf, View, task};

use crate::claim;
use crate::grow::{GrowError, check_growth};
use crate::identity::{self, IdentityError};
use crate::latch::Latch;
use crate::limits::{COMPARE_AND_WRITE_BYTES_MAX, TRANSFER_BYTES_MAX, check_halves, check_length, check_range};
use crate::range_lock::{Mode, RangeGuard, RangeLocks};
use crate::sidecar::Sidecar;
use crate::zoned_file::is_zoned;
use crate::{Durability, Error, Lba, Namespace, NamespaceInfo, Writability};

/// Bytes of neighbouring blocks whose locks share a shard. Guessed: several commands of the usual size.
const REGION_BYTES: u32 = 128 << 10;

/// How to open a namespace in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileOptions {
    /// Bytes per block: 512 or 4096.
    pub block_size: u32,
    /// If the file does not exist, create it with this many bytes, sparse. If it exists it must have this size.
    pub create: Option<u64>,
    /// Refuse every write.
    pub read_only: bool,
    /// The identity; otherwise from the file's sidecar or the device's serial.
    pub nguid: Option<[u8; 16]>,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions { block_size: 4096, create: None, read_only: false, nguid: None }
    }
}

/// Why a namespace in a file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Somebody else has it open.
    #[error("{path}: in use by another process (one process owns a medium); stop it first")]
    Busy {
        /// The file or device.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or device.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A block size that is not offered.
    #[error("block size {0}: must be 512 or 4096")]
    BlockSize(u32),
    /// The medium's own blocks are larger.
    #[error("{path}: its medium has blocks of {medium} bytes, so the block size can't be {asked}; use {medium}")]
    MediumBlockSize {
        /// The file or device.
        path: PathBuf,
        /// The medium's block size.
        medium: u32,
        /// The block size asked for.
        asked: u32,
    },
    /// The size is zero or no multiple of the block size.
    #[error("{path}: {bytes} bytes are no positive multiple of the block size {block_size}")]
    Size {
        /// The file or device.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The block size asked for.
        block_size: u32,
    },
    /// It exists with another size.
    #[error("{path}: exists with {bytes} bytes, not the {asked} asked for; leave out the size to use it as it is")]
    ExistsWithOtherSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size asked for.
        asked: u64,
    },
    /// Its blocks are not written in any order.
    #[error(
        "{path}: a zoned device, which is written in the order of its zones; put a media manager on it: yagura flash format {path}"
    )]
    Zoned {
        /// The device.
        path: PathBuf,
    },
    /// It has no zones, or such as another kind of host keeps.
    #[error("{path}: the kernel calls its zones `{model}`; only host-managed ones can be used as such")]
    NotHostManaged {
        /// The device.
        path: PathBuf,
        /// The kernel's word for them.
        model: String,
    },
    /// Its identity could not be had.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// A namespace in a file or on a block device; share it between threads by `Arc`.
pub struct FileNamespace {
    file: File,
    locks: Arc<RangeLocks>,
    /// As it was opened; it may have grown since.
    info: NamespaceInfo,
    blocks: AtomicU64,
    latch: Arc<Latch>,
    /// Where the identity was not given and is not a device's.
    sidecar: Option<Arc<Sidecar>>,
}

impl fmt::Debug for FileNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileNamespace").field("latch", &self.latch).finish_non_exhaustive()
    }
}

impl FileNamespace {
    /// Opens the file or block device at `path`; no other process can while this one has it open.
    pub fn open<'a>(path: &'a Path, options: &'a FileOptions) -> LocalFuture<'a, Result<FileNamespace, OpenError>> {
        Box::pin(async move {
            let file = open_medium(path, options).await?;
            let (nguid, sidecar) = match options.nguid {
                Some(nguid) => (nguid, None),
                None if file.is_block_device() => (identity::of_device(path)?, None),
                None => {
                    let (nguid, sidecar) = Sidecar::open(path, options.block_size, options.read_only).await?;
                    (nguid, Some(Arc::new(sidecar)))
                }
            };
            let block_size = options.block_size;
            let transfer_blocks_max = TRANSFER_BYTES_MAX as u32 / block_size;
            let info = NamespaceInfo {
                block_size,
                blocks: file.size() / u64::from(block_size),
                atomic_blocks: transfer_blocks_max,
                compare_and_write_blocks_max: COMPARE_AND_WRITE_BYTES_MAX as u32 / block_size,
                transfer_blocks_max,
                // The drive's own, and the file system's metadata: `fdatasync` flushes both.
                volatile_cache: true,
                volatile_medium: false,
                deallocated_reads_zero: true,
                thin: false,
                preferred_write_blocks: (file.logical_block_size() / block_size).max(1),
                preferred_deallocate_blocks: 1,
                write_uncorrectable: sidecar.is_some() && !options.read_only,
                persists_attributes: sidecar.is_some() && !options.read_only,
                nguid,
            };
            let latch = Latch::new(path, options.read_only);
            let locks = Arc::new(RangeLocks::new((REGION_BYTES / block_size).trailing_zeros()));
            let blocks = AtomicU64::new(info.blocks);
            Ok(FileNamespace { file, locks, info, blocks, latch: Arc::new(latch), sidecar })
        })
    }

    /// The failure after which the namespace takes no more writes, if there was one.
    pub fn fault(&self) -> Option<&str> {
        self.latch.fault()
    }

    /// Makes the namespace larger: `bytes` in all, zeroes at the end. Commands go on meanwhile.
    ///
    /// # Errors
    /// A device, another size than a larger multiple of the block size, or what the system says.
    pub fn grow(&self, bytes: u64) -> LocalFuture<'_, Result<(), GrowError>> {
        Box::pin(async move {
            let info = self.info();
            check_growth(&info, bytes)?;
            if self.file.is_block_device() {
                return Err(GrowError::Fixed("a device has the size that it has"));
            }
            let failed = |source| GrowError::Io { path: self.latch.path().to_owned(), source };
            if self.latch.writable().is_err() {
                return Err(GrowError::Fixed("it takes no writes"));
            }
            self.file.grow(bytes).map_err(failed)?;
            // The new size is told only when it survives power loss: a host may rely on it at once. A failure is that of every
            // cached write before, and told once: it latches as that of a flush does.
            self.sync().await.map_err(|error| failed(io::Error::other(error)))?;
            self.blocks.fetch_max(bytes / u64::from(info.block_size), Ordering::AcqRel);
            Ok(())
        })
    }

    fn offset(&self, lba: Lba) -> u64 {
        lba.0 * u64::from(self.info.block_size)
    }

    async fn lock(&self, lba: Lba, blocks: u64, mode: Mode) -> RangeGuard {
        self.locks.lock(lba.0, blocks, mode).await
    }

    /// The lock for a command that changes the medium; a latch that fell while it waited is seen.
    async fn lock_for_writing(&self, lba: Lba, blocks: u64) -> Result<RangeGuard, Error> {
        self.latch.writable()?;
        let guard = self.lock(lba, blocks, Mode::Exclusive).await;
        self.latch.writable()?;
        Ok(guard)
    }

    /// The range holds no block that was marked unreadable. To be asked under its lock.
    fn check_marks(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.sidecar.as_ref().map_or(Ok(()), |sidecar| sidecar.check(lba, blocks))
    }

    /// The sidecar, where it marks any of the range unreadable.
    fn marked(&self, lba: Lba, blocks: u64) -> Option<&Arc<Sidecar>> {
        self.sidecar.as_ref().filter(|sidecar| sidecar.touches(lba, blocks))
    }

    async fn load(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let (result, buf) = self.file.read_at(self.offset(lba), buf).await;
        (result.map_err(|error| Error::ReadFault(format!("read on {}: {error}", self.latch.path().display()))), buf)
    }

    async fn holds(&self, lba: Lba, expected: &[u8]) -> Result<(), Error> {
        let (result, found) = self.load(lba, Buf::with_len(expected.len())).await;
        result?;
        if *found == *expected { Ok(()) } else { Err(Error::CompareFailure) }
    }

    /// Everything acknowledged is stable, or the namespace latched, also when the caller has gone.
    async fn sync(&self) -> Result<(), Error> {
        let late = |latch: Arc<Latch>, result| {
            let _ = latch.flushed(result); // it has latched; nobody is left to be told
        };
        let (result, _) = self.file.sync_data_holding(Arc::clone(&self.latch), late).await;
        self.latch.flushed(result)
    }

    async fn store(&self, guard: RangeGuard, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let data = aligned(data, self.file.logical_block_size());
        let blocks = (data.len() / self.info.block_size as usize) as u64;
        let marked = self.marked(lba, blocks);
        let stable = durability == Durability::Stable || marked.is_some();
        let held = (Arc::clone(&self.latch), guard);
        // A failure latches before the range is free, whoever learns of it: no waiter may write over bytes of unknown state.
        let late = |(latch, guard): (Arc<Latch>, RangeGuard), result: io::Result<()>| {
            // Cut short, it met a full file system or a fault, and the next write is told which. Nobody was told that it was done.
            if let Err(error) = result.as_ref()
                && error.kind() != io::ErrorKind::WriteZero
            {
                latch.write_failed("write", error);
            }
            drop(guard);
        };
        let (result, held) = self.file.write_at_holding(self.offset(lba), data, stable, held, late).await;
        let mut result = result.map_err(|error| self.latch.write_failed("write", &error));
        if stable && result.is_ok() {
            result = self.latch.still("write");
        }
        if let (Some(sidecar), Ok(())) = (marked, &result) {
            result = sidecar.unmark(lba, blocks).await;
        }
        drop(held);
        result
    }
}

impl FileNamespace {
    /// Makes the range zeroes, in a task of its own: its several steps run to their end, and the range stays locked until
    /// then, also when the caller has gone. (A box per command; these are rare and slow.)
    async fn zero(&self, lba: Lba, blocks: u64, how: Zeroing) -> Result<(), Error> {
        check_range(&self.info(), lba, blocks)?;
        if blocks == 0 {
            return Ok(());
        }
        let guard = self.lock_for_writing(lba, blocks).await?;
        let (offset, bytes) = (self.offset(lba), blocks * u64::from(self.info.block_size));
        let (file, latch) = (self.file.clone(), Arc::clone(&self.latch));
        let marked = self.marked(lba, blocks).cloned();
        task::to_its_end(async move {
            // A hole reads as zeroes, and a sparse file stays sparse: making a pool must not fill the disk. A block device
            // gives room back only where the caller has said that it may.
            let zeroed = if how == Zeroing::Deallocate || !file.is_block_device() {
                match file.punch_hole(offset, bytes).await {
                    // Not every medium gives room back; the promise that the range reads as zeroes is kept all the same.
                    Err(error) if error.kind() == io::ErrorKind::Unsupported => file.write_zeroes(offset, bytes).await,
                    result => result,
                }
            } else {
                file.write_zeroes(offset, bytes).await
            };
            let mut result = match zeroed {
                Err(error) => Err(latch.write_failed(how.name(), &error)),
                Ok(()) if how == Zeroing::Write(Durability::Stable) || marked.is_some() => {
                    latch.flushed(file.sync_data().await)
                }
                Ok(()) => Ok(()),
            };
            if let (Some(sidecar), Ok(())) = (marked, &result) {
                result = sidecar.unmark(lba, blocks).await;
            }
            drop(guard);
            result
        })
        .await
        .unwrap_or(Err(Error::Aborted))
    }
}

/// How a range is made zeroes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeroing {
    /// Its room is given back.
    Deallocate,
    /// It keeps its room.
    Write(Durability),
}

impl Zeroing {
    fn name(self) -> &'static str {
        match self {
            Zeroing::Deallocate => "deallocate",
            Zeroing::Write(_) => "write zeroes",
        }
    }
}

async fn open_medium(path: &Path, options: &FileOptions) -> Result<File, OpenError> {
    let (path_buf, block_size) = (|| path.to_owned(), options.block_size);
    if ![512, 4096].contains(&block_size) {
        return Err(OpenError::BlockSize(block_size));
    }
    let check_size = |bytes: u64| match bytes > 0 && bytes.is_multiple_of(u64::from(block_size)) {
        true => Ok(()),
        false => Err(OpenError::Size { path: path_buf(), bytes, block_size }),
    };
    options.create.map(check_size).transpose()?;
    // A host-aware one is a device like any other that is slow where it is not written in order.
    if is_zoned(path) {
        return Err(OpenError::Zoned { path: path_buf() });
    }
    let file = claim::open(path, options.create, options.read_only).await.map_err(|source| match source.kind() {
        io::ErrorKind::ResourceBusy => OpenError::Busy { path: path_buf() },
        _ => OpenError::Io { path: path_buf(), source },
    })?;
    if let Some(asked) = options.create
        && asked != file.size()
    {
        return Err(OpenError::ExistsWithOtherSize { path: path_buf(), bytes: file.size(), asked });
    }
    check_size(file.size())?;
    let medium = file.logical_block_size();
    if medium > block_size {
        return Err(OpenError::MediumBlockSize { path: path_buf(), medium, asked: block_size });
    }
    Ok(file)
}

/// `data` at an address that direct I/O takes: itself, or a copy if it is an odd slice of something larger.
pub(crate) fn aligned(data: View, granularity: u32) -> View {
    if data.as_ptr().addr().is_multiple_of(granularity as usize) { data } else { Buf::copy_from(&data).freeze() }
}

impl Namespace for FileNamespace {
    crate::namespace_without!(verify, used_blocks, link, zones);

    fn info(&self) -> NamespaceInfo {
        NamespaceInfo { blocks: self.blocks.load(Ordering::Acquire), ..self.info.clone() }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let blocks = match check_length(&self.info(), lba, buf.len(), self.info.transfer_blocks_max) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), buf),
        };
        let _guard = self.lock(lba, blocks, Mode::Shared).await;
        if let Err(error) = self.check_marks(lba, blocks) {
            return (Err(error), buf);
        }
        self.load(lba, buf).await
    }

    async fn hint_lifetime(&self, lifetime: Lifetime) -> bool {
        // Why not is nobody's concern: it is a hint.
        self.file.hint_lifetime(lifetime).is_ok()
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let blocks = check_length(&self.info(), lba, data.len(), self.info.transfer_blocks_max)?;
        let guard = self.lock_for_writing(lba, blocks).await?;
        self.store(guard, lba, data, durability).await
    }

    async fn flush(&self) -> Result<(), Error> {
        if self.latch.is_read_only() {
            return Ok(());
        }
        self.latch.writable()?;
        self.sync().await
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        let blocks = check_length(&self.info(), lba, expected.len(), self.info.transfer_blocks_max)?;
        let _guard = self.lock(lba, blocks, Mode::Shared).await;
        self.check_marks(lba, blocks)?;
        self.holds(lba, &expected).await
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        let blocks = check_halves(&self.info(), lba, expected.len(), new.len())?;
        let guard = self.lock_for_writing(lba, blocks).await?;
        self.check_marks(lba, blocks)?;
        self.holds(lba, &expected).await?;
        self.store(guard, lba, new, how).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        self.zero(lba, blocks, Zeroing::Write(durability)).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.zero(lba, blocks, Zeroing::Deallocate).await
    }

    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        let bytes = blocks.saturating_mul(u64::from(self.info.block_size)).min(usize::MAX as u64) as usize;
        check_length(&self.info(), lba, bytes, self.info.transfer_blocks_max)?;
        let Some(sidecar) = self.sidecar.clone() else { return Err(Error::Unsupported("Write Uncorrectable")) };
        let guard = self.lock_for_writing(lba, blocks).await?;
        sidecar.mark(lba, blocks, guard).await
    }

    fn writability(&self) -> Writability {
        self.latch.writability()
    }

    fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.sidecar.as_ref().and_then(|sidecar| sidecar.attribute(key)))
    }

    async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
        match &self.sidecar {
            _ if self.latch.is_read_only() => Err(Error::ReadOnly("it was opened read-only")),
            Some(sidecar) => sidecar.set_attribute(key, value).await,
            None => Err(Error::Unsupported("attributes")),
        }
    }
}
