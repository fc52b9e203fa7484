//! Chunks of entries, of one size, from segments of the pool. Segments go back to it when the index is cleared.

use engine::Pages;

use crate::memory::{Pool, SEGMENT_BYTES};

/// Entries of a chunk, by which a table grows. Chosen: half of one, which is what a table has to spare on the mean, is a twelfth of
/// a table.
pub(super) const CHUNK_ENTRIES: usize = 256;
const SEGMENT_CHUNKS: usize = SEGMENT_BYTES / 8 / CHUNK_ENTRIES;

/// The chunks of one index.
#[derive(Debug, Default)]
pub(super) struct Arena {
    segments: Vec<Pages>,
    free: Vec<u32>,
    /// Where entries stand while a table is written anew.
    pub(super) scratch: Vec<u64>,
}

impl Arena {
    /// A chunk of zeroes.
    pub(super) fn take(&mut self, pool: &Pool) -> Option<u32> {
        if self.free.is_empty() {
            let first = (self.segments.len() * SEGMENT_CHUNKS) as u32;
            self.segments.push(pool.take()?);
            self.free.extend((first..first + SEGMENT_CHUNKS as u32).rev());
        }
        let chunk = self.free.pop()?;
        self.chunk_mut(chunk).fill(0);
        Some(chunk)
    }

    pub(super) fn give_chunk(&mut self, chunk: u32) {
        self.free.push(chunk);
    }

    pub(super) fn chunk(&self, chunk: u32) -> &[u64; CHUNK_ENTRIES] {
        let (chunks, _) = self.segments[chunk as usize / SEGMENT_CHUNKS].words().as_chunks();
        &chunks[chunk as usize % SEGMENT_CHUNKS]
    }

    pub(super) fn chunk_mut(&mut self, chunk: u32) -> &mut [u64; CHUNK_ENTRIES] {
        let (chunks, _) = self.segments[chunk as usize / SEGMENT_CHUNKS].words_mut().as_chunks_mut();
        &mut chunks[chunk as usize % SEGMENT_CHUNKS]
    }

    pub(super) fn segments(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn bytes_used(&self) -> usize {
        self.segments.len() * SEGMENT_BYTES - self.free.len() * CHUNK_ENTRIES * 8
    }

    pub(super) fn bytes_beside(&self) -> usize {
        self.scratch.capacity() * 8 + self.free.capacity() * 4 + self.segments.capacity() * size_of::<Pages>()
    }

    pub(super) fn give(self, pool: &Pool) {
        self.segments.into_iter().for_each(|segment| pool.give(segment));
    }
}
