//! Entries in bundles, under everything that befalls a page.

use std::collections::BTreeMap;
use std::time::Duration;

use super::tests::{Work, audit, get, hammered, key, record, ts, value_of};
use super::*;
use crate::testing::{Counting, create, memories, run};
use crate::types::{Applied, Ballot, Timestamp};

/// A member of so many table pages of 4 KiB and no heap.
fn member_of(pages: u64) -> u64 {
    (1152 << 10) + pages * 4096
}

/// The first `count` keys at home in `home`.
fn keys_of(table: &Table, map: &pool::Map, home: TablePage, count: usize) -> Vec<Key> {
    let names = (0..).map(|number: u32| key(map, &number.to_string()));
    names.filter(|key| table.home(key) == home).take(count).collect()
}

/// Forward records of a page, entries in bundles, and deletions among them.
async fn bundled(table: &Table, page: TablePage) -> (usize, usize, usize) {
    let image = table.read_page(page).await.unwrap();
    let view = table.decode_again(&image).unwrap();
    let counting: usize = view.forwards().map(|forward| forward.counting()).sum();
    let reserved: usize = view.forwards().map(|forward| forward.reserved()).sum();
    (view.forwards().count(), counting, counting - reserved / crate::page::DELETION_BYTES)
}

/// A table filled with short values to `percent` of what its pages can hold of them; the keys.
async fn filled(table: &Rc<Table>, map: &pool::Map, len: usize, percent: usize) -> Vec<Key> {
    let geometry = table.layout.geometry;
    let room = geometry.page_size as usize - crate::page::HEADER_BYTES;
    let count = geometry.table_pages as usize * room / (32 + 6 + len) * percent / 100;
    let keys: Vec<_> = (0..count).map(|number| key(map, &format!("{number:06}"))).collect();
    for key in &keys {
        table.store_if_newer(key, &record(ts(1, 1), Some(len)), None, None).await.unwrap();
    }
    table.quiesce().await;
    keys
}

/// A page that takes no more, and its keys.
async fn full_page(table: &Rc<Table>, map: &pool::Map) -> (TablePage, Vec<Key>) {
    let home = TablePage(3);
    let mut stored = Vec::new();
    for key in keys_of(table, map, home, 200) {
        match table.store_if_newer(&key, &record(ts(1, 1), Some(40)), None, None).await {
            Ok(_) => stored.push(key),
            Err(error) => {
                assert!(matches!(error, TableError::OutOfSpace(_)), "{error} after {}", stored.len());
                assert!(stored.len() > 80, "{}", stored.len());
                return (home, stored);
            }
        }
    }
    panic!("it takes {} values", stored.len());
}

async fn rebuild(
    table: &Rc<Table>,
    home: TablePage,
    damaged: super::rebuild::Damaged,
    records: &[(Key, Record, Ballot)],
) {
    let mut rebuilding = table.begin_rebuild(home, damaged, false).await.unwrap();
    for (key, record, promise) in records {
        rebuilding.add(key, record.clone(), *promise).await.unwrap();
    }
    rebuilding.finish().await.unwrap();
}

#[test]
fn entries_keep_their_protocol_state_in_a_bundle() {
    run(31, async {
        let members = memories(1, member_of(128));
        let map = create(&members, 1, 1000).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let home = TablePage(3);
        let ballot = |round: u64| Ballot { round, op: OpId { host: 4, sequence: round } };
        let of = |number: u64| Record {
            timestamp: Timestamp { ballot: ballot(number + 1), ..ts(5, number) },
            expiry: 1_000_000 + number,
            tag: 1 + number as u32,
            ops: vec![Applied { op: OpId { host: 4, sequence: number + 1 }, round: number + 1 }],
            ..record(ts(5, number), Some(30))
        };
        let keys = keys_of(&table, &map, home, 50);
        let records: Vec<_> =
            keys.iter().zip(0..).map(|(key, number)| (key.clone(), of(number), ballot(90 + number))).collect();
        let torn = Buf::copy_from(&[1; 4096]).freeze();
        members[0].write(table.layout.table(home), torn, Durability::Stable).await.unwrap();
        let damaged = table.damaged_page(home).await.unwrap().unwrap();
        rebuild(&table, home, damaged, &records).await;
        let (forwards, counting, _) = bundled(&table, home).await;
        assert!(forwards > 2 && counting > 20, "{forwards} {counting}");
        for (key, record, promise) in &records {
            let found = table.read(key).await.unwrap();
            assert_eq!((found.timestamp, found.promise, &found.ops), (record.timestamp, *promise, &record.ops));
            assert_eq!((found.expiry, found.tag), (record.expiry, record.tag));
        }
        // A delete leaves nothing but the promise; the value that comes after it keeps that, too.
        for (key, _, promise) in &records {
            let deleted = record(ts(9, 1), None);
            assert_eq!(table.store_if_newer(key, &deleted, None, None).await, Ok(Outcome::Stored));
            let found = table.read(key).await.unwrap();
            assert_eq!((found.timestamp, found.promise, found.ops.len()), (ts(9, 1), *promise, 0));
            assert!((found.expiry, found.tag) == (0, 0) && matches!(found.content, Content::Nothing));
        }
        for (key, _, promise) in &records {
            table.store_if_newer(key, &record(ts(10, 1), Some(1)), None, None).await.unwrap();
            let found = table.read(key).await.unwrap();
            assert_eq!((found.timestamp, found.promise, found.content.value_len()), (ts(10, 1), *promise, Some(1)));
        }
        table.quiesce().await;
        audit(&table, true).await;
    });
}

