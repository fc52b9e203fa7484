//! [`DriveNamespace`]: a thin namespace of a drive.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{Buf, View, task};

use super::core::{Inner, journal_need};
use super::map::NONE;
use super::overlay::Change;
use super::pages::{UNCORRECTABLE, UNWRITTEN};
use super::record::Record;
use super::registry::Shared;
use super::reserve::Reservation;
use super::span::{Piece, Span};
use super::write::{Begun, write_need};
use crate::limits::{COMPARE_AND_WRITE_BYTES_MAX, TRANSFER_BYTES_MAX, check_halves, check_length, check_range};
use crate::range_lock::{Mode, RangeGuard};
use crate::{
    ATTRIBUTE_BYTES_MAX, ATTRIBUTE_KEY_BYTES_MAX, ATTRIBUTES_MAX, Durability, Error, Lba, Namespace, NamespaceInfo,
    Writability,
};

/// Extents unmapped by one record, so that no step in memory is long. Guessed.
const UNMAP_EXTENTS_MAX: u32 = 4096;

/// A namespace carved from a [`Drive`](super::Drive); a clone is the same namespace, also on another thread.
#[derive(Clone)]
pub struct DriveNamespace {
    pub(super) inner: Arc<Inner>,
    pub(super) shared: Arc<Shared>,
}

impl fmt::Debug for DriveNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriveNamespace").field("path", &self.inner.path).field("name", &self.shared.name).finish()
    }
}

impl DriveNamespace {
    /// Its number on the drive.
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// Its name on the drive.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Bytes of the drive that stand behind it, those it shares with snapshots too.
    pub fn allocated_bytes(&self) -> u64 {
        let extents = self.inner.with(|core| core.state.space(self.shared.number).map_or(0, |space| space.map.len()));
        u64::from(extents) * u64::from(self.inner.layout.extent_bytes)
    }

    /// The failure after which the drive takes no more writes, if there was one.
    pub fn fault(&self) -> Option<String> {
        self.inner.with(|core| core.failed.clone())
    }

    fn units_per_block(&self) -> u64 {
        u64::from(self.shared.block_size / self.inner.layout.unit)
    }

    fn first_unit(&self, lba: Lba) -> u64 {
        lba.0 * self.units_per_block()
    }

    fn writable(&self) -> Result<(), Error> {
        if self.shared.read_only {
            return Err(Error::ReadOnly("it is a snapshot; make a clone of it to write"));
        }
        self.inner.with(|core| core.writable())
    }

    /// Whether some extent of the range is shared with a snapshot or a clone.
    fn shares(&self, lba: Lba, blocks: u64) -> bool {
        let extent_units = u64::from(self.inner.layout.extent_units());
        let first = self.first_unit(lba);
        let last = first + blocks * self.units_per_block() - 1;
        self.inner.with(|core| {
            let Ok(space) = core.state.space(self.shared.number) else { return false };
            space
                .map
                .range((first / extent_units) as u32, (last / extent_units) as u32)
                .any(|(_, extent)| core.state.references[extent as usize] > 1)
        })
    }

    /// The lock for a command that writes. Where an extent is shared it covers whole extents: they are about to be copied, with
    /// blocks that are not the command's. (Only a snapshot makes an extent shared, and it takes the lock of everything.)
    async fn lock_for_writing(&self, lba: Lba, blocks: u64) -> Result<RangeGuard, Error> {
        self.writable()?;
        let mut whole = self.shares(lba, blocks);
        loop {
            let guard = if whole {
                let extent_blocks = u64::from(self.inner.layout.extent_bytes / self.shared.block_size);
                let first = lba.0 / extent_blocks * extent_blocks;
                let end = (lba.0 + blocks).div_ceil(extent_blocks) * extent_blocks;
                self.shared.locks.lock(first, end - first, Mode::Exclusive).await
            } else {
                self.shared.locks.lock(lba.0, blocks, Mode::Exclusive).await
            };
            self.writable()?;
            if whole || !self.shares(lba, blocks) {
                return Ok(guard);
            }
            whole = true;
        }
    }

    async fn holds(&self, lba: Lba, expected: &[u8]) -> Result<(), Error> {
        let buf = Buf::with_len(expected.len());
        let (result, found) = self.inner.fetch(&self.shared, self.first_unit(lba), buf).await;
        result?;
        if *found == *expected { Ok(()) } else { Err(Error::CompareFailure) }
    }

