//! [`ZonedFile`]: a zoned block device of Linux, by direct I/O and the kernel's commands for zones.
//!
//! Invariants, beside those of `zone` and `file`:
//! - A command that changes a zone holds the zone's order lock from before it looks at the write pointer until that is known again,
//!   and how it ended was judged, also when its future is dropped meanwhile: that a flush has failed is told once. It holds the
//!   lock of its range as well, which is what readers wait for.
//! - Where a zone is written next is known from what has gone well here, and asked of the kernel after everything else: it is the
//!   kernel's write pointer that counts. A zone in doubt takes nothing before it was asked for.
//! - A write that has failed leaves its zone as the kernel then tells; others are as good as before. After a flush has failed, also
//!   one that a stable write brought with it, nothing is written any more: what was cached may be lost.
//!
//! The kernel's commands for zones block; they are made by the threads that computations are made by. Downside: one that a slow
//! device takes long for keeps computations waiting.

mod notes;
mod system;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use engine::file::{File, ZoneCommand};
use engine::task::LocalFuture;
use engine::{Buf, View, offload, task};

use crate::file::aligned;
use crate::latch::Latch;
use crate::limits::{TRANSFER_BYTES_MAX, check_length, check_range};
use crate::range_lock::{Mode, RangeGuard, RangeLocks};
use crate::{
    Durability, Error, Lba, Namespace, NamespaceInfo, OpenError, Writability, Zone, ZoneAction, ZoneError, ZoneState,
    ZonedInfo, claim, identity,
};
use notes::{Note, Notes};

pub use system::is_zoned;

/// Of asm-generic/errno.h: what the kernel says where a zone can't be active, and where it can't be open.
const EOVERFLOW: i32 = 75;
const ETOOMANYREFS: i32 = 109;
/// Blocks of 2^this share a shard of locks. Guessed: as for files.
const REGION_SHIFT: u32 = 8;

struct Shared {
    file: File,
    latch: Latch,
    notes: Notes,
    info: NamespaceInfo,
    zoned: ZonedInfo,
}

/// A zoned block device; share it between threads by `Arc`.
pub struct ZonedFile {
    shared: Arc<Shared>,
    /// By zone: who changes it.
    order: Arc<RangeLocks>,
    /// By block: who reads and writes there.
    locks: Arc<RangeLocks>,
}

impl fmt::Debug for ZonedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZonedFile").field("latch", &self.shared.latch).finish_non_exhaustive()
    }
}

