//! One namespace over two paths, in the simulated world: paths that are cut, stalled, reset and made inaccessible at any step.
//! What is acknowledged stays, what is late does no harm, and histories are linearizable.

mod replay;
mod states;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use check::{Action, Recorder};
use device::{AnyNamespace, Durability, Error, Fault, FaultConfig, Lba, Memory, Namespace, conformance};
use engine::sim::{NodeId, SimConfig, World};
use engine::{Buf, View, task, time};
use fabric::host::{Multipath, MultipathOptions, Options, PathPolicy};
use fabric::subsystem::{PortConfig, PortId, Target, listen};
use nvme::{AnaState, Nqn};

const PORT: u16 = 4420;
const BYTES: u64 = 2 << 20;
const BLOCK: usize = 4096;
const KEEP_ALIVE: Duration = Duration::from_millis(400);

fn nqn() -> Nqn {
    "nqn.2026-01.example.yagura:paths".parse().expect("an NQN")
}

/// A subsystem that is served by two nodes, as by the two controllers of an array: one medium, one lock per range.
struct Scene {
    world: World,
    ports: [NodeId; 2],
    host: NodeId,
    options: MultipathOptions,
    target: Target,
}

impl Scene {
    fn new(seed: u64, config: SimConfig) -> Scene {
        let world = World::new(seed, config);
        let ports = [world.node("port 1"), world.node("port 2")];
        let host = world.node("host");
        let memory = Arc::new(Memory::new(BYTES, BLOCK as u32, [7; 16]).expect("a memory namespace"));
        let delay = Duration::from_micros(20)..Duration::from_micros(200);
        let namespace = Fault::new(memory, FaultConfig { delay, ..FaultConfig::default() });
        let target = Target::default();
        target.add_subsystem(nqn(), "1").expect("a subsystem");
        target.add_namespace(&nqn(), 1, AnyNamespace::other(namespace)).expect("a namespace");
        let [first, second] = ports.map(|port| SocketAddr::new(world.addr(port), PORT));
        let mut options = Options::new(first, nqn(), 1);
        options.command_timeout = Duration::from_millis(500);
        options.connect_timeout = Duration::from_millis(500);
        options.keep_alive = KEEP_ALIVE;
        options.backoff_max = Duration::from_millis(100);
        let options = MultipathOptions::new(options, &[second]);
        let scene = Scene { world, ports, host, options, target };
        for port in scene.ports {
            scene.target.add_port(PortConfig::new(scene.port_id(port))).expect("a port");
        }
        scene.ports.iter().for_each(|&port| scene.serve(port));
        scene
    }

    fn port_id(&self, port: NodeId) -> PortId {
        PortId(if port == self.ports[0] { 1 } else { 2 })
    }

    /// Sets the namespace's ANA state at a port (0 or 1).
    fn state(&self, port: usize, state: AnaState) {
        let id = PortId(port as u16 + 1);
        self.target.set_ana_state(&nqn(), id, 1, state).expect("a state");
    }

    fn serve(&self, port: NodeId) {
        let (target, address) = (self.target.clone(), SocketAddr::new(self.world.addr(port), PORT));
        let id = self.port_id(port);
        let serving = async move {
            let listener = listen(address).await.expect("a free port");
            target.serve_port(id, listener, Vec::new()).await.expect("it was added");
        };
        self.world.spawn_on(port, serving).detach();
    }

    fn connect(&self) -> Rc<Multipath> {
        let options = self.options.clone();
        self.run(async move {
            loop {
                // The target may still be on its way up.
                match Multipath::connect(options.clone()).await {
                    Ok(paths) if paths.paths().iter().all(|path| path.ana.is_some()) => return Rc::new(paths),
                    _ => time::sleep(Duration::from_millis(5)).await,
                }
            }
        })
    }

    fn run<T: 'static>(&self, body: impl Future<Output = T> + 'static) -> T {
        let task = self.world.spawn_on(self.host, body);
        let seed = self.world.seed();
        self.world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"))
    }

    fn run_for(&self, duration: Duration) {
        self.world.run_for(duration).expect("no stall");
    }

    /// What `port` sends and gets takes this long.
    fn delay(&self, port: usize, delay: std::ops::Range<Duration>) {
        self.world.set_link_delay(self.host, self.ports[port], delay);
    }
}

fn usual() -> std::ops::Range<Duration> {
    SimConfig::default().link_delay
}

fn page(stamp: u64) -> View {
    let mut buf = Buf::with_len(BLOCK);
    buf.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    buf.freeze()
}

