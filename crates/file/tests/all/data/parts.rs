//! Bytes that lie apart from one another, written at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::time;

use super::bed::{Bed, Gate, Host, Node, drawn, in_world, rope};
use super::files::{audit, content};

const SPAN: u64 = 8 << 20;

/// Makes a file's map a long one: more small pieces than an inode names.
async fn long_file(host: &Host, node: &Node) -> Vec<u8> {
    let bytes = drawn(&mut SplitMix(9), 200 * 1500);
    for (number, part) in bytes.chunks(1500).enumerate() {
        host.contents.write(node, number as u64 * 1500, rope(part)).await.unwrap();
    }
    bytes
}

/// Parts of 700 bytes, every so many bytes.
fn scattered(rng: &mut SplitMix, from: u64, to: u64, every: u64) -> Vec<(u64, Vec<u8>)> {
    (from..to).step_by(every as usize).map(|at| (at, drawn(rng, 700))).collect()
}

fn put(model: &mut Vec<u8>, parts: &[(u64, Vec<u8>)]) {
    for (at, bytes) in parts {
        let end = *at as usize + bytes.len();
        model.resize(model.len().max(end), 0);
        model[*at as usize..end].copy_from_slice(bytes);
    }
}

async fn write(host: &Host, node: &Node, parts: &[(u64, Vec<u8>)]) -> Result<(), file::Error> {
    host.contents.write_parts(node, parts.iter().map(|(at, bytes)| (*at, rope(bytes))).collect()).await
}

#[test]
fn each_span_is_changed_once_for_all_parts_and_the_inode_once() {
    in_world(1, async {
        let bed = Bed::new(1, (2, 1), 4, 60).await;
        let (host, mut rng) = (bed.host(), SplitMix(1));
        let node = Node::new(&host, 1);
        node.create().await;
        let mut model = long_file(&host, &node).await;
        let last = vec![(5 * SPAN - 10, drawn(&mut rng, 10))];
        write(&host, &node, &last).await.unwrap();
        put(&mut model, &last);
        let changes = Rc::new(RefCell::new(BTreeMap::<Vec<u8>, usize>::new()));
        let noted = Rc::clone(&changes);
        bed.store.set_fates(move |key, _| {
            *noted.borrow_mut().entry(key.to_vec()).or_default() += 1;
            None
        });
        let parts = scattered(&mut rng, 100, 5 * SPAN - 1000, 200_000);
        write(&host, &node, &parts).await.unwrap();
        put(&mut model, &parts);
        let changes = changes.take();
        let of_maps: Vec<usize> =
            changes.iter().filter(|(key, _)| bed.is_span(key) || key.starts_with(b"inode ")).map(|(_, n)| *n).collect();
        assert_eq!(of_maps, [1; 6], "five spans and the inode, for {} parts", parts.len());
        assert!(content(&host, &node).await == model);
        // One too many in the middle of it is no loss of the others.
        write(&host, &node, &[(7, Vec::new()), (SPAN, vec![1]), (2 * SPAN, Vec::new())]).await.unwrap();
        put(&mut model, &[(SPAN, vec![1])]);
        assert!(content(&host, &node).await == model);
        let beyond = [(0, vec![1]), ((1 << 56) - 1, vec![1, 2])];
        assert!(matches!(write(&host, &node, &beyond).await, Err(file::Error::TooLong(_))));
        host.contents.space().close().await;
        audit(&bed, &[1]).await;
    });
}

/// In an inode, in a map in an inode, and where the one becomes the other.
#[test]
fn parts_of_a_short_file_are_in_it() {
    in_world(2, async {
        let bed = Bed::new(2, (2, 1), 4, 60).await;
        let (host, mut rng) = (bed.host(), SplitMix(2));
        let (node, mut model) = (Node::new(&host, 1), Vec::new());
        node.create().await;
        for (from, to, every) in
            [(0, 2, 1), (300, 3000, 900), (10, 40_000, 9000), (5000, 90_000, 800), (0, 90_000, 700)]
        {
            let parts: Vec<(u64, Vec<u8>)> = match every {
                1 => vec![(3, vec![1; 5]), (20, vec![2; 9])],
                _ => scattered(&mut rng, from, to, every),
            };
            write(&host, &node, &parts).await.unwrap();
            put(&mut model, &parts);
            assert!(content(&host, &node).await == model, "every {every}");
        }
        host.contents.space().close().await;
        audit(&bed, &[1]).await;
    });
}

/// A client stops at every step of a write behind the end: its bytes may be in a span, and be no part of the file. Another then
/// writes parts around them.
#[test]
fn what_another_left_behind_the_end_comes_in_between_no_parts() {
    let (mut step, mut has_stopped, mut was_left) = (0, true, false);
    while has_stopped {
        in_world(step, async {
            let bed = Bed::new(step, (2, 1), 4, 60).await;
            let (gate, mut rng) = (Gate::at(None), SplitMix(step));
            let (host, other) = (bed.host_at(Rc::clone(&gate)), bed.host());
            let (node, theirs) = (Node::new(&host, 1), Node::new(&other, 1));
            node.create().await;
            let bytes = long_file(&host, &node).await;
            let end = bytes.len() as u64;
            gate.stop_at.set(Some(gate.steps.get() + step));
            let left = host.contents.write(&*node, end, rope(&[0xee; 9000]));
            has_stopped = time::timeout(Duration::from_secs(100), left).await.is_err();
            let mut expected = content(&other, &theirs).await;
            let named = other.contents.stripes_of(&*theirs).await.unwrap();
            was_left |= expected.len() as u64 == end && named.iter().any(|(at, _)| *at >= end);
            // The first of them begins where the file ends, and so leaves no gap itself.
            let parts = [(end, drawn(&mut rng, 700)), (end + 4000, drawn(&mut rng, 700)), (end + SPAN, vec![1])];
            write(&other, &theirs, &parts).await.unwrap();
            put(&mut expected, &parts);
            assert!(content(&other, &theirs).await == expected, "stopped at step {step}");
        });
        step += 1;
    }
    assert!(was_left, "it stopped nowhere in between");
}
