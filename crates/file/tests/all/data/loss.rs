//! Members that are lost, slow, stale or rotten: right bytes or an error, never wrong ones.

use std::time::Duration;

use engine::rng::SplitMix;
use engine::time;
use file::Error;

use super::bed::{Bed, Host, Node, drawn, in_world, rope};

const SHAPES: [(usize, usize); 3] = [(2, 1), (4, 2), (3, 4)];

/// A file of several stripes of all lengths: its bytes.
async fn written(host: &Host, node: &Node, rng: &mut SplitMix) -> Vec<u8> {
    let mut bytes = Vec::new();
    for length in [3000, 1, 70_000, 4096, 600_000, 12_345] {
        let part = drawn(rng, length);
        host.contents.write(node, bytes.len() as u64, rope(&part)).await.unwrap();
        bytes.extend(part);
    }
    bytes
}

/// Reads all, and some small parts: all of them right, or all that could not be had lost.
async fn verify(host: &Host, node: &Node, bytes: &[u8], rng: &mut SplitMix, may_be_lost: bool) -> u32 {
    let mut lost = 0;
    let whole = [(0, bytes.len())];
    let parts: Vec<(usize, usize)> = (0..6).map(|_| (rng.index(bytes.len()), rng.index(9000))).collect();
    for (from, length) in whole.into_iter().chain(parts) {
        let to = (from + length).min(bytes.len());
        match host.contents.read(node, from as u64..to as u64, false).await {
            Ok(rope) => assert_eq!(rope.to_vec(), bytes[from..to], "{from}..{to}"),
            Err(Error::Lost { .. }) if may_be_lost => lost += 1,
            Err(error) => panic!("{from}..{to}: {error}"),
        }
    }
    lost
}

#[test]
fn any_m_members_may_be_lost_and_one_more_is_an_error() {
    for (data, parity) in SHAPES {
        in_world(1, async {
            let mut rng = SplitMix(9);
            let bed = Bed::new(1, (data, parity), data + parity, 16).await;
            let host = bed.host();
            let node = Node::new(&host, 1);
            node.create().await;
            let bytes = written(&host, &node, &mut rng).await;
            for set in 0u32..1 << (data + parity) {
                let down = set.count_ones() as usize;
                if down > parity + 1 {
                    continue;
                }
                bed.shelves.iter().enumerate().for_each(|(index, shelf)| shelf.is_down.set(set >> index & 1 == 1));
                let lost = verify(&host, &node, &bytes, &mut rng, down > parity).await;
                assert_eq!(lost > 0, down > parity, "{data}+{parity} without {set:b}");
            }
        });
    }
}

#[test]
fn rot_is_corrected_or_an_error_and_never_wrong_bytes() {
    for (seed, (data, parity)) in (0..).zip(SHAPES.into_iter().cycle().take(12)) {
        in_world(seed, async move {
            let mut rng = SplitMix(seed);
            let bed = Bed::new(seed, (data, parity), data + parity, 6).await;
            let host = bed.host();
            let node = Node::new(&host, 1);
            node.create().await;
            let bytes = written(&host, &node, &mut rng).await;
            // Everything on as many members as may be lost; and one page each on the others, none of the same granule twice.
            let rotten = rng.index(data + parity);
            for member in (0..parity).map(|step| (rotten + step) % (data + parity)) {
                for page in 0..6 * 256 {
                    bed.flip(member, (1 << 20) + page * 4096 + rng.below(4096), page as u8).await;
                }
            }
            verify(&host, &node, &bytes, &mut rng, false).await;
            let more = (rotten + parity) % (data + parity);
            for page in 0..6 * 256 {
                bed.flip(more, (1 << 20) + page * 4096 + rng.below(4096), page as u8).await;
            }
            assert!(verify(&host, &node, &bytes, &mut rng, true).await > 0);
        });
    }
}

/// A parity column has no checksum: what is made with a bad one must not be given out, and the others are tried.
#[test]
fn bad_parity_is_found_by_what_it_makes() {
    in_world(3, async {
        let mut rng = SplitMix(3);
        let bed = Bed::new(3, (2, 2), 4, 6).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        let bytes = drawn(&mut rng, 300_000);
        host.contents.write(&*node, 0, rope(&bytes)).await.unwrap();
        for rotten in 0..4 {
            for down in (0..4).filter(|down| *down != rotten) {
                for page in 0..6 * 256 {
                    bed.flip(rotten, (1 << 20) + page * 4096, 1).await;
                }
                bed.shelves[down].is_down.set(true);
                verify(&host, &node, &bytes, &mut rng, false).await;
                bed.shelves[down].is_down.set(false);
                for page in 0..6 * 256 {
                    bed.flip(rotten, (1 << 20) + page * 4096, 1).await;
                }
            }
        }
    });
}

