//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: *FIFO queues are all you need for cache eviction*, SOSP 2023), over segments.
//!
//! What is new goes through a small queue; what was hit there goes on to the main queue, the rest leaves and is remembered by a
//! fingerprint. What comes back while it is remembered goes to the main queue at once. In the main queue an item stays as many
//! rounds as it has hits, three at most. A hit moves nothing.
//!
//! What takes much of the small queue by itself goes to the main queue at once: it would be the next to leave the small one,
//! whatever else there is, and push out those before it.

use super::{Policy, Queue, Verdict, ghost::Ghost};

/// The small queue's part of the memory, in percent: the paper's.
const SMALL_PERCENT: usize = 10;
/// As many items at least go through the small queue one after another. Guessed.
const SMALL_ITEMS_MIN: usize = 8;

/// S3-FIFO.
#[derive(Debug)]
pub struct S3Fifo {
    ghost: Ghost,
    /// Bytes of the longest item that goes through the small queue.
    small_item_bytes: usize,
}

impl S3Fifo {
    /// For a shard with `bytes` of memory.
    pub fn new(bytes: usize) -> S3Fifo {
        S3Fifo { ghost: Ghost::new(bytes / 128), small_item_bytes: bytes / 100 * SMALL_PERCENT / SMALL_ITEMS_MIN }
    }
}

impl Policy for S3Fifo {
    fn admit(&mut self, hash: u64, bytes: usize) -> Queue {
        if self.ghost.take(hash) || bytes > self.small_item_bytes { Queue::Main } else { Queue::Small }
    }

    fn moves_older(&self) -> bool {
        false
    }

    fn victim(&self, small: usize, main: usize) -> Queue {
        if small * 100 > (small + main) * SMALL_PERCENT { Queue::Small } else { Queue::Main }
    }

    fn verdict(&mut self, hash: u64, from: Queue, popularity: u8) -> Verdict {
        match (from, popularity) {
            (Queue::Small, 1..) => Verdict::Keep(0),
            (Queue::Small, 0) => {
                self.ghost.add(hash);
                Verdict::Leave
            }
            (Queue::Main, 0) => Verdict::Leave,
            (Queue::Main, 1..) => Verdict::Keep(popularity - 1),
        }
    }

    fn bytes(&self) -> usize {
        self.ghost.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hit_wonders_leave_and_what_comes_back_goes_to_the_main_queue() {
        let mut policy = S3Fifo::new(1 << 20);
        assert_eq!(policy.admit(7, 100), Queue::Small);
        assert_eq!(policy.verdict(7, Queue::Small, 0), Verdict::Leave);
        assert_eq!(policy.admit(7, 100), Queue::Main);
        assert_eq!(policy.admit(7, 100), Queue::Small, "it was remembered once");
        assert_eq!(policy.admit(7, 50_000), Queue::Main, "half of the small queue");
        assert_eq!(policy.verdict(8, Queue::Small, 2), Verdict::Keep(0));
        assert_eq!(policy.verdict(8, Queue::Main, 2), Verdict::Keep(1));
        assert_eq!(policy.verdict(8, Queue::Main, 0), Verdict::Leave);
        assert_eq!((policy.victim(11, 89), policy.victim(10, 90)), (Queue::Small, Queue::Main));
    }
}