    /// Writes under the lock.
    async fn store(&self, guard: RangeGuard, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let inner = &self.inner;
        let units = (data.len() / inner.layout.unit as usize) as u32;
        let mut values = inner.hashes(&data);
        let mut span = Span::new(&inner.layout, self.first_unit(lba), units);
        let admission = inner.admit(write_need(units)).await?;
        match inner.begin_write(self.shared.number, &mut span, &mut values).await? {
            Begun::Run { unit, intent, fresh } => {
                let held = (Some(guard), admission);
                inner.write_run(held, (unit, intent, fresh), values, data, durability).await.map(drop)
            }
            Begun::Pieces => {
                drop(admission);
                let this = self.clone();
                task::to_its_end(async move {
                    let result = this.store_pieces(&span, &data, durability).await;
                    drop(guard);
                    result
                })
                .await
                .unwrap_or(Err(Error::Aborted))
            }
        }
    }

    /// Writes extent by extent, in a task that nobody drops. The caller keeps the lock.
    async fn store_pieces(&self, span: &Span, data: &View, durability: Durability) -> Result<(), Error> {
        let unit_bytes = self.inner.layout.unit as usize;
        // Room for all copies before the first change: a full drive refuses the write as a whole.
        let mut reserved = Reservation::new(&self.inner);
        let shared: Vec<Piece> = span.pieces().filter(|piece| self.is_shared(piece)).collect();
        self.inner.reserve_copies(&mut reserved, &shared).await?;
        for piece in span.pieces() {
            let at = piece.at as usize * unit_bytes;
            let part = data.slice(at..at + piece.units as usize * unit_bytes);
            if self.is_shared(&piece) {
                let room = reserved.split(piece.index);
                self.inner.copy_extent(self.shared.number, &piece, &Change::Data(part), room).await?;
                continue;
            }
            let mut values = self.inner.hashes(&part);
            let mut part_span = Span::new(&self.inner.layout, span.first + u64::from(piece.at), piece.units);
            let admission = self.inner.admit(write_need(piece.units)).await?;
            match self.inner.begin_write(self.shared.number, &mut part_span, &mut values).await? {
                Begun::Run { unit, intent, fresh } => {
                    self.inner.write_run((None, admission), (unit, intent, fresh), values, part, durability).await?;
                }
                Begun::Pieces => return Err(Error::WriteFault("an extent became shared under its lock".into())),
            }
        }
        Ok(())
    }

    fn is_shared(&self, piece: &Piece) -> bool {
        piece.extent != NONE && self.inner.with(|core| core.state.references[piece.extent as usize] > 1)
    }

    /// Puts a range into a state, in a task that nobody drops.
    pub(super) async fn set_state(&self, lba: Lba, blocks: u64, state: u64) -> Result<(), Error> {
        check_range(&self.info(), lba, blocks)?;
        if blocks == 0 {
            return Ok(());
        }
        let guard = self.lock_for_writing(lba, blocks).await?;
        let this = self.clone();
        let (first, units) = (self.first_unit(lba), blocks * self.units_per_block());
        task::to_its_end(async move {
            let result = this.set_state_locked(first, units, state).await;
            drop(guard);
            result
        })
        .await
        .unwrap_or(Err(Error::Aborted))
    }

    async fn set_state_locked(&self, first: u64, units: u64, state: u64) -> Result<(), Error> {
        let extent_units = u64::from(self.inner.layout.extent_units());
        let (mut at, end) = (first, first + units);
        while at < end {
            let aligned = state == UNWRITTEN && at.is_multiple_of(extent_units);
            let whole = if aligned { (end - at) / extent_units } else { 0 };
            if whole > 0 {
                let count = whole.min(UNMAP_EXTENTS_MAX.into()) as u32;
                self.unmap((at / extent_units) as u32, count, end).await?;
                at += u64::from(count) * extent_units;
                continue;
            }
            if aligned && self.unmap((at / extent_units) as u32, 1, end).await? {
                return Ok(()); // the namespace ends within its last extent
            }
            let len = (extent_units - at % extent_units).min(end - at) as u32;
            self.set_piece_state(Span::new(&self.inner.layout, at, len), state).await?;
            at += u64::from(len);
        }
        Ok(())
    }