fn stamp(page: &[u8]) -> u64 {
    let first = u64::from_le_bytes(page[..8].try_into().expect("8 bytes"));
    let whole = page.chunks_exact(8).all(|word| word == first.to_le_bytes());
    assert!(whole, "the page is torn");
    first
}

async fn read(paths: &Multipath, lba: u64) -> u64 {
    let (result, buf) = paths.read(Lba(lba), Buf::with_len(BLOCK)).await;
    result.expect("read");
    stamp(&buf)
}

#[test]
fn every_promise_holds_over_two_paths() {
    for (seed, policy) in [(0, PathPolicy::RoundRobin), (1, PathPolicy::LeastQueued)] {
        let mut scene = Scene::new(seed, SimConfig::default());
        scene.options.policy = policy;
        let paths = scene.connect();
        scene.run(async move {
            conformance::check_all(Rc::clone(&paths), seed).await;
            for path in paths.paths() {
                assert_eq!((path.epoch, path.under_way), (1, 0), "{path:?}");
            }
        });
    }
}

/// A path goes and returns, again and again, while eight tasks work: nobody sees more of it than time.
#[test]
fn a_path_that_is_cut_and_returns_is_no_error() {
    for seed in 0..4 {
        let scene = Scene::new(seed, SimConfig::default());
        let paths = scene.connect();
        let worker = |lba: u64| {
            let paths = Rc::clone(&paths);
            async move {
                for round in 1..=60u64 {
                    paths.write(Lba(lba), page(round), Durability::Stable).await.expect("written");
                    assert_eq!(read(&paths, lba).await, round, "block {lba}");
                    time::sleep(Duration::from_millis(100)).await;
                }
            }
        };
        let workers: Vec<_> = (0..8).map(|lba| scene.world.spawn_on(scene.host, worker(lba))).collect();
        for cut in 0..6usize {
            scene.run_for(Duration::from_millis(300 + seed));
            let port = scene.ports[cut % 2];
            match cut % 3 {
                0 => scene.world.partition(scene.host, port),
                1 => scene.world.reset_connections(scene.host, port),
                _ => scene.world.pause(port),
            }
            scene.run_for(Duration::from_millis(900));
            scene.world.heal_all();
            scene.world.resume(port);
        }
        for worker in workers {
            scene.run(worker);
        }
        assert!(paths.paths().iter().all(|path| path.epoch > 1), "seed {seed}: the faults missed the traffic");
    }
}

/// The hazard of multipath: a write stalls on one path, is given up there, and a newer one is acknowledged over the other. The
/// late write must not land on top. What prevents it is the target's keep alive timer, and that nothing overlapping is
/// acknowledged before that has surely run out.
#[test]
fn a_late_write_over_a_stalled_path_never_covers_a_newer_one() {
    let mut stalled = 0;
    for seed in 0..40u64 {
        let mut scene = Scene::new(seed, SimConfig::default());
        // The host gives up long before the target's keep alive timer would: the late write finds its association alive.
        scene.options.paths.iter_mut().for_each(|path| path.command_timeout = Duration::from_millis(100));
        let paths = scene.connect();
        let slow = Duration::from_millis(100 + seed * 20);
        scene.delay(0, slow..slow + Duration::from_millis(1));
        let writer = Rc::clone(&paths);
        let old = scene.world.spawn_on(scene.host, async move {
            let (first, second) = (page(1), page(2));
            let writes = [first, second].map(|data| {
                let writer = Rc::clone(&writer);
                task::spawn(async move { writer.write(Lba(0), data, Durability::Stable).await })
            });
            for write in writes {
                write.await.expect("written in the end");
            }
            let newer = time::now();
            writer.write(Lba(0), page(3), Durability::Stable).await.expect("written");
            for _ in 0..400 {
                assert_eq!(read(&writer, 0).await, 3, "an old write has landed late");
                time::sleep(Duration::from_millis(10)).await;
            }
            newer
        });
        let lost = scene.run(old);
        stalled += usize::from(lost.as_nanos() > 1_000_000_000);
    }
    assert!(stalled > 10, "only {stalled} of the writes were stalled");
}

