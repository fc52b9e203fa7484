//! [`OverZones`]: any namespace with zones as a flash device, so that the media manager works on it.
//!
//! Invariants, beside those of [`FlashDevice`]:
//! - A zone is a chunk, zones that follow one another are on different parallel units, and which zone is which chunk never changes:
//!   zones that are written anywhere are left out, and no others, since they are the same at every opening.
//! - Everything is written stable, at the zone's write pointer, one write at a time in each zone.
//! - A zone that is written to the end of its chunk is full: where it has room behind that, it is finished. So a chunk that takes
//!   no more holds none of the zones that may be active; but for one with a part of a write that has failed, until it is emptied,
//!   or until another one needs its place.
//! - What a zone is after a failure only its namespace knows, and is asked. Where that fails, too, it is no fault of a chunk.
//! - A chunk in which a write has failed takes no more writes before it was emptied and reset. It is bad for good where its zone is
//!   read only or offline, or fails too often; else it is used again.
//! - A write pointer within a write unit is told as such: such a unit was never acknowledged, and nothing is gone on with behind
//!   it. A zone that was finished has no pointer any more, so one in which a write has failed is finished only where nothing of
//!   that write is there, or where no other zone could be active otherwise: what is left of it after a crash is not known by the
//!   pointer then, but by the units behind it, none of which says that it had ended.
//! - What one zone refuses costs that zone alone, at an opening, too.

mod plan;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use device::{
    Durability, Error, Lba, Mode, Namespace, RangeGuard, RangeLocks, Writability, Zone, ZoneAction, ZoneError,
    ZoneState, ZonedFile,
};
use engine::task::LocalFuture;
use engine::{Buf, View};

use crate::address::{Chunk, Sector};
use crate::device::{ChunkReport, ChunkState, FlashDevice, FlashError, Read};
use crate::geometry::{Geometry, SECTOR_BYTES};
use plan::{Note, Plan};

pub use plan::{ZoneLayout, ZonesError};

/// Zones that are asked for at a time. Chosen: what one call of the kernel tells.
const ZONES_AT_ONCE: usize = 4096;
/// A zone in which so many writes have failed since the opening is used no more, whatever its namespace says of it. Guessed: what
/// has failed on its way does not meet the same zone again and again.
const FAILURES_MAX: u32 = 3;

/// See the module. It belongs to one thread.
pub struct OverZones<N> {
    namespace: N,
    plan: Plan,
    notes: RefCell<Vec<Note>>,
    /// By chunk.
    locks: Arc<RangeLocks>,
    is_claimed: Cell<bool>,
}

/// [`OverZones::open`] on a zoned block device, as a device of any kind.
pub fn zoned_device(
    file: ZonedFile,
    layout: ZoneLayout,
) -> LocalFuture<'static, Result<Rc<dyn FlashDevice>, ZonesError>> {
    Box::pin(async move { Ok(Rc::new(OverZones::open(file, layout).await?) as Rc<dyn FlashDevice>) })
}

impl<N: Namespace> OverZones<N> {
    /// The device that the zones of a namespace make. Zones that a crash has left active without need are reset or finished, where
    /// the namespace takes writes; nothing else is changed.
    ///
    /// # Errors
    /// A namespace whose zones make none, or that fails.
    pub async fn open(namespace: N, layout: ZoneLayout) -> Result<OverZones<N>, ZonesError> {
        let zoned = namespace.zoned().ok_or(ZonesError::NotZoned)?;
        let info = namespace.info();
        let mut zones = Vec::new();
        while (zones.len() as u64) < info.blocks.div_ceil(zoned.zone_blocks) {
            let from = Lba(zones.len() as u64 * zoned.zone_blocks);
            let more = namespace.zones(from, ZONES_AT_ONCE).await?;
            if more.is_empty() {
                break;
            }
            zones.extend(more);
        }
        let plan = Plan::new(info.block_size, zoned, &zones, layout)?;
        let nowhere = Note { state: ChunkState::Offline, written: 0, resets: 0, failures: 0, is_held: false };
        let mut notes = vec![nowhere; plan.geometry.chunks_total() as usize];
        zones.retain(|zone| zone.state != ZoneState::Conventional);
        for (index, zone) in (0u32..).zip(&zones) {
            let units = plan.geometry.units();
            notes[plan.geometry.chunk(index % units, index / units).0 as usize] = plan.note(zone);
        }
        let is_claimed = Cell::default();
        let over =
            OverZones { namespace, plan, notes: RefCell::new(notes), locks: Arc::new(RangeLocks::new(0)), is_claimed };
        over.settle(&zones).await?;
        Ok(over)
    }

