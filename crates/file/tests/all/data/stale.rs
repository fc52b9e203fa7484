//! A client that has seen a file before others changed it: what it reads was once there, and what it changes is the file as it is.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::{task, time};
use file::data::Inode;

use super::bed::{Bed, Gate, Host, Node, drawn, in_world, rope};
use super::files::content;

const MIB: u64 = 1 << 20;

/// A file whose map is in spans: `pieces` of 5,000 bytes, none of which is zero.
async fn long_file(host: &Host, node: &Node, pieces: u64) -> Vec<u8> {
    let bytes: Vec<u8> = (0..pieces * 5000).map(|at| at as u8 | 1).collect();
    for (n, part) in bytes.chunks(5000).enumerate() {
        host.contents.write(node, n as u64 * 5000, rope(part)).await.unwrap();
    }
    bytes
}

/// It is as long as this client thinks that it shall be, but not any more.
#[test]
fn a_truncation_to_the_size_that_was_seen_cuts_what_came_since() {
    in_world(1, async {
        let bed = Bed::new(1, (2, 1), 4, 20).await;
        let (one, two) = (bed.host(), bed.host());
        let (mine, theirs) = (Node::new(&one, 1), Node::new(&two, 1));
        theirs.create().await;
        let bytes = long_file(&two, &theirs, 100).await;
        mine.load(false).await.unwrap();
        two.contents.write(&*theirs, 500_000, rope(&[7; 100_000])).await.unwrap();
        one.contents.truncate(&*mine, 500_000).await.unwrap();
        assert!(content(&two, &theirs).await == bytes);
    });
}

/// A hole lies behind the end that this client has seen, or in a map that is no more.
#[test]
fn a_hole_is_made_in_the_file_as_it_is() {
    for is_cut in [false, true] {
        in_world(2, async {
            let bed = Bed::new(2, (2, 1), 4, 40).await;
            let (one, two) = (bed.host(), bed.host());
            let (mine, theirs) = (Node::new(&one, 1), Node::new(&two, 1));
            theirs.create().await;
            let mut bytes = long_file(&two, &theirs, 100).await;
            mine.load(false).await.unwrap();
            if is_cut {
                two.contents.truncate(&*theirs, 0).await.unwrap();
                bytes = long_file(&two, &theirs, 130).await;
            }
            let end = bytes.len();
            bytes.extend([7; 100_000]);
            two.contents.write(&*theirs, end as u64, rope(&[7; 100_000])).await.unwrap();
            let (from, to) = (end as u64 - 100_000, end as u64 + 50_000);
            one.contents.punch(&*mine, from..to).await.unwrap();
            bytes[from as usize..to as usize].fill(0);
            assert!(content(&two, &theirs).await == bytes);
        });
    }
}

/// The inode was seen, the span was not; by the time it is asked for, the map is gone.
#[test]
fn a_span_of_a_map_that_is_gone_is_no_hole() {
    in_world(3, async {
        let mut rng = SplitMix(3);
        let bed = Bed::new(3, (2, 1), 4, 40).await;
        let (one, two) = (bed.host(), bed.host());
        let (mine, theirs) = (Node::new(&one, 1), Node::new(&two, 1));
        theirs.create().await;
        long_file(&two, &theirs, 100).await;
        two.contents.write(&*theirs, 9 * MIB, rope(&[5; 100_000])).await.unwrap();
        one.contents.read(&*mine, 0..1000, false).await.unwrap();
        two.contents.truncate(&*theirs, 0).await.unwrap();
        let bytes: Vec<u8> = drawn(&mut rng, 12 << 20).iter().map(|byte| byte | 1).collect();
        two.contents.write(&*theirs, 0, rope(&bytes)).await.unwrap();
        for fresh in [false, true] {
            let read = one.contents.read(&*mine, 9 * MIB..9 * MIB + 1000, fresh).await.unwrap().to_vec();
            let at = 9 << 20;
            assert!(read == [5; 1000] || read == bytes[at..at + 1000], "bytes that nobody wrote: {:?}", &read[..9]);
        }
    });
}

/// The span was seen when the file ended in it; the inode is seen again, with more of the file.
#[test]
fn what_lay_behind_the_end_that_was_seen_is_no_hole() {
    in_world(4, async {
        let bed = Bed::new(4, (2, 1), 4, 40).await;
        let (one, two) = (bed.host(), bed.host());
        let theirs = Node::new(&two, 1);
        theirs.create().await;
        let mut bytes = long_file(&two, &theirs, 100).await;
        let seen = one.contents.read(&*Node::new(&one, 1), 0..u64::MAX, false).await.unwrap();
        assert!(seen.to_vec() == bytes);
        two.contents.write(&*theirs, bytes.len() as u64, rope(&[7; 100_000])).await.unwrap();
        bytes.extend([7; 100_000]);
        let again = Node::new(&one, 1);
        assert!(one.contents.read(&*again, 0..u64::MAX, false).await.unwrap().to_vec() == bytes);
    });
}

/// The other finishes the cut that this client has begun: what this client has seen before that is not what its file holds.
#[test]
fn what_was_seen_before_a_cut_of_ones_own_is_not_read_after_it() {
    in_world(5, async {
        let bed = Rc::new(Bed::new(5, (2, 1), 4, 40).await);
        let gate = Gate::at(None);
        let (one, two) = (Rc::new(bed.host_at(Rc::clone(&gate))), bed.host());
        let (mine, theirs) = (Node::new(&one, 1), Node::new(&two, 1));
        mine.create().await;
        let mut bytes = long_file(&one, &mine, 100).await;
        one.contents.read(&*mine, 0..u64::MAX, false).await.unwrap();
        // It stands still when its cut is in the inode.
        bed.store.set_fates({
            let (gate, is_done) = (Rc::clone(&gate), Cell::new(false));
            move |key, _| {
                if !is_done.replace(true) {
                    assert_eq!(key, b"inode 1");
                    gate.stop_next();
                }
                None
            }
        });
        let cutting = task::spawn({
            let (one, mine) = (Rc::clone(&one), Rc::clone(&mine));
            async move { one.contents.truncate(&*mine, 300_000).await.unwrap() }
        });
        time::sleep(Duration::from_secs(1)).await;
        two.contents.truncate(&*theirs, 400_000).await.unwrap();
        gate.go_on();
        cutting.await;
        bytes.truncate(300_000);
        bytes.resize(400_000, 0);
        assert!(one.contents.read(&*Node::new(&one, 1), 0..u64::MAX, false).await.unwrap().to_vec() == bytes);
    });
}
