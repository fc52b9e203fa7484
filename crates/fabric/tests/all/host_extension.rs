//! Snapshots, clones, growth and differences of a drive's namespaces over the network, in the simulated world, and what is left of
//! them when the target's power fails.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use device::{AnyNamespace, Drive, DriveOptions, Durability, Error, FormatOptions, Lba, Namespace};
use engine::sim::{DiskConfig, SimConfig, World};
use engine::{Buf, View, time};
use fabric::host::{
    AnyRemote, ConnectError, CopyTag, Extension, HostIdentity, Manager, NamespaceCopy, Options, RemoteNamespace, Wanted,
};
use fabric::subsystem::{HostConfig, Target, listen};
use nvme::{Nqn, Status};

const DRIVE: &str = "/drive";
const BLOCK: usize = 4096;
const EXTENT: u64 = 64 << 10;
const BYTES: u64 = 2 << 20;
const TAG: CopyTag = CopyTag([3; 32]);

fn name(last: &str) -> Nqn {
    format!("nqn.2026-01.example.yagura:{last}").parse().expect("an NQN")
}

fn block(byte: u8) -> View {
    let mut buf = Buf::with_len(BLOCK);
    buf.fill(byte);
    buf.freeze()
}

async fn byte_at(namespace: &impl Namespace, lba: u64) -> u8 {
    let (read, buf) = namespace.read(Lba(lba), Buf::with_len(BLOCK)).await;
    read.expect("read");
    assert!(buf.iter().all(|&byte| byte == buf[0]), "block {lba} is torn");
    buf[0]
}

/// Serves the drive, which is made or has been before. Any host is let in, and the operator makes namespaces for all.
async fn serve(address: SocketAddr, fresh: bool) {
    let drive = match fresh {
        true => {
            let options = FormatOptions { extent_bytes: EXTENT as u32, ..FormatOptions::default() };
            Drive::format(Path::new(DRIVE), &options).await.expect("formatted")
        }
        false => Drive::open(Path::new(DRIVE), &DriveOptions::default()).await.expect("opened"),
    };
    let (target, subsystem) = (Target::default(), name("drive"));
    target.add_subsystem(subsystem.clone(), "1").expect("a subsystem");
    target.add_store(&subsystem, Arc::new(drive.clone())).expect("a store");
    let operator = HostConfig { manage: true, makes_for_all: true, ..HostConfig::default() };
    target.allow_host(&subsystem, &name("operator"), operator).expect("a host");
    target.allow_any_host(&subsystem, true).expect("a subsystem");
    for one in drive.namespaces() {
        let namespace = AnyNamespace::from(drive.namespace(one.number).expect("it was listed"));
        target.adopt(&subsystem, Arc::new(drive.clone()), namespace).await.expect("taken in");
    }
    let listener = listen(address).await.expect("a free port");
    target.serve(listener, Vec::new()).await;
}

fn by(address: SocketAddr, host: &str, nsid: u32) -> Options {
    let host = HostIdentity { nqn: name(host), ..HostIdentity::random() };
    let keep_alive = Duration::from_millis(400);
    Options { host, keep_alive, connect_timeout: Duration::from_secs(5), ..Options::new(address, name("drive"), nsid) }
}

