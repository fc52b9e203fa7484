//! Host against target in the simulated world: every promise of a namespace holds over the wire, and what a broken wire or a
//! crashed target leaves open is exactly what the host says is open.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::{
    AnyNamespace, Durability, Error, Fault, FaultConfig, FileNamespace, FileOptions, Lba, Memory, Namespace,
    conformance,
};
use engine::sim::{NodeId, SimConfig, World};
use engine::{Buf, View, task, time};
use fabric::host::{HostIdentity, Options, RemoteNamespace, discover};
use fabric::subsystem::{Target, listen};
use nvme::Nqn;

const PORT: u16 = 4420;
const BYTES: u64 = 2 << 20;
const BLOCK: usize = 4096;

fn nqn() -> Nqn {
    "nqn.2026-01.example.yagura:test".parse().expect("an NQN")
}

#[derive(Clone, Copy, PartialEq)]
enum Medium {
    Memory([u8; 16]),
    File,
}

async fn serve(address: SocketAddr, medium: Medium) {
    let namespace: AnyNamespace = match medium {
        Medium::Memory(nguid) => Memory::new(BYTES, BLOCK as u32, nguid).expect("a memory namespace").into(),
        Medium::File => {
            let options = FileOptions { create: Some(BYTES), ..FileOptions::default() };
            FileNamespace::open(Path::new("/medium"), &options).await.expect("a file namespace").into()
        }
    };
    serve_namespace(address, namespace).await;
}

async fn serve_namespace(address: SocketAddr, namespace: impl Namespace + Send + Sync) {
    let target = Target::default();
    target.add_subsystem(nqn(), "1").expect("a subsystem");
    target.add_namespace(&nqn(), 1, AnyNamespace::other(namespace)).expect("a namespace");
    let listener = listen(address).await.expect("a free port");
    target.serve(listener, Vec::new()).await;
}

struct Scene {
    world: World,
    target: NodeId,
    host: NodeId,
    options: Options,
}

impl Scene {
    fn new(seed: u64, config: SimConfig, medium: Medium) -> Scene {
        let world = World::new(seed, config);
        let (target, host) = (world.node("target"), world.node("host"));
        let address = SocketAddr::new(world.addr(target), PORT);
        let mut options = Options::new(address, nqn(), 1);
        options.command_timeout = Duration::from_millis(500);
        options.connect_timeout = Duration::from_millis(500);
        options.keep_alive = Duration::from_millis(400);
        options.backoff_max = Duration::from_millis(100);
        let scene = Scene { world, target, host, options };
        scene.serve(medium);
        scene
    }

    fn serve(&self, medium: Medium) {
        self.world.spawn_on(self.target, serve(self.options.address, medium)).detach();
    }

    /// Runs a body on the host, with the options to connect by.
    fn run<F: Future<Output: 'static> + 'static>(&self, body: impl FnOnce(Options) -> F) -> F::Output {
        let task = self.world.spawn_on(self.host, body(self.options.clone()));
        let seed = self.world.seed();
        self.world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"))
    }
}

async fn connect(options: Options) -> RemoteNamespace {
    // The target may still be on its way up.
    loop {
        match RemoteNamespace::connect(options.clone()).await {
            Ok(namespace) => return namespace,
            Err(_) => time::sleep(Duration::from_millis(5)).await,
        }
    }
}

fn page(stamp: u64) -> View {
    let mut buf = Buf::with_len(BLOCK);
    buf.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    buf.freeze()
}

fn stamps(page: &[u8]) -> impl Iterator<Item = u64> {
    page.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
}

/// Reads until an answer comes, however often the connection breaks.
async fn read_page(namespace: &RemoteNamespace, lba: u64) -> Buf {
    loop {
        namespace.connected().await;
        let (result, buf) = namespace.read(Lba(lba), Buf::with_len(BLOCK)).await;
        match result {
            Ok(()) => return buf,
            Err(error) => assert!(is_link_error(&error), "{error}"),
        }
        time::sleep(Duration::from_millis(1)).await;
    }
}