/// A member that takes no more must still take deletes, or it would never be anything but full.
#[test]
fn every_key_of_a_full_page_can_be_deleted() {
    run(32, async {
        let members = memories(1, member_of(128));
        let map = create(&members, 1, 1000).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let (home, stored) = full_page(&table, &map).await;
        for turn in 2..4 {
            for key in &stored {
                table.store_if_newer(key, &record(ts(turn, 1), None), None, None).await.unwrap();
                assert_eq!(get(&table, key).await, (ts(turn, 1), None));
                let older = table.store_if_newer(key, &record(ts(1, 9), Some(40)), None, None).await;
                assert_eq!(older, Ok(Outcome::Superseded));
            }
        }
        let (_, _, deletions) = bundled(&table, home).await;
        assert!(deletions > 10, "{deletions}");
        table.quiesce().await;
        audit(&table, true).await;
    });
}

/// A page that the value of another fills as far as a guest may.
async fn page_of_a_guest(table: &Rc<Table>, map: &pool::Map) -> TablePage {
    let home = TablePage(3);
    for key in keys_of(table, map, home, 2) {
        table.store_if_newer(&key, &record(ts(1, 1), Some(table.guest_bytes_max())), None, None).await.unwrap();
    }
    let mut pages = (0..table.layout.geometry.table_pages).map(TablePage);
    loop {
        let page = pages.next().expect("one of two values is a guest");
        let image = table.read_page(page).await.unwrap();
        if table.decode_again(&image).unwrap().header().guests > 0 {
            return page;
        }
    }
}

/// Guests stay where they are, and the last key of a page may be all that can make room: then it leaves by itself, with what it
/// is to become. Else nothing could be done with it in an empty pool, and repair would never end.
#[test]
fn a_key_of_a_page_that_a_guest_fills_leaves_it_by_itself() {
    for value in [5, 40, 900] {
        run(37, async move {
            let members = memories(1, member_of(64));
            let map = create(&members, 1, 1000).await;
            let (table, other) = (Table::new(members[0].clone(), &map, 0), Table::new(members[0].clone(), &map, 0));
            let page = page_of_a_guest(&table, &map).await;
            let key = &keys_of(&table, &map, page, 1)[0];
            let ballot = |round: u64| Ballot { round, op: OpId { host: 4, sequence: round } };
            let mut ops = Vec::new();
            for round in 1..=crate::page::OPS_MAX as u64 {
                let reply = table.apply(key, &Request::Prepare(ballot(round * 2)), Known::default()).await.unwrap();
                assert_eq!(reply.outcome, Outcome::Promised);
                // What was promised shows what is there: on that the operation builds.
                let shown = table.find(&reply.image, key).unwrap();
                assert_eq!((shown.promise, &shown.ops), (ballot(round * 2), &ops));
                ops.push(Applied { op: ballot(round * 2).op, round: round * 2 });
                let timestamp = Timestamp { ballot: ballot(round * 2), ..ts(5, 1) };
                let record = Record { ops: ops.clone(), ..record(timestamp, Some(value)) };
                let accept = Request::Accept { ballot: ballot(round * 2), next: ballot(round * 2 + 1), record };
                let known = Known { image: Some(reply.image), ..Known::default() };
                let reply = table.apply(key, &accept, known).await.unwrap();
                assert_eq!(
                    (reply.outcome, table.find(&reply.image, key).unwrap().timestamp),
                    (Outcome::Stored, timestamp)
                );
                table.quiesce().await;
                let found = other.read(key).await.unwrap();
                assert_eq!((found.timestamp, found.promise, &found.ops), (timestamp, ballot(round * 2 + 1), &ops));
                assert_eq!(get(&other, key).await, (timestamp, Some(value_of(timestamp, value))));
            }
            assert_eq!(bundled(&table, page).await, (1, 1, 0));
            engine::time::sleep(Duration::from_secs(60)).await;
            audit(&table, true).await;
            other.store_if_newer(key, &record(ts(6, 1), None), None, None).await.unwrap();
            assert_eq!(get(&table, key).await, (ts(6, 1), None));
            engine::time::sleep(Duration::from_secs(60)).await;
            other.quiesce().await;
            audit(&table, true).await;
        });
    }
}

