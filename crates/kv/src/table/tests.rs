use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use device::{Fault, FaultConfig, Memory};
use pool::{HeapGroup, HeapPage};

use super::*;
use crate::page::PageError;
use crate::testing::{Counting, create, memories, run};
use crate::types::{Ballot, Timestamp};

pub(super) const SMALL: u64 = 4 << 20;

pub(super) fn ts(counter: u64, host: u64) -> Timestamp {
    Timestamp { counter, op: OpId { host, sequence: counter }, ballot: Ballot::NONE }
}

/// The value that an operation writes: its bytes tell which it was.
pub(super) fn value_of(timestamp: Timestamp, len: usize) -> Vec<u8> {
    let mut bytes = vec![(timestamp.counter * 31 + timestamp.op.host) as u8; len];
    bytes.iter_mut().step_by(512).enumerate().for_each(|(index, byte)| *byte = byte.wrapping_add(index as u8));
    bytes
}

pub(super) fn record(timestamp: Timestamp, len: Option<usize>) -> Record {
    Record { timestamp, value: len.map(|len| Value::copy_from(&value_of(timestamp, len))), ..Record::default() }
}

pub(super) fn key(map: &pool::Map, name: &str) -> Key {
    Key::new(name.as_bytes(), map.hash_seed).unwrap()
}

pub(super) async fn get(table: &Table, key: &Key) -> (Timestamp, Option<Vec<u8>>) {
    let mut found = table.read(key).await.unwrap();
    loop {
        if matches!(found.content, Content::Nothing) {
            return (found.timestamp, None);
        }
        match table.fetch(key, &found).await.unwrap() {
            Fetched::Value(value) => return (found.timestamp, Some(value.to_vec())),
            Fetched::Changed(newer) => found = newer,
        }
    }
}

/// Whether a slot is somebody's, and not in a host's stock.
fn is_bound(claim: &crate::page::Claim) -> bool {
    claim.tag != 0 && claim.home != crate::page::UNBOUND
}

/// Looks at a member from outside: every reference must lead to slots that its tag owns, no slot may have two owners, and
/// (`exact`) nothing may be claimed that nobody refers to. Returns (data pages claimed, guests).
pub(super) async fn audit(table: &Table, exact: bool) -> (usize, usize) {
    let geometry = table.layout.geometry;
    let (mut tags, mut guests, mut used_guests) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for page in (0..geometry.table_pages).map(TablePage) {
        let bytes = table.read_raw(page).await.unwrap();
        let view = table.decode(page, &bytes).unwrap();
        let image = table.complete(page, bytes.clone(), None).await.unwrap();
        guests.extend(view.guests().map(|guest| (page.0, guest.copy, guest.home)));
        for (reference, op) in table.references(&image).unwrap() {
            match reference.kind {
                PlaceKind::Guest => assert!(used_guests.insert((reference.place as u32, reference.copy, page.0))),
                PlaceKind::Extent => assert!(tags.insert((HeapPage(reference.place), reference.copy))),
                PlaceKind::Index => {
                    assert!(tags.insert((HeapPage(reference.place), reference.copy)));
                    for part in table.index_places(&reference, op).await {
                        assert!(tags.insert(part), "two references to one extent");
                    }
                }
            }
        }
    }
    let mut claimed = BTreeMap::new();
    for group in (0..geometry.heap_groups).map(HeapGroup) {
        let allocation = table.read_allocation(group).await.unwrap();
        for (slot, claim) in allocation.slots().iter().enumerate().filter(|(_, claim)| is_bound(claim)) {
            claimed.insert(HeapPage::new(group, slot as u32), *claim);
        }
    }
    for (place, tag) in &tags {
        assert_eq!(claimed.get(place).map(|claim| (claim.tag, claim.index)), Some((*tag, 0)), "a reference to nowhere");
    }
    assert!(used_guests.is_subset(&guests), "a reference to a guest that is not there");
    if exact {
        let owners: BTreeSet<u64> = claimed.values().map(|claim| claim.tag).collect();
        assert_eq!(owners, tags.iter().map(|(_, tag)| *tag).collect(), "space is lost");
        assert_eq!(guests, used_guests, "a guest is left behind");
    }
    (claimed.len(), guests.len())
}

#[test]
fn empty_member_answers_never_written() {
    run(1, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 500).await;
        let table = Table::new(members[0].clone(), &map, 0);
        assert_eq!(get(&table, &key(&map, "a")).await, (Timestamp::ZERO, None));
    });
}

