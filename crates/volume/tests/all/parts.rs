//! Volumes that are imported in part, and what they are where the import does not go on.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use device::Namespace;
use engine::job::Job;
use engine::task::LocalFuture;
use engine::time;
use fabric::host::{CopyTag, RemoteNamespace};
use volume::{
    AdoptOptions, BackupError, Error, Kind, Origin, Record, Set, SnapshotId, SnapshotView, Source, Volume, holder_bytes,
};

use crate::basics::{get, put};
use crate::cluster::{BLOCK, attach as attach_cluster, format, run};
use crate::drives::{BYTES, attach, by, create, operator, reach};
use crate::streams::{Held, Place, all, changed, exported, forced, import, is_whole, on_drives, snapshot, two, view};

/// A volume with a part of a snapshot, and a stream of all of the snapshot.
async fn part(addresses: &[SocketAddr]) -> (Place, Volume, SnapshotId, Vec<u8>) {
    let source = Place::make(&addresses[3..], BYTES).await.attach().await;
    for lba in [0, 5, 100] {
        put(&source, lba, 1 + lba as u8).await.expect("all is well");
    }
    let whole = snapshot(&source).await;
    let (everything, _) = exported(&whole, None).await;
    let place = Place::make(&addresses[..3], BYTES).await;
    let copy = place.attach().await;
    assert!(import(&copy, &everything[..everything.len() - 1]).await.is_err(), "it is cut off");
    (place, copy, whole.id(), everything)
}

/// It is a part yet, and nobody takes a snapshot of it for one of a volume.
async fn is_part(volume: &Volume, source: SnapshotId) {
    assert_eq!(volume.origin(), Some(Origin::InPart { source, base: None }));
    is_not_exported(&snapshot(volume).await, source).await;
}

async fn is_not_exported(of: &SnapshotView, is_part_of: SnapshotId) {
    let refused = volume::export(of, None, &Job::unlisted(None, None), &mut Held::default()).await;
    let is_right = |is: &Origin| matches!(is, Origin::InPart { source, .. } if *source == is_part_of);
    assert!(matches!(&refused, Err(BackupError::InPart { is, .. }) if is_right(is)), "{refused:?}");
}

#[test]
fn what_is_recovered_of_a_part_is_a_part() {
    on_drives(91, async |addresses| {
        let (place, copy, source, everything) = part(&addresses).await;
        copy.detach().await.expect("it is attached");
        // Two of the three are lost.
        let mut nsids = place.nsids.clone();
        for slot in [1, 2] {
            let bytes = holder_bytes(Kind::Replica, BYTES, BLOCK as u32);
            nsids[slot] = create(&operator(place.addresses[slot]).await, bytes).await;
        }
        let reaches = place.addresses.iter().zip(&nsids).map(|(&address, &nsid)| reach(address, nsid)).collect();
        volume::recover(reaches, 0, None, true).await.expect("a majority is lost");
        let recovered = attach(&place.addresses, &nsids).await;
        is_part(&recovered, source).await;
        import(&recovered, &everything).await.expect("it is gone on with");
        assert!(matches!(recovered.origin(), Some(Origin::Whole { .. })));
    });
}

#[test]
fn a_clone_of_a_part_is_a_part() {
    on_drives(92, async |addresses| {
        let (place, copy, source, _) = part(&addresses).await;
        let name = snapshot(&copy).await.id().name;
        let tag = name.tag(copy.shape().volume).expect("it fits");
        let mut clones = Vec::new();
        for (&address, &nsid) in place.addresses.iter().zip(&place.nsids) {
            let manager = operator(address).await;
            let copies = manager.copies(Some(nsid)).await.expect("a list");
            let of = copies.into_iter().find(|copy| copy.tag == tag).expect("it was taken").nsid;
            let clone = manager.clone_of(of, CopyTag([9; 32])).await.expect("there is room");
            let host = RemoteNamespace::connect(by(address, "host", nsid)).await.expect("the drive is up");
            let controller = host.controller().expect("it is connected").cntlid.get();
            manager.attach(clone, controller).await.expect("it is there");
            clones.push(clone);
        }
        let reaches = place.addresses.iter().zip(&clones).map(|(&address, &nsid)| reach(address, nsid)).collect();
        let how = AdoptOptions { of: copy.shape().volume, clones: Set::first(3), volume: Some(77), force: false };
        volume::adopt(reaches, how).await.expect("they are clones");
        is_part(&attach(&place.addresses, &clones).await, source).await;
    });
}

