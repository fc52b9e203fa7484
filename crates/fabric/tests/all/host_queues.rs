//! Associations with several I/O queues, on one reactor and over several, and with several namespaces.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use device::{AnyNamespace, Durability, Error, Lba, Memory, Namespace, conformance};
use engine::net::TcpListener;
use engine::sim::{NodeId, SimConfig, World};
use engine::{Buf, Reactor, ReactorConfig, task, time};
use fabric::host::{Options, PerThread, RemoteNamespace};
use fabric::subsystem::{Target, listen};
use nvme::Nqn;

const PORT: u16 = 4420;
const BLOCK: usize = 4096;

fn nqn() -> Nqn {
    "nqn.2026-01.example.yagura:queues".parse().expect("an NQN")
}

fn target() -> Target {
    let target = Target::default();
    target.add_subsystem(nqn(), "1").expect("a subsystem");
    for nsid in [1, 2, 7] {
        let memory = Memory::new(2 << 20, BLOCK as u32, [nsid as u8; 16]).expect("a memory namespace");
        target.add_namespace(&nqn(), nsid, memory).expect("a namespace");
    }
    target
}

struct Scene {
    world: World,
    node: NodeId,
    host: NodeId,
    options: Options,
    target: Target,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let world = World::new(seed, SimConfig::default());
        let (node, host) = (world.node("target"), world.node("host"));
        let mut options = Options::new(SocketAddr::new(world.addr(node), PORT), nqn(), 1);
        options.keep_alive = Duration::from_millis(400);
        options.backoff_max = Duration::from_millis(100);
        let scene = Scene { world, node, host, options, target: target() };
        scene.serve();
        scene
    }

    fn serve(&self) {
        let (target, address) = (self.target.clone(), self.options.address);
        let serving = async move { target.serve(listen(address).await.expect("a free port"), Vec::new()).await };
        self.world.spawn_on(self.node, serving).detach();
        self.world.run_for(Duration::from_millis(10)).expect("no stall");
    }

    fn run<T: 'static>(&self, body: impl Future<Output = T> + 'static) -> T {
        let task = self.world.spawn_on(self.host, body);
        self.world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"))
    }
}

fn page(byte: u8) -> engine::View {
    let mut buf = Buf::zeroed(BLOCK);
    buf.fill(byte);
    buf.freeze()
}

async fn read(namespace: &RemoteNamespace, lba: u64) -> Result<u8, Error> {
    let (result, buf) = namespace.read(Lba(lba), Buf::with_len(BLOCK)).await;
    result.map(|()| buf[0])
}

#[test]
fn several_queues_share_the_work_of_one_reactor() {
    let scene = Scene::new(1);
    let options = Options { queues: 3, depth: 2, ..scene.options.clone() };
    let target = scene.target.clone();
    scene.run(async move {
        let namespace = Rc::new(RemoteNamespace::connect(options).await.expect("connected"));
        assert_eq!(namespace.queues(), 3);
        assert_eq!(target.stats().connections(), 4, "an admin queue and three of I/O");
        conformance::check_all(Rc::clone(&namespace), 1).await;
        assert_eq!(namespace.epoch(), 1, "the connection was lost: {:?}", namespace.last_error());
    });
}

#[test]
fn the_namespaces_of_a_subsystem_share_an_association() {
    let scene = Scene::new(2);
    let (options, target) = (scene.options.clone(), scene.target.clone());
    let [first, second] = scene.run(async move {
        let first = RemoteNamespace::connect(options).await.expect("connected");
        assert_eq!(first.namespaces().await.expect("a list"), [1, 2, 7]);
        let second = first.sibling(2).await.expect("it is there");
        assert_eq!(target.stats().connections(), 2, "one association");
        let missing = first.sibling(3).await.err().expect("there is none").to_string();
        assert!(missing.contains("no namespace 3"), "{missing}");
        first.write(Lba(0), page(1), Durability::Stable).await.expect("written");
        second.write(Lba(0), page(2), Durability::Stable).await.expect("written");
        assert_eq!((read(&first, 0).await, read(&second, 0).await), (Ok(1), Ok(2)));
        [first, second].map(Rc::new)
    });
    // One of them goes, and with it what was sent to either; the other is back at once, the first when it is there again.
    let removed = scene.target.remove_namespace(&nqn(), 2).expect("it is there");
    let (one, two) = (Rc::clone(&first), Rc::clone(&second));
    scene.run(async move {
        while two.is_connected() {
            two.changed().await;
        }
        one.connected().await;
        assert_eq!(read(&one, 0).await, Ok(1));
        time::sleep(Duration::from_secs(1)).await;
        assert!(one.is_connected() && !two.is_connected());
        assert!(two.last_error().is_some_and(|reason| reason.contains("no namespace 2")));
        assert!(matches!(read(&two, 0).await, Err(Error::NotConnected(_))));
    });
    let before = first.epoch();
    scene.target.add_namespace(&nqn(), 2, removed).expect("it is gone");
    scene.run(async move {
        second.connected().await;
        assert_eq!(read(&second, 0).await, Ok(2));
        assert_eq!(first.epoch(), before, "the other one needed no new association for that");
    });
}

