//! Items that share a page, read while it is open, when it is closed, and from the medium.

use std::collections::BTreeSet;
use std::sync::Arc;

use cache::flash::{FlashLog, Lookup, Place, Reason};
use cache::item::{Cas, Meta, NEVER, Seconds};
use device::Memory;
use engine::sim::{SimConfig, World};
use engine::task;

use crate::flash::owner::{SEGMENT_BYTES, journal, options};

/// Far apart, and at the ends of what there can be.
const CAS: [u64; 7] = [0, u64::MAX, 1 << 63, 1_000_000, (1 << 63) - 1, 999_000, 1 << 40];
/// Likewise; what is later than the calendar tells in 32 bits is told as its end.
const SECONDS: [u32; 5] = [1, u32::MAX - 1000, 1 << 31, 3600, 7200];

/// The items' metadata go through everything, each in its own order.
fn meta(number: usize) -> Meta {
    let bit = |bit: usize| number & (1 << bit) != 0;
    Meta {
        flags: [0, 1, 0, u32::MAX, 0x8000][number % 5],
        expires: [NEVER, Seconds(SECONDS[number / 3 % 5])][number % 2],
        accessed: Seconds(SECONDS[number / 2 % 5]),
        cas: Cas(CAS[number % 7]),
        fetched: bit(0),
        stale: bit(1),
        won: bit(2),
        binary_key: bit(3),
    }
}

/// Mostly short; now and then the end of one that is longer than a page lies before them.
fn value(number: usize) -> Vec<u8> {
    let len = if number % 40 == 39 { 5000 } else { number % 90 };
    (0..len).map(|at| (at ^ number) as u8).collect()
}

async fn check(log: &FlashLog, number: usize, place: Place) {
    let key = format!("key-{number}");
    let Lookup::Found(found) = log.read(place, key.as_bytes()).await else { panic!("item {number} is not there") };
    assert_eq!((found.key(), found.meta()), (key.as_bytes(), meta(number)), "item {number}");
    let read: Vec<u8> = found.value().iter().flat_map(|piece| piece.to_vec()).collect();
    assert_eq!(read, value(number), "item {number}");
    assert!(matches!(log.read(place, b"another").await, Lookup::Other));
}

#[test]
fn an_item_is_read_as_it_was_wherever_its_page_is() {
    let world = World::new(1, SimConfig::default());
    let node = world.node("n");
    let task = world.spawn_on(node, async {
        let namespace = Arc::new(Memory::new(9 * SEGMENT_BYTES as u64, 4096, [1; 16]).expect("a namespace"));
        let journal = journal(&*namespace, &options());
        let (log, _) = FlashLog::open(namespace, journal, &options(), ()).await.expect("opened");
        let log = Arc::new(log);
        let mut places = Vec::new();
        // As much as memory takes; nobody writes yet.
        loop {
            let (number, value) = (places.len(), value(places.len()));
            let hash = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let key = format!("key-{number}");
            let Ok(place) = log.append(hash, key.as_bytes(), &meta(number), &[&value], Reason::Admitted) else { break };
            check(&log, number, place).await;
            places.push(place);
        }
        let pages: BTreeSet<u32> = places.iter().map(|place| place.page()).collect();
        assert!(places.len() > 800 && pages.len() > 30, "{} items in {} pages", places.len(), pages.len());
        for (number, place) in places.iter().enumerate() {
            check(&log, number, *place).await;
        }
        assert_eq!((log.stats().device_reads, log.stats().device_writes), (0, 0), "all was in memory");
        let _writer = task::spawn(Arc::clone(&log).run());
        log.close().await.expect("closed");
        let before = log.stats();
        for (number, place) in places.iter().enumerate() {
            check(&log, number, *place).await;
        }
        assert_eq!(log.stats().buffer_reads, before.buffer_reads, "all was read from the medium");
        assert_eq!(log.stats().checksum_errors, 0);
    });
    world.run_until(task).expect("it ends");
}
