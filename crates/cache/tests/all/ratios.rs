//! How often each policy hits, on traces that are made here, beside exact LRU in as much memory.
//!
//! `REQUESTS=3000000` replays that many of each trace, whose figures stand in `docs/cache.md`; the gate replays fewer, which shows
//! that the test works and that the default is not the worse one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cache::hash::Hasher;
use cache::item::{Key, Meta, NewValue};
use cache::memory::Budget;
use cache::policy::PolicyKind;
use cache::slot::{Look, Slot, Slots};
use cache::store::{Store, StoreOptions};
use engine::rng::SplitMix;

#[path = "../filling/mod.rs"]
mod filling;

use filling::{NOW, wait};

/// Requests of each trace unless `REQUESTS` says otherwise.
const REQUESTS: u64 = 400_000;
/// Keys per request: so that at any length the trace asks for all of the popular ones and few of the others.
const KEYS_PER_REQUEST: f64 = 0.2;
/// Mean bytes of an item with what it takes beside: to make memory a part of all items.
const ITEM_BYTES: u64 = 410;

/// A key of the pool ETC of Atikoglu and others (*Workload analysis of a large-scale key-value store*, SIGMETRICS 2012), by number:
/// its length by their generalised extreme value distribution, its value's by their generalised Pareto distribution.
fn item(number: u64) -> (Vec<u8>, usize) {
    let mut random = SplitMix(number.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let spread = (-random.unit().max(1e-9).ln()).powf(-0.078688) - 1.0;
    let key_length = (30.7984 + 8.20449 / 0.078688 * spread).clamp(16.0, 120.0) as usize;
    let value_length = (214.476 / 0.348238 * ((1.0 - random.unit()).powf(-0.348238) - 1.0)).min(60_000.0) as usize;
    let mut key = format!("{number:016x}").into_bytes();
    key.resize(key_length, b'k');
    (key, value_length)
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Trace {
    /// Zipf's law over all keys; one request in thirty is a set.
    Etc,
    /// As above, and popularity wanders: each key is asked for for a while.
    Wandering,
    /// As the first, but four requests in ten belong to a scan over keys that are not asked for again.
    Scans,
}

/// The requests of a trace: a key's number, and whether it is a set.
fn requests(trace: Trace, count: u64) -> impl Iterator<Item = (u64, bool)> {
    let keys = (count as f64 * KEYS_PER_REQUEST) as usize;
    let mut sum = 0.0;
    let shares: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += (rank as f64).powf(-0.9);
            sum
        })
        .collect();
    let mut random = SplitMix(trace as u64 + 1);
    let mut scanned = 1 << 40;
    (0..count).map(move |number| {
        let is_scan = trace == Trace::Scans && number / 1000 % 10 < 4;
        if is_scan {
            scanned += 1;
            return (scanned, false);
        }
        let at = random.unit() * sum;
        let mut key = shares.partition_point(|&share| share < at) as u64;
        if trace == Trace::Wandering {
            // A rank is another key every so many requests, each rank at its own time.
            let turn = (number + key.wrapping_mul(7919) % count) / (count / 4);
            key += turn << 32;
        }
        (key, random.draw().is_multiple_of(30))
    })
}

/// Anything that keeps items.
trait Keeps {
    /// A get, or a set; whether the item was there.
    fn request(&mut self, number: u64, is_set: bool) -> bool;
}

/// Hits of gets per get, of what follows the first third; a miss is followed by a set, as clients do.
fn ratio(keeps: &mut dyn Keeps, trace: Trace, count: u64) -> f64 {
    let (mut gets, mut hits) = (0_u64, 0_u64);
    for (at, (number, is_set)) in (0..).zip(requests(trace, count)) {
        let hit = keeps.request(number, is_set);
        if !is_set && at > count / 3 && number < 1 << 40 {
            gets += 1;
            hits += u64::from(hit);
        }
        if !is_set && !hit {
            keeps.request(number, true);
        }
    }
    hits as f64 / gets as f64
}

