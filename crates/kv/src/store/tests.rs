use std::collections::{BTreeMap, BTreeSet};

use device::{Durability, Memory, Namespace};
use engine::{Buf, time};
use pool::HeapPage;

use super::*;
use crate::table::Content;
use crate::testing::{Counting, create, memories, run};
use crate::types::VALUE_BYTES_MAX;
use crate::value::Value;

pub(super) type Member = Rc<Counting<Arc<Memory>>>;

/// A pool in memory whose members can be switched off, slowed and replaced, and a store over it.
pub(super) struct Pool {
    pub(super) members: Vec<Member>,
    pub(super) map: Map,
    pub(super) store: Store,
}

impl Pool {
    pub(super) async fn new(members: usize, replicas: u8) -> Pool {
        Pool::sized(members, replicas, 16 << 20).await
    }

    pub(super) async fn sized(members: usize, replicas: u8, bytes: u64) -> Pool {
        let members: Vec<_> = memories(members, bytes).into_iter().map(Counting::new).collect();
        let map = create(&members, replicas, 500).await;
        let store = Store::new(map.clone(), members.iter().cloned().map(Some).collect());
        let pool = Pool { members, map, store };
        // Superblocks are checked once.
        assert_eq!(pool.store.get(b"warm up").await, Ok(None));
        pool.store.settle().await;
        pool.take();
        pool
    }

    /// Another host.
    pub(super) fn host(&self) -> Store {
        Store::new(self.map.clone(), self.members.iter().cloned().map(Some).collect())
    }

    pub(super) fn take(&self) -> Vec<(u64, u64, u64)> {
        self.members.iter().map(|member| member.take()).collect()
    }

    pub(super) fn down(&self, index: usize, down: bool) {
        self.members[index].down.set(down);
        self.members[index].epoch.set(self.members[index].epoch.get() + u64::from(!down));
    }

    pub(super) async fn verify(&self) -> ScrubReport {
        self.store.settle().await;
        self.store.scrub(&ScrubOptions { check_values: true, ..ScrubOptions::default() }).await
    }

    pub(super) async fn damage(&self, index: usize, lba: device::Lba) {
        let memory = &self.members[index].inner;
        let (_, mut page) = memory.read(lba, Buf::with_len(4096)).await;
        page[20] ^= 1; // in any header, and in the shortest index of extents
        memory.write(lba, page.freeze(), Durability::Stable).await.unwrap();
    }

    pub(super) fn page_of(&self, index: usize, key: &[u8]) -> pool::TablePage {
        self.store.table(index).unwrap().home(&Key::new(key, self.map.hash_seed).unwrap())
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        self.equals(&other.to_vec())
    }
}

pub(super) fn value(bytes: &[u8]) -> Value {
    Value::copy_from(bytes)
}

#[test]
fn put_get_delete_list_with_every_replica_count() {
    for replicas in 1..=7 {
        run(replicas.into(), async move {
            let pool = Pool::new(7, replicas).await;
            let store = &pool.store;
            assert_eq!(store.delete(b"a").await, Ok(false));
            for len in [0, 5, 3900, 5000, 300_000, 1 << 20] {
                store.put(b"a", value(&vec![7; len])).await.unwrap();
                assert_eq!(store.get(b"a").await, Ok(Some(value(&vec![7; len]))));
            }
            store.put(b"b", value(b"bee")).await.unwrap();
            let listed: BTreeSet<_> =
                store.list(b"", 0, 10).await.unwrap().entries.into_iter().map(|e| e.key).collect();
            assert_eq!(listed, BTreeSet::from([b"a".to_vec(), b"b".to_vec()]));
            assert_eq!(store.delete(b"a").await, Ok(true));
            assert_eq!(store.delete(b"a").await, Ok(false));
            assert_eq!(pool.host().get(b"a").await, Ok(None), "another host sees the same");
            let report = pool.verify().await;
            assert!(report.is_equal(), "{report:?}");
            assert_eq!((report.keys, report.tombstones, report.replicas), (1, 1, 2 * u64::from(replicas)));
        });
    }
}

