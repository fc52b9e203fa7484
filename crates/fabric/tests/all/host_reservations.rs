//! Reservations from end to end: two hosts, a target and its file, over real sockets, and a target that starts anew.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use device::{
    AnyNamespace, Drive, DriveOptions, Durability, Error, FileNamespace, FileOptions, FormatOptions, Lba, Namespace,
    NamespaceSpec,
};
use engine::net::TcpListener;
use engine::task::{self, Task};
use engine::{Buf, Reactor, ReactorConfig, time};
use fabric::host::{HostIdentity, Options, RemoteNamespace};
use fabric::subsystem::Target;
use nvme::Nqn;
use nvme::reservation::{
    AcquireAction, AcquireKeys, PersistChange, RegisterAction, RegisterKeys, ReservationCommand, ReservationType,
};
use zerocopy::IntoBytes;

const BLOCK: usize = 4096;

fn nqn() -> Nqn {
    "nqn.2026-01.example.yagura:reservations".parse().expect("an NQN")
}

fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

/// A file of its own, made where it is not there.
async fn file(path: &Path) -> AnyNamespace {
    let options = FileOptions { create: Some(1 << 20), ..FileOptions::default() };
    FileNamespace::open(path, &options).await.expect("the file opens").into()
}

/// A part of a drive, which is made where it is not there.
async fn on_drive(path: &Path) -> AnyNamespace {
    if path.exists() {
        let drive = Drive::open(path, &DriveOptions::default()).await.expect("the drive opens");
        return drive.namespace(drive.find("a").expect("it is there")).expect("a namespace").into();
    }
    let options = FormatOptions { create: Some(24 << 20), extent_bytes: 64 << 10, ..FormatOptions::default() };
    let drive = Drive::format(path, &options).await.expect("a drive");
    let spec = NamespaceSpec { name: "a".into(), bytes: 1 << 20, block_size: BLOCK as u32 };
    drive.create(&spec).await.expect("a namespace").into()
}

/// A target that serves a namespace until the task is dropped.
async fn serve(namespace: AnyNamespace) -> (SocketAddr, Task<()>) {
    let target: Target = Target::default();
    target.add_subsystem(nqn(), "1").expect("a subsystem");
    target.add_namespace(&nqn(), 1, namespace).expect("a namespace");
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let address = listener.local_addr();
    (address, task::spawn(async move { match target.serve(listener, Vec::new()).await {} }))
}

async fn host(address: SocketAddr, number: u8) -> RemoteNamespace {
    let mut options = Options::new(address, nqn(), 1);
    let name = format!("nqn.2026-01.example.yagura:host{number}");
    options.host = HostIdentity { nqn: name.parse().expect("an NQN"), id: [number; 16] };
    RemoteNamespace::connect(options).await.expect("a connection")
}

async fn register(host: &RemoteNamespace, key: u64, persist: PersistChange) -> Result<(), Error> {
    let command = ReservationCommand::Register { action: RegisterAction::Register, ignore_key: false, persist };
    host.reserve(command, RegisterKeys { current: 0.into(), new: key.into() }.as_bytes()).await
}

async fn acquire(host: &RemoteNamespace, action: AcquireAction, key: u64, preempt: u64) -> Result<(), Error> {
    let command = ReservationCommand::Acquire { action, rtype: ReservationType::WriteExclusive };
    host.reserve(command, AcquireKeys { current: key.into(), preempt: preempt.into() }.as_bytes()).await
}

fn block(byte: u8) -> engine::View {
    Buf::copy_from(&[byte; BLOCK]).freeze()
}

fn is_conflict(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::Reserved(_)))
}

#[test]
fn a_reservation_keeps_the_other_host_out_and_survives_the_target() {
    survives_the_target(file);
}

#[test]
fn a_reservation_on_a_drive_survives_the_target() {
    survives_the_target(on_drive);
}

fn survives_the_target(open: impl AsyncFn(&Path) -> AnyNamespace) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("medium");
    run(async {
        let (address, serving) = serve(open(&path).await).await;
        let (first, second) = (host(address, 1).await, host(address, 2).await);
        assert_eq!(register(&first, 1, PersistChange::Set).await, Ok(()));
        assert_eq!(register(&second, 2, PersistChange::Keep).await, Ok(()));
        assert_eq!(acquire(&first, AcquireAction::Acquire, 1, 0).await, Ok(()));
        assert!(is_conflict(&acquire(&second, AcquireAction::Acquire, 2, 0).await));
        assert!(is_conflict(&second.write(Lba(0), block(2), Durability::Cached).await));
        assert!(is_conflict(&second.write_zeroes(Lba(0), 1, Durability::Cached).await));
        assert!(is_conflict(&second.deallocate(Lba(0), 1).await));
        assert!(is_conflict(&second.flush().await));
        let pair = second.compare_and_write(Lba(0), block(0), block(2), Durability::Cached).await;
        assert!(is_conflict(&pair), "{pair:?}");
        assert_eq!(second.compare(Lba(0), block(0)).await, Ok(()), "others may read");
        assert_eq!(first.write(Lba(0), block(1), Durability::Cached).await, Ok(()));
        // No word of farewell: all that the next target knows is what was durable when it was acknowledged.
        drop((first, second, serving));
    });
    run(async {
        let (address, _serving) = serve(open(&path).await).await;
        let (first, second) = (host(address, 1).await, host(address, 2).await);
        let (head, entries) = second.reservation_report().await.expect("a report");
        assert_eq!((head.rtype, head.persist, entries.len()), (1, 1, 2));
        assert_eq!((entries[0].host_id, entries[0].status), ([1; 16], 1));
        assert!(is_conflict(&second.write(Lba(0), block(2), Durability::Cached).await));
        assert_eq!(first.write(Lba(0), block(1), Durability::Cached).await, Ok(()));
    });
}

#[test]
fn what_is_read_after_a_preemption_is_what_stays() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("medium");
    run(async {
        let (address, _serving) = serve(file(&path).await).await;
        let (first, second) = (host(address, 1).await, host(address, 2).await);
        assert_eq!(register(&second, 2, PersistChange::Keep).await, Ok(()));
        assert_eq!(acquire(&second, AcquireAction::Acquire, 2, 0).await, Ok(()));
        let writing = task::spawn(async move {
            for round in 0u8..=255 {
                second.write(Lba(0), block(round), Durability::Cached).await?;
            }
            Ok(())
        });
        assert_eq!(register(&first, 1, PersistChange::Keep).await, Ok(()));
        assert_eq!(acquire(&first, AcquireAction::PreemptAndAbort, 1, 2).await, Ok(()));
        let (result, seen) = first.read(Lba(0), Buf::with_len(BLOCK)).await;
        assert_eq!(result, Ok(()));
        let ended = writing.await;
        assert!(is_conflict(&ended) || ended == Err(Error::Aborted) || ended == Ok(()), "{ended:?}");
        let (result, again) = first.read(Lba(0), Buf::with_len(BLOCK)).await;
        assert_eq!((result, &seen[..]), (Ok(()), &again[..]));
    });
}
