//! The plain reference: least recently used, over a log.
//!
//! One queue. A hit in its older half copies the item to the head, so that what leaves at the other end was not used since it
//! was in the newer half. What such a copy leaves behind is dead until its segment is reclaimed.

use super::{Policy, Queue, Verdict};

/// Least recently used.
#[derive(Debug)]
pub struct Lru;

impl Policy for Lru {
    fn admit(&mut self, _hash: u64, _bytes: usize) -> Queue {
        Queue::Main
    }

    fn moves_older(&self) -> bool {
        true
    }

    fn victim(&self, _small: usize, _main: usize) -> Queue {
        Queue::Main
    }

    fn verdict(&mut self, _hash: u64, _from: Queue, _popularity: u8) -> Verdict {
        Verdict::Leave
    }

    fn bytes(&self) -> usize {
        0
    }
}