    /// Takes out extents that the range up to unit `end` covers, or (false) does nothing: the last of them is not covered. One
    /// that the namespace ends in is covered up to there; in the step that looks it is also taken out, so nobody has written
    /// behind a growth meanwhile.
    async fn unmap(&self, index: u32, count: u32, end: u64) -> Result<bool, Error> {
        let (namespace, layout) = (self.shared.number, &self.inner.layout);
        let _admission = self.inner.admit(journal_need(&[32])).await?;
        let sequence = self.inner.with(|core| {
            let Ok(space) = core.state.space(namespace) else { return Ok(None) };
            let last = (u64::from(index) + u64::from(count)) * u64::from(layout.extent_units());
            if end < last.min(space.bytes / u64::from(layout.unit)) {
                return Err(());
            }
            let any = space.map.range(index, index + count - 1).next().is_some();
            Ok(any.then(|| core.log(&Record::Unmap { namespace, index, count })))
        });
        match sequence {
            Ok(Some(sequence)) => self.inner.commit(sequence).await.map(|()| true),
            Ok(None) => Ok(true),
            Err(()) => Ok(false),
        }
    }

    /// Part of one extent; it is mapped only if the state has to be kept.
    async fn set_piece_state(&self, mut span: Span, state: u64) -> Result<(), Error> {
        let (namespace, inner) = (self.shared.number, &self.inner);
        inner.with(|core| {
            let space = core.state.space(namespace).map_err(|_| super::read::gone(&span))?;
            span.look_up(|index| space.map.get(index));
            Ok::<(), Error>(())
        })?;
        let Some(piece) = span.pieces().next() else { return Ok(()) };
        if piece.extent == NONE && state == UNWRITTEN {
            return Ok(());
        }
        if self.is_shared(&piece) {
            return inner.copy_extent(namespace, &piece, &Change::State(state), Reservation::new(inner)).await;
        }
        let _admission = inner.admit(journal_need(&[32, 32])).await?;
        let mut reserved = Reservation::new(inner);
        loop {
            let step = inner.with(|core| {
                if !reserved.cover(core, namespace, &mut span)? {
                    return Ok(Err(None));
                }
                let extent = if piece.extent == NONE { reserved.for_index(piece.index) } else { piece.extent };
                if let Some(page) = core.missing(extent, 0, inner.layout.extent_units()) {
                    return Ok(Err(Some(page)));
                }
                core.map_reserved(namespace, &mut span, &mut reserved);
                Ok(Ok(core.log(&Record::Fill { extent, first: piece.first, count: piece.units, value: state })))
            })?;
            match step {
                Ok(sequence) => return inner.commit(sequence).await,
                Err(Some(page)) => inner.load_page(page).await?,
                Err(None) => inner.wait_for_free().await?,
            }
        }
    }

    /// As [`Namespace::set_attribute`]; stable when this returns.
    async fn store_attribute(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        if key.is_empty() || key.len() > ATTRIBUTE_KEY_BYTES_MAX || value.len() > ATTRIBUTE_BYTES_MAX {
            return Err(Error::OutOfSpace);
        }
        let namespace = self.shared.number;
        let need = journal_need(&[32 + ATTRIBUTE_KEY_BYTES_MAX + ATTRIBUTE_BYTES_MAX]);
        let _admission = self.inner.admit(need).await?;
        let sequence = self.inner.with(|core| {
            let space = core.state.space(namespace).map_err(|_| self.deleted())?;
            let known = space.attributes.contains_key(key);
            let words: u64 = core.state.namespaces.values().map(|space| space.words_bytes()).sum();
            let room = words + (key.len() + value.len() + 8) as u64 <= self.inner.layout.words_bytes_max();
            if !value.is_empty() && (!room || !known && space.attributes.len() >= ATTRIBUTES_MAX) {
                return Err(Error::OutOfSpace);
            }
            Ok(core.log(&Record::Attribute { namespace, key, value }))
        })?;
        self.inner.commit(sequence).await
    }

    fn deleted(&self) -> Error {
        Error::OutOfRange { lba: Lba(0), blocks: 0, end: 0 }
    }
}

