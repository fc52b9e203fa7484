//! The network's model: order, delay, back-pressure, handshakes, resets, partitions, and the ends of connections.

mod partition;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::io::{ErrorKind, Result};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::sim::{NodeId, SimConfig, World};
use engine::{Buf, task, time};

const MS: Duration = Duration::from_millis(1);
const PORT: u16 = 4420;

/// Links of exactly 1 ms, so that times can be told.
fn config() -> SimConfig {
    SimConfig { link_delay: MS..MS, connection_timeout: MS * 500, ..SimConfig::default() }
}

async fn send(stream: &TcpStream, bytes: &[u8]) -> Result<()> {
    let mut batch = SendBatch::new();
    batch.head(bytes);
    stream.send(batch).await.0
}

/// Receives once; an empty answer is the end of the stream.
async fn recv(stream: &TcpStream) -> Result<Vec<u8>> {
    let (result, buf) = stream.recv(Buf::with_capacity(64 * 1024)).await;
    result.map(|_| buf.to_vec())
}

async fn recv_all(stream: &TcpStream) -> Result<Vec<u8>> {
    let mut all = vec![];
    loop {
        let part = recv(stream).await?;
        if part.is_empty() {
            return Ok(all);
        }
        all.extend(part);
    }
}

struct Pair {
    world: World,
    client: NodeId,
    server: NodeId,
    addr: SocketAddr,
}

fn pair(seed: u64, config: SimConfig) -> Pair {
    let world = World::new(seed, config);
    let (client, server) = (world.node("client"), world.node("server"));
    let addr = (world.addr(server), PORT).into();
    Pair { world, client, server, addr }
}