fn is_link_error(error: &Error) -> bool {
    matches!(error, Error::NotConnected(_) | Error::Disconnected(_) | Error::Aborted)
}

#[test]
fn every_promise_holds_over_the_wire() {
    for seed in 0..6u64 {
        let medium = if seed % 2 == 0 { Medium::Memory([7; 16]) } else { Medium::File };
        let scene = Scene::new(seed, SimConfig::default(), medium);
        scene.run(|mut options| async move {
            options.header_digest = seed & 1 != 0;
            options.data_digest = seed & 2 != 0;
            // A shallow queue: callers wait for slots, fused pairs for two of them.
            options.depth = if seed < 3 { 3 } else { 64 };
            let namespace = Rc::new(connect(options).await);
            conformance::check_all(Rc::clone(&namespace), seed).await;
            large_transfers(&namespace).await;
            assert_eq!(namespace.epoch(), 1, "the connection was lost: {:?}", namespace.last_error());
        });
    }
}

/// Up to 1 MiB: R2T one way, many receives the other.
async fn large_transfers(namespace: &RemoteNamespace) {
    for blocks in [5usize, 32, 33, 256] {
        let mut data = Buf::with_len(blocks * BLOCK);
        data.chunks_exact_mut(8).enumerate().for_each(|(at, word)| word.copy_from_slice(&(at * 31).to_le_bytes()));
        let data = data.freeze();
        namespace.write(Lba(200), data.clone(), Durability::Stable).await.expect("written");
        let (result, buf) = namespace.read(Lba(200), Buf::with_len(data.len())).await;
        assert_eq!((result, *buf == *data), (Ok(()), true), "{blocks} blocks");
        namespace.compare(Lba(200), data).await.expect("equal");
    }
}

#[test]
fn discovery_names_the_subsystem() {
    let scene = Scene::new(1, SimConfig::default(), Medium::Memory([7; 16]));
    let found = scene.run(|options| async move {
        drop(connect(options.clone()).await);
        discover(options.address, &HostIdentity::random(), Duration::from_secs(1)).await.expect("a discovery log")
    });
    let subsystem = found.iter().find(|found| found.subsystem == nqn()).expect("the subsystem is named");
    assert_eq!(subsystem.socket_address(), Some(scene.options.address));
}

#[test]
fn wrong_names_are_refused_in_words() {
    let scene = Scene::new(1, SimConfig::default(), Medium::Memory([7; 16]));
    let (subsystem, nsid) = scene.run(|options| async move {
        drop(connect(options.clone()).await);
        let wrong = "nqn.2026-01.example.yagura:other".parse().expect("an NQN");
        let subsystem = RemoteNamespace::connect(Options { subsystem: wrong, ..options.clone() }).await;
        let nsid = RemoteNamespace::connect(Options { nsid: 9, ..options }).await;
        (subsystem.err().expect("refused").to_string(), nsid.err().expect("refused").to_string())
    });
    assert!(subsystem.contains("NQN"), "{subsystem}");
    assert!(nsid.contains("has no namespace 9"), "{nsid}");
}