/// As above, with the newer write called while the old one is in doubt: it waits.
#[test]
fn a_newer_write_waits_for_one_in_doubt() {
    for seed in 0..20u64 {
        let scene = Scene::new(seed, SimConfig::default());
        let paths = scene.connect();
        let stall = Duration::from_millis(300 + seed * 20);
        scene.delay(0, stall..stall + Duration::from_millis(1));
        let body = async move {
            // One of the two goes over the path that stalls.
            let old: Vec<_> = (0..2)
                .map(|lba| {
                    let paths = Rc::clone(&paths);
                    task::spawn(async move { paths.write(Lba(lba), page(1), Durability::Stable).await })
                })
                .collect();
            // By now its path has been given up, and its association has not surely ended.
            time::sleep(Duration::from_millis(900)).await;
            for lba in 0..2 {
                paths.write(Lba(lba), page(2), Durability::Stable).await.expect("written");
            }
            for _ in 0..200 {
                assert_eq!(
                    (read(&paths, 0).await, read(&paths, 1).await),
                    (2, 2),
                    "an old write came after a newer one"
                );
                time::sleep(Duration::from_millis(20)).await;
            }
            for old in old {
                old.await.expect("written before the newer one");
            }
        };
        scene.run(body);
    }
}

/// A caller that gives up leaves its write in doubt all the same: while its association lives and after it was lost.
#[test]
fn a_dropped_write_on_a_stalled_path_holds_newer_ones_back() {
    for seed in 0..24u64 {
        let mut scene = Scene::new(seed, SimConfig::default());
        // The host gives up long before the target's keep alive timer would: the late write finds its association alive.
        scene.options.paths.iter_mut().for_each(|path| path.command_timeout = Duration::from_millis(100));
        let paths = scene.connect();
        let stall = Duration::from_millis(100 + seed * 10);
        scene.delay(0, stall..stall + Duration::from_millis(1));
        scene.run(async move {
            for lba in 0..2 {
                let write = paths.write(Lba(lba), page(1), Durability::Stable);
                drop(time::timeout(Duration::from_millis(5), write).await);
            }
            time::sleep(Duration::from_millis(seed % 3 * 90)).await;
            for lba in 0..2 {
                paths.write(Lba(lba), page(2), Durability::Stable).await.expect("written");
            }
            for _ in 0..200 {
                assert_eq!((read(&paths, 0).await, read(&paths, 1).await), (2, 2), "a dropped write has landed late");
                time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
}

/// A definite error at the deadline: nothing was sent, or the outcome is open, and it says which.
#[test]
fn without_any_path_a_command_ends_at_its_deadline() {
    let mut scene = Scene::new(9, SimConfig::default());
    scene.options.deadline = Duration::from_secs(2);
    let paths = scene.connect();
    let early = Rc::clone(&paths);
    let early = scene.world.spawn_on(scene.host, async move { early.write(Lba(0), page(1), Durability::Stable).await });
    for port in scene.ports {
        scene.world.partition(scene.host, port);
    }
    let error = scene.run(early).expect_err("both paths are cut");
    assert!(matches!(error, Error::Disconnected(_)), "the outcome is open: {error}");
    let late = scene.run(async move { paths.write(Lba(9), page(1), Durability::Stable).await });
    let error = late.expect_err("both paths are cut");
    assert!(matches!(&error, Error::NotConnected(text) if text.contains("no usable path")), "{error}");
}

/// Compare-and-write over paths that break: each pair is executed at most once, whatever is reported. Every pair counts by one.
#[test]
fn fused_pairs_are_never_executed_twice() {
    for seed in 0..10u64 {
        let config = SimConfig { connection_reset_ppm: 8_000, ..SimConfig::default() };
        let scene = Scene::new(seed, config);
        let paths = scene.connect();
        let workers: Vec<_> = (0..3u64)
            .map(|me| {
                let paths = Rc::clone(&paths);
                scene.world.spawn_on(scene.host, counting(paths, me))
            })
            .collect();
        let mut sums = (0, 0);
        for worker in workers {
            let (done, open) = scene.run(worker);
            sums = (sums.0 + done, sums.1 + open);
        }
        scene.world.calm();
        let found = scene.run(async move { read_image(&paths).await.0 });
        assert!((sums.0..=sums.0 + sums.1).contains(&found), "seed {seed}: {sums:?} pairs, {found} counted");
    }
}

/// The count, and who wrote it last and when: no image is ever the same as another.
fn image(count: u64, me: u64, round: u64) -> View {
    let mut buf = Buf::zeroed(BLOCK);
    for (place, word) in [count, me, round].into_iter().enumerate() {
        buf[place * 8..place * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    buf.freeze()
}

async fn read_image(paths: &Multipath) -> (u64, Buf) {
    let (result, buf) = paths.read(Lba(5), Buf::with_len(BLOCK)).await;
    result.expect("read");
    (u64::from_le_bytes(buf[..8].try_into().expect("8 bytes")), buf)
}

/// Counts up; returns how many pairs succeeded and how many have an unknown outcome.
async fn counting(paths: Rc<Multipath>, me: u64) -> (u64, u64) {
    let (mut done, mut open) = (0, 0);
    for round in 0..40 {
        let (count, found) = read_image(&paths).await;
        let new = image(count + 1, me + 1, round);
        match paths.compare_and_write(Lba(5), found.freeze(), new, Durability::Stable).await {
            Ok(()) => done += 1,
            Err(Error::CompareFailure | Error::NotConnected(_)) => {}
            Err(error) => {
                assert!(error.outcome_unknown(), "{error}");
                open += 1;
            }
        }
    }
    (done, open)
}

/// Histories of reads, writes and compare-and-writes by several tasks over paths that fail at random, judged from outside.
#[test]
fn histories_over_failing_paths_are_linearizable() {
    for seed in 0..12u64 {
        let config = SimConfig { connection_reset_ppm: 4_000, ..SimConfig::default() };
        let scene = Scene::new(seed, config);
        let paths = scene.connect();
        let recorder = Recorder::new();
        let workers: Vec<_> = (0..4u32)
            .map(|client| {
                let body = register(Rc::clone(&paths), recorder.clone(), client);
                scene.world.spawn_on(scene.host, body)
            })
            .collect();
        for cut in 0..4usize {
            scene.run_for(Duration::from_millis(20 + seed * 3));
            let port = scene.ports[cut % 2];
            let stall = Duration::from_millis(200 + 60 * seed);
            scene.delay(cut % 2, stall..stall * 2);
            scene.run_for(Duration::from_millis(700));
            scene.delay(cut % 2, usual());
            scene.world.reset_connections(scene.host, port);
        }
        for worker in workers {
            scene.run(worker);
        }
        let history = recorder.history();
        check::check(&history).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
}

async fn register(paths: Rc<Multipath>, recorder: Recorder, client: u32) {
    for round in 0..40u64 {
        let lba = round % 2;
        let key = lba.to_string();
        let value = (u64::from(client) + 1) * 1000 + round;
        if task::random_u64().is_multiple_of(2) {
            let token = recorder.invoked(client, &key, Action::Get, None);
            let (result, buf) = paths.read(Lba(lba), Buf::with_len(BLOCK)).await;
            let found = result.map(|()| stamp(&buf)).expect("read");
            recorder.returned(token, (found != 0).then_some(found));
        } else {
            let token = recorder.invoked(client, &key, Action::Put, Some(value));
            match paths.write(Lba(lba), page(value), Durability::Stable).await {
                Ok(()) => recorder.returned(token, None),
                // Its token is dropped: it may take effect at any time or never.
                Err(error) if error.outcome_unknown() => {}
                Err(_) => recorder.failed(token),
            }
        }
        time::sleep(Duration::from_millis(task::random_u64() % 60)).await;
    }
}

/// A lone path's target may need long for its part of an authentication; another path waits for twice the timeout.
#[test]
fn the_keep_alive_timeout_is_shortened_where_another_path_waits_for_it() {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 4420));
    let alone = Options { keep_alive: Duration::from_secs(60), ..Options::new(address, nvme::Nqn::discovery(), 1) };
    let each = |others: &[_]| {
        let paths = MultipathOptions::new(alone.clone(), others).paths;
        paths.into_iter().map(|path| path.keep_alive.as_secs()).collect::<Vec<_>>()
    };
    assert_eq!((each(&[]), each(&[address])), (vec![60], vec![2, 2]));
}

#[test]
fn paths_that_do_not_go_together_are_refused() {
    let scene = Scene::new(1, SimConfig::default());
    let refused = |change: fn(&mut MultipathOptions)| {
        let mut options = scene.options.clone();
        change(&mut options);
        scene.run(async move { Multipath::connect(options).await.err().expect("refused").to_string() })
    };
    assert!(refused(|options| options.paths.clear()).contains("give 1 to"));
    assert!(refused(|options| options.paths[1].nsid = 2).contains("differ"));
    assert!(refused(|options| options.paths[1].keep_alive = Duration::ZERO).contains("keep alive"));
    assert!(refused(|options| options.paths.iter_mut().for_each(|path| path.nsid = 3)).contains("no namespace 3"));
}
