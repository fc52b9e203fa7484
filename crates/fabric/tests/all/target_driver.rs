//! The target's driver from outside: a socket, in the simulated world and over real loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Host, subsystem};
use device::Memory;
use engine::net::TcpListener;
use engine::sim::{SimConfig, World};
use engine::sync::mailbox;
use engine::{Buf, Reactor, ReactorConfig, task, time};
use fabric::subsystem::{CommandKind, Handed, HostConfig, Target, TargetConfig, listen};
use nvme::Status;
use nvme::opcode::FabricsType;
use nvme::tcp::FatalStatus;
use zerocopy::IntoBytes;

const TIME_MAX: Duration = Duration::from_secs(30);

fn target() -> Target {
    target_with(TargetConfig::default())
}

fn target_with(config: TargetConfig) -> Target {
    let target = Target::new(config);
    target.add_subsystem(subsystem(), "SERIAL").expect("new");
    let memory = Memory::new(16 << 20, 4096, [3; 16]).expect("a good size");
    target.add_namespace(&subsystem(), 1, memory).expect("new");
    target
}

/// Runs `body` against a served target, over loopback and in a simulated world.
fn in_both_worlds<F: Future<Output = ()>>(body: impl Fn(Target, SocketAddr) -> F) {
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

#[test]
fn a_peer_that_says_nothing_is_let_go() {
    let world = World::new(1, SimConfig::default());
    let node = world.node("target");
    let address = SocketAddr::new(world.addr(node), 4420);
    let served =
        world.spawn_on(node, async move { target().serve(listen(address).await.expect("free"), vec![]).await });
    let client = async {
        time::sleep(Duration::from_millis(10)).await;
        let silent = engine::net::TcpStream::connect(address).await.expect("connects");
        let start = time::now();
        let (result, _) = silent.recv(Buf::with_capacity(4096)).await;
        assert!(!result.is_ok_and(|bytes| bytes > 0));
        let waited = time::now().duration_since(start);
        assert!(waited > Duration::from_secs(9) && waited < Duration::from_secs(12), "{waited:?}");
    };
    world.run_until(client).expect("no stall");
    drop(served);
}

#[test]
fn connections_over_the_bound_are_closed_and_room_comes_back() {
    let config = TargetConfig { connections_max: 2, ..TargetConfig::default() };
    Reactor::run(ReactorConfig::default(), async {
        let target = target_with(config);
        let stats = target.stats();
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.expect("a free port");
        let address = listener.local_addr();
        let served = task::spawn(async move { target.serve(listener, vec![]).await });
        let admin = Host::admin(address, false, 0).await.expect("connects");
        let io = Host::io(address, false, &admin, 1).await.expect("connects");
        assert!(Host::open(address, false).await.is_err());
        assert_eq!((stats.refused(), stats.connections(), stats.accepted()), (1, 2, 2));
        drop(io);
        let room = async {
            while stats.connections() > 1 {
                time::sleep(Duration::from_millis(1)).await;
            }
        };
        time::timeout(TIME_MAX, room).await.expect("the target sees the end");
        let mut io = Host::io(address, false, &admin, 1).await.expect("connects");
        assert_eq!(io.read(0, 1).await.expect("answered"), Status::SUCCESS);
        drop(served);
    })
    .expect("a reactor");
}

/// Controller state is shared: an admin queue on one reactor, I/O queues on both, one namespace.
#[test]
fn connections_are_served_by_several_reactors() {
    let target = target();
    let (sender, receiver) = mailbox::<Handed>(16);
    let other = std::thread::spawn({
        let target = target.clone();
        move || Reactor::run(ReactorConfig::default(), target.serve_handed(receiver)).expect("a reactor")
    });
    Reactor::run(ReactorConfig::default(), async {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.expect("a free port");
        let address = listener.local_addr();
        let served = task::spawn({
            let target = target.clone();
            async move { target.serve(listener, vec![sender]).await }
        });
        let body = async {
            let admin = Host::admin(address, false, 0).await.expect("connects");
            let mut queues = Vec::new();
            for qid in 1..=4 {
                queues.push(Host::io(address, false, &admin, qid).await.expect("connects"));
            }
            assert_eq!(target.report().io_queues_by_reactor, [2, 2], "four queues on two reactors");
            for (index, queue) in queues.iter_mut().enumerate() {
                let data = pattern(8192, index).freeze();
                assert_eq!(queue.write(index as u64 * 2, data).await.expect("answered"), Status::SUCCESS);
            }
            for (index, queue) in queues.iter_mut().rev().enumerate() {
                assert_eq!(queue.read(index as u64 * 2, 2).await.expect("answered"), Status::SUCCESS);
                assert!(queue.data[..] == pattern(8192, index)[..], "what another reactor wrote");
            }
            drop(admin);
            for queue in &mut queues {
                assert!(queue.next_pdu().await.is_err(), "the association has ended on every reactor");
            }
            while target.stats().connections() > 0 {
                time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(target.stats().commands(CommandKind::Write), 4);
        };
        time::timeout(TIME_MAX, body).await.expect("ends in time");
        drop(served);
    })
    .expect("a reactor");
    other.join().expect("it ends when the mailbox is gone");
}

/// A killed target's port can be busy for a moment: whoever starts it again must not fail for that.
#[test]
fn a_busy_port_is_waited_for() {
    Reactor::run(ReactorConfig::default(), async {
        let first = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.expect("a free port");
        let address = first.local_addr();
        let second = task::spawn(async move { listen(address).await.map(|listener| listener.local_addr()) });
        time::sleep(Duration::from_millis(120)).await;
        assert!(!second.is_finished());
        drop(first);
        assert_eq!(time::timeout(TIME_MAX, second).await.expect("ends in time").expect("bound"), address);
    })
    .expect("a reactor");
}

/// A slow host stalls itself alone: half a command on one queue, and the other goes on.
#[test]
fn half_a_command_holds_nothing_up() {
    in_both_worlds(|_, address| async move {
        let admin = Host::admin(address, false, 0).await.expect("connects");
        let mut slow = Host::io(address, false, &admin, 1).await.expect("connects");
        let mut quick = Host::io(address, false, &admin, 2).await.expect("connects");
        let mut command = nvme::Submission::nvm(nvme::opcode::NvmOpcode::WRITE, 1, 1);
        command.set_range(0, 2);
        command.sgl = nvme::SglDescriptor::in_capsule(8192);
        let plain = fabric::tcp::Encoder { header_digest: false, data_digest: false, alignment_code: 0 };
        let mut bytes = plain.capsule_cmd(&command, 8192).to_vec();
        bytes.extend([0xAA; 5000]);
        slow.send_bytes(&bytes).await.expect("sent");
        for round in 0..20 {
            let data = pattern(8192, round).freeze();
            assert_eq!(quick.write(0, data.clone()).await.expect("answered"), Status::SUCCESS);
            assert_eq!(quick.read(0, 2).await.expect("answered"), Status::SUCCESS);
            assert!(quick.data[..] == data[..]);
        }
        slow.send_bytes(&[0xAA; 3192]).await.expect("sent");
        assert!(matches!(slow.next_pdu().await.expect("answered"), fabric::tcp::Pdu::CapsuleResp(_)));
        assert_eq!(quick.read(0, 2).await.expect("answered"), Status::SUCCESS);
        assert!(quick.data.iter().all(|&byte| byte == 0xAA));
    });
}

/// The host closes as soon as it has read the C2HTermReq, as it should: that is not the reason the operator is told.
#[test]
fn a_bad_pdu_is_logged_with_peer_and_reason_also_where_the_host_closes_first() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let writer = {
        let lines = lines.clone();
        move || Lines(lines.clone())
    };
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    tracing::subscriber::with_default(subscriber, || {
        in_both_worlds(|_, address| async move {
            let mut bad = Host::open(address, false).await.expect("opens");
            bad.send_bytes(&[0x0B, 0, 72, 0, 72, 0, 0, 0]).await.expect("sent");
            assert!(bad.next_pdu().await.expect_err("ended").0.is_some(), "no C2HTermReq came");
            drop(bad);
            time::sleep(Duration::from_millis(100)).await;
        });
    });
    let text = String::from_utf8(lines.lock().expect("no panic").clone()).expect("text");
    let told = text
        .lines()
        .filter(|line| line.contains("WARN") && line.contains("peer=") && line.contains("unknown PDU type"));
    assert_eq!(told.count(), 5, "one line in each of the five worlds:\n{text}");
}

/// Peers that connect again and again fill no disk with what is said of them.
#[test]
fn refused_connections_are_told_of_within_bounds() {
    const CONNECTIONS: u64 = 200;
    let lines = Arc::new(Mutex::new(Vec::new()));
    let writer = {
        let lines = lines.clone();
        move || Lines(lines.clone())
    };
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    tracing::subscriber::with_default(subscriber, || {
        Reactor::run(ReactorConfig::default(), async {
            let target = target_with(TargetConfig { connections_max: 0, ..TargetConfig::default() });
            let stats = target.stats();
            let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.expect("a free port");
            let address = listener.local_addr();
            let served = task::spawn(async move { target.serve(listener, vec![]).await });
            for _ in 0..CONNECTIONS {
                assert!(Host::open(address, false).await.is_err());
            }
            assert_eq!(stats.refused(), CONNECTIONS);
            drop(served);
        })
        .expect("a reactor");
    });
    let text = String::from_utf8(lines.lock().expect("no panic").clone()).expect("text");
    let told = text.lines().filter(|line| line.contains("connection refused")).count() as u64;
    assert!((1..CONNECTIONS).contains(&told), "{told} lines of {CONNECTIONS} connections");
}

/// Connections that never send their Connect are ended after ten seconds, and made anew by whoever means ill: one machine could
/// have all that a target serves.
#[test]
fn an_address_that_only_opens_connections_leaves_room_for_others() {
    let world = World::new(1, SimConfig::default());
    let (node, idle) = (world.node("target"), world.node("idle"));
    let address = SocketAddr::new(world.addr(node), 4420);
    let target = target_with(TargetConfig { connections_max: 256, ..TargetConfig::default() });
    let served = world.spawn_on(node, {
        let target = target.clone();
        async move { target.serve(listen(address).await.expect("free"), vec![]).await }
    });
    let opened = world.spawn_on(idle, async move {
        time::sleep(Duration::from_millis(10)).await;
        let mut open = Vec::new();
        for _ in 0..300 {
            open.push(engine::net::TcpStream::connect(address).await.expect("connects"));
        }
        time::sleep(Duration::from_secs(60)).await;
        drop(open);
    });
    let client = async {
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!((target.stats().connections(), target.stats().refused()), (64, 236));
        let admin = Host::admin(address, false, 0).await.expect("connects");
        let mut io = Host::io(address, false, &admin, 1).await.expect("connects");
        assert_eq!(io.read(0, 1).await.expect("answered"), Status::SUCCESS);
        // What has got through its Connect counts no longer.
        let mut others = Vec::new();
        for _ in 0..70 {
            others.push(Host::admin(address, false, 0).await.expect("connects"));
        }
        assert_eq!(target.stats().connections(), 64 + 72);
    };
    world.run_until(client).expect("no stall");
    drop((served, opened));
}

/// A failed authentication waited for its last answer to be sent before it closed the connection. To a peer that read nothing
/// that was never, and nothing else ended the connection either: anybody who knew a host's name could take all controllers.
#[test]
fn a_failed_authentication_ends_its_connection_also_where_the_peer_reads_nothing() {
    for denied in [false, true] {
        // The window takes the completion of Connect, and less than the page that tells of the failure.
        let world = World::new(1, SimConfig { link_window: 2048, ..SimConfig::default() });
        let node = world.node("target");
        let address = SocketAddr::new(world.addr(node), 4420);
        let target = target();
        let host: nvme::Nqn = "nqn.2026-01.example.yagura:host".parse().expect("a name");
        let key = fabric::auth::DhchapKey::generate(None, None).expect("random bytes");
        let keys = Some(fabric::auth::HostKeys { host: Arc::new(key), controller: None });
        target.allow_host(&subsystem(), &host, HostConfig { keys, ..HostConfig::default() }).expect("room");
        let served = world.spawn_on(node, {
            let target = target.clone();
            async move { target.serve(listen(address).await.expect("free"), vec![]).await }
        });
        let client = async {
            time::sleep(Duration::from_millis(10)).await;
            let mut peer = Host::open(address, false).await.expect("opens");
            assert_eq!(peer.connect(0, 0).await.expect("answered").status(), Status::SUCCESS);
            // To be told of a failure it is enough to ask out of turn.
            let mut command = nvme::Submission::fabrics(FabricsType::AUTHENTICATION_RECEIVE, 1);
            command.sgl = nvme::SglDescriptor::transport(4096);
            command.as_mut_bytes()[40..].copy_from_slice(nvme::auth::Fields::new(4096).as_bytes());
            peer.submit(&command, Default::default()).await.expect("sent");
            // The word of it is held back for a second.
            time::sleep(Duration::from_millis(1_200)).await;
            assert_eq!((target.stats().authentications_failed(), target.stats().connections()), (1, 1));
            if denied {
                target.deny_host(&subsystem(), &host).expect("it is on the list");
            }
            let time_left = if denied { 100 } else { 2_000 };
            time::sleep(Duration::from_millis(time_left)).await;
            assert_eq!(target.stats().connections(), 0, "denied: {denied}");
            assert!(target.report().subsystems[0].controllers.is_empty(), "denied: {denied}");
            drop(peer);
        };
        world.run_until(client).expect("no stall");
        drop(served);
    }
}

struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A host without keep alive that had died held its controller, its queues and its place among the connections for ever: of a
/// connection on which nothing is said the network tells nothing, unless it is asked to.
#[test]
fn the_network_watches_hosts_that_want_no_keep_alive() {
    let test = async {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = listener.local_addr();
        let served = task::spawn(async move { target().serve(listener, vec![]).await });
        let _host = Host::admin(address, false, 0).await.expect("connected");
        // Of the target's end: established, and a timer that is armed for nothing but keep alive (2).
        let end = format!("0100007F:{:04X}", address.port());
        loop {
            let sockets = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table of sockets");
            let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let mut ours = sockets.lines().map(fields).filter(|fields| fields[1] == end && fields[3] == "01");
            if ours.next().is_some_and(|fields| fields[5].starts_with("02:")) {
                break;
            }
            time::sleep(Duration::from_millis(10)).await; // what was sent last is not acknowledged yet
        }
        drop(served);
    };
    let bounded = async { time::timeout(TIME_MAX, test).await.expect("keep alive is not armed") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}
