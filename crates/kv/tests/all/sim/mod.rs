//! The complete stack in a simulated world: storage nodes serving files over NVMe/TCP, hosts with the store, faults by seed.
//!
//! A seed draws from: hosts and storage nodes that crash (what was not flushed is lost, on one node torn) or stand still beyond
//! every deadline and lease with commands under way; links that are slow, reset, cut both ways, cut one way, or come and go;
//! disks that are slow, fail or forget, any of which may misread; calendar clocks that are wrong and jump by hours, monotonic
//! ones that drift; hosts that are suspended, and their clocks with them; runs of hours, in which what nobody refers to grows
//! old enough to be collected beside the load; members with hardly any room; operators who add, remove, replace, drain and
//! re-weight members over the pool's own agreement, die in the middle and are followed by others; a member that is rolled
//! back, and begun anew; the only voter of two that dies for good; repair, scrub and collection under load, and deleted keys
//! that are forgotten. The load: values of all sizes, deletes, conditional operations, numbers, pieces, values that end, lists
//! and scans; or clients of gateways that have little room for what these want ([`hungry`]).
//!
//! Judged from outside: every history is linearizable per key; the bytes of every value are those written; no value is shown
//! after its end; lists and scans show every key that is there throughout. Once the faults have ended, the change of the
//! pool comes to its end; all replicas are repaired until they are equal, every key on its homes alone, no page of a heap
//! claimed that nothing refers to; what is listed is what is there; and when all is deleted all room is free, and the deleted
//! keys are forgotten.
//!
//! `SEED=n` runs one seed and prints its trace's hash; `SEEDS=n` runs n fresh ones, `SEEDS_FULL=n` those of them whose members
//! have hardly any room, `SEEDS_DRAWN_OUT=n` those that go on for hours of their time, `SEEDS_ROLLED_BACK=n` those in which a
//! member's medium may be put back to what it was, `SEEDS_LOST=n` those whose only voter dies, `SEEDS_HUNGRY=n` those with
//! gateways. A seed that fails is printed; the same seed is the same run, byte for byte.
//!
//! That it sees something was tried with the patches in `mutants/`: a majority of one less, no write-back, writes that are
//! not stable (in the store or in the target), extents freed whoever owns them: each is found within 100 seeds.

mod audit;
mod book;
mod chaos;
mod cluster;
mod conditional;
mod hungry;
mod load;
mod mend;
mod operator;
mod rollback;
mod run;
mod scenario;
mod voters;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

use run::{Total, run};
use scenario::{Faults, HUNGRY, Scenario};

/// Seeds of the gate, from 1. Those after them run with all others (`make sim`).
const SEEDS_FIXED: u64 = 30;
/// Seeds with hungry clients, from [`HUNGRY`] on: in each some are refused for want of room.
const SEEDS_HUNGRY: [u64; 3] = [36_238_288_659_282, 36_238_288_659_285, 36_238_288_659_305];

/// Seeds that failed, with what was found. Each has a test of its own beside the code; here it stays for what else it meets.
const SEEDS_KEPT: [u64; 11] = [
    // A damaged page could not be rebuilt: crashed hosts had left the heap full of values of that very page, which the
    // collector left alone since their home could not be read.
    70_205,
    // Of two full replicas one had missed a put: a get, which would have had to store the newest there first, was refused.
    71_685,
    // Also 80594. A page waited for room in a heap whose allocation pages were all damaged, and these for the page to tell
    // what it refers to.
    80_510,
    // A put that one of five replicas had, its time over: the majority that was asked to delete it had never heard of it, and
    // repair was content with that.
    100_673,
    // A host knew the pool's first map only, whose voters had all left and come back in other lives since: it saw the newest
    // map, and asked for it to be settled by the old one, for ever.
    407_938,
    // Three replicas differed, two of them by conditional operations that the others had had no room for: no get could tell
    // what a majority had.
    403_599,
    // A guest filled a page to 95 %; then a key at home there grew, by the operations that it remembers, and nothing in the page
    // could leave it but that key. The member did not take it, and repair never ended, in a pool that was nearly empty.
    407_592,
    // A namespace left the pool and came back while a host had a write under way of a page that it had found empty there before.
    // The page was zeroes again, so the write succeeded, and its page belonged to a life that was over.
    59_195_384_144_809,
    // An operator knew the pool's first map only: one of its members was dead, the other had left and was formatted anew since. Who
    // asks these alone learns of no newer map; the operator asks all nodes now, as whoever names all addresses does.
    134_644_741_529_518,
    // An operator that had lost sight of a member went on cleaning up behind a change when others had ended it and carried out the
    // next, by which that member had become a home again: what it had taken since was dropped, an acknowledged delete.
    229_261_306_848_994,
    // Of 132 operations on two keys 49 were of unknown outcome: the checker had not decided the history after twenty million steps.
    229_261_306_845_412,
];

