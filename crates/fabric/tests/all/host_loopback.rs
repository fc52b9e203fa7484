//! Host against target over real sockets: several reactors on each side, one medium.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use device::{AnyNamespace, FileNamespace, FileOptions, Memory, conformance};
use engine::net::TcpListener;
use engine::sync::{MailSender, mailbox};
use engine::{Reactor, ReactorConfig, time};
use fabric::host::{HostIdentity, Options, RemoteNamespace, discover};
use fabric::subsystem::Target;
use nvme::Nqn;

const BYTES: u64 = 4 << 20;

fn nqn() -> Nqn {
    "nqn.2026-01.example.yagura:loopback".parse().expect("an NQN")
}

/// Runs `main` on a reactor of its own; a test that hangs fails.
fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

/// A target on two reactor threads; it ends when this is dropped.
struct Served {
    address: SocketAddr,
    stop: Option<MailSender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Served {
    fn start(namespace: AnyNamespace) -> Served {
        let target = Target::default();
        target.add_subsystem(nqn(), "1").expect("a subsystem");
        target.add_namespace(&nqn(), 1, namespace).expect("a namespace");
        let (stop, stopped) = mailbox(1);
        let (hand_over, handed) = mailbox(16);
        let (tell, told) = mpsc::channel();
        let second = target.clone();
        let first = thread::spawn(move || {
            run(async move {
                let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
                tell.send(listener.local_addr()).expect("the test waits");
                let serving = engine::task::spawn(async move { target.serve(listener, vec![hand_over]).await });
                let stopped: Option<()> = stopped.recv().await;
                drop((stopped, serving));
            });
        });
        let second = thread::spawn(move || run(async move { second.serve_handed(handed).await }));
        let address = told.recv().expect("the target listens");
        Served { address, stop: Some(stop), threads: vec![first, second] }
    }

    fn options(&self) -> Options {
        Options::new(self.address, nqn(), 1)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() && !thread::panicking() {
                panic!("a thread of the target has panicked");
            }
        }
    }
}

fn memory(block_size: u32) -> AnyNamespace {
    Memory::new(BYTES, block_size, [7; 16]).expect("a memory namespace").into()
}

#[test]
fn every_promise_holds_over_sockets() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = FileOptions { create: Some(BYTES), ..FileOptions::default() };
    let file = run(FileNamespace::open(&directory.path().join("medium"), &options)).expect("a file namespace");
    for (namespace, digests) in [(memory(512), false), (memory(4096), true), (file.into(), false)] {
        let served = Served::start(namespace);
        run(async {
            let found = discover(served.address, &HostIdentity::random(), Duration::from_secs(5)).await;
            assert!(found.expect("a discovery log").iter().any(|found| found.subsystem == nqn()));
            let options = Options { header_digest: digests, data_digest: digests, ..served.options() };
            let namespace = Rc::new(RemoteNamespace::connect(options).await.expect("connected"));
            conformance::check_all(Rc::clone(&namespace), 1).await;
            assert_eq!(namespace.epoch(), 1, "the connection was lost: {:?}", namespace.last_error());
        });
    }
}

/// Compare-and-write over two target threads and three hosts: the medium's lock is what keeps them apart.
#[test]
fn hosts_on_many_threads_lose_no_increment() {
    let served = Served::start(memory(512));
    let hosts: Vec<_> = (0..3)
        .map(|_| {
            let options = served.options();
            thread::spawn(move || {
                run(async move {
                    let namespace = Rc::new(RemoteNamespace::connect(options).await.expect("connected"));
                    conformance::increments(Rc::clone(&namespace), 4, 25).await
                })
            })
        })
        .collect();
    let added: u64 = hosts.into_iter().map(|host| host.join().expect("no promise was broken")).sum();
    let counted = run(async {
        let namespace = RemoteNamespace::connect(served.options()).await.expect("connected");
        conformance::counter(&namespace).await
    });
    assert_eq!(counted, added, "a compare-and-write lost another host's increment");
}

#[test]
fn nobody_there_is_said_at_once() {
    let address = run(async {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        listener.local_addr()
    });
    let error = run(async { RemoteNamespace::connect(Options::new(address, nqn(), 1)).await.err() });
    let sentence = error.expect("nobody listens").to_string();
    assert!(sentence.contains(&address.to_string()) && sentence.contains("refused"), "{sentence}");
}
