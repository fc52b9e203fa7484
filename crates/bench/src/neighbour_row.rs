//! `yagura bench wire --rows hostile`: what a well-behaved host sees while another peer of its target misbehaves.
//!
//! The hostile peer is a thread of the lowest priority on the host's core, so that what is measured is the target's trouble
//! and not the core's: the well-behaved host asks at a pace that leaves the core time for both.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use device::{Lba, Namespace as _};
use engine::rng::SplitMix;
use engine::{Buf, Reactor, ReactorConfig};
use fabric::host::RemoteNamespace;
use nvme::Nqn;

use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::hostile::{self, Mischief};
use crate::load::{Outcome, paced_loops};
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::wire_row::{ACCESS_BYTES, NQN, Options, host_options, namespace, two_cores};

/// Clients of the well-behaved host.
const CLIENTS: usize = 4;
/// Time between two of its commands.
const PACE: Duration = Duration::from_micros(200);
/// Rest of the hostile peer between two acts, or two bytes: about 1,000 a second.
const PAUSE: Duration = Duration::from_millis(1);

/// Runs the row.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Row> {
    let (host_core, target_core) = two_cores()?;
    let server = process::target(target_core, NQN, &namespace())?;
    let mut alone = Side::new("alone");
    let mut beside: Vec<Side> = Mischief::ALL.iter().map(|mischief| Side::new(mischief.name())).collect();
    let mut acts = vec![0u64; beside.len()];
    progress.begin("measuring", options.rounds * (beside.len() + 1));
    for _ in 0..options.rounds {
        alone.rounds.push(round(&server, host_core, options.time)?);
        progress.step()?;
        for ((mischief, side), acts) in Mischief::ALL.into_iter().zip(&mut beside).zip(&mut acts) {
            let (sample, done) = with_mischief(mischief, &server, host_core, options.time)?;
            side.rounds.push(sample);
            *acts += done;
            progress.step()?;
        }
    }
    progress.end();
    let ratios = beside.iter().map(|side| {
        let name = format!("p99 beside {} / alone", side.name);
        Ratio::new(name, side, &alone, |s| s.p99_us).aim(Aim::AtMost, 2.0)
    });
    let counts: Vec<String> = beside.iter().zip(&acts).map(|(side, acts)| format!("{}: {acts}", side.name)).collect();
    Ok(Row {
        row: "hostile".to_owned(),
        title: "4 KiB reads of a well-behaved host beside a hostile peer".to_owned(),
        conditions: vec![
            machine::describe(),
            format!("memory namespace; one read every {PACE:?} by {CLIENTS} clients, latency from the set time"),
            format!(
                "host and hostile peer (lowest priority, a rest of {PAUSE:?}) on core {host_core}, target on {target_core}"
            ),
            format!("acts in all rounds: {}", counts.join("; ")),
            format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
        ],
        ratios: ratios.collect(),
        sides: std::iter::once(alone).chain(beside).collect(),
        curves: Vec::new(),
    })
}

/// A round beside one kind of mischief, and how often that was done.
fn with_mischief(mischief: Mischief, server: &Server, core: usize, time: Duration) -> anyhow::Result<(Sample, u64)> {
    let nqn: Nqn = NQN.parse().map_err(|error| anyhow!("{NQN}: {error}"))?;
    let (stop, address) = (AtomicBool::new(false), server.address);
    std::thread::scope(|scope| {
        let hostile = std::thread::Builder::new().name("hostile".to_owned()).spawn_scoped(scope, || {
            machine::pin(core)?;
            machine::lowest_priority()?;
            anyhow::Ok(hostile::run(mischief, address, &nqn, u64::MAX, PAUSE, &stop))
        })?;
        let sample = round(server, core, time);
        stop.store(true, Ordering::Relaxed);
        let acts = hostile.join().map_err(|_| anyhow!("the hostile peer panicked"))?;
        Ok((sample?, acts.context("the hostile peer could not begin")?))
    })
}

fn round(server: &Server, core: usize, time: Duration) -> anyhow::Result<Sample> {
    let address = server.address;
    let config = ReactorConfig { core: Some(core), ..ReactorConfig::default() };
    let before = (machine::own_cpu_time(), server.cpu_time()?);
    let outcome = machine::pinned(core, || Reactor::run(config, drive(address, time)))???;
    let used = machine::own_cpu_time().saturating_sub(before.0);
    Ok(Sample::new(&outcome.all(), outcome.wall, used, Some(server.cpu_time()?.saturating_sub(before.1))))
}

async fn drive(address: SocketAddr, time: Duration) -> anyhow::Result<Outcome> {
    let namespace = RemoteNamespace::connect(host_options(address)?).await?;
    let info = namespace.info();
    let blocks = (ACCESS_BYTES / info.block_size as usize) as u64;
    let places = info.blocks / blocks;
    let random = RefCell::new(SplitMix(7));
    let buffers: Vec<RefCell<Buf>> = (0..CLIENTS).map(|_| RefCell::new(Buf::zeroed(ACCESS_BYTES))).collect();
    paced_loops(CLIENTS, PACE, time, async move |client| {
        let lba = Lba(random.borrow_mut().below(places) * blocks);
        let (result, buffer) = namespace.read(lba, buffers[client].take()).await;
        buffers[client].replace(buffer);
        anyhow::Ok(result?)
    })
    .await
}