#[test]
fn stores_only_what_is_newer() {
    run(2, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 500).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let key = key(&map, "a");
        let store = async |timestamp, len| table.store_if_newer(&key, &record(timestamp, len), None, None).await;
        assert_eq!(store(ts(2, 1), Some(10)).await, Ok(Outcome::Stored));
        assert_eq!(store(ts(1, 9), Some(10)).await, Ok(Outcome::Superseded));
        assert_eq!(store(ts(2, 1), Some(10)).await, Ok(Outcome::Stored), "the same again is done already");
        assert_eq!(get(&table, &key).await, (ts(2, 1), Some(value_of(ts(2, 1), 10))));
        assert_eq!(store(ts(2, 2), None).await, Ok(Outcome::Stored));
        assert_eq!(get(&table, &key).await, (ts(2, 2), None), "a tombstone keeps its timestamp");
    });
}

/// Every length of value, over and over in a small table: against a map, and without losing a page of space.
#[test]
fn behaves_like_a_map_whatever_the_lengths() {
    for seed in 0..6 {
        run(seed, async {
            let members = memories(1, 16 << 20);
            let map = create(&members, 1, 20 + 100 * seed as u32).await;
            let table = Table::new(members[0].clone(), &map, 0);
            let mut model: BTreeMap<String, (Timestamp, Option<usize>)> = BTreeMap::new();
            for counter in 1..400 {
                let draw = engine::task::random_u64() as usize;
                let name = format!("key {}", draw % 60);
                let lens = [0, 10, 300, 1000, 2500, 3900, 4000, 4096, 5000, 40_000, 131_072, 131_073, 1 << 20];
                let roll = (draw >> 8) % 100;
                let len = if roll < 5 { None } else { Some(lens[if roll < 95 { roll % 9 } else { roll % 13 }]) };
                let stored = table.store_if_newer(&key(&map, &name), &record(ts(counter, 1), len), None, None).await;
                assert_eq!(stored, Ok(Outcome::Stored), "{len:?}");
                model.insert(name, (ts(counter, 1), len));
                if counter % 40 == 0 {
                    table.quiesce().await;
                    audit(&table, true).await;
                }
            }
            for (name, (timestamp, len)) in &model {
                let expected = (*timestamp, len.map(|len| value_of(*timestamp, len)));
                assert!(get(&table, &key(&map, name)).await == expected, "{name} of {len:?}");
            }
        });
    }
}

#[test]
fn guests_are_used_and_freed() {
    run(3, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 1000).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let pages = u64::from(table.layout.geometry.table_pages);
        // No heap, and more 600-byte values than some pages can hold: the rest lives with others.
        let keys: Vec<_> = (0..pages * 4).map(|number| key(&map, &number.to_string())).collect();
        for key in &keys {
            table.store_if_newer(key, &record(ts(1, 1), Some(600)), None, None).await.unwrap();
        }
        let (_, guests) = audit(&table, true).await;
        assert!(guests > 20, "{guests} guests");
        for key in &keys {
            assert_eq!(get(&table, key).await, (ts(1, 1), Some(value_of(ts(1, 1), 600))));
            table.store_if_newer(key, &record(ts(2, 1), None), None, None).await.unwrap();
        }
        table.quiesce().await;
        assert_eq!(audit(&table, true).await, (0, 0));
    });
}

#[test]
fn full_member_says_so_and_stays_readable() {
    run(4, async {
        let members = memories(1, 3 << 20);
        let map = create(&members, 1, 300).await;
        let table = Table::new(members[0].clone(), &map, 0);
        for len in [100, 3900, 20_000] {
            let mut stored = Vec::new();
            let refused = loop {
                let key = key(&map, &format!("{len} {}", stored.len()));
                match table.store_if_newer(&key, &record(ts(1, 1), Some(len)), None, None).await {
                    Ok(_) => stored.push(key),
                    Err(error) => break error,
                }
            };
            assert!(matches!(refused, TableError::OutOfSpace(full) if full.contains("heap")), "{refused}");
            assert!(len != 100 || stored.len() > 500, "{} small entries", stored.len());
            for key in &stored {
                assert_eq!(get(&table, key).await, (ts(1, 1), Some(value_of(ts(1, 1), len))));
            }
            for key in stored {
                table.store_if_newer(&key, &record(ts(2, 1), None), None, None).await.unwrap();
            }
            table.quiesce().await;
            audit(&table, true).await;
        }
    });
}

