//! Which extent stands behind which part of a namespace, and which extents are free.

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