fn refused<T>(outcome: Result<T, ConnectError>) -> Status {
    match outcome {
        Err(ConnectError::Refused { status, .. }) => status.kind(),
        Err(other) => panic!("refused in another way: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

/// The operator's admin queue, as soon as the target listens.
async fn operator(address: SocketAddr) -> Manager {
    loop {
        match Manager::connect(by(address, "operator", 1)).await {
            Ok(manager) => return manager,
            Err(_) => time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// What is told to differ, and whether all that does is told.
async fn compared(manager: &Manager, newer: &RemoteNamespace, base: &RemoteNamespace) -> Vec<std::ops::Range<u64>> {
    let told = manager.differences(newer.nsid(), Some(base.nsid())).await.expect("differences");
    for lba in 0..BYTES / BLOCK as u64 {
        let among = told.iter().any(|range| range.contains(&(lba * BLOCK as u64)));
        assert!(among || byte_at(newer, lba).await == byte_at(base, lba).await, "block {lba} differs untold");
    }
    told
}

/// Before the power fails: namespace 1, its snapshot 2 and the snapshot's clone 3.
async fn live(address: SocketAddr) -> RemoteNamespace {
    let manager = operator(address).await;
    let formats = manager.formats(&manager.capacity().await.expect("a capacity")).await.expect("formats");
    let wanted = Wanted { bytes: BYTES, block_size: BLOCK as u32, thin: true };
    assert_eq!(manager.create(&formats, wanted).await, Ok(1));
    assert_eq!(manager.extension().await, Ok(Extension::ALL));
    let user = RemoteNamespace::connect(by(address, "user", 1)).await.expect("the namespace");
    assert_eq!(user.extension(), Extension { grow: false, ..Extension::ALL });
    for (lba, byte) in [(0, 7), (100, 7), (0, 1), (100, 1)] {
        user.write(Lba(lba), block(byte), Durability::Cached).await.expect("written");
    }
    // Nothing was flushed: whatever the snapshot holds outlives the power all the same.
    assert_eq!(user.snapshot(TAG).await, Ok(2));
    assert_eq!(user.snapshot(TAG).await, Ok(2), "asked again");
    for lba in [100, 300] {
        user.write(Lba(lba), block(2), Durability::Stable).await.expect("written");
    }
    let snapshot = user.sibling(2).await.expect("it has the snapshot");
    assert_eq!((byte_at(&snapshot, 100).await, byte_at(&snapshot, 300).await), (1, 0));
    let write = snapshot.write(Lba(0), block(3), Durability::Stable).await;
    assert!(matches!(write, Err(Error::ReadOnly(_))), "{write:?}");

    let listed = user.copies().await.expect("a list");
    let [NamespaceCopy { nsid: 2, writable: false, source, nguid, bytes: BYTES, tag: TAG }] = listed[..] else {
        panic!("{listed:?}")
    };
    assert_eq!((source, nguid), (user.info().nguid, snapshot.info().nguid));
    let any = AnyRemote::from(user.sibling(1).await.expect("the same again"));
    assert_eq!((any.extension(), any.snapshot(TAG).await, any.copies().await), (user.extension(), Ok(2), Ok(listed)));

    let extents = [6, 18].map(|extent| extent * EXTENT..(extent + 1) * EXTENT);
    assert_eq!(compared(&manager, &user, &snapshot).await, extents);
    assert_eq!(manager.differences(2, None).await, Ok(vec![0..EXTENT, extents[0].clone()]));
    assert_eq!((manager.clone_of(2, TAG).await, manager.clone_of(2, TAG).await), (Ok(3), Ok(3)));
    let copies = manager.copies(None).await.expect("a list");
    assert!(copies.iter().map(|copy| (copy.nsid, copy.writable)).eq([(2, false), (3, true)]));
    assert_eq!(manager.copies(Some(2)).await, Ok(copies[1..].to_vec()));

    grow(&manager, &user).await;
    manager.leave().await;
    user
}

/// Growth is told to the host that has the namespace, and what can't be is refused.
async fn grow(manager: &Manager, user: &RemoteNamespace) {
    assert_eq!(manager.grow(1, BYTES).await, Ok(()), "it has that size");
    assert_eq!(refused(manager.grow(1, BYTES / 2).await), Status::INVALID_FIELD);
    assert_eq!(refused(manager.grow(1, 1 << 50).await), Status::INSUFFICIENT_CAPACITY);
    assert_eq!(refused(manager.grow(2, 2 * BYTES).await), Status::WRITE_PROTECTED, "a snapshot");
    assert_eq!(manager.grow(1, 2 * BYTES).await, Ok(()));
    let blocks = 2 * BYTES / BLOCK as u64;
    while user.info().blocks < blocks {
        time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(byte_at(user, blocks - 1).await, 0);
    user.write(Lba(blocks - 1), block(4), Durability::Stable).await.expect("there is more of it");
}

async fn afterwards(address: SocketAddr) {
    let manager = operator(address).await;
    let user = RemoteNamespace::connect(by(address, "user", 1)).await.expect("the namespace");
    let snapshot = user.sibling(2).await.expect("it has the snapshot still");
    let nguid = snapshot.info().nguid;
    assert_eq!([byte_at(&snapshot, 0).await, byte_at(&snapshot, 100).await, byte_at(&user, 300).await], [1, 1, 2]);
    assert_eq!(user.info().bytes(), 2 * BYTES);
    assert_eq!((user.snapshot(TAG).await, manager.clone_of(2, TAG).await), (Ok(2), Ok(3)), "its tags are known still");
    assert_eq!(user.copies().await.expect("a list").len(), 1);
    assert_eq!((user.delete_copy(2, nguid).await, user.delete_copy(2, nguid).await), (Ok(()), Ok(())), "gone is gone");
    assert_eq!((user.copies().await, manager.copies(Some(1)).await), (Ok(vec![]), Ok(vec![])));
    assert_eq!(manager.copies(None).await.expect("a list").len(), 1, "the clone outlives its source");
    manager.delete(3).await.expect("as every namespace");
    manager.leave().await;
}

/// A snapshot waits for a cache to be made stable, which may take longer than a command does: its association ended by that.
#[test]
fn a_snapshot_may_take_its_time() {
    let world = World::new(1, SimConfig::default());
    let (target, host) = (world.node("target"), world.node("host"));
    let slow = Duration::from_millis(300)..Duration::from_millis(301);
    world.disk(target, DRIVE, 16 << 20, DiskConfig { delay: slow, ..DiskConfig::default() });
    let address = SocketAddr::new(world.addr(target), 4420);
    world.spawn_on(target, serve(address, true)).detach();
    let taken = world.spawn_on(host, async move {
        let manager = operator(address).await;
        let formats = manager.formats(&manager.capacity().await.expect("a capacity")).await.expect("formats");
        let wanted = Wanted { bytes: BYTES, block_size: BLOCK as u32, thin: true };
        assert_eq!(manager.create(&formats, wanted).await, Ok(1));
        let options = Options { command_timeout: Duration::from_millis(200), ..by(address, "user", 1) };
        let user = RemoteNamespace::connect(options).await.expect("the namespace");
        (user.snapshot(TAG).await, user.copies().await.map(|copies| copies.len()))
    });
    let taken = world.run_until(taken).unwrap_or_else(|stalled| panic!("{stalled}"));
    assert_eq!(taken, (Ok(2), Ok(1)));
}

#[test]
fn copies_are_made_over_the_network_and_outlive_the_power() {
    for seed in 0..3 {
        let world = World::new(seed, SimConfig::default());
        let (target, host) = (world.node("target"), world.node("host"));
        world.disk(target, DRIVE, 16 << 20, DiskConfig { volatile_cache: true, ..DiskConfig::default() });
        let address = SocketAddr::new(world.addr(target), 4420);
        world.spawn_on(target, serve(address, true)).detach();
        let user = world
            .run_until(world.spawn_on(host, live(address)))
            .unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        world.crash(target);
        let cut = world.spawn_on(host, async move { user.snapshot(TAG).await });
        let cut = world.run_until(cut).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        assert!(matches!(cut, Err(Error::Disconnected(_) | Error::NotConnected(_))), "{cut:?}");
        world.restart(target);
        world.spawn_on(target, serve(address, false)).detach();
        world
            .run_until(world.spawn_on(host, afterwards(address)))
            .unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
    }
}
