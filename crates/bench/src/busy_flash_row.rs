//! What flash that has all it can do costs those who are served from memory.
//!
//! A few items that memory holds are asked for at a pace, alone and while others get and set long items that lie on flash as
//! fast as they can; then while others get and set as many that are as long, all in memory. The server has a core of its own, and
//! of those who ask, on another, the others are a thread of the lowest priority: what is measured is the server's trouble.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use engine::{Reactor, ReactorConfig};

use crate::cache_client::{self, Arrivals, Counts, Popularity, Work};
use crate::etc::{Items, Values};
use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::machine;
use crate::process::{self, Server};
use crate::progress::Progress;
use crate::wire_row::two_cores;
use crate::workload::Zipfian;

/// Threads of the server, which has one core.
const THREADS: usize = 1;
/// Its memory.
const MEMORY_MIB: u64 = 128;
/// Items in memory, and the bytes of their values.
const HOT: (u64, usize) = (1000, 100);
/// Their connections, and requests a second over all of them.
const HOT_CONNECTIONS: usize = 4;
const HOT_RATE: f64 = 2000.0;
/// Bytes of the values on flash: a device's throughput is used up by a few thousand a second.
const COLD_BYTES: usize = 60_000;
/// So many of the same length that memory holds.
const WARM: u64 = 500;
/// The connections of either.
const COLD_CONNECTIONS: usize = 16;
/// Of the file over the items on flash.
const FILE_FACTOR: f64 = 1.5;
/// How long the others have before it is measured.
const AHEAD: Duration = Duration::from_millis(200);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the items on flash.
    pub bytes: u64,
    /// Folder of the file.
    pub folder: PathBuf,
    /// Rounds.
    pub rounds: usize,
    /// Time of one side of a round.
    pub time: Duration,
}

/// Runs the row.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Row> {
    let folder = tempfile::tempdir_in(&options.folder).context("cannot make a folder for flash")?;
    let mebibytes = (options.bytes as f64 * FILE_FACTOR) as u64 >> 20;
    let file = folder.path().join("flash");
    let (clients, core) = two_cores()?;
    let start = || process::cache(THREADS, MEMORY_MIB, Some((&file, mebibytes.max(64))));
    let server = machine::pinned(core, start)??;
    machine::pinned(clients, || measure(options, &server, progress))?
}

fn measure(options: &Options, server: &Server, progress: &Progress) -> anyhow::Result<Row> {
    let hot = Items::new(HOT.0, Values::Fixed(HOT.1));
    let cold = Items::new((options.bytes / COLD_BYTES as u64).max(1000), Values::Fixed(COLD_BYTES)).after(HOT.0);
    progress.begin("storing the items", 1);
    let address = server.address;
    let warm = Items::new(WARM, Values::Fixed(COLD_BYTES)).after(HOT.0 + cold.count);
    let (all, stop) = ([hot.clone(), cold.clone(), warm.clone()], progress.stop.clone());
    Reactor::run(ReactorConfig::default(), async move {
        for items in &all {
            cache_client::load_all(address, COLD_CONNECTIONS, items, &stop).await?;
        }
        anyhow::Ok(())
    })??;
    progress.step()?;
    let hot = Work { popularity: Rc::new(Popularity::Zipfian(Rc::new(Zipfian::new(hot.count)))), items: hot, seed: 1 };
    let [mut alone, mut beside_flash, mut beside_memory] = ["alone", "beside flash", "beside memory"].map(Side::new);
    let mut others = Vec::new();
    progress.begin("measuring", 3 * options.rounds + 1);
    // Once unmeasured: what is asked for comes to memory.
    with_others(server, &hot, &warm, Arrivals::Closed, options.time)?;
    progress.step()?;
    for _ in 0..options.rounds {
        alone.rounds.push(paced(server, &hot, options.time)?);
        progress.step()?;
        let (sample, rate) = with_others(server, &hot, &cold, Arrivals::Closed, options.time)?;
        beside_flash.rounds.push(sample);
        others.push(rate * COLD_BYTES as f64 / 1e6);
        progress.step()?;
        let (sample, _) = with_others(server, &hot, &warm, Arrivals::Open(rate), options.time)?;
        beside_memory.rounds.push(sample);
        progress.step()?;
    }
    progress.end();
    let p99 = |name: &str, other| Ratio::new(name, &beside_flash, other, |sample: &Sample| sample.p99_us);
    let ratios = vec![
        p99("p99 beside flash / beside as much from memory", &beside_memory).aim(Aim::AtMost, 1.5),
        p99("p99 beside flash / alone", &alone),
        Ratio::of("values got from flash beside, MB/s", &others),
        Ratio::of("gets answered from flash, of all", &[server.figure("get_extstore")? / server.figure("cmd_get")?]),
    ];
    Ok(Row {
        row: "B6-busy".into(),
        title: "hits in memory beside flash that has all it can do".into(),
        conditions: vec![
            machine::describe(),
            format!(
                "{} items of {} bytes, {HOT_RATE}/s over {HOT_CONNECTIONS} connections, from the set time",
                HOT.0, HOT.1
            ),
            format!(
                "beside: {COLD_CONNECTIONS} connections, values of {COLD_BYTES} bytes of {} MiB on flash, one SET to 30 GETs, \
                 at the lowest priority",
                options.bytes >> 20
            ),
            format!(
                "server with {THREADS} thread and {MEMORY_MIB} MiB on one core, clients on another; {} rounds of {:?} a side",
                options.rounds, options.time
            ),
        ],
        sides: vec![alone, beside_flash, beside_memory],
        ratios,
        curves: Vec::new(),
    })
}

