//! `yagura bench wire --rows stream`: reads and writes of 128 KiB beside a bare stream of the same bytes.
//!
//! The bare stream is two threads, one that writes messages of 128 KiB and one that reads them, with blocking calls. As the
//! namespace does, its far side takes each message from, or puts it to, a random place of a memory as large as the namespace.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use engine::rng::SplitMix;
use engine::{Reactor, ReactorConfig};
use fabric::host::RemoteNamespace;

use crate::access::{Access, random_access};
use crate::figures::{Aim, Ratio, Row, Sample, Side, histogram, record};
use crate::load::Outcome;
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::wire_row::{NAMESPACE_BYTES, NQN, Options, host_options, namespace, two_cores};

/// Bytes of every access and of every message.
const ACCESS_BYTES: usize = 128 << 10;
/// Commands under way: enough to keep both directions busy.
const DEPTH: usize = 8;

/// Runs the row.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Row> {
    let (host_core, target_core) = two_cores()?;
    let server = process::target(target_core, NQN, &namespace())?;
    let names = ["read", "write"];
    let mut ours: Vec<Side> = names.iter().map(|name| Side::new(format!("{name} 128 KiB, depth {DEPTH}"))).collect();
    let mut floors: Vec<Side> = names.iter().map(|name| Side::new(format!("bare sockets, {name} direction"))).collect();
    let mut memory = vec![0u8; NAMESPACE_BYTES as usize];
    progress.begin("measuring", options.rounds * 4);
    for _ in 0..options.rounds {
        for (index, write) in [false, true].into_iter().enumerate() {
            floors[index].rounds.push(bare(&mut memory, write, (host_core, target_core), options.time)?);
            progress.step()?;
            ours[index].rounds.push(round(&server, host_core, write, options.time)?);
            progress.step()?;
        }
    }
    progress.end();
    let ratios = (0..2).map(|index| {
        let name = format!("{}: bytes a second, ours / bare stream", names[index]);
        Ratio::new(name, &ours[index], &floors[index], |s| s.rate).aim(Aim::AtLeast, 0.9)
    });
    Ok(Row {
        row: "stream".to_owned(),
        title: "128 KiB reads and writes beside a bare loopback stream".to_owned(),
        conditions: vec![
            machine::describe(),
            format!(
                "memory namespace, NVMe/TCP over loopback, one I/O queue, no digests, {ACCESS_BYTES} bytes a command"
            ),
            format!("host (one thread) on core {host_core}; target, or the stream's far side, on core {target_core}"),
            "bare stream: blocking sockets, from or to random places of a memory of the namespace's size".to_owned(),
            format!("{} interleaved rounds of {:?} a side; a rate of 8192 is 1 GiB/s", options.rounds, options.time),
        ],
        ratios: ratios.collect(),
        sides: floors.into_iter().chain(ours).collect(),
        curves: Vec::new(),
    })
}

/// One round of the bare stream; an operation is one message, its latency the time since the one before.
fn bare(memory: &mut [u8], write: bool, cores: (usize, usize), time: Duration) -> anyhow::Result<Sample> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
    let address = listener.local_addr()?;
    let cpu = machine::own_cpu_time();
    let sample = std::thread::scope(|scope| {
        let far = scope.spawn(move || {
            machine::pin(cores.1)?;
            let (stream, _) = listener.accept()?;
            far_side(stream, memory, write)
        });
        let near = machine::pinned(cores.0, || near_side(address, write, time))?;
        far.join().map_err(|_| anyhow!("the stream's far side panicked"))??;
        near
    })?;
    let (latencies, wall) = sample;
    Ok(Sample::new(&latencies, wall, machine::own_cpu_time().saturating_sub(cpu), None))
}

/// Sends from, or receives to, random places until the near side has gone.
fn far_side(mut stream: TcpStream, memory: &mut [u8], write: bool) -> anyhow::Result<()> {
    let mut random = SplitMix(1);
    let places = (memory.len() / ACCESS_BYTES) as u64;
    loop {
        let place = random.below(places) as usize * ACCESS_BYTES;
        let part = &mut memory[place..place + ACCESS_BYTES];
        // It goes in the middle of a message: that is the end.
        let moved = if write { stream.read_exact(part) } else { stream.write_all(part) };
        if moved.is_err() {
            return Ok(());
        }
    }
}

fn near_side(
    address: SocketAddr,
    write: bool,
    time: Duration,
) -> anyhow::Result<(hdrhistogram::Histogram<u64>, Duration)> {
    let mut stream = TcpStream::connect(address).context("cannot connect to the stream's far side")?;
    let mut message = vec![1u8; ACCESS_BYTES];
    let mut latencies = histogram();
    let begin = Instant::now();
    let mut now = begin;
    while now - begin < time {
        if write {
            stream.write_all(&message)?;
        } else {
            stream.read_exact(&mut message)?;
        }
        let done = Instant::now();
        record(&mut latencies, done - now);
        now = done;
    }
    Ok((latencies, now - begin))
}

fn round(server: &Server, core: usize, write: bool, time: Duration) -> anyhow::Result<Sample> {
    let address = server.address;
    let config = ReactorConfig { core: Some(core), ..ReactorConfig::default() };
    let before = (machine::own_cpu_time(), server.cpu_time()?);
    let outcome = machine::pinned(core, || Reactor::run(config, drive(address, write, time)))???;
    let used = machine::own_cpu_time().saturating_sub(before.0);
    Ok(Sample::new(&outcome.all(), outcome.wall, used, Some(server.cpu_time()?.saturating_sub(before.1))))
}

async fn drive(address: SocketAddr, write: bool, time: Duration) -> anyhow::Result<Outcome> {
    let namespace = RemoteNamespace::connect(host_options(address)?).await?;
    random_access(namespace, Access::read_or_write(write), ACCESS_BYTES, DEPTH, time).await
}
