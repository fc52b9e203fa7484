//! Scrub finds what is wrong with a heap, and repair puts it right, while values stay what they are.

use std::collections::BTreeMap;

use device::{Durability, Memory, Namespace};
use engine::Buf;
use pool::{Geometry, HeapGroup, TablePage};

use super::tests::{Pool, value};
use super::*;
use crate::testing::{Counting, create, memories, run};

pub(super) const SCRUB: ScrubOptions =
    ScrubOptions { check_values: true, check_heap: true, bytes_per_second: None, progress: None };
pub(super) const REPAIR: RepairOptions =
    RepairOptions { check_values: true, check_heap: true, accept_stale: false, bytes_per_second: None, progress: None };

/// A pool with values of all kinds, and what they are.
pub(super) async fn filled(pool: &Pool) -> BTreeMap<[u8; 4], Vec<u8>> {
    let mut model = BTreeMap::new();
    for number in 0..60u32 {
        let bytes = vec![number as u8; [10, 3900, 9000, 200_000][number as usize % 4]];
        pool.store.put(&number.to_le_bytes(), value(&bytes)).await.unwrap();
        model.insert(number.to_le_bytes(), bytes);
    }
    pool.store.settle().await;
    model
}

pub(super) async fn check(pool: &Pool, model: &BTreeMap<[u8; 4], Vec<u8>>) {
    for (key, bytes) in model {
        assert_eq!(pool.store.get(key).await, Ok(Some(value(bytes))));
    }
}

#[test]
fn a_scrub_of_a_sound_pool_is_clean_and_reads_within_its_rate() {
    run(20, async {
        let pool = Pool::new(3, 3).await;
        filled(&pool).await;
        let start = engine::time::now();
        let report = pool.store.scrub(&ScrubOptions { bytes_per_second: Some(10 << 20), ..SCRUB }).await;
        assert!(report.is_clean() && report.keys == 60, "{report:?}");
        // Of 3 members: 15 values of 3 pages, 15 of 49 pages and an index page.
        assert_eq!((report.heap_pages_claimed, report.heap_pages_unreferenced), (3 * 15 * (3 + 50), 0), "{report:?}");
        assert_eq!(report.guests_unreferenced, 0);
        // Each command's share is rounded.
        let least = Duration::from_secs_f64(report.bytes as f64 / (10 << 20) as f64) - Duration::from_millis(1);
        assert!(report.bytes > 3 * 15 * 209_000 && start.elapsed() >= least, "{:?}", start.elapsed());
    });
}

/// Were the group's free pages given away again, one that is about to be published would be overwritten.
#[test]
fn a_damaged_allocation_page_is_rebuilt_from_the_references() {
    run(21, async {
        let pool = Pool::new(3, 3).await;
        let model = filled(&pool).await;
        let table = pool.store.table(1).unwrap();
        let groups: Vec<_> = (0..table.layout().geometry.heap_groups).step_by(2).map(HeapGroup).collect();
        for group in &groups {
            pool.damage(1, table.layout().allocation(*group)).await;
        }
        let report = pool.store.scrub(&SCRUB).await;
        assert!(
            report.damaged_groups.count == groups.len() as u64 && report.is_equal() && !report.is_clean(),
            "{report:?}"
        );
        let report = pool.store.repair(&REPAIR).await;
        assert!(report.is_complete() && report.groups_rebuilt == groups.len() as u64, "{report:?}");
        let report = pool.store.scrub(&SCRUB).await;
        assert!(report.is_clean() && report.heap_pages_lost > 0, "{report:?}");
        let slots = groups.len() as u64 * crate::page::SLOTS as u64;
        assert_eq!(report.heap_pages_unreferenced, report.heap_pages_lost);
        assert!(report.heap_pages_lost < slots - 200, "what is referred to is not set aside: {report:?}");
        // New values go where nothing was set aside, and what is replaced is free again.
        for number in 0..20u32 {
            pool.store.put(&number.to_le_bytes(), value(&[1; 9000])).await.unwrap();
        }
        pool.store.settle().await;
        let after = pool.store.scrub(&SCRUB).await;
        assert!(after.is_clean(), "{after:?}");
        assert_eq!(after.heap_pages_unreferenced, report.heap_pages_lost);
        for (number, (key, bytes)) in model.iter().enumerate() {
            let bytes = if number < 20 { &[1; 9000][..] } else { bytes };
            assert_eq!(pool.store.get(key).await, Ok(Some(value(bytes))));
        }
    });
}

