//! [`Zones`]: the chunks of a flash device as zones, for hosts that bring a media manager of their own.
//!
//! Invariants, beside those of `device::zone`:
//! - A command holds its zone's lock from before it looks at the write pointer until that has moved: of two writes at one place one
//!   is refused, whoever comes first. What has begun runs to its end, also when its future is dropped: half of it would leave a
//!   write pointer that is not the device's.
//! - What the device tells of a chunk when the zones are opened is what its zone is; after that only what went through here changes
//!   a zone. After a command that has failed the device is asked. Which zones are open by name is in memory alone.
//! - Zones that follow one another are on different parallel units.
//!
//! The device has one limit, of chunks that are written in part. So as many zones may be open as may be active, and no zone is ever
//! closed to open another.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use device::limits::{TRANSFER_BYTES_MAX, check_length, check_range};
use device::{
    Durability, Error, Lba, Mailed, Mode, Namespace, NamespaceInfo, RangeGuard, RangeLocks, Writability, Zone,
    ZoneAction, ZoneError, ZoneState, ZonedInfo,
};
use engine::task::LocalFuture;
use engine::{Buf, View, task};

use crate::address::{Chunk, Sector};
use crate::device::{ChunkReport, ChunkState, FlashDevice, FlashError};
use crate::geometry::{Geometry, GeometryError, SECTOR_BYTES};

/// A zone, in blocks from its first.
#[derive(Clone, Copy)]
struct Note {
    written: u64,
    state: ZoneState,
    /// The device has it free, whatever it is called here: an end of what was opened by name alone needs no reset, which would wear
    /// it. Of one that something was sent to that is not known.
    is_free: bool,
}

/// See the module. It belongs to one thread; `device::Mailed` makes it usable by all.
pub struct Zones(Rc<Shared>);

/// What commands under way have, too.
struct Shared {
    device: Rc<dyn FlashDevice>,
    geometry: Geometry,
    info: NamespaceInfo,
    zoned: ZonedInfo,
    /// Blocks of a zone that can be written.
    capacity: u64,
    notes: RefCell<Vec<Note>>,
    locks: Arc<RangeLocks>,
}

impl Zones {
    /// As [`crate::FlashNamespace::mailed`].
    #[inline(never)]
    pub fn mailed(self) -> Mailed {
        Mailed::new(Rc::new(self))
    }

    /// Takes the device for itself, until it is dropped.
    ///
    /// # Errors
    /// A write unit that no block can have ([`GeometryError::Block`]); the device is in use, or fails.
    pub fn open(device: Rc<dyn FlashDevice>) -> LocalFuture<'static, Result<Zones, FlashError>> {
        Box::pin(async move {
            let geometry = device.geometry();
            let block_bytes = geometry.write_unit as usize * SECTOR_BYTES;
            if !geometry.write_unit.is_power_of_two() || block_bytes > device::BLOCK_SIZE_MAX as usize {
                return Err(GeometryError::Block { write_unit: geometry.write_unit }.into());
            }
            device.claim()?;
            // From here on the claim goes with it.
            let shared = Shared {
                geometry,
                info: info(&*device, block_bytes as u32),
                zoned: zoned(geometry),
                capacity: u64::from(geometry.sectors / geometry.write_unit),
                notes: RefCell::default(),
                locks: Arc::new(RangeLocks::new(8)),
                device,
            };
            let reports = shared.device.report().await?;
            let notes =
                (0..geometry.chunks_total()).map(|zone| shared.note_of(&reports[shared.chunk(zone).0 as usize]));
            let notes = RefCell::new(notes.collect());
            shared.notes.swap(&notes);
            Ok(Zones(Rc::new(shared)))
        })
    }

    /// A command that has its zone. It runs to its end, and the zone stays locked until then, also when the caller has gone.
    async fn carry_out(
        &self,
        lock: RangeGuard,
        command: impl AsyncFnOnce(&Shared) -> Result<(), Error> + 'static,
    ) -> Result<(), Error> {
        let shared = self.0.clone();
        let done = task::to_its_end(async move {
            let result = command(&shared).await;
            drop(lock);
            result
        });
        done.await.unwrap_or(Err(Error::Aborted))
    }

    /// `is_one_of_all`: only a zone that it concerns is changed.
    async fn change_one(&self, zone: u32, action: ZoneAction, is_one_of_all: bool) -> Result<(), Error> {
        let lock = self.0.lock_zone(zone).await;
        if is_one_of_all && !action.concerns(self.0.note(zone).state) {
            return Ok(()); // it became another one while others had it
        }
        self.carry_out(lock, async move |shared: &Shared| shared.change(zone, action).await).await
    }
}