impl Pair {
    /// Accepts one connection on the server and hands it to `serve`.
    fn serve<F: Future + 'static>(&self, serve: impl FnOnce(TcpStream) -> F + 'static) {
        let addr = self.addr;
        let accept = async move {
            let listener = TcpListener::bind(addr).expect("the port is free");
            let (stream, _) = listener.accept().await.expect("the listener lives");
            serve(stream).await;
        };
        self.world.spawn_on(self.server, accept).detach();
    }

    /// Runs `client` on the client's node with a connection, to its end.
    fn run<F: Future<Output: 'static> + 'static>(&self, client: impl FnOnce(TcpStream) -> F + 'static) -> F::Output {
        let addr = self.addr;
        let task = self.world.spawn_on(self.client, async move {
            client(TcpStream::connect(addr).await.expect("the server listens")).await
        });
        self.world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"))
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn bytes_arrive_whole_and_in_order_in_pieces_of_any_size() {
    let (mut split, mut merged) = (false, false);
    for seed in 0..20 {
        let world = SimConfig { link_window: 20_000, ..SimConfig::default() };
        let pair = pair(seed, world);
        let pieces = Rc::new(Cell::new((false, false)));
        let seen = pieces.clone();
        pair.serve(|stream| async move {
            let data = pattern(200_000);
            for message in data.chunks(1000) {
                let mut batch = SendBatch::new();
                batch.head(&message[..100.min(message.len())]);
                batch.view(Buf::copy_from(&message[100.min(message.len())..]).freeze());
                stream.send(batch).await.0.expect("the reader lives");
                task::yield_now().await;
            }
        });
        let received = pair.run(|stream| async move {
            let mut all = vec![];
            loop {
                let part = recv(&stream).await.expect("no faults here");
                if part.is_empty() {
                    return all;
                }
                let (split, merged) = seen.get();
                seen.set((split || part.len() < 100, merged || part.len() > 1000));
                all.extend(part);
            }
        });
        assert!(received == pattern(200_000), "seed {seed}");
        split |= pieces.get().0;
        merged |= pieces.get().1;
    }
    assert!(split && merged, "messages were split: {split}, merged: {merged}");
}

#[test]
fn a_round_trip_takes_two_delays_and_the_bandwidth_its_time() {
    let config = SimConfig { link_delay: MS * 5..MS * 6, link_bandwidth: Some(1_000_000), ..config() };
    let pair = pair(1, config);
    pair.serve(|stream| async move { send(&stream, &recv(&stream).await.expect("bytes")).await.expect("sent") });
    let (handshake, small) = pair.run(|stream| async move {
        let start = time::now();
        send(&stream, b"x").await.expect("sent");
        assert_eq!(recv(&stream).await.expect("echo"), b"x");
        (start.duration_since(time::Instant::default()), start.elapsed())
    });
    assert!((MS * 10..MS * 12).contains(&handshake), "handshake {handshake:?}");
    assert!((MS * 10..MS * 13).contains(&small), "round trip {small:?}");

    let config = SimConfig { link_bandwidth: Some(1_000_000), ..self::config() };
    let pair = self::pair(2, config);
    pair.serve(|stream| async move { send(&stream, &[7; 100_000]).await.expect("sent") });
    let took = pair.run(|stream| async move {
        let start = time::now();
        assert_eq!(recv_all(&stream).await.expect("all").len(), 100_000);
        start.elapsed()
    });
    assert!((MS * 99..MS * 110).contains(&took), "100 kB at 1 MB/s took {took:?}");
}

#[test]
fn a_slow_reader_slows_the_writer() {
    let pair = pair(1, SimConfig { link_window: 4096, ..config() });
    let sent = Rc::new(Cell::new(0));
    let count = sent.clone();
    pair.serve(|stream| async move {
        for _ in 0..100 {
            send(&stream, &[1; 1000]).await.expect("the reader lives");
            count.set(count.get() + 1);
        }
    });
    pair.run(|stream| async move {
        time::sleep(MS * 100).await;
        assert_eq!(sent.get(), 4, "four messages fit the window, the fifth waits");
        let mut taken = 0;
        while taken < 2000 {
            taken += stream.recv(Buf::with_capacity(2000 - taken)).await.0.expect("bytes");
        }
        time::sleep(MS * 100).await;
        assert_eq!(sent.get(), 6, "room for two more");
    });
}

#[test]
fn binding_and_connecting_fail_as_they_do() {
    let pair = pair(1, config());
    let (server, addr) = (pair.world.addr(pair.server), pair.addr);
    let task = pair.world.spawn_on(pair.server, async move {
        let first = TcpListener::bind(addr).expect("free");
        assert_eq!(TcpListener::bind(addr).err().expect("taken").kind(), ErrorKind::AddrInUse);
        let elsewhere = SocketAddr::new([10, 0, 9, 9].into(), 1);
        assert_eq!(TcpListener::bind(elsewhere).err().expect("not ours").kind(), ErrorKind::AddrNotAvailable);
        let any = TcpListener::bind(([0, 0, 0, 0], 0).into()).expect("any port");
        assert_ne!(any.local_addr().port(), 0);
        drop(first);
        TcpListener::bind(addr).expect("free again");
        let local = TcpListener::bind(([127, 0, 0, 1], 99).into()).expect("free");
        assert!(TcpStream::connect(local.local_addr()).await.is_ok(), "a node reaches itself");
        time::sleep(MS * 10).await;
        pending::<()>().await;
    });
    let client = pair.world.spawn_on(pair.client, async move {
        time::sleep(MS * 5).await;
        for port in [addr.port(), 99] {
            let refused = TcpStream::connect((server, port).into()).await.err().expect("nobody listens for us");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        }
        let start = time::now();
        let nobody = TcpStream::connect(([10, 0, 9, 9], 1).into()).await.err().expect("nobody there");
        assert_eq!((nobody.kind(), start.elapsed()), (ErrorKind::TimedOut, MS * 500));
    });
    pair.world.run_until(client).expect("no stall");
    task.detach();
}

#[test]
fn a_full_backlog_delays_the_next_request() {
    let pair = pair(1, SimConfig { connection_timeout: MS * 5000, ..config() });
    let addr = pair.addr;
    let listening = async move {
        let listener = TcpListener::bind(addr).expect("free");
        time::sleep(MS * 100).await;
        let mut streams = vec![];
        loop {
            streams.push(listener.accept().await.expect("a connection"));
        }
    };
    pair.world.spawn_on(pair.server, listening).detach();
    let connected = Rc::new(Cell::new(0));
    for _ in 0..129 {
        let connected = connected.clone();
        let client = async move {
            let _stream = TcpStream::connect(addr).await.expect("in time");
            connected.set(connected.get() + 1);
            pending::<()>().await;
        };
        pair.world.spawn_on(pair.client, client).detach();
    }
    for (after, expected) in [(50, 128), (950, 128), (100, 129)] {
        pair.world.run_for(MS * after).expect("no stall");
        assert_eq!(connected.get(), expected, "at {}", pair.world.now());
    }
}

#[test]
fn the_end_of_a_stream_follows_its_bytes() {
    let pair = pair(1, config());
    pair.serve(|stream| async move {
        send(&stream, b"last words").await.expect("sent");
        stream.shutdown();
        assert_eq!(send(&stream, b"more").await.expect_err("shut").kind(), ErrorKind::BrokenPipe);
        assert!(recv(&stream).await.expect("the end").is_empty());
        pending::<()>().await;
    });
    pair.run(|stream| async move {
        assert_eq!(recv_all(&stream).await.expect("all of it"), b"last words");
        assert!(recv(&stream).await.expect("still the end").is_empty());
        send(&stream, b"nobody reads this").await.expect("taken by the kernel");
        time::sleep(MS * 10).await;
        assert_eq!(send(&stream, b"x").await.expect_err("reset meanwhile").kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn closing_with_unread_bytes_resets() {
    let pair = pair(1, config());
    pair.serve(|stream| async move {
        time::sleep(MS * 10).await;
        drop(stream);
    });
    pair.run(|stream| async move {
        send(&stream, b"never read").await.expect("sent");
        assert_eq!(recv(&stream).await.expect_err("reset").kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn shutdown_ends_a_pending_receive() {
    let pair = pair(1, config());
    pair.serve(|stream| async move { drop(recv(&stream).await) });
    pair.run(|stream| async move {
        let stream = Rc::new(stream);
        let other = stream.clone();
        let pending = task::spawn(async move { recv(&other).await });
        time::sleep(MS * 10).await;
        stream.shutdown();
        assert!(pending.await.expect("the end").is_empty());
    });
}

#[test]
fn a_crashed_peer_resets_after_a_delay_with_any_prefix_delivered() {
    let mut prefixes = BTreeSet::new();
    for seed in 0..60 {
        let pair = pair(seed, SimConfig { link_delay: MS..MS * 3, ..config() });
        pair.serve(|stream| async move {
            for i in 0..10 {
                send(&stream, &[i; 10]).await.expect("sent");
            }
            pending::<()>().await;
        });
        let addr = pair.addr;
        let client = pair.world.spawn_on(pair.client, async move {
            let stream = TcpStream::connect(addr).await.expect("listening");
            let mut all = vec![];
            loop {
                match recv(&stream).await {
                    Ok(part) if part.is_empty() => panic!("an end instead of a reset"),
                    Ok(part) => all.extend(part),
                    Err(error) => return (error.kind(), all, time::now()),
                }
            }
        });
        let crashed = pair.world.run_until(async {
            time::sleep(MS * 5).await;
            pair.world.crash(pair.server);
            time::now()
        });
        let (kind, all, at) = pair.world.run_until(client).expect("no stall");
        assert_eq!(kind, ErrorKind::ConnectionReset);
        assert!(at > crashed.expect("no stall"), "seed {seed}: it cannot be known at once");
        let whole: Vec<u8> = (0..10).flat_map(|i| [i; 10]).collect();
        assert!(whole.starts_with(&all), "seed {seed}: {all:?}");
        prefixes.insert(all.len());
    }
    assert!(prefixes.len() > 5, "{prefixes:?}");
}

#[test]
fn a_paused_peer_is_silent() {
    let pair = pair(1, config());
    pair.serve(|stream| async move {
        loop {
            let bytes = recv(&stream).await.expect("bytes");
            send(&stream, &bytes).await.expect("sent");
        }
    });
    let (addr, world) = (pair.addr, &pair.world);
    let client = world.spawn_on(pair.client, async move {
        let stream = TcpStream::connect(addr).await.expect("listening");
        time::sleep(MS * 20).await;
        send(&stream, b"ping").await.expect("its kernel takes it");
        assert!(time::timeout(Duration::from_secs(60), recv(&stream)).await.is_err(), "nobody answers, nothing breaks");
        time::sleep(MS * 20).await;
        recv(&stream).await.expect("answered after the pause")
    });
    let pong = world.run_until(async {
        time::sleep(MS * 10).await;
        world.pause(pair.server);
        time::sleep(Duration::from_secs(61)).await;
        world.resume(pair.server);
        client.await
    });
    assert_eq!(pong.expect("no stall"), b"ping");
}

#[test]
fn connections_are_reset_by_the_dial_and_by_hand() {
    let pair = pair(1, SimConfig { connection_reset_ppm: 1_000_000, ..config() });
    pair.serve(|stream| async move {
        assert_eq!(recv_all(&stream).await.expect_err("reset").kind(), ErrorKind::ConnectionReset);
        pending::<()>().await;
    });
    pair.run(|stream| async move {
        send(&stream, b"x").await.expect("taken");
        assert_eq!(recv(&stream).await.expect_err("reset").kind(), ErrorKind::ConnectionReset);
        time::sleep(MS * 10).await;
    });

    let pair = self::pair(2, config());
    pair.serve(|stream| async move { recv_all(&stream).await });
    let (addr, world) = (pair.addr, &pair.world);
    let client = world.spawn_on(pair.client, async move {
        let stream = TcpStream::connect(addr).await.expect("listening");
        recv(&stream).await.expect_err("reset").kind()
    });
    let kind = world.run_until(async {
        time::sleep(MS * 10).await;
        world.reset_connections(pair.client, pair.server);
        client.await
    });
    assert_eq!(kind.expect("no stall"), ErrorKind::ConnectionReset);
}

#[test]
fn a_dropped_receive_may_lose_bytes_and_never_reorders() {
    let mut lost = 0;
    for seed in 0..40 {
        let pair = pair(seed, config());
        pair.serve(|stream| async move {
            for i in 0..10 {
                send(&stream, &[i]).await.expect("sent");
                time::sleep(MS * 3).await;
            }
        });
        let received = pair.run(|stream| async move {
            let mut all = vec![];
            loop {
                let Ok(part) = time::timeout(MS * 2, recv(&stream)).await else { continue };
                let part = part.expect("no faults");
                if part.is_empty() {
                    return all;
                }
                all.extend(part);
            }
        });
        assert!(received.is_sorted(), "seed {seed}: {received:?}");
        lost += 10 - received.len();
    }
    assert!(lost > 0, "no receive lost anything in 40 seeds");
}

#[test]
fn a_stream_can_be_detached_and_attached() {
    let pair = pair(1, config());
    pair.serve(|stream| async move {
        let detached = stream.detach();
        time::sleep(MS * 10).await;
        let stream = detached.attach();
        let bytes = recv(&stream).await.expect("what came meanwhile");
        send(&stream, &bytes).await.expect("sent");
    });
    let echoed = pair.run(|stream| async move {
        assert_eq!(stream.peer_addr().port(), PORT);
        send(&stream, b"hello").await.expect("sent");
        recv(&stream).await.expect("echo")
    });
    assert!(b"hello".starts_with(&echoed[..]) && !echoed.is_empty());
}

/// Of what was sent any prefix arrives, and then a reset; the handle finds its connection broken.
#[test]
fn a_connection_that_is_given_up_is_reset() {
    let mut arrived = BTreeSet::new();
    for seed in 0..32 {
        let Pair { world, client, server, addr } = pair(seed, config());
        let serving = world.spawn_on(server, async move {
            let (stream, _) = TcpListener::bind(addr).expect("a free port").accept().await.expect("accepted");
            let mut count = 0;
            loop {
                match recv(&stream).await {
                    Ok(part) if part.is_empty() => break None,
                    Ok(part) => count += part.len(),
                    Err(error) => break Some((count, error.kind())),
                }
            }
        });
        let giving_up = world.spawn_on(client, async move {
            time::sleep(MS).await;
            let stream = TcpStream::connect(addr).await.expect("connected");
            send(&stream, &[7; 9000]).await.expect("taken");
            stream.abort();
            assert!(recv(&stream).await.is_err());
            assert!(send(&stream, &[7]).await.is_err());
        });
        world.run_until(giving_up).expect("no stall");
        let (count, kind) = world.run_until(serving).expect("no stall").expect("a reset, not an end");
        assert_eq!(kind, ErrorKind::ConnectionReset);
        arrived.insert(count);
    }
    assert!(arrived.len() > 1, "always {arrived:?}");
}
