//! What stays in memory.
//!
//! Items stand in two queues of segments, each in the order in which they came there. A policy says where a new item goes, which
//! queue loses its oldest segment when room is needed, and which of the items there stay, that is, go to the main queue's head.
//! `docs/cache.md`, *Memory*, has what each was measured to hit.

mod ghost;
mod lru;
mod s3fifo;

pub use lru::Lru;
pub use s3fifo::S3Fifo;

/// The highest popularity: as often as counts.
pub const POPULARITY_MAX: u8 = 3;

/// Where an item stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// The short way through: for what was not seen before.
    Small,
    /// The long one.
    Main,
}

/// What becomes of an item whose segment is reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It goes to the main queue's head with this popularity.
    Keep(u8),
    /// It leaves memory.
    Leave,
}

/// Decides for the items of one shard.
pub trait Policy: Send + std::fmt::Debug {
    /// Where a key's new item of so many bytes goes.
    fn admit(&mut self, hash: u64, bytes: usize) -> Queue;

    /// Whether a hit moves an item that stands in the older half of its queue to the head, if there is room; else it is counted
    /// where it stands. The answer is always the same.
    fn moves_older(&self) -> bool;

    /// Which queue loses its oldest segment, of the bytes that each has.
    fn victim(&self, small: usize, main: usize) -> Queue;

    /// Whether an item of the oldest segment of `from` stays.
    fn verdict(&mut self, hash: u64, from: Queue, popularity: u8) -> Verdict;

    /// Bytes of memory that the policy holds.
    fn bytes(&self) -> usize;
}

/// The policies there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PolicyKind {
    /// See [`S3Fifo`].
    #[default]
    S3Fifo,
    /// See [`Lru`].
    Lru,
}

impl PolicyKind {
    /// The policy for a shard with `bytes` of memory.
    pub fn build(self, bytes: usize) -> Box<dyn Policy> {
        match self {
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(bytes)),
            PolicyKind::Lru => Box::new(Lru),
        }
    }
}
