//! Long values: chunks outside of the log, under numbers.

use engine::View;

/// Bytes that a chunk's buffer takes beside it: see `engine::buf`.
const CHUNK_OVERHEAD: usize = engine::buf::ALIGN;

/// A long value.
#[derive(Debug)]
pub(super) struct Long {
    pub(super) chunks: Vec<View>,
    /// The value's length.
    pub(super) bytes: usize,
}

impl Long {
    pub(super) fn new(chunks: Vec<View>) -> Long {
        let bytes = chunks.iter().map(|chunk| chunk.len()).sum();
        Long { chunks, bytes }
    }

    /// What it takes of memory.
    pub(super) fn weight(&self) -> usize {
        Long::weight_of(&self.chunks)
    }

    /// What a value of these chunks takes of memory.
    pub(super) fn weight_of(chunks: &[View]) -> usize {
        chunks.iter().map(|chunk| chunk.len() + CHUNK_OVERHEAD).sum()
    }
}

/// The long values of one shard.
#[derive(Debug, Default)]
pub(super) struct Longs {
    values: Vec<Option<Long>>,
    vacant: Vec<u32>,
}

impl Longs {
    pub(super) fn add(&mut self, long: Long) -> u32 {
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.values.push(None);
            self.values.len() as u32 - 1
        });
        self.values[number as usize] = Some(long);
        number
    }

    pub(super) fn get(&self, number: u32) -> &Long {
        self.values[number as usize].as_ref().expect("an item that is not dead has its value")
    }

    pub(super) fn take(&mut self, number: u32) -> Long {
        self.vacant.push(number);
        self.values[number as usize].take().expect("an item that is not dead has its value")
    }

    /// All of them.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Long> {
        self.vacant.clear();
        std::mem::take(&mut self.values).into_iter().flatten()
    }
}