/// A page that has several bundles, and guests, and its bundles.
async fn page_of_bundles(table: &Table) -> (TablePage, Vec<crate::page::Reference>) {
    let mut chosen = None;
    for page in (0..table.layout.geometry.table_pages).map(TablePage) {
        let image = table.read_page(page).await.unwrap();
        let view = table.decode_again(&image).unwrap();
        if view.header().forwards > 1 && view.header().guests > 0 {
            chosen = Some((page, view.forwards().map(|forward| forward.reference).collect()));
        }
    }
    chosen.expect("a page with bundles and guests")
}

/// A page under traffic is rebuilt as well: what was written to it while the others were asked stays.
#[test]
fn a_lost_bundle_is_gathered_while_its_page_is_written() {
    run(35, async {
        let members = memories(1, member_of(64));
        let map = create(&members, 1, 1000).await;
        let (table, other) = (Table::new(members[0].clone(), &map, 0), Table::new(members[0].clone(), &map, 0));
        let keys = filled(&table, &map, 60, 88).await;
        let (home, bundles) = page_of_bundles(&table).await;
        assert!(table.free_guest(home, &bundles[0]).await.unwrap());
        let damaged = table.damaged_page(home).await.unwrap().unwrap();
        let mut rebuilding = table.begin_rebuild(home, damaged, false).await.unwrap();
        let of_page: Vec<_> = keys.iter().filter(|key| table.home(key) == home).collect();
        for key in &of_page {
            rebuilding.add(key, record(ts(3, 1), Some(60)), Ballot::NONE).await.unwrap();
        }
        // One that the page holds is written over, and one that it never had, but the others, is written for the first time.
        let fresh = keys_of(&table, &map, home, 2000).into_iter().rfind(|key| !keys.contains(key)).unwrap();
        rebuilding.add(&fresh, record(ts(2, 1), Some(60)), Ballot::NONE).await.unwrap();
        let mut written = Vec::new();
        for key in of_page.iter().copied().chain([&fresh]) {
            let newer = record(ts(4, 1), None);
            if other.store_if_newer(key, &newer, None, None).await.is_ok() {
                written.push(key);
            }
        }
        assert!(written.len() > 5 && written.contains(&&fresh), "{}", written.len());
        rebuilding.finish().await.unwrap();
        assert!(table.damaged_page(home).await.unwrap().is_none());
        let mut gathered = 0;
        for key in of_page.iter().copied().chain([&fresh]) {
            let expected = if written.contains(&key) { ts(4, 1) } else { ts(3, 1) };
            assert_eq!(get(&table, key).await.0, expected);
            gathered += usize::from(expected == ts(3, 1));
        }
        assert!(gathered > 2, "{gathered}");
        table.quiesce().await;
        other.quiesce().await;
        audit(&table, true).await;
    });
}