    /// No zone stays active without need, and of what is read only it is known where it ends.
    async fn settle(&self, zones: &[Zone]) -> Result<(), Error> {
        let is_looked_at = self.namespace.writability() == Writability::ReadOnly;
        for (index, zone) in (0u32..).zip(zones) {
            let units = self.plan.geometry.units();
            let chunk = self.plan.geometry.chunk(index % units, index / units);
            let action = match self.note(chunk).state {
                // One that is closed would be active still.
                ChunkState::Free => Some(ZoneAction::Reset),
                ChunkState::Closed => Some(ZoneAction::Finish),
                ChunkState::Open | ChunkState::ReadOnly | ChunkState::Offline => None,
            };
            if let Some(action) = action.filter(|_| zone.state.is_active() && !is_looked_at) {
                self.settle_one(chunk, zone.start, action).await?;
            }
            if self.note(chunk).state == ChunkState::ReadOnly {
                let written = self.find_end(zone.start).await;
                self.change(chunk, |note| note.written = written);
            }
        }
        Ok(())
    }

    /// A zone that stays active all the same is one less for others, and no reason to do without them all.
    async fn settle_one(&self, chunk: Chunk, start: Lba, action: ZoneAction) -> Result<(), Error> {
        let done = self.namespace.change_zone(Some(start), action).await;
        let error = match done {
            Ok(()) => {
                self.change(chunk, |note| note.is_held = false);
                return Ok(());
            }
            Err(error) if is_of_a_zone(&error) => error,
            Err(error) => return Err(error),
        };
        let zone = self.zone(start).await?;
        tracing::warn!(%chunk, %error, state = %zone.state, "a zone that is active without need could not be changed");
        let found = self.plan.note(&zone);
        self.change(chunk, |note| *note = found);
        Ok(())
    }

    /// How far a zone is written whose write pointer is not told: up to the last unit that begins with anything but zeroes. No unit
    /// of a media manager does, where tags are in it.
    async fn find_end(&self, start: Lba) -> u32 {
        let unit = self.plan.geometry.write_unit;
        let mut end = self.plan.geometry.sectors;
        let mut buf = Buf::with_len(SECTOR_BYTES);
        while end > 0 {
            let result;
            (result, buf) = self.namespace.read(self.plan.block(start, end - unit), buf).await;
            if result.is_err() || buf.iter().any(|&byte| byte != 0) {
                return end;
            }
            end -= unit;
        }
        0
    }

    fn note(&self, chunk: Chunk) -> Note {
        self.notes.borrow()[chunk.0 as usize]
    }

    fn change(&self, chunk: Chunk, change: impl FnOnce(&mut Note)) {
        change(&mut self.notes.borrow_mut()[chunk.0 as usize]);
    }

    /// The chunk and the block where its zone begins, locked.
    async fn lock(&self, chunk: Chunk, command: &'static str) -> Result<(Lba, RangeGuard), FlashError> {
        let end = self.plan.geometry.chunks_total();
        if chunk.0 >= end {
            return Err(FlashError::OutOfRange { what: "chunks", first: chunk.0, count: 1, end });
        }
        let nowhere = FlashError::State { chunk, state: ChunkState::Offline, command };
        let start = self.plan.start(chunk).ok_or(nowhere)?;
        Ok((start, self.locks.lock(u64::from(chunk.0), 1, Mode::Exclusive).await))
    }

    /// Chunk, place and number of whole parts of `part` sectors within one chunk.
    fn check(&self, first: Sector, bytes: usize, part: u32, oob: usize) -> Result<(Chunk, u32, u32), FlashError> {
        let geometry = self.plan.geometry;
        let (end, count) = (geometry.sectors_total(), (bytes / SECTOR_BYTES) as u32);
        if first.0 >= end || count > end - first.0 {
            return Err(FlashError::OutOfRange { what: "sectors", first: first.0, count, end });
        }
        let (chunk, offset) = geometry.locate(first);
        let is_whole = bytes > 0 && bytes.is_multiple_of(part as usize * SECTOR_BYTES) && offset.is_multiple_of(part);
        if !is_whole || count > geometry.sectors - offset {
            let unit = if part == 1 { "sectors" } else { "write units" };
            return Err(FlashError::Length { first, bytes, unit });
        }
        if oob != 0 {
            return Err(FlashError::Oob { given: oob, expected: 0 });
        }
        Ok((chunk, offset, count))
    }

