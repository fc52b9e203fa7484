//! Discovery as a host does it, in the simulated world: long logs, services that refer to each other, changes that are told.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use engine::sim::{NodeId, SimConfig, World};
use engine::time;
use fabric::host::{Discovery, Options, discover, follow, watch, watch_all};
use fabric::subsystem::{Target, listen};
use nvme::Nqn;
use nvme::fabrics::SubsystemType;

const PORT: u16 = 8009;

struct Service {
    node: NodeId,
    address: SocketAddr,
    target: Target,
}

struct Scene {
    world: World,
    host: NodeId,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let world = World::new(seed, SimConfig::default());
        let host = world.node("host");
        Scene { world, host }
    }

    fn service(&self, name: &str) -> Service {
        let node = self.world.node(name);
        let service =
            Service { node, address: SocketAddr::new(self.world.addr(node), PORT), target: Target::default() };
        self.serve(&service);
        service
    }

    fn serve(&self, service: &Service) {
        let (target, address) = (service.target.clone(), service.address);
        let serving = async move { target.serve(listen(address).await.expect("a free port"), Vec::new()).await };
        self.world.spawn_on(service.node, serving).detach();
        self.world.run_for(Duration::from_millis(10)).expect("no stall");
    }

    fn run<T: 'static>(&self, body: impl Future<Output = T> + 'static) -> T {
        let task = self.world.spawn_on(self.host, body);
        self.world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"))
    }
}

fn nqn(number: u32) -> Nqn {
    format!("nqn.2026-01.example.yagura:s{number}").parse().expect("an NQN")
}

fn options(service: &Service) -> Options {
    let mut options = Options::discovery(service.address);
    options.keep_alive = Duration::from_secs(1);
    options.connect_timeout = Duration::from_millis(500);
    options
}

/// Longer than one page: it is read in pieces, and nothing is missing or told twice.
#[test]
fn a_long_log_is_read_in_pieces() {
    let scene = Scene::new(1);
    let service = scene.service("target");
    let host = options(&service).host;
    for count in [0, 2, 3, 4, 40] {
        for number in 0..count {
            // Those of the rounds before are there already.
            let _ = service.target.add_subsystem(nqn(number), "1");
        }
        let (address, host) = (service.address, host.clone());
        let found = scene.run(async move { discover(address, &host, Duration::from_secs(1)).await.expect("a log") });
        let mut names: Vec<_> =
            found.iter().filter(|entry| entry.kind == SubsystemType::NVM).map(|entry| &entry.subsystem).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count as usize, "{found:?}");
    }
}

/// Two services that refer to each other and to one that is not there: each is asked once.
#[test]
fn referrals_are_followed_and_a_circle_ends() {
    let scene = Scene::new(2);
    let services = [scene.service("a"), scene.service("b"), scene.service("c")];
    for (number, service) in services.iter().enumerate() {
        service.target.add_subsystem(nqn(number as u32), "1").expect("a subsystem");
        let next = services[(number + 1) % services.len()].address;
        service.target.add_referral(next).expect("a referral");
        service.target.add_referral(service.address).expect("a referral to itself");
    }
    let nobody = SocketAddr::new(scene.world.addr(services[0].node), 9);
    services[1].target.add_referral(nobody).expect("a referral to nobody");
    let options = options(&services[0]);
    let all = scene.run(async move { follow(&options).await });
    let asked: Vec<_> = all.iter().map(|(address, log)| (*address, log.is_ok())).collect();
    for service in &services {
        assert_eq!(asked.iter().filter(|asked| **asked == (service.address, true)).count(), 1, "{asked:?}");
    }
    assert!(asked.contains(&(nobody, false)) && asked.len() == 4, "{asked:?}");
    for number in 0..3 {
        let named = all.iter().filter_map(|(_, log)| log.as_ref().ok()).flat_map(|log| &log.entries);
        assert!(named.into_iter().any(|entry| entry.subsystem == nqn(number)), "subsystem {number} is missing");
    }
}

/// A chain of referrals is followed so far and no farther.
#[test]
fn a_chain_of_referrals_is_bounded() {
    let scene = Scene::new(3);
    let services: Vec<_> = (0..12).map(|number| scene.service(&format!("service {number}"))).collect();
    for pair in services.windows(2) {
        pair[0].target.add_referral(pair[1].address).expect("a referral");
    }
    let options = options(&services[0]);
    let asked = scene.run(async move { follow(&options).await.len() });
    assert_eq!(asked, 1 + fabric::host::REFERRAL_DEPTH_MAX as usize);
}

#[test]
fn a_kept_connection_is_told_of_changes() {
    let scene = Scene::new(4);
    let service = scene.service("target");
    service.target.add_subsystem(nqn(1), "1").expect("a subsystem");
    let (options, target) = (options(&service), service.target.clone());
    scene.run(async move {
        let discovery = Discovery::connect(&options).await.expect("connected");
        assert!(discovery.tells_changes());
        let before = discovery.log().await.expect("a log");
        assert!(time::timeout(Duration::from_secs(5), discovery.changed()).await.is_err(), "nothing has changed");
        target.add_subsystem(nqn(2), "2").expect("a subsystem");
        discovery.changed().await.expect("told");
        let after = discovery.log().await.expect("a log");
        assert!(after.generation != before.generation);
        assert!(after.entries.iter().any(|entry| entry.subsystem == nqn(2)));
        discovery.leave().await;
    });
}

