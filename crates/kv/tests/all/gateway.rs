//! The gateway over sockets, in both worlds: what a session's own tests cannot see.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::{Buf, Reactor, ReactorConfig, task, time};
use kv::resp::fuzz::MemoryBackend;
use kv::resp::{Gateway, GatewayState, GatewayStats};

/// A gateway over memory on a free port, which accepts until the world ends.
fn start(connections_max: usize) -> (Rc<Gateway<MemoryBackend>>, std::net::SocketAddr, Arc<GatewayState>) {
    start_with(connections_max, GatewayState::default())
}

fn start_with(
    connections_max: usize,
    shared: GatewayState,
) -> (Rc<Gateway<MemoryBackend>>, std::net::SocketAddr, Arc<GatewayState>) {
    start_at("127.0.0.1:0".parse().expect("an address"), connections_max, shared)
}

fn start_at(
    address: std::net::SocketAddr,
    connections_max: usize,
    shared: GatewayState,
) -> (Rc<Gateway<MemoryBackend>>, std::net::SocketAddr, Arc<GatewayState>) {
    let shared = Arc::new(shared);
    let gateway = Rc::new(Gateway::new(Rc::default(), shared.clone(), connections_max));
    let listener = TcpListener::bind(address).expect("a free port");
    let address = listener.local_addr();
    let accepting = gateway.clone();
    task::spawn(async move { accepting.accept(&listener, &[]).await }).detach();
    (gateway, address, shared)
}

pub(crate) async fn send(stream: &TcpStream, bytes: &[u8]) {
    for part in bytes.chunks(1 << 20) {
        let mut batch = SendBatch::new();
        batch.view(Buf::copy_from(part).freeze());
        stream.send(batch).await.0.expect("sent");
    }
}

/// Receives `length` bytes, or what comes before the end.
pub(crate) async fn receive(stream: &TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let (result, buf) = stream.recv(Buf::with_capacity((length - bytes.len()).min(1 << 20))).await;
        if result.expect("received") == 0 {
            break;
        }
        bytes.extend_from_slice(&buf);
    }
    bytes
}

fn real<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(20), main).await.expect("took too long") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

async fn conversation() {
    let (gateway, address, shared) = start(16);
    let stream = TcpStream::connect(address).await.expect("connected");
    let value = vec![b'v'; 1_000_000];
    let mut input = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", value.len()).into_bytes();
    input.extend_from_slice(&value);
    input.extend_from_slice(b"\r\nGET k\r\nPING\r\n");
    send(&stream, &input).await;
    let expected = [b"+OK\r\n$1000000\r\n", &value[..], b"\r\n+PONG\r\n"].concat();
    assert!(receive(&stream, expected.len()).await == expected, "the value came back changed");
    // What stands behind QUIT is not executed.
    send(&stream, b"PING\r\nQUIT\r\nPING\r\n").await;
    assert_eq!(receive(&stream, 100).await, b"+PONG\r\n+OK\r\n");
    gateway.stop().await;
    assert_eq!(GatewayStats::load(&shared.stats.connections), 0);
}

#[test]
fn conversation_on_the_kernel() {
    real(conversation());
}

#[test]
fn conversation_in_the_simulated_world() {
    simulated(conversation());
}

/// Time passes at once where nothing happens.
pub(crate) fn simulated(main: impl Future<Output = ()> + 'static) {
    let config =
        engine::sim::SimConfig { virtual_time_max: Duration::from_secs(3600), ..engine::sim::SimConfig::default() };
    let world = engine::sim::World::new(7, config);
    let node = world.node("gateway");
    let running = world.spawn_on(node, main);
    world.run_until(running).unwrap_or_else(|stalled| panic!("{:?} at {:?}", stalled.reason, stalled.at));
}

/// Two that said nothing had the places of a gateway of two for ever.
#[test]
fn who_gives_no_password_in_time_leaves_the_place_to_others() {
    simulated(async {
        let (_gateway, address, _) = start_with(2, GatewayState::new(Some(tls::Secret::new(b"secret".to_vec()))));
        let _silent = [TcpStream::connect(address).await, TcpStream::connect(address).await];
        let patient = async {
            loop {
                let stream = TcpStream::connect(address).await.expect("connected");
                let mut batch = SendBatch::new();
                batch.head(b"AUTH secret\r\n");
                // One that is refused may be gone already.
                let sent = stream.send(batch).await.0;
                let (received, buf) = stream.recv(Buf::with_capacity(100)).await;
                if sent.is_ok() && received.is_ok() && &buf[..] == b"+OK\r\n" {
                    return stream;
                }
                time::sleep(Duration::from_millis(100)).await;
            }
        };
        let known = time::timeout(Duration::from_secs(12), patient).await.expect("a place came free");
        // Who is known may be silent.
        time::sleep(Duration::from_secs(600)).await;
        send(&known, b"PING\r\n").await;
        assert_eq!(receive(&known, 7).await, b"+PONG\r\n");
    });
}

