//! Looks at a pool that nobody uses any more: replicas equal, every key on its homes alone, no page of a heap lost.

use std::time::Duration;

use engine::time;
use kv::store::{CollectOptions, ForgetOptions, RepairOptions, ScrubOptions, ScrubReport};
use pool::{KeyHash, TablePage};

use crate::sim::cluster::HostStore;

/// Tries until the replicas must be equal, or everything collected. Guessed: the first may meet connections that are not
/// up yet, or pages that are damaged.
const TRIES_MAX: usize = 6;
/// Between two.
const PAUSE: Duration = Duration::from_secs(2);

/// Frees what crashed hosts have left, of whatever age: nobody else is there.
pub async fn collect(store: &HostStore) {
    while store.refresh().await.is_err() {
        time::sleep(PAUSE).await; // connections are being made
    }
    let options = CollectOptions { age_min: Duration::ZERO, ..CollectOptions::default() };
    let mut repaired = None;
    for _ in 0..TRIES_MAX {
        store.settle().await;
        if store.collect(&options).await.failed == 0 {
            return;
        }
        // What is damaged can't be looked at.
        repaired = Some(store.repair(&RepairOptions { check_heap: true, ..RepairOptions::default() }).await);
        time::sleep(PAUSE).await;
    }
    panic!("what was left behind can't be collected: {:?}; {repaired:?}", store.collect(&options).await);
}

/// Repairs until nothing is left to do; `false`: but for values of which no good copy is left.
///
/// Such a value was on a minority, or a get of its key fails: that is for the caller to look at.
pub async fn repair(store: &HostStore) -> bool {
    let options = RepairOptions { check_values: true, check_heap: true, ..RepairOptions::default() };
    let mut report = store.repair(&options).await;
    for _ in 1..TRIES_MAX {
        if report.is_complete() {
            return true;
        }
        time::sleep(PAUSE).await;
        report = store.repair(&options).await;
    }
    let is_lost = |reason: &String| reason.contains("no good copy is left");
    let all_told = report.reasons.len() as u64 == report.failed;
    let only_lost = report.unreachable.is_empty() && all_told && report.reasons.iter().all(is_lost);
    assert!(report.is_complete() || only_lost, "repair did not end: {report:?}");
    report.is_complete()
}

async fn scrub(store: &HostStore) -> ScrubReport {
    store.settle().await;
    store.scrub(&ScrubOptions { check_values: true, check_heap: true, ..ScrubOptions::default() }).await
}

/// Replicas are equal and at home, and no page of a heap is claimed that nothing refers to.
pub async fn nothing_is_amiss(store: &HostStore) {
    let report = scrub(store).await;
    assert!(report.is_clean(), "after repair: {report:?}");
    let left = (report.heap_pages_unreferenced, report.heap_pages_lost, report.guests_unreferenced);
    assert_eq!(left, (0, 0, 0), "left behind: {report:?}");
    let map = store.map();
    let placements = map.placements();
    for index in 0..map.members.len() {
        let table = store.table(index).expect("every member of the map is connected");
        for page in 0..table.layout().geometry.table_pages {
            let image = table.read_page(TablePage(page)).await.expect("pages are readable when all is well");
            for (key, _) in image.entries(&table).expect("its entries too") {
                let homes = placements.new.homes(KeyHash::new(&key, map.hash_seed));
                let key = String::from_utf8_lossy(&key);
                assert!(homes.contains(&(index as u16)), "{key} is on member {index}, where it is not at home");
            }
        }
    }
}

/// With all keys gone, all room is free.
pub async fn nothing_is_claimed(store: &HostStore) {
    let report = scrub(store).await;
    assert_eq!((report.keys, report.heap_pages_claimed), (0, 0), "all keys are deleted: {report:?}");
}

/// What was deleted is forgotten, all of it.
pub async fn forget(store: &HostStore) {
    let report = store.forget(&ForgetOptions { at_once: true, ..ForgetOptions::default() }).await;
    assert!(report.swept && report.hindered.is_none(), "deleted keys can't be forgotten: {report:?}");
    let scrubbed = scrub(store).await;
    assert!(scrubbed.is_clean() && scrubbed.tombstones == 0, "{report:?} {scrubbed:?}");
}
