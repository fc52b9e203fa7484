//! Snapshots as streams, and streams into volumes: over drives, whose targets tell where snapshots differ, and over what tells
//! nothing.

use std::time::Duration;

use device::{Durability, Lba, Namespace};
use engine::job::Job;
use engine::sim::{SimConfig, World};
use volume::{BackupError, Kind, Origin, Set, SnapshotId, StreamError, Volume, holder_bytes};

use crate::basics::{block, get, put};
use crate::cluster::{BLOCK, BLOCKS, attach as attach_cluster, format, run, run_in};
use crate::drives::{BYTES, operator};
use crate::streams::{
    Given, Held, Place, all, changed, drives, exported, forced, import, is_in_part, is_whole, on_drives, snapshot,
    streams, two,
};

#[test]
fn a_snapshot_and_its_changes_arrive_in_another_volume() {
    on_drives(81, async |addresses| {
        let (source, place) = two(&addresses).await;
        let first = snapshot(&source).await;
        put(&source, 5, 77).await.expect("all is well");
        put(&source, 40, 78).await.expect("all is well");
        source.deallocate(Lba(100), 1).await.expect("all is well");
        let second = snapshot(&source).await;
        put(&source, 0, 79).await.expect("all is well");
        let third = snapshot(&source).await;

        let (everything, said) = exported(&first, None).await;
        assert!(!said.is_compared && said.counts.bytes == 5 * BLOCK as u64, "zeroes are left out: {said:?}");
        let (change, said) = exported(&second, Some(&first)).await;
        assert!(!said.is_compared && said.counts.bytes < 40 * BLOCK as u64, "the targets tell: {said:?}");
        assert!(said.counts.zero_bytes >= BLOCK as u64, "what was given back is zeroes: {said:?}");
        let (next, _) = exported(&third, Some(&second)).await;

        let copy = place.attach().await;
        let refused = import(&copy, &change).await;
        assert!(matches!(refused, Err(BackupError::NotAtBase { .. })), "nothing is there yet: {refused:?}");
        assert_eq!(copy.origin(), None);
        let imported = import(&copy, &everything).await.expect("it is blank");
        assert_eq!(imported.own, copy.origin().and_then(|origin| origin.own()));
        is_whole(&copy, &first).await;
        let refused = import(&copy, &next).await;
        assert!(matches!(&refused, Err(BackupError::NotAtBase { needs, .. }) if *needs == second.id()), "{refused:?}");
        is_whole(&copy, &first).await;
        // Another host goes on.
        copy.detach().await.expect("it is attached");
        let copy = place.attach().await;
        import(&copy, &change).await.expect("it is at the base");
        is_whole(&copy, &second).await;
        // Who did not hear that it is done asks again.
        let again = import(&copy, &change).await.expect("it is there");
        assert_eq!(again.counts, None);
        is_whole(&copy, &second).await;
        import(&copy, &next).await.expect("it is at the base");
        is_whole(&copy, &third).await;
        let refused = import(&copy, &everything).await;
        assert!(matches!(refused, Err(BackupError::NotBlank { .. })), "{refused:?}");
        forced(&copy, &everything).await.expect("all is given up");
        is_whole(&copy, &first).await;
        assert!(copy.verify(None).await.is_ok_and(|report| report.is_clean()));
    });
}

