//! Which extent stands behind which part of a namespace, and which extents are free.

use std::ops::Range;

/// Entries and absent leaves that one call compares. Guessed: a small part of a millisecond.
const DIFFERENCE_STEPS_MAX: usize = 64 * LEAF;
/// Entries of a leaf: 4 KiB of memory for 1,024 extents.
const LEAF: usize = 1024;
/// No extent.
pub(super) const NONE: u32 = u32::MAX;

/// A namespace's map, in two levels: a namespace far larger than what it holds costs little.
#[derive(Clone, Debug, Default)]
pub(super) struct ExtentMap {
    leaves: Vec<Option<Box<[u32; LEAF]>>>,
    len: u32,
}

impl ExtentMap {
    /// Extents in the map.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The extent at `index`, or [`NONE`].
    pub(super) fn get(&self, index: u32) -> u32 {
        match self.leaves.get(index as usize / LEAF) {
            Some(Some(leaf)) => leaf[index as usize % LEAF],
            _ => NONE,
        }
    }

    /// Puts `extent` at `index`; what was there.
    pub(super) fn set(&mut self, index: u32, extent: u32) -> Option<u32> {
        let place = index as usize / LEAF;
        if self.leaves.len() <= place {
            self.leaves.resize_with(place + 1, || None);
        }
        let leaf = self.leaves[place].get_or_insert_with(|| Box::new([NONE; LEAF]));
        let old = std::mem::replace(&mut leaf[index as usize % LEAF], extent);
        if old == NONE {
            self.len += 1;
        }
        (old != NONE).then_some(old)
    }

    /// Takes out what is at `index..index + count`.
    pub(super) fn clear(&mut self, index: u32, count: u32) -> Vec<u32> {
        let (start, end) = (index as usize, (index as usize).saturating_add(count as usize));
        let mut taken = Vec::new();
        for (place, slot) in self.leaves.iter_mut().enumerate() {
            let base = place * LEAF;
            let (from, to) = (start.clamp(base, base + LEAF) - base, end.clamp(base, base + LEAF) - base);
            let Some(leaf) = slot.as_mut().filter(|_| from < to) else { continue };
            for entry in leaf[from..to].iter_mut().filter(|entry| **entry != NONE) {
                taken.push(std::mem::replace(entry, NONE));
            }
            if to - from == LEAF {
                *slot = None;
            }
        }
        self.len -= taken.len() as u32;
        taken
    }

    /// The indices from `first` to `last` with their extents, ascending.
    pub(super) fn range(&self, first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let leaves = (first as usize / LEAF..=last as usize / LEAF).take_while(|&place| place < self.leaves.len());
        let leaves = leaves.filter_map(|place| Some((place, self.leaves[place].as_ref()?)));
        leaves.flat_map(move |(place, leaf)| {
            let base = (place * LEAF) as u32;
            let (from, to) = (first.saturating_sub(base) as usize, ((last - base) as usize).min(LEAF - 1));
            let entries = leaf[from..=to].iter().enumerate(); // no range of indices: that of the last leaf overflows
            entries.filter(|(_, extent)| **extent != NONE).map(move |(at, &extent)| (base + (from + at) as u32, extent))
        })
    }

    fn leaf(&self, place: usize) -> Option<&[u32; LEAF]> {
        self.leaves.get(place)?.as_deref()
    }

    /// Ranges of the indices `from..end` at which the maps name different extents, ascending, and the index behind the last one
    /// that was looked at. It is before `end` where there are more ranges than `most`, or they are far apart: no call takes long.
    pub(super) fn differences(&self, base: &ExtentMap, from: u32, end: u32, most: usize) -> (Vec<Range<u32>>, u32) {
        let (mut ranges, mut at, mut steps): (Vec<Range<u32>>, u32, usize) = (Vec::new(), from, 0);
        while at < end && steps < DIFFERENCE_STEPS_MAX {
            let place = at as usize / LEAF;
            if place >= self.leaves.len().max(base.leaves.len()) {
                return (ranges, end);
            }
            let stop = ((place + 1) * LEAF).min(end as usize) as u32;
            let (ours, theirs) = (self.leaf(place), base.leaf(place));
            if ours.is_none() && theirs.is_none() {
                (at, steps) = (stop, steps + 1);
                continue;
            }
            let at_index =
                |leaf: Option<&[u32; LEAF]>, index: u32| leaf.map_or(NONE, |leaf| leaf[index as usize % LEAF]);
            for index in at..stop {
                if at_index(ours, index) == at_index(theirs, index) {
                    continue;
                }
                let full = ranges.len() >= most.max(1);
                match ranges.last_mut() {
                    Some(last) if last.end == index => last.end = index + 1,
                    _ if full => return (ranges, index),
                    _ => ranges.push(index..index + 1),
                }
            }
            (at, steps) = (stop, steps + LEAF);
        }
        (ranges, at)
    }