impl ZonedFile {
    /// Opens the device at `path`; no other process can while this one has it open. The identity is that of the device, unless one
    /// is given.
    ///
    /// # Errors
    /// It has no zones that are written in order, is in use, or what the system says.
    pub fn open(
        path: &Path,
        nguid: Option<[u8; 16]>,
        read_only: bool,
    ) -> LocalFuture<'_, Result<ZonedFile, OpenError>> {
        Box::pin(async move {
            let io = |source| OpenError::Io { path: path.to_owned(), source };
            match system::model(path).as_deref() {
                Some("host-managed") => {}
                other => {
                    let model = other.unwrap_or("none").to_owned();
                    return Err(OpenError::NotHostManaged { path: path.to_owned(), model });
                }
            }
            let file = claim::open(path, None, read_only).await.map_err(|source| match source.kind() {
                io::ErrorKind::ResourceBusy => OpenError::Busy { path: path.to_owned() },
                _ => io(source),
            })?;
            let silent = || io(io::Error::other("the kernel does not say how long its zones are"));
            let limits = system::limits(path).ok_or_else(silent)?;
            let nguid = nguid.map_or_else(|| identity::of_device(path), Ok)?;
            let block_size = file.logical_block_size();
            let zones = all_zones(&file).map_err(io)?;
            let notes: Vec<Note> = zones.iter().map(|zone| Note::of(zone, block_size)).collect();
            let (info, zoned) = told(&file, &limits, nguid);
            let regular = zones.iter().enumerate().all(|(index, zone)| zone.start == index as u64 * limits.zone_bytes);
            if !regular || zones.is_empty() || !limits.zone_bytes.is_multiple_of(u64::from(block_size)) {
                return Err(io(io::Error::other("its zones are not all of one length")));
            }
            let shared =
                Shared { file, latch: Latch::new(path, read_only), notes: Notes::new(zoned, notes), info, zoned };
            let (order, locks) = (RangeLocks::new(0), RangeLocks::new(REGION_SHIFT));
            Ok(ZonedFile { shared: Arc::new(shared), order: Arc::new(order), locks: Arc::new(locks) })
        })
    }

    /// The order of a zone; where it has none writers are as many as may be.
    async fn order_of(&self, zone: usize) -> RangeGuard {
        let is_free = self.shared.notes.get(zone).state == ZoneState::Conventional;
        self.order.lock(zone as u64, 1, if is_free { Mode::Shared } else { Mode::Exclusive }).await
    }

    /// A zone in doubt is asked for. The caller has its order.
    async fn settle(&self, zone: usize) -> Result<(), Error> {
        match self.shared.notes.get(zone).is_in_doubt {
            true => self.shared.clone().learn(zone).await,
            false => Ok(()),
        }
    }

    /// The caller has the zone's order. In a task of its own, as a change of a zone is.
    async fn store(&self, order: RangeGuard, zone: usize, at: u64, data: View, how: Durability) -> Result<(), Error> {
        let shared = &self.shared;
        let (lba, blocks) = (shared.start(zone).0 + at, data.len() as u64 / u64::from(shared.info.block_size));
        let range = self.locks.lock(lba, blocks, Mode::Exclusive).await;
        shared.latch.writable()?;
        self.settle(zone).await?;
        shared.notes.admit(zone, at, blocks).map_err(Error::Zone)?;
        let shared = shared.clone();
        let stored = task::to_its_end(async move {
            let result = shared.write(zone, at, data, how == Durability::Stable).await;
            drop((order, range));
            result
        });
        stored.await.unwrap_or(Err(Error::Aborted))
    }

    async fn load(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let offset = lba.0 * u64::from(self.shared.info.block_size);
        let (result, buf) = self.shared.file.read_at(offset, buf).await;
        let path = self.shared.latch.path().display();
        (result.map_err(|error| Error::ReadFault(format!("read on {path}: {error}"))), buf)
    }

    /// The caller has the lock of the range. Beyond write pointers there are zeroes, whatever the device has there.
    async fn load_zones(&self, lba: Lba, blocks: u64, mut buf: Buf) -> (Result<(), Error>, Buf) {
        let (block, zone_blocks) = (self.shared.info.block_size as usize, self.shared.zoned.zone_blocks);
        let mut done = 0;
        while done < blocks {
            let (zone, at) = self.shared.zoned.locate(Lba(lba.0 + done));
            let here = (blocks - done).min(zone_blocks - at);
            let note = self.shared.notes.get(zone);
            if note.state == ZoneState::Offline {
                return (Err(Error::Zone(ZoneError::Offline)), buf);
            }
            let written = if note.is_in_doubt { note.capacity } else { note.written };
            let there = written.saturating_sub(at).min(here);
            if there == blocks {
                return self.load(lba, buf).await;
            }
            let part = &mut buf[done as usize * block..(done + here) as usize * block];
            let (data, rest) = part.split_at_mut(there as usize * block);
            rest.fill(0);
            if there > 0 {
                let (result, piece) = self.load(Lba(lba.0 + done), Buf::with_len(data.len())).await;
                if let Err(error) = result {
                    return (Err(error), buf);
                }
                data.copy_from_slice(&piece);
            }
            done += here;
        }
        (Ok(()), buf)
    }

    /// In a task of its own: it runs to its end, and the zone stays locked until then, also when the caller has gone.
    /// `is_one_of_all`: only a zone that it concerns is changed.
    async fn change_one(&self, zone: usize, action: ZoneAction, is_one_of_all: bool) -> Result<(), Error> {
        let order = self.order.lock(zone as u64, 1, Mode::Exclusive).await;
        let note = self.shared.notes.get(zone);
        let range = self.locks.lock(self.shared.start(zone).0, note.length, Mode::Exclusive).await;
        self.shared.latch.writable()?;
        self.settle(zone).await?;
        if is_one_of_all && !action.concerns(self.shared.notes.get(zone).state) {
            return Ok(()); // it became another one while others had it
        }
        if action == ZoneAction::Offline && self.shared.notes.get(zone).state == ZoneState::ReadOnly {
            return Err(Error::Unsupported("giving up a zone: Linux has no command for that"));
        }
        let Some((command, then)) = self.shared.notes.plan(zone, action).map_err(Error::Zone)? else { return Ok(()) };
        let shared = self.shared.clone();
        let changed = task::to_its_end(async move {
            let result = shared.clone().command(zone, command, then).await;
            drop((order, range));
            result
        });
        changed.await.unwrap_or(Err(Error::Aborted))
    }
}

