//! Snapshots of volumes.

use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Lba, Namespace};
use engine::{Buf, task, time};
use volume::{Error, Options, Set, SnapshotName, SnapshotView, Takes, Volume};

use crate::basics::{block, get, put};
use crate::cluster::{BLOCK, BLOCKS, Cluster, attach, format, options, run, whole};

async fn seen(view: &SnapshotView, lba: u64) -> Result<u8, device::Error> {
    let (result, buf) = view.read(Lba(lba), Buf::with_len(BLOCK)).await;
    result.map(|()| buf[0])
}

/// All copies that the record names are there, with the same bytes; none else is.
fn kept(cluster: &Cluster, volume: &Volume, name: SnapshotName, slots: Set) {
    let of = |slot: usize| {
        let kept = cluster.places.shelf.of(cluster.places.nodes()[slot]);
        let tag = name.tag(volume.shape().volume).expect("it fits");
        kept.into_iter().find(|kept| kept.tag == tag).map(|kept| kept.data)
    };
    let named = volume.snapshots().into_iter().find(|snapshot| snapshot.name == name);
    assert_eq!(named.map(|snapshot| snapshot.slots), Some(slots));
    let first = of(slots.iter().next().expect("somebody has it")).expect("it is there");
    slots.iter().for_each(|slot| assert!(of(slot).as_ref() == Some(&first), "slot {slot}"));
}

/// Waits until a node has so many snapshots of the volume.
async fn has(cluster: &Cluster, volume: &Volume, node: usize, count: usize) {
    let names = || cluster.places.shelf.names(node, volume.shape().volume);
    for _ in 0..100 {
        if names().len() == count {
            return;
        }
        time::sleep(Duration::from_millis(100)).await;
    }
    panic!("node {node} has {:?}", names());
}

#[test]
fn a_snapshot_has_the_bytes_of_its_moment() {
    for replicas in 1..=3 {
        run(41, replicas, 0, async |_, cluster| {
            format(&cluster.places, replicas).await;
            let volume = attach(&cluster.places, "a").await;
            put(&volume, 5, 1).await.expect("all is well");
            let name = volume.snapshot().await.expect("all is well");
            put(&volume, 5, 2).await.expect("all is well");
            kept(cluster, &volume, name, Set::first(replicas.into()));
            let view = volume.snapshot_view(name).await.expect("it is there");
            assert_eq!((seen(&view, 5).await, get(&volume, 5).await, view.info().blocks), (Ok(1), Ok(2), BLOCKS));
            let refused = view.write(Lba(5), block(3), Durability::Cached).await;
            assert!(matches!(refused, Err(device::Error::ReadOnly(_))), "{refused:?}");
            assert!(matches!(seen(&view, BLOCKS).await, Err(device::Error::OutOfRange { .. })));
            assert_eq!(view.compare(Lba(5), block(1)).await, Ok(()));
            // The next host knows it, and other names are of others.
            volume.detach().await.expect("it is attached");
            let second = attach(&cluster.places, "b").await;
            let other = second.snapshot().await.expect("all is well");
            assert_eq!(second.snapshots().iter().map(|snapshot| snapshot.name).collect::<Vec<_>>(), [name, other]);
            assert!(name < other);
            let view = second.snapshot_view(other).await.expect("it is there");
            assert_eq!(seen(&view, 5).await, Ok(2));
            second.delete_snapshot(name).await.expect("it is attached");
            second.delete_snapshot(name).await.expect("it is gone already");
            assert_eq!(second.snapshots().len(), 1);
            assert!(matches!(second.snapshot_view(name).await.map(drop), Err(Error::NoSuchSnapshot { .. })));
            for node in 0..usize::from(replicas) {
                has(cluster, &second, node, 1).await;
            }
            kept(cluster, &second, other, Set::first(replicas.into()));
        });
    }
}

