//! Collectors beside writers.

use std::time::Duration;

use engine::sim::{SimConfig, World};

use super::tests::{audit, get, key, record, ts, value_of};
use super::*;
use crate::testing::{Counting, create, memories, run};

/// Looks at every extent and guest of a member; what was freed.
async fn collect(table: &Table, orphans: &Orphans, age_min: Duration) -> usize {
    let geometry = table.layout.geometry;
    let mut freed = 0;
    for group in (0..geometry.heap_groups).map(pool::HeapGroup) {
        for (tag, claim) in table.extents(group).await.unwrap() {
            // What is in stock is written before it is known whether it is still there: there age is all.
            if claim.home == crate::page::UNBOUND && age_min.is_zero() {
                continue;
            }
            let collected = table.collect_extent(group, tag, orphans, age_min).await.unwrap();
            freed += usize::from(matches!(collected, Collected::Freed(_)));
        }
    }
    for page in (0..geometry.table_pages).map(TablePage) {
        let image = table.read_page(page).await.unwrap();
        for (copy, home) in table.guests(&image).unwrap() {
            let collected = table.collect_guest(page, copy, home).await.unwrap();
            freed += usize::from(matches!(collected, Collected::Freed(_)));
        }
    }
    freed
}

/// A host that ends orderly leaves no claims behind: not even those under way when it gives its stock back, which only a
/// collector would find, hours later. Found by the store's simulation with members that are nearly full (seed 2044 of its
/// day).
#[test]
fn stock_that_is_just_being_claimed_goes_back_too() {
    run(22, async {
        let members = memories(1, 8 << 20);
        let map = create(&members, 1, 500).await;
        let member = Counting::new(members[0].clone());
        let table = Table::new(member.clone(), &map, 0);
        member.slow.set(Duration::from_millis(10));
        assert!(table.take_stock(4).is_none(), "there is none yet");
        engine::time::sleep(Duration::from_millis(5)).await;
        table.quiesce().await;
        engine::time::sleep(Duration::from_secs(1)).await;
        let swaps = member.swaps.get();
        assert!(swaps >= 2, "it was claimed and given back: {swaps}");
        for group in 0..table.layout.geometry.heap_groups {
            assert_eq!(table.extents(pool::HeapGroup(group)).await.unwrap(), Vec::new());
        }
    });
}

/// An extent that was put after the heap was read, and freed while the tables were walked, is not missing: its page does not
/// refer to it any more when it is looked at again.
#[test]
fn what_is_freed_during_a_walk_is_no_lost_claim() {
    run(23, async {
        let members = memories(1, 8 << 20);
        let map = create(&members, 1, 500).await;
        let (table, other) = (Table::new(members[0].clone(), &map, 0), Table::new(members[0].clone(), &map, 0));
        let key = key(&map, "k");
        let before = table.heap(async |_, _| ()).await.unwrap();
        other.store_if_newer(&key, &record(ts(1, 1), Some(9000)), None, None).await.unwrap();
        let replaced = std::cell::Cell::new(0);
        let replace = async |bytes: u64, _| {
            // The walk asks for one page where it has a doubt, for many where it reads tables.
            if bytes == table.layout.page_bytes() as u64 {
                replaced.set(replaced.get() + 1);
                other.store_if_newer(&key, &record(ts(2, 1), None), None, None).await.unwrap();
                other.quiesce().await;
            }
        };
        let marks = table.mark(Some(before), replace).await.unwrap();
        assert_eq!((replaced.get(), marks.unread, marks.missing), (1, 0, Vec::new()));
    });
}

