//! [`Lines`]: the chunks of the log in lines, and how many sectors of each are valid.
//!
//! Invariants:
//! - A line is one chunk of every parallel unit, less those that are bad or set apart for roots.
//! - Valid is a sector that the map or the directory names, or a page of the map that the last root names. A line with such a
//!   sector is not reset, nor one that is pinned, written, or read.

use crate::address::{Chunk, Sector};
use crate::device::{ChunkReport, ChunkState};
use crate::geometry::Geometry;

use super::buffer::Stream;
use super::tag::Codec;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineState {
    Free,
    Open(Stream),
    Closed,
    /// Being emptied or reset.
    Emptying,
}

/// A chunk of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub chunk: Chunk,
    /// Sectors that were handed over to be written.
    pub written: u32,
    /// A program has failed in it: it takes no more until it is empty, and is bad then, if the device can't use it again.
    pub has_failed: bool,
    pub wear: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Line {
    pub state: LineState,
    pub slots: Vec<Slot>,
    /// The slot whose turn is next.
    cursor: usize,
    /// Units that it has got in this turn.
    in_turn: u32,
    pub programs: u32,
    pub readers: u32,
    /// It is not reset before a root up to this sequence.
    pub pinned: u64,
    /// The last sequence in it.
    pub last: u64,
    pub valid: u32,
}

impl Line {
    pub fn wear(&self) -> u32 {
        self.slots.iter().map(|slot| slot.wear).max().unwrap_or(0)
    }

    pub fn has_failed(&self) -> bool {
        self.slots.iter().any(|slot| slot.has_failed)
    }
}

#[derive(Debug)]
pub(super) struct Lines {
    codec: Codec,
    pub all: Vec<Line>,
    /// Sectors that free lines hold.
    free: u64,
    /// Valid sectors of each unit of the device.
    valid: Vec<u16>,
}

/// Where a unit goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub line: u32,
    pub slot: usize,
    pub first: Sector,
}

impl Lines {
    /// The lines of a device with these chunks, less the ones in `apart`.
    pub fn new(codec: Codec, reports: &[ChunkReport], apart: &[Chunk]) -> Lines {
        let geometry = codec.geometry;
        let line = |number: u32| {
            let chunks = (0..geometry.units()).map(|unit| geometry.chunk(unit, number));
            let usable =
                chunks.filter(|chunk| !apart.contains(chunk) && reports[chunk.0 as usize].state != ChunkState::Offline);
            let slots = usable.map(|chunk| {
                let report = reports[chunk.0 as usize];
                let has_failed = report.state == ChunkState::ReadOnly;
                Slot { chunk, written: report.write_pointer, has_failed, wear: report.wear }
            });
            let slots = slots.collect();
            let state = LineState::Closed;
            Line { state, slots, cursor: 0, in_turn: 0, programs: 0, readers: 0, pinned: 0, last: 0, valid: 0 }
        };
        let units = geometry.sectors_total() / codec.unit;
        Lines { all: (0..geometry.chunks).map(line).collect(), valid: vec![0; units as usize], free: 0, codec }
    }

    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    fn geometry(&self) -> &Geometry {
        &self.codec.geometry
    }

    pub fn line_of(&self, sector: Sector) -> u32 {
        self.geometry().number_of(self.geometry().locate(sector).0)
    }

    pub fn get(&self, line: u32) -> &Line {
        &self.all[line as usize]
    }

    pub fn get_mut(&mut self, line: u32) -> &mut Line {
        &mut self.all[line as usize]
    }

    pub fn add_valid(&mut self, sector: Sector) {
        self.valid[self.codec.unit_index(sector)] += 1;
        let line = self.line_of(sector);
        self.get_mut(line).valid += 1;
    }

    pub fn remove_valid(&mut self, sector: Sector) {
        self.valid[self.codec.unit_index(sector)] -= 1;
        let line = self.line_of(sector);
        self.get_mut(line).valid -= 1;
    }

    /// Valid sectors of the unit that a sector is in.
    pub fn valid_in_unit(&self, sector: Sector) -> u32 {
        u32::from(self.valid[self.codec.unit_index(sector)])
    }

    pub fn valid_counts(&self) -> &[u16] {
        &self.valid
    }

    /// Payload of a line whose chunks are all there.
    pub fn payload_max(&self) -> u64 {
        u64::from(self.geometry().units()) * self.payload_of_chunk()
    }

    fn payload_of_chunk(&self) -> u64 {
        u64::from(self.codec.units_per_chunk() * self.codec.payload())
    }

    /// Payload of all lines.
    pub fn payload(&self) -> u64 {
        let good = self.all.iter().map(|line| line.slots.iter().filter(|slot| !slot.has_failed).count() as u64);
        good.sum::<u64>() * self.payload_of_chunk()
    }

