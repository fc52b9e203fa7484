//! Hostile peers, from outside: a target among them serves its well-behaved host and holds no more than its bounds; a host
//! that meets one gives up with a sentence.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::hostile::{Mischief, run as misbehave};
use bench::machine::{open_descriptors, resident_bytes};
use device::{Durability, Lba, Namespace as _};
use engine::{Buf, Reactor, ReactorConfig, time};
use fabric::host::{Options, RemoteNamespace};
use nvme::Nqn;

use crate::support::{PATIENCE, Server, SetAtEnd, finished, http_get, yagura};

const NQN: &str = "nqn.2026-11.io.yagura:hostile-test";
/// Connects and disconnects of the storm.
const CONNECTS: u64 = 10_000;
/// How long the other hostile peers work at least.
const TIME_MIN: Duration = Duration::from_secs(3);
/// How long descriptors may take to come back. Beyond what a target waits for a host that was told of its bad PDU.
const REST_MAX: Duration = Duration::from_secs(20);
/// What hostile peers may make the target hold: each keeps 32 connections at the most, those of two kinds 3 MiB of data each.
const GROWTH_MAX: u64 = 384 << 20;
/// Blocks of the well-behaved host. They are the first: those that hostile writes aim at.
const BLOCKS: u64 = 256;

fn nqn() -> Nqn {
    NQN.parse().expect("a well-formed name")
}

/// Writes every block with a pattern of its own that changes from round to round, and reads each back, until told to stop.
async fn good_neighbour(address: SocketAddr, stop: &AtomicBool, done: &AtomicU64) {
    let namespace = RemoteNamespace::connect(Options::new(address, nqn(), 1)).await.expect("connected");
    let pattern = |round: u64, lba: u64| ((round << 32) + lba + 1).to_le_bytes();
    let mut buf = Buf::zeroed(4096);
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        for lba in 0..BLOCKS {
            let mut data = Buf::zeroed(4096);
            data.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&pattern(round, lba)));
            namespace.write(Lba(lba), data.freeze(), Durability::Stable).await.expect("written");
        }
        for lba in 0..BLOCKS {
            let (result, read) = namespace.read(Lba(lba), buf).await;
            result.expect("read");
            assert!(read.chunks_exact(8).all(|word| word == pattern(round, lba)), "block {lba} in round {round}");
            buf = read;
        }
        done.fetch_add(2 * BLOCKS, Ordering::Relaxed);
    }
    assert_eq!(namespace.epoch(), 1, "the good neighbour was disconnected");
}

/// Waits until `is_true`.
fn await_that(what: &str, limit: Duration, is_true: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < limit, "within {limit:?} it was not true that {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_target_bears_hostile_peers_and_serves_its_neighbours() {
    let memory = ["--namespace", "memory=16MiB", "--metrics", "127.0.0.1:0"];
    let server = Server::start(&[&["target", "--listen", "127.0.0.1:0", "--nqn", NQN][..], &memory].concat());
    let (address, pid) = (server.address("listening"), server.id());
    let (stop, stop_neighbour, done) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ended = (SetAtEnd(&stop), SetAtEnd(&stop_neighbour)); // so that a failure ends the test at once
        let neighbour = scope.spawn(|| {
            let neighbour = async {
                let end = time::timeout(PATIENCE, good_neighbour(address, &stop_neighbour, &done)).await;
                end.expect("told to stop in time");
            };
            Reactor::run(ReactorConfig::default(), neighbour).expect("a reactor");
        });
        await_that("the neighbour is served", PATIENCE, || done.load(Ordering::Relaxed) > 0 || neighbour.is_finished());
        let (descriptors, resident) = (open_descriptors(pid).expect("alive"), resident_bytes(pid).expect("alive"));
        let begin = Instant::now();
        let peers: Vec<_> = Mischief::ALL
            .into_iter()
            .map(|mischief| {
                let (acts_max, pause) = match mischief {
                    Mischief::ConnectStorm => (CONNECTS, Duration::ZERO),
                    _ => (u64::MAX, Duration::from_millis(2)),
                };
                let stop = &stop;
                (mischief, scope.spawn(move || misbehave(mischief, address, &nqn(), acts_max, pause, stop)))
            })
            .collect();
        // One that sends a byte a second, for as long as it lasts.
        let drip = scope.spawn(|| misbehave(Mischief::SlowSender, address, &nqn(), 1, Duration::from_secs(1), &stop));
        let mut most = 0;
        while begin.elapsed() < TIME_MIN || !peers[0].1.is_finished() {
            assert!(begin.elapsed() < PATIENCE, "{CONNECTS} connects took longer than {PATIENCE:?}");
            most = most.max(resident_bytes(pid).expect("alive"));
            std::thread::sleep(Duration::from_millis(20));
        }
        let served = done.load(Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        drip.join().expect("no panic");
        for (mischief, peer) in peers {
            assert!(peer.join().expect("no panic") > 0, "{mischief:?} was never done");
        }
        assert!(most < resident + GROWTH_MAX, "the target grew from {resident} to {most} bytes");
        await_that("all descriptors are back", REST_MAX, || {
            open_descriptors(pid).expect("alive") <= descriptors || neighbour.is_finished()
        });
        // All of it was really done: connects, bad PDUs, wrong digests.
        let metrics = http_get(server.address("metrics"), "/metrics");
        let [accepted, bad, failed] = ["connections_accepted", "protocol_errors", "errors"].map(|name| {
            let name = format!("yagura_target_{name}_total ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
            line.and_then(|count| count.parse::<u64>().ok()).unwrap_or_else(|| panic!("no {name} in {metrics}"))
        });
        assert!(accepted > CONNECTS && bad > 0 && failed > 0, "{accepted} {bad} {failed}");
        // Served during the mischief, and after it.
        assert!(served > BLOCKS, "the neighbour did {served} commands");
        let now = done.load(Ordering::Relaxed);
        await_that("the neighbour is still served", PATIENCE, || {
            done.load(Ordering::Relaxed) > now || neighbour.is_finished()
        });
        stop_neighbour.store(true, Ordering::Relaxed);
        neighbour.join().expect("everything it read was what it had written");
    });
    assert_eq!(server.stop("TERM"), 0);
}

