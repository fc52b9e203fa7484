//! One machine that connects and connects, without any credentials, seen from the hosts beside it.

use std::net::SocketAddr;
use std::time::Duration;

use device::Memory;
use engine::sim::{SimConfig, World};
use engine::time;
use fabric::subsystem::{HostConfig, Target, listen};
use nvme::{Nqn, Status};

use crate::common::{Host, subsystem};

/// More than a target has controllers of all kinds.
const CROWD: usize = 1_600;
/// The longest keep alive timeout that is accepted of a host that is on no list.
const KEEP_ALIVE_MS: u32 = 600_000;

fn target() -> Target {
    let target = Target::default();
    target.add_subsystem(subsystem(), "SERIAL").expect("new");
    let memory = Memory::new(1 << 20, 4096, [3; 16]).expect("a good size");
    target.add_namespace(&subsystem(), 1, memory).expect("new");
    let listed: Nqn = "nqn.2026-01.example.yagura:host".parse().expect("a name");
    target.allow_host(&subsystem(), &listed, HostConfig::default()).expect("room");
    target
}

/// 1,024 discovery controllers with a keep alive timeout of a day, made in half a second from one address: every other host then
/// got Controller Busy for as long as their owner liked. The shares of an address ended with Connect.
#[test]
fn a_crowd_from_one_address_leaves_controllers_to_others() {
    for (wanted, expected) in [(Nqn::discovery(), 64), (subsystem(), 512)] {
        let world = World::new(1, SimConfig::default());
        let (node, crowd) = (world.node("target"), world.node("crowd"));
        let address = SocketAddr::new(world.addr(node), 4420);
        let served =
            world.spawn_on(node, async move { target().serve(listen(address).await.expect("free"), vec![]).await });
        let at = wanted.clone();
        let crowd = world.spawn_on(crowd, async move {
            time::sleep(Duration::from_millis(10)).await;
            let mut longest = Host::open(address, false).await.expect("opens");
            longest.number = 7;
            let refused = longest.connect_to(&at, 0, 24 * 3_600_000).await.expect("answered").status();
            assert_eq!(refused, Status::CONNECT_INVALID_PARAMETERS.do_not_retry(), "a day is too long for a guest");
            let (mut held, mut busy) = (Vec::new(), 0);
            for number in 0..CROWD {
                let mut host = Host::open(address, false).await.expect("opens");
                host.number = 10 + (number % 200) as u8; // it calls itself by many names
                match host.connect_to(&at, 0, KEEP_ALIVE_MS).await.expect("answered").status() {
                    Status::SUCCESS => held.push(host),
                    status => {
                        assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
                        busy += 1;
                    }
                }
            }
            assert_eq!((held.len(), busy), (expected, CROWD - expected), "{at}");
            held
        });
        let client = async {
            let held = crowd.await;
            // The listed host, and one that is on no list and elsewhere.
            let admin = Host::admin(address, false, 0).await.expect("connects");
            let mut io = Host::io(address, false, &admin, 1).await.expect("connects");
            assert_eq!(io.read(0, 1).await.expect("answered"), Status::SUCCESS);
            let mut guest = Host::open(address, false).await.expect("opens");
            guest.number = 8;
            assert_eq!(guest.connect_to(&wanted, 0, 0).await.expect("answered").status(), Status::SUCCESS);
            drop(held);
        };
        world.run_until(client).expect("no stall");
        drop(served);
    }
}

/// Who knew the name of a listed host without keys had all controllers, for a day.
#[test]
fn a_name_that_anybody_may_say_leaves_controllers_to_others() {
    let world = World::new(2, SimConfig::default());
    let (node, crowd) = (world.node("target"), world.node("crowd"));
    let address = SocketAddr::new(world.addr(node), 4420);
    let served = world.spawn_on(node, async move {
        let target = target();
        let other: Nqn = "nqn.2026-01.example.yagura:host8".parse().expect("a name");
        target.allow_host(&subsystem(), &other, HostConfig::default()).expect("room");
        target.serve(listen(address).await.expect("free"), vec![]).await
    });
    let crowd = world.spawn_on(crowd, async move {
        time::sleep(Duration::from_millis(10)).await;
        let mut held = Vec::new();
        for _ in 0..CROWD {
            // It says that it is the listed host.
            let mut host = Host::open(address, false).await.expect("opens");
            match host.connect_to(&subsystem(), 0, 24 * 3_600_000).await.expect("answered").status() {
                Status::SUCCESS => held.push(host),
                status => assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY),
            }
        }
        assert_eq!(held.len(), 128);
        held
    });
    let client = async {
        let held = crowd.await;
        let other = Host::admin_by(address, 8).await.expect("the other host on the list connects");
        drop((held, other));
    };
    world.run_until(client).expect("no stall");
    drop(served);
}
