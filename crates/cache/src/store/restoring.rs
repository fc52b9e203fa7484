//! The index of what was found on flash after a restart, made before the store is used.
//!
//! Summaries wait until their items are many; then as many threads as there are cores read them out and deal the items by their
//! hashes, and after that each takes shards, and for these what all have dealt.
//! Each shard's index is filled first ([`Filling`]) and put in order when all were told. Where memory runs out before that it is
//! put in order at once, and what comes then is entered one by one: an item for which there is no room may still take the place
//! of an older one.

use std::ops::Range;

use crate::flash::{Place, Records, Restore};
use crate::index::{Filling, FlashPlace, Location};
use crate::memory::Kind;
use crate::shard::{INDEX_PART, Restored};

use super::{Cell, Store, empty_index};

/// The part of the memory that items may take which wait, as a divisor, and the most of them. Chosen: much more than a share.
const WAITING_PART: usize = 16;
const WAITING_MAX: usize = 1 << 20;
/// Bytes of an item that waits: its record, and the copy that is dealt out.
const WAITING_BYTES: usize = size_of::<u64>() + size_of::<(u64, Place)>();
/// Bits of hashes by which items are dealt out before they are appended, at least. Chosen: what tables of one hand have in use fits
/// the caches that are nearest, and so do the ends of all hands.
const DEALT_BITS: u32 = 9;
/// So many items at least are a thread's share. Guessed: to start one takes as long as two thousand.
const SHARE_MIN: usize = 16 << 10;
/// What a summary counts for beside its items while it waits.
const SUMMARY_ITEMS: usize = 4;
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
    waiting: Vec<Records>,
    /// What they count for, and may.
    items_waiting: usize,
    items_waiting_max: usize,
    /// Threads that may work at the same time.
    threads: usize,
    /// Where they are dealt out, a thread's each.
    dealt: Vec<Dealt>,
    /// Items of all that was told.
    told: usize,
}

impl Drop for Restoring<'_> {
    fn drop(&mut self) {
        self.store.budget.give(Kind::Pending, self.items_waiting_max * WAITING_BYTES);
    }
}

/// One shard's.
struct Part<'a> {
    store: &'a Store<()>,
    cell: &'a Cell,
    /// Hands in which its items are.
    hands: Range<usize>,
    /// Until memory runs out, or all were told.
    filling: Option<Filling>,
    displaced: Vec<Place>,
}

impl Store<()> {
    /// What [`crate::flash::FlashLog::open`] asks of whom it tells, before the store is used. What there is no memory for is
    /// displaced like what is older. It blocks while shards are filled, and longest at the end: some ten nanoseconds an item.
    pub fn restoring(&self) -> Restoring<'_> {
        let items_waiting_max = (self.budget.room() / WAITING_PART / WAITING_BYTES).clamp(1, WAITING_MAX);
        self.budget.take(Kind::Pending, items_waiting_max * WAITING_BYTES);
        let hands_each = 1 << (self.dealt_bits() - self.cells.len().ilog2());
        let hands = (0..self.cells.len()).map(|number| number * hands_each..(number + 1) * hands_each);
        let part = |(cell, hands)| Part { store: self, cell, hands, filling: None, displaced: Vec::new() };
        Restoring {
            store: self,
            parts: self.cells.iter().map(|cell| &cell.0).zip(hands).map(part).collect(),
            waiting: Vec::new(),
            items_waiting: 0,
            items_waiting_max,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            dealt: Vec::new(),
            told: 0,
        }
    }

    /// Bits of hashes by which items are dealt out: those that choose the shard, and some more.
    fn dealt_bits(&self) -> u32 {
        DEALT_BITS.max(self.cells.len().ilog2())
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

    fn found(&mut self, items: Records, displaced: &mut Vec<Place>) {
        if items.is_empty() {
            return;
        }
        let count = items.len() + SUMMARY_ITEMS;
        if self.items_waiting + count > self.items_waiting_max {
            self.work(displaced, self.items_waiting, Part::fill);
        }
        self.allow(count);
        self.told += items.len();
        self.items_waiting += count;
        self.waiting.push(items);
    }

    fn end(&mut self, displaced: &mut Vec<Place>) {
        self.work(displaced, self.told, |part, dealt| {
            part.fill(dealt);
            part.settle();
        });
    }
}

