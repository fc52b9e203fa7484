//! `yagura bench device`: a file namespace beside fio on the same file (io_uring, O_DIRECT), 4 KiB random reads and writes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use device::{Durability, FileNamespace, FileOptions, Lba, Namespace};
use engine::rng::SplitMix;
use engine::{Buf, Reactor, ReactorConfig};

use crate::access::{Access, random_access};
use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::fio;
use crate::machine;
use crate::progress::Progress;

/// Bytes of every access.
pub(crate) const ACCESS_BYTES: usize = 4096;
/// Bytes of one write while the file is filled.
const FILL_BYTES: usize = 1 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file; created with `size` bytes if it is not there.
    pub file: PathBuf,
    /// Its size in bytes, a multiple of 1 MiB.
    pub size: u64,
    /// Commands under way at the same time.
    pub depths: Vec<usize>,
    /// Rounds, each of which runs both sides.
    pub rounds: usize,
    /// Length of one side of a round.
    pub time: Duration,
}

/// Runs the row; the file is filled first, so that no access meets a hole.
pub fn run(options: &Options, progress: &Progress) -> anyhow::Result<Row> {
    anyhow::ensure!(options.size > 0 && options.size.is_multiple_of(FILL_BYTES as u64), "the size must be whole MiB");
    let core = *machine::cores()?.first().context("no core to run on")?;
    progress.begin("filling the file", 1);
    fill(options)?;
    progress.step()?;
    let (mut sides, mut ratios) = (Vec::new(), Vec::new());
    progress.begin("measuring", options.depths.len() * 2 * options.rounds);
    for &depth in &options.depths {
        for write in [false, true] {
            let verb = if write { "write" } else { "read" };
            let mut ours = Side::new(format!("{verb}, depth {depth}: namespace"));
            let mut theirs = Side::new(format!("{verb}, depth {depth}: fio"));
            for _ in 0..options.rounds {
                ours.rounds.push(round(options, core, depth, write)?);
                theirs.rounds.push(beside(options, core, depth, write)?);
                progress.step()?;
            }
            let ratio = if depth == 1 {
                Ratio::new(format!("{verb}, depth 1: p50, ours / fio"), &ours, &theirs, |s| s.p50_us)
            } else {
                let name = format!("{verb}, depth {depth}: rate, ours / fio");
                Ratio::new(name, &ours, &theirs, |s| s.rate).aim(Aim::AtLeast, 0.95)
            };
            ratios.push(ratio);
            sides.extend([ours, theirs]);
        }
    }
    progress.end();
    Ok(Row {
        row: "device".to_owned(),
        title: "4 KiB random access to a file namespace, beside fio on the same file".to_owned(),
        conditions: vec![
            machine::describe(),
            format!(
                "{}, {} MiB, O_DIRECT, io_uring, one thread on core {core}",
                options.file.display(),
                options.size >> 20
            ),
            format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
        ],
        sides,
        ratios,
        curves: Vec::new(),
    })
}

async fn open(options: &Options) -> anyhow::Result<FileNamespace> {
    let exists = options.file.exists();
    let create = (!exists).then_some(options.size);
    let namespace = FileNamespace::open(&options.file, &FileOptions { create, ..FileOptions::default() }).await?;
    anyhow::ensure!(
        namespace.info().bytes() == options.size,
        "{} exists with {} bytes, not {}; name another file or give its size",
        options.file.display(),
        namespace.info().bytes(),
        options.size
    );
    Ok(namespace)
}

pub(crate) fn fill(options: &Options) -> anyhow::Result<()> {
    let options = options.clone();
    Reactor::run(ReactorConfig::default(), async move {
        let namespace = open(&options).await?;
        let block = u64::from(namespace.info().block_size);
        let mut random = SplitMix(1);
        let mut bytes = Buf::with_len(FILL_BYTES);
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&random.draw().to_le_bytes());
        }
        let data = bytes.freeze();
        for offset in (0..options.size).step_by(FILL_BYTES) {
            namespace.write(Lba(offset / block), data.clone(), Durability::Cached).await?;
        }
        Ok(namespace.flush().await?)
    })?
}

/// A round of fio on the same file.
pub(crate) fn beside(options: &Options, core: usize, depth: usize, write: bool) -> anyhow::Result<Sample> {
    let job = fio::Job { file: &options.file, size: options.size, depth, write, stable: false, time: options.time };
    machine::pinned(core, || fio::run(job))?
}

fn round(options: &Options, core: usize, depth: usize, write: bool) -> anyhow::Result<Sample> {
    let options = options.clone();
    let config = ReactorConfig { core: Some(core), ..ReactorConfig::default() };
    let cpu = machine::own_cpu_time();
    let outcome = machine::pinned(core, || {
        Reactor::run(config, async move {
            let access = Access::read_or_write(write);
            random_access(open(&options).await?, access, ACCESS_BYTES, depth, options.time).await
        })
    })???;
    let used = machine::own_cpu_time().saturating_sub(cpu);
    Ok(Sample::new(&outcome.all(), outcome.wall, used, None))
}