/// The medium has lost an acknowledged claim: the page is good, and its extents would be given to the next writer.
#[test]
fn extents_that_are_not_claimed_are_claimed_again() {
    run(22, async {
        let pool = Pool::new(3, 3).await;
        let model = filled(&pool).await;
        let layout = pool.store.table(2).unwrap().layout();
        for group in (0..layout.geometry.heap_groups).map(HeapGroup) {
            let mut empty = Buf::zeroed(4096);
            pool::blank::write(&mut empty, pool.store.map().members[2].incarnation);
            pool.members[2].inner.write(layout.allocation(group), empty.freeze(), Durability::Stable).await.unwrap();
        }
        let host = pool.host();
        let report = host.scrub(&SCRUB).await;
        assert!(
            report.damaged_groups.count > 0 && report.damaged_groups.first.iter().all(|bad| bad.0 == 2),
            "{report:?}"
        );
        let report = host.repair(&REPAIR).await;
        assert!(report.is_complete() && report.extents_claimed == 15 + 15 * 3, "{report:?}");
        for number in 100..110u32 {
            host.put(&number.to_le_bytes(), value(&vec![1; 100_000])).await.unwrap();
        }
        host.settle().await;
        let report = host.scrub(&SCRUB).await;
        assert!(report.is_clean(), "{report:?}");
        check(&pool, &model).await;
    });
}

const COLLECT: CollectOptions = CollectOptions { bytes_per_second: None, progress: None, age_min: Duration::ZERO };

/// A host that ends at any step of its puts leaves something behind; the collector frees just that, and what it frees can
/// be used again.
#[test]
fn what_crashed_hosts_leave_is_collected_and_nothing_else() {
    run(23, async {
        let pool = Pool::new(3, 3).await;
        let model = filled(&pool).await;
        let before = pool.store.scrub(&SCRUB).await;
        for step in 0..12 {
            let host = pool.host();
            pool.members[1].cut.set(Some((step, step % 2 == 0)));
            let put = host.put(b"crash", value(&vec![step as u8; if step % 3 == 0 { 200_000 } else { 9000 }])).await;
            assert_eq!(put, Ok(()), "two others have it");
            // The host is gone: it never tries again.
            drop(host);
            pool.members[1].cut.set(None);
            pool.down(1, false);
        }
        let report = pool.store.repair(&REPAIR).await;
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(pool.store.delete(b"crash").await, Ok(true));
        pool.store.settle().await;
        let left = pool.store.scrub(&SCRUB).await;
        assert!(left.is_clean() && left.heap_pages_unreferenced > 0, "{left:?}");
        let young = pool.store.collect(&CollectOptions::default()).await;
        assert!(young.heap_pages_freed == 0 && young.young > 0, "a store may be under way: {young:?}");
        let report = pool.store.collect(&COLLECT).await;
        assert!(report.failed == 0 && report.heap_pages_freed == left.heap_pages_unreferenced, "{report:?}");
        let after = pool.store.scrub(&SCRUB).await;
        assert!(after.is_clean() && after.heap_pages_unreferenced == 0 && after.guests_unreferenced == 0, "{after:?}");
        assert_eq!(after.heap_pages_claimed, before.heap_pages_claimed);
        check(&pool, &model).await;
    });
}