    /// Sectors of one transfer.
    fn piece(&self) -> usize {
        let info = self.namespace.info();
        let bytes = info.transfer_blocks_max as usize * info.block_size as usize;
        (bytes / SECTOR_BYTES).max(1) * SECTOR_BYTES
    }

    async fn load(&self, first: Sector, mut data: Buf, oob: Buf) -> Read {
        let checked = self.check(first, data.len(), 1, oob.len()).and_then(|(chunk, offset, count)| {
            let Note { state, written, .. } = self.note(chunk);
            let offline = FlashError::State { chunk, state, command: "read" };
            let start = self.plan.start(chunk).filter(|_| state != ChunkState::Offline).ok_or(offline)?;
            if offset + count > written {
                return Err(FlashError::NotWritten(Sector(first.0 + written.saturating_sub(offset))));
            }
            Ok(self.plan.block(start, offset))
        });
        let lba = match checked {
            Ok(lba) => lba,
            Err(error) => return (Err(error), data, oob),
        };
        let piece = self.piece();
        if data.len() <= piece {
            let (result, data) = self.namespace.read(lba, data).await;
            return (result.map_err(|error| read_failed(first, error)), data, oob);
        }
        let mut at = lba;
        for part in data.chunks_mut(piece) {
            let (result, found) = self.namespace.read(at, Buf::with_len(part.len())).await;
            if let Err(error) = result {
                return (Err(read_failed(first, error)), data, oob);
            }
            part.copy_from_slice(&found);
            at = self.plan.block(at, (part.len() / SECTOR_BYTES) as u32);
        }
        (Ok(()), data, oob)
    }

    async fn program(&self, first: Sector, data: View, oob: usize) -> Result<(), FlashError> {
        let geometry = self.plan.geometry;
        let (chunk, offset, count) = self.check(first, data.len(), geometry.write_unit, oob)?;
        let (start, _lock) = self.lock(chunk, "write").await?;
        let Note { state, written, .. } = self.note(chunk);
        if !matches!(state, ChunkState::Free | ChunkState::Open) {
            return Err(FlashError::State { chunk, state, command: "write" });
        }
        if offset != written {
            return Err(FlashError::OutOfOrder { chunk, expected: written, given: offset });
        }
        let piece = self.piece();
        for at in (0..data.len()).step_by(piece) {
            let part = data.slice(at..(at + piece).min(data.len()));
            let lba = self.plan.block(start, offset + (at / SECTOR_BYTES) as u32);
            if let Err(error) = self.put(lba, part).await {
                return Err(self.write_failed(chunk, start, error).await);
            }
        }
        let end = offset + count;
        if end == geometry.sectors
            && let Err(error) = self.close(start).await
        {
            return Err(self.write_failed(chunk, start, error).await);
        }
        let state = if end == geometry.sectors { ChunkState::Closed } else { ChunkState::Open };
        self.change(chunk, |note| (note.state, note.written) = (state, end));
        Ok(())
    }

    /// One write. Where no more zones may be active, those give up their places that take nothing more.
    async fn put(&self, lba: Lba, part: View) -> Result<(), Error> {
        let result = self.namespace.write(lba, part.clone(), Durability::Stable).await;
        match result {
            Err(Error::Zone(ZoneError::TooManyActive | ZoneError::TooManyOpen)) => {
                if self.finish_held().await {
                    self.namespace.write(lba, part, Durability::Stable).await
                } else {
                    result
                }
            }
            result => result,
        }
    }

