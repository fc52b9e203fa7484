//! Long lives by seed: power is lost now and then, also while a loss is recovered from, chunks go bad, programs and erases fail.
//! What was flushed is there after each loss, and the map is one that a plain model allows.
//!
//! `SEEDS=n` runs n fresh seeds, from `SEED_FIRST` on where it is set; `SEED=s` runs that one; none: the fixed seeds and a fresh
//! one.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{Namespace, Writability};
use engine::rng::SplitMix;
use flash::Policy;

use crate::crash::{Kind, Life, simulated};
use crate::over_zones::Below;

const SEEDS_FIXED: u64 = 6;
/// Losses of power in a life.
const ROUNDS: u64 = 25;
/// Failing seeds after which a run of many ends.
const FAILURES_MAX: usize = 10;
/// Seeds of the store's simulation, which are asked for of it alone.
const OF_OTHERS: [&str; 5] = ["SEEDS_FULL", "SEEDS_DRAWN_OUT", "SEEDS_ROLLED_BACK", "SEEDS_LOST", "SEEDS_HUNGRY"];

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: not a number")))
}

fn kind(seed: u64) -> Kind {
    let mut rng = SplitMix(seed ^ 0x4b1d);
    let policy = [Policy::Greedy, Policy::CostBenefit][rng.index(2)];
    let oob_bytes = [0, 16, 24, 64][rng.index(4)];
    let has_failures = rng.below(3) > 0;
    let ppm = |most: u64, rng: &mut SplitMix| if has_failures { rng.below(most) as u32 } else { 0 };
    let (bad_ppm, program_ppm, erase_ppm) = (ppm(30_000, &mut rng), ppm(1000, &mut rng), ppm(1000, &mut rng));
    let interleave = [0, 1, 2, 8][rng.index(4)];
    Kind { oob_bytes, bad_ppm, program_ppm, erase_ppm, policy, interleave, below: Below::Nothing }
}

/// Losses of power that a life of this seed has survived.
fn run(seed: u64) -> u64 {
    survived(kind(seed), seed)
}

/// The same on such a device.
pub fn survived(kind: Kind, seed: u64) -> u64 {
    simulated(seed, async move {
        let mut life = Life::begin(kind, seed, 15).await;
        let mut rng = SplitMix(seed);
        for round in 0..ROUNDS {
            let story = format!("{kind:?}, seed {seed}, round {round}");
            if rng.below(3) == 0 {
                life.nand.cut_at(Some(1 + rng.below(6)));
                let _either = life.open().await; // in time, or behind what it had to write
                life.nand.cut_at(None);
            }
            let mut namespace = life.open().await.unwrap_or_else(|error| panic!("{story}: {error}"));
            life.verify_opened(&namespace, &story).await;
            life.check(&namespace, &story).await;
            life.nand.cut_at(Some(1 + rng.below(250)));
            let _lost = life.go_on(&mut namespace, 60).await; // mostly
            life.nand.cut_at(None);
            if namespace.writability() == Writability::Failed && life.nand.is_on() {
                return round; // worn out: what it serves then has a test of its own
            }
        }
        ROUNDS
    })
}

fn run_all(first: u64, count: u64) {
    let (next, losses, failed) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count || failed.lock().expect("no panic inside").len() >= FAILURES_MAX {
                return;
            }
            match catch_unwind(|| run(first + index)) {
                Ok(survived) => drop(losses.fetch_add(survived, Ordering::Relaxed)),
                Err(_) => failed.lock().expect("no panic inside").push(first + index),
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    // tidy: thread: whole worlds side by side, none of which knows of another
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    println!("{count} lives on flash from seed {first} on: {} losses of power", losses.into_inner());
    let failed = failed.into_inner().expect("no panic inside");
    assert!(failed.is_empty(), "failing seeds, each run again with SEED=n: {failed:?}");
}

#[test]
fn fixed_seeds() {
    if ["SEED", "SEEDS"].iter().chain(&OF_OTHERS).all(|variable| number(variable).is_none()) {
        run_all(0, SEEDS_FIXED);
    }
}

#[test]
fn fresh_seeds() {
    if OF_OTHERS.iter().any(|variable| number(variable).is_some()) {
        return;
    }
    if let Some(seed) = number("SEED") {
        return println!("{} losses of power", run(seed));
    }
    let seed = RandomState::new().build_hasher().finish() >> 16;
    run_all(number("SEED_FIRST").unwrap_or(seed), number("SEEDS").unwrap_or(1));
}