/// It bears no home page to look at, so all pages are.
#[test]
fn what_a_rebuild_has_set_aside_is_collected_unless_it_is_in_use() {
    run(24, async {
        let pool = Pool::new(3, 3).await;
        let model = filled(&pool).await;
        let layout = pool.store.table(0).unwrap().layout();
        for group in (0..layout.geometry.heap_groups).map(HeapGroup) {
            pool.damage(0, layout.allocation(group)).await;
        }
        let report = pool.store.repair(&REPAIR).await;
        assert!(report.is_complete() && report.groups_rebuilt > 2, "{report:?}");
        let full = pool.store.scrub(&SCRUB).await;
        assert!(full.heap_pages_lost > 100, "{full:?}");
        assert_eq!(pool.store.collect(&CollectOptions::default()).await.heap_pages_freed, 0);
        let report = pool.store.collect(&COLLECT).await;
        assert!(report.failed == 0 && report.heap_pages_freed == full.heap_pages_lost, "{report:?}");
        let after = pool.store.scrub(&SCRUB).await;
        assert!(after.is_clean() && after.heap_pages_lost == 0, "{after:?}");
        for number in 100..120u32 {
            pool.store.put(&number.to_le_bytes(), value(&vec![1; 100_000])).await.unwrap();
        }
        pool.store.settle().await;
        check(&pool, &model).await;
        assert!(pool.store.scrub(&SCRUB).await.is_clean());
    });
}

/// Nobody asks for it: damage is put right, and what crashed hosts left is freed, within the period.
#[test]
fn the_background_scrub_repairs_and_collects() {
    run(25, async {
        let pool = Pool::new(3, 3).await;
        let model = filled(&pool).await;
        pool.damage(2, pool.store.table(2).unwrap().layout().allocation(HeapGroup(0))).await;
        let page = pool.page_of(1, &5u32.to_le_bytes());
        pool.damage(1, pool.store.table(1).unwrap().layout().table(page)).await;
        let pause = Duration::from_secs(200);
        let options = ScrubberOptions { pause, bytes_per_second: Some(32 << 20), age_min: Duration::ZERO };
        let scrubber = pool.store.start_scrubber(options);
        engine::time::sleep(3 * pause).await;
        let report = pool.store.scrub(&SCRUB).await;
        assert!(report.is_clean() && report.heap_pages_unreferenced == 0, "{report:?}");
        drop(scrubber);
        check(&pool, &model).await;
    });
}

/// A bundle is a copy that a home page refers to like any other: not an orphan, and gathered anew when it is lost.
#[test]
fn bundles_are_scrubbed_and_repaired_and_no_orphans() {
    run(24, async {
        // 64 pages of 4 KiB and no heap.
        let members: Vec<_> = memories(3, (1152 << 10) + 64 * 4096).into_iter().map(Counting::new).collect();
        let map = create(&members, 3, 1000).await;
        let store = Store::new(map.clone(), members.iter().cloned().map(Some).collect());
        let pool = Pool { members, map, store };
        let keys: Vec<_> = (0..64 * 33u32).map(|number| format!("key {number:04}").into_bytes()).collect();
        for key in &keys {
            pool.store.put(key, value(&key[2..].repeat(10))).await.unwrap();
        }
        pool.store.settle().await;
        let bundled = |page| {
            let table = pool.store.table(1).unwrap().clone();
            async move { table.bundles_of(TablePage(page)).await }
        };
        let mut bundles = Vec::new();
        for page in 0..64 {
            bundles.extend(bundled(page).await.into_iter().map(|bundle| (TablePage(page), bundle)));
        }
        assert!(bundles.len() >= 3, "{bundles:?}");
        let report = pool.store.scrub(&SCRUB).await;
        assert!(report.is_clean() && report.keys == keys.len() as u64, "{report:?}");
        assert_eq!(report.guests_unreferenced, 0);
        let collected = pool.store.collect(&CollectOptions { age_min: Duration::ZERO, ..Default::default() }).await;
        assert!(collected.guests > 5 && collected.guests_freed == 0 && collected.failed == 0, "{collected:?}");
        for (home, bundle) in &bundles[..3] {
            let table = pool.store.table(1).unwrap();
            assert!(table.remove_guest(TablePage(bundle.place as u32), bundle.copy, *home).await.unwrap());
        }
        let report = pool.store.scrub(&SCRUB).await;
        assert!((1..=3).contains(&report.damaged_pages.count), "{report:?}");
        for key in &keys {
            assert_eq!(pool.store.get(key).await, Ok(Some(value(&key[2..].repeat(10)))));
        }
        let report = pool.store.repair(&REPAIR).await;
        assert!(report.is_complete() && (1..=3).contains(&report.pages_rebuilt), "{report:?}");
        pool.store.settle().await;
        let report = pool.store.scrub(&SCRUB).await;
        assert!(report.is_clean() && report.guests_unreferenced == 0, "{report:?}");
    });
}