/// A difference makes of anything but its base what never was.
#[test]
fn a_volume_that_was_written_since_takes_no_difference() {
    on_drives(82, async |addresses| {
        let (source, place) = two(&addresses).await;
        let ([_, second], (everything, change)) = changed(&source, 77).await;
        let copy = place.attach().await;
        import(&copy, &everything).await.expect("it is blank");
        // Written, and as it was: nobody can tell, and nothing is lost.
        put(&copy, 40, 9).await.expect("all is well");
        let refused = import(&copy, &change).await;
        let at = 40 * BLOCK as u64;
        assert!(matches!(refused, Err(BackupError::Written { at: found, .. }) if found == at), "{refused:?}");
        assert!(!is_in_part(&copy), "nothing was begun");
        assert_eq!((get(&copy, 40).await, get(&copy, 5).await), (Ok(9), Ok(6)));
        copy.detach().await.expect("it is attached");
        let copy = place.attach().await;
        assert!(matches!(import(&copy, &change).await, Err(BackupError::Written { .. })), "by another host as well");
        put(&copy, 40, 0).await.expect("all is well");
        import(&copy, &change).await.expect("it has the bytes of the base");
        is_whole(&copy, &second).await;
        // Without the snapshot that it is compared with nobody can tell.
        let own = copy.origin().and_then(|origin| origin.own()).expect("it was imported");
        copy.delete_snapshot(own).await.expect("it is attached");
        let third = snapshot(&source).await;
        let (next, _) = exported(&third, Some(&second)).await;
        assert!(matches!(import(&copy, &next).await, Err(BackupError::BaseGone { .. })));
    });
}

#[test]
fn an_import_that_broke_off_is_begun_again() {
    on_drives(83, async |addresses| {
        let (source, place) = two(&addresses).await;
        let first = snapshot(&source).await;
        for lba in [5, 7, 90, 91, 200] {
            put(&source, lba, 77).await.expect("all is well");
        }
        let second = snapshot(&source).await;
        let (everything, change) = streams(&first, &second).await;
        let copy = place.attach().await;
        for cut in [130, everything.len() / 2, everything.len() - 1] {
            let refused = import(&copy, &everything[..cut]).await;
            assert!(matches!(refused, Err(BackupError::Stream(StreamError::Cut(_)))), "{refused:?}");
            assert!(is_in_part(&copy), "what is there is no snapshot");
            assert!(matches!(import(&copy, &change).await, Err(BackupError::NotAtBase { .. })));
            // What is there, and in the way, goes.
            put(&copy, 33, 3).await.expect("all is well");
        }
        copy.detach().await.expect("it is attached");
        let copy = place.attach().await;
        import(&copy, &everything).await.expect("it is gone on with");
        is_whole(&copy, &first).await;
        for cut in [130, change.len() / 2, change.len() - 1] {
            assert!(matches!(import(&copy, &change[..cut]).await, Err(BackupError::Stream(StreamError::Cut(_)))));
            assert!(is_in_part(&copy), "what is there is no snapshot");
            // The stream does not say this block, and the base has another one there.
            put(&copy, 33, 3).await.expect("all is well");
            assert!(matches!(import(&copy, &everything).await, Err(BackupError::NotBlank { .. })));
        }
        copy.detach().await.expect("it is attached");
        let copy = place.attach().await;
        import(&copy, &change).await.expect("it is gone on with");
        is_whole(&copy, &second).await;
    });
}

#[test]
fn a_damaged_stream_is_never_taken_for_whole() {
    on_drives(84, async |addresses| {
        let (source, place) = two(&addresses).await;
        let ([_, second], (everything, change)) = changed(&source, 77).await;
        let copy = place.attach().await;
        let damaged = |bytes: &[u8], at: usize| {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= 0x10;
            bytes
        };
        for at in [0, 20, 50, 130, 140, 150, 2_000, everything.len() - 40, everything.len() - 1] {
            let refused = import(&copy, &damaged(&everything, at)).await;
            assert!(matches!(refused, Err(BackupError::Stream(_))), "byte {at}: {refused:?}");
            assert_eq!(is_in_part(&copy), at >= 128, "byte {at}");
        }
        import(&copy, &everything).await.expect("it is gone on with");
        for at in [130, 150, change.len() - 1] {
            assert!(matches!(import(&copy, &damaged(&change, at)).await, Err(BackupError::Stream(_))), "byte {at}");
            assert!(is_in_part(&copy), "byte {at}");
        }
        // Something behind the end: it may be a second stream, of which nobody would hear.
        let more = [&change[..], &[0]].concat();
        assert!(matches!(import(&copy, &more).await, Err(BackupError::Stream(StreamError::Follows(_)))));
        assert!(is_in_part(&copy));
        import(&copy, &change).await.expect("it is gone on with");
        is_whole(&copy, &second).await;
    });
}

