//! The index of what was found on flash after a restart, made before the store is used.
//!
//! Items wait until they are many, sorted by their shards; then each shard takes its own, on as many threads as there are cores.
//! Each shard's index is filled first ([`Filling`]) and put in order when all were told. Where memory runs out before that it is
//! put in order at once, and what comes then is entered one by one: an item for which there is no room may still take the place
//! of an older one.

use crate::flash::{Place, Restore};
use crate::index::{Filling, FlashPlace, Location};
use crate::memory::Kind;
use crate::shard::{INDEX_PART, Restored};

use super::{Cell, Store, empty_index};

/// The part of the memory that items may take which wait, as a divisor, and the most of them. Chosen: a thread's start is below a
/// hundredth of its work.
const WAITING_PART: usize = 16;
const WAITING_MAX: usize = 1 << 20;
/// Bytes of an item that waits: it is dealt out into a copy, and a vector may have as much again to spare.
const WAITING_BYTES: usize = 3 * size_of::<(u64, Place)>();
/// Bits of hashes by which a shard's items are dealt out before they are appended. Chosen: what tables of one hand have in use fits
/// the caches that are nearest.
const DEALT_BITS: u32 = 8;
/// So many items are restored by one thread. Guessed: to start others takes as long.
const ALONE_MAX: usize = 2048;
/// How often an item is tried, whose table may be among many to be split.
const TRIES_MAX: usize = 1024;
/// How often a filling is tried that others may take the memory from.
const FILLING_TRIES_MAX: usize = 8;
/// Items that are entered one by one before it is asked again for memory.
const AT_ONCE: usize = 64;
/// Bytes of index that an item takes. Measured 9.5 (`make entries`).
const ITEM_BYTES: usize = 10;

/// What is restored to a store.
pub struct Restoring<'a> {
    store: &'a Store<()>,
    parts: Vec<Part<'a>>,
    waiting: usize,
    waiting_max: usize,
    /// All that was told.
    told: usize,
}

impl Drop for Restoring<'_> {
    fn drop(&mut self) {
        self.store.budget.give(Kind::Pending, self.waiting_max * WAITING_BYTES);
    }
}

/// One shard's.
struct Part<'a> {
    store: &'a Store<()>,
    cell: &'a Cell,
    /// Until memory runs out, or all were told.
    filling: Option<Filling>,
    items: Vec<(u64, Place)>,
    /// Where they are dealt out.
    dealt: Vec<(u64, Place)>,
    displaced: Vec<Place>,
}

impl Store<()> {
    /// What [`crate::flash::FlashLog::open`] asks of whom it tells, before the store is used. What there is no memory for is
    /// displaced like what is older. It blocks while shards are filled, and longest at the end: some ten nanoseconds an item.
    pub fn restoring(&self) -> Restoring<'_> {
        let parts = self.cells.iter().map(|cell| Part::new(self, &cell.0)).collect();
        let waiting_max = (self.budget.room() / WAITING_PART / WAITING_BYTES).clamp(1, WAITING_MAX);
        self.budget.take(Kind::Pending, waiting_max * WAITING_BYTES);
        Restoring { store: self, parts, waiting: 0, waiting_max, told: 0 }
    }

    /// What is left beside the index of what was restored would be too little for items. Nothing else has segments yet.
    fn is_crowded_by_index(&self) -> bool {
        let index = self.budget.held(Kind::Segments);
        index * INDEX_PART.1 > (index + self.budget.room()) * INDEX_PART.0
    }
}

impl Restore for Restoring<'_> {
    fn begin(&mut self, items: u64) {
        let affordable = self.store.budget.room() / INDEX_PART.1 * INDEX_PART.0 / ITEM_BYTES;
        let each = items.min(affordable as u64) as usize / self.parts.len();
        let shards = self.parts.len();
        for part in &mut self.parts {
            part.filling = Some(Filling::new(empty_index(shards, &self.store.budget), each));
        }
    }

    fn found(&mut self, items: &[(u64, Place)], displaced: &mut Vec<Place>) {
        for &(hash, place) in items {
            self.parts[self.store.cell_number(hash)].items.push((hash, place));
        }
        self.told += items.len();
        self.waiting += items.len();
        if self.waiting >= self.waiting_max {
            self.work(displaced, Part::fill);
        }
    }

    fn end(&mut self, displaced: &mut Vec<Place>) {
        self.work(displaced, |part| {
            part.fill();
            part.settle();
        });
    }
}

impl<'a> Restoring<'a> {
    /// Does a step for every part.
    fn work(&mut self, displaced: &mut Vec<Place>, step: impl Fn(&mut Part<'a>) + Sync) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if self.told < ALONE_MAX { 1 } else { cores };
        self.waiting = 0;
        let share = self.parts.len().div_ceil(threads);
        let mut shares = self.parts.chunks_mut(share);
        let ours = shares.next();
        let step = &step;
        std::thread::scope(|scope| {
            for share in shares {
                scope.spawn(move || share.iter_mut().for_each(step));
            }
            ours.into_iter().flatten().for_each(step);
        });
        self.parts.iter_mut().for_each(|part| displaced.append(&mut part.displaced));
    }
}

impl<'a> Part<'a> {
    fn new(store: &'a Store<()>, cell: &'a Cell) -> Part<'a> {
        Part { store, cell, filling: None, items: Vec::new(), dealt: Vec::new(), displaced: Vec::new() }
    }

