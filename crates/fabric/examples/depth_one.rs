//! Measures the wire's price: 4 KiB reads of a memory namespace over loopback, one at a time, host and target each on a
//! reactor, side by side with two bare polled sockets that exchange as many bytes, in interleaved rounds.
//!
//! ```text
//! cargo run --release -p fabric --example depth_one [-- shared]     shared: both ends on one core
//! ```

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener as BareListener, TcpStream as BareStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use device::{Lba, Memory, Namespace};
use engine::net::TcpListener;
use engine::sync::mailbox;
use engine::{Buf, Reactor, ReactorConfig, task};
use fabric::host::{Options, RemoteNamespace};
use fabric::target::Target;

/// A read command capsule, and a 4 KiB block with its data header.
const REQUEST: usize = 72;
const REPLY: usize = 24 + 4096;
const ROUND: Duration = Duration::from_millis(300);
const ROUNDS: usize = 12;
const ANY: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));

fn main() {
    let shared = std::env::args().any(|argument| argument == "shared");
    let cores = if shared { [0, 0] } else { [0, 1] };
    println!("4 KiB reads, cores {cores:?}: round trips in us");
    println!("{:>10} {:>10} {:>10} {:>10} {:>10}", "", "rate/s", "p50", "p99", "p99.9");
    let mut samples = [("bare", vec![], 0u64), ("nvme/tcp", vec![], 0)];
    for _ in 0..ROUNDS {
        for (name, all, nanos) in &mut samples {
            let round = if *name == "bare" { bare_round(cores, shared) } else { nvme_round(cores) };
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
    println!("nvme/tcp / bare at p50: {:.3}", median(1) / median(0));
}

fn on_core<T>(core: usize, main: impl Future<Output = T>) -> T {
    Reactor::run(ReactorConfig { core: Some(core), ..ReactorConfig::default() }, main).expect("a reactor")
}

fn nvme_round(cores: [usize; 2]) -> Vec<u64> {
    let nqn: nvme::Nqn = "nqn.2026-01.example.yagura:example".parse().expect("an NQN");
    let (tell, told) = mpsc::channel();
    let (stop, stopped) = mailbox::<()>(1);
    let name = nqn.clone();
    let server = thread::spawn(move || {
        on_core(cores[1], async move {
            let target = Target::default();
            target.add_subsystem(name.clone(), "1").expect("a subsystem");
            let memory = Memory::new(64 << 20, 4096, [7; 16]).expect("a memory namespace");
            target.add_namespace(&name, 1, memory).expect("a namespace");
            let listener = TcpListener::bind(ANY).expect("a free port");
            tell.send(listener.local_addr()).expect("the host waits");
            let serving = task::spawn(async move { target.serve(listener, Vec::new()).await });
            let _: Option<()> = stopped.recv().await;
            drop(serving);
        });
    });
    let address = told.recv().expect("the target listens");
    let times = on_core(cores[0], async move {
        let namespace = RemoteNamespace::connect(Options::new(address, nqn, 1)).await.expect("connected");
        let (mut times, mut buf) = (Vec::with_capacity(100_000), Buf::zeroed(4096));
        let begin = Instant::now();
        while begin.elapsed() < ROUND {
            let start = Instant::now();
            let (result, back) = namespace.read(Lba(times.len() as u64 * 7919 % 16_384), buf).await;
            result.expect("read");
            buf = back;
            times.push(start.elapsed().as_nanos() as u64);
        }
        times
    });
    drop(stop);
    server.join().expect("the target ends");
    times
}

/// Two polling loops; on one core they block, since spinning there would wait for the end of the time slice.
fn bare_round(cores: [usize; 2], block: bool) -> Vec<u64> {
    let listener = BareListener::bind(ANY).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let server = thread::spawn(move || {
        on_core(cores[1], std::future::ready(())); // pins the thread
        let (mut stream, _) = listener.accept().expect("a client");
        stream.set_nodelay(true).expect("an option of TCP");
        stream.set_nonblocking(!block).expect("an option of sockets");
        let mut request = [0; REQUEST];
        while fill(&mut stream, &mut request) {
            write_all(&mut stream, &[1; REPLY]);
        }
    });
    on_core(cores[0], std::future::ready(()));
    let mut stream = BareStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("an option of TCP");
    stream.set_nonblocking(!block).expect("an option of sockets");
    let (mut reply, mut times) = ([0; REPLY], Vec::with_capacity(100_000));
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