impl Shared {
    fn start(&self, zone: usize) -> Lba {
        Lba(zone as u64 * self.zoned.zone_blocks)
    }

    /// What the kernel tells of a zone is what it is. It has to be asked, too: after a write has failed newer kernels refuse every
    /// further one in that zone until they were (block/blk-zoned.c, `BLK_ZONE_WPLUG_NEED_WP_UPDATE`).
    async fn learn(self: Arc<Shared>, zone: usize) -> Result<(), Error> {
        let (shared, offset) = (self.clone(), self.start(zone).0 * u64::from(self.info.block_size));
        let asked = offload::compute(move || shared.file.zones(offset, 1)).await;
        let found = match asked {
            Ok(found) => found.map_err(|error| self.fault("what is in its zones", &error))?,
            Err(_) => return Err(Error::Aborted),
        };
        let zones = found.first().map(|found| Note::of(found, self.info.block_size));
        let note = zones.ok_or_else(|| Error::ReadFault("the kernel knows nothing of a zone that there was".into()))?;
        self.notes.set(zone, note);
        Ok(())
    }

    /// One write, at a place that takes it. The caller has the zone's order and the range.
    async fn write(self: Arc<Shared>, zone: usize, at: u64, data: View, stable: bool) -> Result<(), Error> {
        let block = u64::from(self.info.block_size);
        let (offset, blocks) = ((self.start(zone).0 + at) * block, data.len() as u64 / block);
        let data = aligned(data, self.file.logical_block_size());
        match self.file.write_at(offset, data, stable).await {
            Ok(()) => {
                self.notes.wrote(zone, blocks);
                if stable { self.latch.still("write") } else { Ok(()) }
            }
            Err(error) => {
                self.notes.doubt(zone);
                Err(self.failed(zone, at, blocks, stable, &error).await)
            }
        }
    }

    fn fault(&self, what: &str, error: &io::Error) -> Error {
        Error::WriteFault(format!("{what} on {}: {error}", self.latch.path().display()))
    }

    /// Why a write has failed. Its zone is asked for, and is in doubt still where that fails as well.
    async fn failed(self: Arc<Shared>, zone: usize, at: u64, blocks: u64, stable: bool, error: &io::Error) -> Error {
        if let Err(unknown) = self.clone().learn(zone).await {
            return Error::WriteFault(format!("{}; {unknown}", self.fault("write", error)));
        }
        let note = self.notes.get(zone);
        let is_in_order = note.state != ZoneState::Conventional;
        match error.raw_os_error() {
            Some(EOVERFLOW) if is_in_order && note.written == at => Error::Zone(ZoneError::TooManyActive),
            Some(ETOOMANYREFS) if is_in_order && note.written == at => Error::Zone(ZoneError::TooManyOpen),
            // All of it is written, so it was the flush behind it that has failed.
            _ if stable && is_in_order && note.holds(at, blocks) => self.latch.fall("flush", error),
            // In a zone without an order nobody knows.
            _ if stable && !is_in_order => self.latch.fall("write", error),
            _ => self.fault("write", error),
        }
    }