#[test]
fn a_snapshot_is_as_large_as_the_volume_was() {
    run(42, 3, 0, async |_, cluster| {
        format(&cluster.places, 3).await;
        let volume = attach(&cluster.places, "a").await;
        let small = volume.snapshot().await.expect("all is well");
        volume.grow(300 * BLOCK as u64).await.expect("there is room");
        put(&volume, 299, 4).await.expect("all is well");
        let large = volume.snapshot().await.expect("all is well");
        volume.grow(310 * BLOCK as u64).await.expect("there is room");
        let (small, large) = (volume.snapshot_view(small).await, volume.snapshot_view(large).await);
        let (small, large) = (small.expect("it is there"), large.expect("it is there"));
        assert_eq!((small.info().blocks, large.info().blocks), (BLOCKS, 300));
        assert_eq!(seen(&large, 299).await, Ok(4));
    });
}

/// While replicas are asked new writes wait, and go on when the bound is over; who has not answered is not named, and what it takes
/// late is deleted.
#[test]
fn writes_wait_for_a_snapshot_and_not_for_long() {
    run(43, 3, 0, async |_, cluster| {
        format(&cluster.places, 3).await;
        let volume = Rc::new(attach(&cluster.places, "a").await);
        put(&volume, 5, 1).await.expect("all is well");
        cluster.places.shelf.is_slow(1, Duration::from_millis(1_500));
        let (taker, begin) = (volume.clone(), time::now());
        let snapshot = task::spawn(async move { taker.snapshot().await });
        time::sleep(Duration::from_millis(100)).await;
        let writer = volume.clone();
        let write = task::spawn(async move { (put(&writer, 5, 2).await, time::now()) });
        time::sleep(Duration::from_millis(300)).await;
        assert!(!write.is_finished(), "it is held");
        let read = (get(&volume, 6).await, time::now());
        assert!(read.0 == Ok(0) && read.1.duration_since(begin) < Duration::from_millis(500), "reads are not");
        let name = snapshot.await.expect("two have answered");
        let (written, at) = write.await;
        written.expect("all is well");
        let held = at.duration_since(begin);
        assert!(held > Duration::from_millis(900) && held < Duration::from_millis(1_200), "{held:?}");
        kept(cluster, &volume, name, Set(0b101));
        let view = volume.snapshot_view(name).await.expect("it is there");
        assert_eq!(seen(&view, 5).await, Ok(1));
        // What is late is not of the moment, and has no name.
        cluster.places.shelf.is_slow(1, Duration::ZERO);
        time::sleep(Duration::from_secs(1)).await;
        has(cluster, &volume, 1, 0).await;
        kept(cluster, &volume, name, Set(0b101));
    });
}

#[test]
fn a_quick_snapshot_holds_writes_for_milliseconds() {
    run(44, 3, 0, async |_, cluster| {
        format(&cluster.places, 3).await;
        let volume = Rc::new(attach(&cluster.places, "a").await);
        let writer = volume.clone();
        let slowest = task::spawn(async move {
            let mut slowest = Duration::ZERO;
            for count in 0..2_000u64 {
                let begin = time::now();
                put(&writer, count % 8, count as u8).await.expect("all is well");
                slowest = slowest.max(begin.elapsed());
            }
            slowest
        });
        let mut names = Vec::new();
        while !slowest.is_finished() {
            names.push(volume.snapshot().await.expect("all is well"));
            kept(cluster, &volume, names[names.len() - 1], Set::first(3));
            if names.len() > 5 {
                volume.delete_snapshot(names.remove(0)).await.expect("it is attached");
            }
        }
        let slowest = slowest.await;
        println!("the slowest write took {slowest:?}");
        assert!(slowest < Duration::from_millis(100), "{slowest:?}");
    });
}