    pub fn payload_of(&self, line: u32) -> u64 {
        self.get(line).slots.len() as u64 * self.payload_of_chunk()
    }

    /// Lines that are free, in whole lines' worth of sectors: of lines that lack chunks it takes more.
    pub fn free(&self) -> usize {
        (self.free / self.payload_max()) as usize
    }

    /// Sectors that free lines hold beyond so many whole lines.
    pub fn free_beyond(&self, lines: usize) -> u64 {
        self.free.saturating_sub(lines as u64 * self.payload_max())
    }

    /// Lines that are free, whatever each of them holds.
    pub fn free_lines(&self) -> usize {
        self.usable().filter(|line| line.state == LineState::Free).count()
    }

    /// Lines with a chunk at least.
    pub fn usable(&self) -> impl Iterator<Item = &Line> {
        self.all.iter().filter(|line| !line.slots.is_empty())
    }

    /// A line is free; one without chunks is never written.
    pub fn set_free(&mut self, line: u32) {
        let found = self.get_mut(line);
        (found.state, found.cursor, found.in_turn) = (LineState::Free, 0, 0);
        (found.pinned, found.last) = (0, 0);
        self.free += self.payload_of(line);
    }

    /// A free line of so many sectors at most: the least worn one, but for what is moved the most worn one, since that stays the
    /// longest.
    pub fn take_free(&mut self, stream: Stream, most: u64) -> Option<u32> {
        let free =
            self.all.iter().enumerate().filter(|(_, line)| line.state == LineState::Free && !line.slots.is_empty());
        let fitting = free.filter(|(number, _)| self.payload_of(*number as u32) <= most);
        let wear = fitting.map(|(number, line)| (line.wear(), number));
        let (_, number) = if stream == Stream::Moved { wear.max() } else { wear.min() }?;
        self.all[number].state = LineState::Open(stream);
        self.free -= self.payload_of(number as u32);
        Some(number as u32)
    }

    /// Whether a line takes one more unit, now or when its parallel units are done with what they do.
    pub fn has_room(&self, line: u32) -> bool {
        self.get(line).slots.iter().any(|slot| self.takes(slot))
    }

    fn takes(&self, slot: &Slot) -> bool {
        !slot.has_failed && slot.written + self.codec.unit <= self.geometry().sectors
    }

    /// The next place in a line whose parallel unit is idle. Where a turn is several units long, there is none before the parallel
    /// unit is idle whose turn it is.
    pub fn next_target(&mut self, line: u32, busy: &[bool], turn: u32) -> Option<Target> {
        let geometry = *self.geometry();
        let (slots, cursor) = (&self.get(line).slots, self.get(line).cursor);
        let mut turns = (cursor..slots.len()).chain(0..cursor.min(slots.len()));
        let idle = |slot: &Slot| !busy[geometry.unit_of(slot.chunk) as usize];
        let chosen = turns.find(|&index| self.takes(&slots[index]) && (turn > 1 || idle(&slots[index])))?;
        if !idle(&slots[chosen]) {
            return None;
        }
        let unit = self.codec.unit;
        let found = self.get_mut(line);
        found.in_turn = if found.cursor == chosen { found.in_turn + 1 } else { 1 };
        found.cursor = chosen;
        if found.in_turn >= turn {
            (found.cursor, found.in_turn) = (chosen + 1, 0);
        }
        found.programs += 1;
        let slot = &mut found.slots[chosen];
        let first = geometry.sector(slot.chunk, slot.written);
        slot.written += unit;
        Some(Target { line, slot: chosen, first })
    }

    /// Sectors that a line has room for when it was emptied, beyond those that are valid in it.
    pub fn room_in(&self, line: u32) -> u64 {
        let found = self.get(line);
        let good = found.slots.iter().filter(|slot| !slot.has_failed).count() as u64;
        (good * self.payload_of_chunk()).saturating_sub(found.valid.into())
    }

    /// A chunk takes no more until it is empty.
    pub fn set_failed(&mut self, chunk: Chunk) {
        let line = self.geometry().number_of(chunk);
        let slots = &mut self.get_mut(line).slots;
        slots.iter_mut().filter(|slot| slot.chunk == chunk).for_each(|slot| slot.has_failed = true);
    }

    /// Units that become free when a line is emptied, beyond those that its content takes elsewhere.
    pub fn gain(&self, line: u32) -> u64 {
        self.room_in(line) / u64::from(self.codec.payload())
    }

    /// Pins a line until there is a root up to `sequence`.
    pub fn pin(&mut self, line: u32, sequence: u64) {
        let line = self.get_mut(line);
        line.pinned = line.pinned.max(sequence);
    }

    /// There is a root up to `sequence`.
    pub fn unpin(&mut self, sequence: u64) {
        for line in self.all.iter_mut().filter(|line| line.pinned <= sequence) {
            line.pinned = 0;
        }
    }
}