#[test]
fn limits_are_named() {
    run(1, async {
        let pool = Pool::new(3, 3).await;
        assert_eq!(pool.store.get(b"").await, Err(StoreError::Key { length: 0 }));
        assert_eq!(pool.store.put(&[1; 513], value(b"")).await, Err(StoreError::Key { length: 513 }));
        let long = value(&vec![0; VALUE_BYTES_MAX + 1]);
        assert_eq!(pool.store.put(b"k", long).await, Err(StoreError::Value { length: VALUE_BYTES_MAX + 1 }));
        pool.store.put(&[1; 512], value(b"longest key")).await.unwrap();
        assert_eq!(pool.store.get(&[1; 512]).await, Ok(Some(value(b"longest key"))));
    });
}

#[test]
fn a_get_is_one_round_trip_and_a_put_two() {
    run(2, async {
        let pool = Pool::new(3, 3).await;
        for round in 0..3u8 {
            pool.store.put(b"k", value(&[round; 3900])).await.unwrap();
            pool.store.settle().await;
            assert_eq!(pool.take(), [(1, 0, 1); 3], "put: one read and one compare-and-write on each");
            pool.store.get(b"k").await.unwrap();
            pool.store.settle().await;
            assert_eq!(pool.take(), [(1, 0, 0); 3], "get: one read on each");
        }
    });
}

#[test]
fn a_member_that_is_down_or_slow_delays_nobody() {
    run(3, async {
        let pool = Pool::new(3, 3).await;
        pool.down(1, true);
        let start = time::now();
        for number in 0..50u8 {
            pool.store.put(&[number], value(&[number; 100])).await.unwrap();
            assert_eq!(pool.store.get(&[number]).await, Ok(Some(value(&[number; 100]))));
        }
        assert!(start.elapsed() < Duration::from_millis(1), "{:?}", start.elapsed());
        pool.store.settle().await;
        assert!(pool.store.members()[1].stale);
        pool.down(1, false);
        pool.members[2].slow.set(Duration::from_secs(5));
        let start = time::now();
        for number in 0..100u8 {
            pool.store.put(&[number], value(&[number; 90])).await.unwrap();
            assert_eq!(pool.store.get(&[number]).await, Ok(Some(value(&[number; 90]))));
        }
        assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
    });
}

#[test]
fn a_member_that_lags_is_passed_over_beyond_a_bound() {
    run(4, async {
        let pool = Pool::sized(3, 3, 256 << 20).await;
        pool.members[0].slow.set(Duration::from_secs(60));
        for number in 0..2300u32 {
            pool.store.put(&number.to_le_bytes(), value(b"v")).await.unwrap();
        }
        time::sleep(Duration::from_millis(1)).await;
        assert_eq!(pool.store.members()[0].stragglers, STRAGGLERS_MAX);
        assert!(pool.store.members()[0].stale && pool.store.stats().skips.load(Ordering::Relaxed) > 100);
        pool.members[0].slow.set(Duration::ZERO);
        pool.store.settle().await;
        assert_eq!(pool.store.members()[0].stragglers, 0);
        let report = pool.store.repair(&RepairOptions::default()).await;
        assert!(report.is_complete() && report.stored > 200, "{report:?}");
        assert!(pool.verify().await.is_equal());
        pool.members[0].slow.set(Duration::from_secs(60));
        for number in 0..70u32 {
            pool.store.put(&number.to_le_bytes(), value(&vec![1; 1 << 20])).await.unwrap();
        }
        assert_eq!(pool.store.members()[0].stragglers, STRAGGLER_BYTES_MAX >> 20, "bytes are bounded, too");
    });
}

#[test]
fn without_a_majority_an_operation_ends_in_time_and_says_what_is_known() {
    run(5, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(b"old")).await.unwrap();
        pool.down(0, true);
        pool.down(1, true);
        let start = time::now();
        let error = pool.store.get(b"k").await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { answered: 1, replicas: 3, needed: 2, .. }), "{error}");
        assert!(!error.outcome_unknown() && start.elapsed() < Duration::from_secs(11));
        let error = pool.store.put(b"k", value(b"new")).await.unwrap_err();
        assert!(!error.outcome_unknown(), "nothing was sent: {error}");
        assert!(matches!(pool.store.list(b"", 0, 10).await, Err(StoreError::Unavailable { .. })));

        // A member that comes back in time shows as a slow operation.
        let (members, start) = (pool.members.clone(), time::now());
        let back = engine::task::spawn(async move {
            time::sleep(Duration::from_secs(3)).await;
            members[0].epoch.set(5);
            members[0].down.set(false);
        });
        assert_eq!(pool.store.get(b"k").await, Ok(Some(value(b"old"))));
        assert!(start.elapsed() < Duration::from_millis(3200));
        back.await;
    });
}

