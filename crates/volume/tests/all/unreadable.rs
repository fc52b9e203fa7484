//! Blocks that one replica, or none, can read.

use std::time::Duration;

use device::Error;
use engine::time;
use volume::Volume;

use crate::basics::{equal, get, put};
use crate::cluster::{options, run, whole};
use crate::faulty::{alone, attached, reaches, unreadable, until, within};

#[test]
fn what_one_replica_alone_has_is_not_settled() {
    run(37, 1, 0, async |_, cluster| {
        let (volume, told) = attached(cluster, 1, options()).await;
        put(&volume, 5, 1).await.expect("all is well");
        assert!(volume.regions_marked() > 0);
        drop(volume);
        told[0].reads.replace(vec![(6, unreadable())]);
        let volume = volume::attach(reaches(cluster, "b", &told), options()).await.expect("it is up");
        assert_eq!(within(5, get(&volume, 5)).await, Some(Ok(1)), "nobody has anything else");
        assert!(matches!(within(5, get(&volume, 6)).await, Some(Err(Error::ReadFault(_)))));
    });
}

#[test]
fn of_a_region_each_block_is_settled_from_who_can_read_it() {
    run(38, 3, 0, async |world, cluster| {
        let (volume, told) = attached(cluster, 3, options()).await;
        put(&volume, 5, 1).await.expect("all is well");
        drop(volume);
        for (slot, told) in told.iter().enumerate() {
            told.reads.replace(vec![(4 + slot as u64, unreadable())]);
        }
        let volume = volume::attach(reaches(cluster, "b", &told), options()).await.expect("all nodes are up");
        assert_eq!(within(5, get(&volume, 5)).await, Some(Ok(1)));
        assert!(until(5, || volume.is_whole()).await);
        assert!(told.iter().all(|told| told.reads.borrow().is_empty()), "they were written anew");
        equal(world, cluster, 3);
    });
}

/// The region was settled never, and none of its blocks could be read or written.
#[test]
fn a_block_that_nobody_can_read_does_not_keep_its_region_from_being_settled() {
    for can_spoil in [true, false] {
        run(59, 3, 0, async |world, cluster| {
            let (volume, told) = attached(cluster, 3, options()).await;
            put(&volume, 5, 1).await.expect("all is well");
            drop(volume);
            told.iter().for_each(|told| {
                told.reads.replace(vec![(6, unreadable())]);
                told.can_not_spoil.set(!can_spoil);
            });
            let volume = volume::attach(reaches(cluster, "b", &told), options()).await.expect("all nodes are up");
            assert_eq!(within(5, get(&volume, 5)).await, Some(Ok(1)));
            assert!(matches!(within(5, get(&volume, 6)).await, Some(Err(Error::ReadFault(_)))));
            told.iter().for_each(|told| drop(told.reads.take()));
            let is_lost = matches!(get(&volume, 6).await, Err(Error::ReadFault(_)));
            assert_eq!(is_lost, can_spoil, "it is as nobody could read it, where targets can do that");
            assert_eq!(within(5, put(&volume, 6, 7)).await, Some(Ok(())));
            assert_eq!(get(&volume, 6).await, Ok(7));
            equal(world, cluster, 3);
        });
    }
}

/// A target that says so may be starting.
#[test]
fn what_can_not_be_read_for_now_is_not_given_up() {
    run(60, 3, 0, async |world, cluster| {
        let (volume, told) = attached(cluster, 3, options()).await;
        put(&volume, 5, 1).await.expect("all is well");
        drop(volume);
        let not_ready = || Error::Status("Namespace Not Ready".into());
        let faults = [not_ready(), unreadable(), unreadable()];
        told.iter().zip(faults).for_each(|(told, fault)| drop(told.reads.replace(vec![(5, fault)])));
        let volume = volume::attach(reaches(cluster, "b", &told), options()).await.expect("all nodes are up");
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(volume.figures().regions_stuck(), 1);
        told[0].reads.take();
        assert_eq!(within(5, get(&volume, 5)).await, Some(Ok(1)));
        assert_eq!(volume.figures().regions_stuck(), 0);
        equal(world, cluster, 3);
    });
}

#[test]
fn a_block_that_nobody_can_read_does_not_keep_others_from_being_copied() {
    run(39, 2, 0, async |world, cluster| {
        let (volume, told) = alone(world, cluster).await;
        told[0].reads.replace(vec![(6, unreadable())]);
        cluster.restart(world, 1);
        whole(&volume).await;
        assert_eq!(get(&volume, 5).await, Ok(2));
        for _ in 0..200 {
            assert!(matches!(get(&volume, 6).await, Err(Error::ReadFault(_))), "never what was not written there");
        }
        put(&volume, 6, 7).await.expect("all is well");
        assert_eq!(get(&volume, 6).await, Ok(7));
        equal(world, cluster, 2);
    });
}

#[test]
fn what_keeps_a_replica_from_being_filled_is_told() {
    run(49, 2, 0, async |world, cluster| {
        let (volume, told) = alone(world, cluster).await;
        told[0].reads.replace(vec![(6, unreadable())]);
        told[1].can_not_spoil.set(true);
        cluster.restart(world, 1);
        assert!(until(30, || volume.figures().regions_stuck() == 1).await);
        assert!(until(30, || volume.reason(1).contains("can be read")).await, "{}", volume.reason(1));
        put(&volume, 6, 7).await.expect("all is well");
        whole(&volume).await;
        assert_eq!(volume.figures().regions_stuck(), 0);
        equal(world, cluster, 2);
    });
}

#[test]
fn a_replica_that_was_lost_meanwhile_is_not_called_unreadable() {
    run(41, 3, 0, async |_, cluster| {
        let (volume, told) = attached(cluster, 3, options()).await;
        told[1].reads.replace(vec![(40, Error::Aborted)]);
        let report = Volume::verify(&volume, None).await.expect("it is attached");
        assert_eq!(report.unreadable, []);
        let [first, second, third] = report.compared;
        assert!(first == third && second < first && report.regions == first, "{:?}", report.compared);
        told[1].reads.replace(vec![(40, unreadable())]);
        time::sleep(Duration::from_secs(2)).await;
        let report = Volume::verify(&volume, None).await.expect("it is attached");
        assert_eq!(report.unreadable, [(1, 10)]);
    });
}
