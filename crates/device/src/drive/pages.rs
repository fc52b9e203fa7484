//! The checksum pages: a bounded cache in memory of what stands on the medium, and the table that says what is good there.
//!
//! A page holds the checksums of 512 neighbouring units of the drive, whatever extents they belong to. On the medium it has
//! two places; the table has for each page the checksum of its content, with the place in the lowest bit, or 0 for a page that
//! was never written (all its units are unwritten). The table stands in the checkpoint, so a page can be neither torn nor
//! stale without being seen, and a page that is being replaced stays whole until the checkpoint that knows the new one.
//!
//! Invariants:
//! - Only a page that is neither dirty nor frozen is dropped from memory: the medium has nothing as new as the others.
//! - The table changes only when a checkpoint is complete.
//! - A page is loaded by one at a time, and nobody uses it meanwhile; an older content never replaces a newer one.

use std::sync::Arc;

use super::layout::PAGE_VALUES;

/// The values of one page.
pub(super) type Values = [u64; PAGE_VALUES];

/// A unit that was never written, or was deallocated: it reads as zeroes.
pub(super) const UNWRITTEN: u64 = 0;
/// A unit that can't be read until it is written again.
pub(super) const UNCORRECTABLE: u64 = 1;
/// The least value that is a checksum.
pub(super) const CHECKSUM_MIN: u64 = 2;

/// Where a page is. Its number in `slots` from `FIRST` on.
const ABSENT: u32 = 0;
const LOADING: u32 = 1;
const FIRST: u32 = 2;

struct Slot {
    page: u32,
    values: Arc<Values>,
    /// Changed since the last freeze.
    dirty: bool,
    /// Part of the checkpoint that is being written.
    frozen: bool,
    /// Used since the clock passed it.
    used: bool,
}

/// See the top.
pub(super) struct Pages {
    table: Vec<u64>,
    index: Vec<u32>,
    slots: Vec<Slot>,
    dirty: usize,
    hand: usize,
    clean_max: usize,
}

impl Pages {
    /// At most `clean_max` pages are kept that the medium has as well.
    pub(super) fn new(table: Vec<u64>, clean_max: usize) -> Pages {
        let index = vec![ABSENT; table.len()];
        Pages { table, index, slots: Vec::new(), dirty: 0, hand: 0, clean_max: clean_max.max(1) }
    }

    pub(super) fn table(&self) -> &[u64] {
        &self.table
    }

    pub(super) fn dirty(&self) -> usize {
        self.dirty
    }

    pub(super) fn clean_max(&self) -> usize {
        self.clean_max
    }

    fn slot(&self, page: u32) -> Option<usize> {
        self.index[page as usize].checked_sub(FIRST).map(|slot| slot as usize)
    }

    /// The page, if it is in memory.
    pub(super) fn get(&mut self, page: u32) -> Option<&Values> {
        let slot = self.slot(page)?;
        let slot = &mut self.slots[slot];
        slot.used = true;
        Some(&slot.values)
    }

    /// Whether the page is in memory; one that was never written is at once.
    pub(super) fn is_present(&mut self, page: u32) -> bool {
        if self.index[page as usize] == ABSENT && self.table[page as usize] == 0 {
            self.insert(page, Arc::new([UNWRITTEN; PAGE_VALUES]));
        }
        self.slot(page).is_some()
    }

    /// The page, in memory as the caller has made sure, to be changed.
    pub(super) fn change(&mut self, page: u32) -> &mut Values {
        let slot =
            self.slot(page).expect("a page is changed by those who hold it: it was found present, and then kept dirty");
        let slot = &mut self.slots[slot];
        self.dirty += usize::from(!slot.dirty);
        slot.dirty = true;
        Arc::make_mut(&mut slot.values)
    }

    /// Keeps the page in memory until the next checkpoint.
    pub(super) fn keep(&mut self, page: u32) {
        self.change(page);
    }

    /// The caller is to load the page: its table entry. `None`: somebody else does, or it is there.
    pub(super) fn begin_load(&mut self, page: u32) -> Option<u64> {
        if self.index[page as usize] != ABSENT {
            return None;
        }
        self.index[page as usize] = LOADING;
        Some(self.table[page as usize])
    }

    /// The load has come to nothing.
    pub(super) fn end_load(&mut self, page: u32) {
        if self.index[page as usize] == LOADING {
            self.index[page as usize] = ABSENT;
        }
    }