#[test]
fn usual_store_is_one_read_and_one_swap_and_queued_writers_do_not_read() {
    run(5, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 500).await;
        let counting = Counting::new(members[0].clone());
        let table = Table::new(counting.clone(), &map, 0);
        let key = key(&map, "a");
        table.store_if_newer(&key, &record(ts(1, 1), Some(3900)), None, None).await.unwrap();
        assert_eq!(counting.take(), (1, 0, 1));
        let image = table.read_page(table.home(&key)).await.unwrap();
        table.store_if_newer(&key, &record(ts(2, 1), Some(3900)), Some(image), None).await.unwrap();
        assert_eq!(counting.take(), (1, 0, 1), "an image that was read already is not read again");
        get(&table, &key).await;
        assert_eq!(counting.take(), (1, 0, 0));

        counting.slow.set(Duration::from_millis(1));
        let tasks: Vec<_> = (0..20)
            .map(|host| {
                let (table, key) = (table.clone(), key.clone());
                engine::task::spawn(async move {
                    table.store_if_newer(&key, &record(ts(3, host), Some(9)), None, None).await
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let (reads, _, swaps) = counting.take();
        assert!(reads == 1 && swaps <= 20, "{reads} reads, {swaps} swaps for 20 writers of one page");
    });
}

/// A write that a power cut may take back must not count towards a quorum.
#[test]
fn everything_is_written_stable() {
    run(10, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 500).await;
        let namespace = Counting::new(members[0].clone());
        let table = Table::new(namespace.clone(), &map, 0);
        for (counter, len) in [10, 3000, 3000, 3000, 9000, 300_000, 10].into_iter().enumerate() {
            let key = Key::new(format!("{}", counter % 5).as_bytes(), 0).unwrap();
            table.store_if_newer(&key, &record(ts(counter as u64 + 1, 1), Some(len)), None, None).await.unwrap();
        }
        table.quiesce().await;
        assert!(namespace.writes.get() >= 4 && namespace.swaps.get() > 10);
        assert_eq!(namespace.cached.get(), 0);
    });
}

/// Several hosts on one member whose commands are lost, late, or answered to nobody: what was acknowledged is there, what
/// is read is what its operation wrote, time never runs backwards, and no reference ever leads to a stranger's extent.
#[test]
fn register_survives_faulty_commands() {
    for seed in 0..40 {
        run(seed, async move {
            let memory = memories(1, SMALL)[0].clone();
            let map = create(std::slice::from_ref(&memory), 1, if seed % 2 == 0 { 250 } else { 900 }).await;
            let work = Work { names: 6, width: 0, lengths: &[10, 1500, 3500, 9000, 150_000], operations: 59 };
            hammered(seed, memory, &Rc::new(map), work).await;
        });
    }
}

/// What each of the hosts does.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// Keys, numbered in so many digits.
    pub(super) names: usize,
    pub(super) width: usize,
    pub(super) lengths: &'static [usize],
    pub(super) operations: u64,
}

/// Has three hosts work over faulty commands, and looks at what is left.
pub(super) async fn hammered(seed: u64, memory: Arc<Memory>, map: &Rc<pool::Map>, work: Work) {
    let hosts: Vec<_> =
        (2..=4u64).map(|host| engine::task::spawn(hammer(seed, host, memory.clone(), map.clone(), work))).collect();
    let mut acknowledged: BTreeMap<String, Timestamp> = BTreeMap::new();
    for host in hosts {
        for (name, timestamp) in host.await {
            let newest = acknowledged.entry(name).or_default();
            *newest = timestamp.max(*newest);
        }
    }
    // Late commands land.
    engine::time::sleep(Duration::from_secs(5)).await;
    let table = Table::new(memory, map, 0);
    audit(&table, false).await;
    for (name, newest) in acknowledged {
        let (timestamp, value) = get(&table, &key(map, &name)).await;
        assert!(timestamp >= newest, "seed {seed}: {name} acknowledged at {newest}, now at {timestamp}");
        check_value(timestamp, value);
    }
}

fn check_value(timestamp: Timestamp, value: Option<Vec<u8>>) {
    match value {
        Some(value) => assert!(value == value_of(timestamp, value.len()), "a stranger's value under {timestamp}"),
        None => assert!(timestamp == Timestamp::ZERO || timestamp.counter.is_multiple_of(9)),
    }
}

