//! Zones behind the wire: every promise of a zoned namespace, over one path and over two, and what a lost path leaves open.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::conformance::zones;
use device::{
    AnyNamespace, Durability, Error, Fault, FaultConfig, Lba, Namespace, ZoneAction, ZoneState, ZonedInfo, ZonedMemory,
};
use engine::sim::{NodeId, SimConfig, World};
use engine::{Buf, View};
use fabric::host::{Multipath, MultipathOptions, Options, PerThread, RemoteNamespace};
use fabric::subsystem::{PortConfig, PortId, Target, listen};
use nvme::{AnaState, Nqn};

const PORT: u16 = 4420;
const BLOCK: usize = 4096;
const ZONE: u64 = 32;
const ZONED: ZonedInfo = ZonedInfo { zone_blocks: ZONE, open_max: Some(5), active_max: Some(6), append_blocks_max: 4 };

fn nqn() -> Nqn {
    "nqn.2026-01.example.yagura:zones".parse().expect("an NQN")
}

/// The test's own hold on the zones.
struct Held(Arc<ZonedMemory>);

impl Namespace for Held {
    device::delegate_namespace!(this => { this => this.0 });
}

struct Scene {
    world: World,
    ports: [NodeId; 2],
    host: NodeId,
    options: MultipathOptions,
    target: Target,
    zones: Arc<ZonedMemory>,
}

impl Scene {
    /// With zones whose commands take a while, so that they are under way when something happens.
    fn new(seed: u64, zone_count: usize) -> Scene {
        let world = World::new(seed, SimConfig::default());
        let ports = [world.node("port 1"), world.node("port 2")];
        let host = world.node("host");
        let zones = Arc::new(ZonedMemory::new(zone_count, 24, ZONED, [7; 16]));
        let delay = Duration::from_micros(20)..Duration::from_micros(200);
        let namespace = Fault::new(Arc::new(Held(zones.clone())), FaultConfig { delay, ..FaultConfig::default() });
        let target = Target::default();
        target.add_subsystem(nqn(), "1").expect("a subsystem");
        target.add_namespace(&nqn(), 1, AnyNamespace::other(namespace)).expect("a namespace");
        let [first, second] = ports.map(|port| SocketAddr::new(world.addr(port), PORT));
        let mut options = Options::new(first, nqn(), 1);
        options.command_timeout = Duration::from_millis(500);
        options.connect_timeout = Duration::from_millis(500);
        options.keep_alive = Duration::from_millis(400);
        options.backoff_max = Duration::from_millis(100);
        let options = MultipathOptions::new(options, &[second]);
        for (number, &port) in (1..).zip(&ports) {
            target.add_port(PortConfig::new(PortId(number))).expect("a port");
            let (target, address) = (target.clone(), SocketAddr::new(world.addr(port), PORT));
            let serving = async move {
                let listener = listen(address).await.expect("a free port");
                target.serve_port(PortId(number), listener, Vec::new()).await.expect("it was added");
            };
            world.spawn_on(port, serving).detach();
        }
        Scene { world, ports, host, options, target, zones }
    }

    fn run<F: Future<Output: 'static> + 'static>(&self, body: F) -> F::Output {
        let task = self.world.spawn_on(self.host, body);
        let seed = self.world.seed();
        self.world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"))
    }
}

fn filled(blocks: usize, byte: u8) -> View {
    let mut buf = Buf::with_len(blocks * BLOCK);
    buf.fill(byte);
    buf.freeze()
}

#[test]
fn zones_behind_the_wire_keep_the_rules() {
    // More zones than one report has room for, and few.
    for (seed, count) in [(1, 10), (2, 12)] {
        let scene = Scene::new(seed, count);
        let (options, failing) = (scene.options.clone(), scene.zones.clone());
        scene.run(async move {
            let fail = move |zone: Lba, state: ZoneState| failing.fail_zone(zone, state);
            let first = options.paths[0].clone();
            let remote = Rc::new(RemoteNamespace::connect(first).await.expect("connected"));
            assert_eq!(remote.zoned(), Some(ZONED));
            zones::check_all(remote, seed, None).await;
            let multipath = Rc::new(Multipath::connect(options).await.expect("connected"));
            assert_eq!(multipath.zoned(), Some(ZONED));
            zones::check_all(multipath, seed, Some(&fail)).await;
        });
    }
}