impl Shared {
    /// What a chunk is as a zone.
    fn note_of(&self, report: &ChunkReport) -> Note {
        let state = match report.state {
            ChunkState::Free => ZoneState::Empty,
            ChunkState::Open => ZoneState::Closed,
            ChunkState::Closed => ZoneState::Full,
            ChunkState::ReadOnly => ZoneState::ReadOnly,
            ChunkState::Offline => ZoneState::Offline,
        };
        // A crash can leave a part of a unit, which nobody was told of: it is nothing that can be gone on behind.
        let written = u64::from(report.write_pointer / self.geometry.write_unit);
        Note { written, state, is_free: report.state == ChunkState::Free }
    }

    /// Zones that follow one another are on different parallel units.
    fn chunk(&self, zone: u32) -> Chunk {
        let units = self.geometry.units();
        self.geometry.chunk(zone % units, zone / units)
    }

    fn sector(&self, zone: u32, block: u64) -> Sector {
        self.geometry.sector(self.chunk(zone), block as u32 * self.geometry.write_unit)
    }

    fn note(&self, zone: u32) -> Note {
        self.notes.borrow()[zone as usize]
    }

    fn set(&self, zone: u32, note: Note) {
        self.notes.borrow_mut()[zone as usize] = note;
    }

    /// The zone of a block, and the block's place there.
    fn locate(&self, lba: Lba) -> (u32, u64) {
        let (zone, at) = self.zoned.locate(lba);
        (zone as u32, at)
    }

    fn start(&self, zone: u32) -> Lba {
        Lba(u64::from(zone) * self.zoned.zone_blocks)
    }

    async fn lock_zone(&self, zone: u32) -> RangeGuard {
        self.locks.lock(self.start(zone).0, self.zoned.zone_blocks, Mode::Exclusive).await
    }

    /// The zone that begins at this block.
    fn begins(&self, lba: Lba) -> Result<u32, Error> {
        self.zoned.begins(&self.info, lba).map(|zone| zone as u32)
    }

    /// One more zone may be active.
    fn check_active(&self) -> Result<(), ZoneError> {
        let active = self.notes.borrow().iter().filter(|note| note.state.is_active()).count();
        match self.zoned.active_max {
            Some(most) if active >= most as usize => Err(ZoneError::TooManyActive),
            _ => Ok(()),
        }
    }

    /// The zone takes so many blocks at this place, its write pointer, and is open.
    fn admit(&self, zone: u32, at: u64, blocks: u64) -> Result<(), ZoneError> {
        let note = self.note(zone);
        match note.state {
            ZoneState::Full => return Err(ZoneError::Full),
            ZoneState::ReadOnly => return Err(ZoneError::ReadOnly),
            ZoneState::Offline => return Err(ZoneError::Offline),
            _ if at + blocks > self.capacity => return Err(ZoneError::Boundary),
            _ if at != note.written => return Err(ZoneError::InvalidWrite),
            ZoneState::Empty => self.check_active()?,
            ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen | ZoneState::Closed | ZoneState::Conventional => {}
        }
        let state = match note.state {
            ZoneState::ExplicitlyOpen => ZoneState::ExplicitlyOpen,
            _ => ZoneState::ImplicitlyOpen,
        };
        self.set(zone, Note { state, is_free: false, ..note });
        Ok(())
    }

    /// The caller has the zone's lock.
    async fn program(&self, zone: u32, at: u64, data: View) -> Result<(), Error> {
        let before = self.note(zone);
        let blocks = data.len() as u64 / u64::from(self.info.block_size);
        self.admit(zone, at, blocks).map_err(Error::Zone)?;
        let oob = Buf::zeroed(data.len() / SECTOR_BYTES * self.geometry.oob_bytes as usize);
        match self.device.write(self.sector(zone, at), data, oob.freeze()).await {
            Ok(()) => {
                let mut note = self.note(zone);
                note.written += blocks;
                if note.written == self.capacity {
                    note.state = ZoneState::Full;
                }
                self.set(zone, note);
                Ok(())
            }
            Err(error) => Err(self.failed(zone, before, &error).await),
        }
    }

    /// A command has failed in a zone that was like this: it is what the device now tells. The caller has the zone's lock.
    async fn failed(&self, zone: u32, before: Note, error: &FlashError) -> Error {
        let note = match self.device.report().await {
            Ok(reports) => self.note_of(&reports[self.chunk(zone).0 as usize]),
            Err(_) => before, // it has gone, and with it all that could be told
        };
        let note = match note.state {
            // What it has of a write that failed was never acknowledged.
            ZoneState::ReadOnly => Note { written: before.written, ..note },
            // It does not know which zones are open.
            ZoneState::Empty | ZoneState::Closed if before.state.is_active() => Note { state: before.state, ..note },
            _ => note,
        };
        self.set(zone, note);
        told(error)
    }