    /// The page as it stands on the medium.
    pub(super) fn insert(&mut self, page: u32, values: Arc<Values>) {
        let new = Slot { page, values, dirty: false, frozen: false, used: true };
        let place = match self.victim() {
            Some(place) => {
                self.index[self.slots[place].page as usize] = ABSENT;
                self.slots[place] = new;
                place
            }
            None => {
                self.slots.push(new);
                self.slots.len() - 1
            }
        };
        self.index[page as usize] = place as u32 + FIRST;
    }

    /// A slot to be used anew: by the clock, once as many pages are there as may be.
    fn victim(&mut self) -> Option<usize> {
        if self.slots.len() < self.clean_max {
            return None;
        }
        for _ in 0..2 * self.slots.len() {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            if !slot.dirty && !slot.frozen && !std::mem::take(&mut slot.used) {
                return Some(self.hand);
            }
        }
        None
    }

    /// Takes the changed pages as they are now; they stay in memory until [`Pages::thaw`].
    pub(super) fn freeze(&mut self) -> Vec<(u32, Arc<Values>)> {
        let mut frozen = Vec::with_capacity(self.dirty);
        for slot in self.slots.iter_mut().filter(|slot| slot.dirty) {
            (slot.dirty, slot.frozen) = (false, true);
            frozen.push((slot.page, Arc::clone(&slot.values)));
        }
        self.dirty = 0;
        frozen
    }

    /// The frozen pages are on the medium, with these table entries; or (`None`) they are not.
    pub(super) fn thaw(&mut self, entries: Option<&[(u32, u64)]>) {
        for slot in self.slots.iter_mut().filter(|slot| slot.frozen) {
            slot.frozen = false;
            if entries.is_none() && !slot.dirty {
                slot.dirty = true;
                self.dirty += 1;
            }
        }
        for &(page, entry) in entries.unwrap_or_default() {
            self.table[page as usize] = entry;
        }
    }
}

/// A page's entry in the table: the checksum of its content at its number on this drive, and the place.
pub(super) fn page_entry(drive: u64, page: u32, content: &[u8], copy: u64) -> u64 {
    let sum = xxhash_rust::xxh3::xxh3_64_with_seed(content, drive ^ u64::from(page)) & !1 | copy;
    sum.max(CHECKSUM_MIN | copy)
}

/// The checksum of a unit whose content hashes to `hash`, at place `unit` of the drive: the same bytes elsewhere, or of another
/// drive, have another.
pub(super) fn unit_value(drive: u64, unit: u64, hash: u64) -> u64 {
    // A bijection of the hash for each place: an odd factor and xor shifts (SplitMix64's finalizer).
    let mut z = hash ^ drive ^ unit.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    if z < CHECKSUM_MIN { z + CHECKSUM_MIN } else { z }
}

/// The hash of a unit's content.
pub(super) fn unit_hash(content: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(value: u64) -> Arc<Values> {
        Arc::new([value; PAGE_VALUES])
    }

    #[test]
    fn what_the_medium_lacks_is_never_dropped() {
        let mut pages = Pages::new(vec![2; 100], 4);
        for page in 0..4 {
            assert_eq!(pages.begin_load(page), Some(2));
            assert_eq!(pages.begin_load(page), None, "one loads at a time");
            pages.insert(page, filled(10));
        }
        pages.change(1)[0] = 7;
        let frozen = pages.freeze();
        assert_eq!((frozen.len(), frozen[0].0, frozen[0].1[0], pages.dirty()), (1, 1, 7, 0));
        pages.change(1)[0] = 8;
        pages.change(2)[0] = 9;
        assert_eq!(frozen[0].1[0], 7, "what is being written does not change");
        for page in 4..50 {
            pages.insert(page, filled(0));
        }
        assert_eq!((pages.get(1).map(|page| page[0]), pages.get(2).map(|page| page[0])), (Some(8), Some(9)));
        assert!(pages.slots.len() <= 6, "{} slots for 4 clean pages and 2 changed ones", pages.slots.len());
        pages.thaw(Some(&[(1, 33)]));
        assert_eq!((pages.table()[1], pages.dirty()), (33, 2));
        pages.freeze();
        pages.thaw(None);
        assert_eq!(pages.dirty(), 2, "a checkpoint that failed has written nothing");
    }

    #[test]
    fn a_checksum_knows_its_place() {
        let hash = unit_hash(&[5; 4096]);
        assert_ne!(unit_value(1, 2, hash), unit_value(1, 3, hash));
        assert_ne!(unit_value(1, 2, hash), unit_value(2, 2, hash));
        assert!(unit_value(1, 2, hash) >= CHECKSUM_MIN);
        let content = [3; 4096];
        assert_ne!(page_entry(1, 1, &content, 0), page_entry(1, 2, &content, 0));
        assert_eq!(page_entry(1, 1, &content, 1) & 1, 1);
    }
}