#[test]
fn a_long_report_comes_in_pieces() {
    // A command's data is 1 MiB at most, which is 16,383 zones.
    let scene = Scene::new(3, 20_000);
    let options = scene.options.paths[0].clone();
    scene.run(async move {
        let remote = RemoteNamespace::connect(options).await.expect("connected");
        let all = remote.zones(Lba(0), usize::MAX).await.expect("told");
        assert_eq!(all.len(), 20_000);
        assert!((0..).zip(&all).all(|(number, zone)| zone.start.0 == number * ZONE));
        assert_eq!(remote.zones(Lba(ZONE * 19_990 + 5), 4).await.expect("told"), all[19_990..19_994]);
        let local = PerThread::new(remote);
        assert_eq!(local.zoned(), Some(ZONED));
        assert_eq!(local.append(Lba(ZONE), filled(2, 1), Durability::Stable).await, Ok(Lba(ZONE)));
        assert_eq!(local.change_zone(Some(Lba(ZONE)), ZoneAction::Finish).await, Ok(()));
        assert_eq!(local.zones(Lba(ZONE), 1).await.map(|zones| zones[0].state), Ok(ZoneState::Full));
    });
}

/// What the zones hold, looked at from outside.
fn content(scene: &Scene, zone: Lba) -> (u64, Vec<u8>) {
    let zones = scene.zones.clone();
    let look = async move {
        let told = zones.zones(zone, 1).await.expect("told")[0];
        let (read, found) = zones.read(zone, Buf::with_len(24 * BLOCK)).await;
        assert_eq!(read, Ok(()));
        (told.write_pointer.0 - zone.0, found.chunks_exact(BLOCK).map(|block| block[0]).collect())
    };
    scene.run(look)
}

/// Appends while paths are cut and come back: each is there at most once, whatever its caller was told, and those that were
/// acknowledged are where their callers were told.
#[test]
fn an_append_is_executed_at_most_once_over_failing_paths() {
    let mut unknown = 0;
    for seed in 0..8 {
        let scene = Scene::new(seed, 8);
        let options = scene.options.clone();
        let appends = async move {
            let multipath = Multipath::connect(options).await.expect("connected");
            let (mut appended, mut unknown) = (Vec::new(), 0);
            for stamp in 1..=100u8 {
                let zone = Lba(u64::from(stamp % 6) * ZONE);
                match multipath.append(zone, filled(1, stamp), Durability::Stable).await {
                    Ok(lba) => appended.push((lba, stamp)),
                    Err(Error::Disconnected(_) | Error::Aborted) => unknown += 1,
                    Err(error) => panic!("seed {seed}: an append: {error}"),
                }
            }
            (appended, unknown)
        };
        let task = scene.world.spawn_on(scene.host, appends);
        for round in 0..8 {
            scene.world.run_for(Duration::from_micros(5_000 + seed * 37)).expect("no stall");
            scene.world.partition(scene.host, scene.ports[round % 2]);
            scene.world.run_for(Duration::from_millis(900)).expect("no stall");
            scene.world.heal_all();
            scene.world.run_for(Duration::from_millis(400)).expect("no stall");
        }
        let (appended, open) = scene.world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        unknown += open;
        let mut copies = [0; 101];
        for zone in 0..6 {
            let (written, blocks) = content(&scene, Lba(zone * ZONE));
            blocks.iter().take(written as usize).for_each(|&stamp| copies[usize::from(stamp)] += 1);
            let here = appended.iter().filter(|(lba, _)| lba.0 / ZONE == zone);
            here.for_each(|&(lba, stamp)| assert_eq!(blocks[(lba.0 % ZONE) as usize], stamp, "seed {seed}: {lba}"));
        }
        assert!(copies.iter().all(|&copies| copies <= 1), "seed {seed}: an append is there twice: {copies:?}");
    }
    assert!(unknown > 0, "no append was under way when its path was cut");
}

/// A write whose answer was lost with its path is done once, and its caller is told so although the second copy is refused.
#[test]
fn a_write_that_was_executed_is_not_refused_for_its_second_copy() {
    let mut repeated = 0;
    for seed in 0..24 {
        let scene = Scene::new(seed, 8);
        let options = scene.options.clone();
        scene.target.set_ana_state(&nqn(), PortId(2), 1, AnaState::NonOptimized).expect("a state");
        let multipath = scene.run(async move { Rc::new(Multipath::connect(options).await.expect("connected")) });
        scene.world.run_for(Duration::from_millis(50)).expect("no stall");
        let write = async move { multipath.write(Lba(0), filled(2, 7), Durability::Stable).await };
        let task = scene.world.spawn_on(scene.host, write);
        scene.world.run_for(Duration::from_micros(100 + seed * 25)).expect("no stall");
        scene.world.partition(scene.host, scene.ports[0]);
        scene.world.run_for(Duration::from_millis(5)).expect("no stall");
        let (there, _) = content(&scene, Lba(0));
        let unanswered = !task.is_finished();
        let written = scene.world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        assert_eq!(written, Ok(()), "seed {seed}");
        repeated += u32::from(there == 2 && unanswered);
        let (written, blocks) = content(&scene, Lba(0));
        assert_eq!((written, &blocks[..3]), (2, &[7, 7, 0][..]), "seed {seed}");
    }
    assert!(repeated > 0, "no write was executed before its path was cut and unanswered after");
}
