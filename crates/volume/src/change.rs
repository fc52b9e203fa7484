//! What a write of the volume does at each replica.

use engine::View;

/// Regions that are zeroed in one step. Chosen: their marks are one write of the log, or two.
pub(crate) const ZERO_REGIONS_MAX: u64 = 256;

/// A change of blocks that comes out the same when it is made again.
#[derive(Clone)]
pub(crate) enum Change {
    /// These bytes.
    Write(View),
    /// Zeroes; `gives_back`: the room may be given back.
    Zero { blocks: u64, gives_back: bool },
}

impl Change {
    /// How many blocks it changes.
    pub(crate) fn blocks(&self, block_size: u32) -> u64 {
        match self {
            Change::Write(data) => data.len() as u64 / u64::from(block_size),
            Change::Zero { blocks, .. } => *blocks,
        }
    }
}
