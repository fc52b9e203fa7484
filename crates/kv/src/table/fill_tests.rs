//! How full a table gets, and what a full one costs.

use super::tests::{audit, get, key, record, ts, value_of};
use super::*;
use crate::testing::{Counting, create, memories, run};
use crate::types::Timestamp;

/// Bytes of a member with 128 table pages of 4 KiB and no heap.
const MEMBER: u64 = (1152 << 10) + 128 * 4096;

/// Bytes of the value that key `number` has in its `turn`: `len`, or any between 16 and 1,024.
fn length(len: Option<usize>, number: usize, turn: u64) -> usize {
    let draw = xxhash_rust::xxh3::xxh3_64_with_seed(&number.to_le_bytes(), turn);
    len.unwrap_or(16 + (draw % 1009) as usize)
}

/// The names of as many keys as fill `hundredths` of what the pages of a table can hold of their values of the first turn.
fn names(geometry: &pool::Geometry, len: Option<usize>, hundredths: usize) -> Vec<String> {
    let room = geometry.page_size as usize - crate::page::HEADER_BYTES;
    // Of one length: as many as fit a page, in each; else bytes count.
    let capacity = geometry.table_pages as usize * len.map_or(room, |len| room / (48 + len) * (48 + len));
    let (mut names, mut bytes) = (Vec::new(), 0);
    while (bytes + 48 + length(len, names.len(), 1)) * 100 <= capacity * hundredths {
        bytes += 48 + length(len, names.len(), 1);
        names.push(format!("{:016}", names.len()));
    }
    names
}

/// Entries of any length up to 1 KiB, of one or mixed, fill nine tenths of what pages can hold of them, and then a key is still
/// one or two reads away.
#[test]
fn a_table_without_a_heap_fills_to_nine_tenths_with_bounded_reads() {
    for len in [Some(32), Some(128), Some(512), Some(1024), None] {
        run(len.unwrap_or(7) as u64, async move {
            let members = memories(1, MEMBER);
            let map = create(&members, 1, 1000).await;
            let counting = Counting::new(members[0].clone());
            let table = Table::new(counting.clone(), &map, 0);
            assert_eq!(table.layout.geometry.heap_groups, 0);
            let names = names(&table.layout.geometry, len, 90);
            for (number, name) in names.iter().enumerate() {
                let record = record(ts(1, 1), Some(length(len, number, 1)));
                let stored = table.store_if_newer(&key(&map, name), &record, None, None).await;
                assert_eq!(stored, Ok(Outcome::Stored), "{name} of {} of {len:?} bytes", names.len());
            }
            table.quiesce().await;
            counting.take();
            let mut most = 0;
            for (number, name) in names.iter().enumerate() {
                let before = counting.reads.get();
                let expected = value_of(ts(1, 1), length(len, number, 1));
                assert!(get(&table, &key(&map, name)).await == (ts(1, 1), Some(expected)));
                most = most.max(counting.reads.get() - before);
            }
            let gets = counting.take().0 as f64 / names.len() as f64;
            for number in 0..1000 {
                assert_eq!(get(&table, &key(&map, &format!("miss {number}"))).await.0, Timestamp::ZERO);
            }
            let misses = counting.take().0 as f64 / 1000.0;
            println!("{len:?} bytes: {gets:.3} reads per get, at most {most}, {misses:.3} per miss");
            assert!(gets < 1.3 && most <= 3 && misses < 1.02, "{len:?} bytes: {gets} {most} {misses}");
            audit(&table, true).await;
        });
    }
}

/// A table is not filled once: of one that is full to nearly nine tenths every key is written over again and again, with values
/// of other lengths, and some are deleted in between; it takes all of them, or at 90 % all but a few. What had to leave its page
/// comes home when there is room: else the pieces would become ever smaller, and the table be full.
#[test]
fn a_full_table_of_mixed_lengths_is_written_over_and_over() {
    for (seed, hundredths, refused_max) in [(1, 86, 0), (2, 88, 2), (3, 90, 16)] {
        run(seed, async move {
            let members = memories(1, MEMBER);
            let map = create(&members, 1, 1000).await;
            let counting = Counting::new(members[0].clone());
            let table = Table::new(counting.clone(), &map, 0);
            let names = names(&table.layout.geometry, None, hundredths);
            let mut holds = vec![(ts(0, 0), None); names.len()];
            let (mut refused, mut written, mut counter) = (0, 0, 0);
            for turn in 0..8 {
                // The same lengths in another order: as many bytes in all.
                for draw in 0..names.len() {
                    let number = (draw * 7919 + turn) % names.len();
                    let len = length(None, (number + turn * 311) % names.len(), 1);
                    let deleted = (turn > 0 && draw % 50 == 0).then_some(None);
                    for len in deleted.into_iter().chain([Some(len)]) {
                        counter += 1;
                        let (key, record) = (key(&map, &names[number]), record(ts(counter, 1), len));
                        match table.store_if_newer(&key, &record, None, None).await {
                            Ok(_) => holds[number] = (ts(counter, 1), len),
                            Err(TableError::OutOfSpace(_)) if len.is_some() => refused += 1,
                            Err(error) => panic!("{error}"),
                        }
                        written += 1;
                    }
                    // What goes on in the background is let go on, as the network would.
                    engine::task::yield_now().await;
                }
                table.quiesce().await;
            }
            counting.take();
            let mut bytes = 0;
            for (name, (timestamp, len)) in names.iter().zip(&holds) {
                let expected = len.map(|len| value_of(*timestamp, len));
                assert!(get(&table, &key(&map, name)).await == (*timestamp, expected));
                bytes += 48 + len.unwrap_or(0);
            }
            let gets = counting.take().0 as f64 / names.len() as f64;
            let fill = bytes as f64 / (table.layout.geometry.table_pages * 4032) as f64;
            println!("{hundredths} %: {refused} of {written} refused, full to {fill:.3}, {gets:.3} reads per get");
            assert!(refused <= refused_max && gets < 1.25, "{refused} of {written}, {gets}");
            audit(&table, true).await;
        });
    }
}