async fn hammer(seed: u64, host: u64, memory: Arc<Memory>, map: Rc<pool::Map>, work: Work) -> Vec<(String, Timestamp)> {
    let config = FaultConfig {
        seed: seed * 10 + host,
        lost_command_ppm: 30_000,
        late_command_ppm: 30_000,
        lost_reply_ppm: 30_000,
        read_error_ppm: 0,
        write_error_ppm: 10_000,
        delay: Duration::ZERO..Duration::from_millis(2),
    };
    let table = Table::new(std::rc::Rc::new(Fault::new(memory, config)), &map, 0);
    let (mut acknowledged, mut seen) = (Vec::new(), BTreeMap::<String, Timestamp>::new());
    for counter in 1..=work.operations {
        let draw = engine::task::random_u64() as usize;
        let name = format!("{:0width$}", (draw >> 24) % work.names, width = work.width);
        let key = key(&map, &name);
        if draw & 256 == 0 {
            let timestamp = ts(counter, host);
            let len = (!counter.is_multiple_of(9)).then_some(work.lengths[(draw >> 10) % work.lengths.len()]);
            if table.store_if_newer(&key, &record(timestamp, len), None, None).await.is_ok() {
                acknowledged.push((name, timestamp));
            }
            continue;
        }
        let Ok(found) = table.read(&key).await else { continue };
        let last = seen.entry(name).or_default();
        assert!(found.timestamp >= *last, "seed {seed}: time runs backwards");
        *last = found.timestamp;
        match table.fetch(&key, &found).await {
            Ok(Fetched::Value(_)) if matches!(found.content, Content::Nothing) => check_value(found.timestamp, None),
            Ok(Fetched::Value(value)) => check_value(found.timestamp, Some(value.to_vec())),
            Ok(Fetched::Changed(newer)) => assert!(newer.timestamp > found.timestamp),
            Err(TableError::CopyDamaged { op }) => panic!("seed {seed}: the copy that {op} wrote does not verify"),
            Err(_) => {}
        }
    }
    acknowledged
}

/// A data write whose caller gave up on it lands long after: nobody may have been given its place meanwhile.
#[test]
fn extent_in_doubt_is_never_given_to_anybody() {
    run(9, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 600).await;
        assert_eq!(map.members[0].heap_groups, 1);
        let namespace = Counting::new(members[0].clone());
        let table = Table::new(namespace.clone(), &map, 0);
        namespace.hold.set(true);
        let refused = table.store_if_newer(&key(&map, "lost"), &record(ts(1, 1), Some(150_000)), None, None).await;
        assert!(refused.is_err_and(|error| error.outcome_unknown()));
        assert_eq!(namespace.held.borrow().len(), 4, "another place was tried for each part, each was written once");
        namespace.hold.set(false);
        for number in 0..3 {
            let key = key(&map, &number.to_string());
            table.store_if_newer(&key, &record(ts(2, number), Some(100_000)), None, None).await.unwrap();
        }
        namespace.land().await;
        for number in 0..3 {
            let read = get(&table, &key(&map, &number.to_string())).await;
            assert!(read == (ts(2, number), Some(value_of(ts(2, number), 100_000))), "{number}");
        }
        assert_eq!(get(&table, &key(&map, "lost")).await, (Timestamp::ZERO, None));
    });
}

/// A connection that is lost in the middle of a large put costs no space, whichever command was under way.
#[test]
fn what_a_lost_connection_leaves_claimed_is_freed_when_it_is_back() {
    for (len, at, takes_effect) in
        [9000, 300_000].into_iter().flat_map(|len| (0..10).flat_map(move |at| [(len, at, false), (len, at, true)]))
    {
        run(11, async {
            let members = memories(1, SMALL);
            let map = create(&members, 1, 500).await;
            let namespace = Counting::new(members[0].clone());
            let table = Table::new(namespace.clone(), &map, 0);
            let key = key(&map, "a");
            table.store_if_newer(&key, &record(ts(1, 1), Some(len)), None, None).await.unwrap();
            namespace.cut.set(Some((at, takes_effect)));
            let cut = table.store_if_newer(&key, &record(ts(2, 1), Some(len)), None, None).await;
            engine::time::sleep(Duration::from_secs(3)).await;
            assert!(cut.is_ok() || namespace.down.get());
            namespace.cut.set(None);
            namespace.down.set(false);
            table.store_if_newer(&key, &record(ts(2, 1), Some(len)), None, None).await.unwrap();
            engine::time::sleep(Duration::from_secs(60)).await;
            table.quiesce().await;
            audit(&table, true).await;
            assert!(table.leftovers.borrow().is_empty());
            assert!(get(&table, &key).await == (ts(2, 1), Some(value_of(ts(2, 1), len))), "{len} {at}");
        });
    }
}