/// The volume's own snapshot was taken at the end of an import, before a record said that it has ended.
#[test]
fn a_snapshot_of_a_part_is_not_exported_and_the_own_one_is() {
    on_drives(93, async |addresses| {
        let (source, place) = two(&addresses).await;
        let ([first, second], (everything, change)) = changed(&source, 77).await;
        let copy = place.attach().await;
        let own = import(&copy, &everything).await.expect("it is blank").own.expect("drives have snapshots");
        let is_first = async |own: &SnapshotView| {
            let (stream, _) = exported(own, None).await;
            assert!(!stream.is_empty() && all(own).await == all(&first).await);
        };
        is_first(&view(&copy, own).await).await;
        assert!(import(&copy, &change[..change.len() - 1]).await.is_err(), "it is cut off");
        let of_part = snapshot(&copy).await;
        is_not_exported(&of_part, second.id()).await;
        is_first(&view(&copy, own).await).await;
        copy.delete_snapshot(of_part.id().name).await.expect("it is attached");
        import(&copy, &change).await.expect("it is gone on with");
        is_whole(&copy, &second).await;
        let of_whole = snapshot(&copy).await;
        assert!(!exported(&of_whole, None).await.0.is_empty() && of_whole.info().bytes() == BYTES);
    });
}

/// The snapshot that an import takes in the end has a place in the record from the beginning, or nothing is begun.
#[test]
fn a_full_record_is_noticed_before_anything_is_written() {
    run(94, 1, 0, async |_, cluster| {
        format(&cluster.places, 1).await;
        let volume = attach_cluster(&cluster.places, "a").await;
        put(&volume, 5, 1).await.expect("all is well");
        let ([first, _], (everything, change)) = changed(&volume, 2).await;
        let origin = Some(Origin::InPart { source: first.id(), base: None });
        let max = Record { origin, ..Record::default() }.snapshots_max(BLOCK as u32);
        while volume.snapshots().len() < max {
            volume.snapshot().await.expect("there is room");
        }
        let refused = forced(&volume, &everything).await;
        assert!(matches!(refused, Err(BackupError::Volume(Error::TooManySnapshots { .. }))), "{refused:?}");
        assert_eq!((volume.origin(), get(&volume, 5).await), (None, Ok(2)), "nothing was begun");
        volume.delete_snapshot(first.id().name).await.expect("it is attached");
        forced(&volume, &everything).await.expect("there is room for one");
        // The next one takes the place of that one.
        assert_eq!(volume.snapshots().len(), max);
        import(&volume, &change).await.expect("it is at the base");
        assert_eq!((volume.snapshots().len(), get(&volume, 5).await), (max, Ok(2)));
    });
}

/// Written by somebody who did not wait for the end: it is under way when the import looks at what the volume is.
#[test]
fn a_late_write_is_seen_by_an_import() {
    on_drives(95, async |addresses| {
        let (source, place) = two(&addresses).await;
        let (everything, _) = exported(&snapshot(&source).await, None).await;
        let copy = place.attach().await;
        {
            let mut write = pin!(put(&copy, 33, 3));
            assert!(poll_fn(|context| Poll::Ready(write.as_mut().poll(context).is_pending())).await);
        }
        let refused = import(&copy, &everything).await;
        assert!(matches!(refused, Err(BackupError::NotBlank { .. })), "{refused:?}");
        assert_eq!((copy.origin(), get(&copy, 33).await), (None, Ok(3)));
    });
}

/// A stream that stalls after so many bytes.
struct Stalling(Vec<u8>, usize);

impl Source for Stalling {
    fn read(&mut self) -> LocalFuture<'_, Result<Vec<u8>, std::io::Error>> {
        Box::pin(async {
            if self.1 == 0 {
                time::sleep(Duration::from_secs(60)).await;
            }
            let rest = self.0.split_off(self.0.len().min(if self.1 == 0 { usize::MAX } else { self.1 }));
            self.1 = 0;
            Ok(std::mem::replace(&mut self.0, rest))
        })
    }
}

#[test]
fn an_import_that_waits_for_its_stream_goes_on_with_its_writes() {
    on_drives(97, async |addresses| {
        let source = Place::make(&addresses[..3], BYTES).await.attach().await;
        for number in 0..28 {
            put(&source, 9 * u64::from(number), 100 + number).await.expect("all is well");
        }
        let whole = snapshot(&source).await;
        let (everything, _) = exported(&whole, None).await;
        let copy = Rc::new(Place::make(&addresses[3..], BYTES).await.attach().await);
        let (into, most) = (copy.clone(), everything.len() * 2 / 3);
        let import = engine::task::spawn(async move {
            let mut stream = Stalling(everything, most);
            volume::import(&into, &mut stream, false, &Job::unlisted(None, None)).await.map(drop)
        });
        time::sleep(Duration::from_secs(5)).await;
        // Of those that have come whole the last one.
        assert_eq!(get(&copy, 9 * 17).await, Ok(117));
        import.await.expect("the rest comes");
        is_whole(&copy, &whole).await;
    });
}
