//! Volumes that grow while they are used.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Lba, Namespace};
use engine::Buf;
use engine::sim::{SimConfig, World};
use engine::{task, time};
use volume::{Error, Label, Options, Set, Takes, Volume};

use crate::basics::{get, put};
use crate::cluster::{
    BLOCK, BLOCKS, Cluster, DISK, DISK_BYTES, attach, format, format_options, options, run, run_in, whole,
};

const GROWN: u64 = 300;

fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK as u64
}

/// Where the data begins on each node.
fn data_first(world: &World, cluster: &Cluster) -> u64 {
    volume::Label::decode(&world.peek(cluster.nodes[0], DISK, 0, BLOCK)).expect("a holder has a label").data_first
}

async fn all_zero(volume: &Volume, blocks: std::ops::Range<u64>) {
    for lba in blocks {
        assert_eq!(get(volume, lba).await, Ok(0), "block {lba}");
    }
}

fn equal(world: &World, cluster: &Cluster, replicas: usize) {
    for slot in 1..replicas {
        let same = cluster.data_of(world, 0, GROWN) == cluster.data_of(world, slot, GROWN);
        assert!(same, "replicas 0 and {slot} differ");
    }
}

#[test]
fn what_a_volume_grows_by_reads_as_zeroes() {
    for replicas in 1..=3 {
        run(31, replicas, 0, async |world, cluster| {
            format(&cluster.places, replicas).await;
            let volume = attach(&cluster.places, "a").await;
            put(&volume, 127, 7).await.expect("all is well");
            // What somebody has left behind the volume, other bytes on each.
            let behind = bytes(data_first(world, cluster) + BLOCKS);
            (0..usize::from(replicas)).for_each(|node| world.corrupt(cluster.nodes[node], DISK, behind, bytes(100)));
            assert!(matches!(put(&volume, 128, 1).await, Err(device::Error::OutOfRange { .. })));
            volume.grow(bytes(GROWN)).await.expect("there is room");
            assert_eq!((volume.info().blocks, volume.shape().blocks), (GROWN, BLOCKS));
            all_zero(&volume, BLOCKS..GROWN).await;
            put(&volume, 299, 9).await.expect("it is of the volume");
            assert_eq!(get(&volume, 127).await, Ok(7));
            volume.grow(bytes(GROWN)).await.expect("it is as large already");
            volume.detach().await.expect("it is attached");
            equal(world, cluster, replicas.into());
            let second = attach(&cluster.places, "b").await;
            assert_eq!((second.info().blocks, second.regions_marked()), (GROWN, 0));
            assert_eq!((get(&second, 299).await, get(&second, 127).await), (Ok(9), Ok(7)));
            assert!(second.verify(None).await.is_ok_and(|report| report.is_clean()));
            let inspected = volume::inspect(&*cluster.places.reach(0, "x"), true).await.expect("it is up");
            assert_eq!(inspected.bytes(), bytes(GROWN));
        });
    }
}

