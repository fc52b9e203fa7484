//! Blocks that were marked unreadable by Write Uncorrectable (NVM Command Set 1.0c §3.2.7).
//!
//! Kept as words of 64 blocks, a bit each: a write only ever clears bits, so the room that a mark has taken always suffices
//! for what is left of it. With plain ranges a write into the middle of one would need room that may not be there.
//!
//! Invariant: a caller changes the marks of a range only while it holds that range's lock exclusively, and looks at them
//! under the lock as well.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::namespace::ATTRIBUTE_BYTES_MAX;
use crate::{Error, Lba};

/// Blocks of a word.
const WORD_BLOCKS: u64 = 64;
/// Bytes of a word in its attribute: number and bits.
const WORD_BYTES: usize = 16;
/// Words with marks, of 64 blocks each. Derived: what fits one attribute.
pub(crate) const MARKED_WORDS_MAX: usize = ATTRIBUTE_BYTES_MAX / WORD_BYTES;
/// The attribute that keeps them.
pub(crate) const ATTRIBUTE: &str = "uncorrectable";

/// Marked blocks: word number to bits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks(BTreeMap<u64, u64>);

/// The words that a range touches, and which bits of each.
fn words(lba: Lba, blocks: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = lba.0 + blocks;
    let mut at = lba.0;
    std::iter::from_fn(move || {
        let (word, first) = (at / WORD_BLOCKS, at % WORD_BLOCKS);
        let count = (end - at).min(WORD_BLOCKS - first);
        at += count;
        (count > 0).then(|| (word, u64::MAX >> (WORD_BLOCKS - count) << first))
    })
}

impl Marks {
    pub fn touches(&self, lba: Lba, blocks: u64) -> bool {
        if blocks == 0 {
            return false;
        }
        let last = (lba.0 + blocks - 1) / WORD_BLOCKS;
        self.0.range(lba.0 / WORD_BLOCKS..=last).any(|(&word, &bits)| {
            // Only the words at its ends are covered in part.
            let from = lba.0.max(word * WORD_BLOCKS);
            let to = (lba.0 + blocks).min((word + 1).saturating_mul(WORD_BLOCKS));
            words(Lba(from), to - from).any(|(_, mask)| bits & mask != 0)
        })
    }

    pub fn with(&self, lba: Lba, blocks: u64) -> Result<Marks, Error> {
        let mut marks = self.clone();
        for (word, mask) in words(lba, blocks) {
            *marks.0.entry(word).or_default() |= mask;
        }
        if marks.0.len() > MARKED_WORDS_MAX { Err(Error::OutOfSpace) } else { Ok(marks) }
    }

    pub fn without(&self, lba: Lba, blocks: u64) -> Marks {
        let end = lba.0.saturating_add(blocks);
        let mut marks = self.clone();
        marks.0.retain(|&word, bits| {
            let (from, to) = (lba.0.max(word * WORD_BLOCKS), end.min((word + 1).saturating_mul(WORD_BLOCKS)));
            if from < to {
                words(Lba(from), to - from).for_each(|(_, mask)| *bits &= !mask);
            }
            *bits != 0
        });
        marks
    }

    pub fn encode(&self) -> Vec<u8> {
        self.0.iter().flat_map(|(word, bits)| [word.to_le_bytes(), bits.to_le_bytes()]).flatten().collect()
    }

    /// `None` where the bytes are no marks.
    pub fn decode(bytes: &[u8]) -> Option<Marks> {
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        let pairs = bytes.chunks_exact(WORD_BYTES);
        if !pairs.remainder().is_empty() {
            return None;
        }
        let marks: BTreeMap<u64, u64> =
            pairs.map(|pair| Some((word(&pair[..8])?, word(&pair[8..])?))).collect::<Option<_>>()?;
        let last = marks.last_key_value().map_or(0, |(&word, _)| word);
        (last < u64::MAX / WORD_BLOCKS).then_some(Marks(marks))
    }
}

/// The marks of a namespace, shared between threads. Where there are none, a look costs one load.
#[derive(Debug, Default)]
pub(crate) struct Uncorrectable {
    any: AtomicBool,
    marks: Mutex<Marks>,
}

impl Uncorrectable {
    pub fn new(marks: Marks) -> Uncorrectable {
        let uncorrectable = Uncorrectable::default();
        uncorrectable.publish(marks);
        uncorrectable
    }

    fn lock(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner) // replaced whole, so always sound
    }

    pub fn touches(&self, lba: Lba, blocks: u64) -> bool {
        // The lock of the range orders this load behind the store of whoever marked a block of it.
        self.any.load(Ordering::Acquire) && self.lock().touches(lba, blocks)
    }

    /// An error where any of the range is marked.
    pub fn check(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        if self.touches(lba, blocks) { Err(crate::attributes::marked(lba, blocks)) } else { Ok(()) }
    }

    pub fn marks(&self) -> Marks {
        self.lock().clone()
    }

    pub fn publish(&self, marks: Marks) {
        let mut place = self.lock();
        self.any.store(!marks.0.is_empty(), Ordering::Release);
        *place = marks;
    }

    /// Changes the marks where nothing has to be kept: other ranges' changes are not lost.
    pub fn update(&self, change: impl FnOnce(&Marks) -> Result<Marks, Error>) -> Result<(), Error> {
        let mut place = self.lock();
        let marks = change(&place)?;
        self.any.store(!marks.0.is_empty(), Ordering::Release);
        *place = marks;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the plainest model: a set of blocks.
        #[test]
        fn marks_are_those_of_a_set(steps in proptest::collection::vec((any::<bool>(), 0u64..400, 0u64..200), 1..40)) {
            let (mut marks, mut model) = (Marks::default(), BTreeSet::new());
            for (mark, lba, blocks) in steps {
                if mark {
                    marks = marks.with(Lba(lba), blocks).unwrap();
                    model.extend(lba..lba + blocks);
                } else {
                    marks = marks.without(Lba(lba), blocks);
                    model.retain(|block| !(lba..lba + blocks).contains(block));
                }
                prop_assert_eq!(Marks::decode(&marks.encode()), Some(marks.clone()));
                for at in 0..600 {
                    prop_assert_eq!(marks.touches(Lba(at), 1), model.contains(&at));
                    prop_assert_eq!(marks.touches(Lba(at), 70), model.range(at..at + 70).next().is_some());
                }
            }
        }
    }

    #[test]
    fn room_is_bounded_and_clearing_needs_none() {
        let every_other = |marks: Marks, word: u64| marks.with(Lba(word * 2 * WORD_BLOCKS), WORD_BLOCKS);
        let full = (0..MARKED_WORDS_MAX as u64).try_fold(Marks::default(), every_other).expect("they fit");
        assert_eq!(full.encode().len(), ATTRIBUTE_BYTES_MAX);
        assert_eq!(full.with(Lba(WORD_BLOCKS), 1), Err(Error::OutOfSpace));
        let cut = full.without(Lba(10), 1);
        assert_eq!(cut.encode().len(), ATTRIBUTE_BYTES_MAX, "a hole in a mark takes no room");
        assert!(cut.touches(Lba(9), 1) && !cut.touches(Lba(10), 1) && cut.touches(Lba(11), 1));
        assert_eq!(full.without(Lba(0), u64::MAX), Marks::default(), "the whole namespace");
        assert_eq!(Marks::decode(&[0; 15]), None);
    }
}