/// Keys come and go, in and out of bundles, against a map; nothing is lost, and no space. The table is filled to 84 %: where
/// everything is written over and over, bundles in part out of date take some place (it works to 86 %).
#[test]
fn bundled_entries_behave_like_any_other() {
    for seed in 0..4 {
        run(seed, async {
            let members = memories(1, (1152 << 10) + 64 * 4096);
            let map = create(&members, 1, 1000).await;
            let table = Table::new(members[0].clone(), &map, 0);
            let mut model = std::collections::BTreeMap::new();
            for counter in 1..9000u64 {
                let draw = engine::task::random_u64() as usize;
                let name = format!("key {}", draw % 2800);
                let len = if (draw >> 16).is_multiple_of(9) { None } else { Some([5, 30, 60, 90][(draw >> 20) % 4]) };
                let stored = table.store_if_newer(&key(&map, &name), &record(ts(counter, 1), len), None, None).await;
                assert_eq!(stored, Ok(Outcome::Stored), "{counter}");
                engine::task::yield_now().await;
                let older = table.store_if_newer(&key(&map, &name), &record(ts(counter - 1, 9), len), None, None).await;
                assert_eq!(older, Ok(Outcome::Superseded));
                model.insert(name, (ts(counter, 1), len));
            }
            table.quiesce().await;
            let (_, guests) = audit(&table, true).await;
            assert!(guests > 2, "{guests} bundles");
            let mut listed = std::collections::BTreeMap::new();
            for page in (0..table.layout.geometry.table_pages).map(TablePage) {
                for (key, found) in table.read_page(page).await.unwrap().entries(&table).unwrap() {
                    assert!(listed.insert(key, found.timestamp).is_none(), "a key stands twice");
                }
            }
            assert_eq!(listed.len(), model.len());
            for (name, (timestamp, len)) in &model {
                assert_eq!(listed.get(name.as_bytes()), Some(timestamp));
                let expected = (*timestamp, len.map(|len| value_of(*timestamp, len)));
                assert!(get(&table, &key(&map, name)).await == expected, "{name}");
            }
        });
    }
}

/// What is said to fit a pool fits, nearly, and no share of the table that is not chosen for a length takes much more of it.
#[test]
fn a_pool_takes_what_it_is_said_to_take() {
    for (share, len) in [(500, 200), (500, 1000), (500, 9000), (500, 100_000)] {
        let (fits, said) = filled(share, len);
        let ratio = fits as f64 / said as f64;
        assert!((0.85..1.4).contains(&ratio), "{share} thousandths, {len} bytes: {fits} fit, {said} are said to");
    }
    for (len, gain) in [(200, 1.3), (1000, 1.1), (9000, 1.5), (100_000, 1.7)] {
        let share = pool::table_share_for(len as u64, 4096);
        let ((fits, said), (usual, _)) = (filled(share, len), filled(500, len));
        assert!(fits as f64 > gain * usual as f64, "{share} thousandths, {len} bytes: {fits}, {usual} with half");
        assert!((0.85..1.4).contains(&(fits as f64 / said as f64)), "{share}, {len}: {fits} fit, {said} are said to");
    }
}

/// Bytes of values of this length that a member of 12 MiB takes, and what it is said to take.
fn filled(share: u32, len: usize) -> (u64, u64) {
    run(1, async move {
        let members = memories(1, 12 << 20);
        let map = create(&members, 1, share).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let mut stored = 0;
        loop {
            let key = key(&map, &format!("{stored:016}"));
            match table.store_if_newer(&key, &record(ts(1, 1), Some(len)), None, None).await {
                Ok(_) => stored += 1,
                Err(TableError::OutOfSpace(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        table.quiesce().await;
        (stored * len as u64, map.room_for(len as u64))
    })
}
