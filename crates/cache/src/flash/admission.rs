//! Which of the items that leave memory are worth a place on flash: it wears, and what is written displaces something.
//!
//! The simple rule is [`AdmitAll`]. The other, [`Sketch`], is TinyLFU's (Einziger, Friedman, Manes: TinyLFU, a highly
//! efficient cache admission policy, ACM TOS 2017): a newcomer is admitted if it was asked for as often as what it
//! displaces, on average. How often is counted in a count-min sketch of 4-bit counters, by conservative update; the
//! counters are halved all the time, one word after another, so that there is never a pause.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::summary::HASH_MASK;

/// Decides what goes to flash. Called by all threads.
pub trait Admission: Send + Sync + std::fmt::Debug {
    /// A key of this hash was asked for, or stored.
    fn note(&self, hash: u64);

    /// Whether the item of this hash, which leaves memory, goes to flash.
    fn admits(&self, hash: u64) -> bool;

    /// An item of this hash leaves flash to make room: what newcomers displace is like this.
    fn note_displaced(&self, hash: u64);
}

/// Everything goes to flash.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmitAll;

impl Admission for AdmitAll {
    fn note(&self, _: u64) {}

    fn admits(&self, _: u64) -> bool {
        true
    }

    fn note_displaced(&self, _: u64) {}
}

/// Words of 16 counters in a block: a cache line, in which all counters of a key lie.
const BLOCK_WORDS: usize = 8;
/// Counters of a key, one in each quarter of its block.
const ROWS: usize = 4;
/// The most that a counter counts.
const COUNT_MAX: u64 = 15;
/// Items of the flash tier per word. Measured in the model of docs/cache.md: two bytes for an item give two in a
/// hundred requests more as hits than one byte does, and four bytes as many again.
const ITEMS_PER_WORD: usize = 4;
/// Noted requests per counter before that is halved. Measured: between three and ten hits and writes change by a
/// percent or two.
const NOTES_PER_COUNTER: u64 = 5;
/// How much one displaced item moves what they are taken for: one 256th of the difference. Guessed: a few pages of
/// items.
const LEVEL_SHIFT: u32 = 8;

/// See the top.
#[derive(Debug)]
pub struct Sketch {
    words: Box<[AtomicU64]>,
    notes: AtomicU64,
    /// The word that is halved next.
    cursor: AtomicUsize,
    /// How often displaced items were asked for, on average, in 2^[`LEVEL_SHIFT`]ths.
    level: AtomicU32,
}

impl Sketch {
    /// Bytes that it takes for each item of the flash tier.
    pub const BYTES_PER_ITEM: u64 = (size_of::<u64>() / ITEMS_PER_WORD) as u64;

    /// A sketch for a flash tier of about so many items: it takes two bytes for each.
    pub fn new(items: usize) -> Sketch {
        let blocks = items.div_ceil(BLOCK_WORDS * ITEMS_PER_WORD).max(1);
        let words = std::iter::repeat_with(AtomicU64::default).take(blocks * BLOCK_WORDS).collect();
        Sketch { words, notes: AtomicU64::new(0), cursor: AtomicUsize::new(0), level: AtomicU32::new(0) }
    }

    /// The counters of a hash: word, and how far its counter is shifted.
    fn counters(&self, hash: u64) -> [(usize, u32); ROWS] {
        // The upper bits choose shards and tables elsewhere; mixed, any of them are as good as others.
        // Of what leaves flash the log has kept so many bits alone.
        let hash = hash & HASH_MASK;
        let mixed = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let blocks = (self.words.len() / BLOCK_WORDS) as u64;
        let block = ((u128::from(mixed) * u128::from(blocks)) >> 64) as usize * BLOCK_WORDS;
        let mut choice = mixed.wrapping_mul(0x94d0_49bb_1331_11eb) >> 32;
        std::array::from_fn(|row| {
            let (word, counter) = (choice as usize & 1, choice >> 1 & 15);
            choice >>= 5;
            (block + row * (BLOCK_WORDS / ROWS) + word, counter as u32 * 4)
        })
    }