#[test]
fn a_put_that_reached_a_minority_is_unknown_and_is_completed_by_a_get() {
    run(6, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(b"old")).await.unwrap();
        pool.store.settle().await;
        // The put's reads are answered by all, its writes by member 0 only.
        let (slow, members) = (Duration::from_millis(10), pool.members.clone());
        members.iter().for_each(|member| member.slow.set(slow));
        let cut = engine::task::spawn(async move {
            time::sleep(slow * 3 / 2).await;
            members[1].down.set(true);
            members[2].down.set(true);
        });
        let error = pool.store.put(b"k", value(b"new")).await.unwrap_err();
        cut.await;
        assert!(error.outcome_unknown(), "{error}");
        pool.members.iter().for_each(|member| member.slow.set(Duration::ZERO));
        pool.down(1, false);
        let host = pool.host();
        assert_eq!(host.get(b"k").await, Ok(Some(value(b"new"))), "members 0 and 1: the newer one");
        assert_eq!(host.stats().write_backs.load(Ordering::Relaxed), 1);
        pool.down(0, true);
        pool.down(2, false);
        assert_eq!(
            pool.host().get(b"k").await,
            Ok(Some(value(b"new"))),
            "once returned it stays, on whichever majority"
        );
    });
}

/// Two values under one timestamp would be two truths: what one reader gets from A and B another gets otherwise from C.
#[test]
fn operations_of_two_hosts_never_share_an_id() {
    run(0, async {
        let pool = Pool::new(3, 3).await;
        let hosts = [pool.host(), pool.host(), pool.host()];
        let ids: BTreeSet<_> = (0..300).map(|turn: usize| hosts[turn % 3].inner.next_op()).collect();
        assert_eq!(ids.len(), 300);
    });
}

#[test]
fn list_pages_through_everything_once() {
    run(7, async {
        let pool = Pool::new(5, 3).await;
        let mut keys = BTreeSet::new();
        for number in 0..400u32 {
            let key = format!("{}/{number}", if number % 3 == 0 { "a" } else { "b" }).into_bytes();
            pool.store.put(&key, value(&number.to_le_bytes())).await.unwrap();
            keys.insert(key);
        }
        for deleted in keys.iter().step_by(7).cloned().collect::<Vec<_>>() {
            assert_eq!(pool.store.delete(&deleted).await, Ok(true));
            keys.remove(&deleted);
        }
        pool.down(4, true);
        for (prefix, limit) in [("", 1), ("", 50), ("", 10_000), ("a/", 7), ("b/", 1000), ("c", 3)] {
            let (mut cursor, mut listed) = (Some(0), Vec::new());
            while let Some(at) = cursor {
                let page = pool.store.list(prefix.as_bytes(), at, limit).await.unwrap();
                assert!(page.next.is_none_or(|next| next > at));
                listed.extend(page.entries.into_iter().map(|entry| entry.key));
                cursor = page.next;
            }
            let expected: Vec<_> = keys.iter().filter(|key| key.starts_with(prefix.as_bytes())).collect();
            assert_eq!(listed.len(), expected.len(), "nothing twice");
            assert_eq!(listed.iter().collect::<BTreeSet<_>>(), expected.into_iter().collect());
        }
    });
}

#[test]
fn a_member_that_returns_is_repaired_in_the_background() {
    run(8, async {
        let pool = Pool::new(3, 3).await;
        let repairer = pool.store.start_repairer(RepairerOptions { at_start: false, ..RepairerOptions::default() });
        for number in 0..60u32 {
            pool.store.put(&number.to_le_bytes(), value(&vec![1; number as usize * 100])).await.unwrap();
        }
        pool.down(2, true);
        for number in 30..90u32 {
            pool.store.put(&number.to_le_bytes(), value(&vec![2; number as usize * 90])).await.unwrap();
        }
        assert_eq!(pool.store.delete(&7u32.to_le_bytes()).await, Ok(true));
        let report = pool.verify().await;
        assert!(!report.is_equal() && report.unreachable == [2]);
        pool.down(2, false);
        while !pool.store.is_repaired() {
            time::sleep(Duration::from_millis(100)).await;
        }
        let report = pool.verify().await;
        assert!(report.is_equal() && report.keys == 89, "{report:?}");
        assert_eq!(pool.store.last_repair().unwrap().stored, 61);
        drop(repairer);
    });
}

