//! The complete stack in a simulated world: storage nodes serving files over NVMe/TCP, hosts with the store, faults by seed.
//!
//! Judged from outside, after each run: every history is linearizable per key; the bytes of every value are those written;
//! once the faults have ended all replicas are repaired until they are equal; and what is listed then is what is there.
//!
//! `SEED=n` runs one seed and prints its trace's hash; `SEEDS=n` runs n fresh ones. A seed that fails is printed; the same
//! seed is the same run, byte for byte.
//!
//! That it sees something was tried with the patches in `mutants/`: a majority of one less, no write-back, writes that are
//! not stable (in the store or in the target), extents freed whoever owns them: each is found within 100 seeds.

mod chaos;
mod cluster;
mod load;
mod run;
mod scenario;

use std::hash::{BuildHasher, Hasher, RandomState};

use run::run;
use scenario::{Faults, Scenario};

/// Seeds of the gate.
const SEEDS_FIXED: std::ops::Range<u64> = 1..9;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: not a number")))
}

/// A seed from outside, where one is welcome: it is printed, and makes the next run of it the same.
fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 16
}

#[test]
fn fixed_seeds() {
    if number("SEED").is_none() && number("SEEDS").is_none() {
        SEEDS_FIXED.for_each(|seed| run(&Scenario::new(seed)).print());
    }
}

#[test]
fn fresh_seeds() {
    if let Some(seed) = number("SEED") {
        return run(&Scenario::new(seed)).print();
    }
    let first = number("SEED_FIRST").unwrap_or_else(fresh_seed);
    for seed in first..first + number("SEEDS").unwrap_or(1) {
        run(&Scenario::new(seed)).print();
    }
}

/// The same seed, twice: the same events at the same times.
#[test]
fn one_seed_is_one_run() {
    if number("SEEDS").is_none() {
        let scenario = Scenario { operations: 10, ..Scenario::new(2) };
        assert_eq!(run(&scenario).trace_hash, run(&scenario).trace_hash);
    }
}

/// Without faults nothing may fail: every operation of every size succeeds.
#[test]
fn without_faults_nothing_fails() {
    if number("SEEDS").is_none() {
        let scenario = Scenario { faults: Faults::default(), sizes: 3, replicas: 3, ..Scenario::new(77) };
        let summary = run(&scenario);
        assert_eq!((summary.failed, summary.history.unknown), (0, 0), "{summary:?}");
    }
}
