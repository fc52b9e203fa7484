//! Row B15: how long the cache takes to start, with nothing on flash and with much, after a good end and after a kill.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use engine::{Reactor, ReactorConfig};

use crate::cache_client;
use crate::cache_row::{self, ValueSizes};
use crate::etc::Items;
use crate::figures::{Aim, Ratio, Row};
use crate::machine;
use crate::process::{self, Server};
use crate::progress::{Progress, Stop};

/// Connections that store the items.
const LOADING: usize = 8;
/// Threads of the server.
const THREADS: usize = 2;
/// Of memory over what is on flash: what the entries of ETC's items take, and half as much more, for an index may have three
/// quarters.
const MEMORY_SHARE: f64 = 0.065;
/// Memory beside, in mebibytes: what the process takes.
const MEMORY_MIB_BESIDE: u64 = 96;
/// Of the file's size over what is stored.
const FILE_FACTOR: f64 = 1.2;
/// What the aim is for.
const AIM_BYTES: f64 = 10.0 * (1_u64 << 30) as f64;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of all keys and values.
    pub bytes: u64,
    /// The items, a row each.
    pub values: Vec<ValueSizes>,
    /// Folder of the file.
    pub folder: PathBuf,
    /// Rounds: ends of either kind.
    pub rounds: usize,
}

/// Stores items and starts the server again and again.
pub fn run(options: &Options, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    for &values in &options.values {
        rows.push(row(options, values, progress)?);
    }
    Ok(())
}

fn row(options: &Options, values: ValueSizes, progress: &Progress) -> anyhow::Result<Row> {
    let folder = tempfile::tempdir_in(&options.folder).context("cannot make a folder for flash")?;
    let file = folder.path().join("flash");
    let mebibytes = |factor: f64| (options.bytes as f64 * factor) as u64 >> 20;
    let start = |file: &Path| {
        let begin = Instant::now();
        let memory = mebibytes(MEMORY_SHARE) + MEMORY_MIB_BESIDE;
        let server = process::cache(THREADS, memory, Some((file, mebibytes(FILE_FACTOR).max(64))))?;
        // The first answer, not only a socket.
        let items = server.figure("curr_items")?;
        anyhow::Ok((server, begin.elapsed().as_secs_f64(), items))
    };
    progress.begin("storing items", 1);
    let (server, ..) = start(&file)?;
    store(&server, cache_row::items(values, options.bytes), &progress.stop)?;
    progress.step()?;
    let stored = server.figure("curr_items")?;
    let began = Instant::now();
    server.end()?;
    let ending = began.elapsed().as_secs_f64();
    let on_flash = std::fs::metadata(&file)?.len().min(options.bytes) as f64;
    let (mut nothing, mut after_end, mut after_kill, mut found) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    progress.begin("starting again", 3 * options.rounds);
    for round in 0..options.rounds {
        let empty = folder.path().join(format!("nothing-{round}"));
        let (server, cold, _) = start(&empty)?;
        nothing.push(cold);
        server.end()?;
        std::fs::remove_file(&empty)?;
        progress.step()?;
        let (server, seconds, items) = start(&file)?;
        after_end.push(seconds - cold);
        found.push(items / stored);
        drop(server); // a kill
        progress.step()?;
        let (server, seconds, items) = start(&file)?;
        after_kill.push(seconds - cold);
        found.push(items / stored);
        server.end()?;
        progress.step()?;
    }
    progress.end();
    let per_aim = |seconds: &[f64]| seconds.iter().map(|seconds| seconds * AIM_BYTES / on_flash).collect::<Vec<_>>();
    Ok(Row {
        row: format!("B15-{values}"),
        title: format!("start of the cache over flash, until the first answer, {values} values"),
        conditions: vec![
            machine::describe(),
            format!("{stored:.0} items, {} MiB of keys and values; values: {}", options.bytes >> 20, values),
            "seconds from the process's beginning; over what a start with nothing takes, where so named".into(),
        ],
        sides: Vec::new(),
        ratios: vec![
            Ratio::of("start with nothing on flash, seconds", &nothing),
            Ratio::of("good end with memory written to flash, seconds", &[ending]),
            Ratio::of("more after a good end, seconds per 10 GiB", &per_aim(&after_end)).aim(Aim::AtMost, 1.0),
            Ratio::of("more after a kill, seconds per 10 GiB", &per_aim(&after_kill)).aim(Aim::AtMost, 1.0),
            Ratio::of("items found of those that were there", &found),
        ],
        curves: Vec::new(),
    })
}

fn store(server: &Server, items: Items, stop: &Stop) -> anyhow::Result<()> {
    let (address, stop) = (server.address, stop.clone());
    let load = async move { cache_client::load_all(address, LOADING, &items, &stop).await };
    Reactor::run(ReactorConfig::default(), load)?
}