#[test]
fn who_has_not_the_room_is_named() {
    let world = World::new(32, SimConfig::default());
    let small = 7 << 20;
    let cluster = Cluster::start_sized(&world, 3, 0, |index| if index == 1 { small } else { DISK_BYTES });
    run_in(&world, async {
        format(&cluster.places, 3).await;
        let volume = attach(&cluster.places, "a").await;
        for wrong in [bytes(GROWN) + 1, bytes(1)] {
            assert!(matches!(volume.grow(wrong).await, Err(Error::Impossible(_))));
        }
        assert!(matches!(volume.grow(1 << 40).await, Err(Error::LogTooSmall { bytes_max }) if bytes_max >= 64 << 30));
        let more = bytes(600);
        match volume.grow(more).await {
            Err(Error::TooSmall { holder, blocks, needed }) => {
                assert!(holder.contains("node1"), "{holder}");
                assert_eq!((blocks, needed), (small / BLOCK as u64, data_first(&world, &cluster) + 600));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!((volume.info().blocks, volume.in_sync()), (BLOCKS, Set::first(3)), "as it was");
        // Once that one has grown.
        cluster.grow(&world, 1, DISK_BYTES).await;
        volume.grow(more).await.expect("there is room");
        put(&volume, 599, 3).await.expect("it is of the volume");
        whole(&volume).await;
    });
}

#[test]
fn a_replica_that_was_away_comes_back_to_a_larger_volume() {
    for replicas in [2, 3] {
        run(33, replicas, 1, async |world, cluster| {
            let shape = format(&cluster.places, replicas).await;
            let volume = attach(&cluster.places, "a").await;
            world.crash(cluster.nodes[1]);
            put(&volume, 5, 1).await.expect("the others go on");
            volume.grow(bytes(GROWN)).await.expect("those that are needed have the room");
            put(&volume, 200, 2).await.expect("the others go on");
            time::sleep(Duration::from_secs(1)).await;
            cluster.restart(world, 1);
            whole(&volume).await;
            equal(world, cluster, replicas.into());
            // So does one that was formatted since.
            world.crash(cluster.nodes[0]);
            put(&volume, 201, 3).await.expect("the others go on");
            let spare = cluster.places.reach(3, "a");
            volume::format_replacement(spare.clone(), shape, 0, false).await.expect("it is blank");
            cluster.places.replace(0, 3);
            volume.set_reach(0, spare);
            whole(&volume).await;
            equal(world, cluster, replicas.into());
        });
    }
}

#[test]
fn a_replica_without_room_for_a_volume_that_has_grown_does_not_join() {
    let world = World::new(34, SimConfig::default());
    let cluster = Cluster::start_sized(&world, 3, 0, |index| if index == 2 { 7 << 20 } else { DISK_BYTES });
    run_in(&world, async {
        format(&cluster.places, 3).await;
        let volume = attach(&cluster.places, "a").await;
        world.crash(cluster.nodes[2]);
        put(&volume, 5, 1).await.expect("the others go on");
        volume.grow(bytes(600)).await.expect("those that are needed have the room");
        time::sleep(Duration::from_secs(10)).await;
        cluster.restart(&world, 2);
        time::sleep(Duration::from_secs(10)).await;
        assert_eq!(volume.in_sync(), Set::first(2));
        assert!(volume.reason(2).contains("are needed"), "{}", volume.reason(2));
        cluster.grow(&world, 2, DISK_BYTES).await;
        whole(&volume).await;
        assert_eq!(volume.in_sync(), Set::first(3));
    });
}

/// The host dies while it grows: the next one begins anew, or finds it done.
#[test]
fn a_volume_is_grown_by_the_next_host() {
    for micros in [300, 700, 1_100, 1_600, 2_300] {
        run(35, 3, 0, async |world, cluster| {
            format(&cluster.places, 3).await;
            let (node, attached) = crate::basics::host(world, cluster, "a");
            let volume = attached.await;
            let grower = volume.clone();
            let grown = world.spawn_on(node, async move { grower.grow(bytes(GROWN)).await.is_ok() });
            time::sleep(Duration::from_micros(micros)).await;
            drop(volume);
            world.crash(node);
            let was_told = grown.outcome().await == Some(true);
            let second = attach(&cluster.places, "b").await;
            assert!(second.info().blocks == GROWN || second.info().blocks == BLOCKS && !was_told, "after {micros} µs");
            second.grow(bytes(GROWN)).await.expect("there is room");
            all_zero(&second, BLOCKS..GROWN).await;
            whole(&second).await;
            equal(world, cluster, 3);
        });
    }
}

/// The others zeroed what clients had written by then, and the first one's end took the new regions away from them.
#[test]
fn a_volume_grows_once_at_a_time() {
    run(36, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let volume = Rc::new(attach(&cluster.places, "a").await);
        let is_written = Rc::new(Cell::new(false));
        let grown = [(); 3].map(|()| {
            let (grower, is_written) = (volume.clone(), is_written.clone());
            task::spawn(async move {
                grower.grow(bytes(GROWN)).await.expect("there is room");
                if !is_written.replace(true) {
                    for lba in BLOCKS..GROWN {
                        put(&grower, lba, 7).await.expect("it is served");
                    }
                }
            })
        });
        for one in grown {
            one.await;
        }
        assert_eq!(volume.info().blocks, GROWN);
        for lba in BLOCKS..GROWN {
            assert_eq!(get(&volume, lba).await, Ok(7), "block {lba}");
        }
        whole(&volume).await;
        equal(world, cluster, 3);
    });
}

/// A caller that is gone had left a proposal behind it: the next one zeroed what that made part of the volume.
#[test]
fn growing_that_nobody_waits_for_is_gone_on_with() {
    for micros in (100..4_000).step_by(150) {
        run(37, 3, 0, async |_, cluster| {
            format(&cluster.places, 3).await;
            let volume = Rc::new(attach(&cluster.places, "a").await);
            let given_up = time::timeout(Duration::from_micros(micros), volume.grow(bytes(GROWN))).await;
            let grower = volume.clone();
            let again = task::spawn(async move { grower.grow(bytes(GROWN)).await.map_err(|error| error.to_string()) });
            // Whatever is served keeps what is written there.
            while put(&volume, BLOCKS, 7).await.is_err() {
                time::sleep(Duration::from_micros(50)).await;
            }
            assert_eq!(again.await, Ok(()), "after {micros} µs: {given_up:?}");
            assert_eq!((volume.info().blocks, get(&volume, BLOCKS).await), (GROWN, Ok(7)), "after {micros} µs");
        });
    }
}

/// A region's end moved while it was copied, behind what was locked.
#[test]
fn a_volume_grows_in_the_middle_of_a_region_that_is_copied() {
    // Growing begins at each moment of a round of writes, in four runs.
    for seed in 0..64 {
        run(38 + seed, 3, 0, async |world, cluster| {
            format(&cluster.places, 3).await;
            let slowly = Options { resync_bytes_per_second: Some(200_000), ..options() };
            let attached = volume::attach(cluster.places.reaches("a"), slowly).await.expect("all nodes are up");
            let volume = Rc::new(attached);
            volume.grow(bytes(BLOCKS + 1)).await.expect("there is room");
            world.crash(cluster.nodes[1]);
            for lba in [0, 4, 8, BLOCKS] {
                put(&volume, lba, 1).await.expect("the others go on");
            }
            time::sleep(Duration::from_secs(1)).await;
            cluster.restart(world, 1);
            while volume.figures().jobs().list().is_empty() {
                time::sleep(Duration::from_millis(1)).await;
            }
            let (mut count, mut blocks) = (0u8, BLOCKS + 1);
            while !volume.is_whole() {
                if blocks < BLOCKS + 4 && count % 16 == seed as u8 % 16 {
                    blocks += 1;
                    volume.grow(bytes(blocks)).await.expect("there is room");
                }
                count = count.wrapping_add(1);
                put(&volume, blocks - 1, count).await.expect("the others go on");
                time::sleep_within(Duration::from_millis(10)).await;
            }
            assert_eq!(get(&volume, blocks - 1).await, Ok(count));
            equal_of(world, cluster, blocks);
        });
    }
}

fn equal_of(world: &World, cluster: &Cluster, blocks: u64) {
    for slot in 1..3 {
        let same = cluster.data_of(world, 0, blocks) == cluster.data_of(world, slot, blocks);
        assert!(same, "replicas 0 and {slot} differ");
    }
}

/// Clones keep the log that their volume was made with: what is made beside them may have a larger one.
#[test]
fn a_replica_whose_log_is_too_small_does_not_join() {
    const LARGE: u64 = 5_000;
    let world = World::new(39, SimConfig::default());
    let cluster = Cluster::start_sized(&world, 3, 0, |_| 64 << 20);
    run_in(&world, async {
        // The nodes are there by then.
        time::sleep(Duration::from_millis(100)).await;
        let small_regions = volume::FormatOptions { region_bytes: Some(BLOCK as u64), ..format_options(3) };
        volume::format(cluster.places.reaches("operator"), small_regions).await.expect("they are blank");
        let namespace = cluster.places.reach(2, "operator").take(Takes::Holder).await.expect("it is up").namespace;
        let label = Label::decode(&world.peek(cluster.nodes[2], DISK, 0, BLOCK)).expect("a holder has a label");
        let mut block = Buf::with_len(BLOCK);
        Label { log_blocks: 1, ..label }.encode(&mut block);
        namespace.write(Lba(0), block.freeze(), Durability::Stable).await.expect("it is taken");
        let volume = attach(&cluster.places, "a").await;
        assert!(matches!(volume.grow(bytes(LARGE)).await, Err(Error::LogTooSmall { .. })));
        world.crash(cluster.nodes[2]);
        put(&volume, 5, 1).await.expect("the others go on");
        volume.grow(bytes(LARGE)).await.expect("those that are needed have the room");
        time::sleep(Duration::from_secs(1)).await;
        cluster.restart(&world, 2);
        time::sleep(Duration::from_secs(10)).await;
        assert_eq!(volume.in_sync(), Set::first(2));
        assert!(volume.reason(2).contains("logs have no room"), "{}", volume.reason(2));
        volume.detach().await.expect("it is attached");
        let second = attach(&cluster.places, "b").await;
        put(&second, LARGE - 1, 3).await.expect("the others go on");
        time::sleep(Duration::from_secs(5)).await;
        assert_eq!((second.in_sync(), get(&second, LARGE - 1).await), (Set::first(2), Ok(3)));
        assert!(second.reason(2).contains("logs have no room"), "{}", second.reason(2));
    });
}

/// Where the copy's record can't be read the volume was cut off where it had been made to end.
#[test]
fn a_copy_without_a_record_is_gone_on_with_as_large_as_others_say() {
    for (other_is_up, said) in [(true, None), (false, Some(bytes(GROWN)))] {
        run(40, 3, 2, async |world, cluster| {
            format(&cluster.places, 3).await;
            let volume = attach(&cluster.places, "a").await;
            volume.grow(bytes(GROWN)).await.expect("there is room");
            put(&volume, 299, 9).await.expect("it is of the volume");
            drop(volume);
            let lost = if other_is_up { 2..3 } else { 1..3 };
            lost.clone().for_each(|node| world.crash(cluster.nodes[node]));
            let namespace = cluster.places.reach(0, "operator").take(Takes::Holder).await.expect("it is up").namespace;
            let damage = Buf::copy_from(&[3; BLOCK]).freeze();
            namespace.write(Lba(1), damage, Durability::Stable).await.expect("it is taken");
            drop(namespace);
            cluster.places.replace(2, 4);
            if !other_is_up {
                cluster.places.replace(1, 3);
            }
            let recover = |bytes| volume::recover(cluster.places.reaches("operator"), 0, bytes, true);
            if said.is_some() {
                assert!(matches!(recover(None).await, Err(Error::Impossible(_))), "nobody knows how large it was");
            }
            assert!(matches!(recover(Some(bytes(1 << 30))).await, Err(Error::Impossible(_))));
            recover(said).await.expect("it is forced");
            let second = attach(&cluster.places, "b").await;
            assert_eq!((second.info().blocks, get(&second, 299).await), (GROWN, Ok(9)));
        });
    }
}

/// It was taken in for the other one, whose snapshots were forgotten with that.
#[test]
fn a_replacement_without_room_for_a_volume_that_has_grown_is_not_taken_in() {
    let world = World::new(41, SimConfig::default());
    let cluster = Cluster::start_sized(&world, 3, 1, |index| if index == 3 { 7 << 20 } else { DISK_BYTES });
    run_in(&world, async {
        let shape = format(&cluster.places, 3).await;
        let volume = attach(&cluster.places, "a").await;
        volume.grow(bytes(600)).await.expect("there is room");
        let name = volume.snapshot().await.expect("all is well");
        let lives = volume.lives();
        world.crash(cluster.nodes[2]);
        put(&volume, 5, 1).await.expect("the others go on");
        let spare = cluster.places.reach(3, "a");
        volume::format_replacement(spare.clone(), shape, 2, false).await.expect("it is blank");
        volume.set_reach(2, spare);
        time::sleep(Duration::from_secs(5)).await;
        assert_eq!((volume.lives(), volume.record().0.snapshot(name)), (lives, Set::first(3)));
        assert!(volume.reason(2).contains("are needed"), "{}", volume.reason(2));
        cluster.places.replace(2, 3);
        cluster.grow(&world, 3, DISK_BYTES).await;
        whole(&volume).await;
        assert_eq!(volume.record().0.snapshot(name), Set::first(2));
    });
}