    /// The caller has the zone's lock.
    async fn change(&self, zone: u32, action: ZoneAction) -> Result<(), Error> {
        let note = self.note(zone);
        let (chunk, refused) = (self.chunk(zone), Err(Error::Zone(ZoneError::InvalidTransition)));
        let next = match (action, note.state) {
            (ZoneAction::Open, ZoneState::Empty) => {
                self.check_active().map_err(Error::Zone)?;
                ZoneState::ExplicitlyOpen
            }
            (ZoneAction::Open, state) if state.is_active() => ZoneState::ExplicitlyOpen,
            (ZoneAction::Close, state) if state.is_active() => ZoneState::Closed,
            (ZoneAction::Finish, ZoneState::Full) | (ZoneAction::Reset, ZoneState::Empty) => return Ok(()),
            (ZoneAction::Finish, state) if state.is_active() || state == ZoneState::Empty => {
                if let Err(error) = self.device.finish(chunk).await {
                    return Err(self.failed(zone, note, &error).await);
                }
                ZoneState::Full
            }
            (ZoneAction::Reset, state) if state.is_active() || state == ZoneState::Full => {
                if !note.is_free
                    && let Err(error) = self.device.reset(chunk).await
                {
                    return Err(self.failed(zone, note, &error).await);
                }
                self.set(zone, Note { written: 0, state: ZoneState::Empty, is_free: true });
                return Ok(());
            }
            (ZoneAction::Offline, ZoneState::Offline) => return Ok(()),
            (ZoneAction::Offline, ZoneState::ReadOnly) => {
                if let Err(error) = self.device.set_bad(chunk).await {
                    return Err(self.failed(zone, note, &error).await);
                }
                ZoneState::Offline
            }
            _ => return refused,
        };
        let is_free = note.is_free && next.is_active();
        self.set(zone, Note { state: next, is_free, ..note });
        Ok(())
    }

    /// Pieces of zeroes from a place in a zone on. The caller has its lock.
    async fn zero(&self, zone: u32, at: u64, blocks: u64) -> Result<(), Error> {
        // Before the first piece, so that what does not fit is refused as a whole.
        if at + blocks > self.capacity {
            return Err(Error::Zone(ZoneError::Boundary));
        }
        let mut done = 0;
        while done < blocks {
            let now = (blocks - done).min(u64::from(self.info.transfer_blocks_max));
            let zeroes = Buf::zeroed(now as usize * self.info.block_size as usize);
            self.program(zone, at + done, zeroes.freeze()).await?;
            done += now;
        }
        Ok(())
    }
}

fn info(device: &dyn FlashDevice, block_size: u32) -> NamespaceInfo {
    let geometry = device.geometry();
    let transfer_blocks_max = (TRANSFER_BYTES_MAX as u32 / block_size).min(geometry.sectors / geometry.write_unit);
    let blocks = u64::from(geometry.chunks_total()) * zoned(geometry).zone_blocks;
    NamespaceInfo::in_zones(block_size, blocks, transfer_blocks_max, device.serial())
}

fn zoned(geometry: Geometry) -> ZonedInfo {
    let most = (geometry.open_max > 0).then_some(geometry.open_max);
    let capacity = geometry.sectors / geometry.write_unit;
    let append_blocks_max = (TRANSFER_BYTES_MAX / SECTOR_BYTES) as u32 / geometry.write_unit;
    ZonedInfo {
        // Linux takes no other.
        zone_blocks: u64::from(capacity).next_power_of_two(),
        open_max: most,
        active_max: most,
        append_blocks_max: append_blocks_max.clamp(1, capacity),
    }
}

fn told(error: &FlashError) -> Error {
    match error {
        FlashError::NoRoom => Error::OutOfSpace,
        // Of what was under way nobody knows what became, and of no zone what it is.
        FlashError::PowerLost => Error::Disconnected("the flash device, which has lost power".into()),
        FlashError::ReadFailed(_) | FlashError::NotWritten(_) => Error::ReadFault(error.to_string()),
        error => Error::WriteFault(error.to_string()),
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.device.release();
    }
}

impl Namespace for Zones {
    device::namespace_without!(verify, write_uncorrectable, hint_lifetime, link, attributes);

    fn info(&self) -> NamespaceInfo {
        self.0.info.clone()
    }