impl<'a> Restoring<'a> {
    /// So many may wait: a single summary may be longer than what was meant to.
    fn allow(&mut self, items: usize) {
        let more = items.saturating_sub(self.items_waiting_max);
        self.store.budget.take(Kind::Pending, more * WAITING_BYTES);
        self.items_waiting_max += more;
    }

    /// Deals out what waits, and does a step for every part, with `items` in all.
    fn work(&mut self, displaced: &mut Vec<Place>, items: usize, step: impl Fn(&mut Part<'a>, &[Dealt]) + Sync) {
        let bits = self.store.dealt_bits();
        let threads = |items: usize| (items / SHARE_MIN).clamp(1, self.threads);
        let shares = shares(&self.waiting, threads(self.items_waiting));
        self.dealt.resize_with(shares.len(), Dealt::default);
        at_once(self.dealt.iter_mut().zip(shares), |(dealt, share)| dealt.deal(share, bits));
        let dealt = &self.dealt[..];
        let each = self.parts.len().div_ceil(threads(items));
        at_once(self.parts.chunks_mut(each), |parts| parts.iter_mut().for_each(|part| step(part, dealt)));
        self.parts.iter_mut().for_each(|part| displaced.append(&mut part.displaced));
        self.waiting.clear();
        self.items_waiting = 0;
    }
}

/// Summaries in shares, one behind the other, of about as many items: one for each of `threads` at most.
fn shares(waiting: &[Records], threads: usize) -> Vec<&[Records]> {
    let all: usize = waiting.iter().map(Records::len).sum();
    let (each, mut begin) = (all.div_ceil(threads), 0);
    let is_together = |one: &Records, _: &Records| {
        let share = begin / each;
        begin += one.len();
        begin / each == share
    };
    waiting.chunk_by(is_together).collect()
}

/// Does all at the same time, the first on this thread.
fn at_once<T: Send>(all: impl IntoIterator<Item = T>, work: impl Fn(T) + Sync) {
    let (mut all, work) = (all.into_iter(), &work);
    let ours = all.next();
    // tidy: thread: at a start, before anything is served, and each share has a part of the index to itself
    std::thread::scope(|scope| {
        for one in all {
            scope.spawn(move || work(one));
        }
        ours.into_iter().for_each(work);
    });
}

/// Items, dealt out by the first bits of their hashes, so that those of one table follow one another soon.
#[derive(Default)]
struct Dealt {
    /// Those behind the last hand are of another time.
    items: Vec<(u64, Place)>,
    /// Where each hand ends, which is where the next begins.
    ends: Vec<usize>,
}

impl Dealt {
    /// Deals out these instead; in one hand the order stays.
    fn deal(&mut self, records: &[Records], bits: u32) {
        let hand = |hash: u64| (hash >> (u64::BITS - bits)) as usize;
        let all = || records.iter().flat_map(Records::iter);
        self.ends.clear();
        self.ends.resize(1 << bits, 0);
        all().for_each(|(hash, _)| self.ends[hand(hash)] += 1);
        let mut begin = 0;
        for end in &mut self.ends {
            begin += std::mem::replace(end, begin);
        }
        // Neither is there ever a second copy, nor is one kept that is much longer than it need be.
        if self.items.len() < begin || self.items.len() > 2 * begin {
            self.items = Vec::new();
            self.items = vec![(0, Place::from_parts(0, 0)); begin];
        }
        all().for_each(|(hash, place)| {
            let at = &mut self.ends[hand(hash)];
            self.items[*at] = (hash, place);
            *at += 1;
        });
    }

