//! What admission is worth: hits and writes of a plain model of both tiers, over requests as a cache sees them.

use std::collections::{BTreeMap, VecDeque};

use cache::flash::admission::{Admission, AdmitAll, Sketch};
use engine::rng::SplitMix;

/// Keys that are asked for more than once.
const KEYS: usize = 30_000;
const MEMORY_ITEMS: usize = 600;
const FLASH_ITEMS: usize = 5_400;
const REQUESTS: usize = 300_000;

/// Memory is a queue by last use, flash one by arrival; what was asked for while it was on flash is written there again
/// once.
struct Tiers<'a> {
    admission: &'a dyn Admission,
    clock: u64,
    memory: BTreeMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    flash: BTreeMap<u64, bool>,
    queue: VecDeque<u64>,
    hits: usize,
    written: usize,
}

impl Tiers<'_> {
    fn request(&mut self, key: u64) {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.admission.note(hash);
        self.clock += 1;
        if let Some(used) = self.memory.insert(key, self.clock) {
            self.by_use.remove(&used);
            self.hits += 1;
        } else if let Some(popular) = self.flash.get_mut(&key) {
            *popular = true;
            self.hits += 1;
        }
        self.by_use.insert(self.clock, key);
        if self.memory.len() > MEMORY_ITEMS
            && let Some((_, leaving)) = self.by_use.pop_first()
        {
            self.memory.remove(&leaving);
            self.offer(leaving);
        }
    }

    fn offer(&mut self, key: u64) {
        // A copy that is still there is not written again.
        if self.flash.contains_key(&key) || !self.admission.admits(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            return;
        }
        self.flash.insert(key, false);
        self.queue.push_back(key);
        self.written += 1;
        while self.flash.len() > FLASH_ITEMS
            && let Some(oldest) = self.queue.pop_front()
        {
            // At most every second: what is kept must not be all.
            if self.flash.get(&oldest) == Some(&true) && self.queue.len().is_multiple_of(2) {
                self.flash.insert(oldest, false);
                self.queue.push_back(oldest);
                self.written += 1;
                continue;
            }
            self.flash.remove(&oldest);
            self.admission.note_displaced(oldest.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
    }
}

/// Share of hits, and writes per request, of the second half of the requests. `once`: percent of requests for keys that
/// nobody asks for again.
fn run(admission: &dyn Admission, once: u64) -> (f64, f64) {
    let mut random = SplitMix(7);
    let weights: Vec<f64> = (1..=KEYS).map(|rank| 1.0 / (rank as f64).powf(0.9)).collect();
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let shares: Vec<f64> = weights.iter().map(|weight| (sum += weight / total, sum).1).collect();
    let mut tiers = Tiers {
        admission,
        clock: 0,
        memory: BTreeMap::new(),
        by_use: BTreeMap::new(),
        flash: BTreeMap::new(),
        queue: VecDeque::new(),
        hits: 0,
        written: 0,
    };
    for request in 0..REQUESTS {
        if request == REQUESTS / 2 {
            (tiers.hits, tiers.written) = (0, 0);
        }
        let (kind, point) = (random.draw() % 100, random.unit());
        let again = shares.partition_point(|&share| share < point);
        let key = if kind < once { KEYS + request } else { again } as u64;
        tiers.request(key);
    }
    let count = (REQUESTS / 2) as f64;
    (tiers.hits as f64 / count, tiers.written as f64 / count)
}

#[test]
fn the_sketch_writes_less_and_hits_no_less() {
    for once in [0, 20, 50] {
        let (all_hits, all_written) = run(&AdmitAll, once);
        let (hits, written) = run(&Sketch::new(FLASH_ITEMS), once);
        println!(
            "{once} % once: all: {:.2} % hits, {all_written:.3} writes per request; sketch: {:.2} %, {written:.3}",
            all_hits * 100.0,
            hits * 100.0
        );
        assert!(hits > all_hits - 0.002, "{once} % once: {hits} of {all_hits}");
        assert!(written < all_written * 0.7, "{once} % once: {written} of {all_written}");
    }
}