#[test]
fn who_joins_is_not_asked_and_who_is_replaced_has_none() {
    run(45, 3, 1, async |world, cluster| {
        let shape = format(&cluster.places, 3).await;
        let volume = attach(&cluster.places, "a").await;
        let all = volume.snapshot().await.expect("all is well");
        world.crash(cluster.nodes[2]);
        put(&volume, 5, 1).await.expect("the others go on");
        let name = volume.snapshot().await.expect("two are there");
        kept(cluster, &volume, name, Set::first(2));
        cluster.restart(world, 2);
        whole(&volume).await;
        assert_eq!(volume.snapshots()[0].slots, Set::first(3), "it is back, with what it had");
        // Gone for good: the snapshots that it had are at the others.
        world.crash(cluster.nodes[0]);
        put(&volume, 5, 2).await.expect("the others go on");
        let spare = cluster.places.reach(3, "a");
        volume::format_replacement(spare.clone(), shape, 0, false).await.expect("it is blank");
        cluster.places.replace(0, 3);
        volume.set_reach(0, spare);
        whole(&volume).await;
        kept(cluster, &volume, all, Set(0b110));
        kept(cluster, &volume, name, Set(0b010));
        let view = volume.snapshot_view(name).await.expect("it is there");
        assert_eq!(seen(&view, 5).await, Ok(1));
        // The old device answers again, and is somebody else.
        let mut record = volume.record().0;
        record.lives[1] = 7;
        let other = SnapshotView::open(cluster.places.reaches("a"), shape.volume, &record, name).await;
        assert!(matches!(other.map(drop), Err(Error::OtherVolume { .. })));
    });
}

#[test]
fn a_view_goes_on_with_another_copy() {
    run(46, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let volume = attach(&cluster.places, "a").await;
        put(&volume, 5, 1).await.expect("all is well");
        let name = volume.snapshot().await.expect("all is well");
        put(&volume, 5, 2).await.expect("all is well");
        world.crash(cluster.nodes[0]);
        world.crash(cluster.nodes[1]);
        let view = volume.snapshot_view(name).await.expect("one has it");
        assert_eq!(seen(&view, 5).await, Ok(1));
    });
}

#[test]
fn where_nobody_can_take_a_snapshot_that_is_said() {
    run(47, 3, 0, async |_, cluster| {
        format(&cluster.places, 3).await;
        cluster.places.shelf.lacks(0);
        cluster.places.shelf.lacks(1);
        let volume = attach(&cluster.places, "a").await;
        let name = volume.snapshot().await.expect("one offers it");
        kept(cluster, &volume, name, Set(0b100));
        cluster.places.shelf.refuses(2, 99);
        match volume.snapshot().await {
            Err(Error::NotTaken { reasons }) => assert!(reasons.contains("full"), "{reasons}"),
            other => panic!("{other:?}"),
        }
        drop(volume);
        cluster.places.shelf.lacks(2);
        let volume = attach(&cluster.places, "b").await;
        assert!(matches!(volume.snapshot().await, Err(Error::NoCopies)));
        assert_eq!(volume.snapshots().len(), 1, "it is there still");
    });
}

#[test]
fn a_record_has_room_for_so_many() {
    run(48, 1, 0, async |_, cluster| {
        format(&cluster.places, 1).await;
        let volume = attach(&cluster.places, "a").await;
        let max = volume::snapshots_max(BLOCK as u32);
        for _ in 0..max {
            volume.snapshot().await.expect("there is room");
        }
        assert!(matches!(volume.snapshot().await, Err(Error::TooManySnapshots { max: 162 })));
        volume.delete_snapshot(volume.snapshots()[0].name).await.expect("it is attached");
        volume.snapshot().await.expect("there is room");
        drop(volume);
        assert_eq!(attach(&cluster.places, "b").await.snapshots().len(), max);
    });
}

