//! Volumes that are put back to snapshots of their own, in place.

use std::net::SocketAddr;
use std::time::Duration;

use device::{Lba, Namespace};
use engine::job::Job;
use engine::time;
use volume::{BackupError, Error, Kind, Origin, Restored, Set, Volume, holder_bytes};

use crate::basics::put;
use crate::cluster::BLOCK;
use crate::drives::{BYTES, operator, reach};
use crate::streams::{Held, Place, all, exported, import, on_drives, snapshot, two, view};

/// As long as it takes.
const LONG: Duration = Duration::from_secs(3600);

async fn back(volume: &Volume, to: &volume::SnapshotView) {
    let done = volume::restore(volume, to, 0, LONG).await.expect("both can be read");
    assert_eq!(done, Restored { at: volume.info().bytes(), left: 0 });
}

#[test]
fn a_volume_is_put_back_to_any_of_its_snapshots_and_keeps_all_of_them() {
    on_drives(93, async |addresses| {
        let (volume, _) = two(&addresses).await;
        let (first, of_first) = (snapshot(&volume).await, all(&volume).await);
        for lba in [5, 7, 254] {
            put(&volume, lba, 77).await.expect("all is well");
        }
        let (second, of_second) = (snapshot(&volume).await, all(&volume).await);
        let names = || volume.snapshots().iter().map(|snapshot| snapshot.name).collect::<Vec<_>>();
        let kept = names();
        put(&volume, 0, 99).await.expect("all is well");
        for (to, bytes) in [(&first, &of_first), (&second, &of_second), (&first, &of_first), (&first, &of_first)] {
            back(&volume, to).await;
            assert!(all(&volume).await == *bytes, "the bytes differ");
            assert!(all(&first).await == of_first && all(&second).await == of_second, "a snapshot has changed");
            assert_eq!(volume.origin(), Some(Origin::Whole { source: to.id(), own: None }));
            assert_eq!(names(), kept);
            assert!(volume.verify(None).await.is_ok_and(|report| report.is_clean()));
        }
        // It is a volume like any other.
        let third = snapshot(&volume).await;
        assert!(all(&third).await == of_first);
        exported(&third, None).await;
    });
}

#[test]
fn what_a_volume_has_grown_by_is_zeroes_when_it_is_put_back() {
    on_drives(94, async |addresses| {
        let place = Place::make(&addresses[..3], BYTES).await;
        let volume = place.attach().await;
        put(&volume, 5, 1).await.expect("all is well");
        let (before, mut expected) = (snapshot(&volume).await, all(&volume).await);
        for (&address, &nsid) in place.addresses.iter().zip(&place.nsids) {
            let bytes = holder_bytes(Kind::Replica, 2 * BYTES, BLOCK as u32);
            operator(address).await.grow(nsid, bytes).await.expect("there is room");
        }
        volume.grow(2 * BYTES).await.expect("there is room");
        put(&volume, 5, 2).await.expect("all is well");
        put(&volume, 2 * BYTES / BLOCK as u64 - 1, 3).await.expect("all is well");
        back(&volume, &before).await;
        expected.resize(2 * BYTES as usize, 0);
        assert!(all(&volume).await == expected, "the bytes differ");
    });
}

