//! A host's memory is bounded by what it has under way, not by what is stored: no index of keys, no cache.
//!
//! `ENTRIES=10000000` (`make entries`) stores so many, in some three minutes; the gate stores a few, which shows that the test
//! works.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use device::Memory;
use engine::sim::{SimConfig, World};
use kv::{Store, Value};
use pool::geometry::TABLE_OFFSET;
use pool::{CreateOptions, NewMember};

/// Entries that are stored unless `ENTRIES` says otherwise.
const ENTRIES: u64 = 50_000;
/// Puts under way at once.
const WRITERS: usize = 64;
/// Bytes of an entry: 32 and its key and value.
const ENTRY_BYTES: u64 = 32 + 12 + 16;
/// Part of the table that is filled, in tenths.
const FILL_TENTHS: u64 = 8;
/// Virtual time between two puts of a writer.
const PAUSE: Duration = Duration::from_micros(10);
/// What the process may grow by, beside the medium, between a tenth of the entries and all. Chosen: 2 bytes an entry of ten
/// million; an index of keys would take twenty.
const GROWTH_BYTES_MAX: u64 = 20 << 20;

fn name(number: u64) -> [u8; 12] {
    let mut name = *b"entry.......";
    name[4..].copy_from_slice(&number.to_be_bytes());
    name
}

/// Resident memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn host_memory_does_not_grow_with_the_number_of_entries() {
    let entries = std::env::var("ENTRIES").map_or(ENTRIES, |text| text.parse().expect("ENTRIES is a number"));
    World::new(1, SimConfig::default())
        .run_until(async move {
            let pages = (entries * ENTRY_BYTES * 10 / FILL_TENTHS / 4032).max(64);
            let memory = Rc::new(Memory::new(TABLE_OFFSET + pages * 4096, 4096, [1; 16]).unwrap());
            let new = NewMember::at(memory.clone(), "nqn.2026-01.example:entries", 1, Vec::new());
            let options = CreateOptions { replicas: 1, table_share: 1000, ..CreateOptions::default() };
            let map = pool::create(&[new], &options, |_| ()).await.unwrap();
            let store = Rc::new(Store::new(map, vec![Some(memory.clone())]));
            let held = || resident_bytes().saturating_sub(memory.allocated_bytes());
            let begun = Instant::now();
            put_up_to(&store, 0, entries / 10).await;
            let before = held();
            put_up_to(&store, entries / 10, entries).await;
            let growth = held().saturating_sub(before);
            let rate = entries as f64 / begun.elapsed().as_secs_f64();
            println!(
                "{entries} entries of {ENTRY_BYTES} bytes: {rate:.0} puts a second, {growth} bytes of memory more"
            );
            assert!(growth <= GROWTH_BYTES_MAX, "{growth} bytes");
            for number in (0..entries).step_by(entries as usize / 1000) {
                let read = store.get(&name(number)).await.unwrap().unwrap();
                assert!(read.equals(&[number as u8; 16]), "{number}");
            }
        })
        .unwrap();
}

async fn put_up_to(store: &Rc<Store>, from: u64, to: u64) {
    let next = Rc::new(Cell::new(from));
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (store, next) = (store.clone(), next.clone());
            engine::task::spawn(async move {
                while next.get() < to {
                    let number = next.replace(next.get() + 1);
                    store.put(&name(number), Value::copy_from(&[number as u8; 16])).await.unwrap();
                    // The medium takes no time, and a world whose clock stands still is taken for one that hangs.
                    engine::time::sleep(PAUSE).await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await;
    }
    store.settle().await;
}