    /// Takes what waits.
    fn fill(&mut self) {
        let mut items = std::mem::take(&mut self.items);
        deal(&items, self.store.shift + 1, &mut self.dealt);
        items.clear();
        self.items = items;
        let items = std::mem::take(&mut self.dealt);
        let filled = self.append(&items);
        if filled < items.len() {
            self.settle();
            self.enter(&items[filled..]);
        }
        self.dealt = items;
    }

    /// Appends items to the index that is being filled; how many there was room for.
    fn append(&mut self, items: &[(u64, Place)]) -> usize {
        let Some(filling) = &mut self.filling else { return 0 };
        for (number, &(hash, place)) in items.iter().enumerate() {
            let location = Location::Flash(place.into(), 0);
            let mut tries = 0;
            while filling.append(hash, location, &self.store.pool).is_err() {
                tries += 1;
                if tries == FILLING_TRIES_MAX || self.store.is_crowded_by_index() || !self.store.has_room(1) {
                    return number;
                }
            }
        }
        items.len()
    }

    /// Ends the filling: the shard has its index.
    fn settle(&mut self) {
        let Some(filling) = self.filling.take() else { return };
        // Some tables want one chunk more than they were filled with.
        if !self.store.is_crowded_by_index() {
            self.store.has_room(1);
        }
        let displaced = &mut self.displaced;
        let index = filling.settle(&self.store.pool, |location| {
            if let Location::Flash(place, _) = location {
                displaced.push(place.into());
            }
        });
        self.store.with_shard(self.cell, |shard| shard.adopt(index, &self.store.pool));
    }

    /// Enters items one by one. The shard is let go now and then: an insert may need memory.
    fn enter(&mut self, items: &[(u64, Place)]) {
        let mut rest = items.iter().peekable();
        let mut refused = 0;
        while rest.peek().is_some() {
            let is_crowded = self.store.is_crowded_by_index() || !self.store.has_room(1) || refused == TRIES_MAX;
            let displaced = &mut self.displaced;
            self.store.with_shard(self.cell, |shard| {
                let at_once = if refused == TRIES_MAX { 1 } else { AT_ONCE };
                for _ in 0..at_once {
                    let Some(&&(hash, place)) = rest.peek() else { return };
                    match shard.restore(hash, FlashPlace::from(place), is_crowded, &self.store.pool) {
                        Restored::There => {}
                        Restored::Instead(other) => displaced.push(other.into()),
                        Restored::NoRoom if is_crowded => displaced.push(place),
                        Restored::NoRoom => return refused += 1,
                    }
                    refused = 0;
                    rest.next();
                }
            });
        }
    }
}

/// Sorts a shard's items by the first bits of their hashes below the `rest` that the shards have left, so that those of one table
/// follow one another soon; of equal ones the order stays.
fn deal(items: &[(u64, Place)], rest: u32, dealt: &mut Vec<(u64, Place)>) {
    let hand = |hash: u64| (hash << (u64::BITS - rest) >> (u64::BITS - DEALT_BITS)) as usize;
    let mut ends = [0; 1 << DEALT_BITS];
    items.iter().for_each(|(hash, _)| ends[hand(*hash)] += 1);
    let mut begin = 0;
    for end in &mut ends {
        begin += std::mem::replace(end, begin);
    }
    dealt.clear();
    dealt.resize(items.len(), (0, Place::from_parts(0, 0)));
    for &item in items {
        let at = &mut ends[hand(item.0)];
        dealt[*at] = item;
        *at += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::hash::Hasher;
    use crate::memory::Budget;
    use crate::store::StoreOptions;

    #[test]
    fn what_waits_is_counted_until_all_was_told() {
        let budget = Arc::new(Budget::without_buffers(16 << 20));
        let store = Store::new(Hasher::new([1, 2]), budget.clone(), StoreOptions::default());
        let restoring = store.restoring();
        let waiting = restoring.waiting_max * WAITING_BYTES;
        assert!(waiting > 1 << 19 && waiting <= 1 << 20, "{waiting}");
        assert_eq!(budget.held(Kind::Pending), waiting);
        drop(restoring);
        assert_eq!(budget.held(Kind::Pending), 0);
    }

    #[test]
    fn dealt_out_by_hash_equal_ones_stay_in_order() {
        let hasher = Hasher::new([3, 4]);
        for rest in [64, 61, 54] {
            // Of one shard, and each hash comes three times.
            let hash = |number: u32| hasher.hash(&(number % 1000).to_le_bytes()) & (u64::MAX >> (64 - rest));
            let items: Vec<(u64, Place)> = (0..3000).map(|number| (hash(number), Place::shared(number, 1))).collect();
            let mut dealt = vec![items[0]; 7];
            deal(&items, rest, &mut dealt);
            let mut expected = items.clone();
            expected.sort_by_key(|(hash, _)| hash << (64 - rest) >> (64 - DEALT_BITS));
            assert!(dealt == expected, "{rest} bits");
        }
    }
}
