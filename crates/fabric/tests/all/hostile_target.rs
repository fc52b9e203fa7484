//! Whole associations of the host against a target that lies: a real one, behind a wire that changes what it says. Whatever
//! comes, every call ends in time, nothing panics, and the target is not stormed.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Lba, Memory, Namespace};
use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::sim::{SimConfig, World};
use engine::{Buf, task, time};
use fabric::host::{Multipath, MultipathOptions, Options, follow, trial};
use fabric::subsystem::{Target, listen};
use nvme::Nqn;

const PORT: u16 = 4420;
const BLOCK: usize = 4096;
/// Steps of connecting to both paths, each with its time-out, and what a command may take beyond its deadline.
const PATIENCE: Duration = Duration::from_secs(60);

fn nqn() -> Nqn {
    "nqn.2026-01.example.yagura:hostile".parse().expect("an NQN")
}

/// Passes on what comes, and changes about one in `one_in` pieces of it; 0: none.
async fn pass(from: Rc<TcpStream>, to: Rc<TcpStream>, one_in: u64) {
    loop {
        let (received, buf) = from.recv(Buf::with_capacity(16 << 10)).await;
        let mut bytes = buf.to_vec();
        if !matches!(received, Ok(1..)) {
            break;
        }
        if one_in > 0 && task::random_u64().is_multiple_of(one_in) {
            let at = (task::random_u64() % bytes.len() as u64) as usize;
            match task::random_u64() % 5 {
                0 => bytes[at] ^= 1 << (task::random_u64() % 8),
                1 => bytes[at] = task::random_u64() as u8,
                2 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0xFF),
                3 => bytes.truncate(at.max(1)),
                _ => bytes.extend_from_within(at..),
            }
        }
        let mut batch = SendBatch::new();
        batch.view(Buf::copy_from(&bytes).freeze());
        if to.send(batch).await.0.is_err() {
            break;
        }
    }
    from.shutdown();
    to.shutdown();
}

/// The wire: counts the connections.
async fn wire(at: SocketAddr, target: SocketAddr, one_in: u64, connections: Rc<Cell<u64>>) {
    let listener = TcpListener::bind(at).expect("a free port");
    loop {
        let Ok((host, _)) = listener.accept().await else { return };
        connections.set(connections.get() + 1);
        let Ok(beyond) = TcpStream::connect(target).await else { continue };
        let (host, beyond) = (Rc::new(host), Rc::new(beyond));
        task::spawn(pass(Rc::clone(&host), Rc::clone(&beyond), 0)).detach();
        task::spawn(pass(beyond, host, one_in)).detach();
    }
}

/// Reads, writes and pairs over both paths, for as long as it lasts; returns how many calls succeeded.
async fn work(options: Options, second: SocketAddr) -> u64 {
    let mut paths = MultipathOptions::new(options.clone(), &[second]);
    paths.deadline = Duration::from_secs(4);
    let mut good = 0;
    let service = Options { subsystem: Nqn::discovery(), ..options.clone() };
    // Boxed: without optimisation their frames together fill a test's stack.
    drop(time::timeout(PATIENCE, Box::pin(follow(&service))).await.expect("in time"));
    drop(time::timeout(PATIENCE, Box::pin(trial(&options))).await.expect("in time"));
    let made = time::timeout(PATIENCE, Box::pin(Multipath::connect(paths))).await.expect("in time");
    let Ok(paths) = made else { return good };
    for round in 0..30u64 {
        let started = time::now();
        let page = Buf::zeroed(BLOCK << (round % 5)).freeze();
        let (read, _) = paths.read(Lba(round), Buf::with_len(page.len())).await;
        let write = paths.write(Lba(round), page.clone(), Durability::Stable).await;
        let swap = paths.compare_and_write(Lba(round), page.clone(), page, Durability::Stable).await;
        let flush = paths.flush().await;
        good += [read.is_ok(), write.is_ok(), swap.is_ok(), flush.is_ok()].map(u64::from).iter().sum::<u64>();
        assert!(started.elapsed() < Duration::from_secs(4 * 4 + 1), "round {round} took {:?}", started.elapsed());
    }
    good
}

#[test]
fn a_target_that_lies_costs_time_and_nothing_else() {
    let mut good = 0;
    for seed in 0..40u64 {
        let world = World::new(seed, SimConfig::default());
        let (node, middle, host) = (world.node("target"), world.node("wire"), world.node("host"));
        let target = Target::default();
        target.add_subsystem(nqn(), "1").expect("a subsystem");
        let memory = Memory::new(1 << 20, BLOCK as u32, [7; 16]).expect("a memory namespace");
        target.add_namespace(&nqn(), 1, memory).expect("a namespace");
        let real = SocketAddr::new(world.addr(node), PORT);
        let serving = async move { target.serve(listen(real).await.expect("a free port"), Vec::new()).await };
        world.spawn_on(node, serving).detach();
        let connections = Rc::new(Cell::new(0));
        let [first, second] = [PORT, PORT + 1].map(|port| SocketAddr::new(world.addr(middle), port));
        for at in [first, second] {
            world.spawn_on(middle, wire(at, real, 4 + seed * 4, Rc::clone(&connections))).detach();
        }
        world.run_for(Duration::from_millis(10)).expect("no stall");
        let mut options = Options::new(first, nqn(), 1);
        (options.command_timeout, options.connect_timeout) = (Duration::from_millis(300), Duration::from_millis(300));
        options.keep_alive = Duration::from_millis(400);
        options.queues = 3;
        let started = world.now();
        let worker = world.spawn_on(host, work(options, second));
        good += world.run_until(worker).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        let seconds = world.now().duration_since(started).as_secs() + 1;
        // Four connections an attempt and path, at first every 10 ms, then every two seconds at most.
        assert!(connections.get() < 200 + seconds * 20, "seed {seed}: {} in {seconds} s", connections.get());
    }
    assert!(good > 500, "only {good} calls succeeded: the lies were too plain to get far");
}
