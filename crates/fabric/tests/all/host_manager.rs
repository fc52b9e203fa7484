//! Namespaces made, handed out and deleted by a host, on a drive's target, over real sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use device::{Drive, FormatOptions, Lba, Namespace};
use engine::net::TcpListener;
use engine::{Buf, Reactor, ReactorConfig, task, time};
use fabric::host::{ConnectError, HostIdentity, Manager, Options, RemoteNamespace, Wanted};
use fabric::subsystem::{HostConfig, Target};
use nvme::{Nqn, Status};

fn name(last: &str) -> Nqn {
    format!("nqn.2026-01.example.yagura:{last}").parse().expect("an NQN")
}

fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

/// The status of what was refused.
fn refused<T>(outcome: Result<T, ConnectError>) -> Status {
    match outcome {
        Err(ConnectError::Refused { status, .. }) => status.kind(),
        Err(other) => panic!("refused in another way: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

/// The target of a drive that is made, until the task is dropped.
async fn served(path: &Path, subsystem: &Nqn) -> (Target, SocketAddr, task::Task<()>) {
    let options = FormatOptions { create: Some(64 << 20), extent_bytes: 1 << 20, ..FormatOptions::default() };
    let drive = Drive::format(path, &options).await.expect("a drive");
    let target = Target::default();
    target.add_subsystem(subsystem.clone(), "1").expect("a subsystem");
    target.add_store(subsystem, Arc::new(drive)).expect("a store");
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let (address, control) = (listener.local_addr(), target.clone());
    (control, address, task::spawn(async move { match target.serve(listener, Vec::new()).await {} }))
}

#[test]
fn a_namespace_is_made_for_a_host_that_may_not_make_any() {
    let folder = tempfile::tempdir().expect("a folder");
    run(async {
        let (subsystem, operator, user) = (name("drive"), name("operator"), name("user"));
        let (control, address, _serving) = served(&folder.path().join("drive"), &subsystem).await;
        let manages = HostConfig { manage: true, ..HostConfig::default() };
        control.allow_host(&subsystem, &operator, manages).expect("a host");
        control.allow_host(&subsystem, &user, HostConfig::default()).expect("a host");
        let by = |nqn: &Nqn| {
            let host = HostIdentity { nqn: nqn.clone(), ..HostIdentity::random() };
            Options { host, ..Options::new(address, subsystem.clone(), 1) }
        };

        let manager = Manager::connect(by(&operator)).await.expect("a manager");
        let before = manager.capacity().await.expect("a capacity");
        assert!(before.manages && before.total >= before.unallocated && before.unallocated >= 32 << 20, "{before:?}");
        assert_eq!(manager.namespaces().await.expect("a list"), []);

        // What can't be made.
        let formats = manager.formats(&before).await.expect("formats");
        let wanted = Wanted { bytes: 8 << 20, block_size: 4096, thin: false };
        let format = manager.create(&formats, Wanted { block_size: 1024, ..wanted }).await;
        assert_eq!(refused(format), Status::INVALID_FORMAT);
        let size = manager.create(&formats, Wanted { bytes: 1 << 40, ..wanted }).await;
        assert_eq!(refused(size), Status::INSUFFICIENT_CAPACITY);

        // What can; a thin one promises more than there is.
        let thin =
            manager.create(&formats, Wanted { bytes: 1 << 30, thin: true, ..wanted }).await.expect("a thin namespace");
        let nsid = manager.create(&formats, wanted).await.expect("a namespace");
        let listed = manager.namespaces().await.expect("a list");
        let seen: Vec<_> = listed.iter().map(|namespace| (namespace.nsid, namespace.bytes)).collect();
        assert_eq!(seen, [(thin, 1 << 30), (nsid, 8 << 20)]);
        assert!(listed.iter().all(|namespace| namespace.nguid != [0; 16]));

        // A host that may not manage sees what it is given, from its next controller on too.
        let guest = Manager::connect(by(&user)).await.expect("an admin queue");
        assert_eq!(refused(guest.create(&formats, wanted).await), Status::INVALID_OPCODE);
        assert!(!guest.capacity().await.expect("a capacity").manages);
        assert_eq!(refused(guest.formats(&guest.capacity().await.expect("a capacity")).await), Status::INVALID_OPCODE);
        let options = Options { nsid, ..by(&user) };
        assert!(matches!(RemoteNamespace::connect(options.clone()).await, Err(ConnectError::NoNamespace { .. })));
        manager.attach(nsid, guest.controller()).await.expect("attached");
        manager.attach(nsid, guest.controller()).await.expect("attached twice is attached");
        guest.leave().await;
        let remote = RemoteNamespace::connect(options.clone()).await.expect("the namespace is there");
        remote.write(Lba(0), Buf::zeroed(4096).freeze(), device::Durability::Stable).await.expect("written");
        drop(remote);

        // One that makes for all: a host that was never named has it, and makes none of its own.
        let planner = name("planner");
        let for_all = HostConfig { manage: true, makes_for_all: true, ..HostConfig::default() };
        control.allow_host(&subsystem, &planner, for_all).expect("a host");
        let planner = Manager::connect(by(&planner)).await.expect("a manager");
        let open = planner.create(&formats, wanted).await.expect("a namespace");
        let remote = RemoteNamespace::connect(Options { nsid: open, ..by(&user) }).await.expect("it is there");
        drop(remote);
        planner.leave().await;

        // Gone, and its room with it.
        for nsid in [nsid, thin, open] {
            manager.delete(nsid).await.expect("deleted");
        }
        assert_eq!(refused(manager.delete(nsid).await), Status::INVALID_FIELD);
        assert_eq!(manager.namespaces().await.expect("a list"), []);
        assert_eq!(manager.capacity().await.expect("a capacity"), before);
        assert!(matches!(RemoteNamespace::connect(options).await, Err(ConnectError::NoNamespace { .. })));
        manager.leave().await;
    });
}