/// What a host leaves behind that ends between placing a value and publishing it, its stock with it.
#[test]
fn orphans_are_freed_and_what_is_in_use_is_not() {
    run(21, async {
        let members = memories(1, 8 << 20);
        let map = create(&members, 1, 500).await;
        let table = Table::new(members[0].clone(), &map, 0);
        for number in 0..6 {
            let key = key(&map, &number.to_string());
            let len = [9000, 100_000, 300_000][number % 3];
            table.store_if_newer(&key, &record(ts(1, 1), Some(len)), None, None).await.unwrap();
        }
        let home = table.home(&key(&map, "0"));
        for (sequence, len) in [(1, 9000), (2, 300_000), (3, 700)] {
            let (timestamp, value) = (ts(9, sequence), record(ts(9, sequence), Some(len)).value.unwrap());
            table.place(home, timestamp.op, &value).await.unwrap();
        }
        drop(table);
        let later = Table::new(members[0].clone(), &map, 0);
        // The guest alone: all else is too young.
        let orphans = Orphans::default();
        assert_eq!(collect(&later, &orphans, AGE_MIN).await, 1);
        engine::time::sleep(Duration::from_secs(1201)).await;
        let age_min = Duration::from_secs(600);
        assert!(collect(&later, &orphans, age_min).await >= 5, "an extent, three parts and an index, the stock");
        assert_eq!(collect(&later, &orphans, age_min).await, 0);
        audit(&later, true).await;
        for number in 0..6 {
            let len = [9000, 100_000, 300_000][number % 3];
            assert!(get(&later, &key(&map, &number.to_string())).await == (ts(1, 1), Some(value_of(ts(1, 1), len))));
        }
    });
}

/// By the collector's calendar everything was claimed a day ago, and it may be that calendar which is wrong: it goes by what it has
/// seen itself. It took the places of what others were just putting, and gave them away.
#[test]
fn a_collector_does_not_go_by_the_calendar() {
    let config = SimConfig { virtual_time_max: Duration::from_secs(100_000), ..SimConfig::default() };
    let ended = World::new(24, config).run_until(async {
        let members = memories(1, 8 << 20);
        let map = create(&members, 1, 500).await;
        let (table, collector) = (Table::new(members[0].clone(), &map, 0), Table::new(members[0].clone(), &map, 0));
        let (home, op) = (table.home(&key(&map, "k")), ts(9, 1).op);
        let placed = table.place(home, op, &record(ts(9, 1), Some(300_000)).value.unwrap()).await.unwrap();
        engine::time::sleep(Duration::from_secs(86_400)).await;
        let orphans = Orphans::default();
        assert_eq!(collect(&collector, &orphans, AGE_MIN).await, 0);
        assert!(table.is_whole(home, &placed, op).await.unwrap());
        engine::time::sleep(AGE_MIN).await;
        assert!(collect(&collector, &orphans, AGE_MIN).await > 3, "nobody refers to them still");
        assert!(!table.is_whole(home, &placed, op).await.unwrap());
    });
    assert!(ended.is_ok(), "{ended:?}");
}

/// A host that hears late that it has freed a value of many parts, and frees it again: the place of its index is another value's
/// by now, written by an operation of the same id (a key never written has id 0), whose parts were freed, and given to others.
#[test]
fn a_second_free_of_an_index_frees_nothing_of_anothers() {
    run(25, async {
        let members = memories(1, 8 << 20);
        let map = create(&members, 1, 500).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let (home, op) = (table.home(&key(&map, "k")), OpId::default());
        table.save_room();
        let first = table.place(home, op, &record(ts(1, 1), Some(300_000)).value.unwrap()).await.unwrap();
        table.free_extents(&first, op).await.unwrap();
        let second = table.place(home, op, &record(ts(2, 2), Some(300_000)).value.unwrap()).await.unwrap();
        assert_eq!((second.place, second.parts), (first.place, first.parts), "the same place");
        table.free_extents(&first, op).await.unwrap();
        assert!(table.is_whole(home, &second, op).await.unwrap());
        table.free_extents(&second, op).await.unwrap();
        for group in (0..table.layout.geometry.heap_groups).map(pool::HeapGroup) {
            assert_eq!(table.extents(group).await.unwrap(), Vec::new());
        }
    });
}

