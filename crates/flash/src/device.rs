//! [`FlashDevice`]: a flash device as it is, with the words and rules of Open-Channel 2.0.
//!
//! Invariants every kind keeps:
//! - A chunk is written front to back in multiples of the write unit, and reset as a whole; anything else is refused by name, and
//!   changes nothing.
//! - A write that has ended well is stable: no flush is needed behind it. A device with a volatile cache writes through it.
//! - A write that failed, or was under way when power was lost, may have left of each of its sectors the new bytes, or anything
//!   else.

use engine::task::LocalFuture;
use engine::{Buf, View};

use crate::address::{Chunk, Sector};
use crate::geometry::{Geometry, GeometryError};

/// What may be done with a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkState {
    /// Nothing is written in it.
    Free,
    /// It is written up to its write pointer, and can be gone on with.
    Open,
    /// It takes no more writes until it is reset.
    Closed,
    /// A write has failed in it: what was written before is there, and the chunk takes neither writes nor resets any more.
    ReadOnly,
    /// It is bad: it can't be used at all.
    Offline,
}

/// A chunk, as the device tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkReport {
    /// What may be done with it.
    pub state: ChunkState,
    /// Sectors that are written.
    pub write_pointer: u32,
    /// How often it was reset.
    pub wear: u32,
}

/// Why a command failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FlashError {
    /// There is no such sector or chunk.
    #[error("{what} {first}+{count} lies beyond the device's end at {end}")]
    OutOfRange {
        /// Sectors or chunks.
        what: &'static str,
        /// The first asked for.
        first: u32,
        /// How many.
        count: u32,
        /// How many there are.
        end: u32,
    },
    /// A length that is no multiple of what the command works on, or over the end of a chunk.
    #[error("{bytes} bytes from sector {first}: must be whole {unit}, within one chunk")]
    Length {
        /// The first sector.
        first: Sector,
        /// Bytes given.
        bytes: usize,
        /// What the command works on.
        unit: &'static str,
    },
    /// The out-of-band buffer has another length than the sectors' areas.
    #[error("{given} out-of-band bytes for sectors that have {expected}")]
    Oob {
        /// Bytes given.
        given: usize,
        /// Bytes that there are.
        expected: usize,
    },
    /// A write elsewhere than at the write pointer.
    #[error("chunk {chunk} is written at sector {given} out of order: its write pointer is at {expected}")]
    OutOfOrder {
        /// Which chunk.
        chunk: Chunk,
        /// Where it may be written.
        expected: u32,
        /// Where it was to be written.
        given: u32,
    },
    /// One more chunk would be open than may be.
    #[error("chunk {chunk} can't be opened: {open_max} chunks are open, as many as may be")]
    OpenLimit {
        /// Which chunk.
        chunk: Chunk,
        /// How many may be open.
        open_max: u32,
    },
    /// The chunk's state does not allow the command.
    #[error("chunk {chunk} is {state:?}, which allows no {command}")]
    State {
        /// Which chunk.
        chunk: Chunk,
        /// Its state.
        state: ChunkState,
        /// What was to be done.
        command: &'static str,
    },
    /// Sectors were read that are not written.
    #[error("sector {0} is not written")]
    NotWritten(Sector),
    /// The device could not give the data back.
    #[error("sector {0} can't be read")]
    ReadFailed(Sector),
    /// The device did not take the data.
    #[error("a program failed in chunk {0}")]
    ProgramFailed(Chunk),
    /// The chunk could not be reset, and is bad.
    #[error("the erase of chunk {0} failed")]
    EraseFailed(Chunk),
    /// The device has no power, or had none since it was opened.
    #[error("the device has lost power")]
    PowerLost,
    /// Somebody else uses the device.
    #[error("the device is in use by another media manager")]
    InUse,
    /// What was asked for can't be done with the device's geometry.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// What the device is kept on has no room left.
    #[error("the medium of the device has no room left")]
    NoRoom,
    /// What the device is kept on failed.
    #[error("the medium of the device: {0}")]
    Medium(String),
}

impl FlashError {
    /// Whether one chunk failed, and the device is as good as before otherwise.
    pub fn is_of_a_chunk(&self) -> bool {
        matches!(self, FlashError::ProgramFailed(_) | FlashError::EraseFailed(_) | FlashError::State { .. })
    }
}

/// What a read gives back: both buffers in every case.
pub type Read = (Result<(), FlashError>, Buf, Buf);

/// A flash device. Its futures are local to their thread, and boxed: a device's kind is not known to its users.
pub trait FlashDevice {
    /// What it is made of.
    fn geometry(&self) -> Geometry;

    /// Its identity, which no other device has.
    fn serial(&self) -> [u8; 16];

    /// Takes it for a media manager; [`FlashError::InUse`] where one has it.
    ///
    /// # Errors
    /// As said.
    fn claim(&self) -> Result<(), FlashError>;

    /// Gives it up again.
    fn release(&self);

    /// All chunks in order.
    fn report(&self) -> LocalFuture<'_, Result<Vec<ChunkReport>, FlashError>>;

    /// Fills `data` (whole sectors of one chunk, all written) from `first`, and `oob` with their out-of-band bytes, unless it is
    /// empty.
    fn read(&self, first: Sector, data: Buf, oob: Buf) -> LocalFuture<'_, Read>;

    /// Writes whole write units at the write pointer of a chunk, with the out-of-band bytes of their sectors.
    fn write(&self, first: Sector, data: View, oob: View) -> LocalFuture<'_, Result<(), FlashError>>;

    /// Makes a chunk free.
    fn reset(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>>;

    /// Closes a free or open chunk: its rest stays unwritten (a zone's finish).
    fn finish(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>>;

    /// Puts a chunk into the table of bad chunks: it is offline from now on.
    fn set_bad(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>>;

    /// Nothing in a chunk in which a write has failed is of use any more. Whether the device can use the chunk again: it is free
    /// then, and otherwise bad.
    fn give_up(&self, chunk: Chunk) -> LocalFuture<'_, Result<bool, FlashError>> {
        Box::pin(async move { self.set_bad(chunk).await.map(|()| false) })
    }
}