/// The bytes of another life answer "never written": they must not be counted.
#[test]
fn a_member_that_returns_empty_or_formatted_again_has_no_vote() {
    run(9, async {
        let pool = Pool::new(3, 3).await;
        pool.down(2, true);
        pool.store.put(b"k", value(b"acknowledged by 0 and 1")).await.unwrap();
        pool.down(0, true);
        // Member 1 alone has it. Member 2 returns empty: together they would be a majority for "nothing".
        let blocks = pool.members[2].info().blocks;
        pool.members[2].inner.write_zeroes(device::Lba(0), blocks, Durability::Stable).await.unwrap();
        pool.down(2, false);
        for host in [pool.store.clone(), pool.host()] {
            let error = host.get(b"k").await.unwrap_err();
            assert!(error.to_string().contains("no vote"), "{error}");
            assert!(!host.members()[2].votes);
        }
        create(&pool.members[2..], 1, 500).await;
        let error = pool.host().get(b"k").await.unwrap_err();
        assert!(error.to_string().contains("no vote"), "{error}");
    });
}

#[test]
fn damaged_pages_and_copies_are_repaired_from_the_others() {
    run(10, async {
        let pool = Pool::new(3, 3).await;
        let mut model = BTreeMap::new();
        for number in 0..300u32 {
            let bytes = vec![number as u8; [10, 2000, 3900, 9000, 200_000][number as usize % 5] / 3];
            pool.store.put(&number.to_le_bytes(), value(&bytes)).await.unwrap();
            model.insert(number.to_le_bytes(), bytes);
        }
        pool.store.settle().await;
        for number in 0..5u32 {
            let page = pool.page_of(1, &number.to_le_bytes());
            pool.damage(1, pool.store.table(1).unwrap().layout().table(page)).await;
        }
        // And some extents, on another member.
        let table = pool.store.table(2).unwrap().clone();
        let mut damaged_extents = 0;
        for number in 100..140u32 {
            let found = table.read(&Key::new(&number.to_le_bytes(), pool.map.hash_seed).unwrap()).await.unwrap();
            if let Content::Elsewhere(_, reference) = found.content
                && reference.kind != crate::page::PlaceKind::Guest
            {
                pool.damage(2, table.layout().data(HeapPage(reference.place))).await;
                damaged_extents += 1;
            }
        }
        for (key, bytes) in &model {
            assert_eq!(pool.store.get(key).await, Ok(Some(value(bytes))), "reads go round what is damaged");
        }
        let damaged = pool.verify().await.damaged_pages;
        assert!(damaged.count >= 4 && damaged.first.iter().all(|page| page.0 == 1), "{damaged:?}");
        let start = time::now();
        let report = pool.store.repair(&RepairOptions { check_values: true, ..RepairOptions::default() }).await;
        assert!(report.is_complete(), "{report:?}");
        assert!(
            report.pages_rebuilt >= 4 && report.copies_replaced >= damaged_extents && damaged_extents > 5,
            "{report:?}"
        );
        assert!(
            start.elapsed() > OPERATION_TIME_MAX,
            "a page is rebuilt only when no older operation can be under way"
        );
        let report = pool.verify().await;
        assert!(report.is_equal() && report.keys == 300, "{report:?}");
        for (key, bytes) in &model {
            assert_eq!(pool.store.get(key).await, Ok(Some(value(bytes))));
        }
    });
}

/// A page may not come back with less than it held: with too few others to ask it stays without a vote.
#[test]
fn a_damaged_page_is_not_rebuilt_from_a_minority() {
    run(11, async {
        let pool = Pool::new(3, 3).await;
        pool.down(0, true);
        pool.store.put(b"k", value(b"on 1 and 2 only")).await.unwrap();
        pool.store.settle().await;
        let page = pool.page_of(1, b"k");
        pool.damage(1, pool.store.table(1).unwrap().layout().table(page)).await;
        pool.down(0, false);
        pool.down(2, true);
        let report = pool.store.repair(&RepairOptions::default()).await;
        assert!(report.pages_rebuilt == 0 && report.failed > 0, "{report:?}");
        assert!(pool.store.get(b"k").await.is_err(), "members 0 and 1 must not agree on nothing");
        pool.down(2, false);
        assert_eq!(pool.store.get(b"k").await, Ok(Some(value(b"on 1 and 2 only"))));
        let report = pool.store.repair(&RepairOptions::default()).await;
        assert!(report.is_complete() && report.pages_rebuilt == 1, "{report:?}");
        assert!(pool.verify().await.is_equal());
    });
}

