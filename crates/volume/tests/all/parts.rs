//! Volumes that are imported in part, and what they are where the import does not go on.

use std::net::SocketAddr;

use device::Namespace;
use fabric::host::{CopyTag, RemoteNamespace};
use volume::{
    AdoptOptions, BackupError, ExportOptions, Kind, Origin, Set, SnapshotId, SnapshotView, Volume, holder_bytes,
};

use crate::backup::{Held, Place, all, exported, import, is_whole, on_drives, snapshot, two, view};
use crate::basics::put;
use crate::cluster::BLOCK;
use crate::drives::{BYTES, attach, by, create, operator, reach};

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
    let refused = volume::export(of, None, ExportOptions::default(), &mut Held::default()).await;
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
        let first = snapshot(&source).await;
        put(&source, 5, 77).await.expect("all is well");
        let second = snapshot(&source).await;
        let ((everything, _), (change, _)) = (exported(&first, None).await, exported(&second, Some(&first)).await);
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
