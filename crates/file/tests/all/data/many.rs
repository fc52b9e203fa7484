//! Many at once in one file: writers beyond its end, truncations, holes, by one client and by several.

use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::{task, time};

use super::bed::{Bed, Node, drawn, in_long_world, in_world, rope};
use super::files::{Step, audit, content};

const MIB: usize = 1 << 20;

/// Blocks of a MiB written all at once, the last one first, dealt out to so many clients. The first of them are there.
async fn extended(seed: u64, clients: usize, there: usize, blocks: usize) {
    let bed = Rc::new(Bed::new(seed, (2, 1), 4, 60).await);
    let hosts: Vec<_> = (0..clients).map(|_| Rc::new(bed.host())).collect();
    Node::new(&hosts[0], 1).create().await;
    bed.store.delay.set(Duration::from_millis(1));
    bed.shelves.iter().for_each(|shelf| shelf.delay.set(Duration::from_micros(700)));
    let mut rng = SplitMix(seed);
    let bytes = drawn(&mut rng, blocks * MIB);
    for block in 0..there {
        let node = Node::new(&hosts[0], 1);
        hosts[0].contents.write(&*node, (block * MIB) as u64, rope(&bytes[block * MIB..][..MIB])).await.unwrap();
    }
    let tasks: Vec<_> = (there..blocks)
        .rev()
        .map(|block| {
            let (host, part) = (Rc::clone(&hosts[block % clients]), rope(&bytes[block * MIB..(block + 1) * MIB]));
            task::spawn(async move {
                let node = Node::new(&host, 1);
                host.contents.write(&*node, (block * MIB) as u64, part).await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let written: u64 = hosts.iter().map(|host| host.contents.figures().stripes_written.get()).sum();
    for host in &hosts {
        host.contents.space().close().await;
    }
    audit(&bed, &[1]).await;
    let other = bed.host();
    assert!(content(&other, &Node::new(&other, 1)).await == bytes, "seed {seed}");
    // A cut of the other client's may take what was written behind it; below it, nothing is written twice.
    assert!(written <= (blocks * clients) as u64, "{written} stripes written for {blocks}");
}

#[test]
fn parallel_extension_ends() {
    for seed in 0..3 {
        for (clients, there) in [(1, 0), (2, 0), (1, 10), (2, 10)] {
            in_world(seed, extended(seed, clients, there, there + 16));
        }
    }
}

/// Everything at once, by three clients that have each seen the file in some state, with answers that are lost: no row is freed
/// twice, or named when it is free; and bytes are those of some write to their place, or zeroes.
async fn all_at_once(seed: u64) {
    let bed = Rc::new(Bed::new(seed, (2, 1), 4, 40).await);
    let first = bed.host();
    let kept = Node::new(&first, 2);
    Node::new(&first, 1).create().await;
    kept.create().await;
    let mut rng = SplitMix(seed);
    let bytes = drawn(&mut rng, 30_000);
    first.contents.write(&*kept, 0, rope(&bytes)).await.unwrap();
    first.contents.space().close().await;
    bed.store.delay.set(Duration::from_millis(2));
    bed.store.unknown_ppm.set(if seed.is_multiple_of(3) { 0 } else { 80_000 });
    let tasks: Vec<_> = (0..3u64)
        .map(|client| {
            let bed = Rc::clone(&bed);
            task::spawn(async move {
                let (host, mut rng) = (bed.host(), SplitMix(seed * 10 + client));
                let node = Node::new(&host, 1);
                for _ in 0..50 {
                    let step = match rng.index(10) {
                        0 => Step::Truncate(0),
                        1 => Step::Truncate(rng.index(300_000)),
                        2 => Step::Punch(rng.index(300_000), rng.index(100_000)),
                        // Each byte says its place, so that whoever wrote it last is no matter.
                        3 => {
                            let base = rng.index(300_000);
                            let places = (base..base + 18_000).step_by(3000);
                            let part = |at| (at, (at..at + 1 + rng.index(2500)).map(byte_of).collect());
                            Step::Scatter(places.map(part).collect())
                        }
                        _ => {
                            let at = rng.index(300_000);
                            Step::Write(at, (at..at + 1 + rng.index(20_000)).map(byte_of).collect())
                        }
                    };
                    let _ = step.run(&host, &node).await;
                    if rng.index(4) == 0 {
                        let read = host.contents.read(&*node, 0..u64::MAX, rng.index(2) == 0).await.unwrap();
                        check(&read.to_vec(), seed);
                    }
                }
                host.contents.space().close().await;
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    bed.store.unknown_ppm.set(0);
    time::sleep(Duration::from_secs(1)).await;
    audit(&bed, &[1, 2]).await;
    check(&content(&first, &Node::new(&first, 1)).await, seed);
    assert_eq!(content(&first, &kept).await, bytes, "seed {seed}");
}

fn byte_of(at: usize) -> u8 {
    (at % 251) as u8 + 1
}

fn check(found: &[u8], seed: u64) {
    let wrong = found.iter().enumerate().find(|(at, byte)| **byte != 0 && **byte != byte_of(*at));
    assert_eq!(wrong, None, "seed {seed}: a byte of another place");
}

#[test]
fn whatever_several_do_at_once_no_row_is_freed_twice() {
    for seed in 0..12 {
        in_world(seed, all_at_once(seed));
    }
}

/// A member's writes come many minutes late, or in part, and all the while others are made: none hits what is named.
#[test]
fn late_and_torn_writes_hit_nothing_that_is_named() {
    for seed in 0..4 {
        in_long_world(seed, async move {
            let mut rng = SplitMix(seed);
            let bed = Bed::new(seed, (2, 1), 3, 6).await;
            let host = bed.host();
            let nodes = [Node::new(&host, 1), Node::new(&host, 2)];
            let mut models = [Vec::new(), Vec::new()];
            for node in &nodes {
                node.create().await;
            }
            for round in 0..200 {
                if round % 20 == 0 {
                    bed.shelves.iter().for_each(|shelf| shelf.late_ppm.set(0));
                    bed.shelves[rng.index(3)].late_ppm.set(300_000);
                }
                let file = rng.index(2);
                let step = Step::draw(&mut rng, models[file].len(), 200_000);
                step.run(&host, &nodes[file]).await.unwrap();
                step.apply(&mut models[file]);
                time::sleep(Duration::from_secs(rng.below(60))).await;
                host.contents.space().renewed(time::now());
            }
            bed.shelves.iter().for_each(|shelf| shelf.late_ppm.set(0));
            for _ in 0..4 {
                time::sleep(Duration::from_secs(450)).await;
                host.contents.space().renewed(time::now());
            }
            for node in &nodes {
                for (at, stripe) in host.contents.stripes_of(&**node).await.unwrap() {
                    if stripe.missing != 0 {
                        host.contents.rewrite(&**node, at, stripe.id).await.unwrap();
                    }
                }
            }
            assert!(host.contents.figures().stripes_short.get() > 0, "no write was late");
            // All columns are right: whichever member is away, the others have all.
            for down in 0..3 {
                bed.shelves[down].is_down.set(true);
                for (node, model) in nodes.iter().zip(&models) {
                    assert!(content(&host, node).await == *model, "seed {seed}, without member {down}");
                }
                bed.shelves[down].is_down.set(false);
            }
            audit(&bed, &[1, 2]).await;
        });
    }
}
