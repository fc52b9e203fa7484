//! The scan of opening: what is in the log behind the root, and what was there.
//!
//! Invariants:
//! - A sector that can't be read is lost only where its program had ended before a later unit was made: that unit says so. Of
//!   what was under way when power was lost nobody knows whether it was ever acknowledged, and the version before it counts.
//! - What is lost is as new as it was: older versions do not come back, and newer ones are not touched by it.
//! - What is lost and can't be named is counted: never less than there is of it, but for what was programmed last of all. A unit of
//!   which no tag can be read is one of these where sequences are missing between the units before and behind it in its chunk,
//!   of which a later unit says that their programs had ended. (Another unit may have had them, that was reset since.)
//!   A unit that reads as zeroes was never written.

use std::collections::{BTreeMap, BTreeSet};

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
use crate::geometry::{Geometry, SECTOR_BYTES};

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

/// Units of a chunk, one behind the other, of which no tag can be read.
struct Unread {
    units: u64,
    /// The last sequence before them, and the first one behind them.
    after: u64,
    before: u64,
}

/// What was found behind the root.
#[derive(Default)]
pub(super) struct Behind {
    /// In the order of sequences.
    pub entries: Vec<Entry>,
    /// Sectors that are lost, and which is not known.
    pub unknown: u64,
    /// Programs up to this sequence had ended.
    ended: u64,
    /// Sequences of sectors that can't be read, and of which it is not known what they were.
    unnamed: Vec<u64>,
    unread: Vec<Unread>,
    /// The first sequences of the units that are there.
    units: BTreeSet<u64>,
    /// Chunks in which something is as old as the root: they were not reset since.
    old: BTreeSet<Chunk>,
    /// What the tags say that are newer.
    tags: BTreeMap<Sector, Logical>,
}

/// What a unit holds.
struct Found {
    /// Sectors whose tags match.
    tagged: Vec<(Sector, Tag, View)>,
    /// What they say of the others.
    notes: Notes,
    /// It reads as zeroes, which no unit with tags does: it was never written. Zones that were finished have such units.
    is_blank: bool,
}

impl Behind {
    fn add(&mut self, other: Behind) {
        let Behind { entries, unknown, ended, unnamed, unread, units, old, tags } = other;
        self.entries.extend(entries);
        self.unknown += unknown;
        self.ended = self.ended.max(ended);
        self.unnamed.extend(unnamed);
        self.unread.extend(unread);
        self.units.extend(units);
        self.old.extend(old);
        self.tags.extend(tags);
    }

    /// Whether a sector may hold something else than the logical sector that was there when the root was written.
    pub fn may_be_other(&self, geometry: Geometry, sector: Sector, logical: Logical) -> bool {
        !self.old.contains(&geometry.locate(sector).0) && self.tags.get(&sector) != Some(&logical)
    }

    /// Of units that can't be read, how many had ended: as many as sequences are missing, of which is told that they had.
    fn lost_units(&self, unread: &Unread, payload: u64) -> u64 {
        let end = unread.before.min(self.ended + 1);
        let (mut next, mut missing) = (unread.after + 1, 0);
        for &first in self.units.range(next..end.max(next)) {
            missing += first.saturating_sub(next) / payload;
            next = first + payload;
        }
        missing += end.saturating_sub(next) / payload;
        unread.units.min(missing)
    }

    /// What was under way when power was lost is no loss. The rest is told, and put into order.
    fn settle(mut self, payload: u64) -> Behind {
        let ended = self.ended;
        let unnamed = self.unnamed.iter().filter(|&&sequence| sequence <= ended).count() as u64;
        let units: u64 = self.unread.iter().map(|unread| self.lost_units(unread, payload)).sum();
        self.unknown = unnamed + units * payload;
        if self.unknown > 0 {
            tracing::error!(
                sectors = self.unknown,
                "sectors written last can't be read, and which is not known: older content may be read"
            );
        }
        self.entries.retain(|entry| !entry.is_lost || entry.sequence <= ended);
        self.entries.sort_by_key(|entry| (entry.sequence, !entry.is_doubtful));
        // What is newer answers for what is lost, as where a program has failed and its sectors were written elsewhere.
        let newest: BTreeMap<Logical, bool> = self.entries.iter().map(|entry| (entry.logical, entry.is_lost)).collect();
        let lost = newest.values().filter(|&&is_lost| is_lost).count();
        if lost > 0 {
            tracing::error!(sectors = lost, "sectors written last can't be read, and are lost");
        }
        self
    }
}

