//! Row B6, all in DRAM: the cache beside memcached, over one harness.
//!
//! The items of a row are stored once on both sides; then look-aside clients ask for them by the ETC model ([`crate::etc`]), one
//! side after the other in every round, first as fast as they can and then at fixed rates.

use std::rc::Rc;
use std::time::Duration;

use engine::{Reactor, ReactorConfig};

use crate::cache_client::{self, Arrivals, Counts, VALUE_BYTES_MAX, Work};
use crate::etc::{Items, Values};
use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::workload::Zipfian;

/// Connections that store the items.
const LOADING: usize = 8;
/// Of the servers' memory limit over the items' own bytes, so that both hold them all: memcached's headers, size classes and table.
const MEMORY_FACTOR: f64 = 1.8;
/// Shares of memcached's rate at which latencies are compared.
const FIXED_SHARES: [f64; 3] = [0.25, 0.5, 0.75];
/// Threads of each server.
const THREADS: usize = 2;
/// Names of the sides.
const NAMES: [&str; 2] = ["Yagura", "memcached"];

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of all keys and values.
    pub bytes: u64,
    /// The items.
    pub values: Vec<ValueSizes>,
    /// Connections.
    pub connections: Vec<u16>,
    /// Rounds.
    pub rounds: usize,
    /// Time of one side of a round.
    pub time: Duration,
}

/// Which values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueSizes {
    /// The ETC model's.
    Etc,
    /// All so many bytes.
    Fixed(u16),
}

impl std::str::FromStr for ValueSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<ValueSizes, String> {
        match text {
            "etc" => Ok(ValueSizes::Etc),
            _ => text
                .parse()
                .map(ValueSizes::Fixed)
                .map_err(|_| format!("`{text}` is neither etc nor bytes up to 65535")),
        }
    }
}

impl std::fmt::Display for ValueSizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ValueSizes::Etc => f.write_str("etc"),
            ValueSizes::Fixed(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// One row for each kind of values and number of connections.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &values in &options.values {
        let contest = Contest::new(options, values, progress)?;
        for &connections in &options.connections {
            rows.push(contest.row(options, usize::from(connections), progress)?);
        }
    }
    Ok(rows)
}

/// Both sides, which hold the same items.
struct Contest {
    values: ValueSizes,
    items: Items,
    bytes: u64,
    servers: [Server; 2],
    popularity: Rc<Zipfian>,
}

impl Contest {
    fn new(options: &Options, values: ValueSizes, progress: &Progress) -> anyhow::Result<Contest> {
        let items = items(values, options.bytes);
        let bytes = items.bytes();
        let mebibytes = ((bytes as f64 * MEMORY_FACTOR) as u64 >> 20).max(64);
        // memcached's table of buckets at its final size: growing it under load is not what is measured.
        let power = items.count.max(1 << 12).ilog2();
        let arguments = ["-t", &THREADS.to_string(), "-c", "4096", "-o", &format!("hashpower={power}")];
        let servers = [process::cache(THREADS, mebibytes)?, process::unpinned_memcached(mebibytes, &arguments)?];
        progress.begin("storing the items on both sides", servers.len());
        for server in &servers {
            store(server, &items)?;
            progress.step();
        }
        let popularity = Rc::new(Zipfian::new(items.count));
        Ok(Contest { values, items, bytes, servers, popularity })
    }

    fn row(&self, options: &Options, connections: usize, progress: &Progress) -> anyhow::Result<Row> {
        let rounds = |server: &Server, arrivals, side: &mut Side, round: usize| {
            let (sample, counts) = self.round(server, connections, arrivals, round + 1, options.time)?;
            side.rounds.push(sample);
            progress.step();
            anyhow::Ok(counts)
        };
        let mut sides = NAMES.map(Side::new);
        let mut misses = [0, 0];
        progress.begin("measuring", sides.len() * options.rounds * (1 + FIXED_SHARES.len()));
        for round in 0..options.rounds {
            for (place, server) in self.servers.iter().enumerate() {
                misses[place] += rounds(server, Arrivals::Closed, &mut sides[place], round)?.misses;
            }
        }
        let full = sides[1].median(|sample| sample.rate);
        let mut fixed = Vec::new();
        for share in FIXED_SHARES {
            let rate = full * share;
            let mut paced = NAMES.map(|name| Side::new(format!("{name}, {rate:.0} a second asked for")));
            for round in 0..options.rounds {
                for (place, server) in self.servers.iter().enumerate() {
                    misses[place] += rounds(server, Arrivals::Open(rate), &mut paced[place], round)?.misses;
                }
            }
            fixed.extend(paced);
        }
        progress.end();
        anyhow::ensure!(misses == [0, 0], "of items that all fit in memory some were missing: {misses:?}");
        Ok(Row {
            row: format!("B6-{}-{connections}", self.values),
            title: format!("cache all in DRAM, {} values, {connections} connections", self.values),
            conditions: self.conditions(options),
            ratios: self.ratios(&sides, &fixed)?,
            sides: sides.into_iter().chain(fixed).collect(),
            curves: Vec::new(),
        })
    }