    fn hand(&self, number: usize) -> &[(u64, Place)] {
        let begin = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.items[begin..self.ends[number]]
    }
}

impl Part<'_> {
    /// Takes its hands.
    fn fill(&mut self, dealt: &[Dealt]) {
        for number in self.hands.clone() {
            // Of one hash, who was told last comes last.
            for items in dealt.iter().map(|dealt| dealt.hand(number)) {
                let filled = self.append(items);
                if filled < items.len() {
                    self.settle();
                    self.enter(&items[filled..]);
                }
            }
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::flash::summary::record;
    use crate::hash::Hasher;
    use crate::memory::Budget;
    use crate::store::StoreOptions;

    #[test]
    fn what_waits_is_counted_until_all_was_told() {
        let budget = Arc::new(Budget::without_buffers(16 << 20));
        let store = Store::new(Hasher::new([1, 2]), budget.clone(), StoreOptions::default());
        let restoring = store.restoring();
        let waiting = restoring.items_waiting_max * WAITING_BYTES;
        assert!(waiting > 1 << 19 && waiting <= 1 << 20, "{waiting}");
        assert_eq!(budget.held(Kind::Pending), waiting);
        drop(restoring);
        assert_eq!(budget.held(Kind::Pending), 0);
    }

    #[test]
    fn dealt_out_by_hash_all_come_and_equal_ones_stay_in_order() {
        let hasher = Hasher::new([3, 4]);
        // Each hash comes three times.
        let hash = |number: u32| hasher.hash(&(number % 1000).to_le_bytes());
        let record = |number: u32| record(hash(number), Place::shared(number / 16, number % 16), 0);
        let mut dealt = Dealt::default();
        for (count, bits) in [(3000, 10), (1500, 1), (3000, 12), (0, 10)] {
            let records = [0..count / 3, count / 3..count].map(|range| Records::new(range.map(record).collect(), 0));
            dealt.deal(&records, bits);
            let mut expected: Vec<(u64, Place)> = records.iter().flat_map(Records::iter).collect();
            expected.sort_by_key(|(hash, _)| hash >> (64 - bits));
            assert!((0..1 << bits).flat_map(|hand| dealt.hand(hand)).eq(&expected), "{count} items by {bits} bits");
        }
    }

    #[test]
    fn every_thread_gets_a_share_of_what_waits() {
        let records = |count| Records::new(vec![0; count], 0);
        for (counts, threads, expected) in [
            (vec![100; 8], 4, vec![200; 4]),
            (vec![100; 8], 3, vec![300, 300, 200]),
            (vec![1000, 1, 1, 1, 1000, 1], 2, vec![1002, 1002]),
            (vec![5, 5], 128, vec![5, 5]),
            (vec![7], 1, vec![7]),
            (vec![], 2, vec![]),
        ] {
            let waiting: Vec<Records> = counts.into_iter().map(records).collect();
            let shares = shares(&waiting, threads);
            let counts: Vec<usize> = shares.iter().map(|share| share.iter().map(Records::len).sum()).collect();
            assert_eq!(counts, expected);
            assert!(shares.concat().len() == waiting.len());
        }
    }

    #[test]
    fn of_equal_ones_the_last_that_was_told_stays() {
        let hasher = Hasher::new([3, 4]);
        // All at once, on several threads, or a few segments at a time.
        for limit in [64 << 20, 8 << 20] {
            let budget = Arc::new(Budget::without_buffers(limit));
            let store = Store::new(Hasher::new([1, 2]), budget, StoreOptions::default());
            let mut restoring = store.restoring();
            restoring.threads = 3;
            restoring.begin(40 * 1500);
            let mut displaced = Vec::new();
            for first in (0..40).map(|segment| segment * 1024) {
                let place = |number: u32| Place::shared(first + number / 16, number % 16);
                let record = |number: u32| record(hasher.hash(&number.to_le_bytes()), place(number), first);
                restoring.found(Records::new((0..1500).map(record).collect(), first), &mut displaced);
            }

            restoring.end(&mut displaced);
            assert_eq!(displaced.len(), 39 * 1500);
            assert!(displaced.iter().all(|place| place.page() < 39 * 1024), "not of the last segment");
        }
    }
}
