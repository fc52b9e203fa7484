//! What the index takes per item.
//!
//! `ENTRIES=50000000` (`make entries`) counts fifty million; the gate counts fewer at the same mean load, which shows that the
//! test works.

use std::sync::Arc;

use cache::hash::Hasher;
use cache::index::{FlashPlace, Index, Location, MOVED_MAX};
use cache::memory::{Budget, Kind, Pool, SEGMENT_BYTES};

/// Entries that are counted unless `ENTRIES` says otherwise.
const ENTRIES: u64 = 1_000_000;
/// Shards, as a server with two threads has them.
const SHARD_BITS: u32 = 3;
/// The most bytes per item, all in. The aim; the limit of what was asked for is 16.
const ENTRY_BYTES_MAX: f64 = 10.0;

#[test]
fn an_item_on_flash_takes_ten_bytes_of_memory() {
    let entries = std::env::var("ENTRIES").map_or(ENTRIES, |text| text.parse().expect("ENTRIES is a number"));
    let hasher = Hasher::new([0x1234, 0x5678]);
    // A server whose memory is index to a quarter.
    let memory = entries as usize * 9 * 4;
    let pool = Pool::new(Arc::new(Budget::new(memory)), 0);
    let new = || Index::new(SHARD_BITS, Index::first_level(memory >> SHARD_BITS));
    let mut shards: Vec<Index> = (0..1 << SHARD_BITS).map(|_| new()).collect();
    let place = |number: u64| FlashPlace { page: number as u32, slot: (number >> 32) as u8 };
    for number in 0..entries {
        let hash = hasher.hash(&number.to_le_bytes());
        let index = &mut shards[(hash >> (64 - SHARD_BITS)) as usize];
        while index.insert(hash, Location::Flash(place(number), 0), &pool).is_err() {
            assert!(pool.grow(), "over a quarter of the memory");
        }
    }
    // Nothing is counted twice or left out: what was taken from the system is what the shards hold and what is free.
    let held: usize = shards.iter().map(Index::segments).sum();
    assert_eq!((held + pool.free()) * SEGMENT_BYTES, pool.budget().held(Kind::Segments));
    // Each shard has a segment that is not all in use yet, which counts for nothing among fifty million items, but here.
    let bytes: usize = shards.iter().map(Index::bytes).sum();
    let each = bytes as f64 / entries as f64;
    let moved = shards.iter().map(Index::moved_most).max().unwrap();
    println!("{entries} items: {bytes} bytes of index, {each:.2} each; one insert moved {moved} entries at most");
    assert!(each <= ENTRY_BYTES_MAX, "{each} bytes each");
    assert!(moved <= MOVED_MAX);
    // They are found; and how often something else looks like what is sought is what it costs in reads of flash.
    let mut false_reads = 0;
    for number in (0..entries).step_by(entries as usize / 100_000) {
        let hash = hasher.hash(&number.to_le_bytes());
        let index = &shards[(hash >> (64 - SHARD_BITS)) as usize];
        let found = index.find(hash, |entry| {
            let right = entry.location() == Location::Flash(place(number), 0);
            false_reads += u32::from(!right);
            right
        });
        assert!(found.is_some(), "{number}");
    }
    println!("{false_reads} of 100000 lookups met another key of the same remainder first");
    assert!(false_reads < 200);
}