/// One machine that said nothing had all places, and when it was ended for that it was back before anybody else.
#[test]
fn an_address_that_gives_no_password_leaves_places_to_others() {
    let world = engine::sim::World::new(7, engine::sim::SimConfig::default());
    let [node, stranger, client] = ["gateway", "stranger", "client"].map(|name| world.node(name));
    let address = std::net::SocketAddr::new(world.addr(node), 6379);
    let gateway = world.spawn_on(node, async move {
        let secret = tls::Secret::new(b"secret".to_vec());
        let gateway = start_at(address, 40, GatewayState::new(Some(secret)));
        time::sleep(Duration::from_secs(60)).await;
        let stats = &gateway.2.stats;
        [&stats.refused_unauthenticated, &stats.connections_refused].map(GatewayStats::load)
    });
    let flood = world.spawn_on(stranger, async move {
        loop {
            let silent: Vec<_> = (0..60).map(|_| TcpStream::connect(address)).collect();
            let mut open = Vec::new();
            for connection in silent {
                open.push(connection.await);
            }
            time::sleep(Duration::from_secs(1)).await;
        }
    });
    let served = world.spawn_on(client, async move {
        let mut known = Vec::new();
        // One address has more connections than may be unauthenticated, once they have the password; over two floods' time.
        for _ in 0..25 {
            let stream = TcpStream::connect(address).await.expect("connected");
            send(&stream, b"AUTH secret\r\n").await;
            assert_eq!(receive(&stream, 5).await, b"+OK\r\n");
            known.push(stream);
            time::sleep(Duration::from_secs(1)).await;
        }
        for stream in &known {
            send(stream, b"PING\r\n").await;
            assert_eq!(receive(stream, 7).await, b"+PONG\r\n");
        }
    });
    world.run_until(served).unwrap_or_else(|stalled| panic!("{stalled}"));
    let [unauthenticated, all] = world.run_until(gateway).unwrap_or_else(|stalled| panic!("{stalled}"));
    assert!(unauthenticated > 1000 && unauthenticated == all, "{unauthenticated} of {all}");
    drop(flood);
}