/// Seeds in which a member is rolled back: where its mark is not looked at, by an operator or by anybody, it is not begun anew. In
/// the last a host that did not know the mark yet let it vote.
const SEEDS_ROLLED_BACK: [u64; 3] = [9, 112, 119];

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: not a number")))
}

/// Which seeds a variable asks for.
type Asked = (&'static str, fn(&Scenario) -> bool);

/// What fresh seeds are asked for by.
const ASKED: [Asked; 6] = [
    ("SEEDS", |_| true),
    ("SEEDS_FULL", Scenario::is_nearly_full),
    ("SEEDS_DRAWN_OUT", |scenario| scenario.drawn_out),
    ("SEEDS_ROLLED_BACK", |scenario| scenario.faults.rollbacks),
    ("SEEDS_LOST", |scenario| scenario.faults.loss),
    ("SEEDS_HUNGRY", |scenario| scenario.hungry),
];

/// Seeds were asked for: the others are run by those who ask for none.
fn only_fresh() -> bool {
    number("SEED").is_some() || ASKED.iter().any(|(variable, _)| number(variable).is_some())
}

/// A seed from outside, where one is welcome: it is printed, and makes the next run of it the same.
fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 16
}

/// Failing seeds after which a run of many ends.
const FAILURES_MAX: usize = 10;

/// Runs seeds `first` and on, on all processors: a world knows nothing of another. Says of each what it came to, if they are
/// few, and of all.
fn run_all(first: u64, count: u64) {
    let (next, failed, total) = (AtomicU64::new(0), Mutex::new(Vec::new()), Mutex::new(Total::default()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count || failed.lock().expect("no panic inside").len() >= FAILURES_MAX {
                return;
            }
            let seed = first + index;
            let scenario = Scenario::new(seed);
            if ASKED.iter().any(|(variable, is_asked)| number(variable).is_some() && !is_asked(&scenario)) {
                continue;
            }
            match catch_unwind(|| run(&scenario)) {
                Ok(verdict) => {
                    let total = &mut *total.lock().expect("no panic inside");
                    total.add(&verdict);
                    if count <= EACH_SHOWN_MAX {
                        verdict.print();
                    } else if total.runs.is_multiple_of(500) {
                        println!("{total}");
                    }
                }
                Err(_) => failed.lock().expect("no panic inside").push(seed),
            }
        }
    };
    let workers = available_parallelism().map_or(1, usize::from);
    // tidy: thread: whole worlds side by side, none of which knows of another
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    println!("{}", total.into_inner().expect("no panic inside"));
    let failed = failed.into_inner().expect("no panic inside");
    assert!(failed.is_empty(), "failing seeds, each run again with SEED=n: {failed:?}");
}

/// Seeds of which each one's verdict is shown.
const EACH_SHOWN_MAX: u64 = 100;

#[test]
fn fixed_seeds() {
    if !only_fresh() {
        run_all(1, SEEDS_FIXED);
    }
}

#[test]
fn seeds_that_failed_once() {
    if !only_fresh() {
        SEEDS_KEPT.into_iter().for_each(|seed| run_all(seed, 1));
    }
}

#[test]
fn members_that_were_rolled_back() {
    if !only_fresh() {
        for seed in SEEDS_ROLLED_BACK {
            assert!(run(&Scenario::new(seed)).rolled_back, "seed {seed} rolls no member back any more: find another");
        }
    }
}

/// Commands that want more room than there is wait, and some are refused, while members fail.
#[test]
fn hungry_clients() {
    if !only_fresh() {
        for seed in SEEDS_HUNGRY {
            let room = run(&Scenario::new(HUNGRY + seed)).room;
            assert!(
                room.refused > 0 && room.waited_for > 0,
                "nobody lacked room in seed {seed}: find another ({room:?})"
            );
        }
        run_all(HUNGRY + fresh_seed(), 1);
    }
}

#[test]
fn fresh_seeds() {
    if let Some(seed) = number("SEED") {
        return run(&Scenario::new(seed)).print();
    }
    let seeds = ASKED.iter().find_map(|(variable, _)| number(variable)).unwrap_or(1);
    let mut first = number("SEED_FIRST").unwrap_or_else(fresh_seed);
    if number("SEEDS_HUNGRY").is_some() {
        first |= HUNGRY;
    }
    run_all(first, seeds);
}

/// The same seed, twice: the same events at the same times.
#[test]
fn one_seed_is_one_run() {
    if !only_fresh() {
        let scenario = Scenario { operations: 10, ..Scenario::new(2) };
        assert_eq!(run(&scenario).trace_hash, run(&scenario).trace_hash);
    }
}

/// Without faults nothing may fail: every operation of every size succeeds.
#[test]
fn without_faults_nothing_fails() {
    if !only_fresh() {
        for seed in [77, 78] {
            let quiet = Scenario {
                faults: Faults::default(),
                sizes: 3,
                replicas: 3,
                member_bytes: 16 << 20,
                ..Scenario::new(seed)
            };
            let summary = run(&quiet);
            assert_eq!((summary.failed, summary.history.unknown), (0, 0), "{summary:?}");
        }
    }
}