impl Core {
    /// What is in the log behind the root.
    pub async fn scan(&self, root: &Root, reports: &[ChunkReport]) -> Result<Behind, ManagerError> {
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
            all.add(found?);
        }
        Ok(all.settle(self.codec.payload().into()))
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
        let mut unread = Unread { units: 0, after: up_to, before: u64::MAX };
        for offset in (0..end).step_by(unit as usize) {
            let start = self.codec.geometry.sector(chunk, offset);
            let Found { tagged, notes, is_blank } = self.scan_unit(start).await?;
            // The program that failed: what it brought was written elsewhere, or never acknowledged.
            let has_failed = is_doubtful && offset + unit == end;
            match notes.first {
                None => unread.units += u64::from(!has_failed && !is_blank),
                Some(first) if first <= up_to => {
                    behind.old.insert(chunk);
                    if offset == 0 && is_behind {
                        return Ok(()); // it was not begun anew since
                    }
                    unread.units = 0;
                }
                Some(first) => {
                    behind.units.insert(first);
                    let after = first + u64::from(self.codec.payload()) - 1;
                    let before = std::mem::replace(&mut unread, Unread { units: 0, after, before: u64::MAX });
                    behind.unread.extend((before.units > 0).then_some(Unread { before: first, ..before }));
                    behind.ended = behind.ended.max(notes.ended);
                    self.add_unit(tagged, is_doubtful, behind);
                    if !has_failed {
                        self.add_missing(start, notes, is_doubtful, behind);
                    }
                }
            }
        }
        behind.unread.extend((unread.units > 0).then_some(unread));
        Ok(())
    }

    /// What a unit behind the root holds.
    fn add_unit(&self, found: Vec<(Sector, Tag, View)>, is_doubtful: bool, behind: &mut Behind) {
        for (sector, Tag { logical, sequence }, bytes) in found {
            behind.tags.insert(sector, logical);
            let record = match logical {
                Logical::Padding => continue,
                Logical::Record => decode_record(&bytes, self.state.borrow().map.capacity()),
                Logical::Data(_) | Logical::Page(_) | Logical::Root => Vec::new(),
            };
            behind.entries.push(Entry { sequence, is_doubtful, is_lost: false, logical, sector, record });
        }
    }

    /// What a unit behind the root held that can't be read any more.
    fn add_missing(&self, first: Sector, notes: Notes, is_doubtful: bool, behind: &mut Behind) {
        for (index, sequence, logical) in notes.missing {
            let sector = self.codec.payload_sector(first, index);
            match logical {
                Some(logical @ Logical::Data(_)) => {
                    let record = Vec::new();
                    behind.entries.push(Entry { sequence, is_doubtful, is_lost: true, logical, sector, record });
                }
                // No page behind the root is named by it, and padding is nothing.
                Some(Logical::Page(_) | Logical::Padding | Logical::Root) => {}
                Some(Logical::Record) | None => behind.unnamed.push(sequence),
            }
        }
    }

    async fn scan_unit(&self, first: Sector) -> Result<Found, ManagerError> {
        let (data, oob, is_whole) = match self.read_flash(first, self.codec.unit).await {
            Err(FlashError::ReadFailed(_)) => {
                let (data, oob) = self.read_by_sector(first).await?;
                (data, oob, false)
            }
            read => {
                let (data, oob) = read?;
                (data, oob, true)
            }
        };
        let notes = self.codec.notes(&self.codec.tags(&data, &oob), &data, &oob);
        let is_blank = is_whole && notes.first.is_none() && data.iter().chain(&oob[..]).all(|&byte| byte == 0);
        Ok(Found { tagged: self.codec.tagged(first, data, &oob).collect(), notes, is_blank })
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
