//! Space as it is seen from outside: it is given back, refused in words, and a client that was silent too long writes no more.

use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::{task, time};
use file::Error;
use file::data::{Auditor, LabelError};
use file::meta::Meta;

use super::bed::{Bed, Gate, Node, drawn, in_world, rope};
use super::files::{audit, content};

#[test]
fn what_files_had_is_there_again_when_they_are_gone() {
    in_world(1, async {
        let mut rng = SplitMix(1);
        let bed = Bed::new(1, (2, 1), 4, 8).await;
        let mut most = None;
        for round in 0..5 {
            let host = bed.host();
            let node = Node::new(&host, 10 + round);
            node.create().await;
            let mut filled = 0;
            let refusal = loop {
                match host.contents.write(&*node, filled, rope(&drawn(&mut rng, 250_000))).await {
                    Ok(()) => filled += 250_000,
                    Err(error) => break error,
                }
            };
            assert!(matches!(&refusal, Error::NoSpace(told) if told.contains("no free region")), "{refusal}");
            assert_eq!(*most.get_or_insert(filled), filled, "round {round}");
            host.contents.truncate(&*node, 0).await.unwrap();
            host.contents.space().close().await;
        }
        // The inodes, and neither chunks nor regions.
        assert_eq!(audit(&bed, &[]).await.chunks, []);
        assert!(bed.store.keys() <= 5 + 1, "{}", bed.store.keys());
    });
}

/// A chunk came into the list when an eighth of it was free, if that had room then, and never again: all others' room was lost.
#[test]
fn chunks_that_the_list_has_forgotten_are_found_where_there_seems_to_be_no_room() {
    in_world(1, async {
        let mut rng = SplitMix(1);
        let bed = Bed::new(1, (2, 1), 4, 8).await;
        let before = bed.host();
        let nodes = [Node::new(&before, 1), Node::new(&before, 2)];
        for node in &nodes {
            node.create().await;
        }
        // Both have something in each chunk.
        let mut filled = 0;
        while before.contents.write(&*nodes[filled % 2], (filled / 2) as u64 * 50_000, rope(&[1; 50_000])).await.is_ok()
        {
            filled += 1;
        }
        before.contents.truncate(&*nodes[0], 0).await.unwrap();
        before.contents.space().close().await;
        let list = bed.keys_of(b'a');
        let listed = before.meta.get(&list).await.unwrap().expect("there is room in chunks");
        before.meta.swap(&list, Some(listed.version), None).await.unwrap();
        let host = bed.host();
        let node = Node::new(&host, 3);
        node.create().await;
        let bytes = drawn(&mut rng, 50_000);
        for at in 0..filled / 4 {
            host.contents.write(&*node, at as u64 * 50_000, rope(&bytes)).await.unwrap();
        }
        host.contents.space().close().await;
        audit(&bed, &[2, 3]).await;
    });
}

#[test]
fn a_refusal_names_the_members_and_why() {
    in_world(2, async {
        let mut bed = Bed::new(2, (2, 1), 3, 4).await;
        bed.specs[1].is_out = true;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        let refusal = host.contents.write(&*node, 0, rope(&[1; 5000])).await.unwrap_err().to_string();
        assert!(refusal.contains("member 1 (domain rack 1) is out"), "{refusal}");
    });
}

/// With as many domains as columns, a client that has no chunk yet writes stripes with a column missing while one is away. While
/// two are, it is told that they are, and not that there is no room.
#[test]
fn a_member_that_is_away_is_no_lack_of_room() {
    for (has_chunks, away) in [(false, vec![1]), (true, vec![0]), (false, vec![0, 2]), (true, vec![0, 2])] {
        in_world(6, async {
            let bed = Bed::new(6, (2, 1), 3, 4).await;
            if has_chunks {
                let before = bed.host();
                let node = Node::new(&before, 2);
                node.create().await;
                // There is no room but in chunks that are nobody's.
                while before.contents.write(&*node, 0, rope(&[1; 300_000])).await.is_err() {}
                let mut filled = 300_000;
                while before.contents.write(&*node, filled, rope(&[1; 300_000])).await.is_ok() {
                    filled += 300_000;
                }
                before.contents.truncate(&*node, 300_000).await.unwrap();
                before.contents.space().close().await;
            }
            let host = bed.host();
            away.iter().for_each(|member| host.contents.members().connect(*member, None));
            let node = Node::new(&host, 1);
            node.create().await;
            let written = host.contents.write(&*node, 0, rope(&[3; 20_000])).await;
            if away.len() > 1 {
                let told = written.unwrap_err();
                assert!(matches!(&told, Error::Unavailable(_)), "{told}");
                return;
            }
            written.unwrap();
            let short = host.contents.stripes_of(&*node).await.unwrap();
            assert!(short.iter().all(|(_, stripe)| stripe.missing.count_ones() == 1), "{short:?}");
            assert_eq!(content(&bed.host(), &node).await, [3; 20_000]);
            audit(&bed, &[1, 2][..1 + usize::from(has_chunks)]).await;
        });
    }
}

