//! The process has resident what it was told to have, within a twentieth. One test, in a process of its own.

use std::sync::Arc;

use cache::hash::Hasher;
use cache::memory::{Budget, Kind};
use cache::store::{Store, StoreOptions};

mod filling;

use filling::{put, put_long, wait};

const LIMIT: usize = 128 << 20;

/// Resident memory of this process.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn resident_memory_is_what_was_asked_for() {
    let budget = Arc::new(Budget::new(LIMIT));
    budget.take(Kind::Base, resident_bytes());
    let store = Store::new(Hasher::new([1, 2]), budget, StoreOptions { threads: 2, ..StoreOptions::default() });
    let check = |limit: usize, phase: &str| {
        let resident = resident_bytes();
        println!("{phase}: {resident} bytes resident of {limit}, {} counted", store.budget().used());
        assert!(resident <= limit + limit / 20, "{phase}: {resident} bytes of {limit}");
    };
    let full = |limit: usize, phase: &str| {
        check(limit, phase);
        assert!(resident_bytes() >= limit - limit / 20, "{phase}: {} bytes of {limit}", resident_bytes());
    };
    check(LIMIT, "empty");
    // Short items: much index. Twice as many as fit.
    (0..2_500_000).for_each(|number| put(&store, number, 30));
    full(LIMIT, "short items");
    (0..200_000).for_each(|number| put(&store, 1 << 40 | number, 1000));
    full(LIMIT, "longer items");
    (0..150).for_each(|number| put_long(&store, 1 << 41 | number, 3 << 20));
    full(LIMIT, "long values");
    (0..60_000).for_each(|number| put(&store, 1 << 42 | number, 3900));
    full(LIMIT, "items of 3.9 KB");
    // Less, while it runs: it goes back to the system.
    store.set_limit(LIMIT / 2);
    wait(store.shrink()).unwrap();
    full(LIMIT / 2, "half the limit");
    (0..60_000).for_each(|number| put(&store, 1 << 43 | number, 2000));
    full(LIMIT / 2, "other items in half the limit");
    store.set_limit(LIMIT);
    (0..150).for_each(|number| put_long(&store, 1 << 44 | number, 3 << 20));
    (0..150_000).for_each(|number| put(&store, 1 << 45 | number, 1000));
    full(LIMIT, "the whole limit again");
}
