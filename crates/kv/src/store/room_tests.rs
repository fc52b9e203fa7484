//! Members without room: what is stored stays readable, and what is damaged can be repaired.

use engine::sim::{SimConfig, World};
use engine::time;
use pool::HeapGroup;

use pool::plan::Request;

use super::change_tests::{SHORT, Scene};
use super::scan::DamagedPage;
use super::scrub_tests::{REPAIR, SCRUB};
use super::tests::{Pool, value};
use super::*;
use crate::table::{Record, Table, TableError};
use crate::testing::run;
use crate::types::{Ballot, Timestamp};
use crate::value::Value;
use engine::job::Jobs;

/// A value of its own for a number; all take equal runs of pages, so that what fitted once fits again in any order.
fn long(number: u32) -> Value {
    value(&vec![number as u8; 100_000])
}

/// Numbers of keys that are all at home in one page of every member.
fn neighbours(pool: &Pool) -> impl Iterator<Item = u32> {
    let page = pool.page_of(0, &0u32.to_le_bytes());
    (0..1_000_000u32).filter(move |number| pool.page_of(0, &number.to_le_bytes()) == page)
}

/// Puts neighbours until the heap takes no more; those that were stored.
async fn fill(pool: &Pool) -> Vec<u32> {
    let mut stored = Vec::new();
    for number in neighbours(pool) {
        match pool.store.put(&number.to_le_bytes(), long(number)).await {
            Ok(()) => stored.push(number),
            Err(StoreError::OutOfSpace { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    pool.store.settle().await;
    assert!(stored.len() > 3, "{stored:?}");
    stored
}

async fn claimed(pool: &Pool, member: usize) -> usize {
    let table = pool.store.table(member).unwrap();
    let mut claimed = 0;
    for group in (0..table.layout().geometry.heap_groups).map(HeapGroup) {
        claimed += table.extents(group).await.unwrap().len();
    }
    claimed
}

/// A pool whose member 1 has a full heap, and has lost the page that all of it belongs to; the numbers that were stored.
async fn full_and_damaged() -> (Pool, Vec<u32>, Rc<Table>) {
    let pool = Pool::sized(3, 3, 8 << 20).await;
    let stored = fill(&pool).await;
    let (table, page) = (pool.store.table(1).unwrap(), pool.page_of(1, &0u32.to_le_bytes()));
    pool.damage(1, table.layout().table(page)).await;
    (pool, stored, table)
}

/// Nothing is amiss, and what was stored is read also without member 0.
async fn all_is_there(pool: &Pool, stored: Vec<u32>) {
    let report = pool.store.scrub(&SCRUB).await;
    assert!(report.is_clean() && report.heap_pages_unreferenced == 0, "{report:?}");
    pool.down(0, true);
    for number in stored {
        assert_eq!(pool.host().get(&number.to_le_bytes()).await, Ok(Some(long(number))));
    }
}

/// The heap is full of what the damaged page itself referred to. Nothing tells any more that it is garbage but that the page
/// is damaged: so long as the collector did not take that for an answer, neither it nor repair went on. Found by the store's
/// simulation (seed 70205 of its day), where crashed hosts had left the heap of one page full.
#[test]
fn a_page_whose_values_fill_the_heap_is_rebuilt_all_the_same() {
    let config = SimConfig { virtual_time_max: 3 * crate::table::AGE_MIN, ..SimConfig::default() };
    let ended = World::new(50, config).run_until(async {
        let (pool, stored, _table) = full_and_damaged().await;
        let report = pool.store.repair(&REPAIR).await;
        assert!(report.pages_rebuilt == 0 && report.reasons[0].contains("in 30 minutes"), "{report:?}");
        let before = claimed(&pool, 1).await;
        time::sleep(crate::table::AGE_MIN + Duration::from_secs(1200)).await;
        let report = pool.store.repair(&REPAIR).await;
        assert!(report.is_complete() && report.pages_rebuilt == 1, "{report:?}");
        pool.store.settle().await;
        assert!(claimed(&pool, 1).await <= before);
        all_is_there(&pool, stored).await;
    });
    assert!(ended.is_ok(), "{ended:?}");
}

/// One copy that could not be looked at had repair forget what it had freed by then, and give the page up.
#[test]
fn one_copy_that_cannot_be_looked_at_leaves_the_others_free() {
    let config = SimConfig { virtual_time_max: 3 * crate::table::AGE_MIN, ..SimConfig::default() };
    let ended = World::new(54, config).run_until(async {
        let (pool, mut stored, _table) = full_and_damaged().await;
        // One value less comes back than was there: all but one of the copies are room enough.
        assert_eq!(pool.store.delete(&stored.remove(0).to_le_bytes()).await, Ok(true));
        pool.store.settle().await;
        assert_eq!(pool.store.repair(&REPAIR).await.pages_rebuilt, 0, "its copies are seen for the first time");
        time::sleep(crate::table::AGE_MIN + Duration::from_secs(1200)).await;
        let member = pool.members[1].clone();
        // One copy is freed; and the connection is lost for a moment while the next is looked at.
        member.slow.set(Duration::from_millis(1));
        member.cut.set(Some((4, false)));
        let revive = engine::task::spawn(async move {
            while !member.down.get() {
                time::sleep(Duration::from_micros(10)).await;
            }
            member.down.set(false);
        });
        let report = pool.store.repair(&REPAIR).await;
        assert!(report.is_complete() && report.pages_rebuilt == 1, "{report:?}");
        revive.await;
        pool.store.settle().await;
        assert_eq!(pool.store.collect(&CollectOptions::default()).await.failed, 0);
        all_is_there(&pool, stored).await;
    });
    assert!(ended.is_ok(), "{ended:?}");
}

/// For each page that found no room all allocation pages were read, as fast as it went.
#[test]
fn pages_without_room_are_collected_for_in_one_walk_within_the_rate() {
    run(53, async {
        let pool = Pool::sized(3, 3, 8 << 20).await;
        let mut stored = 0;
        while pool.store.put(&u32::to_le_bytes(stored), long(stored)).await.is_ok() {
            stored += 1;
        }
        pool.store.settle().await;
        let (table, life) = (pool.store.table(1).unwrap(), (pool.map.members[1].id, pool.map.members[1].incarnation));
        let page = |number: u32| pool.page_of(1, &number.to_le_bytes());
        let pages: std::collections::BTreeSet<_> = (0..8).map(page).collect();
        let held = (0..stored).filter(|&number| pages.contains(&page(number))).count() as u64;
        let mut damaged = Vec::new();
        for &page in &pages {
            pool.damage(1, table.layout().table(page)).await;
            damaged.push(DamagedPage { member: 1, life, page, error: TableError::Contended });
        }
        let (job, mut report) = (Jobs::default().begin("test", None, None), RepairReport::default());
        rebuild::rebuild_pages(&pool.store.inner, damaged, false, &job, &mut report).await;
        assert_eq!((report.failed, report.pages_rebuilt), (pages.len() as u64, 0), "{report:?}");
        assert!(report.reasons.iter().all(|reason| reason.contains("in 30 minutes")), "{report:?}");
        // A stretch of each of the other two, and the values; then each allocation page once, and two pages for each copy.
        let gathered = pages.len() as u64 * 2 * (128 << 10) + held * 100_000;
        let walk = (u64::from(table.layout().geometry.heap_groups) + 2 * held) * 4096;
        assert_eq!(job.end().await, gathered + walk);
    });
}

/// The collector leaves the copies of a damaged page alone until repair has cleared it. Then it frees them, beside a rebuild that
/// has begun on the bytes that the collector replaces: that one fails, and the next succeeds.
#[test]
fn what_a_damaged_page_referred_to_is_collected_beside_its_rebuilding() {
    run(51, async {
        let pool = Pool::sized(3, 3, 16 << 20).await;
        let number = neighbours(&pool).next().unwrap();
        pool.store.put(&number.to_le_bytes(), long(number)).await.unwrap();
        pool.store.settle().await;
        let (table, page) = (pool.store.table(1).unwrap(), pool.page_of(1, &number.to_le_bytes()));
        pool.damage(1, table.layout().table(page)).await;
        let collect = CollectOptions { age_min: Duration::ZERO, ..CollectOptions::default() };
        let damaged = table.damaged_page(page).await.unwrap().unwrap().mark();
        let collected = pool.store.collect(&collect).await;
        assert!(collected.failed > 0 && collected.heap_pages_freed == 0, "{collected:?}");
        assert_eq!(table.damaged_page(page).await.unwrap().unwrap().mark(), damaged, "not a byte of it is touched");
        assert_eq!(table.clear_page(page, &crate::table::DamageMark::of_page(b"")).await, Ok(false), "another damage");
        assert_eq!(table.clear_page(page, &damaged).await, Ok(true));
        let image = table.damaged_page(page).await.unwrap().unwrap();
        assert_ne!(image.mark(), damaged);
        let key = Key::new(&number.to_le_bytes(), pool.map.hash_seed).unwrap();
        let found = pool.store.table(0).unwrap().read(&key).await.unwrap();
        let mut rebuilding = table.begin_rebuild(page, image, false).await.unwrap();
        // Its value is placed now, and looks like what the damage has left: nothing refers to it.
        rebuilding.add(&key, found.record(Some(long(number))), crate::types::Ballot::NONE).await.unwrap();
        let collected = pool.store.collect(&collect).await;
        assert!(collected.failed == 0 && collected.heap_pages_freed >= 25, "{collected:?}");
        assert!(rebuilding.finish().await.is_err(), "it would refer to what was freed");
        let report = pool.store.repair(&REPAIR).await;
        assert!(report.is_complete() && report.pages_rebuilt == 1, "{report:?}");
        pool.store.settle().await;
        let report = pool.store.scrub(&SCRUB).await;
        assert!(report.is_clean() && report.heap_pages_unreferenced == 0, "{report:?}");
    });
}

/// The page waits for room in the heap, the heap for the page to tell what it refers to. Found by the store's simulation (seed
/// 80510 of its day).
#[test]
fn a_page_and_the_whole_heap_that_it_needs_are_rebuilt() {
    let config = SimConfig { virtual_time_max: 3 * crate::table::AGE_MIN, ..SimConfig::default() };
    let ended = World::new(52, config).run_until(async {
        let (pool, stored, table) = full_and_damaged().await;
        let groups = table.layout().geometry.heap_groups;
        for group in (0..groups).map(HeapGroup) {
            pool.damage(1, table.layout().allocation(group)).await;
        }
        let report = pool.store.repair(&REPAIR).await;
        assert_eq!((report.pages_rebuilt, report.groups_rebuilt), (0, groups.into()), "{report:?}");
        assert_eq!(pool.store.collect(&CollectOptions::default()).await.heap_pages_freed, 0, "seen for the first time");
        time::sleep(crate::table::AGE_MIN + Duration::from_secs(1200)).await;
        let collected = pool.store.collect(&CollectOptions::default()).await;
        assert_eq!(collected.failed, 0, "{collected:?}");
        let report = pool.store.repair(&REPAIR).await;
        assert!(report.is_complete() && report.pages_rebuilt == 1, "{report:?}");
        pool.store.settle().await;
        all_is_there(&pool, stored).await;
    });
    assert!(ended.is_ok(), "{ended:?}");
}

const KEY: &[u8] = b"key";

/// Of each member: by which operation it holds what it holds, and whether that was a conditional one.
type Shown = &'static [(u32, bool)];

/// What stands under `KEY`, by the `number`-th operation on it, which was a put or a conditional operation.
fn record(number: u32, conditional: bool) -> Record {
    let op = OpId { host: 1, sequence: number.into() };
    let ballot = if conditional { Ballot { round: 1, op } } else { Ballot::NONE };
    Record {
        timestamp: Timestamp { counter: number.into(), op, ballot },
        value: Some(long(number)),
        ..Record::default()
    }
}

/// Lets every member hold what its number says, and no more: the heaps are full.
async fn differing(pool: &Pool, numbers: Shown) {
    let key = Key::new(KEY, pool.map.hash_seed).unwrap();
    for (member, &(number, conditional)) in numbers.iter().enumerate() {
        let table = pool.store.table(member).unwrap();
        table.store_if_newer(&key, &record(number, conditional), None, None).await.unwrap();
        stuff(&table, &pool.map).await;
    }
}

/// Fills the heap of a member with values of other pages than that of `KEY`.
async fn stuff(table: &Rc<Table>, map: &Map) {
    let own = table.home(&Key::new(KEY, map.hash_seed).unwrap());
    let keys = (0..).map(|number: u32| Key::new(&number.to_le_bytes(), map.hash_seed).unwrap());
    for key in keys.filter(|key| table.home(key) != own) {
        if table.store_if_newer(&key, &record(1, false), None, None).await.is_err() {
            return;
        }
    }
}

/// A get has to store the newest first, and no member takes it. Found by the store's simulation (seed 71685 of its day), where
/// of two full replicas one had missed a put.
#[test]
fn a_get_answers_without_a_write_back_where_members_are_full() {
    // What the members hold, put or conditional, and what a get may say.
    let cases: [(Shown, Option<u32>); 6] = [
        (&[(1, false), (2, false)], Some(1)),
        (&[(2, true), (1, true)], Some(1)),
        (&[(3, false), (1, false), (1, false)], Some(1)),
        (&[(3, false), (2, false), (1, false)], Some(2)),
        (&[(3, false), (1, true), (2, true)], None),
        (&[(3, true), (1, true), (2, false)], Some(2)),
    ];
    for (seed, (numbers, expected)) in cases.into_iter().enumerate() {
        run(60 + seed as u64, async move {
            let pool = Pool::sized(numbers.len(), numbers.len() as u8, 4 << 20).await;
            differing(&pool, numbers).await;
            for host in [&pool.store, &pool.host()] {
                match (host.get(KEY).await, expected) {
                    (Ok(Some(found)), Some(expected)) => assert_eq!(found, long(expected)),
                    (Err(error @ StoreError::OutOfSpace { .. }), None) => assert!(!error.outcome_unknown(), "{error}"),
                    (result, _) => panic!("{numbers:?}: {result:?}"),
                }
            }
            assert_eq!(pool.store.delete(KEY).await, Ok(true));
            assert_eq!(pool.host().get(KEY).await, Ok(None));
        });
    }
}

/// One member has room and two have not: were the change stored on the one first, every get would have to deal with it.
async fn is_stored_nowhere(change: impl AsyncFn(&Store) -> Result<(), StoreError>) {
    let pool = Pool::sized(3, 3, 4 << 20).await;
    pool.store.put(KEY, value(b"before")).await.unwrap();
    pool.store.settle().await;
    for member in [0, 2] {
        stuff(&pool.store.table(member).unwrap(), &pool.map).await;
    }
    for member in [1, 0, 2] {
        // Whoever is slow: the others are not asked to store meanwhile.
        pool.members[member].slow.set(Duration::from_millis(5));
        let error = change(&pool.store).await.unwrap_err();
        assert!(matches!(error, StoreError::OutOfSpace { outcome_unknown: false, .. }), "{error}");
        pool.members[member].slow.set(Duration::ZERO);
    }
    pool.store.settle().await;
    let key = Key::new(KEY, pool.map.hash_seed).unwrap();
    let shown = async |member: usize| pool.store.table(member).unwrap().read(&key).await.unwrap().timestamp;
    assert!(shown(1).await == shown(0).await && shown(1).await == shown(2).await, "it is nowhere");
    assert_eq!(claimed(&pool, 1).await, 0, "and holds no room");
    assert_eq!(pool.host().get(KEY).await, Ok(Some(value(b"before"))));
}

#[test]
fn a_put_that_finds_no_room_on_a_majority_is_stored_nowhere() {
    run(71, is_stored_nowhere(async |store| store.put(KEY, long(1)).await));
}

/// Found by the store's simulation (seed 403599 of its day): of three replicas that differed two were conditional operations'
/// that other members had had no room for, and no get could tell what a majority had.
#[test]
fn a_conditional_operation_that_finds_no_room_on_a_majority_is_stored_nowhere() {
    run(72, is_stored_nowhere(async |store| store.replace(KEY, long(1), PutOptions::default()).await.map(|_| ())));
}

/// One member has room, one has not, and one is away: the one that has room does not store what no majority would. (Each that was
/// stored so was of unknown outcome, and two of them on two members made a key that nobody could read.)
#[test]
fn what_no_majority_has_room_for_is_stored_nowhere_while_a_member_is_away() {
    run(74, async {
        for conditional in [false, true] {
            let pool = Pool::sized(3, 3, 4 << 20).await;
            pool.store.put(KEY, value(b"before")).await.unwrap();
            pool.store.settle().await;
            stuff(&pool.store.table(0).unwrap(), &pool.map).await;
            pool.down(2, true);
            let changed = match conditional {
                true => pool.store.replace(KEY, long(1), PutOptions::default()).await.map(|_| ()),
                false => pool.store.put(KEY, long(1)).await,
            };
            assert!(matches!(&changed, Err(error) if !error.outcome_unknown()), "{changed:?}");
            pool.store.settle().await;
            let key = Key::new(KEY, pool.map.hash_seed).unwrap();
            let shown = async |member: usize| pool.store.table(member).unwrap().read(&key).await.unwrap().timestamp;
            assert_eq!(shown(1).await, shown(0).await, "it is nowhere");
            assert_eq!(claimed(&pool, 1).await, 0, "and holds no room");
            // With the one that was away there is a majority.
            pool.down(2, false);
            while pool.store.refresh().await.is_err() {
                time::sleep(Duration::from_millis(50)).await;
            }
            assert_eq!(pool.host().get(KEY).await, Ok(Some(value(b"before"))));
            assert_eq!(pool.host().put(KEY, long(2)).await, Ok(()));
        }
    });
}

/// One that is slow and answers nothing keeps no conditional operation from being stored on the others, whatever its length.
#[test]
fn a_conditional_operation_waits_for_no_member_that_hangs() {
    run(73, async {
        let pool = Pool::sized(3, 3, 4 << 20).await;
        pool.store.put(KEY, value(b"before")).await.unwrap();
        pool.store.settle().await;
        pool.members[1].slow.set(Duration::from_secs(5));
        for (length, store) in [(10, pool.host()), (3_700, pool.host()), (100_000, pool.host())] {
            let start = time::now();
            let long = value(&vec![7; length]);
            assert_eq!(store.replace(KEY, long.clone(), PutOptions::default()).await, Ok(true));
            assert!(start.elapsed() < Duration::from_secs(2), "{length}: {:?}", start.elapsed());
            assert_eq!(store.get(KEY).await, Ok(Some(long)));
        }
    });
}

/// A new member is full: a key that was not carried over yet is read from its old homes as long as their pages are open.
#[test]
fn a_key_whose_new_home_is_full_is_read_from_the_old_one() {
    run(70, async {
        let scene = Scene::of([100, 100, 100, 100, 0], 1).await;
        let before = scene.host(SHORT).await;
        let request = Request::SetWeight(vec![(scene.id(4), 100)]);
        let moved = scene.voters.now().begin(&request, 1).unwrap().placements();
        let goes = |number: &u32| {
            let key = Key::new(&number.to_le_bytes(), scene.voters.now().hash_seed).unwrap();
            moved.new.homes(key.hash()) == [4]
        };
        let key = (0..1000u32).find(goes).unwrap().to_le_bytes();
        before.store.put(&key, long(7)).await.unwrap();
        before.store.settle().await;
        scene.begin(&request);
        let host = scene.host(SHORT).await;
        let topology = host.store.inner.topology();
        stuff(topology.members[4].table().unwrap(), &topology.map).await;
        assert_eq!(host.store.get(&key).await, Ok(Some(long(7))));
        assert_eq!(host.store.stats().write_backs.load(Ordering::Relaxed), 1, "it was tried");
        let stuck = host.finish().await.unwrap_err();
        assert!(stuck.contains("out of space"), "{stuck}");
        let sealed = host.store.get(&key).await.unwrap_err();
        assert!(matches!(sealed, StoreError::OutOfSpace { outcome_unknown: false, .. }), "{sealed}");
        scene.voters.set(scene.voters.now().take_back().unwrap());
        host.finish().await.unwrap();
        assert_eq!(host.store.get(&key).await, Ok(Some(long(7))));
    });
}