/// A host dies when replicas have taken a snapshot, before a record names it: the next one deletes it. What others have there
/// stays.
#[test]
fn what_a_host_that_died_has_left_is_deleted() {
    run(49, 3, 0, async |world, cluster| {
        let shape = format(&cluster.places, 3).await;
        let (node, attached) = crate::basics::host(world, cluster, "a");
        let volume = attached.await;
        let foreign = SnapshotName::default().tag(99).expect("it fits");
        let taken = cluster.places.reach(0, "x").take(Takes::Holder).await.expect("it is up");
        taken.copies.expect("it offers them").snapshot(foreign).await.expect("it is up");
        // It is taken back.
        time::sleep(Duration::from_secs(1)).await;
        whole(&volume).await;
        (0..3).for_each(|node| cluster.places.shelf.is_slow(node, Duration::from_millis(100 * node as u64)));
        let taker = volume.clone();
        let _snapshot = world.spawn_on(node, async move { taker.snapshot().await });
        time::sleep(Duration::from_millis(150)).await;
        drop(volume);
        world.crash(node);
        time::sleep(Duration::from_millis(200)).await;
        let names = |node: usize| cluster.places.shelf.names(node, shape.volume).len();
        assert_eq!([names(0), names(1), names(2)], [1, 1, 1], "they have it, and nobody was told");
        (0..3).for_each(|node| cluster.places.shelf.is_slow(node, Duration::ZERO));
        let second = attach(&cluster.places, "b").await;
        assert!(second.snapshots().is_empty());
        for node in 0..3 {
            has(cluster, &second, node, 0).await;
        }
        assert_eq!(cluster.places.shelf.of(0).len(), 1, "it is of another volume");
    });
}

/// It was there for the host alone, and the next one could not know of it.
#[test]
fn a_snapshot_is_there_when_a_majority_says_so() {
    run(50, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let volume = Rc::new(attach(&cluster.places, "a").await);
        (1..3).for_each(|node| cluster.places.shelf.is_slow(node, Duration::from_millis(500)));
        let taker = volume.clone();
        let snapshot = task::spawn(async move { taker.snapshot().await });
        time::sleep(Duration::from_millis(200)).await;
        (1..3).for_each(|node| world.crash(cluster.nodes[node]));
        time::sleep(Duration::from_secs(5)).await;
        assert!(!snapshot.is_finished() && volume.snapshots().is_empty(), "one of three has it");
        // One of three has the record that names it, and may be followed: to delete it waits.
        let (proposed, deleter) = (volume.record().0.snapshots[0].name, volume.clone());
        let deleted =
            task::spawn(async move { deleter.delete_snapshot(proposed).await.map_err(|error| error.to_string()) });
        time::sleep(Duration::from_secs(1)).await;
        assert!(!deleted.is_finished() && cluster.places.shelf.names(0, volume.shape().volume) == [proposed]);
        drop(deleted);
        cluster.restart(world, 1);
        let name = snapshot.await.expect("two of three say so");
        kept(cluster, &volume, name, Set(0b001));
    });
}

/// What another snapshot's end has the host look for is not the one that is being taken.
#[test]
fn a_snapshot_that_is_being_taken_is_no_garbage() {
    run(53, 3, 0, async |_, cluster| {
        format(&cluster.places, 3).await;
        let volume = Rc::new(attach(&cluster.places, "a").await);
        let old = volume.snapshot().await.expect("all is well");
        cluster.places.shelf.is_slow(2, Duration::from_millis(600));
        let taker = volume.clone();
        let snapshot = task::spawn(async move { taker.snapshot().await });
        time::sleep(Duration::from_millis(100)).await;
        volume.delete_snapshot(old).await.expect("it is attached");
        has(cluster, &volume, 0, 1).await;
        let name = snapshot.await.expect("all is well");
        kept(cluster, &volume, name, Set::first(3));
    });
}

#[test]
fn who_is_being_filled_is_not_asked() {
    run(54, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let slowly = Options { resync_bytes_per_second: Some(60_000), ..options() };
        let volume = volume::attach(cluster.places.reaches("a"), slowly).await.expect("all nodes are up");
        world.crash(cluster.nodes[2]);
        for lba in 0..BLOCKS {
            put(&volume, lba, 1).await.expect("the others go on");
        }
        cluster.restart(world, 2);
        let joins = || volume.figures().replica(2).operations().1 > BLOCKS / 8;
        for _ in 0..1000 {
            if joins() {
                break;
            }
            time::sleep(Duration::from_millis(10)).await;
        }
        assert!(joins() && !volume.is_whole(), "it is half filled");
        let name = volume.snapshot().await.expect("two are in sync");
        kept(cluster, &volume, name, Set::first(2));
        has(cluster, &volume, 2, 0).await;
    });
}