/// The host is gone after so many milliseconds, for each of these until nothing is left to be done.
#[test]
fn a_volume_that_is_put_back_in_part_says_so_and_another_host_goes_on() {
    on_drives(95, async |addresses| {
        let place = Place::make(&addresses[..3], BYTES).await;
        let mut volume = place.attach().await;
        for lba in 0..8 {
            put(&volume, 30 * lba, 1).await.expect("all is well");
        }
        let name = volume.snapshot().await.expect("it is offered");
        let expected = all(&volume).await;
        let mut broken_off = 0;
        for millis in 0.. {
            for lba in 0..8 {
                put(&volume, 30 * lba, 2 + (millis % 200) as u8).await.expect("all is well");
            }
            let to = view(&volume, name).await;
            let mut at = 0;
            let all_of_it = async {
                // A piece at a time.
                loop {
                    match volume::restore(&volume, &to, at, Duration::ZERO).await.expect("both can be read") {
                        Restored { left: 0, .. } => return,
                        restored => at = restored.at,
                    }
                }
            };
            let is_done = time::timeout(Duration::from_millis(millis), all_of_it).await.is_ok();
            drop((to, volume));
            volume = place.attach().await;
            let to = view(&volume, name).await;
            if all(&volume).await != expected && volume.origin() == Some(Origin::InPart { source: to.id(), base: None })
            {
                broken_off += 1;
                let of_part = snapshot(&volume).await;
                let refused = volume::export(&of_part, None, &Job::unlisted(None, None), &mut Held::default()).await;
                assert!(matches!(refused, Err(BackupError::InPart { .. })), "{refused:?}");
                let refused = volume::restore(&volume, &of_part, 0, LONG).await;
                assert!(matches!(refused, Err(BackupError::InPart { .. })), "{refused:?}");
                volume.delete_snapshot(of_part.id().name).await.expect("it is attached");
            }
            back(&volume, &to).await;
            assert!(all(&volume).await == expected, "the bytes differ after {millis} ms");
            if is_done {
                break;
            }
        }
        assert!(broken_off > 2, "it was broken off in the middle {broken_off} times");
    });
}

#[test]
fn what_an_import_has_taken_for_itself_is_nothing_to_be_put_back_to() {
    on_drives(96, async |addresses| {
        let (source, place) = two(&addresses).await;
        let copy = place.attach().await;
        import(&copy, &exported(&snapshot(&source).await, None).await.0).await.expect("it is blank");
        let own = copy.origin().and_then(|origin| origin.own()).expect("it was imported");
        let refused = volume::restore(&copy, &view(&copy, own).await, 0, LONG).await;
        assert!(matches!(refused, Err(BackupError::Volume(Error::Impossible(_)))), "{refused:?}");
        assert!(matches!(copy.origin(), Some(Origin::Whole { .. })), "nothing was changed");
        let refused = volume::restore(&copy, &snapshot(&source).await, 0, LONG).await;
        assert!(matches!(refused, Err(BackupError::Volume(Error::Impossible(_)))), "{refused:?}");
    });
}

#[test]
fn room_is_needed_for_what_is_shared_or_gone_and_not_for_what_was_written_since() {
    on_drives(97, async |addresses| {
        let (volume, _) = two(&addresses).await;
        let room = async |to| volume::room(&volume, to).await.expect("it is told");
        let first = snapshot(&volume).await;
        assert_eq!(room(&first).await, 0, "nothing differs");
        put(&volume, 5, 77).await.expect("all is well");
        assert_eq!(room(&first).await, 0, "it is written where it is");
        let second = snapshot(&volume).await;
        let needed = room(&first).await;
        assert!((BLOCK as u64..BYTES / 2).contains(&needed), "the newer snapshot has it, too: {needed}");
        assert_eq!(room(&second).await, 0);
        volume.deallocate(Lba(0), volume.info().blocks).await.expect("all is well");
        assert!(room(&second).await >= needed, "what is gone needs room again");
    });
}

/// Away is not gone.
#[test]
fn a_snapshot_is_lost_when_no_copy_of_it_can_come_back() {
    on_drives(98, async |addresses| {
        let place = Place::make(&addresses[..3], BYTES).await;
        let volume = place.attach().await;
        let name = volume.snapshot().await.expect("it is offered");
        let all = Set::first(3);
        assert!(!volume.has_lost(name, Set::default()).await, "it is there");
        assert!(!volume.has_lost(name, all.without(Set::one(1))).await, "one copy is left");
        assert!(volume.has_lost(name, all).await, "all are given up");
        for (&address, &nsid) in place.addresses.iter().zip(&place.nsids).skip(1) {
            let manager = operator(address).await;
            for copy in manager.copies(Some(nsid)).await.expect("a list") {
                manager.delete_copy(copy.nsid, copy.nguid).await.expect("it is there");
            }
        }
        assert!(volume.has_lost(name, Set::one(0)).await, "who is left says that it has none");
        let nowhere = SocketAddr::new(place.addresses[0].ip(), 1);
        volume.set_reach(0, reach(nowhere, place.nsids[0]));
        assert!(!volume.has_lost(name, Set::default()).await, "the only copy is away");
    });
}