#[test]
fn an_association_that_is_joined_ends_and_returns_for_all() {
    let scene = Scene::new(3);
    let options = Options { queues_elsewhere: 2, ..scene.options.clone() };
    let target = scene.target.clone();
    let all = scene.run(async move {
        let owner = RemoteNamespace::connect(options).await.expect("connected");
        let joined = [(); 2].map(|()| RemoteNamespace::join(owner.joiner()));
        for namespace in &joined {
            namespace.connected().await;
        }
        assert_eq!(target.stats().connections(), 4, "an admin queue and three of I/O");
        let surplus = RemoteNamespace::join(owner.joiner());
        time::sleep(Duration::from_millis(50)).await;
        assert!(surplus.last_error().is_some_and(|reason| reason.contains("queues_elsewhere")));
        owner.write(Lba(3), page(5), Durability::Stable).await.expect("written");
        assert_eq!(read(&joined[1], 3).await, Ok(5));
        let [second, third] = joined;
        [owner, second, third].map(Rc::new)
    });
    for round in 1..4 {
        match round {
            1 => scene.world.reset_connections(scene.host, scene.node),
            2 => scene.world.partition(scene.host, scene.node),
            _ => {
                scene.world.crash(scene.node);
                scene.world.restart(scene.node);
            }
        }
        scene.world.run_for(Duration::from_secs(2)).expect("no stall");
        scene.world.heal_all();
        if round == 3 {
            scene.serve();
        }
        let all = all.clone();
        scene.run(async move {
            for namespace in &all {
                namespace.connected().await;
                assert_eq!(read(namespace, 3).await, Ok(5), "round {round}");
                assert!(namespace.epoch() > round, "round {round}: the association outlived its end");
            }
        });
    }
}

fn run(main: impl Future<Output = ()>) {
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}

/// A thread that serves, after what it does `first`, until it is ended.
struct Served {
    address: SocketAddr,
    end: engine::sync::MailSender<()>,
    thread: thread::JoinHandle<()>,
}

fn serve<F: Future<Output = ()>>(target: &Target, first: impl FnOnce() -> F + Send + 'static) -> Served {
    let (tell, told) = mpsc::channel();
    let (end, ended) = engine::sync::mailbox::<()>(1);
    let serving = target.clone();
    let thread = thread::spawn(move || {
        run(async move {
            first().await;
            let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
            tell.send(listener.local_addr()).expect("the test waits");
            let task = task::spawn(async move { serving.serve(listener, Vec::new()).await });
            let gone: Option<()> = ended.recv().await;
            drop((gone, task));
        });
    });
    Served { address: told.recv().expect("the target listens"), end, thread }
}

impl Served {
    fn end(self) {
        drop(self.end);
        self.thread.join().expect("no panic");
    }
}

/// On real reactors: a thread each, one association, no increment lost.
#[test]
fn reactors_join_one_association() {
    let served = serve(&target(), || async {});
    let address = served.address;
    run(async move {
        let options = Options { queues_elsewhere: 3, ..Options::new(address, nqn(), 1) };
        let owner = Rc::new(RemoteNamespace::connect(options).await.expect("connected"));
        let (give, sums) = engine::sync::mailbox::<u64>(3);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (joiner, give) = (owner.joiner(), give.clone());
                thread::spawn(move || {
                    run(async move {
                        let joined = Rc::new(RemoteNamespace::join(joiner));
                        joined.connected().await;
                        let added = conformance::increments(Rc::clone(&joined), 4, 25).await;
                        give.send(added).await.expect("the owner waits");
                    });
                })
            })
            .collect();
        let mut added = conformance::increments(Rc::clone(&owner), 4, 25).await;
        for _ in 0..3 {
            added += sums.recv().await.expect("a sum");
        }
        assert_eq!(conformance::counter(&*owner).await, added, "an increment was lost");
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
    served.end();
}

/// A target whose namespace is itself remote: each of its threads has a queue of its own, and what hosts are told of the target
/// behind it is told again.
#[test]
fn a_target_serves_what_is_remote_to_it() {
    let behind = serve(&target(), || async {});
    let address = behind.address;
    run(async move {
        let options = Options { queues_elsewhere: 2, ..Options::new(address, nqn(), 1) };
        let remote = PerThread::new(RemoteNamespace::connect(options).await.expect("connected"));
        assert!(remote.link().is_up && remote.link().epoch == 1);
        let front = Target::default();
        front.add_subsystem(nqn(), "2").expect("a subsystem");
        front.add_namespace(&nqn(), 1, AnyNamespace::other(remote.clone())).expect("a namespace");
        let joining = || {
            let remote = remote.clone();
            move || async move { remote.join(Duration::from_secs(30)).await.expect("a queue of its own") }
        };
        let doors = [serve(&front, joining()), serve(&front, joining())];
        let mut added = 0;
        for door in &doors {
            let host = RemoteNamespace::connect(Options::new(door.address, nqn(), 1)).await.expect("connected");
            added += conformance::increments(Rc::new(host), 4, 25).await;
        }
        assert_eq!(conformance::counter(&remote).await, added, "an increment was lost");
        // Whoever only asks takes no queue from those who serve, and needs no reactor.
        let asked = remote.clone();
        let told = thread::spawn(move || (asked.info().blocks, asked.link().is_up)).join().expect("no panic");
        assert_eq!(told, (remote.info().blocks, false));
        doors.into_iter().for_each(Served::end);
        remote.leave();
    });
    behind.end();
}