/// A write got to one of two copies when its host died: a snapshot that is taken before they are equal is not the same at all.
#[test]
fn regions_are_settled_before_a_snapshot() {
    run(55, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let (node, attached) = crate::basics::host(world, cluster, "a");
        let volume = attached.await;
        for lba in 0..BLOCKS {
            put(&volume, lba, 1).await.expect("all is well");
        }
        world.partition(node, cluster.nodes[1]);
        let writer = volume.clone();
        let _write = world.spawn_on(node, async move { put(&writer, 127, 2).await });
        time::sleep(Duration::from_millis(50)).await;
        drop(volume);
        world.crash(node);
        let slowly = Options { settle_bytes_per_second: Some(100_000), ..options() };
        let second = volume::attach(cluster.places.reaches("b"), slowly).await.expect("all nodes are up");
        let name = second.snapshot().await.expect("it is settled soon");
        kept(cluster, &second, name, Set::first(3));
    });
}

/// It kept all others from being deleted, and nothing tried again.
#[test]
fn a_copy_that_can_not_be_deleted_does_not_keep_the_others() {
    run(56, 1, 0, async |_, cluster| {
        let shape = format(&cluster.places, 1).await;
        let volume = attach(&cluster.places, "a").await;
        let first = volume.snapshot().await.expect("all is well");
        let second = volume.snapshot().await.expect("all is well");
        cluster.places.shelf.keeps(0, first.tag(shape.volume));
        volume.delete_snapshot(first).await.expect("it is attached");
        volume.delete_snapshot(second).await.expect("it is attached");
        has(cluster, &volume, 0, 1).await;
        assert_eq!(cluster.places.shelf.names(0, shape.volume), [first]);
        cluster.places.shelf.keeps(0, None);
        time::sleep(Duration::from_secs(60)).await;
        has(cluster, &volume, 0, 0).await;
    });
}

/// What the target took when its asker was gone stayed until the next snapshot.
#[test]
fn what_a_caller_that_is_gone_has_asked_for_is_deleted() {
    run(57, 1, 0, async |_, cluster| {
        format(&cluster.places, 1).await;
        let volume = attach(&cluster.places, "a").await;
        cluster.places.shelf.is_slow(0, Duration::from_millis(800));
        let given_up = time::timeout(Duration::from_millis(100), volume.snapshot()).await;
        assert!(given_up.is_err());
        put(&volume, 5, 1).await.expect("nothing is held any more");
        time::sleep(Duration::from_secs(2)).await;
        assert_eq!(
            (cluster.places.shelf.count(0), volume.snapshots().len()),
            (1, 0),
            "it was taken, and nobody was told"
        );
        has(cluster, &volume, 0, 0).await;
    });
}

/// Each renewal of the lease began the wait anew.
#[test]
fn a_snapshot_waits_for_a_majority_and_not_for_ever() {
    run(58, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let volume = Rc::new(attach(&cluster.places, "a").await);
        let name = volume.snapshot().await.expect("all is well");
        (1..3).for_each(|node| world.crash(cluster.nodes[node]));
        time::sleep(Duration::from_secs(2)).await;
        let begin = time::now();
        assert!(matches!(volume.snapshot().await, Err(Error::Device { .. })));
        let deleted = volume.delete_snapshot(name).await;
        assert!(matches!(&deleted, Err(Error::Device { source, .. }) if source.outcome_unknown()), "{deleted:?}");
        assert!(begin.elapsed() < 3 * options().wait_max, "{:?}", begin.elapsed());
        (1..3).for_each(|node| cluster.restart(world, node));
        whole(&volume).await;
        volume.snapshot().await.expect("all is well");
    });
}