/// What was claimed long ago is bound before anything is written there, and not used at all once the connection is another: were
/// the host's clock to stand while it did not run, it would write over what others have published there since.
#[test]
fn an_old_stock_is_bound_before_it_is_written_to_and_ends_with_its_connection() {
    run(26, async {
        let members = memories(1, 8 << 20);
        let map = create(&members, 1, 500).await;
        let member = Counting::new(members[0].clone());
        let table = Table::new(member.clone(), &map, 0);
        let (home, op, value) = (table.home(&key(&map, "k")), ts(9, 1).op, record(ts(9, 1), Some(9000)).value.unwrap());
        let stocked = async || {
            assert!(table.take_stock(4).is_none());
            engine::time::sleep(Duration::from_millis(100)).await;
        };
        let taken_away = async || {
            for group in (0..table.layout.geometry.heap_groups).map(pool::HeapGroup) {
                for (tag, _) in table.extents(group).await.unwrap() {
                    table.release(group, tag).await.unwrap();
                }
            }
        };
        for (age, written_twice) in [(1, true), (61, false)] {
            stocked().await;
            engine::time::sleep(Duration::from_secs(age)).await;
            taken_away().await;
            member.writes.set(0);
            let placed = table.place(home, op, &value).await.unwrap();
            assert!(table.is_whole(home, &placed, op).await.unwrap());
            assert_eq!(member.writes.get() > 1, written_twice, "after {age} s");
            table.free_extents(&placed, op).await.unwrap();
            table.quiesce().await;
        }
        stocked().await;
        member.epoch.set(1);
        assert!(table.take_stock(4).is_none(), "it was claimed over another connection");
    });
}

/// A host was paused without its clock between placing a value and publishing it: the copy was collected meanwhile, and its place
/// given to another value. The copy was published as if it were young, and what was acknowledged could not be read.
#[test]
fn what_was_placed_over_another_connection_is_looked_at_before_it_is_published() {
    run(27, async {
        let members = memories(1, 8 << 20);
        let map = create(&members, 1, 500).await;
        let member = Counting::new(members[0].clone());
        let (table, other) = (Table::new(member.clone(), &map, 0), Table::new(members[0].clone(), &map, 0));
        for (counter, page_is_given) in [(1, true), (2, false)] {
            let (key, record) = (key(&map, "k"), record(ts(counter, 1), Some(9000)));
            let value = record.value.clone().unwrap();
            let placed = table.place_early(&key, ts(counter, 1).op, &value).await.unwrap();
            engine::time::sleep(Duration::from_millis(100)).await;
            for group in (0..table.layout.geometry.heap_groups).map(pool::HeapGroup) {
                for (tag, _) in table.extents(group).await.unwrap() {
                    other.release(group, tag).await.unwrap();
                }
            }
            other.bump_home(table.home(&key)).await.unwrap();
            other.place(other.home(&key), ts(counter, 2).op, &value).await.unwrap();
            member.epoch.set(member.epoch.get() + 1);
            let image = if page_is_given { Some(table.read_home(&key).await.unwrap()) } else { None };
            let known = Known { image, placed, damaged: None };
            let reply = table.apply(&key, &Request::Store(record), known).await.unwrap();
            assert_eq!(reply.outcome, Outcome::Stored);
            let Found { content: Content::Elsewhere(_, reference), timestamp, .. } = other.read(&key).await.unwrap()
            else {
                panic!("9000 bytes in a page")
            };
            assert!(
                other.is_whole(other.home(&key), &reference, timestamp.op).await.unwrap(),
                "its place is not its own"
            );
            assert!(get(&other, &key).await == (ts(counter, 1), Some(value_of(ts(counter, 1), 9000))));
        }
    });
}