    /// Zones with a part of a write that has failed are finished. Whether there were any. The caller may have the lock of a chunk
    /// that takes writes: whoever has that of one that takes none waits for no other.
    async fn finish_held(&self) -> bool {
        let held: Vec<Chunk> = {
            let notes = self.notes.borrow();
            (0..).map(Chunk).zip(&*notes).filter(|(_, note)| note.is_held).map(|(chunk, _)| chunk).collect()
        };
        for &chunk in &held {
            let Some(start) = self.plan.start(chunk) else { continue };
            let _lock = self.locks.lock(u64::from(chunk.0), 1, Mode::Exclusive).await;
            if !self.note(chunk).is_held {
                continue; // it was emptied meanwhile, or finished by another one
            }
            match self.namespace.change_zone(Some(start), ZoneAction::Finish).await {
                Ok(()) => self.change(chunk, |note| note.is_held = false),
                Err(error) => tracing::warn!(%chunk, %error, "a zone in which a write has failed stays active"),
            }
        }
        !held.is_empty()
    }

    /// A zone whose chunk is written to its end is active no more.
    async fn close(&self, start: Lba) -> Result<(), Error> {
        match self.zone(start).await?.state.is_active() {
            true => self.namespace.change_zone(Some(start), ZoneAction::Finish).await,
            false => Ok(()),
        }
    }

    /// What the namespace tells of the zone that begins there.
    async fn zone(&self, start: Lba) -> Result<Zone, Error> {
        let zones = self.namespace.zones(start, 1).await?;
        zones.first().copied().ok_or_else(|| Error::ReadFault(format!("no zone begins at block {start}")))
    }

    /// A write has failed: the chunk takes no more, if it is the chunk's fault. The caller has its lock.
    async fn write_failed(&self, chunk: Chunk, start: Lba, error: Error) -> FlashError {
        match error {
            Error::OutOfSpace => return FlashError::NoRoom,
            Error::Zone(ZoneError::TooManyActive | ZoneError::TooManyOpen) => {
                return FlashError::OpenLimit { chunk, open_max: self.plan.geometry.open_max };
            }
            ref error if is_of_a_zone(error) => {}
            other => return FlashError::Medium(other.to_string()),
        }
        let zone = match self.zone(start).await {
            Ok(zone) => zone,
            Err(gone) => return FlashError::Medium(format!("{error}, and then: {gone}")),
        };
        tracing::warn!(%chunk, %error, state = %zone.state, pointer = %zone.write_pointer, "a write in a zone failed");
        let mut is_held = zone.state.is_active();
        if is_held && self.plan.note(&zone).written == self.note(chunk).written {
            match self.namespace.change_zone(Some(start), ZoneAction::Finish).await {
                Ok(()) => is_held = false,
                Err(error) => tracing::debug!(%chunk, %error, "a zone in which a write has failed stays active"),
            }
        }
        self.takes_no_more(chunk, &zone, is_held)
    }

    /// A write or a finish has failed in a chunk whose zone is now like this.
    fn takes_no_more(&self, chunk: Chunk, zone: &Zone, is_held: bool) -> FlashError {
        let found = self.plan.note(zone);
        self.change(chunk, |note| {
            (note.failures, note.is_held) = (note.failures + 1, is_held);
            match found.state {
                ChunkState::Offline => note.offline(),
                // What was acknowledged is there, whatever else is.
                ChunkState::Closed | ChunkState::ReadOnly => note.state = ChunkState::ReadOnly,
                ChunkState::Free | ChunkState::Open => {
                    (note.state, note.written) = (ChunkState::ReadOnly, note.written.max(found.written));
                }
            }
        });
        FlashError::ProgramFailed(chunk)
    }

    async fn erase(&self, chunk: Chunk) -> Result<(), FlashError> {
        let (start, _lock) = self.lock(chunk, "reset").await?;
        let state = self.note(chunk).state;
        if matches!(state, ChunkState::ReadOnly | ChunkState::Offline) {
            return Err(FlashError::State { chunk, state, command: "reset" });
        }
        let Err(error) = self.namespace.change_zone(Some(start), ZoneAction::Reset).await else {
            self.change(chunk, Note::empty);
            return Ok(());
        };
        if !is_of_a_zone(&error) {
            return Err(FlashError::Medium(error.to_string()));
        }
        if let Err(gone) = self.zone(start).await {
            return Err(FlashError::Medium(format!("{error}, and then: {gone}")));
        }
        tracing::warn!(%chunk, %error, "a zone could not be reset");
        self.change(chunk, Note::offline);
        Err(FlashError::EraseFailed(chunk))
    }

