//! Growing, snapshots and clones of a volume whose replicas are thin namespaces of drives, by the targets' own commands.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::{Drive, FormatOptions as DriveFormat, Lba, Namespace};
use engine::sim::{SimConfig, World};
use engine::{Buf, time};
use fabric::host::{CopyTag, HostIdentity, Manager, Options as FabricOptions, RemoteNamespace, Wanted};
use fabric::subsystem::{HostConfig, Target, listen};
use nvme::Nqn;
use volume::{AdoptOptions, Error, FormatOptions, Kind, NvmeReach, Reach, Set, SnapshotView, Volume, holder_bytes};

use crate::basics::{get, put};
use crate::cluster::{BLOCK, disk, options, run_in, whole};

pub const DRIVE: &str = "/drive";
pub const BYTES: u64 = 1 << 20;
const CLONED: u128 = 77;

fn name(last: &str) -> Nqn {
    format!("nqn.2026-01.example.sim:{last}").parse().expect("an NQN")
}

/// Serves a new drive. Any host is let in, and the operator makes namespaces for all.
pub async fn serve(address: SocketAddr) {
    let format = DriveFormat { extent_bytes: 64 << 10, ..DriveFormat::default() };
    let drive = Drive::format(Path::new(DRIVE), &format).await.expect("formatted");
    let (target, subsystem) = (Target::default(), name("drive"));
    target.add_subsystem(subsystem.clone(), "1").expect("a subsystem");
    target.add_store(&subsystem, Arc::new(drive)).expect("a store");
    let operator = HostConfig { manage: true, makes_for_all: true, ..HostConfig::default() };
    target.allow_host(&subsystem, &name("operator"), operator).expect("a host");
    target.allow_any_host(&subsystem, true).expect("a subsystem");
    target.serve(listen(address).await.expect("a free port"), Vec::new()).await;
}

pub fn by(address: SocketAddr, host: &str, nsid: u32) -> FabricOptions {
    let host = HostIdentity { nqn: name(host), ..HostIdentity::random() };
    FabricOptions { host, ..FabricOptions::new(address, name("drive"), nsid) }
}