/// A collector that takes every store under way for an orphan, at every moment of the store.
#[test]
fn a_store_and_a_collector_never_leave_a_reference_to_nowhere() {
    for (len, moment) in [60, 700, 9000, 300_000].into_iter().flat_map(|len| (0..24).map(move |moment| (len, moment))) {
        run(moment, async move {
            let short = len < 1000;
            let members = memories(1, if short { 4 << 20 } else { 16 << 20 });
            // A table so small that some values of 700 bytes are guests, and some of 60 go in bundles.
            let map = create(&members, 1, if short { 1000 } else { 500 }).await;
            let collector = Table::new(members[0].clone(), &map, 0);
            if short {
                fill(&collector, &map, len - len / 6).await;
            }
            let namespace = Counting::new(members[0].clone());
            let writer = Table::new(namespace.clone(), &map, 0);
            namespace.slow.set(Duration::from_secs(1));
            // Data that lands late is beyond this test: one writer of extents has none under way when it places anew.
            let writers = if short { 4 } else { 1 };
            let writes: Vec<_> = (0..writers)
                .map(|number| {
                    let (writer, key) = (writer.clone(), key(&map, &number.to_string()));
                    engine::task::spawn(async move {
                        let record = record(ts(50, number), Some(len));
                        writer.store_if_newer(&key, &record, None, None).await.unwrap()
                    })
                })
                .collect();
            engine::time::sleep(Duration::from_millis(500 * moment + 250)).await;
            collect(&collector, &Orphans::default(), Duration::ZERO).await;
            for write in writes {
                assert_eq!(write.await, Outcome::Stored);
            }
            namespace.slow.set(Duration::ZERO);
            writer.quiesce().await;
            audit(&writer, false).await;
            for number in 0..writers {
                let read = get(&collector, &key(&map, &number.to_string())).await;
                assert!(read == (ts(50, number), Some(value_of(ts(50, number), len))), "{len} at {moment}: {number}");
            }
        });
    }
}

/// Fills the homes of the keys that the test writes, so that their values have to go elsewhere.
async fn fill(table: &Rc<Table>, map: &pool::Map, len: usize) {
    let homes: Vec<_> = (0..4).map(|number| table.home(&key(map, &number.to_string()))).collect();
    for number in 0..20_000 {
        let key = key(map, &format!("filler {number}"));
        if homes.contains(&table.home(&key)) {
            table.store_if_newer(&key, &record(ts(1, 1), Some(len)), None, None).await.unwrap();
        }
    }
}

/// A copy for an image that was given up in doubt, on a page that nobody writes any more: red when the page was looked at every
/// 30 s for good.
#[test]
fn what_was_in_doubt_is_settled_although_nobody_writes_the_page() {
    run(25, async {
        let members = memories(1, 8 << 20);
        let map = create(&members, 1, 500).await;
        let member = Counting::new(members[0].clone());
        let table = Table::new(member.clone(), &map, 0);
        let home = table.home(&key(&map, "k"));
        let before = table.read_raw(home).await.unwrap();
        let expected = *table.decode(home, &before).unwrap().header();
        let copy = table.place(home, ts(1, 1).op, &record(ts(1, 1), Some(9000)).value.unwrap()).await.unwrap();
        table.keep(Leftover::Undecided(home, (copy, ts(1, 1).op), Some(expected)));
        while table.has_leftovers() {
            engine::time::sleep(Duration::from_secs(1)).await;
        }
        table.quiesce().await;
        for group in 0..table.layout.geometry.heap_groups {
            assert_eq!(table.extents(pool::HeapGroup(group)).await.unwrap(), Vec::new());
        }
        // The attempt itself, late: it must not find the page that it was planned on.
        let late = table.replace(table.layout.table(home), before.clone(), before).await;
        assert_eq!(late, Err(device::Error::CompareFailure));
        member.take();
        engine::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(member.take().0, 0, "nothing is looked at any more");
    });
}

/// A claim in doubt that lands after it was seen not to have: red when nothing had changed the page meanwhile, and the claim, known
/// to nobody, took its places until a collector came.
#[test]
fn a_claim_in_doubt_does_not_land_behind_its_release() {
    run(26, async {
        let members = memories(1, 8 << 20);
        let map = create(&members, 1, 500).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let (group, tag) = (pool::HeapGroup(0), 7);
        let lba = table.layout.allocation(group);
        let before = table.read_at(lba, table.layout.page_bytes()).await.unwrap();
        let mut claimed = crate::page::AllocationPage::decode(&before, 0, table.incarnation).unwrap();
        claimed.stock(0, 100, tag, 1);
        let claimed = claimed.encode_next(table.layout.page_bytes()).freeze();
        table.keep(Leftover::Extent(group, tag));
        while table.has_leftovers() {
            engine::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(table.replace(lba, before, claimed).await, Err(device::Error::CompareFailure));
        assert_eq!(table.extents(group).await.unwrap(), Vec::new());
    });
}
