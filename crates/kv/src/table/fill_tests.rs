//! How full a table gets, and what a full one costs.

use super::tests::{audit, get, key, record, ts, value_of};
use super::*;
use crate::testing::{Counting, create, memories, run};

/// Bytes of a member with 128 table pages of 4 KiB and no heap.
const MEMBER: u64 = (1152 << 10) + 128 * 4096;

/// Entries of any length up to 1 KiB fill nine tenths of what pages can hold of them, and then a key is still one or two reads
/// away.
#[test]
fn a_table_without_a_heap_fills_to_nine_tenths_with_bounded_reads() {
    for len in [32, 128, 512, 1024] {
        run(len as u64, async move {
            let members = memories(1, MEMBER);
            let map = create(&members, 1, 1000).await;
            let counting = Counting::new(members[0].clone());
            let table = Table::new(counting.clone(), &map, 0);
            let geometry = table.layout.geometry;
            assert_eq!(geometry.heap_groups, 0);
            let room = geometry.page_size as usize - crate::page::HEADER_BYTES;
            let packed = geometry.table_pages as usize * (room / (32 + 16 + len));
            let names = (0..packed * 9 / 10).map(|number| format!("{number:016}")).collect::<Vec<_>>();
            for name in &names {
                let stored = table.store_if_newer(&key(&map, name), &record(ts(1, 1), Some(len)), None, None).await;
                assert_eq!(stored, Ok(Outcome::Stored), "{name} of {} of {len} bytes", names.len());
            }
            table.quiesce().await;
            counting.take();
            let mut most = 0;
            for name in &names {
                let before = counting.reads.get();
                assert!(get(&table, &key(&map, name)).await == (ts(1, 1), Some(value_of(ts(1, 1), len))));
                most = most.max(counting.reads.get() - before);
            }
            let gets = counting.take().0 as f64 / names.len() as f64;
            for number in 0..1000 {
                assert_eq!(get(&table, &key(&map, &format!("miss {number}"))).await.0, Timestamp::ZERO);
            }
            let misses = counting.take().0 as f64 / 1000.0;
            println!("{len} bytes: {gets:.3} reads per get, at most {most}, {misses:.3} per miss");
            assert!(gets < 1.4 && most <= 4 && misses < 1.2, "{len} bytes: {gets} {most} {misses}");
            audit(&table, true).await;
        });
    }
}

/// Keys come and go, in and out of bundles, against a map; nothing is lost, and no space. The table is filled to four fifths:
/// where everything is written over and over, bundles in part out of date take some place (it works to 86 %).
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
                let name = format!("key {}", draw % 2600);
                let len = if (draw >> 16).is_multiple_of(9) { None } else { Some([5, 30, 60, 90][(draw >> 20) % 4]) };
                let stored = table.store_if_newer(&key(&map, &name), &record(ts(counter, 1), len), None, None).await;
                assert_eq!(stored, Ok(Outcome::Stored), "{counter}");
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
