//! fio (Debian's package) on a file: io_uring, O_DIRECT, 4 KiB at random places.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use crate::figures::Sample;

/// What fio does. A process inherits the core to which the calling thread is pinned.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The file.
    pub file: &'a Path,
    /// Bytes of it, from its beginning.
    pub size: u64,
    /// Accesses under way at the same time.
    pub depth: usize,
    /// Writes, not reads.
    pub write: bool,
    /// A write ends when it would survive the loss of power.
    pub stable: bool,
    /// How long.
    pub time: Duration,
}

/// One round.
pub fn run(job: Job<'_>) -> anyhow::Result<Sample> {
    let mut fio = Command::new("fio");
    fio.args(["--ioengine=io_uring", "--direct=1", "--thread"])
        .arg(format!("--filename={}", job.file.display()))
        .arg(format!("--size={}", job.size));
    if job.stable {
        fio.arg("--sync=dsync");
    }
    random(&mut fio, job.write, job.depth, job.time);
    let output = fio.output().context("cannot start fio; install it with: apt-get install fio")?;
    anyhow::ensure!(output.status.success(), "fio failed: {}", String::from_utf8_lossy(&output.stderr));
    parse(&output.stdout, job.write).with_context(|| format!("fio on {}", job.file.display()))
}

/// Has fio access 4 KiB at random places, and report that.
pub fn random(fio: &mut Command, write: bool, depth: usize, time: Duration) {
    fio.args(["--name=peer", "--bs=4k", "--time_based"])
        // From the submission on, as ours: what fio calls clat begins after it.
        .args(["--clat_percentiles=0", "--lat_percentiles=1", "--output-format=json"])
        .arg(format!("--rw={}", if write { "randwrite" } else { "randread" }))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--runtime={}ms", time.as_millis()))
        .stdin(Stdio::null());
}

/// What fio has reported.
pub fn parse(json: &[u8], write: bool) -> anyhow::Result<Sample> {
    // fio may print notes before the JSON.
    let begin = json.iter().position(|&b| b == b'{').context("fio printed no JSON")?;
    let report: serde_json::Value = serde_json::from_slice(&json[begin..])?;
    let job = &report["jobs"][0];
    let side = &job[if write { "write" } else { "read" }];
    let figure = |value: &serde_json::Value, what: &str| value.as_f64().with_context(|| format!("fio gave no {what}"));
    let us = |name: &str| anyhow::Ok(figure(&side["lat_ns"]["percentile"][name], name)? / 1e3);
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
        max_us: figure(&side["lat_ns"]["max"], "max")? / 1e3,
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
            "lat_ns":{"max":90000,"percentile":{"50.000000":20000,"99.000000":40000,"99.900000":50000}}}}]}"#;
        let sample = parse(json, false).unwrap();
        assert_eq!((sample.operations, sample.rate, sample.p50_us, sample.client_cpu_us), (1000, 10_000.0, 20.0, 50.0));
        let error = parse(br#"{"jobs":[{}]}"#, true).unwrap_err();
        assert!(error.to_string().contains("total_ios"), "{error}");
        assert!(parse(b"fio: failed", true).is_err());
    }
}