/// A column that failed may be written yet by the command that failed: what is written there next must not be hit.
#[test]
fn rows_of_a_stripe_with_a_column_missing_rest_for_half_an_hour() {
    in_world(5, async {
        let bed = Bed::new(5, (2, 1), 3, 4).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        let write = async |byte| {
            host.contents.write(&*node, 0, rope(&[byte; 5000])).await.unwrap();
            host.contents.stripes_of(&*node).await.unwrap().remove(0).1
        };
        bed.shelves[1].is_down.set(true);
        let short = write(1).await;
        bed.shelves[1].is_down.set(false);
        let renewed = async |seconds| {
            time::sleep(Duration::from_secs(seconds)).await;
            host.contents.space().renewed(time::now());
        };
        let rows = |from: u32| (from..from + 1, short.id.chunk);
        assert!(short.missing != 0);
        for _ in 0..7 {
            let next = write(2).await;
            assert_ne!(rows(next.id.row), rows(short.id.row), "taken again at once");
            renewed(250).await;
        }
        renewed(200).await;
        let mut again = false;
        for _ in 0..3 {
            again |= write(3).await.id.row == short.id.row;
        }
        assert!(again, "it is used again");
    });
}

#[test]
fn a_client_that_was_not_renewed_writes_no_more_until_it_has_another_name() {
    in_world(3, async {
        let bed = Bed::new(3, (2, 1), 3, 4).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        host.contents.write(&*node, 0, rope(&[1; 5000])).await.unwrap();
        time::sleep(Duration::from_secs(601)).await;
        let failed = host.contents.write(&*node, 0, rope(&[2; 5000])).await;
        assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
        assert_eq!(content(&host, &node).await, [1; 5000]);
        // Late is too late: others may have taken it for dead, and its rows for lost.
        host.contents.space().renewed(time::now());
        let failed = host.contents.write(&*node, 0, rope(&[2; 5000])).await;
        assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
        host.contents.space().begin_anew(77, time::now());
        host.contents.write(&*node, 0, rope(&[2; 5000])).await.unwrap();
        assert_eq!(content(&host, &node).await, [2; 5000]);
    });
}

#[test]
fn a_namespace_that_is_not_blank_or_another_ones_is_refused() {
    in_world(4, async {
        let bed = Bed::new(4, (2, 1), 3, 4).await;
        let memory = &*bed.shelves[1].memory;
        let label = bed.layout.label(1, 5 << 20);
        assert_eq!(label.check(memory).await, Ok(label));
        assert_eq!(label.format(memory, false).await, Err(LabelError::NotBlank(0)));
        let other = bed.layout.label(2, 5 << 20);
        assert_eq!(other.check(memory).await, Err(LabelError::OtherMember { found: 1, expected: 2 }));
        let mut layout = bed.layout.clone();
        layout.fs = [9; 16];
        assert_eq!(layout.label(1, 5 << 20).check(memory).await, Err(LabelError::OtherFileSystem(bed.layout.fs)));
        let larger = bed.layout.label(1, 6 << 20);
        assert_eq!(larger.check(memory).await, Err(LabelError::Smaller { found: 5 << 20, expected: 6 << 20 }));
        // A copy of it that rots is no loss; both are.
        bed.flip(1, 40, 1).await;
        assert_eq!(label.check(memory).await, Ok(label));
        bed.flip(1, (512 << 10) + 40, 1).await;
        assert_eq!(label.check(memory).await, Err(LabelError::None));
        label.format(memory, true).await.unwrap();
        assert_eq!(label.check(memory).await, Ok(label));
        let blank = device::Memory::new(5 << 20, 512, [7; 16]).unwrap();
        assert_eq!(label.check(&blank).await, Err(LabelError::None));
        assert_eq!(label.format(&blank, false).await, Ok(()));
    });
}

