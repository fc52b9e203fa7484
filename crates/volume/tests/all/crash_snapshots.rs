//! A host is killed after every single change that it makes while it takes and deletes snapshots, grows a volume, or makes one of
//! clones. One run for each.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use device::{Lba, Namespace};
use engine::{Buf, time};
use volume::{AdoptOptions, Label, Reach, Set, SnapshotName, Volume};

use crate::adopting::{clone_of, is_clone, of, reaches, source};
use crate::basics::{get, put};
use crate::cluster::{BLOCK, BLOCKS, Cluster, DISK, Places, attach, format, options, run, whole};
use crate::crash::{CountedReach, Counter};

/// What the host's clients were told, and what they have asked for without an answer.
#[derive(Default)]
struct Known {
    /// With what block 1 has there.
    told: RefCell<Vec<(SnapshotName, u8)>>,
    ended: RefCell<Vec<SnapshotName>>,
    gone: RefCell<Vec<SnapshotName>>,
    blocks: Cell<u64>,
    asked_blocks: Cell<u64>,
    /// What block 1 may have.
    bytes: RefCell<Vec<u8>>,
}

impl Known {
    async fn put(&self, volume: &Volume, byte: u8) {
        self.bytes.borrow_mut().push(byte);
        put(volume, 1, byte).await.expect("nothing fails but the host");
        self.bytes.replace(vec![byte]);
    }

    async fn grow(&self, volume: &Volume, blocks: u64) {
        self.asked_blocks.set(blocks);
        volume.grow(blocks * BLOCK as u64).await.expect("there is room");
        self.blocks.set(blocks);
    }

    async fn snapshot(&self, volume: &Volume) -> SnapshotName {
        let name = volume.snapshot().await.expect("nothing fails but the host");
        self.told.borrow_mut().push((name, self.bytes.borrow()[0]));
        name
    }

    async fn delete(&self, volume: &Volume, name: SnapshotName) {
        self.ended.borrow_mut().push(name);
        volume.delete_snapshot(name).await.expect("nothing fails but the host");
        self.gone.borrow_mut().push(name);
    }
}

async fn live(known: Rc<Known>, counter: Counter, places: Places, last: Option<u64>) {
    let counted = |(inner, node)| Rc::new(CountedReach { inner, counter: counter.clone(), node }) as Rc<dyn Reach>;
    let reaches = places.reaches("first").into_iter().zip(places.nodes()).map(counted).collect();
    let volume = volume::attach(reaches, options()).await.expect("all nodes are up");
    known.blocks.set(BLOCKS);
    known.put(&volume, 1).await;
    counter.count.set(0);
    counter.last.set(last);
    let first = known.snapshot(&volume).await;
    known.put(&volume, 2).await;
    known.grow(&volume, BLOCKS + 30).await;
    let second = known.snapshot(&volume).await;
    known.delete(&volume, first).await;
    known.put(&volume, 3).await;
    known.grow(&volume, BLOCKS + 31).await;
    known.delete(&volume, second).await;
    known.snapshot(&volume).await;
    time::sleep(Duration::from_secs(2)).await;
}

fn lives(last: Option<u64>) -> u64 {
    run(61, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let (known, counter) = (Rc::new(Known::default()), Counter::default());
        let host = world.node("host");
        let life = live(Rc::clone(&known), counter.clone(), cluster.places.clone(), last);
        let process = world.spawn_on(host, life);
        let begin = time::now();
        while !process.is_finished() {
            let tripped = counter.tripped.notified();
            if time::timeout(Duration::from_millis(1), tripped).await.is_ok() {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "change {last:?}: the host does not come to its end");
        }
        world.crash(host);
        drop(process);
        judge(cluster, &known, last).await;
        counter.count.get()
    })
}