/// One host can't read a bundle, another can, and deletes what is in it: the rebuild of the first undoes no such deletion,
/// neither one from before it asked the others nor one from after.
#[test]
fn what_is_deleted_of_a_bundle_that_others_can_read_stays_deleted() {
    for before in [true, false] {
        run(36, async move {
            let members = memories(1, member_of(128));
            let map = create(&members, 1, 1000).await;
            let member = Counting::new(members[0].clone());
            let (table, other) = (Table::new(member.clone(), &map, 0), Table::new(members[0].clone(), &map, 0));
            let (home, of_page) = full_page(&other, &map).await;
            let bundles = other.bundles_of(home).await;
            member.bad_block.set(Some(table.layout.table(TablePage(bundles[0].place as u32))));
            let mark = table.damaged_page(home).await.unwrap().unwrap().mark();
            let delete = async || {
                for key in &of_page {
                    other.store_if_newer(key, &record(ts(4, 1), None), None, None).await.unwrap();
                    let image = other.read_page(home).await.unwrap();
                    let view = other.decode_again(&image).unwrap();
                    let forward = view.forwards().find(|forward| forward.reference == bundles[0]).unwrap();
                    if forward.reserved() < forward.counting() * crate::page::DELETION_BYTES {
                        return;
                    }
                }
                panic!("no key was deleted in the bundle");
            };
            if before {
                delete().await;
            }
            let damaged = table.damaged_page(home).await.unwrap().unwrap();
            assert_eq!(damaged.is_within(&mark), !before, "what was deleted since has not been waited for");
            let mut rebuilding = table.begin_rebuild(home, damaged, false).await.unwrap();
            for key in &of_page {
                rebuilding.add(key, record(ts(3, 1), Some(60)), Ballot::NONE).await.unwrap();
            }
            if !before {
                delete().await;
                assert_eq!(rebuilding.finish().await, Err(TableError::Contended));
            }
            let (mut deleted, mut kept) = (0, 0);
            for key in &of_page {
                match get(&other, key).await.0 {
                    timestamp if timestamp == ts(4, 1) => deleted += 1,
                    timestamp => kept += usize::from(timestamp == ts(1, 1)),
                }
            }
            assert!(deleted > 0 && deleted + kept == of_page.len(), "{deleted} {kept} of {}", of_page.len());
        });
    }
}

/// What is not at home in a page any more goes with the seal that is yet to come: whoever brings back what a bundle held does not
/// look at the rest of the page, and must not seal it.
#[test]
fn a_page_whose_bundle_is_rebuilt_is_not_sealed_with_it() {
    run(34, async {
        let members = memories(1, member_of(64));
        let map = create(&members, 1, 1000).await;
        let table = Table::new(members[0].clone(), &map, 0);
        filled(&table, &map, 60, 88).await;
        let (home, bundles) = page_of_bundles(&table).await;
        assert!(table.free_guest(home, &bundles[0]).await.unwrap());
        let final_map = pool::Map { epoch: map.epoch + 1, ..map.clone() };
        let newer = table.successor(&final_map, 0);
        let damaged = newer.damaged_page(home).await.unwrap().unwrap();
        rebuild(&newer, home, damaged, &[]).await;
        let sealed = newer.seal_and_drop(home, None, |_| false).await.unwrap();
        assert!(sealed.written && sealed.dropped > 0);
        assert!(sealed.image.entries(&newer).unwrap().is_empty());
    });
}

/// The page of a lost bundle has no vote on what was in it, and on nothing else is it lost.
#[test]
fn a_lost_bundle_is_gathered_and_all_else_stays() {
    run(34, async {
        let members = memories(1, member_of(64));
        let map = create(&members, 1, 1000).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let keys = filled(&table, &map, 60, 88).await;
        let (home, bundles) = page_of_bundles(&table).await;
        assert!(table.free_guest(home, &bundles[0]).await.unwrap());
        let first = table.damaged_page(home).await.unwrap().unwrap();
        assert!(table.free_guest(home, &bundles[1]).await.unwrap());
        assert!(
            table.begin_rebuild(home, first.clone(), false).await.is_err(),
            "more is lost than was looked for elsewhere"
        );
        let both = table.damaged_page(home).await.unwrap().unwrap();
        assert!(first.is_within(&both.mark()) && !both.is_within(&first.mark()));
        let (mut unread, mut records) = (0, Vec::new());
        for key in keys.iter().filter(|key| table.home(key) == home) {
            match table.read(key).await {
                Ok(found) => assert_eq!(found.timestamp, ts(1, 1)),
                Err(error) => {
                    assert_eq!(error, TableError::CopyDamaged { op: OpId::default() });
                    let refused = table.store_if_newer(key, &record(ts(2, 1), Some(1)), None, None).await;
                    assert_eq!(refused, Err(error), "it has no vote");
                    unread += 1;
                }
            }
            // The others have written it again meanwhile; what is not lost here repair brings by itself.
            records.push((key.clone(), record(ts(3, 1), Some(60)), Ballot::NONE));
        }
        assert!(unread > 2, "{unread}");
        let damaged = table.damaged_page(home).await.unwrap().unwrap();
        rebuild(&table, home, damaged, &records).await;
        assert!(table.damaged_page(home).await.unwrap().is_none());
        let mut newer = 0;
        for key in &keys {
            let (timestamp, value) = get(&table, key).await;
            assert_eq!(value, Some(value_of(timestamp, 60)));
            newer += usize::from(timestamp == ts(3, 1));
        }
        assert!((3..=unread).contains(&newer), "{newer} of {unread}");
        table.quiesce().await;
        audit(&table, true).await;
    });
}

