//! Copy on write: an extent that several namespaces share is copied when one of them changes a part of it.
//!
//! The copy, with the change laid over it, is written to a free extent and is stable before the one record that puts it in the
//! old one's place. Before that record the namespace has the old extent, after it the new one; the extent in between belongs
//! to nobody, so a crash leaks nothing.
//!
//! Every unit that is copied is verified. One that does not match its checksum is uncorrectable in the copy: copying must not
//! turn damage into data.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{Buf, View};

use super::bytes::{set_value, value};
use super::commit::Admission;
use super::core::{Inner, journal_need};
use super::map::NONE;
use super::pages::{CHECKSUM_MIN, UNCORRECTABLE, unit_hash, unit_value};
use super::record::Record;
use super::reserve::Reservation;
use super::span::{Piece, Span};
use crate::Error;
use crate::limits::TRANSFER_BYTES_MAX;

/// What a copy under way holds, until the kernel is done with its last write: an extent that was given back before could be
/// taken by somebody else, and be overwritten by the copy that nobody wants any more.
struct Copying {
    reserved: Reservation,
    _admission: Admission,
    /// Units of a block.
    block_units: u32,
}

impl Copying {
    fn failed(&self, error: &io::Error) -> Error {
        if error.kind() == io::ErrorKind::StorageFull {
            return Error::OutOfSpace; // the copy is nobody's yet: nothing is lost
        }
        let inner = self.reserved.inner();
        inner.with(|core| core.fail(format!("copy on {}: {error}", inner.path.display())))
    }
}

/// What is laid over a piece of an extent.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// This content.
    Data(View),
    /// Units in this state: unwritten or uncorrectable.
    State(u64),
}

impl Inner {
    /// Replaces the shared extent behind `piece` by a copy with `change` in it. The caller holds the lock of the whole extent
    /// and runs in a task that is not dropped. What is `reserved` for the piece becomes the copy.
    pub(super) async fn copy_extent(
        self: &Arc<Self>,
        namespace: u32,
        piece: &Piece,
        change: &Change,
        mut reserved: Reservation,
    ) -> Result<(), Error> {
        let units = self.layout.extent_units();
        let admission = self.admit(journal_need(&[units as usize * 8 + 32])).await?;
        let whole = u64::from(piece.index) * u64::from(units);
        self.reserve_copies(&mut reserved, &[*piece]).await?;
        let target = reserved.for_index(piece.index);
        let block_units = self.registry.get(namespace).map_or(1, |shared| shared.block_size / self.layout.unit);
        let mut copying = Copying { reserved, _admission: admission, block_units };
        let mut values = Vec::with_capacity(units as usize * 8);
        let chunk = (TRANSFER_BYTES_MAX as u32 / self.layout.unit).min(units);
        for at in (0..units).step_by(chunk as usize) {
            let mut span = Span::new(&self.layout, whole + u64::from(at), chunk);
            let mut part = Buf::with_len(chunk as usize * 8);
            self.resolve(namespace, &mut span, &mut part).await?;
            copying = self.copy_chunk(copying, (&span, target), &mut part, (piece, change)).await?;
            values.extend_from_slice(&part);
        }
        let sequence = loop {
            let step = self.with(|core| match core.missing(target, 0, units) {
                Some(page) => Err(page),
                None => {
                    let record = Record::Move { namespace, index: piece.index, extent: target, values: &values };
                    let sequence = core.log(&record);
                    copying.reserved.mapped(core, piece.index);
                    Ok(sequence)
                }
            });
            match step {
                Ok(sequence) => break sequence,
                Err(page) => self.load_page(page).await?,
            }
        };
        self.commit(sequence).await
    }

    /// Takes an extent for the copy of each of these pieces, where it has none yet.
    pub(super) async fn reserve_copies(
        self: &Arc<Self>,
        reserved: &mut Reservation,
        pieces: &[Piece],
    ) -> Result<(), Error> {
        for piece in pieces {
            while reserved.for_index(piece.index) == NONE && !self.with(|core| reserved.take(core, piece.index))? {
                self.wait_for_free().await?;
            }
        }
        Ok(())
    }

    /// Copies a part of an extent; `values` are its checksums, before and then after.
    async fn copy_chunk(
        self: &Arc<Self>,
        copying: Copying,
        (span, target): (&Span, u32),
        values: &mut [u8],
        (changed, change): (&Piece, &Change),
    ) -> Result<Copying, Error> {
        let Some(source) = span.pieces().next() else { return Ok(copying) };
        let unit_bytes = self.layout.unit as usize;
        let laid = |step: u32| (source.first + step).checked_sub(changed.first).filter(|&over| over < changed.units);
        let needs = (0..span.units).any(|step| laid(step).is_none() && value(values, step as usize) >= CHECKSUM_MIN);
        let mut content = Buf::zeroed(span.units as usize * unit_bytes);
        if needs {
            let at = self.layout.unit_at(source.unit(self.layout.extent_units()));
            let (result, read) = self.file.read_at(at, content).await;
            result.map_err(|error| self.read_fault(&format!("extent {}: {error}", source.extent)))?;
            content = read;
        }
        let target_unit = u64::from(target) * u64::from(self.layout.extent_units()) + u64::from(source.first);
        let (mut written, mut counted) = (false, None);
        for step in 0..span.units {
            let unit = &mut content[step as usize * unit_bytes..][..unit_bytes];
            let old = value(values, step as usize);
            let state = match (laid(step), change) {
                (Some(over), Change::Data(data)) => {
                    unit.copy_from_slice(&data[over as usize * unit_bytes..][..unit_bytes]);
                    None
                }
                (Some(_), Change::State(state)) => Some(*state),
                (None, _) if old < CHECKSUM_MIN => Some(old),
                (None, _) if self.matches(&source, step, old, unit) => None,
                (None, _) => {
                    let block = Some((source.first + step) / copying.block_units);
                    let is_new = std::mem::replace(&mut counted, block) != block;
                    self.mismatches.fetch_add(is_new.into(), Ordering::Relaxed);
                    Some(UNCORRECTABLE)
                }
            };
            written |= state.is_none();
            let new = state.unwrap_or_else(|| unit_value(self.seed, target_unit + u64::from(step), unit_hash(unit)));
            if state.is_some() {
                unit.fill(0);
            }
            set_value(values, step as usize, new);
        }
        if !written {
            return Ok(copying);
        }
        let late = |copying: Copying, result: io::Result<()>| {
            if let Err(error) = result {
                copying.failed(&error);
            }
        };
        let at = self.layout.unit_at(target_unit);
        let (result, copying) = self.file.write_at_holding(at, content.freeze(), true, copying, late).await;
        match result {
            Ok(()) => Ok(copying),
            Err(error) => Err(copying.failed(&error)),
        }
    }
}