/// What a later version has written is not damage, and not to be rebuilt over.
#[test]
fn page_of_a_newer_format_is_not_taken_for_damaged() {
    run(12, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 500).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let key = key(&map, "a");
        table.store_if_newer(&key, &record(ts(1, 1), Some(100)), None, None).await.unwrap();
        let home = table.home(&key);
        let mut bytes = Buf::copy_from(&table.read_raw(home).await.unwrap());
        bytes[4] = 2;
        members[0].write(table.layout.table(home), bytes.freeze(), Durability::Stable).await.unwrap();
        let mark = table.damaged_page(home).await.map(|damaged| damaged.map(|damaged| damaged.mark()));
        assert!(matches!(mark, Err(TableError::Page { error: PageError::Newer(2), .. })), "{mark:?}");
    });
}

#[test]
fn damaged_page_has_no_vote_until_it_is_rebuilt_whole() {
    run(6, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 500).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let key = key(&map, "a");
        table.store_if_newer(&key, &record(ts(1, 1), Some(100)), None, None).await.unwrap();
        let home = table.home(&key);
        assert!(table.damaged_page(home).await.unwrap().is_none());
        let mut bytes = Buf::copy_from(&table.read_raw(home).await.unwrap());
        bytes[80] ^= 1;
        members[0].write(table.layout.table(home), bytes.freeze(), Durability::Stable).await.unwrap();
        assert!(matches!(table.read(&key).await, Err(TableError::Page { .. })));
        let refused = table.store_if_newer(&key, &record(ts(2, 1), None), None, None).await;
        assert!(matches!(refused, Err(TableError::Page { .. })), "{refused:?}");

        let damaged = table.damaged_page(home).await.unwrap().unwrap();
        // Far more than a page holds: most values have to go elsewhere.
        let records: Vec<_> = (0..8)
            .map(|number| {
                let promise = Ballot { round: number, op: ts(5, number).op };
                (Key::new(format!("k{number}").as_bytes(), 0).unwrap(), record(ts(5, number), Some(3000)), promise)
            })
            .collect();
        let rebuild = async |damaged: &super::rebuild::Damaged| {
            let mut rebuilding = table.begin_rebuild(home, damaged.clone(), false).await?;
            for (key, record, promise) in &records {
                rebuilding.add(key, record.clone(), *promise).await?;
            }
            rebuilding.finish().await
        };
        rebuild(&damaged).await.unwrap();
        // It may have been sealed before it was damaged: older hosts stay out.
        let bytes = table.read_raw(home).await.unwrap();
        assert_eq!(table.decode(home, &bytes).unwrap().header().seal, map.epoch);
        let image = table.read_page(home).await.unwrap();
        for ((name, found), (key, record, promise)) in image.entries(&table).unwrap().into_iter().zip(&records) {
            assert_eq!((&name[..], found.timestamp, found.promise), (key.bytes(), record.timestamp, *promise));
            assert_eq!(
                found.content.checksum(table.checksums.of(found.timestamp.op)),
                record.value.as_ref().map(|v| v.checksum(table.checksums.of(found.timestamp.op)))
            );
        }
        assert_eq!(rebuild(&damaged).await, Ok(()), "somebody else was faster");
        assert!(table.read_raw(home).await.unwrap()[..] == bytes[..], "and was left alone");
        table.quiesce().await;
        audit(&table, true).await;
    });
}

#[test]
fn damaged_copy_is_told_from_a_replaced_one_and_can_be_replaced() {
    run(7, async {
        let members = memories(1, SMALL);
        let map = create(&members, 1, 500).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let key = key(&map, "a");
        table.store_if_newer(&key, &record(ts(1, 1), Some(9000)), None, None).await.unwrap();
        let old = table.read(&key).await.unwrap();
        table.store_if_newer(&key, &record(ts(2, 1), Some(9001)), None, None).await.unwrap();
        table.quiesce().await;
        table.store_if_newer(&Key::new(b"other", 0).unwrap(), &record(ts(7, 1), Some(9000)), None, None).await.unwrap();
        assert!(matches!(table.fetch(&key, &old).await, Ok(Fetched::Changed(newer)) if newer.timestamp == ts(2, 1)));

        let now = table.read(&key).await.unwrap();
        let Content::Elsewhere(_, reference) = now.content else { panic!("9,001 bytes are not inline") };
        let place = table.layout.data(HeapPage(reference.place));
        members[0].write(place, Buf::zeroed(4096).freeze(), Durability::Stable).await.unwrap();
        assert_eq!(table.fetch(&key, &now).await.unwrap_err(), TableError::CopyDamaged { op: ts(2, 1).op });
        table.store_if_newer(&key, &record(ts(2, 1), Some(9001)), None, Some(reference)).await.unwrap();
        assert_eq!(get(&table, &key).await, (ts(2, 1), Some(value_of(ts(2, 1), 9001))));
        table.quiesce().await;
        audit(&table, true).await;
    });
}