/// What `fsck` has seen to be nobody's may be somebody's by the time that it clears it; and a chunk that it empties is not lost.
#[test]
fn marks_are_cleared_from_outside_only_as_they_were_seen() {
    in_world(7, async {
        let mut rng = SplitMix(7);
        let bed = Bed::new(7, (2, 1), 3, 4).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        host.contents.write(&*node, 0, rope(&drawn(&mut rng, 50_000))).await.unwrap();
        let auditor = Auditor::new(Rc::clone(&host.meta) as Rc<dyn Meta>, Rc::clone(host.contents.members()));
        let seen = audit(&bed, &[]).await.chunks.remove(0);
        assert!(!seen.unnamed.is_empty());
        // It is given back meanwhile, and another takes it.
        host.contents.space().close().await;
        let bytes = drawn(&mut rng, 900_000);
        host.contents.write(&*node, 0, rope(&bytes)).await.unwrap();
        host.contents.space().close().await;
        assert!(!auditor.clear(&seen, &seen.unnamed, true).await.unwrap(), "it has changed since");
        audit(&bed, &[1]).await;
        assert!(content(&host, &node).await == bytes);
        // The file is gone, and whoever should have cleared its marks, too: what is cleared is listed, at last it is buried.
        let seen = audit(&bed, &[]).await.chunks.remove(0);
        let (some, rest) = seen.unnamed[0];
        assert!(auditor.clear(&seen, &[(some, rest - 1)], true).await.unwrap());
        let chunks = audit(&bed, &[]).await.chunks;
        assert_eq!((chunks.len(), chunks[0].owner, chunks[0].marked), (1, None, 1));
        let other = bed.host();
        let kept = Node::new(&other, 2);
        kept.create().await;
        other.contents.write(&*kept, 0, rope(&[1; 5000])).await.unwrap();
        let stripe = other.contents.stripes_of(&*kept).await.unwrap().remove(0).1;
        assert_eq!(stripe.id.chunk, seen.number, "it was not listed");
        other.contents.truncate(&*kept, 0).await.unwrap();
        other.contents.space().close().await;
        let seen = audit(&bed, &[]).await.chunks.remove(0);
        assert!(auditor.clear(&seen, &seen.unnamed, false).await.unwrap());
        let last = audit(&bed, &[]).await;
        assert_eq!((last.chunks.len(), last.stray.len()), (0, 0), "it gives its regions back");
    });
}

/// What contradicts in one row says nothing of the others.
#[test]
fn rows_of_a_stripe_of_which_one_is_not_marked_are_named() {
    in_world(7, async {
        let bed = Bed::new(7, (2, 1), 3, 4).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        host.contents.write(&*node, 0, rope(&drawn(&mut SplitMix(7), 50_000))).await.unwrap();
        host.contents.space().close().await;
        let auditor = Auditor::new(Rc::clone(&host.meta) as Rc<dyn Meta>, Rc::clone(host.contents.members()));
        let stripes: Vec<_> =
            host.contents.stripes_of(&*node).await.unwrap().into_iter().map(|(_, stripe)| stripe).collect();
        let seen = auditor.audit(&stripes).await.unwrap();
        assert!(seen.faults.is_empty() && seen.chunks[0].marked > 1, "{seen:?}");
        assert!(auditor.clear(&seen.chunks[0], &[(stripes[0].id.row, 1)], false).await.unwrap());
        let seen = auditor.audit(&stripes).await.unwrap();
        assert!(seen.faults.len() == 1 && seen.chunks[0].unnamed.is_empty(), "{seen:?}");
    });
}

/// Marks that were to be cleared long ago are not any more when the change is made at last: by then they are those of another.
#[test]
fn a_clear_that_is_held_up_takes_no_marks_of_others() {
    in_world(8, async {
        let mut rng = SplitMix(8);
        let bed = Rc::new(Bed::new(8, (2, 1), 3, 4).await);
        let first = bed.host();
        let (node, kept) = (Node::new(&first, 1), Node::new(&first, 2));
        node.create().await;
        kept.create().await;
        first.contents.write(&*kept, 0, rope(&drawn(&mut rng, 5000))).await.unwrap();
        first.contents.write(&*node, 0, rope(&drawn(&mut rng, 200_000))).await.unwrap();
        first.contents.space().close().await;
        // It is not the owner, and is to clear the marks; before it sends that it stands still.
        let gate = Gate::at(None);
        let late = task::spawn({
            let (bed, gate) = (Rc::clone(&bed), Rc::clone(&gate));
            async move {
                let host = bed.host_at(Rc::clone(&gate));
                host.contents.truncate(&*Node::new(&host, 1), 0).await.unwrap();
                gate.stop_next();
                host.contents.space().settle().await;
            }
        });
        time::sleep(Duration::from_secs(15 * 60)).await;
        assert!(!late.is_finished(), "nothing was to be cleared");
        // Others have found that nobody has these rows, and written there.
        let auditor = Auditor::new(Rc::clone(&first.meta) as Rc<dyn Meta>, Rc::clone(first.contents.members()));
        let seen = audit(&bed, &[2]).await.chunks.remove(0);
        assert!(auditor.clear(&seen, &seen.unnamed, false).await.unwrap());
        let other = bed.host();
        let next = Node::new(&other, 3);
        next.create().await;
        let bytes = drawn(&mut rng, 600_000);
        other.contents.write(&*next, 0, rope(&bytes)).await.unwrap();
        gate.go_on();
        late.await;
        audit(&bed, &[2, 3]).await;
        assert!(content(&other, &next).await == bytes);
    });
}