#[test]
fn the_size_and_the_volume_have_to_fit() {
    on_drives(85, async |addresses| {
        let (source, place) = two(&addresses).await;
        let first = snapshot(&source).await;
        let (everything, _) = exported(&first, None).await;
        let small = Place::make(&addresses[3..], BYTES / 2).await.attach().await;
        let refused = import(&small, &everything).await;
        assert!(matches!(refused, Err(BackupError::TooSmall { needed: BYTES, .. })), "{refused:?}");
        assert_eq!(small.origin(), None);
        // Behind the end of a snapshot a larger volume has zeroes.
        let large = Place::make(&addresses[3..], 2 * BYTES).await.attach().await;
        put(&large, 300, 1).await.expect("all is well");
        let refused = import(&large, &everything).await;
        assert!(matches!(refused, Err(BackupError::NotBlank { .. })), "{refused:?}");
        forced(&large, &everything).await.expect("all is given up");
        let (mut expected, found) = (all(&first).await, all(&large).await);
        expected.resize(2 * BYTES as usize, 0);
        assert!(expected == found);
        // A snapshot of another volume of the same bytes is another one.
        let copy = place.attach().await;
        import(&copy, &everything).await.expect("it is blank");
        let of_copy = snapshot(&copy).await;
        put(&copy, 7, 7).await.expect("all is well");
        let later = snapshot(&copy).await;
        let (change, _) = exported(&later, Some(&of_copy)).await;
        let refused = import(&large, &change).await;
        assert!(matches!(refused, Err(BackupError::NotAtBase { .. })), "{refused:?}");
        for (to, from) in [(&of_copy, &later), (&of_copy, &of_copy), (&of_copy, &first)] {
            let refused = volume::export(to, Some(from), &Job::unlisted(None, None), &mut Held::default()).await;
            assert!(matches!(refused, Err(BackupError::NotOlder { .. })), "{refused:?}");
        }
    });
}

/// A source that has grown is imported when the copy has.
#[test]
fn what_has_grown_is_imported_into_what_has_grown() {
    on_drives(86, async |addresses| {
        let grow = async |place: &Place, volume: &Volume| {
            for (&address, &nsid) in place.addresses.iter().zip(&place.nsids) {
                let bytes = holder_bytes(Kind::Replica, 2 * BYTES, BLOCK as u32);
                operator(address).await.grow(nsid, bytes).await.expect("there is room");
            }
            volume.grow(2 * BYTES).await.expect("there is room");
        };
        let from = Place::make(&addresses[..3], BYTES).await;
        let (source, place) = (from.attach().await, Place::make(&addresses[3..], BYTES).await);
        put(&source, 3, 3).await.expect("all is well");
        let first = snapshot(&source).await;
        grow(&from, &source).await;
        put(&source, 400, 4).await.expect("all is well");
        let second = snapshot(&source).await;
        let (everything, change) = streams(&first, &second).await;
        let copy = place.attach().await;
        import(&copy, &everything).await.expect("it is blank");
        assert!(matches!(import(&copy, &change).await, Err(BackupError::TooSmall { .. })));
        grow(&place, &copy).await;
        import(&copy, &change).await.expect("it is at the base, and large enough");
        is_whole(&copy, &second).await;
    });
}

