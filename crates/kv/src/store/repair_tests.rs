//! Scrub and repair beside traffic, members that are away, and damage that moves or comes in numbers.

use engine::time;
use pool::HeapGroup;

use super::scan::DamagedPage;
use super::scrub::FINDINGS_MAX;
use super::scrub_tests::{REPAIR, SCRUB, check, filled};
use super::tests::{Pool, value};
use super::*;
use crate::table::{Record, TableError};
use crate::testing::run;
use crate::types::Timestamp;

/// Every value is replaced while the heaps are looked at, so that extents go and come in all groups. Red when extents that
/// were referred to and then freed were taken for lost claims, group by group, and claimed again.
#[test]
fn traffic_is_not_taken_for_lost_claims() {
    run(30, async {
        let pool = Pool::sized(3, 3, 64 << 20).await;
        filled(&pool).await;
        pool.members.iter().for_each(|member| member.slow.set(Duration::from_micros(200)));
        let writers: Vec<_> = (0..4u32)
            .map(|writer| {
                let host = pool.host();
                engine::task::spawn(async move {
                    for turn in (0..).map(|turn| turn * 4 + writer) {
                        let bytes = vec![turn as u8; [9000, 200_000][turn as usize / 4 % 2]];
                        host.put(&(turn % 60).to_le_bytes(), value(&bytes)).await.unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            let found = pool.store.scrub(&SCRUB).await;
            assert!(found.is_clean(), "{found:?}");
            let repaired = pool.store.repair(&REPAIR).await;
            assert!(repaired.is_complete() && repaired.extents_claimed == 0, "{repaired:?}");
        }
        drop(writers);
        time::sleep(Duration::from_secs(1)).await;
        let found = pool.store.scrub(&SCRUB).await;
        assert!(found.is_clean(), "{found:?}");
    });
}

/// Nobody knows what it has missed: other hosts wrote while it was away.
#[test]
fn a_member_away_at_the_start_is_repaired_when_it_returns() {
    for at_start in [true, false] {
        run(31, async move {
            let pool = Pool::new(3, 3).await;
            pool.down(2, true);
            let model = filled(&pool).await;
            let host = pool.host();
            let repairer = host.start_repairer(RepairerOptions { at_start, ..RepairerOptions::default() });
            time::sleep(Duration::from_secs(5)).await;
            assert!(!host.is_repaired());
            pool.down(2, false);
            time::sleep(Duration::from_secs(60)).await;
            assert!(host.is_repaired(), "{:?}", host.members());
            drop(repairer);
            let found = host.scrub(&SCRUB).await;
            assert!(found.is_clean() && found.replicas == 180, "{found:?}");
            check(&pool, &model).await;
        });
    }
}

/// That it is away is found once, not five times for each of its keys.
#[test]
fn a_scrub_with_a_member_away_reads_the_others_once() {
    run(32, async {
        let pool = Pool::new(3, 3).await;
        filled(&pool).await;
        pool.take();
        let sound = pool.store.scrub(&SCRUB).await;
        let once = pool.take();
        pool.down(1, true);
        let start = time::now();
        let found = pool.store.scrub(&SCRUB).await;
        assert_eq!((found.differing.count, &found.unreachable[..]), (0, &[1][..]), "{found:?}");
        assert!(found.keys == sound.keys && found.replicas == 120 && !found.is_equal(), "{found:?}");
        let again = pool.take();
        assert_eq!((again[0], again[2]), (once[0], once[2]));
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    });
}

/// What a host has in stock there can neither be bound nor given back; there are other groups.
#[test]
fn a_put_passes_over_a_damaged_group_that_it_has_stock_in() {
    run(33, async {
        let pool = Pool::sized(3, 3, 64 << 20).await;
        filled(&pool).await;
        // Stock in every member, some of it in use already.
        for number in 100..120u32 {
            pool.store.put(&number.to_le_bytes(), value(&[7; 9000])).await.unwrap();
        }
        let layout = pool.store.table(1).unwrap().layout();
        for group in (0..layout.geometry.heap_groups / 2).map(HeapGroup) {
            pool.damage(1, layout.allocation(group)).await;
        }
        for number in 200..260u32 {
            pool.store.put(&number.to_le_bytes(), value(&vec![8; [9000, 200_000][number as usize % 2]])).await.unwrap();
        }
        let found = pool.verify().await;
        assert!(found.is_equal() && found.replicas == 3 * (60 + 20 + 60), "{found:?}");
        assert!(pool.store.members().iter().all(|member| !member.stale), "no member has missed a put");
        let repaired = pool.store.repair(&REPAIR).await;
        assert!(repaired.is_complete() && repaired.groups_rebuilt > 0, "{repaired:?}");
        assert!(pool.store.scrub(&SCRUB).await.is_clean());
    });
}

/// Replicas of one operation must be equal in everything that a get may show.
#[test]
fn replicas_that_differ_in_expiry_or_tag_are_found() {
    run(34, async {
        let pool = Pool::new(3, 3).await;
        let op = |sequence| OpId { host: 9, sequence };
        for (number, (expiry, tag)) in [(0, 0), (7, 0), (0, 7)].into_iter().enumerate() {
            let key = Key::new(&[number as u8], pool.map.hash_seed).unwrap();
            let timestamp = Timestamp { counter: 5, op: op(number as u64), ballot: crate::types::Ballot::NONE };
            for member in 0..3 {
                let (expiry, tag) = if member == 1 { (expiry, tag) } else { (0, 0) };
                let record = Record { timestamp, value: Some(value(b"v")), expiry, tag, ops: Vec::new() };
                pool.store.table(member).unwrap().store_if_newer(&key, &record, None, None).await.unwrap();
            }
        }
        let found = pool.verify().await;
        assert_eq!((found.differing.count, found.keys), (2, 3), "{found:?}");
        assert!(found.differing.first.iter().any(|key| key.what.contains("tag 7")), "{found:?}");
    });
}

#[test]
fn findings_beyond_the_first_are_counted() {
    run(35, async {
        let pool = Pool::new(3, 3).await;
        let layout = pool.store.table(1).unwrap().layout();
        let damaged = FINDINGS_MAX as u32 + 9;
        for page in (0..damaged).map(pool::TablePage) {
            pool.damage(1, layout.table(page)).await;
        }
        let found = pool.store.scrub(&SCRUB).await;
        assert_eq!((found.damaged_pages.count, found.damaged_pages.first.len()), (damaged.into(), FINDINGS_MAX));
        assert!(!found.is_equal());
        let repaired = pool.store.repair(&REPAIR).await;
        assert!(repaired.is_complete() && repaired.pages_rebuilt == u64::from(damaged), "{repaired:?}");
    });
}

/// The map may have changed since the damage was seen, and another member have the index.
#[test]
fn a_damaged_page_is_rebuilt_where_it_was_seen() {
    run(36, async {
        let pool = Pool::new(3, 3).await;
        let model = filled(&pool).await;
        let page = pool.page_of(1, &3u32.to_le_bytes());
        pool.damage(1, pool.store.table(1).unwrap().layout().table(page)).await;
        let life = |index: usize| (pool.map.members[index].id, pool.map.members[index].incarnation);
        let error = TableError::Contended;
        let seen = DamagedPage { member: 2, life: life(1), page, error, seen: time::now() };
        let gone = DamagedPage { life: (life(1).0, 0), ..seen.clone() };
        repair::rebuild_page(&pool.store.inner, &gone).await.unwrap();
        assert_eq!(pool.verify().await.damaged_pages.count, 1, "a life that has ended has no pages");
        repair::rebuild_page(&pool.store.inner, &seen).await.unwrap();
        assert!(pool.verify().await.is_equal());
        check(&pool, &model).await;
    });
}
