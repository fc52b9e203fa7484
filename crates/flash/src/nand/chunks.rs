//! The states of a model's chunks, and what each allows.
//!
//! A write moves `begun` when it is taken and `written` when it has ended, so that writes to one chunk may be handed over one
//! behind the other, as to a device with a queue. One that has failed and left nothing gives its place back, and those behind it
//! have none any more.

use crate::address::{Chunk, Sector};
use crate::device::{ChunkReport, ChunkState, FlashError};
use crate::geometry::{Geometry, SECTOR_BYTES};

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) report: ChunkReport,
    begun: u32,
}

#[derive(Debug)]
pub(super) struct Chunks {
    geometry: Geometry,
    entries: Vec<Entry>,
    open: u32,
}

pub(super) const FRESH: ChunkReport = ChunkReport { state: ChunkState::Free, write_pointer: 0, wear: 0 };

impl Chunks {
    pub(super) fn new(geometry: Geometry, reports: Vec<ChunkReport>) -> Chunks {
        let open = reports.iter().filter(|report| report.state == ChunkState::Open).count() as u32;
        let entries = reports.into_iter().map(|report| Entry { report, begun: report.write_pointer }).collect();
        Chunks { geometry, entries, open }
    }

    /// What was under way is no more.
    pub(super) fn forget_begun(&mut self) {
        for entry in &mut self.entries {
            entry.begun = entry.report.write_pointer;
            if entry.report.state == ChunkState::Open && entry.begun == 0 {
                entry.report.state = ChunkState::Free;
            }
        }
        self.open = self.entries.iter().filter(|entry| entry.report.state == ChunkState::Open).count() as u32;
    }

    pub(super) fn reports(&self) -> Vec<ChunkReport> {
        self.entries.iter().map(|entry| entry.report).collect()
    }

    pub(super) fn report(&self, chunk: Chunk) -> ChunkReport {
        self.entries[chunk.0 as usize].report
    }

    fn set_state(&mut self, chunk: Chunk, state: ChunkState) {
        let report = &mut self.entries[chunk.0 as usize].report;
        self.open -= u32::from(report.state == ChunkState::Open);
        self.open += u32::from(state == ChunkState::Open);
        report.state = state;
    }

    pub(super) fn check_chunk(&self, chunk: Chunk) -> Result<ChunkReport, FlashError> {
        let end = self.geometry.chunks_total();
        let beyond = FlashError::OutOfRange { what: "chunks", first: chunk.0, count: 1, end };
        self.entries.get(chunk.0 as usize).map(|entry| entry.report).ok_or(beyond)
    }

    /// Whole parts of `part` sectors within one chunk.
    fn check_sectors(&self, first: Sector, bytes: usize, part: u32) -> Result<(Chunk, u32, u32), FlashError> {
        let end = self.geometry.sectors_total();
        let count = (bytes / SECTOR_BYTES) as u32;
        if first.0 >= end || count > end - first.0 {
            return Err(FlashError::OutOfRange { what: "sectors", first: first.0, count, end });
        }
        let (chunk, offset) = self.geometry.locate(first);
        let is_whole = bytes > 0 && bytes.is_multiple_of(part as usize * SECTOR_BYTES) && offset.is_multiple_of(part);
        if !is_whole || count > self.geometry.sectors - offset {
            let unit = if part == 1 { "sectors" } else { "write units" };
            return Err(FlashError::Length { first, bytes, unit });
        }
        Ok((chunk, offset, count))
    }

    pub(super) fn check_oob(&self, count: u32, given: usize) -> Result<(), FlashError> {
        let expected = (count * self.geometry.oob_bytes) as usize;
        if given == expected { Ok(()) } else { Err(FlashError::Oob { given, expected }) }
    }

    /// Chunk, place and number of the sectors of a read.
    pub(super) fn check_read(&self, first: Sector, bytes: usize) -> Result<(Chunk, u32, u32), FlashError> {
        let (chunk, offset, count) = self.check_sectors(first, bytes, 1)?;
        let report = self.report(chunk);
        if report.state == ChunkState::Offline {
            return Err(FlashError::State { chunk, state: report.state, command: "read" });
        }
        if offset + count > report.write_pointer {
            return Err(FlashError::NotWritten(Sector(first.0 + report.write_pointer.saturating_sub(offset))));
        }
        Ok((chunk, offset, count))
    }