    fn conditions(&self, options: &Options) -> Vec<String> {
        let sizes = match self.values {
            ValueSizes::Etc => "ETC model (Atikoglu et al. 2012, as in mutilate)".to_owned(),
            ValueSizes::Fixed(bytes) => format!("values of {bytes} bytes, keys of the ETC model"),
        };
        vec![
            machine::describe(),
            format!("{} items, {} MiB of keys and values; {sizes}", self.items.count, self.bytes >> 20),
            "popularity Zipfian, 0.99; one SET to 30 GETs; every value verified".to_owned(),
            format!("servers with {THREADS} threads, clients on one, none pinned; TCP over loopback"),
            format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
        ]
    }

    fn round(
        &self,
        server: &Server,
        connections: usize,
        arrivals: Arrivals,
        round: usize,
        time: Duration,
    ) -> anyhow::Result<(Sample, Counts)> {
        let (items, popularity) = (self.items.clone(), self.popularity.clone());
        let work = Work { items, popularity, seed: round as u64 + 1 };
        let before = (machine::cpu_time(std::process::id())?, server.cpu_time()?);
        let address = server.address;
        let run = Reactor::run(ReactorConfig::default(), async move {
            cache_client::run(address, connections, &work, arrivals, time).await
        })??;
        let used = machine::cpu_time(std::process::id())?.saturating_sub(before.0);
        let answering = server.cpu_time()?.saturating_sub(before.1);
        Ok((Sample::new(&run.outcome.all(), run.outcome.wall, used, Some(answering)), run.counts))
    }

    fn ratios(&self, [ours, theirs]: &[Side; 2], fixed: &[Side]) -> anyhow::Result<Vec<Ratio>> {
        let mut ratios = vec![
            Ratio::new("rate / memcached", ours, theirs, |sample| sample.rate).aim(Aim::AtLeast, 1.1),
            Ratio::new("p99 / memcached", ours, theirs, |sample| sample.p99_us).aim(Aim::AtMost, 1.0),
            Ratio::new("server's CPU an operation / memcached", ours, theirs, |sample| {
                sample.server_cpu_us.unwrap_or_default()
            }),
        ];
        for (share, pair) in FIXED_SHARES.iter().zip(fixed.chunks(2)) {
            let name = format!("p99 / memcached at {share} of its rate");
            ratios.push(Ratio::new(name, &pair[0], &pair[1], |sample| sample.p99_us));
        }
        for (name, server) in NAMES.iter().zip(&self.servers) {
            let resident = server.resident_bytes()? as f64 / self.bytes as f64;
            ratios.push(Ratio::of(format!("resident memory / keys and values: {name}"), &[resident]));
        }
        Ok(ratios)
    }
}

/// So many items that their keys and values are about `bytes`.
fn items(values: ValueSizes, bytes: u64) -> Items {
    const SAMPLE: u64 = 10_000;
    let values = match values {
        ValueSizes::Etc => Values::Etc { bytes_max: VALUE_BYTES_MAX.min((1 << 20) - 512) },
        ValueSizes::Fixed(bytes) => Values::Fixed(usize::from(bytes)),
    };
    let mean = Items::new(SAMPLE, values).bytes() / SAMPLE;
    Items::new((bytes / mean).max(1000), values)
}

fn store(server: &Server, items: &Items) -> anyhow::Result<()> {
    let (address, items) = (server.address, items.clone());
    Reactor::run(ReactorConfig::default(), async move {
        let refused = cache_client::load(address, LOADING, &items).await?;
        anyhow::ensure!(refused == 0, "{refused} of {} items were refused", items.count);
        Ok(())
    })?
}