#[test]
fn a_bad_block_hides_one_page_and_no_other() {
    run(14, async {
        let pool = Pool::new(3, 3).await;
        for number in 0..300u32 {
            pool.store.put(&number.to_le_bytes(), value(b"v")).await.unwrap();
        }
        let page = pool.page_of(1, &7u32.to_le_bytes());
        pool.members[1].bad_block.set(Some(pool.store.table(1).unwrap().layout().table(page)));
        let report = pool.verify().await;
        assert!(report.unreachable.is_empty(), "{report:?}");
        assert!(report.damaged_pages.count == 1 && report.damaged_pages.first[0].0 == 1, "{report:?}");
        assert_eq!(pool.store.get(&7u32.to_le_bytes()).await, Ok(Some(value(b"v"))));
        pool.store.put(&7u32.to_le_bytes(), value(b"w")).await.unwrap();
        let (mut cursor, mut listed) = (Some(0), 0);
        while let Some(at) = cursor {
            let page = pool.store.list(b"", at, 1000).await.unwrap();
            (cursor, listed) = (page.next, listed + page.entries.len());
        }
        assert_eq!(listed, 300);
    });
}

#[test]
fn usage_counts_entries_and_claimed_pages() {
    run(13, async {
        let pool = Pool::sized(3, 3, 6 << 20).await;
        for number in 0..100u32 {
            pool.store.put(&number.to_le_bytes(), value(&vec![1; if number < 10 { 9000 } else { 100 }])).await.unwrap();
        }
        pool.store.settle().await;
        let usage = pool.store.usage(1).await.unwrap();
        assert_eq!((usage.entries, usage.heap_pages_used, usage.exact), (100, 30, true), "{usage:?}");
        assert_eq!(usage.table_bytes_used, 90 * (32 + 4 + 100) + 10 * (32 + 4 + 32));
        assert_eq!((usage.tombstones, usage.value_bytes), (0, 90 * 100 + 10 * 9000));
        assert_eq!(pool.store.delete(&7u32.to_le_bytes()).await, Ok(true));
        pool.store.settle().await;
        let estimate = pool.store.estimate().await;
        assert_eq!((estimate.keys, estimate.tombstones, estimate.value_bytes), (99, 1, 90 * 100 + 9 * 9000));
        assert!(estimate.is_exact(), "a small table is counted whole: {estimate:?}");
        pool.down(1, true);
        assert!(pool.store.usage(1).await.is_err());
        let estimate = pool.store.estimate().await;
        assert_eq!((estimate.keys, estimate.unreachable), (99, vec![1]), "the others stand for it");
    });
}

/// Of a table that is not looked at as a whole.
#[test]
fn an_estimate_is_near_the_count() {
    run(19, async {
        let pool = Pool::sized(5, 3, 64 << 20).await;
        for number in 0..9000u32 {
            pool.store.put(&number.to_le_bytes(), value(b"v")).await.unwrap();
        }
        let estimate = pool.store.estimate().await;
        assert!(!estimate.is_exact() && estimate.pages_read * 4 < estimate.pages, "{estimate:?}");
        assert!((8100..=9900).contains(&estimate.keys), "{estimate:?}");
    });
}

#[test]
fn a_full_pool_says_so_and_stays_readable() {
    run(12, async {
        let pool = Pool::sized(3, 3, 3 << 20).await;
        let mut stored = 0u32;
        let error = loop {
            match pool.store.put(&stored.to_le_bytes(), value(&[stored as u8; 3000])).await {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StoreError::OutOfSpace { .. }), "{error}");
        assert!(stored > 200, "{stored}");
        for number in 0..stored {
            assert_eq!(pool.store.get(&number.to_le_bytes()).await, Ok(Some(value(&[number as u8; 3000]))));
        }
        for number in 0..stored {
            assert_eq!(pool.store.delete(&number.to_le_bytes()).await, Ok(true), "deleting always works");
        }
        pool.store.settle().await;
        pool.store.put(b"again", value(&[1; 3000])).await.unwrap();
    });
}
