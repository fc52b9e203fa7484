//! Seals, and stores of older epochs that land behind them.

use pool::Map;

use super::tests::{SMALL, audit, get, key, record, ts};
use super::*;
use crate::testing::{Counting, create, memories, run};

/// The map of the next epoch.
fn later(map: &Map) -> Map {
    Map { epoch: map.epoch + 1, ..map.clone() }
}

/// Any page, also one that was never written: what an older epoch's host has read before, or reads later, is of no use.
#[test]
fn a_sealed_page_shows_and_takes_nothing_of_an_older_epoch() {
    run(8, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 500).await;
        let old = Table::new(members[0].clone(), &map, 0);
        let new = old.successor(&later(&map), 0);
        for (name, before) in [("empty", None), ("written", Some(100))] {
            let key = key(&map, name);
            if before.is_some() {
                old.store_if_newer(&key, &record(ts(1, 1), before), None, None).await.unwrap();
            }
            let early = old.read_page(old.home(&key)).await.unwrap();
            let sealed = new.seal(new.home(&key), None).await.unwrap();
            assert!(sealed.written && sealed.dropped == 0);
            assert!(!new.seal(new.home(&key), None).await.unwrap().written, "once is enough");
            let refused = |error| matches!(error, TableError::Sealed { seal: 2, .. });
            assert!(refused(old.read(&key).await.unwrap_err()));
            let late = old.store_if_newer(&key, &record(ts(2, 2), Some(50)), Some(early), None).await;
            assert!(refused(late.unwrap_err()));
            assert_eq!(get(&new, &key).await.1.map(|value| value.len()), before);
            new.store_if_newer(&key, &record(ts(3, 3), Some(60)), None, None).await.unwrap();
            assert_eq!(get(&new, &key).await.1.map(|value| value.len()), Some(60));
            assert!(refused(old.seal(old.home(&key), None).await.unwrap_err()), "a migrator that came too late");
        }
        audit(&new, true).await;
    });
}

/// Entries that are not at home any more go with the seal, their copies after it; also if the reply is lost.
#[test]
fn what_is_not_at_home_is_dropped_with_the_seal() {
    for lost in [None, Some((0, false)), Some((0, true))] {
        run(9, async move {
            let members: Vec<_> = memories(1, 4 * SMALL).into_iter().map(Counting::new).collect();
            let map = create(&members, 1, 500).await;
            let old = Table::new(members[0].clone(), &map, 0);
            let mut keys = Vec::new();
            for number in 0..60u32 {
                let key = key(&map, &number.to_string());
                let length = [20, 900, 3000, 9001, 300_000][number as usize % 5];
                old.store_if_newer(&key, &record(ts(1, number.into()), Some(length)), None, None).await.unwrap();
                keys.push((key, length));
            }
            let is_even = |key: &[u8]| key.last().is_some_and(|byte| byte % 2 == 0);
            let stays = |entry: &crate::page::Entry<'_>| is_even(entry.key);
            let new = old.successor(&later(&map), 0);
            members[0].cut.set(lost);
            let mut dropped = 0;
            for page in 0..new.layout().geometry.table_pages {
                let mut result = new.seal_and_drop(TablePage(page), None, stays).await;
                if result.is_err() {
                    members[0].down.set(false);
                    result = new.seal_and_drop(TablePage(page), None, stays).await;
                    if lost == Some((0, true)) {
                        continue;
                    }
                }
                dropped += result.unwrap().dropped;
            }
            assert!(dropped >= 25, "{dropped}");
            for (key, length) in &keys {
                let expected = is_even(key.bytes()).then_some(*length);
                assert_eq!(get(&new, key).await.1.map(|value| value.len()), expected, "{key:?}");
            }
            engine::time::sleep(std::time::Duration::from_secs(1)).await;
            new.quiesce().await;
            audit(&new, true).await;
        });
    }
}

/// A cleaner that is late: what a page has taken since it was sealed may be of the next change, whose homes are others.
#[test]
fn what_comes_behind_the_seal_is_not_dropped() {
    run(11, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 500).await;
        let old = Table::new(members[0].clone(), &map, 0);
        let new = old.successor(&later(&map), 0);
        let newest = new.successor(&later(&later(&map)), 0);
        let key = key(&map, "key");
        old.store_if_newer(&key, &record(ts(1, 1), Some(10)), None, None).await.unwrap();
        assert_eq!(new.seal_and_drop(new.home(&key), None, |_| false).await.unwrap().dropped, 1);
        newest.store_if_newer(&key, &record(ts(2, 2), Some(20)), None, None).await.unwrap();
        let again = new.seal_and_drop(new.home(&key), None, |_| false).await.unwrap();
        assert!(!again.written && again.dropped == 0);
        assert_eq!(get(&newest, &key).await.0, ts(2, 2));
    });
}

/// The page is written between two attempts of a seal, both of unknown outcome; the second lands later. What it drops is
/// freed then, though the page was past the first attempt's image all the time; once it has been looked at, nothing lands any more.
#[test]
fn what_a_seal_drops_late_is_freed() {
    late_seal(100, true);
    late_seal(5000, false);
}

fn late_seal(milliseconds: u32, lands: bool) {
    run(10, async move {
        let memory = memories(1, SMALL)[0].clone();
        let late = Counting::new(memory.clone());
        let map = create(std::slice::from_ref(&memory), 1, 500).await;
        let (old, new) = (Table::new(memory, &map, 0), Table::new(late.clone(), &later(&map), 0));
        let homes = |number: u32| Some(key(&map, &number.to_string())).filter(|key| old.home(key) == TablePage(3));
        let keys: Vec<_> = (0..).filter_map(homes).take(2).collect();
        old.store_if_newer(&keys[0], &record(ts(1, 1), Some(9000)), None, None).await.unwrap();
        let millisecond = std::time::Duration::from_millis(1);
        late.slow.set(millisecond);
        late.hold_swaps.set(true);
        let between = async {
            engine::time::sleep(millisecond * 3 / 2).await;
            old.store_if_newer(&keys[1], &record(ts(1, 2), Some(10)), None, None).await.unwrap();
        };
        let (sealed, ()) = both(new.seal_and_drop(TablePage(3), None, |_| false), between).await;
        assert!(sealed.unwrap_err().outcome_unknown());
        assert_eq!(late.held_swaps.borrow().len(), 2);
        late.hold_swaps.set(false);
        engine::time::sleep(millisecond * milliseconds).await;
        assert_eq!(get(&old, &keys[0]).await.0, ts(1, 1), "nothing has landed yet");
        late.land().await;
        engine::time::sleep(millisecond * 60_000).await;
        let entries = new.read_page(TablePage(3)).await.unwrap().entries(&new).unwrap();
        assert_eq!(entries.len(), if lands { 0 } else { 2 });
        old.quiesce().await;
        new.quiesce().await;
        audit(&new, true).await;
    });
}