/// Targets that have snapshots and can't tell where they differ: both are read.
#[test]
fn where_nobody_can_tell_snapshots_are_compared() {
    run(87, 3, 0, async |_, cluster| {
        format(&cluster.places, 3).await;
        let volume = attach_cluster(&cluster.places, "a").await;
        put(&volume, 5, 1).await.expect("all is well");
        put(&volume, 9, 2).await.expect("all is well");
        let first = snapshot(&volume).await;
        put(&volume, 5, 3).await.expect("all is well");
        volume.write(Lba(9), block(0), Durability::Cached).await.expect("all is well");
        let second = snapshot(&volume).await;
        let found =
            volume::differences(&second, Some(&first), &Job::unlisted(None, None)).await.expect("both can be read");
        let at = |lba: u64| lba * BLOCK as u64..(lba + 1) * BLOCK as u64;
        assert!(found.is_compared);
        assert_eq!((found.bytes(), &found.ranges[..]), (2 * BLOCK as u64, &[at(5), at(9)][..]));
        let (change, said) = exported(&second, Some(&first)).await;
        assert!(said.is_compared);
        assert_eq!((said.counts.bytes, said.counts.zero_bytes), (BLOCK as u64, BLOCK as u64));
        let (everything, said) = exported(&first, None).await;
        assert_eq!((said.is_compared, said.counts.bytes), (false, 2 * BLOCK as u64));
        // Put back in place: by force, since there is something.
        assert!(matches!(import(&volume, &everything).await, Err(BackupError::NotBlank { .. })));
        forced(&volume, &everything).await.expect("all is given up");
        assert!(all(&volume).await == all(&first).await);
        import(&volume, &change).await.expect("it is at the base");
        assert!(all(&volume).await == all(&second).await);
        assert_eq!(volume.info().blocks, BLOCKS);
    });
}

/// Seconds that something takes.
async fn seconds<T>(work: impl Future<Output = Result<T, BackupError>>) -> f64 {
    let began = engine::time::now();
    work.await.map(drop).expect("all is well");
    (engine::time::now() - began).as_secs_f64()
}

/// Reading, comparing and putting back are bytes that are moved, like those of the stream: the rate holds for all of them.
#[test]
fn a_rate_holds_for_whatever_is_moved() {
    run(95, 1, 0, async |_, cluster| {
        format(&cluster.places, 1).await;
        let volume = attach_cluster(&cluster.places, "a").await;
        put(&volume, 5, 1).await.expect("all is well");
        let ([first, second], (everything, change)) = changed(&volume, 2).await;
        // A second for each time that all is moved; what is moved first has its turn at once.
        let bytes_per_second = Some(volume.info().bytes());
        let export = async |from| {
            let job = Job::unlisted(bytes_per_second, None);
            seconds(volume::export(&second, from, &job, &mut Held::default())).await
        };
        let imported = async |bytes: &[u8], force| {
            let job = Job::unlisted(bytes_per_second, None);
            seconds(volume::import(&volume, &mut Given(bytes), force, &job)).await
        };
        let is_about = |seconds: f64, expected: f64| assert!((seconds - expected).abs() < 0.3, "{seconds} s");
        is_about(export(None).await, 0.0);
        // Two snapshots are read.
        is_about(export(Some(&first)).await, 1.0);
        is_about(imported(&everything, true).await, 0.0);
        // The volume and the base are read, then the change is written.
        is_about(imported(&change, false).await, 2.0);
        // That the volume has all of it already is seen by reading both.
        is_about(imported(&change, false).await, 0.0);
        forced(&volume, &everything).await.expect("all is given up");
        assert!(import(&volume, &change[..change.len() - 1]).await.is_err(), "it is cut off");
        // The base is read and written to the volume, then the change.
        is_about(imported(&change, false).await, 2.0);
    });
}

/// Of targets without snapshots everything is imported, and no difference.
#[test]
fn a_volume_without_snapshots_takes_everything_and_no_difference() {
    run(88, 1, 0, async |_, cluster| {
        format(&cluster.places, 1).await;
        let volume = attach_cluster(&cluster.places, "a").await;
        put(&volume, 5, 1).await.expect("all is well");
        let ([first, _], (everything, change)) = changed(&volume, 2).await;
        volume.detach().await.expect("it is attached");
        cluster.places.shelf.lacks(0);
        let volume = attach_cluster(&cluster.places, "b").await;
        let imported = forced(&volume, &everything).await.expect("all is given up");
        assert_eq!((imported.own, get(&volume, 5).await), (None, Ok(1)));
        assert_eq!(volume.origin(), Some(Origin::Whole { source: first.id(), own: None }));
        assert!(matches!(import(&volume, &change).await, Err(BackupError::BaseGone { .. })));
    });
}