/// Writes growing stamps to a page of its own, plainly or by compare-and-write, and checks each time what it finds.
///
/// Only a write of unknown outcome leaves a choice: then the page holds old or new stamps or, where a crash of the target tore
/// the write, both.
async fn writer(namespace: Rc<RemoteNamespace>, lba: u64, rounds: u64, swap: bool) {
    let (mut acknowledged, mut tried) = (0, 0);
    for _ in 0..rounds {
        let found = read_page(&namespace, lba).await;
        for stamp in stamps(&found) {
            assert!(stamp >= acknowledged, "page {lba}: {acknowledged} was acknowledged, {stamp} is found");
            assert!(stamp <= tried, "page {lba}: {stamp} was never written");
        }
        tried += 1;
        let result = match swap {
            true => namespace.compare_and_write(Lba(lba), found.freeze(), page(tried), Durability::Stable).await,
            false => namespace.write(Lba(lba), page(tried), Durability::Stable).await,
        };
        match result {
            Ok(()) => acknowledged = tried,
            // Only this task writes the page: an earlier write of unknown outcome has landed since it was read.
            Err(Error::CompareFailure) => {}
            Err(error) => {
                assert!(is_link_error(&error), "{error}");
                // A write on its way may land until its connection is surely dead on both sides.
                time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Eight writers for `rounds` rounds; returns how many connections were made.
async fn traffic(options: Options, rounds: u64) -> u64 {
    let namespace = Rc::new(connect(options).await);
    let writers: Vec<_> =
        (0..8).map(|lba| task::spawn(writer(Rc::clone(&namespace), lba, rounds, lba % 2 == 0))).collect();
    for writer in writers {
        writer.await;
    }
    namespace.epoch()
}

#[test]
fn resets_lose_nothing_that_was_acknowledged() {
    let mut connections = 0;
    for seed in 0..12 {
        let config = SimConfig { connection_reset_ppm: 5_000, ..SimConfig::default() };
        let scene = Scene::new(seed, config, Medium::File);
        connections += scene.run(|mut options| async move {
            options.header_digest = seed % 2 == 0;
            options.data_digest = seed % 3 == 0;
            traffic(options, 40).await
        });
    }
    assert!(connections > 40, "only {connections} connections were needed: nothing was reset");
}

#[test]
fn a_crashed_target_comes_back_with_all_that_was_acknowledged() {
    for seed in 0..12 {
        let scene = Scene::new(seed, SimConfig::default(), Medium::File);
        let task = scene.world.spawn_on(scene.host, traffic(scene.options.clone(), 400));
        for crash in 0..4 {
            scene.world.run_for(Duration::from_millis(8 + seed + crash * 5)).expect("no stall");
            scene.world.crash(scene.target);
            scene.world.run_for(Duration::from_millis(30)).expect("no stall");
            scene.world.restart(scene.target);
            scene.serve(Medium::File);
            scene.world.run_for(Duration::from_millis(1500)).expect("no stall");
        }
        let connections = scene.world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        assert!(connections > 1, "seed {seed}: the crashes missed the traffic");
    }
}

#[test]
fn a_silent_target_is_left_in_time_and_found_again() {
    let scene = Scene::new(3, SimConfig::default(), Medium::Memory([7; 16]));
    let namespace = scene.run(|options| async move { Rc::new(connect(options).await) });
    scene.world.pause(scene.target);
    let during = Rc::clone(&namespace);
    scene.run(|_| async move {
        let started = time::now();
        let error = during.write(Lba(0), page(1), Durability::Stable).await.expect_err("nobody answers");
        assert!(error.outcome_unknown(), "{error}");
        assert!(started.elapsed() < Duration::from_millis(800), "it took {:?}", started.elapsed());
        let error = during.write(Lba(0), page(1), Durability::Stable).await.expect_err("not connected");
        assert!(matches!(error, Error::NotConnected(_)), "{error}");
        assert!(!during.is_connected());
        time::sleep(Duration::from_millis(1)).await;
        assert!(during.last_error().is_some());
    });
    scene.world.resume(scene.target);
    scene.run(|_| async move {
        namespace.connected().await;
        assert_eq!(namespace.epoch(), 2);
        namespace.write(Lba(0), page(2), Durability::Stable).await.expect("written");
    });
}

/// Once for each change of what is there, not with every try: a change of a pool's members may take hours.
#[test]
fn another_namespace_at_the_same_place_is_said_once() {
    let log = crate::log::of(|| {
        let scene = Scene::new(4, SimConfig::default(), Medium::Memory([7; 16]));
        let namespace = scene.run(|options| async move { Rc::new(connect(options).await) });
        let serve = |nguid: u8| {
            scene.world.crash(scene.target);
            scene.world.restart(scene.target);
            scene.serve(Medium::Memory([nguid; 16]));
            scene.world.run_for(Duration::from_secs(30)).expect("no stall");
        };
        [8, 9, 7, 9].into_iter().for_each(serve);
        drop(namespace);
    });
    let said = log.lines().filter(|line| line.contains("ERROR") && line.contains("another namespace")).count();
    assert_eq!(said, 3, "8, 9 and 9 again");
}

#[test]
fn another_namespace_at_the_same_place_is_refused() {
    let scene = Scene::new(4, SimConfig::default(), Medium::Memory([7; 16]));
    let namespace = scene.run(|options| async move { Rc::new(connect(options).await) });
    scene.world.crash(scene.target);
    scene.world.restart(scene.target);
    scene.serve(Medium::Memory([8; 16]));
    scene.world.run_for(Duration::from_secs(3)).expect("no stall");
    let name = namespace.last_error().expect("a reason");
    assert!(!namespace.is_connected() && name.contains("another namespace"), "{name}");
    scene.world.crash(scene.target);
    scene.world.restart(scene.target);
    scene.serve(Medium::Memory([7; 16]));
    scene.run(|_| async move { namespace.connected().await });
}

#[test]
fn an_expected_namespace_is_down_until_it_is_found() {
    let scene = Scene::new(5, SimConfig::default(), Medium::Memory([7; 16]));
    scene.run(|options| async move {
        let expected = connect(options.clone()).await.info();
        let namespace = RemoteNamespace::expecting(options.clone(), expected.clone());
        assert!(!namespace.is_connected());
        let (result, buf) = namespace.read(Lba(0), Buf::with_len(BLOCK)).await;
        assert!(matches!(result, Err(Error::NotConnected(_))) && buf.len() == BLOCK);
        namespace.connected().await;
        assert_eq!(namespace.info(), expected);
        let other = device::NamespaceInfo { nguid: [9; 16], ..expected };
        let namespace = RemoteNamespace::expecting(options, other);
        time::sleep(Duration::from_secs(2)).await;
        assert!(!namespace.is_connected() && namespace.last_error().is_some_and(|error| error.contains("another")));
    });
}

/// The target tells of a namespace that goes; the host leaves, and is back when the namespace is.
#[test]
fn a_namespace_that_is_taken_away_and_put_back() {
    let world = World::new(6, SimConfig::default());
    let (node, host) = (world.node("target"), world.node("host"));
    let options = Options::new(SocketAddr::new(world.addr(node), PORT), nqn(), 1);
    let address = options.address;
    let target: Target = Target::default();
    target.add_subsystem(nqn(), "1").expect("a subsystem");
    let memory = || Memory::new(BYTES, BLOCK as u32, [7; 16]).expect("a memory namespace");
    target.add_namespace(&nqn(), 1, memory()).expect("a namespace");
    let serving = target.clone();
    world
        .spawn_on(node, async move {
            let listener = listen(address).await.expect("a free port");
            serving.serve(listener, Vec::new()).await;
        })
        .detach();
    let task = world.spawn_on(host, async move {
        let namespace = connect(options).await;
        target.remove_namespace(&nqn(), 1).expect("it is there");
        while namespace.is_connected() {
            namespace.changed().await;
        }
        time::sleep(Duration::from_secs(3)).await;
        let reason = namespace.last_error().expect("a reason");
        assert!(reason.contains("has no namespace 1"), "{reason}");
        target.add_namespace(&nqn(), 1, memory()).expect("it is gone");
        namespace.connected().await;
        namespace.write(Lba(0), page(1), Durability::Stable).await.expect("written");
        namespace.disconnect().await;
    });
    world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
}

/// Futures dropped at any moment leave slots, buffers and the link in order.
#[test]
fn abandoned_commands_do_no_harm() {
    for seed in 0..6 {
        let scene = Scene::new(seed, SimConfig::default(), Medium::Memory([7; 16]));
        scene.run(|mut options| async move {
            options.depth = 4;
            let namespace = Rc::new(connect(options).await);
            for round in 0..200u64 {
                let patience = Duration::from_micros(task::random_u64() % 400);
                let lba = Lba(round % 16);
                match round % 3 {
                    0 => drop(time::timeout(patience, namespace.read(lba, Buf::with_len(BLOCK * 16))).await),
                    1 => drop(time::timeout(patience, namespace.write(lba, page(round), Durability::Stable)).await),
                    _ => {
                        let swap = namespace.compare_and_write(lba, page(0), page(round), Durability::Stable);
                        drop(time::timeout(patience, swap).await);
                    }
                }
            }
            conformance::check_all(Rc::clone(&namespace), seed).await;
            assert_eq!(namespace.epoch(), 1, "the connection was lost: {:?}", namespace.last_error());
        });
    }
}

/// A command's time begins when it gets its place in the queue: with a slow medium and more callers than places, the last
/// callers wait longer than any command may take, and nothing is wrong with the target.
#[test]
fn waiting_for_a_place_in_the_queue_is_no_timeout() {
    let world = World::new(3, SimConfig::default());
    let (target, host) = (world.node("target"), world.node("host"));
    let mut options = Options::new(SocketAddr::new(world.addr(target), PORT), nqn(), 1);
    (options.depth, options.command_timeout) = (4, Duration::from_millis(500));
    let address = options.address;
    world
        .spawn_on(target, async move {
            let delay = Duration::from_millis(100)..Duration::from_millis(100);
            let memory = Arc::new(Memory::new(BYTES, BLOCK as u32, [7; 16]).expect("a memory namespace"));
            serve_namespace(address, Fault::new(memory, FaultConfig { delay, ..FaultConfig::default() })).await;
        })
        .detach();
    let body = async move {
        let namespace = Rc::new(connect(options).await);
        let reads = (0..40).map(|lba| {
            let namespace = Rc::clone(&namespace);
            task::spawn(async move { namespace.read(Lba(lba), Buf::with_len(BLOCK)).await.0 })
        });
        for (lba, read) in reads.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(read.await, Ok(()), "block {lba}");
        }
        assert_eq!(namespace.epoch(), 1, "the connection was lost: {:?}", namespace.last_error());
    };
    world.run_until(world.spawn_on(host, body)).unwrap_or_else(|stalled| panic!("{stalled}"));
}

/// What outlasts its time is aborted first: a target that executes it already runs it to its end, and nothing is lost for that.
/// What does not end even then ends the association.
#[test]
fn a_slow_command_has_a_grace_and_a_stuck_one_ends_the_association() {
    for (slow, stuck) in [(600, false), (5_000, true)] {
        let world = World::new(7, SimConfig::default());
        let (target, host) = (world.node("target"), world.node("host"));
        let mut options = Options::new(SocketAddr::new(world.addr(target), PORT), nqn(), 1);
        options.command_timeout = Duration::from_millis(500);
        let address = options.address;
        world
            .spawn_on(target, async move {
                let delay = Duration::from_millis(slow)..Duration::from_millis(slow);
                let memory = Arc::new(Memory::new(BYTES, BLOCK as u32, [7; 16]).expect("a memory namespace"));
                serve_namespace(address, Fault::new(memory, FaultConfig { delay, ..FaultConfig::default() })).await;
            })
            .detach();
        let body = async move {
            let namespace = connect(options).await;
            let result = namespace.write(Lba(0), page(1), Durability::Stable).await;
            assert_eq!(result, if stuck { Err(Error::Aborted) } else { Ok(()) }, "{slow} ms");
            assert_eq!(namespace.is_connected(), !stuck, "{slow} ms");
        };
        world.run_until(world.spawn_on(host, body)).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
}