    /// The caller has the zone to itself.
    async fn command(self: Arc<Shared>, zone: usize, command: ZoneCommand, then: Note) -> Result<(), Error> {
        self.notes.doubt(zone);
        let (shared, block) = (self.clone(), u64::from(self.info.block_size));
        let (start, length) = (self.start(zone).0 * block, then.length * block);
        let done = offload::compute(move || shared.file.change_zone(start, length, command)).await;
        match done {
            Ok(Ok(())) => {
                self.notes.set(zone, then);
                Ok(())
            }
            Ok(Err(error)) => {
                let fault = self.fault("a command for a zone", &error);
                self.learn(zone).await?;
                Err(match error.raw_os_error() {
                    Some(EOVERFLOW) => Error::Zone(ZoneError::TooManyActive),
                    Some(ETOOMANYREFS) => Error::Zone(ZoneError::TooManyOpen),
                    _ => fault,
                })
            }
            Err(_) => Err(Error::Aborted),
        }
    }
}

fn all_zones(file: &File) -> io::Result<Vec<engine::file::KernelZone>> {
    let mut zones: Vec<engine::file::KernelZone> = Vec::new();
    loop {
        let from = zones.last().map_or(0, |last| last.start + last.length);
        let more = file.zones(from, usize::MAX)?;
        if more.is_empty() {
            return Ok(zones);
        }
        zones.extend(more);
    }
}

fn told(file: &File, limits: &system::Limits, nguid: [u8; 16]) -> (NamespaceInfo, ZonedInfo) {
    let block_size = file.logical_block_size();
    let zone_blocks = limits.zone_bytes / u64::from(block_size);
    let transfer_blocks_max = (TRANSFER_BYTES_MAX as u64 / u64::from(block_size)).min(zone_blocks) as u32;
    let info = NamespaceInfo {
        // The drive's own: `fdatasync` flushes it.
        volatile_cache: true,
        ..NamespaceInfo::in_zones(block_size, file.size() / u64::from(block_size), transfer_blocks_max, nguid)
    };
    let &system::Limits { open_max, active_max, .. } = limits;
    (info, ZonedInfo { zone_blocks, open_max, active_max, append_blocks_max: transfer_blocks_max })
}

impl Namespace for ZonedFile {
    crate::namespace_without!(verify, write_uncorrectable, hint_lifetime, used_blocks, link, attributes);