    async fn read(&self, lba: Lba, mut buf: Buf) -> (Result<(), Error>, Buf) {
        let blocks = match check_length(&self.0.info, lba, buf.len(), self.0.info.transfer_blocks_max) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), buf),
        };
        let _lock = self.0.locks.lock(lba.0, blocks, Mode::Shared).await;
        let block = self.0.info.block_size as usize;
        let mut done = 0;
        while done < blocks {
            let (zone, at) = self.0.locate(Lba(lba.0 + done));
            let here = (blocks - done).min(self.0.zoned.zone_blocks - at);
            let note = self.0.note(zone);
            if note.state == ZoneState::Offline {
                return (Err(Error::Zone(ZoneError::Offline)), buf);
            }
            let written = note.written.saturating_sub(at).min(here);
            if written == blocks {
                let (result, buf, _) = self.0.device.read(self.0.sector(zone, at), buf, Buf::default()).await;
                return (result.map_err(|error| told(&error)), buf);
            }
            let (data, rest) =
                buf[done as usize * block..(done + here) as usize * block].split_at_mut(written as usize * block);
            rest.fill(0);
            if written > 0 {
                let piece = Buf::with_len(data.len());
                let (result, piece, _) = self.0.device.read(self.0.sector(zone, at), piece, Buf::default()).await;
                if let Err(error) = result {
                    return (Err(told(&error)), buf);
                }
                data.copy_from_slice(&piece);
            }
            done += here;
        }
        (Ok(()), buf)
    }

    async fn write(&self, lba: Lba, data: View, _durability: Durability) -> Result<(), Error> {
        let blocks = check_length(&self.0.info, lba, data.len(), self.0.info.transfer_blocks_max)?;
        let (zone, at) = self.0.locate(lba);
        if at + blocks > self.0.zoned.zone_blocks {
            return Err(Error::Zone(ZoneError::Boundary));
        }
        let lock = self.0.lock_zone(zone).await;
        self.carry_out(lock, async move |shared: &Shared| shared.program(zone, at, data).await).await
    }

    // What has been acknowledged is stable.
    async fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        let (result, found) = self.read(lba, Buf::with_len(expected.len())).await;
        result?;
        if *found == *expected { Ok(()) } else { Err(Error::CompareFailure) }
    }

    async fn compare_and_write(&self, _: Lba, _: View, _: View, _: Durability) -> Result<(), Error> {
        Err(Error::Unsupported("compare-and-write: what is written in a zone stays until the zone is reset"))
    }

    /// Zeroes are written as anything else is.
    async fn write_zeroes(&self, lba: Lba, blocks: u64, _durability: Durability) -> Result<(), Error> {
        check_range(&self.0.info, lba, blocks)?;
        if blocks == 0 {
            return Ok(());
        }
        let (zone, at) = self.0.locate(lba);
        let lock = self.0.lock_zone(zone).await;
        self.carry_out(lock, async move |shared: &Shared| shared.zero(zone, at, blocks).await).await
    }

    /// A hint of which nothing follows, but that there are such blocks: a zone is given back as a whole, by its reset.
    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        check_range(&self.0.info, lba, blocks)?;
        let mut touched = self.0.zoned.touched(lba, blocks);
        let offline = touched.any(|zone| self.0.note(zone as u32).state == ZoneState::Offline);
        if offline { Err(Error::Zone(ZoneError::Offline)) } else { Ok(()) }
    }

    fn writability(&self) -> Writability {
        Writability::Writable
    }

    fn used_blocks(&self) -> u64 {
        self.0.info.blocks
    }

    fn zoned(&self) -> Option<ZonedInfo> {
        Some(self.0.zoned)
    }

    async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, Error> {
        check_range(&self.0.info, from, 1)?;
        let (first, _) = self.0.locate(from);
        let notes = self.0.notes.borrow();
        let zone = |(zone, note): (u32, &Note)| {
            let start = self.0.start(zone);
            Zone { start, capacity: self.0.capacity, write_pointer: Lba(start.0 + note.written), state: note.state }
        };
        Ok((0..).zip(notes.iter()).skip(first as usize).take(max).map(zone).collect())
    }

    async fn change_zone(&self, zone: Option<Lba>, action: ZoneAction) -> Result<(), Error> {
        if let Some(zone) = zone {
            return self.change_one(self.0.begins(zone)?, action, false).await;
        }
        for zone in 0..self.0.geometry.chunks_total() {
            self.change_one(zone, action, true).await?;
        }
        Ok(())
    }

    async fn append(&self, zone: Lba, data: View, _durability: Durability) -> Result<Lba, Error> {
        let zone = self.0.begins(zone)?;
        check_length(&self.0.info, self.0.start(zone), data.len(), self.0.zoned.append_blocks_max)?;
        let lock = self.0.lock_zone(zone).await;
        let at = self.0.note(zone).written;
        self.carry_out(lock, async move |shared: &Shared| shared.program(zone, at, data).await).await?;
        Ok(Lba(self.0.start(zone).0 + at))
    }
}
