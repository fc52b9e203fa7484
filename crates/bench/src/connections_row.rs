//! `yagura bench wire --rows connections`: the same load over ever more connections to one target.
//!
//! Twice: at a pace that the target keeps up with easily, where the tail should not notice the connections, and as fast as
//! 64 clients get, where it is reported.

use std::cell::RefCell;
use std::time::Duration;

use device::{Lba, Namespace as _};
use engine::rng::SplitMix;
use engine::{Buf, Reactor, ReactorConfig};
use fabric::host::RemoteNamespace;

use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::load::{Outcome, closed_loops, paced_loops};
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::wire_row::{ACCESS_BYTES, NQN, Options, host_options, namespace, two_cores};

/// Clients, whatever the number of connections that they share: the most connections there can be.
pub const CLIENTS: usize = 64;
/// Time between two commands of the paced runs. Chosen: a tenth of what the slowest machine seen does at full speed.
const PACE: Duration = Duration::from_micros(50);

/// Runs the row over these numbers of connections, the first of which is what the others are compared to.
pub fn run(options: &Options, counts: &[usize], progress: &Progress) -> anyhow::Result<Row> {
    anyhow::ensure!(!counts.is_empty(), "no number of connections to measure");
    anyhow::ensure!(
        counts.iter().all(|count| (1..=CLIENTS).contains(count)),
        "connections: 1 to {CLIENTS}, one client or more on each"
    );
    let (host_core, target_core) = two_cores()?;
    let server = process::target(target_core, NQN, &namespace())?;
    let side =
        |count: usize, how: &str| Side::new(format!("{count} connection{}, {how}", if count == 1 { "" } else { "s" }));
    let mut paced: Vec<Side> = counts.iter().map(|&count| side(count, "paced")).collect();
    let mut closed: Vec<Side> = counts.iter().map(|&count| side(count, "at full speed")).collect();
    progress.begin("measuring", options.rounds * counts.len() * 2);
    for _ in 0..options.rounds {
        for (index, &count) in counts.iter().enumerate() {
            paced[index].rounds.push(round(&server, host_core, count, true, options.time)?);
            progress.step()?;
            closed[index].rounds.push(round(&server, host_core, count, false, options.time)?);
            progress.step()?;
        }
    }
    progress.end();
    let ratio = |sides: &[Side], index: usize| {
        Ratio::new(format!("{} / {}: p99", sides[index].name, sides[0].name), &sides[index], &sides[0], |s| s.p99_us)
    };
    let flat = (1..counts.len()).map(|index| ratio(&paced, index).aim(Aim::AtMost, 1.25));
    let ratios = flat.chain((1..counts.len()).map(|index| ratio(&closed, index))).collect();
    Ok(Row {
        row: "connections".to_owned(),
        title: "the same load of 4 KiB reads over 1 to 64 connections".to_owned(),
        conditions: vec![
            machine::describe(),
            format!(
                "memory namespace, NVMe/TCP over loopback, {CLIENTS} clients in one host thread on core {host_core}"
            ),
            format!("target (one thread) on core {target_core}; each connection is an association with one I/O queue"),
            format!("paced: one command every {PACE:?}, latency from the set time; at full speed: {CLIENTS} under way"),
            format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
        ],
        sides: paced.into_iter().chain(closed).collect(),
        ratios,
        curves: Vec::new(),
    })
}

fn round(server: &Server, core: usize, count: usize, paced: bool, time: Duration) -> anyhow::Result<Sample> {
    let address = server.address;
    let config = ReactorConfig { core: Some(core), ..ReactorConfig::default() };
    let before = (machine::own_cpu_time(), server.cpu_time()?);
    let outcome = machine::pinned(core, || Reactor::run(config, drive(address, count, paced, time)))???;
    let used = machine::own_cpu_time().saturating_sub(before.0);
    Ok(Sample::new(&outcome.all(), outcome.wall, used, Some(server.cpu_time()?.saturating_sub(before.1))))
}

async fn drive(address: std::net::SocketAddr, count: usize, paced: bool, time: Duration) -> anyhow::Result<Outcome> {
    let mut namespaces = Vec::new();
    for _ in 0..count {
        namespaces.push(RemoteNamespace::connect(host_options(address)?).await?);
    }
    let info = namespaces[0].info();
    let blocks = (ACCESS_BYTES / info.block_size as usize) as u64;
    let places = info.blocks / blocks;
    let random = RefCell::new(SplitMix(count as u64));
    let buffers: Vec<RefCell<Buf>> = (0..CLIENTS).map(|_| RefCell::new(Buf::zeroed(ACCESS_BYTES))).collect();
    let read = async move |client: usize| {
        let lba = Lba(random.borrow_mut().below(places) * blocks);
        let (result, buffer) = namespaces[client % count].read(lba, buffers[client].take()).await;
        buffers[client].replace(buffer);
        anyhow::Ok(result?)
    };
    if paced {
        paced_loops(CLIENTS, PACE, time, read).await
    } else {
        closed_loops(CLIENTS, 1, time, async move |client| read(client).await.map(|()| 0)).await
    }
}