    fn info(&self) -> NamespaceInfo {
        self.shared.info.clone()
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let blocks = match check_length(&self.shared.info, lba, buf.len(), self.shared.info.transfer_blocks_max) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), buf),
        };
        let _lock = self.locks.lock(lba.0, blocks, Mode::Shared).await;
        self.load_zones(lba, blocks, buf).await
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let blocks = check_length(&self.shared.info, lba, data.len(), self.shared.info.transfer_blocks_max)?;
        self.shared.latch.writable()?;
        let (zone, at) = self.shared.zoned.locate(lba);
        if at + blocks > self.shared.zoned.zone_blocks {
            return Err(Error::Zone(ZoneError::Boundary));
        }
        let order = self.order_of(zone).await;
        self.store(order, zone, at, data, durability).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.shared.latch.writable()?;
        let late = |shared: Arc<Shared>, result| {
            let _ = shared.latch.flushed(result); // it has latched; nobody is left to be told
        };
        let (result, _) = self.shared.file.sync_data_holding(self.shared.clone(), late).await;
        self.shared.latch.flushed(result)
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        let blocks = check_length(&self.shared.info, lba, expected.len(), self.shared.info.transfer_blocks_max)?;
        let _lock = self.locks.lock(lba.0, blocks, Mode::Shared).await;
        let (result, found) = self.load_zones(lba, blocks, Buf::with_len(expected.len())).await;
        result?;
        if *found == *expected { Ok(()) } else { Err(Error::CompareFailure) }
    }

    async fn compare_and_write(&self, _: Lba, _: View, _: View, _: Durability) -> Result<(), Error> {
        Err(Error::Unsupported("compare-and-write: what is written in a zone stays until the zone is reset"))
    }

    /// Zeroes are written as anything else is, in pieces: others may write in the zone between these.
    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        check_range(&self.shared.info, lba, blocks)?;
        let (zone, at) = self.shared.zoned.locate(lba);
        // Before the first piece, so that what does not fit is refused as a whole.
        if blocks > 0 && at + blocks > self.shared.notes.get(zone).capacity {
            return Err(Error::Zone(ZoneError::Boundary));
        }
        let mut done = 0;
        while done < blocks {
            let now = (blocks - done).min(u64::from(self.shared.info.transfer_blocks_max));
            let zeroes = Buf::zeroed(now as usize * self.shared.info.block_size as usize);
            let order = self.order_of(zone).await;
            self.store(order, zone, at + done, zeroes.freeze(), durability).await?;
            done += now;
        }
        Ok(())
    }

    /// A hint of which nothing follows, but that there are such blocks: a zone is given back as a whole, by its reset.
    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        check_range(&self.shared.info, lba, blocks)?;
        let is_offline = |zone| self.shared.notes.get(zone).state == ZoneState::Offline;
        if self.shared.zoned.touched(lba, blocks).any(is_offline) {
            Err(Error::Zone(ZoneError::Offline))
        } else {
            Ok(())
        }
    }

    fn writability(&self) -> Writability {
        self.shared.latch.writability()
    }

    fn zoned(&self) -> Option<ZonedInfo> {
        Some(self.shared.zoned)
    }

    /// As the kernel tells of them: it closes zones to open others.
    async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, Error> {
        check_range(&self.shared.info, from, 1)?;
        let (first, _) = self.shared.zoned.locate(from);
        let (shared, block_size) = (self.shared.clone(), self.shared.info.block_size);
        let offset = self.shared.start(first).0 * u64::from(block_size);
        let asked = offload::compute(move || shared.file.zones(offset, max)).await;
        let found = asked.map_err(|_| Error::Aborted)?.map_err(|error| self.shared.fault("its zones", &error))?;
        let told = |(zone, found)| Note::of(found, block_size).zone(self.shared.start(zone));
        Ok((first..).zip(&found).map(told).collect())
    }

    async fn change_zone(&self, zone: Option<Lba>, action: ZoneAction) -> Result<(), Error> {
        if let Some(zone) = zone {
            return self.change_one(self.shared.zoned.begins(&self.shared.info, zone)?, action, false).await;
        }
        let states = || (0..self.shared.notes.count()).map(|zone| self.shared.notes.get(zone).state);
        if action == ZoneAction::Open {
            self.shared.zoned.check_open_all(states()).map_err(Error::Zone)?;
        }
        let concerned = |&zone: &usize| action.concerns(self.shared.notes.get(zone).state);
        // Those that are closed only to make room are none of them.
        for zone in (0..self.shared.notes.count()).filter(concerned).collect::<Vec<_>>() {
            self.change_one(zone, action, true).await?;
        }
        Ok(())
    }

    /// A write at the write pointer, by whoever has the zone's order.
    async fn append(&self, zone: Lba, data: View, durability: Durability) -> Result<Lba, Error> {
        let zone = self.shared.zoned.begins(&self.shared.info, zone)?;
        let start = self.shared.start(zone);
        check_length(&self.shared.info, start, data.len(), self.shared.zoned.append_blocks_max)?;
        let order = self.order_of(zone).await;
        self.settle(zone).await?;
        let Note { written, state, .. } = self.shared.notes.get(zone);
        if state == ZoneState::Conventional {
            return Err(Error::Zone(ZoneError::InvalidTransition));
        }
        self.store(order, zone, written, data, durability).await?;
        Ok(Lba(start.0 + written))
    }
}
