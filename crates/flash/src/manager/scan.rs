//! The scan of opening: what is in the log behind the root, and what was there.
//!
//! Invariants:
//! - A sector that can't be read is lost only where its program had ended before a later unit was made: that unit says so. Of
//!   what was under way when power was lost nobody knows whether it was ever acknowledged, and the version before it counts.
//! - What is lost is as new as it was: older versions do not come back, and newer ones are not touched by it.

use engine::task::LocalFuture;
use engine::{Buf, View};

use super::buffer::Range;
use super::core::Core;
use super::error::ManagerError;
use super::join::join_all;
use super::root::Root;
use super::tag::{Logical, Notes, Tag};
use super::write::decode_record;
use crate::address::{Chunk, Sector};
use crate::device::{ChunkReport, ChunkState, FlashError};
use crate::geometry::SECTOR_BYTES;

/// A sector behind the root.
pub(super) struct Entry {
    pub sequence: u64,
    /// It is in a chunk in which a program has failed.
    is_doubtful: bool,
    /// It can't be read any more.
    pub is_lost: bool,
    pub logical: Logical,
    pub sector: Sector,
    pub record: Vec<Range>,
}

/// What was found behind the root.
#[derive(Default)]
struct Behind {
    entries: Vec<Entry>,
    /// Programs up to this sequence had ended.
    ended: u64,
    /// Sequences of sectors that can't be read, and of which it is not known what they were.
    unknown: Vec<u64>,
}

/// Sectors of a unit whose tags match, and what they say of the others.
type Found = (Vec<(Sector, Tag, View)>, Notes);

impl Core {
    /// What is in the log behind the root, in the order of sequences.
    pub async fn scan(&self, root: &Root, reports: &[ChunkReport]) -> Result<Vec<Entry>, ManagerError> {
        let geometry = self.codec.geometry;
        let walks = (0..geometry.units()).map(|unit| -> LocalFuture<'_, Result<Behind, ManagerError>> {
            Box::pin(async move {
                let mut behind = Behind::default();
                for number in 0..geometry.chunks {
                    let chunk = geometry.chunk(unit, number);
                    let report = reports[chunk.0 as usize];
                    let is_apart = root.apart.iter().flatten().any(|&apart| apart == chunk);
                    if report.state == ChunkState::Offline || is_apart {
                        continue;
                    }
                    let note = root.lines[number as usize];
                    let is_behind = note.open.is_none() && note.last <= root.up_to;
                    self.scan_chunk(chunk, &report, root.up_to, is_behind, &mut behind).await?;
                }
                Ok(behind)
            })
        });
        let mut all = Behind::default();
        for found in join_all(walks.collect()).await {
            let Behind { entries, ended, unknown } = found?;
            all.entries.extend(entries);
            all.unknown.extend(unknown);
            all.ended = all.ended.max(ended);
        }
        let Behind { mut entries, ended, mut unknown } = all;
        unknown.retain(|&sequence| sequence <= ended);
        if !unknown.is_empty() {
            let sectors = unknown.len();
            tracing::error!(
                sectors,
                "sectors written last can't be read, and which is not known: older content may be read"
            );
        }
        entries.retain(|entry| !entry.is_lost || entry.sequence <= ended);
        let lost = entries.iter().filter(|entry| entry.is_lost).count();
        if lost > 0 {
            tracing::error!(
                sectors = lost,
                "sectors written last can't be read: those that were not written again are lost"
            );
        }
        entries.sort_by_key(|entry| (entry.sequence, !entry.is_doubtful));
        Ok(entries)
    }

    /// `is_behind`: when the root was written the chunk held nothing that it did not know of.
    async fn scan_chunk(
        &self,
        chunk: Chunk,
        report: &ChunkReport,
        up_to: u64,
        is_behind: bool,
        behind: &mut Behind,
    ) -> Result<(), ManagerError> {
        let unit = self.codec.unit;
        let is_doubtful = report.state == ChunkState::ReadOnly;
        let end = report.write_pointer / unit * unit;
        for offset in (0..end).step_by(unit as usize) {
            let first = self.codec.geometry.sector(chunk, offset);
            let (found, notes) = self.scan_unit(first).await?;
            if offset == 0
                && is_behind
                && found.iter().any(|(_, tag, _)| tag.logical != Logical::Padding && tag.sequence <= up_to)
            {
                return Ok(()); // it was not begun anew since
            }
            for (sector, tag, bytes) in found {
                if tag.logical == Logical::Padding || tag.sequence <= up_to {
                    continue;
                }
                let is_record = tag.logical == Logical::Record;
                let record =
                    if is_record { decode_record(&bytes, self.state.borrow().map.capacity()) } else { Vec::new() };
                let (sequence, logical) = (tag.sequence, tag.logical);
                behind.entries.push(Entry { sequence, is_doubtful, is_lost: false, logical, sector, record });
            }
            behind.ended = behind.ended.max(notes.ended);
            if is_doubtful && offset + unit == end {
                continue; // the program that failed: what it brought was written elsewhere, or never acknowledged
            }
            for (index, sequence, logical) in notes.missing.into_iter().filter(|missing| missing.1 > up_to) {
                let sector = self.codec.payload_sector(first, index);
                match logical {
                    Some(logical @ Logical::Data(_)) => {
                        let record = Vec::new();
                        behind.entries.push(Entry { sequence, is_doubtful, is_lost: true, logical, sector, record });
                    }
                    // No page behind the root is named by it, and padding is nothing.
                    Some(Logical::Page(_) | Logical::Padding | Logical::Root) => {}
                    Some(Logical::Record) | None => behind.unknown.push(sequence),
                }
            }
        }
        Ok(())
    }

    async fn scan_unit(&self, first: Sector) -> Result<Found, ManagerError> {
        let (data, oob) = match self.read_flash(first, self.codec.unit).await {
            Err(FlashError::ReadFailed(_)) => self.read_by_sector(first).await?,
            read => read?,
        };
        let notes = self.codec.notes(&self.codec.tags(&data, &oob), &data, &oob);
        Ok((self.codec.tagged(first, data, &oob).collect(), notes))
    }

    /// A unit that can't be read as a whole; sectors that can't be read are zeroes, which no tag matches.
    async fn read_by_sector(&self, first: Sector) -> Result<(Buf, Buf), ManagerError> {
        let mut data = Buf::zeroed(self.codec.unit as usize * SECTOR_BYTES);
        let mut oob = Buf::zeroed(self.codec.oob_bytes(self.codec.unit));
        let side = self.codec.oob_bytes(1);
        for index in 0..self.codec.unit {
            let at = index as usize;
            match self.read_flash(Sector(first.0 + index), 1).await {
                Ok((sector, area)) => {
                    data[at * SECTOR_BYTES..(at + 1) * SECTOR_BYTES].copy_from_slice(&sector);
                    oob[at * side..(at + 1) * side].copy_from_slice(&area);
                }
                Err(FlashError::ReadFailed(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok((data, oob))
    }
}
