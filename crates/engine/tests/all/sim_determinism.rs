//! One seed is one run: a busy scenario with every fault, twice, byte for byte.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use engine::file::{File, OpenOptions};
use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::sim::{DiskConfig, NodeId, SimConfig, World};
use engine::{Buf, task, time};

const NODES: usize = 4;
const PORT: u16 = 7000;
const SECTORS: u64 = 64;

fn config() -> SimConfig {
    SimConfig {
        connection_reset_ppm: 3_000,
        connection_timeout: Duration::from_millis(40),
        link_window: 8 * 1024,
        disk: DiskConfig { read_error_ppm: 2_000, write_error_ppm: 2_000, ..DiskConfig::default() },
        clock_offset_max: Duration::from_secs(2),
        clock_drift_ppm_max: 100,
        complete_trace: true,
        ..SimConfig::default()
    }
}

/// Stores what it is sent, and answers with what it reads back.
async fn serve(stream: TcpStream, file: File) -> std::io::Result<()> {
    let mut batch = SendBatch::new();
    loop {
        let (received, request) = stream.recv(Buf::with_capacity(4096)).await;
        if received? == 0 {
            return Ok(());
        }
        let sector = task::random_u64() % SECTORS * 512;
        let mut data = Buf::zeroed(512);
        let len = request.len().min(512);
        data[..len].copy_from_slice(&request[..len]);
        file.write_at(sector, data.freeze(), task::random_u64().is_multiple_of(2)).await?;
        if task::random_u64().is_multiple_of(4) {
            file.sync_data().await?;
        }
        let (read, data) = file.read_at(sector, Buf::with_len(512)).await;
        read?;
        batch.view(data.freeze());
        let (sent, back) = stream.send(batch).await;
        sent?;
        batch = back;
    }
}

async fn server() {
    let listener = TcpListener::bind(([0, 0, 0, 0], PORT).into()).expect("a free port");
    let options = OpenOptions { create: Some(SECTORS * 512), ..OpenOptions::default() };
    let file = File::open(Path::new("/disk"), &options).expect("nobody else opens it");
    while let Ok((stream, _)) = listener.accept().await {
        let file = file.clone();
        task::spawn(async move { drop(serve(stream, file).await) }).detach();
    }
}

async fn talk(addr: std::net::SocketAddr) -> std::io::Result<()> {
    let stream = TcpStream::connect(addr).await?;
    for _ in 0..20 {
        let mut batch = SendBatch::new();
        batch.head(&vec![task::random_u64() as u8; (task::random_u64() % 6000 + 1) as usize]);
        stream.send(batch).await.0?;
        let (received, _) = stream.recv(Buf::with_capacity(512)).await;
        if received? == 0 {
            break;
        }
        time::sleep(Duration::from_micros(task::random_u64() % 500)).await;
    }
    Ok(())
}

fn boot(world: &World, node: NodeId, peers: &[NodeId], outcomes: &Rc<RefCell<BTreeMap<String, u32>>>) {
    world.spawn_on(node, server()).detach();
    for peer in peers.iter().filter(|peer| **peer != node) {
        let addr = (world.addr(*peer), PORT).into();
        let outcomes = outcomes.clone();
        let client = async move {
            loop {
                let outcome = match talk(addr).await {
                    Ok(()) => format!("ok at {}", time::unix_time().as_secs()),
                    Err(error) => error.to_string(),
                };
                *outcomes.borrow_mut().entry(outcome).or_default() += 1;
                time::sleep(Duration::from_millis(1)).await;
            }
        };
        world.spawn_on(node, client).detach();
    }
}

struct Run {
    trace: String,
    hash: u64,
    outcomes: BTreeMap<String, u32>,
}

fn run(seed: u64) -> Run {
    let world = World::new(seed, config());
    let nodes: Vec<NodeId> = (0..NODES).map(|i| world.node(&format!("n{i}"))).collect();
    let outcomes = Rc::new(RefCell::new(BTreeMap::new()));
    for node in &nodes {
        boot(&world, *node, &nodes, &outcomes);
    }
    let faults = async {
        for _ in 0..12 {
            time::sleep(Duration::from_millis(10)).await;
            let (a, b) = (nodes[task::random_u64() as usize % NODES], nodes[task::random_u64() as usize % NODES]);
            match task::random_u64() % 6 {
                0 => world.crash(a),
                1 => world.pause(a),
                2 | 3 => world.partition(a, b),
                4 => world.corrupt(a, "/disk", task::random_u64() % 1000, 10),
                _ => world.heal_all(),
            }
            nodes.iter().for_each(|node| world.resume(*node));
            for node in nodes.iter().filter(|node| !world.is_up(**node)) {
                world.restart(*node);
                boot(&world, *node, &nodes, &outcomes);
            }
        }
    };
    world.run_until(faults).expect("the scenario ends by itself");
    let outcomes = outcomes.borrow().clone();
    Run { trace: world.trace(), hash: world.trace_hash(), outcomes }
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    for seed in 1..=3 {
        let (first, second) = (run(seed), run(seed));
        if let Some((line, (a, b))) =
            first.trace.lines().zip(second.trace.lines()).enumerate().find(|(_, (a, b))| a != b)
        {
            panic!("seed {seed} parts ways at line {line}:\n{a}\n{b}");
        }
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.outcomes, second.outcomes, "seed {seed}");
        // What is compared is worth it: traffic, and every kind of fault.
        assert!(first.trace.lines().count() > 2_000, "seed {seed}: {} lines", first.trace.lines().count());
    }
    let all: String = (1..=6).map(|seed| run(seed).trace).collect();
    for event in
        [" crash", " pause", " partition", " heal", "EIO", "severed", "TimedOut", "loses power", "corrupted", "refused"]
    {
        assert!(all.contains(event), "six seeds never showed:{event}");
    }
}

#[test]
fn another_seed_gives_another_run() {
    let (a, b) = (run(1), run(2));
    assert_ne!(a.hash, b.hash);
    assert_ne!(a.trace, b.trace);
}

const CHILD: &str = "YAGURA_SIM_DETERMINISM_CHILD";

/// Addresses of memory and the seeds of hash maps differ between processes; a run must not know them.
#[test]
fn the_same_seed_gives_the_same_run_in_another_process() {
    let hash = run(5).hash.to_string();
    if std::env::var_os(CHILD).is_some() {
        println!("hash {hash} of seed 5");
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().expect("this test has a binary"))
        .args(["--exact", "sim_determinism::the_same_seed_gives_the_same_run_in_another_process", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("it runs again");
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(output.contains(&format!("hash {hash} of seed 5")), "the other process saw another run:\n{output}");
}