/// What peers send takes memory too: more of them than there is room for, who don't go on, give way to those who do.
#[test]
fn commands_on_their_way_are_bounded_and_one_that_stalls_gives_way() {
    simulated(async {
        let (_gateway, address, _) = start(16);
        let mut stalled = Vec::new();
        for _ in 0..4 {
            let stream = TcpStream::connect(address).await.expect("connected");
            send(&stream, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$67000000\r\nbegin").await;
            stalled.push(stream);
        }
        time::sleep(Duration::from_secs(1)).await;
        let other = TcpStream::connect(address).await.expect("connected");
        send(&other, b"SET short x\r\n").await;
        assert_eq!(receive(&other, 5).await, b"+OK\r\n");
        let begun = time::now();
        let value = vec![b'v'; 4_000_000];
        send(&other, b"*3\r\n$3\r\nSET\r\n$1\r\nl\r\n$4000000\r\n").await;
        send(&other, &[&value[..], b"\r\n"].concat()).await;
        assert_eq!(receive(&other, 5).await, b"+OK\r\n");
        let waited = begun.elapsed();
        assert!((2..10).contains(&waited.as_secs()), "it was taken after {waited:?}");
        for stream in &stalled {
            assert!(stream.recv(Buf::with_capacity(1)).await.0.is_ok_and(|bytes| bytes == 0), "it is still there");
        }
    });
}

/// Those who have sent a long command and wait for nothing, as in any pool of connections, hold none of that memory; and who sends
/// a byte now and then gives way as one does who sends none.
#[test]
fn idle_connections_hold_no_room_for_commands_and_a_trickle_gives_way() {
    simulated(async {
        let (_gateway, address, _) = start(64);
        let value = vec![b'v'; 15_900_000];
        let mut idle = Vec::new();
        for _ in 0..18 {
            let stream = TcpStream::connect(address).await.expect("connected");
            send(&stream, b"*3\r\n$3\r\nSET\r\n$1\r\nl\r\n$15900000\r\n").await;
            send(&stream, &[&value[..], b"\r\n"].concat()).await;
            assert_eq!(receive(&stream, 5).await, b"+OK\r\n");
            idle.push(stream);
        }
        let trickling = async move {
            let mut streams = Vec::new();
            for _ in 0..4 {
                let stream = TcpStream::connect(address).await.expect("connected");
                send(&stream, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$67000000\r\n").await;
                streams.push(stream);
            }
            loop {
                time::sleep(Duration::from_secs(2)).await;
                for stream in &streams {
                    let mut batch = SendBatch::new();
                    batch.head(b"x");
                    let _closed_by_then = stream.send(batch).await;
                }
            }
        };
        let trickling = engine::task::spawn(trickling);
        time::sleep(Duration::from_secs(1)).await;
        let other = TcpStream::connect(address).await.expect("connected");
        send(&other, b"*3\r\n$3\r\nSET\r\n$1\r\nm\r\n$15900000\r\n").await;
        send(&other, &[&value[..], b"\r\n"].concat()).await;
        assert_eq!(receive(&other, 5).await, b"+OK\r\n");
        drop(trickling);
    });
}

#[test]
fn connections_over_the_limit_are_told_so() {
    real(async {
        let (_gateway, address, _) = start(1);
        let first = TcpStream::connect(address).await.expect("connected");
        send(&first, b"PING\r\n").await;
        assert_eq!(receive(&first, 7).await, b"+PONG\r\n");
        let second = TcpStream::connect(address).await.expect("connected");
        assert_eq!(receive(&second, 100).await, b"-ERR max number of clients reached\r\n");
        drop(first);
        // The place is free as soon as the end of the first is noticed.
        loop {
            let third = TcpStream::connect(address).await.expect("connected");
            // A refused connection may already be reset.
            let mut batch = SendBatch::new();
            batch.head(b"PING\r\n");
            let sent = third.send(batch).await.0;
            let (received, buf) = third.recv(Buf::with_capacity(1)).await;
            if sent.is_ok() && received.is_ok() && &buf[..] == b"+" {
                break;
            }
            time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_peer_that_reads_nothing_delays_nobody_and_holds_bounded_memory() {
    real(async {
        let (_gateway, address, shared) = start(16);
        let deaf = TcpStream::connect(address).await.expect("connected");
        let value = vec![b'v'; 1 << 20];
        let mut input = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", value.len()).into_bytes();
        input.extend_from_slice(&value);
        input.extend_from_slice(b"\r\n");
        input.extend_from_slice(&b"GET k\r\n".repeat(500));
        send(&deaf, &input).await;
        let other = TcpStream::connect(address).await.expect("connected");
        send(&other, b"PING\r\n").await;
        assert_eq!(receive(&other, 7).await, b"+PONG\r\n");
        time::sleep(Duration::from_millis(300)).await;
        // 500 MiB were asked for; what the sockets take comes on top of what is held.
        let answered = GatewayStats::load(&shared.stats.commands);
        assert!(answered < 120, "{answered} values of 1 MiB were fetched for a peer that reads none");
    });
}

#[test]
fn a_bad_connection_touches_no_other() {
    real(async {
        let (_gateway, address, _) = start(16);
        let good = TcpStream::connect(address).await.expect("connected");
        let bad = TcpStream::connect(address).await.expect("connected");
        send(&bad, b"*1\r\n$-5\r\n").await;
        assert_eq!(receive(&bad, 100).await, b"-ERR Protocol error: invalid bulk length\r\n");
        send(&good, b"SET k v\r\nGET k\r\n").await;
        assert_eq!(receive(&good, 12).await, b"+OK\r\n$1\r\nv\r\n");
    });
}

/// A thread that takes nothing had everybody wait who connects.
#[test]
fn a_thread_that_is_busy_keeps_nobody_from_being_accepted() {
    simulated(async {
        let shared = Arc::new(GatewayState::default());
        let gateway = Rc::new(Gateway::<MemoryBackend>::new(Rc::default(), shared, 100));
        let listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let address = listener.local_addr();
        let (busy, _never_read) = engine::sync::mailbox(3);
        let accepting = gateway.clone();
        task::spawn(async move { accepting.accept(&listener, &[busy]).await }).detach();
        let mut answered = 0;
        let mut open = Vec::new();
        for _ in 0..20 {
            let stream = TcpStream::connect(address).await.expect("connected");
            send(&stream, b"PING\r\n").await;
            let answer = time::timeout(Duration::from_secs(1), receive(&stream, 7)).await;
            answered += usize::from(answer.is_ok_and(|answer| answer == b"+PONG\r\n"));
            open.push(stream);
        }
        assert_eq!(answered, 17, "all but those that the busy thread has");
    });
}
