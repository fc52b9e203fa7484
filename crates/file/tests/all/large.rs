//! A directory of 100,000 names.

use std::collections::BTreeSet;
use std::rc::Rc;

use engine::task;
use file::ROOT;

use crate::world::{client, create, fresh, mkdir, run};

const NAMES: u32 = 100_000;

fn name(number: u32) -> String {
    format!("a name like many others {number}")
}

#[test]
fn a_large_directory_is_found_in_few_gets_and_read_while_it_changes() {
    run(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let dir = mkdir(&fs, ROOT, "large").await;
        for number in 0..NAMES {
            create(&fs, dir, &name(number)).await;
        }
        // Cold: three levels of 16 (100,000 names are 1,800 leaves) and sometimes a fourth, then the inode.
        let (counting, cold) = client(&meta).await;
        let mut first = 0;
        for number in (0..NAMES).step_by(997) {
            counting.take_counts();
            cold.lookup(dir, name(number).as_bytes()).await.unwrap();
            let (gets, swaps) = counting.take_counts();
            assert!(gets <= 6 && swaps == 0, "{gets} gets");
            first = first.max(gets);
        }
        assert!(first >= 4, "a trie of one level");
        // Warm: the leaf and the inode.
        for number in (0..NAMES).step_by(997) {
            counting.take_counts();
            cold.lookup(dir, name(number).as_bytes()).await.unwrap();
            assert_eq!(counting.take_counts(), (2, 0));
        }
        // What is there throughout comes once, though leaves split and names come and go.
        let changer = fs.clone();
        let changing = task::spawn(async move {
            for number in 0..3000 {
                create(&changer, dir, &format!("new {number}")).await;
                changer.unlink(dir, name(number * 2).as_bytes()).await.unwrap();
            }
        });
        let (mut cursor, mut found) = (0, BTreeSet::new());
        loop {
            let step = cold.readdir(dir, cursor, 100).await.unwrap();
            let Some(last) = step.last() else { break };
            assert!(last.cursor > cursor && last.cursor <= i64::MAX as u64);
            cursor = last.cursor;
            for entry in step {
                assert!(found.insert(entry.name), "a name that comes twice");
            }
            task::yield_now().await;
        }
        changing.await;
        let stays = |number: &u32| *number >= 6000 || number % 2 == 1;
        for number in (0..NAMES).filter(stays) {
            assert!(found.contains(name(number).as_bytes()), "{number} did not come");
        }
        assert_eq!(Rc::strong_count(&fs), 1);
    });
}
