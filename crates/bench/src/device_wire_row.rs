//! `yagura bench device --rows wire`: a file behind our target, from our host, beside fio on the same file.
//!
//! What the wire may cost: at depth 1 a little more than bare sockets take for the same bytes, at depth 32 and above nothing,
//! since the medium is the limit.

use std::net::SocketAddr;
use std::time::Duration;

use engine::{Reactor, ReactorConfig};
use fabric::host::RemoteNamespace;

use crate::access::{Access, random_access};
use crate::device_row::{ACCESS_BYTES, Options, beside, fill};
use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::floor::{self, Exchange, READ_4K};
use crate::load::Outcome;
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::wire_row::{NQN, host_options, two_cores};

/// What the wire may add at depth 1, in times of the bare sockets' round trip.
const WIRE_F_MAX: f64 = 1.3;
/// NVMe/TCP's 4 KiB write with in-capsule data: a capsule out, a response back.
const WRITE_4K: Exchange = Exchange { request: 72 + ACCESS_BYTES, reply: 24 };

/// The sides of one depth and direction.
struct Case {
    depth: usize,
    write: bool,
    ours: Side,
    theirs: Side,
}

/// Runs the row; the file is filled first, so that no access meets a hole.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Row> {
    let (host_core, target_core) = two_cores()?;
    progress.begin("filling the file", 1);
    fill(options)?;
    let server = process::target(target_core, NQN, &format!("file={}", options.file.display()))?;
    let mut cases: Vec<Case> =
        options.depths.iter().flat_map(|&depth| [false, true].map(|write| case(depth, write))).collect();
    let mut floors = [READ_4K, WRITE_4K].map(|exchange| (exchange, Side::new(floor_name(exchange))));
    progress.begin("measuring", options.rounds * (cases.len() + 1));
    for _ in 0..options.rounds {
        for (exchange, side) in &mut floors {
            side.rounds.push(floor::ping_pong(*exchange, host_core, target_core, options.time)?);
        }
        progress.step()?;
        for case in &mut cases {
            case.ours.rounds.push(round(&server, host_core, case.depth, case.write, options.time)?);
            case.theirs.rounds.push(beside(options, host_core, case.depth, case.write)?);
            progress.step()?;
        }
    }
    progress.end();
    let [(_, read_floor), (_, write_floor)] = floors;
    let ratios = cases.iter().map(|case| ratio(case, if case.write { &write_floor } else { &read_floor })).collect();
    Ok(Row {
        row: "device-wire".to_owned(),
        title: "4 KiB random access to a file behind our target, beside fio on the same file".to_owned(),
        conditions: vec![
            machine::describe(),
            format!(
                "{}, {} MiB, O_DIRECT, io_uring; NVMe/TCP over loopback",
                options.file.display(),
                options.size >> 20
            ),
            format!("host, or fio, (one thread) on core {host_core}; target (one thread) on core {target_core}"),
            format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
        ],
        sides: [read_floor, write_floor]
            .into_iter()
            .chain(cases.into_iter().flat_map(|c| [c.ours, c.theirs]))
            .collect(),
        ratios,
        curves: Vec::new(),
    })
}

fn floor_name(exchange: Exchange) -> String {
    format!("bare sockets, polled: {} B out, {} B back (F)", exchange.request, exchange.reply)
}

fn case(depth: usize, write: bool) -> Case {
    let verb = if write { "write" } else { "read" };
    let side = |who: &str| Side::new(format!("{verb}, depth {depth}: {who}"));
    Case { depth, write, ours: side("over the wire"), theirs: side("fio") }
}

fn ratio(case: &Case, floor: &Side) -> Ratio {
    let verb = if case.write { "write" } else { "read" };
    if case.depth > 1 {
        let name = format!("{verb}, depth {}: rate, over the wire / fio", case.depth);
        return Ratio::new(name, &case.ours, &case.theirs, |s| s.rate).aim(Aim::AtLeast, 0.95);
    }
    let rounds = case.ours.rounds.iter().zip(&case.theirs.rounds).zip(&floor.rounds);
    let shares: Vec<f64> =
        rounds.map(|((ours, theirs), floor)| ours.p50_us / (theirs.p50_us + WIRE_F_MAX * floor.p50_us)).collect();
    Ratio::of(format!("{verb}, depth 1: p50, over the wire / (fio + {WIRE_F_MAX} F)"), &shares).aim(Aim::AtMost, 1.0)
}

fn round(server: &Server, core: usize, depth: usize, write: bool, time: Duration) -> anyhow::Result<Sample> {
    let address = server.address;
    let config = ReactorConfig { core: Some(core), ..ReactorConfig::default() };
    let before = (machine::own_cpu_time(), server.cpu_time()?);
    let outcome = machine::pinned(core, || Reactor::run(config, remote(address, depth, write, time)))???;
    let used = machine::own_cpu_time().saturating_sub(before.0);
    Ok(Sample::new(&outcome.all(), outcome.wall, used, Some(server.cpu_time()?.saturating_sub(before.1))))
}

async fn remote(address: SocketAddr, depth: usize, write: bool, time: Duration) -> anyhow::Result<Outcome> {
    let namespace = RemoteNamespace::connect(host_options(address)?).await?;
    random_access(namespace, Access::read_or_write(write), ACCESS_BYTES, depth, time).await
}