    /// Every index with its extent, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.range(0, u32::MAX)
    }
}

/// The free extents: a bit for each, and a cursor. The next one after the last one given is taken, so that what is written
/// one after the other lies one after the other.
#[derive(Debug)]
pub(super) struct Free {
    words: Vec<u64>,
    len: u32,
    cursor: usize,
}

impl Free {
    /// All of `extents` are free.
    pub(super) fn new(extents: u32) -> Free {
        let mut free = Free { words: vec![0; (extents as usize).div_ceil(64)], len: 0, cursor: 0 };
        (0..extents).for_each(|extent| free.give(extent));
        free
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn has(&self, extent: u32) -> bool {
        self.words[extent as usize / 64] & 1 << (extent % 64) != 0
    }

    pub(super) fn give(&mut self, extent: u32) {
        let (word, bit) = (&mut self.words[extent as usize / 64], 1 << (extent % 64));
        self.len += u32::from(*word & bit == 0);
        *word |= bit;
    }

    /// Takes this one, free or not.
    pub(super) fn take(&mut self, extent: u32) {
        let (word, bit) = (&mut self.words[extent as usize / 64], 1 << (extent % 64));
        self.len -= u32::from(*word & bit != 0);
        *word &= !bit;
    }

    /// Takes one that is free.
    pub(super) fn take_any(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let words = self.words.len();
        let place = (0..words).map(|step| (self.cursor + step) % words).find(|&place| self.words[place] != 0)?;
        self.cursor = place;
        let extent = place as u32 * 64 + self.words[place].trailing_zeros();
        self.take(extent);
        Some(extent)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the plainest map there is.
        #[test]
        fn maps_as_a_tree_does(steps in prop::collection::vec((0..3_u8, 0..5000_u32, 1..3000_u32), 1..60)) {
            let (mut map, mut plain) = (ExtentMap::default(), BTreeMap::new());
            for (kind, index, count) in steps {
                if kind > 0 {
                    prop_assert_eq!(map.set(index, count), plain.insert(index, count));
                } else {
                    let gone: Vec<u32> = plain.range(index..index + count).map(|(at, _)| *at).collect();
                    let expected: Vec<u32> = gone.iter().filter_map(|at| plain.remove(at)).collect();
                    prop_assert_eq!(map.clear(index, count), expected);
                }
                prop_assert_eq!(map.get(index), plain.get(&index).copied().unwrap_or(NONE));
                prop_assert_eq!(map.len() as usize, plain.len());
            }
            prop_assert!(map.range(700, 2500).eq(plain.range(700..=2500).map(|(at, extent)| (*at, *extent))));
            prop_assert!(map.iter().eq(plain));
        }
    }

    proptest! {
        /// Against a look at every index, in as many calls as it takes.
        #[test]
        fn differences_are_found_wherever_they_are(
            ours in prop::collection::btree_map(0..200_000_u32, 1..3_u32, 0..60),
            changes in prop::collection::btree_map(0..200_000_u32, 0..3_u32, 0..60),
            most in 1..9_usize,
        ) {
            let mut theirs = ours.clone();
            theirs.extend(changes);
            theirs.retain(|_, extent| *extent > 0);
            let map = |plain: &BTreeMap<u32, u32>| {
                let mut map = ExtentMap::default();
                for (&index, &extent) in plain {
                    map.set(index, extent);
                }
                map
            };
            let (newer, base, end) = (map(&ours), map(&theirs), 150_000);
            let (mut found, mut at) = (Vec::new(), 0);
            while at < end {
                let (ranges, next) = newer.differences(&base, at, end, most);
                prop_assert!(ranges.len() <= most && next > at);
                found.extend(ranges.into_iter().flatten());
                at = next;
            }
            let expected = (0..end).filter(|index| ours.get(index) != theirs.get(index));
            prop_assert!(found.into_iter().eq(expected));
        }
    }

    #[test]
    fn every_free_extent_is_given_once() {
        let mut free = Free::new(130);
        free.take(64);
        let mut given: Vec<u32> = std::iter::from_fn(|| free.take_any()).collect();
        assert_eq!(given[..3], [0, 1, 2], "neighbours come one after the other");
        given.sort_unstable();
        assert!(given.iter().copied().eq((0..130).filter(|&extent| extent != 64)));
        free.give(7);
        assert_eq!((free.len(), free.take_any(), free.take_any()), (1, Some(7), None));
    }
}
