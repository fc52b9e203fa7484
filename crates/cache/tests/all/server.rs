//! The server's connections in a simulated world: deadlines pass at once there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cache::hash::Hasher;
use cache::memory::Budget;
use cache::server::Served;
use cache::session::{Authentication, Rules, Users};
use cache::store::{Store, StoreOptions};
use cache::testing::{SECRET, shared};
use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::sim::{SimConfig, World};
use engine::{Buf, task, time};

/// Serves on the current node; where.
fn serve(rules: Rules, connections_max: usize) -> SocketAddr {
    serve_at(([127, 0, 0, 1], 0).into(), rules, connections_max)
}

fn serve_at(address: SocketAddr, rules: Rules, connections_max: usize) -> SocketAddr {
    let shared = shared(rules, connections_max);
    let budget = Arc::new(Budget::without_buffers(64 << 20));
    let worker = Arc::new(Store::new(Hasher::new(SECRET), budget, StoreOptions::default())).worker(&shared);
    let listener = TcpListener::bind(address).expect("a free port");
    let address = listener.local_addr();
    task::spawn(async move { worker.accept(&listener, &[]).await }).detach();
    address
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("it listens")
}

async fn send(stream: &TcpStream, bytes: &[u8]) {
    let mut batch = SendBatch::new();
    batch.head(bytes);
    stream.send(batch).await.0.expect("sent");
}

/// The line that is answered next; nothing at the end.
async fn receive(stream: &TcpStream) -> Vec<u8> {
    let mut buf = Buf::with_capacity(4096);
    while !buf.ends_with(b"\r\n") {
        let (result, back) = stream.recv(buf).await;
        buf = back;
        if result.expect("no error") == 0 {
            break;
        }
    }
    buf.to_vec()
}

fn run(test: impl Future<Output = ()> + 'static) {
    let world = World::new(1, SimConfig::default());
    let node = world.node("n");
    let task = world.spawn_on(node, test);
    world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
}

fn with_passwords() -> Rules {
    let users = Users::parse("user:pass").expect("a colon");
    Rules { authentication: Authentication::Text(users), ..Rules::default() }
}

/// Two that said nothing kept the places of a server for ever.
#[test]
fn who_does_not_say_who_he_is_loses_his_place() {
    run(async {
        let address = serve(with_passwords(), 6);
        let (silent, talking, known) = (connect(address).await, connect(address).await, connect(address).await);
        send(&known, b"set u 0 0 9\r\nuser pass\r\n").await;
        assert_eq!(receive(&known).await, b"STORED\r\n");
        let began = time::now();
        let ended = task::spawn(async move {
            let end = time::timeout(Duration::from_secs(60), receive(&silent)).await;
            assert_eq!(end.expect("it is ended"), b"", "nothing is said");
        });
        // One that goes on trying has no more time.
        let mut answered = 0;
        loop {
            send(&talking, b"get a\r\n").await;
            match time::timeout(Duration::from_secs(1), receive(&talking)).await {
                Ok(answer) if answer.is_empty() => break,
                Ok(answer) => assert_eq!(answer, b"CLIENT_ERROR unauthenticated\r\n"),
                Err(_) => panic!("no answer"),
            }
            answered += 1;
            time::sleep(Duration::from_secs(1)).await;
            assert!(answered < 60, "it goes on for ever");
        }
        ended.await;
        let took = began.elapsed();
        assert!((Duration::from_secs(9)..Duration::from_secs(14)).contains(&took), "{took:?}");
        send(&known, b"mn\r\n").await;
        assert_eq!(receive(&known).await, b"MN\r\n", "who is known may rest");
        let other = connect(address).await;
        send(&other, b"set u 0 0 9\r\nuser pass\r\n").await;
        assert_eq!(receive(&other).await, b"STORED\r\n");
    });
}

/// One machine that said nothing had all places, and when it was ended for that it was back before anybody else.
#[test]
fn an_address_that_says_nothing_leaves_places_to_others() {
    let world = World::new(1, SimConfig::default());
    let [node, stranger, client] = ["server", "stranger", "client"].map(|name| world.node(name));
    let address = SocketAddr::new(world.addr(node), 11211);
    let server = world.spawn_on(node, async move {
        serve_at(address, with_passwords(), 40);
        time::sleep(Duration::from_secs(3600)).await;
    });
    let flood = world.spawn_on(stranger, async move {
        loop {
            let mut silent = Vec::new();
            for _ in 0..60 {
                silent.push(connect(address).await);
            }
            time::sleep(Duration::from_secs(1)).await;
        }
    });
    let served = world.spawn_on(client, async move {
        let mut known = Vec::new();
        // One address has more connections than may be unauthenticated, once they have the password.
        for _ in 0..25 {
            let stream = connect(address).await;
            send(&stream, b"set u 0 0 9\r\nuser pass\r\n").await;
            assert_eq!(receive(&stream).await, b"STORED\r\n");
            known.push(stream);
            time::sleep(Duration::from_secs(1)).await;
        }
        for stream in &known {
            send(stream, b"mn\r\n").await;
            assert_eq!(receive(stream).await, b"MN\r\n");
        }
    });
    world.run_until(served).unwrap_or_else(|stalled| panic!("{stalled}"));
    drop((flood, server));
}

/// Nobody asks who they are: they may rest as long as they like.
#[test]
fn where_nobody_is_asked_connections_may_rest() {
    run(async {
        let address = serve(Rules::default(), 2);
        let (silent, spoken) = (connect(address).await, connect(address).await);
        send(&spoken, b"mn\r\n").await;
        assert_eq!(receive(&spoken).await, b"MN\r\n");
        time::sleep(Duration::from_secs(1000)).await;
        for stream in [&silent, &spoken] {
            send(stream, b"mn\r\n").await;
            assert_eq!(receive(stream).await, b"MN\r\n");
        }
    });
}
