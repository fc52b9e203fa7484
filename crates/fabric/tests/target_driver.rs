//! The target's driver from outside: a socket, in the simulated world and over real loopback.

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use common::{Host, subsystem};
use device::Memory;
use engine::net::TcpListener;
use engine::sim::{SimConfig, World};
use engine::{Buf, Reactor, ReactorConfig, task, time};
use fabric::target::Target;
use nvme::Status;
use nvme::tcp::FatalStatus;

const TIME_MAX: Duration = Duration::from_secs(30);

fn target() -> Target<Memory> {
    let target = Target::default();
    target.add_subsystem(subsystem(), "SERIAL").expect("new");
    let memory = Memory::new(16 << 20, 4096, [3; 16]).expect("a good size");
    target.add_namespace(&subsystem(), 1, memory).expect("new");
    target
}

/// Runs `body` against a served target, over loopback and in a simulated world.
fn in_both_worlds<F: Future<Output = ()>>(body: impl Fn(Target<Memory>, SocketAddr) -> F) {
    let real = async {
        let target = target();
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = listener.local_addr();
        let served = task::spawn({
            let target = target.clone();
            async move { target.serve(listener, vec![]).await }
        });
        time::timeout(TIME_MAX, body(target, address)).await.expect("ends in time");
        drop(served);
    };
    Reactor::run(ReactorConfig::default(), real).expect("a reactor");
    for seed in 0..4 {
        let world = World::new(seed, SimConfig::default());
        let node = world.node("target");
        let address = SocketAddr::new(world.addr(node), 4420);
        let target = target();
        let served = world.spawn_on(node, {
            let target = target.clone();
            async move {
                let listener = TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 4420));
                target.serve(listener.expect("a free port"), vec![]).await
            }
        });
        let client = async {
            time::sleep(Duration::from_millis(10)).await;
            body(target, address).await;
        };
        world.run_until(client).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?}"));
        drop(served);
    }
}

fn pattern(bytes: usize, seed: usize) -> Buf {
    let mut buf = Buf::with_len(bytes);
    buf.iter_mut().enumerate().for_each(|(at, byte)| *byte = ((at + seed) / 5) as u8);
    buf
}

#[test]
fn blocks_come_back_as_they_went() {
    in_both_worlds(|_, address| async move {
        for digests in [false, true] {
            let admin = Host::admin(address, digests, 0).await.expect("connects");
            let mut io = Host::io(address, digests, &admin, 1).await.expect("connects");
            for (lba, blocks) in [(0, 1), (7, 2), (100, 5), (300, 64), (1000, 256)] {
                let data = pattern(blocks * 4096, lba).freeze();
                assert_eq!(io.write(lba as u64, data.clone()).await.expect("answered"), Status::SUCCESS);
                assert_eq!(io.read(lba as u64, blocks as u32).await.expect("answered"), Status::SUCCESS);
                assert!(io.data[..] == data[..], "{blocks} blocks at {lba} came back changed");
            }
        }
    });
}

#[test]
fn a_bad_pdu_ends_its_connection_and_no_other() {
    in_both_worlds(|target, address| async move {
        let admin = Host::admin(address, false, 0).await.expect("connects");
        let mut good = Host::io(address, false, &admin, 1).await.expect("connects");
        let mut bad = Host::io(address, false, &admin, 2).await.expect("connects");
        bad.send_bytes(&[0x0B, 0, 72, 0, 72, 0, 0, 0]).await.expect("sent");
        let term = bad.next_pdu().await.expect_err("ended").0.expect("a C2HTermReq came");
        assert_eq!((term.status, term.information), (FatalStatus::INVALID_HEADER_FIELD, 0));
        assert!(bad.next_pdu().await.expect_err("closed").0.is_none());
        assert_eq!(good.read(0, 1).await.expect("answered"), Status::SUCCESS);
        assert_eq!(target.stats().protocol_errors(), 1);
    });
}

#[test]
fn the_end_of_the_admin_queue_ends_the_association() {
    in_both_worlds(|target, address| async move {
        let admin = Host::admin(address, false, 0).await.expect("connects");
        let mut io = Host::io(address, false, &admin, 1).await.expect("connects");
        drop(admin);
        assert!(io.next_pdu().await.is_err());
        while target.stats().connections() > 0 {
            time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn a_host_that_falls_silent_is_let_go() {
    in_both_worlds(|target, address| async move {
        let mut admin = Host::admin(address, false, 300).await.expect("connects");
        let mut io = Host::io(address, false, &admin, 1).await.expect("connects");
        let start = time::now();
        assert!(admin.next_pdu().await.is_err());
        assert!(io.next_pdu().await.is_err());
        let waited = time::now().duration_since(start);
        assert!(waited > Duration::from_millis(200) && waited < Duration::from_secs(5), "{waited:?}");
        assert_eq!(target.stats().keep_alive_expired(), 1);
    });
}
