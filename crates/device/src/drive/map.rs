//! Which extent stands behind which part of a namespace, and which extents are free.

use std::ops::Range;
use std::sync::Arc;

/// Entries, and skipped leaves and nodes, that one call compares. Guessed: a small part of a millisecond.
const DIFFERENCE_STEPS_MAX: usize = 64 * LEAF;
/// Entries of a leaf: 4 KiB of memory for 1,024 extents.
const LEAF: usize = 1024;
/// Leaves of a node: 8 KiB of memory. The largest map has 4,096 nodes.
const NODE: usize = 1024;
/// No extent.
pub(super) const NONE: u32 = u32::MAX;

type Leaf = [u32; LEAF];
type Node = [Option<Arc<Leaf>>; NODE];

/// A namespace's map, in three levels: a namespace far larger than what it holds costs little. A copy shares nodes and leaves with
/// its source until one of both changes there: a thousand snapshots cost what was written between them.
#[derive(Clone, Debug, Default)]
pub(super) struct ExtentMap {
    nodes: Vec<Option<Arc<Node>>>,
    len: u32,
}

/// Whether both are one, or neither is there.
fn same<T>(ours: Option<&Arc<T>>, theirs: Option<&Arc<T>>) -> bool {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
        (ours, theirs) => ours.is_none() && theirs.is_none(),
    }
}