async fn judge(cluster: &Cluster, known: &Known, last: Option<u64>) {
    let volume = attach(&cluster.places, "judge").await;
    let id = volume.shape().volume;
    let blocks = volume.info().blocks;
    assert!(blocks == known.blocks.get() || blocks == known.asked_blocks.get(), "change {last:?}: {blocks} blocks");
    for lba in BLOCKS..blocks {
        assert_eq!(get(&volume, lba).await, Ok(0), "change {last:?}: block {lba}");
    }
    let byte = get(&volume, 1).await.expect("all nodes are up");
    assert!(known.bytes.borrow().contains(&byte), "change {last:?}: {byte}");
    whole(&volume).await;
    let named: Vec<SnapshotName> = volume.snapshots().iter().map(|snapshot| snapshot.name).collect();
    let (told, ended) = (known.told.take(), known.ended.take());
    for (name, byte) in told.into_iter().filter(|(name, _)| !ended.contains(name)) {
        assert!(named.contains(&name), "change {last:?}: a snapshot that somebody was told of is missing");
        let view = volume.snapshot_view(name).await.expect("it is there");
        let (result, buf) = view.read(Lba(1), Buf::with_len(BLOCK)).await;
        assert_eq!((result, buf[0]), (Ok(()), byte), "change {last:?}");
    }
    assert!(!known.gone.borrow().iter().any(|name| named.contains(name)), "change {last:?}: it was gone, and is back");
    // What is named is there at all that are named, and nothing else is.
    time::sleep(Duration::from_secs(3)).await;
    for node in 0..3 {
        let mut kept = cluster.places.shelf.names(node, id);
        kept.sort_unstable();
        let has = |snapshot: &&volume::Snapshot| snapshot.slots.has(node);
        let should: Vec<_> = volume.snapshots().iter().filter(has).map(|snapshot| snapshot.name).collect();
        assert_eq!(kept, should, "change {last:?}: node {node}");
    }
    volume.detach().await.expect("it is attached");
}

#[test]
fn a_host_that_dies_in_a_snapshot_or_growing_leaves_no_half_of_it() {
    let all = lives(None);
    println!("{all} changes");
    assert!(all > 40, "everything is counted: {all}");
    for last in 1..=all {
        lives(Some(last));
    }
}

/// Makes a volume of clones, and dies after so many changes. Returns how many there were.
fn adopts((replicas, clones): (u8, u8), last: Option<u64>) -> u64 {
    run(62, replicas, 3, async |world, cluster| {
        let (source, name) = source(cluster, replicas).await;
        let clone_all = async || {
            for slot in Set(clones).iter() {
                clone_of(cluster, source.shape().volume, (name, slot), 3 + slot).await;
            }
        };
        clone_all().await;
        let counter = Counter::default();
        counter.last.set(last);
        let counted = |node: usize| {
            let inner = cluster.places.reach(node, "operator");
            Rc::new(CountedReach { inner, counter: counter.clone(), node }) as Rc<dyn Reach>
        };
        let options = of(&source, Set(clones));
        let (operator, counted) = (world.node("operator"), [3, 4, 5].map(counted).to_vec());
        let process = world.spawn_on(operator, async move { volume::adopt(counted, options).await.map(drop) });
        let tripped = time::timeout(Duration::from_secs(5), counter.tripped.notified()).await;
        world.crash(operator);
        drop(process);
        let label = |node: usize| Label::decode(&world.peek(cluster.nodes[node], DISK, 0, BLOCK)).ok();
        let count =
            |volume: u128| (3..6).filter(|&node| label(node).is_some_and(|label| label.shape.volume == volume)).count();
        let (old, new) = (count(source.shape().volume), count(77));
        assert!(old == 0 || new == 0, "change {last:?}: {old} are of the old volume and {new} of the new one");
        let is_whole = volume::attach(reaches(cluster, &[3, 4, 5]), crate::cluster::options()).await;
        // One whose label is missing is replaced: what is there is enough, or nothing can be attached.
        match is_whole {
            Ok(volume) if old == 0 => {
                assert_eq!((volume.shape().volume, get(&volume, 5).await), (77, Ok(1)), "change {last:?}");
                assert!(new >= 2, "change {last:?}");
                drop(volume);
            }
            Ok(volume) => assert_ne!(volume.shape().volume, 77, "change {last:?}"),
            Err(error) => assert!(tripped.is_ok() && new < 2, "change {last:?}: {error}"),
        }
        if new < 3 {
            clone_all().await;
            let again = AdoptOptions { force: true, ..options };
            volume::adopt(reaches(cluster, &[3, 4, 5]), again).await.expect("all nodes are up");
        }
        is_clone(world, cluster, &[3, 4, 5], replicas).await;
        assert_eq!(get(&source, 5).await, Ok(2), "change {last:?}");
        counter.count.get()
    })
}

#[test]
fn an_adoption_that_breaks_off_leaves_nothing_that_is_half_a_volume() {
    for how in [(3, 0b111), (3, 0b101), (2, 0b11)] {
        let all = adopts(how, None);
        assert!(all >= 12, "everything is counted: {all}");
        for last in 1..=all {
            adopts(how, Some(last));
        }
    }
}
