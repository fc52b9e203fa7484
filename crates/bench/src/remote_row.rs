//! `yagura bench remote`: our host on a target that is there already, ours or not.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::anyhow;
use engine::{Reactor, ReactorConfig};
use fabric::host::{Options as HostOptions, RemoteNamespace};
use nvme::Nqn;

use crate::access::{Access, random_access};
use crate::device_row::ACCESS_BYTES;
use crate::figures::{Row, Sample, Side};
use crate::machine;
use crate::progress::Progress;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The target.
    pub address: SocketAddr,
    /// Its subsystem.
    pub nqn: String,
    /// Its namespace, which is overwritten by writes.
    pub nsid: u32,
    /// Commands under way at the same time.
    pub depths: Vec<u16>,
    /// Writes instead of reads.
    pub write: bool,
    /// Rounds, each of which runs every depth.
    pub rounds: usize,
    /// Length of one side of a round.
    pub time: Duration,
}

/// Runs the row: one side a depth, nothing to compare with.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Row> {
    let verb = if options.write { "write" } else { "read" };
    let mut sides: Vec<Side> =
        options.depths.iter().map(|depth| Side::new(format!("{verb}, depth {depth}: our host"))).collect();
    progress.begin("measuring", options.rounds * sides.len());
    for _ in 0..options.rounds {
        for (&depth, side) in options.depths.iter().zip(&mut sides) {
            side.rounds.push(round(options, depth)?);
            progress.step()?;
        }
    }
    progress.end();
    Ok(Row {
        row: "remote".to_owned(),
        title: format!("{ACCESS_BYTES} byte random accesses of our host to {} at {}", options.nqn, options.address),
        conditions: vec![
            machine::describe(),
            "NVMe/TCP, one host thread, one I/O queue, no digests".to_owned(),
            format!("{} rounds of {:?} a side", options.rounds, options.time),
        ],
        sides,
        ratios: Vec::new(),
        curves: Vec::new(),
    })
}

fn round(options: &Options, depth: u16) -> anyhow::Result<Sample> {
    let nqn: Nqn = options.nqn.parse().map_err(|error| anyhow!("{}: {error}", options.nqn))?;
    let host = HostOptions { depth, ..HostOptions::new(options.address, nqn, options.nsid) };
    let before = machine::own_cpu_time();
    let outcome = Reactor::run(ReactorConfig::default(), async {
        let namespace = RemoteNamespace::connect(host).await?;
        let access = Access::read_or_write(options.write);
        random_access(namespace, access, ACCESS_BYTES, usize::from(depth), options.time).await
    })??;
    let used = machine::own_cpu_time().saturating_sub(before);
    Ok(Sample::new(&outcome.all(), outcome.wall, used, None))
}
