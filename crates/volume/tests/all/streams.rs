//! Streams in memory, and the volumes on drives that they are made of and go into.

use std::net::SocketAddr;
use std::time::Duration;

use device::{Lba, Namespace};
use engine::Buf;
use engine::job::Job;
use engine::sim::{SimConfig, World};
use engine::task::LocalFuture;
use volume::{
    BackupError, Exported, FormatOptions, Imported, Kind, Origin, Sink, SnapshotName, SnapshotView, Source, Volume,
    holder_bytes,
};

use crate::basics::put;
use crate::cluster::{BLOCK, disk, run_in};
use crate::drives::{BYTES, DRIVE, attach, create, operator, reach, serve};

/// Written into memory.
#[derive(Default)]
pub struct Held(pub Vec<u8>);

impl Sink for Held {
    fn write(&mut self, bytes: Vec<u8>) -> LocalFuture<'_, Result<(), std::io::Error>> {
        self.0.extend(bytes);
        Box::pin(async { Ok(()) })
    }
}

/// Read from memory, some at a time.
pub struct Given<'a>(pub &'a [u8]);

impl Source for Given<'_> {
    fn read(&mut self) -> LocalFuture<'_, Result<Vec<u8>, std::io::Error>> {
        let (some, rest) = self.0.split_at(self.0.len().min(10_000));
        self.0 = rest;
        Box::pin(async { Ok(some.to_vec()) })
    }
}

pub async fn exported(to: &SnapshotView, from: Option<&SnapshotView>) -> (Vec<u8>, Exported) {
    let mut held = Held::default();
    let exported = volume::export(to, from, &Job::unlisted(None, None), &mut held).await;
    (held.0, exported.expect("both can be read"))
}

/// Everything of a snapshot, and what a newer one differs from it in.
pub async fn streams(first: &SnapshotView, second: &SnapshotView) -> (Vec<u8>, Vec<u8>) {
    (exported(first, None).await.0, exported(second, Some(first)).await.0)
}

/// Two snapshots of a volume, between which a block has changed, and the streams of both.
pub async fn changed(volume: &Volume, value: u8) -> ([SnapshotView; 2], (Vec<u8>, Vec<u8>)) {
    let first = snapshot(volume).await;
    put(volume, 5, value).await.expect("all is well");
    let second = snapshot(volume).await;
    let streams = streams(&first, &second).await;
    ([first, second], streams)
}

pub async fn import(volume: &Volume, bytes: &[u8]) -> Result<Imported, BackupError> {
    volume::import(volume, &mut Given(bytes), false, &Job::unlisted(None, None)).await
}

pub async fn forced(volume: &Volume, bytes: &[u8]) -> Result<Imported, BackupError> {
    volume::import(volume, &mut Given(bytes), true, &Job::unlisted(None, None)).await
}

/// All bytes of a volume, or of a snapshot.
pub async fn all(of: &impl Namespace) -> Vec<u8> {
    let mut bytes = Vec::new();
    for lba in (0..of.info().blocks).step_by(16) {
        let (read, buf) = of.read(Lba(lba), Buf::with_len(16 * BLOCK)).await;
        read.expect("it is there");
        bytes.extend_from_slice(&buf);
    }
    bytes
}

pub async fn snapshot(volume: &Volume) -> SnapshotView {
    let name = volume.snapshot().await.expect("it is offered");
    view(volume, name).await
}

pub async fn view(volume: &Volume, name: SnapshotName) -> SnapshotView {
    volume.snapshot_view(name).await.expect("it is there")
}

pub fn is_in_part(volume: &Volume) -> bool {
    matches!(volume.origin(), Some(Origin::InPart { .. }))
}

/// The volume has all bytes of the snapshot, says so, and keeps one snapshot of its own for that.
pub async fn is_whole(volume: &Volume, of: &SnapshotView) {
    assert!(all(volume).await == all(of).await, "the bytes differ");
    let Some(Origin::Whole { source, own: Some(own) }) = volume.origin() else {
        panic!("it is {:?}", volume.origin());
    };
    assert_eq!(source, of.id());
    assert_eq!(volume.snapshots().iter().map(|snapshot| snapshot.name).collect::<Vec<_>>(), [own]);
}

/// Where a volume is.
#[derive(Clone)]
pub struct Place {
    pub addresses: Vec<SocketAddr>,
    pub nsids: Vec<u32>,
}

impl Place {
    /// A volume of so many bytes.
    pub async fn make(addresses: &[SocketAddr], bytes: u64) -> Place {
        let (addresses, mut nsids) = (addresses.to_vec(), Vec::new());
        for &address in &addresses {
            let manager = operator(address).await;
            nsids.push(create(&manager, holder_bytes(Kind::Replica, bytes, BLOCK as u32)).await);
        }
        let reaches = addresses.iter().zip(&nsids).map(|(&address, &nsid)| reach(address, nsid)).collect();
        let replicas = addresses.len() as u8;
        let lease = Duration::from_secs(3);
        let options = FormatOptions { replicas, bytes: Some(bytes), lease, ..FormatOptions::default() };
        volume::format(reaches, options).await.expect("they are blank");
        Place { addresses, nsids }
    }

    pub async fn attach(&self) -> Volume {
        attach(&self.addresses, &self.nsids).await
    }
}

/// Three drives for one volume, and one for others.
pub fn drives(world: &World) -> Vec<SocketAddr> {
    let nodes: Vec<_> = (0..4).map(|index| world.node(&format!("drive{index}"))).collect();
    let addresses: Vec<_> = nodes.iter().map(|&node| SocketAddr::new(world.addr(node), 4420)).collect();
    for (&node, &address) in nodes.iter().zip(&addresses) {
        world.disk(node, DRIVE, 64 << 20, disk());
        world.spawn_on(node, serve(address)).detach();
    }
    addresses
}

pub fn on_drives(seed: u64, scenario: impl AsyncFnOnce(Vec<SocketAddr>) + 'static) {
    let world = World::new(seed, SimConfig::default());
    let addresses = drives(&world);
    run_in(&world, world.spawn_on(world.node("host"), async move { scenario(addresses).await }));
}

/// A volume with some data in it, attached, and another one that is blank.
pub async fn two(addresses: &[SocketAddr]) -> (Volume, Place) {
    let source = Place::make(&addresses[..3], BYTES).await.attach().await;
    for lba in [0, 5, 6, 100, 254] {
        put(&source, lba, 1 + lba as u8).await.expect("all is well");
    }
    (source, Place::make(&addresses[3..], BYTES).await)
}