    fn count(&self, (word, shift): (usize, u32)) -> u64 {
        self.words[word].load(Ordering::Relaxed) >> shift & COUNT_MAX
    }

    /// How often a hash was noted lately: at least, where fewer than sixteen.
    pub fn estimate(&self, hash: u64) -> u32 {
        self.counters(hash).map(|counter| self.count(counter)).into_iter().min().unwrap_or(0) as u32
    }

    fn age(&self) {
        let notes = self.notes.fetch_add(1, Ordering::Relaxed);
        if notes.is_multiple_of(16 * NOTES_PER_COUNTER) {
            let word = self.cursor.fetch_add(1, Ordering::Relaxed) % self.words.len();
            let halve = |counters: u64| Some(counters >> 1 & 0x7777_7777_7777_7777);
            // It always has a new value.
            let _ = self.words[word].fetch_update(Ordering::Relaxed, Ordering::Relaxed, halve);
        }
    }
}

impl Admission for Sketch {
    fn note(&self, hash: u64) {
        self.age();
        let counters = self.counters(hash);
        let least = self.estimate(hash).into();
        if least == COUNT_MAX {
            return;
        }
        for (word, shift) in counters {
            let before = self.words[word].load(Ordering::Relaxed);
            if before >> shift & COUNT_MAX == least {
                // Where another thread was faster one count is missing: by addition it could run over into its
                // neighbour.
                let raised = before + (1 << shift);
                let _ = self.words[word].compare_exchange(before, raised, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    fn admits(&self, hash: u64) -> bool {
        self.estimate(hash) << LEVEL_SHIFT >= self.level.load(Ordering::Relaxed)
    }

    fn note_displaced(&self, hash: u64) {
        let estimate = self.estimate(hash) << LEVEL_SHIFT;
        let level = self.level.load(Ordering::Relaxed);
        let moved = level - (level >> LEVEL_SHIFT) + (estimate >> LEVEL_SHIFT);
        self.level.store(moved, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    proptest! {
        /// Against plain counts, before anything has aged: never less, and exactly right with room enough.
        #[test]
        fn it_counts(keys in proptest::collection::vec(1_u64..40, 0..300)) {
            let (wide, narrow) = (Sketch::new(1 << 20), Sketch::new(64));
            let mut counts = BTreeMap::new();
            for &key in &keys {
                *counts.entry(key).or_insert(0_u32) += 1;
                wide.note(hash(key));
                narrow.note(hash(key));
            }
            for (key, count) in counts {
                prop_assert_eq!(wide.estimate(hash(key)), count.min(15));
                prop_assert!(keys.len() > 70 || narrow.estimate(hash(key)) >= count.min(15));
            }
        }
    }

    #[test]
    fn what_was_popular_once_is_forgotten() {
        let sketch = Sketch::new(1000);
        (0..100).for_each(|_| sketch.note(hash(7)));
        assert!(sketch.estimate(hash(7)) >= 14);
        (0..400_000).for_each(|other| sketch.note(hash(1000 + other % 10)));
        assert_eq!(sketch.estimate(hash(7)), 0);
    }

    #[test]
    fn newcomers_are_held_against_what_they_displace() {
        let sketch = Sketch::new(10_000);
        (0..3).for_each(|_| sketch.note(hash(1)));
        sketch.note(hash(2));
        assert!(sketch.admits(hash(2)) && sketch.admits(hash(3)), "all, before anything is displaced");
        (0..5000).for_each(|_| sketch.note_displaced(hash(1)));
        assert!(sketch.admits(hash(1)) && !sketch.admits(hash(2)));
        (0..5000).for_each(|_| sketch.note_displaced(hash(3)));
        assert!(sketch.admits(hash(2)));
    }
}