/// Entries that are not at home any more go with the seal, out of bundles, too; also if the reply is lost.
#[test]
fn what_is_not_at_home_leaves_bundles_with_the_seal() {
    for lost in [None, Some((7, false)), Some((7, true))] {
        run(34, async move {
            let members: Vec<_> = memories(1, member_of(64)).into_iter().map(Counting::new).collect();
            let map = create(&members, 1, 1000).await;
            let table = Table::new(members[0].clone(), &map, 0);
            let keys = filled(&table, &map, 60, 88).await;
            let stays = |key: &[u8]| key.last().is_some_and(|byte| byte % 2 == 0);
            members[0].cut.set(lost);
            let mut listed = BTreeMap::new();
            for page in (0..table.layout.geometry.table_pages).map(TablePage) {
                let mut result = table.seal_and_drop(page, None, |entry| stays(entry.key)).await;
                while result.is_err() {
                    members[0].down.set(false);
                    members[0].cut.set(None);
                    result = table.seal_and_drop(page, None, |entry| stays(entry.key)).await;
                }
                listed.extend(result.unwrap().image.entries(&table).unwrap());
            }
            let expected: Vec<_> = keys.iter().map(|key| key.bytes()).filter(|key| stays(key)).collect();
            assert!(listed.keys().eq(expected), "{} entries", listed.len());
            for key in keys.iter().filter(|key| stays(key.bytes())) {
                assert_eq!(get(&table, key).await, (ts(1, 1), Some(value_of(ts(1, 1), 60))));
            }
            engine::time::sleep(Duration::from_secs(1)).await;
            table.quiesce().await;
            audit(&table, true).await;
        });
    }
}

/// As `register_survives_faulty_commands`, where a third of the keys are in bundles.
#[test]
fn bundled_entries_survive_faulty_commands() {
    for seed in 0..20 {
        run(seed, async move {
            let memory = memories(1, member_of(64))[0].clone();
            let map = Rc::new(create(std::slice::from_ref(&memory), 1, 1000).await);
            let table = Table::new(memory.clone(), &map, 0);
            let keys = filled(&table, &map, 60, 80).await;
            let work = Work { names: keys.len(), width: 6, lengths: &[40, 60, 70, 80], operations: 300 };
            hammered(seed, memory, &map, work).await;
        });
    }
}

/// As `register_survives_faulty_commands`, where guests leave the keys of a page hardly any room, and some have to go themselves.
#[test]
fn keys_beside_guests_survive_faulty_commands() {
    for seed in 0..20 {
        run(seed, async move {
            let memory = memories(1, member_of(64))[0].clone();
            let map = Rc::new(create(std::slice::from_ref(&memory), 1, 1000).await);
            let table = Table::new(memory.clone(), &map, 0);
            for home in (0..18).map(TablePage) {
                for key in keys_of(&table, &map, home, 2) {
                    let value = record(ts(1, 1), Some(table.guest_bytes_max()));
                    table.store_if_newer(&key, &value, None, None).await.unwrap();
                }
            }
            table.quiesce().await;
            let work = Work { names: 240, width: 6, lengths: &[30, 40, 44], operations: 600 };
            hammered(seed, memory, &map, work).await;
            let mut forwards = 0;
            for page in (0..table.layout.geometry.table_pages).map(TablePage) {
                forwards += bundled(&table, page).await.0;
            }
            assert!(forwards > 0, "no key had to leave its page");
        });
    }
}