/// A walk goes in stretches of the member with the most pages: of a smaller one a page may lie in two of them, and was counted
/// twice, rebuilt or not; one that could not be rebuilt again by the second walk.
#[test]
fn a_damaged_page_counts_once_wherever_a_walk_meets_it() {
    run(26, async {
        let sized = |(size, id): (u64, u8)| Counting::new(Arc::new(Memory::new(size << 20, 4096, [id; 16]).unwrap()));
        let members: Vec<_> = [(40, 1), (56, 2), (64, 3)].map(sized).into();
        let map = create(&members, 3, 500).await;
        let store = Store::new(map.clone(), members.iter().cloned().map(Some).collect());
        let pool = Pool { members, map, store };
        pool.store.put(b"key", value(b"v")).await.unwrap();
        pool.store.settle().await;
        let edge = pool.store.inner.topology().stretch(0).to.expect("more than a stretch");
        let geometry = pool.map.geometry(0);
        let page = geometry.home(edge);
        assert_eq!(geometry.home(edge - 1), page, "it lies in two stretches");
        pool.damage(0, pool.store.table(0).unwrap().layout().table(page)).await;
        assert_eq!(pool.store.scrub(&SCRUB).await.damaged_pages.count, 1);
        pool.down(1, true);
        pool.down(2, true);
        let report = pool.store.repair(&RepairOptions::default()).await;
        assert_eq!((report.pages_rebuilt, report.failed, report.reasons.len()), (0, 1, 1), "{report:?}");
        pool.down(1, false);
        pool.down(2, false);
        let report = pool.store.repair(&REPAIR).await;
        assert_eq!((report.pages_rebuilt, report.failed), (1, 0), "{report:?}");
    });
}

/// Pages that could not be read counted as empty ones: a member of which none could be held 0 bytes.
#[test]
fn what_can_not_be_read_is_not_taken_for_empty() {
    run(27, async {
        let pool = Pool::new(3, 3).await;
        filled(&pool).await;
        let table = pool.store.table(1).unwrap();
        let Geometry { table_pages, heap_groups, .. } = table.layout().geometry;
        let before = pool.store.usage(1).await.unwrap();
        for page in (0..table_pages).step_by(2) {
            pool.damage(1, table.layout().table(TablePage(page))).await;
        }
        let half = pool.store.usage(1).await.unwrap();
        assert_eq!(
            (half.table_bytes, half.damaged_pages > 0, half.exact),
            (before.table_bytes, true, false),
            "{half:?}"
        );
        for page in (1..table_pages).step_by(2) {
            pool.damage(1, table.layout().table(TablePage(page))).await;
        }
        assert!(pool.store.usage(1).await.is_err(), "its pages tell nothing");
        assert_eq!(pool.store.estimate().await.unreachable, [1]);
        // Of another one the heap.
        let table = pool.store.table(2).unwrap();
        for group in (0..heap_groups).map(HeapGroup) {
            pool.damage(2, table.layout().allocation(group)).await;
        }
        assert!(pool.store.usage(2).await.is_err(), "its allocation pages tell nothing");
        assert!(pool.store.usage(0).await.is_ok_and(|usage| usage.entries > 0));
    });
}

/// At a low rate the members of a stretch were read one after the other, each when it had its turn. That was more than ten seconds
/// apart, and so every key in it was read again, alone, at all its homes.
#[test]
fn a_slow_walk_reads_no_more_than_a_fast_one() {
    run(53, async {
        let pool = Pool::new(3, 3).await;
        for number in 0..100u32 {
            pool.store.put(&number.to_le_bytes(), value(b"v")).await.unwrap();
        }
        pool.store.settle().await;
        let mut reads = Vec::new();
        for bytes_per_second in [None, Some(16 << 10)] {
            pool.take();
            let report = pool.store.repair(&RepairOptions { bytes_per_second, ..RepairOptions::default() }).await;
            assert!(report.is_complete() && report.keys == 100, "{report:?}");
            reads.push(pool.take());
        }
        assert_eq!(reads[0], reads[1]);
    });
}