impl Keeps for Store {
    fn request(&mut self, number: u64, is_set: bool) -> bool {
        let (bytes, length) = item(number);
        let key = Key::new(&bytes, self.hasher().hash(&bytes)).unwrap();
        if !is_set {
            let Ok(hit) = self.visit(&key, NOW, Look::Whole, |slot| {
                slot.note_access();
                slot.item().is_some()
            });
            return hit;
        }
        let value = vec![0; length];
        loop {
            let Ok(stored) =
                self.visit(&key, NOW, Look::Unseen, |slot| slot.put(Meta::default(), NewValue::Pieces(&[&value])));
            let Err(no_room) = stored else { return true };
            wait(self.make_room(no_room)).unwrap();
        }
    }
}

/// The yardstick: exact LRU over items of the same size, in the same memory, nothing of which is lost.
struct ExactLru {
    /// Order of use and bytes of each key.
    items: HashMap<u64, (u64, usize)>,
    order: BTreeMap<u64, u64>,
    next: u64,
    bytes: usize,
    limit: usize,
}

impl ExactLru {
    fn new(limit: usize) -> ExactLru {
        ExactLru { items: HashMap::new(), order: BTreeMap::new(), next: 0, bytes: 0, limit }
    }
}

impl Keeps for ExactLru {
    fn request(&mut self, number: u64, is_set: bool) -> bool {
        let there = self.items.contains_key(&number);
        if !there && !is_set {
            return false;
        }
        let (key, length) = item(number);
        let bytes = (32 + key.len() + length).next_multiple_of(8) + 9;
        self.next += 1;
        if let Some((used, _)) = self.items.insert(number, (self.next, bytes)) {
            self.order.remove(&used);
        } else {
            self.bytes += bytes;
        }
        self.order.insert(self.next, number);
        while self.bytes > self.limit {
            let (_, oldest) = self.order.pop_first().unwrap();
            self.bytes -= self.items.remove(&oldest).unwrap().1;
        }
        there
    }
}

#[test]
fn the_default_policy_hits_more_often_than_lru() {
    let count = std::env::var("REQUESTS").map_or(REQUESTS, |text| text.parse().expect("REQUESTS is a number"));
    let mut worse = Vec::new();
    for trace in [Trace::Etc, Trace::Wandering, Trace::Scans] {
        // A part of few items would be few segments, which tell more of their grain than of the policy.
        let parts: &[usize] = if count < 1_000_000 { &[25] } else { &[5, 20] };
        for &percent in parts {
            let all = (count as f64 * KEYS_PER_REQUEST) as u64 * ITEM_BYTES;
            let limit = all as usize * percent / 100;
            let over = |policy| {
                let budget = Arc::new(Budget::without_buffers(limit));
                let mut store =
                    Store::new(Hasher::new([1, 2]), budget, StoreOptions { policy, ..StoreOptions::default() });
                let ratio = ratio(&mut store, trace, count);
                (ratio, store.usage())
            };
            let (s3fifo, usage) = over(PolicyKind::S3Fifo);
            let (lru, _) = over(PolicyKind::Lru);
            let exact = ratio(&mut ExactLru::new(limit), trace, count);
            let live = usage.counters.bytes as f64 / usage.limit as f64;
            println!(
                "{trace:?} {percent} %, {limit} bytes: S3-FIFO {s3fifo:.4}, LRU {lru:.4}, exact LRU {exact:.4}; items are {live:.3} of \
                 memory, {} copied and {} evicted of {} stored",
                usage.counters.copied, usage.counters.evicted, usage.counters.stored
            );
            // Where all popularity changes at once, what comes new has to come twice: that is known, and bounded here.
            let allowed = if trace == Trace::Wandering { 0.07 } else { 0.0 };
            if s3fifo < lru - allowed || s3fifo < exact - 0.01 - allowed {
                worse.push(format!("{trace:?} {percent}: {s3fifo} {lru} {exact}"));
            }
        }
    }
    assert!(worse.is_empty(), "{worse:?}");
}
