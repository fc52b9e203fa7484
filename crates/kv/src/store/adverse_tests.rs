//! The store beside members that are slow, full or damaged, and beside writers that never rest.

use engine::time;
use pool::HeapPage;

use super::scrub_tests::{REPAIR, SCRUB};
use super::tests::{Pool, value};
use super::*;
use crate::table::{Content, Record};
use crate::testing::run;
use crate::types::{Ballot, Timestamp};

/// The first try may yet land although the second found no room: to call that harmless would be a lie.
#[test]
fn a_put_in_doubt_that_then_finds_no_room_is_of_unknown_outcome() {
    run(14, async {
        let pool = Pool::sized(1, 1, 4 << 20).await;
        let member = pool.members[0].clone();
        // The claim goes through, the swap of the home page is in doubt.
        member.cut.set(Some((1, false)));
        let filler = engine::task::spawn({
            let (map, member) = (pool.map.clone(), member.clone());
            async move {
                while !member.down.get() {
                    time::sleep(Duration::from_micros(10)).await;
                }
                let table = crate::table::Table::new(member.inner.clone(), &map, 0);
                let home = |key: &Key| map.geometry(0).home(key.hash().home);
                let own = home(&Key::new(b"k", map.hash_seed).unwrap());
                let timestamp = Timestamp { counter: 1, op: OpId { host: 1, sequence: 1 }, ballot: Ballot::NONE };
                let record = Record { timestamp, value: Some(value(&[1; 9000])), ..Record::default() };
                for number in 0u32.. {
                    let key = Key::new(&number.to_le_bytes(), map.hash_seed).unwrap();
                    if home(&key) != own && table.store_if_newer(&key, &record, None, None).await.is_err() {
                        break;
                    }
                }
                member.down.set(false);
            }
        });
        let error = pool.store.put(b"k", value(&[2; 9000])).await.unwrap_err();
        filler.await;
        assert!(matches!(error, StoreError::OutOfSpace { .. }) && error.outcome_unknown(), "{error}");
    });
}

/// A key that is written without a pause never shows the same on all members, and nothing is wrong with it.
#[test]
fn verify_does_not_take_a_busy_key_for_a_damaged_one() {
    run(17, async {
        let pool = Pool::new(3, 3).await;
        for (member, micros) in pool.members.iter().zip([900, 1000, 1300]) {
            member.slow.set(Duration::from_micros(micros));
        }
        for length in [100, 9000] {
            let store = pool.host();
            let writer = engine::task::spawn(async move {
                loop {
                    store.put(b"busy", value(&vec![1; length])).await.unwrap();
                }
            });
            time::sleep(Duration::from_millis(50)).await;
            let options = ScrubOptions { check_values: true, ..ScrubOptions::default() };
            for _ in 0..10 {
                time::sleep(Duration::from_micros(310)).await;
                let report = pool.store.scrub(&options).await;
                assert!(report.is_equal() && report.keys == 1, "{length}: {report:?}");
            }
            drop(writer);
            time::sleep(Duration::from_secs(1)).await;
        }
        // A replica that stays behind is one, however often the others are written.
        let stale = pool.host();
        pool.members[2].down.set(true);
        let writer = engine::task::spawn(async move { while stale.put(b"busy", value(b"v")).await.is_ok() {} });
        time::sleep(Duration::from_millis(50)).await;
        let (memories, map) =
            (pool.members.iter().map(|member| Some(member.inner.clone())).collect(), pool.map.clone());
        let report = Store::new(map, memories).scrub(&ScrubOptions::default()).await;
        assert_eq!(report.differing.count, 1, "{report:?}");
        drop(writer);
    });
}