/// A service that gives its log and then drops the connection is not asked again at once, for ever.
#[test]
fn a_service_that_drops_its_watchers_is_not_stormed() {
    let scene = Scene::new(6);
    let service = scene.service("target");
    let lost = Rc::new(RefCell::new(0));
    let (options, telling) = (options(&service), Rc::clone(&lost));
    let watching = scene.world.spawn_on(scene.host, async move {
        watch(options, move |log| *telling.borrow_mut() += u32::from(log.is_err())).await;
    });
    for _ in 0..1000 {
        scene.world.run_for(Duration::from_millis(20)).expect("no stall");
        scene.world.reset_connections(scene.host, service.node);
    }
    drop(watching);
    // Pauses double from 10 ms up to 2 s: eight until then, and 20 s have room for twenty of half the longest.
    assert!((5..=30).contains(&*lost.borrow()), "{} connections in 20 s", lost.borrow());
}

/// Watching outlives the service: it tells why there is none, and what has changed when it is back.
#[test]
fn watching_survives_the_service() {
    let scene = Scene::new(5);
    let service = scene.service("target");
    service.target.add_subsystem(nqn(1), "1").expect("a subsystem");
    let told: Rc<RefCell<Vec<Result<usize, String>>>> = Rc::default();
    let (options, telling) = (options(&service), Rc::clone(&told));
    let watching = scene.world.spawn_on(scene.host, async move {
        let tell = move |log: Result<&fabric::host::DiscoveryLog, &fabric::host::ConnectError>| {
            let names = |log: &fabric::host::DiscoveryLog| {
                log.entries.iter().filter(|entry| entry.kind == SubsystemType::NVM).count()
            };
            telling.borrow_mut().push(log.map(names).map_err(ToString::to_string));
        };
        watch(options, tell).await;
    });
    scene.world.run_for(Duration::from_secs(3)).expect("no stall");
    assert_eq!(*told.borrow(), [Ok(1)], "once, as long as nothing changes");
    service.target.add_subsystem(nqn(2), "2").expect("a subsystem");
    scene.world.run_for(Duration::from_secs(1)).expect("no stall");
    assert_eq!(told.borrow().last(), Some(&Ok(2)));
    scene.world.crash(service.node);
    scene.world.run_for(Duration::from_secs(5)).expect("no stall");
    assert!(matches!(told.borrow().last(), Some(Err(_))), "{told:?}");
    service.target.add_subsystem(nqn(3), "3").expect("a subsystem");
    scene.world.restart(service.node);
    scene.serve(&service);
    scene.world.run_for(Duration::from_secs(5)).expect("no stall");
    assert_eq!(told.borrow().last(), Some(&Ok(3)));
    drop(watching);
}

/// A change behind a referral was never told: whoever watched one service saw its own log alone.
#[test]
fn watching_goes_along_referrals() {
    let scene = Scene::new(7);
    let services = [scene.service("a"), scene.service("b"), scene.service("c")];
    for (number, service) in services.iter().enumerate() {
        // A circle, in which each is watched once.
        service.target.add_referral(services[(number + 1) % services.len()].address).expect("a referral");
    }
    let told: Rc<RefCell<Vec<(SocketAddr, bool, usize)>>> = Rc::default();
    let (options, telling) = (options(&services[0]), Rc::clone(&told));
    let watching = scene.world.spawn_on(scene.host, async move {
        let names = |log: &fabric::host::DiscoveryLog| {
            log.entries.iter().filter(|entry| entry.kind == SubsystemType::NVM).count()
        };
        watch_all(options, |service, log| {
            telling.borrow_mut().push((service, log.is_ok(), log.map_or(0, names)));
        })
        .await;
    });
    scene.world.run_for(Duration::from_secs(3)).expect("no stall");
    let mut all = told.take();
    all.sort();
    let mut expected = services.each_ref().map(|service| (service.address, true, 0));
    expected.sort();
    assert_eq!(all, expected);
    services[2].target.add_subsystem(nqn(1), "1").expect("a subsystem");
    scene.world.run_for(Duration::from_secs(1)).expect("no stall");
    assert_eq!(told.take(), [(services[2].address, true, 1)]);
    // One that is lost is told of, and keeps those behind it watched.
    scene.world.crash(services[1].node);
    scene.world.run_for(Duration::from_secs(5)).expect("no stall");
    assert!(told.take().iter().all(|(address, good, _)| *address == services[1].address && !good));
    services[2].target.add_subsystem(nqn(2), "2").expect("a subsystem");
    scene.world.run_for(Duration::from_secs(1)).expect("no stall");
    assert!(told.take().contains(&(services[2].address, true, 2)));
    drop(watching);
}
