//! Measures the reactor's price: small requests and 4 KiB replies over loopback, one at a time, through two reactors, side
//! by side with two bare polled sockets (non-blocking read in a loop), in interleaved rounds.
//!
//! ```text
//! cargo run --release -p engine --example echo [-- [shared] [SPIN_MAX_US]]     shared: both ends on one core
//! ```

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener as BareListener, TcpStream as BareStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use engine::{
    Buf, Reactor, ReactorConfig,
    net::{SendBatch, TcpListener, TcpStream},
};

/// A read command capsule of NVMe/TCP.
const REQUEST: usize = 72;
/// A 4 KiB block with its data header.
const REPLY: usize = 24 + 4096;
const ROUND: Duration = Duration::from_millis(300);
const ROUNDS: usize = 12;
const ANY: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));

fn main() {
    let shared = std::env::args().any(|argument| argument == "shared");
    let cores = if shared { [0, 0] } else { [0, 1] };
    println!("{REQUEST} B out, {REPLY} B back, cores {cores:?}: round trips in us");
    println!("{:>10} {:>10} {:>10} {:>10} {:>10}", "", "rate/s", "p50", "p99", "p99.9");
    let mut samples = [("bare", vec![], 0u64), ("engine", vec![], 0)];
    for _ in 0..ROUNDS {
        for (name, all, nanos) in &mut samples {
            let round = if *name == "bare" { bare_round(cores, shared) } else { engine_round(cores) };
            *nanos += round.iter().sum::<u64>();
            all.extend(round);
        }
    }
    for (name, all, nanos) in &mut samples {
        all.sort_unstable();
        let at = |share: f64| all[(all.len() as f64 * share) as usize] as f64 / 1e3;
        let rate = all.len() as f64 / (*nanos as f64 / 1e9);
        println!("{name:>10} {rate:>10.0} {:>10.2} {:>10.2} {:>10.2}", at(0.5), at(0.99), at(0.999));
    }
    let median = |index: usize| samples[index].1[samples[index].1.len() / 2] as f64;
    println!("engine / bare at p50: {:.3}", median(1) / median(0));
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).expect("the core exists");
}

/// Two blocking-style loops; on one core they block, since spinning there would wait for the end of the time slice.
fn bare_round(cores: [usize; 2], block: bool) -> Vec<u64> {
    let listener = BareListener::bind(ANY).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let server = thread::spawn(move || {
        pin(cores[1]);
        let (mut stream, _) = listener.accept().expect("a client");
        stream.set_nodelay(true).expect("an option of TCP");
        stream.set_nonblocking(!block).expect("an option of sockets");
        let mut request = [0; REQUEST];
        while fill(&mut stream, &mut request) {
            write_all(&mut stream, &[1; REPLY]);
        }
    });
    pin(cores[0]);
    let mut stream = BareStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("an option of TCP");
    stream.set_nonblocking(!block).expect("an option of sockets");
    let mut reply = [0; REPLY];
    let mut times = Vec::with_capacity(100_000);
    let begin = Instant::now();
    while begin.elapsed() < ROUND {
        let start = Instant::now();
        write_all(&mut stream, &[2; REQUEST]);
        assert!(fill(&mut stream, &mut reply));
        times.push(start.elapsed().as_nanos() as u64);
    }
    drop(stream);
    server.join().expect("the server ends with its client");
    times
}

fn write_all(stream: &mut BareStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("write: {error}"),
        }
    }
}

/// False at the peer's end.
fn fill(stream: &mut BareStream, bytes: &mut [u8]) -> bool {
    let mut done = 0;
    while done < bytes.len() {
        match stream.read(&mut bytes[done..]) {
            Ok(0) => return false,
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("read: {error}"),
        }
    }
    true
}

fn config(core: usize) -> ReactorConfig {
    let default = ReactorConfig::default();
    let spin_max = std::env::args().find_map(|argument| argument.parse().ok()).map(Duration::from_micros);
    ReactorConfig { core: Some(core), spin_max: spin_max.unwrap_or(default.spin_max), ..default }
}

fn engine_round(cores: [usize; 2]) -> Vec<u64> {
    let (tell, told) = mpsc::channel();
    let server = thread::spawn(move || {
        Reactor::run(config(cores[1]), async move {
            let listener = TcpListener::bind(ANY).expect("a free port");
            tell.send(listener.local_addr()).expect("the client waits");
            let (stream, _) = listener.accept().await.expect("a client");
            let reply = Buf::copy_from(&[1; 4096]).freeze();
            let (mut request, mut out) = (Buf::with_capacity(REQUEST), SendBatch::new());
            while fill_async(&stream, &mut request, REQUEST).await {
                out.head(&[1; 24]);
                out.view(reply.clone());
                let (result, back) = stream.send(out).await;
                result.expect("the client reads");
                out = back;
            }
        })
        .expect("a reactor");
    });
    let address = told.recv().expect("the server listens");
    let times = Reactor::run(config(cores[0]), async move {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        let (mut reply, mut out) = (Buf::with_capacity(REPLY), SendBatch::new());
        let mut times = Vec::with_capacity(100_000);
        let begin = Instant::now();
        while begin.elapsed() < ROUND {
            let start = Instant::now();
            out.head(&[2; REQUEST]);
            let (result, back) = stream.send(out).await;
            result.expect("the server reads");
            out = back;
            assert!(fill_async(&stream, &mut reply, REPLY).await);
            times.push(start.elapsed().as_nanos() as u64);
        }
        times
    })
    .expect("a reactor");
    server.join().expect("the server ends with its client");
    times
}

/// False at the peer's end.
async fn fill_async(stream: &TcpStream, buf: &mut Buf, count: usize) -> bool {
    buf.set_len(0);
    while buf.len() < count {
        let (result, back) = stream.recv(std::mem::take(buf)).await;
        *buf = back;
        if result.expect("received") == 0 {
            return false;
        }
    }
    true
}