/// Gets and sets of the items in memory, at their pace.
fn paced(server: &Server, hot: &Work, time: Duration) -> anyhow::Result<Sample> {
    let before = (machine::own_cpu_time(), server.cpu_time()?);
    let (address, hot) = (server.address, hot.clone());
    let run = Reactor::run(ReactorConfig::default(), async move {
        cache_client::run(address, HOT_CONNECTIONS, &hot, Arrivals::Open(HOT_RATE), time).await
    })??;
    let Counts { misses, refused, .. } = run.counts;
    anyhow::ensure!(refused == 0, "{refused} were refused");
    tracing::debug!(misses, "of the items in memory");
    let used = machine::own_cpu_time().saturating_sub(before.0);
    Ok(Sample::new(&run.outcome.all(), run.outcome.wall, used, Some(server.cpu_time()?.saturating_sub(before.1))))
}

/// The same beside others, and how many of their gets were answered a second.
fn with_others(
    server: &Server,
    hot: &Work,
    items: &Items,
    arrivals: Arrivals,
    time: Duration,
) -> anyhow::Result<(Sample, f64)> {
    let (stop, address) = (AtomicBool::new(false), server.address);
    std::thread::scope(|scope| {
        let others = std::thread::Builder::new().name("others".into()).spawn_scoped(scope, || {
            machine::lowest_priority()?;
            let (began, mut hits, mut seed) = (Instant::now(), 0, 2);
            while !stop.load(Ordering::Relaxed) {
                hits += burst(address, items.clone(), arrivals, seed)?;
                seed += 1;
            }
            anyhow::Ok(hits as f64 / began.elapsed().as_secs_f64())
        })?;
        std::thread::sleep(AHEAD);
        let sample = paced(server, hot, time);
        stop.store(true, Ordering::Relaxed);
        let rate = others.join().map_err(|_| anyhow!("the others panicked"))??;
        Ok((sample?, rate))
    })
}

/// The others' gets in a moment.
fn burst(address: SocketAddr, items: Items, arrivals: Arrivals, seed: u64) -> anyhow::Result<u64> {
    let work = Work { popularity: Rc::new(Popularity::Uniform(items.count)), items, seed };
    let run = Reactor::run(ReactorConfig::default(), async move {
        cache_client::run(address, COLD_CONNECTIONS, &work, arrivals, AHEAD).await
    })??;
    Ok(run.counts.hits)
}
