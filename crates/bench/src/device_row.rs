//! `yagura bench device`: a file namespace beside fio on the same file (io_uring, O_DIRECT), 4 KiB random reads and writes.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use device::{Durability, FileNamespace, FileOptions, Lba, Namespace as _};
use engine::{Buf, Reactor, ReactorConfig, View};

use crate::figures::{Aim, Ratio, Row, Sample, Side};
use crate::load::closed_loops;
use crate::machine;
use crate::progress::Progress;
use crate::workload::Random;

/// Bytes of every access.
const ACCESS_BYTES: usize = 4096;
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
    progress.step();
    let (mut sides, mut ratios) = (Vec::new(), Vec::new());
    progress.begin("measuring", options.depths.len() * 2 * options.rounds);
    for &depth in &options.depths {
        for write in [false, true] {
            let verb = if write { "write" } else { "read" };
            let mut ours = Side::new(format!("{verb}, depth {depth}: namespace"));
            let mut theirs = Side::new(format!("{verb}, depth {depth}: fio"));
            for _ in 0..options.rounds {
                ours.rounds.push(round(options, core, depth, write)?);
                theirs.rounds.push(fio(options, core, depth, write)?);
                progress.step();
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
    })
}

async fn open(options: &Options) -> anyhow::Result<Rc<FileNamespace>> {
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
    Ok(Rc::new(namespace))
}

fn fill(options: &Options) -> anyhow::Result<()> {
    let options = options.clone();
    Reactor::run(ReactorConfig::default(), async move {
        let namespace = open(&options).await?;
        let block = u64::from(namespace.info().block_size);
        let mut random = Random::new(1);
        let mut bytes = Buf::with_len(FILL_BYTES);
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        let data = bytes.freeze();
        for offset in (0..options.size).step_by(FILL_BYTES) {
            namespace.write(Lba(offset / block), data.clone(), Durability::Cached).await?;
        }
        Ok(namespace.flush().await?)
    })?
}

fn round(options: &Options, core: usize, depth: usize, write: bool) -> anyhow::Result<Sample> {
    let options = options.clone();
    let config = ReactorConfig { core: Some(core), ..ReactorConfig::default() };
    let cpu = machine::cpu_time(std::process::id())?;
    let outcome = machine::pinned(core, || {
        Reactor::run(config, async move {
            let namespace = open(&options).await?;
            let block = u64::from(namespace.info().block_size);
            let places = options.size / ACCESS_BYTES as u64;
            let random = RefCell::new(Random::new(depth as u64));
            let buffers: Vec<RefCell<Buf>> = (0..depth).map(|_| RefCell::new(Buf::zeroed(ACCESS_BYTES))).collect();
            let data: View = Buf::zeroed(ACCESS_BYTES).freeze();
            closed_loops(depth, 1, options.time, async move |client| {
                let place = random.borrow_mut().below(places);
                let lba = Lba(place * ACCESS_BYTES as u64 / block);
                if write {
                    namespace.write(lba, data.clone(), Durability::Cached).await?;
                } else {
                    let (result, buffer) = namespace.read(lba, buffers[client].take()).await;
                    buffers[client].replace(buffer);
                    result?;
                }
                Ok(0)
            })
            .await
        })
    })???;
    let used = machine::cpu_time(std::process::id())?.saturating_sub(cpu);
    Ok(Sample::new(&outcome.all(), outcome.wall, used, None))
}

fn fio(options: &Options, core: usize, depth: usize, write: bool) -> anyhow::Result<Sample> {
    let output = machine::pinned(core, || {
        Command::new("fio")
            .args(["--name=peer", "--ioengine=io_uring", "--direct=1", "--bs=4k", "--time_based", "--thread"])
            .arg("--output-format=json")
            .arg(format!("--filename={}", options.file.display()))
            .arg(format!("--size={}", options.size))
            .arg(format!("--rw={}", if write { "randwrite" } else { "randread" }))
            .arg(format!("--iodepth={depth}"))
            .arg(format!("--runtime={}ms", options.time.as_millis()))
            .stdin(Stdio::null())
            .output()
    })?
    .context("cannot start fio; install it with: apt-get install fio")?;
    anyhow::ensure!(output.status.success(), "fio failed: {}", String::from_utf8_lossy(&output.stderr));
    parse_fio(&output.stdout, write).with_context(|| format!("fio on {}", display(&options.file)))
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

fn parse_fio(json: &[u8], write: bool) -> anyhow::Result<Sample> {
    // fio may print notes before the JSON.
    let begin = json.iter().position(|&b| b == b'{').context("fio printed no JSON")?;
    let report: serde_json::Value = serde_json::from_slice(&json[begin..])?;
    let job = &report["jobs"][0];
    let side = &job[if write { "write" } else { "read" }];
    let figure = |value: &serde_json::Value, what: &str| value.as_f64().with_context(|| format!("fio gave no {what}"));
    let us = |name: &str| anyhow::Ok(figure(&side["clat_ns"]["percentile"][name], name)? / 1e3);
    let operations = figure(&side["total_ios"], "total_ios")?;
    let seconds = figure(&side["runtime"], "runtime")? / 1e3;
    let cpu_share = (figure(&job["usr_cpu"], "usr_cpu")? + figure(&job["sys_cpu"], "sys_cpu")?) / 100.0;
    Ok(Sample {
        operations: operations as u64,
        seconds,
        rate: operations / seconds,
        p50_us: us("50.000000")?,
        p99_us: us("99.000000")?,
        p999_us: us("99.900000")?,
        max_us: figure(&side["clat_ns"]["max"], "max")? / 1e3,
        client_cpu_us: cpu_share * seconds * 1e6 / operations.max(1.0),
        server_cpu_us: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_reports_are_read_and_broken_ones_named() {
        let json =
            br#"note: both iodepth >= 1 {"jobs":[{"usr_cpu":10.0,"sys_cpu":40.0,"read":{"total_ios":1000,"runtime":100,
            "clat_ns":{"max":90000,"percentile":{"50.000000":20000,"99.000000":40000,"99.900000":50000}}}}]}"#;
        let sample = parse_fio(json, false).unwrap();
        assert_eq!((sample.operations, sample.rate, sample.p50_us, sample.client_cpu_us), (1000, 10_000.0, 20.0, 50.0));
        let error = parse_fio(br#"{"jobs":[{}]}"#, true).unwrap_err();
        assert!(error.to_string().contains("total_ios"), "{error}");
        assert!(parse_fio(b"fio: failed", true).is_err());
    }
}