#[test]
fn a_write_that_loses_a_member_is_whole_again_after_a_rewrite() {
    in_world(4, async {
        let mut rng = SplitMix(4);
        let bed = Bed::new(4, (4, 2), 6, 8).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        bed.shelves[2].is_down.set(true);
        let bytes = drawn(&mut rng, 500_000);
        host.contents.write(&*node, 0, rope(&bytes)).await.unwrap();
        let short = host.contents.stripes_of(&*node).await.unwrap();
        assert!(short.iter().all(|(_, stripe)| stripe.missing.count_ones() == 1), "{short:?}");
        verify(&host, &node, &bytes, &mut rng, false).await;
        bed.shelves[2].is_down.set(false);
        time::sleep(Duration::from_secs(10)).await;
        for (at, stripe) in short {
            assert!(host.contents.rewrite(&*node, at, stripe.id).await.unwrap());
            assert!(!host.contents.rewrite(&*node, at, stripe.id).await.unwrap(), "nothing names it any more");
        }
        let whole = host.contents.stripes_of(&*node).await.unwrap();
        assert!(whole.iter().all(|(_, stripe)| stripe.missing == 0), "{whole:?}");
        for down in [[0, 2], [2, 5]] {
            down.into_iter().for_each(|member| bed.shelves[member].is_down.set(true));
            verify(&host, &node, &bytes, &mut rng, false).await;
            down.into_iter().for_each(|member| bed.shelves[member].is_down.set(false));
        }
    });
}

#[test]
fn two_members_down_fail_a_write_and_take_nothing_for_good() {
    in_world(5, async {
        let bed = Bed::new(5, (2, 2), 4, 8).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        host.contents.write(&*node, 0, rope(&[1; 5000])).await.unwrap();
        bed.shelves[0].is_down.set(true);
        bed.shelves[1].is_down.set(true);
        let failed = host.contents.write(&*node, 0, rope(&[2; 5000])).await;
        assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
        assert_eq!(host.contents.read(&*node, 0..9000, true).await.unwrap().to_vec(), [1; 5000]);
        bed.shelves[0].is_down.set(false);
        time::sleep(Duration::from_secs(10)).await;
        host.contents.write(&*node, 0, rope(&[2; 5000])).await.unwrap();
        assert_eq!(host.contents.read(&*node, 0..9000, true).await.unwrap().to_vec(), [2; 5000]);
    });
}

/// A member that hangs costs a few milliseconds, once; then it is not asked while others answer.
#[test]
fn a_member_that_hangs_is_helped_and_then_passed_over() {
    in_world(6, async {
        let mut rng = SplitMix(6);
        let bed = Bed::new(6, (4, 2), 6, 8).await;
        bed.shelves.iter().for_each(|shelf| shelf.delay.set(Duration::from_micros(100)));
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        let bytes = drawn(&mut rng, 1 << 20);
        host.contents.write(&*node, 0, rope(&bytes)).await.unwrap();
        let column = |rng: &mut SplitMix| rng.index(bytes.len() - 4096);
        for _ in 0..50 {
            let from = column(&mut rng);
            let read = host.contents.read(&*node, from as u64..from as u64 + 4096, false).await.unwrap();
            assert_eq!(read.to_vec(), bytes[from..from + 4096]);
        }
        let plain: u64 = bed.shelves.iter().map(|shelf| shelf.reads.get()).sum();
        assert!(plain <= 110, "an idle system reads what is asked for and nothing else: {plain} reads");
        bed.shelves[1].hangs.set(true);
        let begun = time::now();
        for _ in 0..300 {
            let from = column(&mut rng);
            let read = host.contents.read(&*node, from as u64..from as u64 + 4096, false).await.unwrap();
            assert_eq!(read.to_vec(), bytes[from..from + 4096]);
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_millis(300), "{took:?}");
    });
}

/// The one that is asked instead hangs, too: help is called for again.
#[test]
fn two_members_that_hang_are_helped() {
    in_world(7, async {
        let mut rng = SplitMix(7);
        let bed = Bed::new(7, (4, 2), 6, 8).await;
        bed.shelves.iter().for_each(|shelf| shelf.delay.set(Duration::from_micros(100)));
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        let bytes = drawn(&mut rng, 1 << 20);
        host.contents.write(&*node, 0, rope(&bytes)).await.unwrap();
        for hang in 0..6 {
            // As whoever knows nothing of these members' speed.
            let reader = bed.host();
            let node = Node::new(&reader, 1);
            let two = [hang, (hang + 1) % 6];
            two.into_iter().for_each(|member| bed.shelves[member].hangs.set(true));
            let begun = time::now();
            for at in (0..bytes.len()).step_by(64 << 10) {
                let read = reader.contents.read(&*node, at as u64..at as u64 + 4096, false).await.unwrap();
                assert_eq!(read.to_vec(), bytes[at..at + 4096]);
            }
            assert!(begun.elapsed() < Duration::from_millis(300), "{two:?}: {:?}", begun.elapsed());
            two.into_iter().for_each(|member| bed.shelves[member].hangs.set(false));
        }
    });
}

/// Where nobody says where bytes are, that is no loss of them: it passes.
#[test]
fn a_store_that_is_silent_is_no_loss() {
    in_world(8, async {
        let bed = Bed::new(8, (2, 1), 3, 8).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        host.contents.write(&*node, 0, rope(&[1; 20_000])).await.unwrap();
        let reader = bed.host();
        let node = Node::new(&reader, 1);
        *bed.store.silent.borrow_mut() = Some(bed.keys_of(b'k'));
        let told = reader.contents.read(&*node, 0..20_000, false).await.unwrap_err();
        assert!(matches!(&told, Error::Unavailable(_)), "{told}");
        *bed.store.silent.borrow_mut() = None;
        assert_eq!(reader.contents.read(&*node, 0..20_000, false).await.unwrap().to_vec(), [1; 20_000]);
    });
}