pub async fn operator(address: SocketAddr) -> Manager {
    loop {
        match Manager::connect(by(address, "operator", 1)).await {
            Ok(manager) => return manager,
            Err(_) => time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// A namespace for a holder.
pub async fn create(manager: &Manager, bytes: u64) -> u32 {
    let formats = manager.formats(&manager.capacity().await.expect("a capacity")).await.expect("formats");
    let wanted = Wanted { bytes, block_size: BLOCK as u32, thin: true };
    manager.create(&formats, wanted).await.expect("there is room")
}

pub fn reach(address: SocketAddr, nsid: u32) -> Rc<dyn Reach> {
    Rc::new(NvmeReach::new(by(address, "host", nsid)))
}

async fn seen(view: &SnapshotView, lba: u64) -> u8 {
    let (result, buf) = view.read(Lba(lba), Buf::with_len(BLOCK)).await;
    result.expect("it is there");
    buf[0]
}

/// What the drives have as copies of the volume's namespaces.
async fn copies(managers: &[Manager], nsids: &[u32]) -> Vec<Vec<CopyTag>> {
    let mut all = Vec::new();
    for (manager, &nsid) in managers.iter().zip(nsids) {
        let copies = manager.copies(Some(nsid)).await.expect("a list");
        all.push(copies.into_iter().filter(|copy| !copy.writable).map(|copy| copy.tag).collect());
    }
    all
}

pub async fn attach(addresses: &[SocketAddr], nsids: &[u32]) -> Volume {
    let reaches = addresses.iter().zip(nsids).map(|(&address, &nsid)| reach(address, nsid)).collect();
    volume::attach(reaches, options()).await.expect("all drives are up")
}

async fn journey(addresses: Vec<SocketAddr>) {
    let (mut managers, mut nsids) = (Vec::new(), Vec::new());
    for &address in &addresses {
        let manager = operator(address).await;
        nsids.push(create(&manager, holder_bytes(Kind::Replica, BYTES, BLOCK as u32)).await);
        managers.push(manager);
    }
    let reaches = addresses.iter().zip(&nsids).map(|(&address, &nsid)| reach(address, nsid)).collect();
    let format = FormatOptions { bytes: Some(BYTES), lease: Duration::from_secs(3), ..FormatOptions::default() };
    let shape = volume::format(reaches, format).await.expect("they are blank");
    let volume = attach(&addresses, &nsids).await;
    put(&volume, 5, 1).await.expect("all is well");
    let first = volume.snapshot().await.expect("drives offer it");
    put(&volume, 5, 2).await.expect("all is well");
    // The namespaces first, then the volume.
    assert!(matches!(volume.grow(2 * BYTES).await, Err(Error::TooSmall { .. })));
    for (manager, &nsid) in managers.iter().zip(&nsids) {
        let bytes = holder_bytes(Kind::Replica, 2 * BYTES, BLOCK as u32);
        manager.grow(nsid, bytes).await.expect("there is room");
    }
    volume.grow(2 * BYTES).await.expect("there is room");
    let last = 2 * BYTES / BLOCK as u64 - 1;
    put(&volume, last, 3).await.expect("all is well");
    let second = volume.snapshot().await.expect("drives offer it");
    put(&volume, 5, 4).await.expect("all is well");
    assert!(volume.snapshots().iter().all(|snapshot| snapshot.slots == Set::first(3)), "{:?}", volume.snapshots());
    let views = (volume.snapshot_view(first).await, volume.snapshot_view(second).await);
    let views = (views.0.expect("it is there"), views.1.expect("it is there"));
    assert_eq!((views.0.info().bytes(), views.1.info().bytes()), (BYTES, 2 * BYTES));
    assert_eq!((seen(&views.0, 5).await, seen(&views.1, 5).await, seen(&views.1, last).await), (1, 2, 3));
    volume.delete_snapshot(first).await.expect("it is attached");
    let tag = second.tag(shape.volume).expect("it fits");
    volume.collected().await;
    assert!(copies(&managers, &nsids).await.iter().all(|tags| tags == &[tag]), "the other one is there still");
    // A volume of clones.
    let mut clones = Vec::new();
    for ((manager, &nsid), &address) in managers.iter().zip(&nsids).zip(&addresses) {
        let snapshot = manager.copies(Some(nsid)).await.expect("a list")[0].nsid;
        let clone = manager.clone_of(snapshot, CopyTag([9; 32])).await.expect("there is room");
        // It is attached to nobody.
        let host = RemoteNamespace::connect(by(address, "host", nsid)).await.expect("the drive is up");
        let controller = host.controller().expect("it is connected").cntlid.get();
        manager.attach(clone, controller).await.expect("it is there");
        clones.push(clone);
    }
    let reaches = addresses.iter().zip(&clones).map(|(&address, &nsid)| reach(address, nsid)).collect();
    let how = AdoptOptions { of: shape.volume, clones: Set::first(3), volume: Some(CLONED), force: false };
    volume::adopt(reaches, how).await.expect("they are clones");
    let clone = attach(&addresses, &clones).await;
    assert_eq!((clone.shape().volume, clone.info().bytes(), clone.snapshots().len()), (CLONED, 2 * BYTES, 0));
    assert_eq!((get(&clone, 5).await, get(&clone, last).await, get(&volume, 5).await), (Ok(2), Ok(3), Ok(4)));
    put(&clone, 5, 9).await.expect("all is well");
    clone.snapshot().await.expect("drives offer it");
    for volume in [&clone, &volume] {
        whole(volume).await;
        assert!(volume.verify(None).await.is_ok_and(|report| report.is_clean()));
    }
    assert_eq!((seen(&views.1, 5).await, get(&volume, 5).await), (2, Ok(4)));
}

#[test]
fn a_volume_on_drives_grows_and_has_snapshots_and_clones() {
    let world = World::new(71, SimConfig::default());
    let nodes: Vec<_> = (0..3).map(|index| world.node(&format!("drive{index}"))).collect();
    let addresses: Vec<_> = nodes.iter().map(|&node| SocketAddr::new(world.addr(node), 4420)).collect();
    for (&node, &address) in nodes.iter().zip(&addresses) {
        world.disk(node, DRIVE, 64 << 20, disk());
        world.spawn_on(node, serve(address)).detach();
    }
    run_in(&world, world.spawn_on(world.node("host"), journey(addresses)));
}
