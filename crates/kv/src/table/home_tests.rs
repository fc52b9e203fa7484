//! Values that come home again, under what may befall the compare-and-write that brings them.

use std::time::Duration;

use super::tests::{audit, get, key, record, ts, value_of};
use super::*;
use crate::testing::{Counting, create, memories, run};

type Link = Counting<std::sync::Arc<device::Memory>>;

/// What a page says of its copies outside.
async fn outside(table: &Table, page: TablePage) -> usize {
    let image = table.read_page(page).await.unwrap();
    table.references(&image).unwrap().len()
}

/// Five values of 900 bytes in a page, which has room for four; the last is elsewhere.
async fn overfull(table: &Rc<Table>, map: &pool::Map, home: TablePage) -> Vec<Key> {
    let names = (0..).map(|number: u32| key(map, &number.to_string()));
    let mut keys: Vec<_> = names.filter(|key| table.home(key) == home).take(5).collect();
    for key in &keys {
        table.store_if_newer(key, &record(ts(1, 1), Some(900)), None, None).await.unwrap();
    }
    table.quiesce().await;
    assert_eq!(outside(table, home).await, 1);
    for index in 0..keys.len() {
        if matches!(table.read(&keys[index]).await.unwrap().content, Content::Elsewhere(..)) {
            keys.swap(index, 4);
        }
    }
    keys
}

/// A member that counts, this host's table of it, and the keys of a page that is overfull.
async fn scene(home: TablePage) -> (Rc<Link>, Rc<Table>, Vec<Key>) {
    let member = Counting::new(memories(1, (1152 << 10) + 64 * 4096)[0].clone());
    let map = create(std::slice::from_ref(&member), 1, 1000).await;
    let table = Table::new(member.clone(), &map, 0);
    let keys = overfull(&table, &map, home).await;
    (member, table, keys)
}

/// A value that had to leave its page is back in it when another of the page has become short, and the copy is freed, as soon
/// as it is known that the page does not refer to it: also where the connection is lost before or after the page was written.
#[test]
fn a_value_comes_home_when_there_is_room_whatever_befalls_it() {
    for (seed, lost) in [None, Some((1, false)), Some((1, true))].into_iter().enumerate() {
        run(seed as u64, async move {
            let home = TablePage(3);
            let (member, table, keys) = scene(home).await;
            let outside_still = table.read(&keys[4]).await.unwrap();
            // The first compare-and-write is the store's, the second brings the value home.
            member.cut.set(lost);
            table.store_if_newer(&keys[0], &record(ts(2, 1), Some(10)), None, None).await.unwrap();
            engine::time::sleep(Duration::from_millis(10)).await;
            assert_eq!(member.down.replace(false), lost.is_some());
            assert_eq!(get(&table, &keys[4]).await, (ts(1, 1), Some(value_of(ts(1, 1), 900))));
            engine::time::sleep(Duration::from_secs(60)).await;
            table.quiesce().await;
            // One that was in doubt and has not taken effect waits for the next write.
            assert_eq!(outside(&table, home).await, usize::from(lost == Some((1, false))));
            for (key, turn) in keys.iter().zip([3, 4]) {
                table.store_if_newer(key, &record(ts(turn, 1), Some(10)), None, None).await.unwrap();
                engine::time::sleep(Duration::from_secs(60)).await;
            }
            assert_eq!(outside(&table, home).await, 0);
            for key in &keys[2..] {
                assert_eq!(get(&table, key).await, (ts(1, 1), Some(value_of(ts(1, 1), 900))));
            }
            // Who had seen it outside gets it all the same: it is the same value, at home.
            match table.fetch(&keys[4], &outside_still).await.unwrap() {
                Fetched::Value(value) => assert_eq!(value.to_vec(), value_of(ts(1, 1), 900)),
                Fetched::Changed(found) => panic!("{found:?} is called newer"),
            }
            table.quiesce().await;
            audit(&table, true).await;
        });
    }
}