/// A copy of a replica that no record names may be of another moment.
#[test]
fn a_snapshot_is_told_by_who_has_it() {
    on_drives(89, async |addresses| {
        let (source, _) = two(&addresses).await;
        let first = snapshot(&source).await;
        put(&source, 5, 77).await.expect("all is well");
        let second = snapshot(&source).await;
        assert!(source.snapshots().iter().all(|snapshot| snapshot.slots == Set::first(3)));
        let told = second.differences(Some(&first)).await.expect("drives tell");
        assert!(
            told.iter().any(|range| range.contains(&5)) && !told.iter().any(|range| range.contains(&200)),
            "{told:?}"
        );
        assert_eq!(second.differences(None).await.expect("drives tell").first().map(|range| range.start), Some(0));
        source.delete_snapshot(first.id().name).await.expect("it is attached");
        // Its numbers at the targets are another snapshot's by then, in which nothing differs from the second one.
        engine::time::sleep(Duration::from_secs(5)).await;
        let third = snapshot(&source).await;
        assert!(second.differences(Some(&first)).await.is_none(), "a snapshot that is gone is compared with");
        let told = third.differences(Some(&second)).await.expect("drives tell");
        assert!(!told.iter().any(|range| range.contains(&5)), "{told:?}");
    });
}

/// What a host finds of an import whose host has died: what the record says, and nothing else.
async fn found(place: Place, bytes: [Vec<u8>; 2], ids: [SnapshotId; 2]) -> Option<bool> {
    let copy = place.attach().await;
    let is_done = match copy.origin() {
        Some(Origin::Whole { source, .. }) => {
            let which = ids.iter().position(|id| *id == source).expect("one of both");
            assert!(all(&copy).await == bytes[which], "it is said to be snapshot {which}, and is not");
            Some(which == 1)
        }
        Some(Origin::InPart { .. }) => None,
        None => panic!("it was imported"),
    };
    copy.detach().await.expect("it is attached");
    is_done
}

#[test]
fn a_host_that_dies_in_an_import_leaves_a_part_or_all_of_it() {
    let world = World::new(90, SimConfig::default());
    let addresses = drives(&world);
    run_in(&world, async {
        let made = world.spawn_on(world.node("maker"), async move {
            let (source, place) = two(&addresses).await;
            let first = snapshot(&source).await;
            for lba in (0..250).step_by(9) {
                put(&source, lba, 100 + (lba / 9) as u8).await.expect("all is well");
            }
            let second = snapshot(&source).await;
            let streams = [exported(&first, None).await.0, exported(&second, Some(&first)).await.0];
            let copy = place.attach().await;
            import(&copy, &streams[0]).await.expect("it is blank");
            copy.detach().await.expect("it is attached");
            let bytes = [all(&first).await, all(&second).await];
            (place, streams, bytes, [first.id(), second.id()])
        });
        let (place, streams, bytes, ids) = made.await;
        let mut seen = [false; 3];
        for number in 0..30u64 {
            let dying = world.node(&format!("dying{number}"));
            let (there, change) = (place.clone(), streams[1].clone());
            let task = world.spawn_on(dying, async move {
                let copy = there.attach().await;
                // Refused where it was done already.
                drop(import(&copy, &change).await);
                std::future::pending::<()>().await;
            });
            engine::time::sleep(Duration::from_micros(2_000 + 700 * number)).await;
            world.crash(dying);
            drop(task);
            let next = world.node(&format!("next{number}"));
            let is_done = world.spawn_on(next, found(place.clone(), bytes.clone(), ids)).await;
            seen[is_done.map_or(0, |is_done| 1 + usize::from(is_done))] = true;
            // Back to the first, in the end by force.
            if is_done == Some(true) {
                let (there, everything) = (place.clone(), streams[0].clone());
                let back = world.spawn_on(next, async move {
                    let copy = there.attach().await;
                    forced(&copy, &everything).await.expect("all is given up");
                    copy.detach().await.expect("it is attached");
                });
                back.await;
            }
        }
        assert_eq!(seen, [true; 3], "it died in time to leave a part, nothing of it, and all of it");
    });
}