impl ExtentMap {
    /// Extents in the map.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    fn node(&self, number: usize) -> Option<&Arc<Node>> {
        self.nodes.get(number)?.as_ref()
    }

    fn leaf(&self, place: usize) -> Option<&Arc<Leaf>> {
        self.node(place / NODE)?[place % NODE].as_ref()
    }

    /// The extent at `index`, or [`NONE`].
    pub(super) fn get(&self, index: u32) -> u32 {
        self.leaf(index as usize / LEAF).map_or(NONE, |leaf| leaf[index as usize % LEAF])
    }

    /// Puts `extent` at `index`; what was there.
    pub(super) fn set(&mut self, index: u32, extent: u32) -> Option<u32> {
        let place = index as usize / LEAF;
        if self.nodes.len() <= place / NODE {
            self.nodes.resize(place / NODE + 1, None);
        }
        let node = self.nodes[place / NODE].get_or_insert_with(|| Arc::new([const { None }; NODE]));
        let leaf = Arc::make_mut(node)[place % NODE].get_or_insert_with(|| Arc::new([NONE; LEAF]));
        let old = std::mem::replace(&mut Arc::make_mut(leaf)[index as usize % LEAF], extent);
        if old == NONE {
            self.len += 1;
        }
        (old != NONE).then_some(old)
    }

    /// Takes out what is at `index..index + count`.
    pub(super) fn clear(&mut self, index: u32, count: u32) -> Vec<u32> {
        let (start, end) = (index as usize, (index as usize).saturating_add(count as usize));
        let mut taken = Vec::new();
        for (number, slot) in self.nodes.iter_mut().enumerate() {
            let first = number * NODE;
            let inside = |place: usize| place.clamp(first, first + NODE) - first;
            let (from, to) = (inside(start / LEAF), inside(end.div_ceil(LEAF)));
            let Some(node) = slot.as_mut().filter(|_| from < to).map(Arc::make_mut) else { continue };
            for (at, slot) in node[..to].iter_mut().enumerate().skip(from) {
                let base = (first + at) * LEAF;
                let (from, to) = (start.clamp(base, base + LEAF) - base, end.clamp(base, base + LEAF) - base);
                let Some(leaf) = slot.as_mut() else { continue };
                taken.extend(leaf[from..to].iter().copied().filter(|&extent| extent != NONE));
                if to - from == LEAF {
                    *slot = None;
                } else {
                    Arc::make_mut(leaf)[from..to].fill(NONE);
                }
            }
            if node.iter().all(Option::is_none) {
                *slot = None;
            }
        }
        self.len -= taken.len() as u32;
        taken
    }

    /// The indices from `first` to `last` with their extents, ascending.
    pub(super) fn range(&self, first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (start, end) = (first as usize / LEAF, last as usize / LEAF); // leaves; `end` is among them
        let nodes = (start / NODE..=end / NODE).take_while(|&number| number < self.nodes.len());
        let nodes = nodes.filter_map(|number| Some((number, self.node(number)?)));
        let leaves = nodes.flat_map(move |(number, node)| {
            let base = number * NODE;
            let (from, to) = (start.saturating_sub(base), (end - base).min(NODE - 1));
            let leaves = node[from..=to].iter().enumerate();
            leaves.filter_map(move |(at, leaf)| Some((base + from + at, leaf.as_deref()?)))
        });
        leaves.flat_map(move |(place, leaf)| {
            let base = (place * LEAF) as u32;
            let (from, to) = (first.saturating_sub(base) as usize, ((last - base) as usize).min(LEAF - 1));
            let entries = leaf[from..=to].iter().enumerate(); // no range of indices: that of the last leaf overflows
            entries.filter(|(_, extent)| **extent != NONE).map(move |(at, &extent)| (base + (from + at) as u32, extent))
        })
    }

    /// Ranges of the indices `from..end` at which the maps name different extents, ascending, and the index behind the last one
    /// that was looked at. It is before `end` where there are more ranges than `most`, or they are far apart: no call takes long.
    pub(super) fn differences(&self, base: &ExtentMap, from: u32, end: u32, most: usize) -> (Vec<Range<u32>>, u32) {
        let (mut ranges, mut at, mut steps): (Vec<Range<u32>>, u32, usize) = (Vec::new(), from, 0);
        while at < end && steps < DIFFERENCE_STEPS_MAX {
            let (place, number) = (at as usize / LEAF, at as usize / LEAF / NODE);
            if number >= self.nodes.len().max(base.nodes.len()) {
                return (ranges, end);
            }
            let until = |stop: usize| stop.min(end as usize) as u32;
            let (ours, theirs) = (self.leaf(place), base.leaf(place));
            if same(self.node(number), base.node(number)) {
                (at, steps) = (until((number + 1) * NODE * LEAF), steps + 1);
                continue;
            }
            let stop = until((place + 1) * LEAF);
            if same(ours, theirs) {
                (at, steps) = (stop, steps + 1);
                continue;
            }
            let at_index = |leaf: Option<&Arc<Leaf>>, index: u32| leaf.map_or(NONE, |leaf| leaf[index as usize % LEAF]);
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
            let mut copies = Vec::new();
            for (kind, index, count) in steps {
                if count % 7 == 0 {
                    copies.push((map.clone(), plain.clone()));
                }
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
            for (copy, plain) in copies {
                prop_assert!(copy.iter().eq(plain), "what came later has changed a copy");
            }
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

    /// Each snapshot had a map of its own: a thousand of them on a namespace that is large and thin took tens of gigabytes.
    #[test]
    fn a_copy_shares_what_is_the_same() {
        let spacing = (LEAF * NODE) as u32;
        let mut map = ExtentMap::default();
        (0..4095).for_each(|number| drop(map.set(number * spacing, number)));
        let copy = map.clone();
        map.set(7 * spacing + 1, 1);
        map.clear(9 * spacing, 1);
        let apart = (0..4095).filter(|&number| !same(map.node(number), copy.node(number)));
        assert!(apart.eq([7, 9]));
        assert!(copy.iter().eq((0..4095).map(|number| (number * spacing, number))));
        let (found, next) = map.differences(&copy, 0, u32::MAX, 9);
        assert_eq!(found, [7 * spacing + 1..7 * spacing + 2, 9 * spacing..9 * spacing + 1]);
        assert_eq!(next, u32::MAX, "in one look: what is shared is skipped");
        assert!(map.range(8 * spacing, u32::MAX).next().is_some_and(|first| first == (8 * spacing, 8)));
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