/// A scan by cursor while keys come, go and change, with a member that is slow and, later, another that has a bad page.
#[test]
fn a_scan_meets_every_key_that_is_there_throughout() {
    run(18, async {
        let pool = Pool::new(5, 3).await;
        for number in 0..2000u32 {
            pool.store.put(&number.to_le_bytes(), value(b"v")).await.unwrap();
        }
        assert_eq!(pool.store.delete(&3u32.to_le_bytes()).await, Ok(true));
        pool.store.settle().await;
        for count in [1, 10, 300, 100_000] {
            let (mut cursor, mut met, mut steps) = (0, std::collections::BTreeMap::<Vec<u8>, u32>::new(), 0);
            pool.members[2].slow.set(Duration::from_secs(60));
            let start = time::now();
            loop {
                let step = pool.host().scan(cursor, count).await.unwrap();
                assert!(step.next == 0 || step.next > cursor && step.next < 1 << 53, "{cursor} {}", step.next);
                step.entries.into_iter().for_each(|entry| *met.entry(entry.key).or_default() += 1);
                // Keys that are not there throughout: some are removed and come back, some are new.
                let number = 1000 + (steps * 7) % 1000;
                assert!(pool.store.delete(&u32::to_le_bytes(number)).await.is_ok());
                pool.store.put(&u32::to_le_bytes(number), value(b"again")).await.unwrap();
                (cursor, steps) = (step.next, steps + 1);
                if cursor == 0 {
                    break;
                }
            }
            assert!(
                start.elapsed() < Duration::from_secs(2),
                "the slow member is not waited for: {:?}",
                start.elapsed()
            );
            let constant = (0..1000u32).filter(|&number| number != 3);
            assert!(constant.clone().all(|number| met.contains_key(&number.to_le_bytes()[..])), "{count}");
            assert!(!met.contains_key(&3u32.to_le_bytes()[..]), "never there");
            assert!(count > 1 || steps > 50, "a small count is a small step: {steps}");
            pool.members[2].slow.set(Duration::ZERO);
            pool.store.settle().await;
        }
        pool.damage(1, pool.store.table(1).unwrap().layout().table(pool::TablePage(5))).await;
        assert_eq!(pool.store.scan(0, 100_000).await.unwrap().next, 0);
        // A majority of the homes of some keys is away: no answer is better than one without them.
        pool.members.iter().take(2).for_each(|member| member.down.set(true));
        assert!(pool.host().scan(0, 10).await.is_err());
    });
}

/// A list that waited for every member would take two seconds for every stretch.
#[test]
fn a_list_does_not_wait_for_a_slow_member() {
    run(15, async {
        let pool = Pool::new(3, 3).await;
        for number in 0..50u32 {
            pool.store.put(&number.to_le_bytes(), value(b"v")).await.unwrap();
        }
        pool.store.settle().await;
        pool.members[2].slow.set(Duration::from_secs(60));
        let (mut cursor, mut listed, start) = (Some(0), 0, time::now());
        while let Some(from) = cursor {
            let page = pool.store.list(b"", from, 1000).await.unwrap();
            (cursor, listed) = (page.next, listed + page.entries.len());
        }
        assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
        assert_eq!(listed, 50);
    });
}

/// No copy verifies, and none comes back: looking again and again at full speed would only be load.
#[test]
fn a_get_that_finds_no_good_copy_looks_seldom() {
    run(16, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(&[1; 9000])).await.unwrap();
        pool.store.settle().await;
        let key = Key::new(b"k", pool.map.hash_seed).unwrap();
        for (index, member) in pool.members.iter().enumerate() {
            let table = pool.store.table(index).unwrap();
            let Content::Elsewhere(_, reference) = table.read(&key).await.unwrap().content else {
                panic!("not inline")
            };
            member.bad_block.set(Some(table.layout().data(HeapPage(reference.place))));
        }
        pool.take();
        assert!(pool.store.get(b"k").await.is_err());
        let reads: u64 = pool.take().iter().map(|(reads, ..)| reads).sum();
        assert!(reads < 5_000, "{reads} reads for one get");
    });
}

/// A put whose host died had reached one member, and its copy is damaged since: repair can neither bring it elsewhere nor know
/// that nobody was told of it. It says so, gets answer what the majority has, and to write the key ends it.
#[test]
fn a_value_without_a_good_copy_is_named_until_its_key_is_written() {
    run(46, async {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(b"old")).await.unwrap();
        pool.store.settle().await;
        let key = Key::new(b"k", pool.map.hash_seed).unwrap();
        let table = pool.store.table(2).unwrap();
        let mut timestamp = table.read(&key).await.unwrap().timestamp;
        timestamp.counter += 1;
        let record = Record { timestamp, value: Some(value(&[1; 9000])), ..Record::default() };
        table.store_if_newer(&key, &record, None, None).await.unwrap();
        let Content::Elsewhere(_, reference) = table.read(&key).await.unwrap().content else { panic!("9,000 bytes") };
        pool.damage(2, table.layout().data(HeapPage(reference.place))).await;
        for _ in 0..2 {
            let report = pool.store.repair(&REPAIR).await;
            assert_eq!((report.failed, report.stored), (1, 0), "{report:?}");
            assert!(report.reasons[0].contains("no good copy is left"), "{report:?}");
            assert_eq!(pool.store.get(b"k").await, Ok(Some(value(b"old"))));
        }
        pool.store.put(b"k", value(b"new")).await.unwrap();
        pool.store.settle().await;
        assert!(pool.store.repair(&REPAIR).await.is_complete());
        assert!(pool.store.scrub(&SCRUB).await.is_clean());
        assert_eq!(pool.store.get(b"k").await, Ok(Some(value(b"new"))));
    });
}