    /// A write is taken.
    pub(super) fn begin_write(&mut self, first: Sector, bytes: usize) -> Result<(Chunk, u32, u32), FlashError> {
        let (chunk, offset, count) = self.check_sectors(first, bytes, self.geometry.write_unit)?;
        let entry = self.entries[chunk.0 as usize];
        let state = entry.report.state;
        if !matches!(state, ChunkState::Free | ChunkState::Open) {
            return Err(FlashError::State { chunk, state, command: "write" });
        }
        if offset != entry.begun {
            return Err(FlashError::OutOfOrder { chunk, expected: entry.begun, given: offset });
        }
        let open_max = self.geometry.open_max;
        if state == ChunkState::Free {
            if open_max > 0 && self.open >= open_max {
                return Err(FlashError::OpenLimit { chunk, open_max });
            }
            self.set_state(chunk, ChunkState::Open);
        }
        self.entries[chunk.0 as usize].begun += count;
        Ok((chunk, offset, count))
    }

    /// Of the write at `offset` something is in the chunk.
    pub(super) fn end_write(&mut self, chunk: Chunk, offset: u32, count: u32) {
        let entry = &mut self.entries[chunk.0 as usize];
        entry.report.write_pointer = entry.report.write_pointer.max(offset + count);
        entry.begun = entry.begun.max(entry.report.write_pointer);
        if entry.report.write_pointer == self.geometry.sectors && entry.report.state == ChunkState::Open {
            self.set_state(chunk, ChunkState::Closed);
        }
    }

    /// Whether a write that was taken has its place still.
    pub(super) fn check_taken(&self, chunk: Chunk, offset: u32, count: u32) -> Result<(), FlashError> {
        let expected = self.entries[chunk.0 as usize].begun;
        if offset + count > expected { Err(FlashError::OutOfOrder { chunk, expected, given: offset }) } else { Ok(()) }
    }

    /// Of the write at `offset` nothing is in the chunk.
    pub(super) fn drop_write(&mut self, chunk: Chunk, offset: u32) {
        let entry = &mut self.entries[chunk.0 as usize];
        entry.begun = entry.begun.min(offset).max(entry.report.write_pointer);
        if entry.begun == 0 && entry.report.state == ChunkState::Open {
            self.set_state(chunk, ChunkState::Free);
        }
    }

    pub(super) fn fail_write(&mut self, chunk: Chunk) {
        self.set_state(chunk, ChunkState::ReadOnly);
    }

    pub(super) fn begin_reset(&self, chunk: Chunk) -> Result<(), FlashError> {
        let state = self.check_chunk(chunk)?.state;
        if matches!(state, ChunkState::ReadOnly | ChunkState::Offline) {
            return Err(FlashError::State { chunk, state, command: "reset" });
        }
        Ok(())
    }

    pub(super) fn end_reset(&mut self, chunk: Chunk, state: ChunkState) {
        self.set_state(chunk, state);
        let entry = &mut self.entries[chunk.0 as usize];
        entry.begun = 0;
        entry.report.write_pointer = 0;
        entry.report.wear += 1;
    }

    /// What a chunk is when it is finished.
    pub(super) fn begin_finish(&self, chunk: Chunk) -> Result<ChunkReport, FlashError> {
        let report = self.check_chunk(chunk)?;
        match report.state {
            ChunkState::Free | ChunkState::Open | ChunkState::Closed => {
                Ok(ChunkReport { state: ChunkState::Closed, ..report })
            }
            state @ (ChunkState::ReadOnly | ChunkState::Offline) => {
                Err(FlashError::State { chunk, state, command: "finish" })
            }
        }
    }

    /// The state of a chunk is another, and its content is as before.
    pub(super) fn end_change(&mut self, chunk: Chunk, then: ChunkReport) {
        self.set_state(chunk, then.state);
    }
}