    async fn finish_chunk(&self, chunk: Chunk) -> Result<(), FlashError> {
        let (start, _lock) = self.lock(chunk, "finish").await?;
        match self.note(chunk).state {
            ChunkState::Free | ChunkState::Open => {}
            ChunkState::Closed => return Ok(()),
            state @ (ChunkState::ReadOnly | ChunkState::Offline) => {
                return Err(FlashError::State { chunk, state, command: "finish" });
            }
        }
        let Err(error) = self.namespace.change_zone(Some(start), ZoneAction::Finish).await else {
            self.change(chunk, |note| note.state = ChunkState::Closed);
            return Ok(());
        };
        if !is_of_a_zone(&error) {
            return Err(FlashError::Medium(error.to_string()));
        }
        let zone = match self.zone(start).await {
            Ok(zone) => zone,
            Err(gone) => return Err(FlashError::Medium(format!("{error}, and then: {gone}"))),
        };
        tracing::warn!(%chunk, %error, state = %zone.state, "a zone could not be finished");
        Err(self.takes_no_more(chunk, &zone, zone.state.is_active()))
    }

    /// Nothing in the chunk is of use any more. A zone that is read only is given up by its namespace, where that can do it, and
    /// one that its namespace finds nothing wrong with is made empty: so it is not active, nothing is read there later, and it can
    /// be used again. Whether it will be.
    async fn clear(&self, chunk: Chunk, is_wanted: bool) -> Result<bool, FlashError> {
        let (start, _lock) = self.lock(chunk, "give up").await?;
        let zone = self.zone(start).await.map_err(|error| FlashError::Medium(error.to_string()))?;
        let action = match zone.state {
            ZoneState::ReadOnly => Some(ZoneAction::Offline),
            ZoneState::Empty | ZoneState::Offline | ZoneState::Conventional => None,
            ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen | ZoneState::Closed | ZoneState::Full => {
                Some(ZoneAction::Reset)
            }
        };
        let mut is_good = action == Some(ZoneAction::Reset) || zone.state == ZoneState::Empty;
        if let Some(action) = action
            && let Err(error) = self.namespace.change_zone(Some(start), action).await
        {
            tracing::debug!(%chunk, %error, "a zone that is given up stays as it is");
            is_good = false;
        }
        let is_used = is_wanted && is_good && self.note(chunk).failures < FAILURES_MAX;
        match is_used {
            true => self.change(chunk, Note::empty),
            false => self.change(chunk, Note::offline),
        }
        Ok(is_used)
    }
}

/// Whether one zone may be all that an error is about: the namespace is asked what it is then.
fn is_of_a_zone(error: &Error) -> bool {
    matches!(error, Error::WriteFault(_) | Error::Zone(_))
}

fn read_failed(first: Sector, error: Error) -> FlashError {
    match error {
        Error::ReadFault(_) | Error::Zone(_) => FlashError::ReadFailed(first),
        other => FlashError::Medium(other.to_string()),
    }
}

impl<N: Namespace> FlashDevice for OverZones<N> {
    fn geometry(&self) -> Geometry {
        self.plan.geometry
    }

    fn serial(&self) -> [u8; 16] {
        self.namespace.info().nguid
    }

    fn claim(&self) -> Result<(), FlashError> {
        if self.is_claimed.replace(true) { Err(FlashError::InUse) } else { Ok(()) }
    }

    fn release(&self) {
        self.is_claimed.set(false);
    }

    fn report(&self) -> LocalFuture<'_, Result<Vec<ChunkReport>, FlashError>> {
        let told = |note: &Note| ChunkReport { state: note.state, write_pointer: note.written, wear: note.resets };
        Box::pin(async move { Ok(self.notes.borrow().iter().map(told).collect()) })
    }

    fn read(&self, first: Sector, data: Buf, oob: Buf) -> LocalFuture<'_, Read> {
        Box::pin(self.load(first, data, oob))
    }

    fn write(&self, first: Sector, data: View, oob: View) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(async move { self.program(first, data, oob.len()).await })
    }

    fn reset(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(self.erase(chunk))
    }

    fn finish(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(self.finish_chunk(chunk))
    }

    fn set_bad(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(async move { self.clear(chunk, false).await.map(drop) })
    }

    fn give_up(&self, chunk: Chunk) -> LocalFuture<'_, Result<bool, FlashError>> {
        Box::pin(self.clear(chunk, true))
    }
}