impl Namespace for DriveNamespace {
    crate::namespace_without!(verify, hint_lifetime, link, zones);

    fn info(&self) -> NamespaceInfo {
        let block_size = self.shared.block_size;
        let transfer_blocks_max = TRANSFER_BYTES_MAX as u32 / block_size;
        NamespaceInfo {
            block_size,
            blocks: self.shared.blocks.load(Ordering::Acquire),
            atomic_blocks: transfer_blocks_max,
            compare_and_write_blocks_max: COMPARE_AND_WRITE_BYTES_MAX as u32 / block_size,
            transfer_blocks_max,
            volatile_cache: true,
            volatile_medium: false,
            deallocated_reads_zero: true,
            thin: true,
            preferred_write_blocks: (4096 / block_size).max(1),
            preferred_deallocate_blocks: self.inner.layout.extent_bytes / block_size,
            write_uncorrectable: true,
            persists_attributes: true,
            nguid: self.shared.nguid,
        }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let info = self.info();
        let blocks = match check_length(&info, lba, buf.len(), info.transfer_blocks_max) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error), buf),
        };
        let _guard = self.shared.locks.lock(lba.0, blocks, Mode::Shared).await;
        self.inner.fetch(&self.shared, self.first_unit(lba), buf).await
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let info = self.info();
        let blocks = check_length(&info, lba, data.len(), info.transfer_blocks_max)?;
        let guard = self.lock_for_writing(lba, blocks).await?;
        self.store(guard, lba, data, durability).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.inner.flush().await
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        let info = self.info();
        let blocks = check_length(&info, lba, expected.len(), info.transfer_blocks_max)?;
        let _guard = self.shared.locks.lock(lba.0, blocks, Mode::Shared).await;
        self.holds(lba, &expected).await
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        let blocks = check_halves(&self.info(), lba, expected.len(), new.len())?;
        let guard = self.lock_for_writing(lba, blocks).await?;
        self.holds(lba, &expected).await?;
        self.store(guard, lba, new, how).await
    }

    // What a record says is stable when it is acknowledged, whatever durability was asked for.
    async fn write_zeroes(&self, lba: Lba, blocks: u64, _durability: Durability) -> Result<(), Error> {
        self.set_state(lba, blocks, UNWRITTEN).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.set_state(lba, blocks, UNWRITTEN).await
    }

    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.set_state(lba, blocks, UNCORRECTABLE).await
    }

    fn writability(&self) -> Writability {
        let of_drive = self.inner.with(|core| match &core.failed {
            Some(_) => Writability::Failed,
            None if core.read_only => Writability::ReadOnly,
            None => Writability::Writable,
        });
        // A snapshot takes no writes either way, and its reads tell of a medium that fails.
        if self.shared.read_only { Writability::ReadOnly } else { of_drive }
    }

    fn used_blocks(&self) -> u64 {
        (self.allocated_bytes() / u64::from(self.shared.block_size)).min(self.shared.blocks.load(Ordering::Acquire))
    }

    fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error> {
        self.inner.with(|core| {
            let space = core.state.space(self.shared.number).map_err(|_| self.deleted())?;
            Ok(space.attributes.get(key).cloned())
        })
    }

    async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
        self.store_attribute(key, value).await
    }
}

impl Inner {
    /// Makes every acknowledged write stable, and every other one that can be read already. What records say is stable when it
    /// is acknowledged; those whose callers went away wait for somebody to write them.
    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), Error> {
        let left = self.with(|core| match core.writable() {
            Err(_) if core.read_only => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(Some(core.journal.left)),
        })?;
        let Some(left) = left else { return Ok(()) };
        self.commit(left).await?;
        let written = self.with(|core| core.data.written(core.journal.sequence));
        let late = |inner: Arc<Inner>, result: io::Result<()>| {
            if let Err(error) = result {
                inner.flush_failed(&error);
            }
        };
        let (result, _) = self.file.sync_data_holding(Arc::clone(self), late).await;
        result.map_err(|error| self.flush_failed(&error))?;
        self.with(|core| core.data.stable = core.data.stable.max(written));
        self.still("flush")
    }

    fn flush_failed(&self, error: &io::Error) -> Error {
        self.with(|core| core.fail(format!("flush on {}: {error}", self.path.display())))
    }
}