/// Rows that were marked for a client are its own, also where the list that the chunk was found in can't be changed then.
#[test]
fn what_was_claimed_is_used_though_it_stays_in_the_list() {
    in_world(9, async {
        let bed = Rc::new(Bed::new(9, (2, 1), 3, 4).await);
        let first = bed.host();
        let node = Node::new(&first, 1);
        node.create().await;
        first.contents.write(&*node, 0, rope(&[1; 5000])).await.unwrap();
        first.contents.space().close().await;
        bed.store.set_fates({
            let bed = Rc::clone(&bed);
            move |key, _| {
                if key.starts_with(&bed.keys_of(b'k')) {
                    *bed.store.silent.borrow_mut() = Some(bed.keys_of(b'a'));
                }
                None
            }
        });
        let host = bed.host();
        let node = Node::new(&host, 2);
        node.create().await;
        host.contents.write(&*node, 0, rope(&[2; 5000])).await.unwrap();
        *bed.store.silent.borrow_mut() = None;
        bed.store.set_fates(|_, _| None);
        host.contents.space().close().await;
        let chunks = audit(&bed, &[1, 2]).await.chunks;
        assert_eq!((chunks.len(), &chunks[0].unnamed[..]), (1, &[][..]), "its rows are lost to everybody");
    });
}

/// Nothing was sent to the rows of a write whose caller went away while it claimed the chunk: they rested for half an hour.
#[test]
fn rows_of_a_write_that_goes_away_before_it_begins_are_there_at_once() {
    in_world(10, async {
        let bed = Rc::new(Bed::new(10, (2, 1), 3, 4).await);
        let first = bed.host();
        let node = Node::new(&first, 1);
        node.create().await;
        first.contents.write(&*node, 0, rope(&[1; 5000])).await.unwrap();
        let row = first.contents.stripes_of(&*node).await.unwrap().remove(0).1.id.row;
        first.contents.space().close().await;
        let gate = Gate::at(None);
        bed.store.set_fates({
            let (bed, gate) = (Rc::clone(&bed), Rc::clone(&gate));
            move |key, _| {
                if key.starts_with(&bed.keys_of(b'a')) {
                    gate.stop_next();
                }
                None
            }
        });
        let host = bed.host_at(Rc::clone(&gate));
        let node = Node::new(&host, 2);
        node.create().await;
        let goes = task::spawn({
            let (contents, node) = (Rc::clone(&host.contents), Rc::clone(&node));
            async move { contents.write(&*node, 0, rope(&[2; 5000])).await }
        });
        time::sleep(Duration::from_secs(1)).await;
        assert!(!goes.is_finished(), "it takes the chunk from the list");
        drop(goes);
        bed.store.set_fates(|_, _| None);
        gate.go_on();
        time::sleep(Duration::from_secs(1)).await;
        host.contents.write(&*node, 0, rope(&[3; 5000])).await.unwrap();
        assert_eq!(host.contents.stripes_of(&*node).await.unwrap().remove(0).1.id.row, row + 1);
        host.contents.space().close().await;
        audit(&bed, &[1, 2]).await;
    });
}

/// Its columns may come yet.
#[test]
fn rows_of_a_write_that_goes_away_under_way_rest() {
    in_world(11, async {
        let bed = Bed::new(11, (2, 1), 3, 4).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        host.contents.write(&*node, 0, rope(&[1; 5000])).await.unwrap();
        let row = host.contents.stripes_of(&*node).await.unwrap().remove(0).1.id.row;
        let all_hang = |hang| bed.shelves.iter().for_each(|shelf| shelf.hangs.set(hang));
        all_hang(true);
        let goes = task::spawn({
            let (contents, node) = (Rc::clone(&host.contents), Rc::clone(&node));
            async move { contents.write(&*node, 5000, rope(&[2; 5000])).await }
        });
        time::sleep(Duration::from_secs(1)).await;
        assert!(!goes.is_finished(), "it writes");
        drop(goes);
        all_hang(false);
        time::sleep(Duration::from_secs(1)).await;
        host.contents.write(&*node, 5000, rope(&[3; 5000])).await.unwrap();
        let last = host.contents.stripes_of(&*node).await.unwrap().pop().unwrap().1;
        assert_eq!(last.id.row, row + 2);
    });
}