/// What a hostile target does with the one connection of its life.
#[derive(Clone, Copy, Debug)]
enum Trap {
    Closes,
    Resets,
    NeverAnswers,
    HalfIcResp,
    Drips,
    Nonsense,
    OversizedPdu,
    TermReq,
    EndlessIcResps,
}

const TRAPS: [Trap; 9] = [
    Trap::Closes,
    Trap::Resets,
    Trap::NeverAnswers,
    Trap::HalfIcResp,
    Trap::Drips,
    Trap::Nonsense,
    Trap::OversizedPdu,
    Trap::TermReq,
    Trap::EndlessIcResps,
];

/// ICResp without digests, 128 KiB of data in an H2CData PDU.
fn ic_resp() -> [u8; 128] {
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0]);
    bytes[12..16].copy_from_slice(&(128u32 << 10).to_le_bytes());
    bytes
}

impl Trap {
    fn spring(self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut request = [0; 128];
        stream.read_exact(&mut request)?;
        match self {
            Trap::Closes => return Ok(()),
            Trap::Resets => {
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
                return Ok(());
            }
            Trap::NeverAnswers => {}
            Trap::HalfIcResp => stream.write_all(&ic_resp()[..77])?,
            Trap::Drips => {
                for byte in ic_resp() {
                    stream.write_all(&[byte])?;
                    std::thread::sleep(Duration::from_millis(500));
                }
            }
            Trap::Nonsense => stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")?,
            Trap::OversizedPdu => {
                stream.write_all(&ic_resp())?;
                stream.write_all(&[7, 0, 24, 24, 0xFF, 0xFF, 0xFF, 0xFF])?;
                stream.write_all(&[0; 65_536])?;
            }
            Trap::TermReq => {
                stream.write_all(&[3, 0, 24, 0, 24, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])?
            }
            Trap::EndlessIcResps => loop {
                stream.write_all(&ic_resp())?;
            },
        }
        // It stays until the host goes.
        stream.read_to_end(&mut Vec::new()).map(drop)
    }
}

#[test]
fn a_host_gives_up_on_a_hostile_target_with_a_sentence() {
    std::thread::scope(|scope| {
        for trap in TRAPS {
            scope.spawn(move || {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
                let address = listener.local_addr().expect("bound").to_string();
                std::thread::spawn(move || {
                    for stream in listener.incoming().flatten() {
                        // The host has gone, as it should.
                        let _ = trap.spring(stream);
                    }
                });
                let begin = Instant::now();
                let command = yagura(&["nvme", "identify", "--nqn", NQN, &address]);
                let (status, stdout, stderr) = finished(command);
                assert!(begin.elapsed() < PATIENCE, "{trap:?}");
                assert_eq!((status, stdout.as_str()), (3, ""), "{trap:?}: {stderr}");
                assert!(stderr.contains(&address) && !stderr.contains("panicked"), "{trap:?}: {stderr}");
            });
        }
    });
}
