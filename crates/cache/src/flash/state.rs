//! Which segment is what. No I/O.
//!
//! Invariant: a segment other than the first is in exactly one of: `free`, `buffers` (its items come or are on their
//! way), `sealed` (on the medium, oldest first), `abandoned` (could not be written; its items must leave the index), or
//! the hands of who collects it.

use std::collections::VecDeque;
use std::task::Waker;

use engine::Buf;

use super::buffer::SegmentBuffer;

/// Segments that only what is kept of a collected one may take: else a full log could not be collected.
pub(crate) const FREE_FOR_KEPT: usize = 1;
/// With so few free segments the oldest should be collected. Guessed: one is filled while another is collected.
pub(crate) const FREE_WANTED: usize = 3;

/// See the top.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) free: VecDeque<u32>,
    /// In the order in which they began; all but the last are sealed.
    pub(crate) buffers: VecDeque<SegmentBuffer>,
    pub(crate) sealed: VecDeque<u32>,
    pub(crate) abandoned: VecDeque<(u32, Vec<u64>)>,
    /// Zeroed memory for chunks.
    pub(crate) spare: Vec<Buf>,
    /// Writes under way.
    pub(crate) writing: usize,
    pub(crate) failed: Option<String>,
    pub(crate) waiters: Vec<Waker>,
}

impl State {
    /// One waiter more, or one that waits already.
    pub(crate) fn add_waiter(&mut self, waker: &Waker) {
        if !self.waiters.iter().any(|waiter| waiter.will_wake(waker)) {
            self.waiters.push(waker.clone());
        }
    }

    /// The segment that is being filled.
    pub(crate) fn open_buffer(&mut self) -> Option<&mut SegmentBuffer> {
        self.buffers.back_mut().filter(|buffer| !buffer.is_sealed())
    }

    /// Nothing more comes into the segment that is being filled.
    pub(crate) fn seal(&mut self) {
        if let Some(buffer) = self.open_buffer() {
            buffer.seal();
        }
    }

    /// Whether the oldest segment should be collected now.
    pub(crate) fn wants_collection(&self) -> bool {
        !self.abandoned.is_empty() || (self.free.len() < FREE_WANTED && !self.sealed.is_empty())
    }
}