/// Another host writes the page in between: what comes home does not undo it.
#[test]
fn what_comes_home_undoes_nothing() {
    run(5, async {
        let memory = memories(1, (1152 << 10) + 64 * 4096)[0].clone();
        let slow = Counting::new(memory.clone());
        let map = create(std::slice::from_ref(&memory), 1, 1000).await;
        let (table, other) = (Table::new(slow.clone(), &map, 0), Table::new(memory, &map, 0));
        let home = TablePage(3);
        let keys = overfull(&other, &map, home).await;
        slow.slow.set(Duration::from_millis(1));
        table.store_if_newer(&keys[0], &record(ts(2, 1), Some(10)), None, None).await.unwrap();
        // The copy is read, and the page about to be written.
        engine::time::sleep(Duration::from_micros(1500)).await;
        for key in &keys[1..] {
            other.store_if_newer(key, &record(ts(3, 1), Some(20)), None, None).await.unwrap();
        }
        engine::time::sleep(Duration::from_secs(60)).await;
        for key in &keys[1..] {
            assert_eq!(get(&table, key).await, (ts(3, 1), Some(value_of(ts(3, 1), 20))));
        }
        assert!(table.stats.misses.get() > 0, "the page was written in between");
        table.quiesce().await;
        other.quiesce().await;
        audit(&table, true).await;
    });
}

/// A move that ends in doubt is issued again when the page is seen to be as it was: nothing waits for the next write.
#[test]
fn a_move_in_doubt_is_issued_again() {
    run(6, async {
        let home = TablePage(3);
        let (member, table, keys) = scene(home).await;
        member.slow.set(Duration::from_millis(1));
        member.cut.set(Some((1, false)));
        table.store_if_newer(&keys[0], &record(ts(2, 1), Some(10)), None, None).await.unwrap();
        // The copy is read, and the connection lost at the compare-and-write; it is back when the page is read.
        engine::time::sleep(Duration::from_micros(2500)).await;
        assert!(member.down.replace(false));
        table.quiesce().await;
        assert_eq!(outside(&table, home).await, 0);
        assert_eq!(get(&table, &keys[4]).await, (ts(1, 1), Some(value_of(ts(1, 1), 900))));
        audit(&table, true).await;
    });
}

/// A page that this host writes all the time: what has left it comes home between two writes.
#[test]
fn a_value_comes_home_to_a_page_that_is_always_written() {
    run(8, async {
        let home = TablePage(3);
        let (member, table, keys) = scene(home).await;
        member.slow.set(Duration::from_millis(1));
        let writers: Vec<_> = (0..3)
            .map(|writer: usize| {
                let (table, key) = (table.clone(), keys[writer].clone());
                engine::task::spawn(async move {
                    for counter in 2..12 {
                        table.store_if_newer(&key, &record(ts(counter, 1), Some(10)), None, None).await.unwrap();
                    }
                    matches!(table.stats.misses.get(), 0)
                })
            })
            .collect();
        // Some ten of the thirty writes are done.
        engine::time::sleep(Duration::from_millis(12)).await;
        assert_eq!(outside(&table, home).await, 0);
        assert!(table.read(&keys[0]).await.unwrap().timestamp < ts(11, 1), "the page is still being written");
        for writer in writers {
            assert!(writer.await, "no compare-and-write was in vain");
        }
        table.quiesce().await;
        audit(&table, true).await;
    });
}

/// A copy that is lost, and so never comes home, is not in the way of another.
#[test]
fn a_lost_copy_keeps_no_other_outside() {
    run(9, async {
        let members = memories(1, (1152 << 10) + 64 * 4096);
        let map = create(&members, 1, 1000).await;
        let table = Table::new(members[0].clone(), &map, 0);
        let home = TablePage(3);
        let mut keys = overfull(&table, &map, home).await;
        let sixth = (1000..).map(|number: u32| key(&map, &number.to_string())).find(|key| table.home(key) == home);
        keys.push(sixth.unwrap());
        table.store_if_newer(&keys[5], &record(ts(1, 1), Some(900)), None, None).await.unwrap();
        table.quiesce().await;
        let (mut outside, mut inside) = (Vec::new(), Vec::new());
        for key in &keys {
            match table.read(key).await.unwrap().content {
                Content::Elsewhere(_, reference) => outside.push((key.clone(), reference)),
                _ => inside.push(key.clone()),
            }
        }
        outside.sort_by(|(one, _), (other, _)| one.bytes().cmp(other.bytes()));
        let [(good, _), (lost, reference)] = &outside[..] else { panic!("{} are outside", outside.len()) };
        table.free(home, reference, ts(1, 1).op).await.unwrap();
        for turn in 2..10 {
            for key in &inside[..2] {
                table.store_if_newer(key, &record(ts(turn, 1), Some(10)), None, None).await.unwrap();
                table.quiesce().await;
            }
        }
        assert!(matches!(table.read(good).await.unwrap().content, Content::Inline(_)));
        assert!(matches!(table.read(lost).await.unwrap().content, Content::Elsewhere(..)));
        assert_eq!(get(&table, good).await, (ts(1, 1), Some(value_of(ts(1, 1), 900))));
    });
}
