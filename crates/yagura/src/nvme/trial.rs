//! `yagura nvme connect-test`: how connecting goes, what the target offers, and whether that is enough for the store.

use std::time::Duration;

use fabric::host::{Trial, obstacles, swap_bytes_max, trial};
use serde::Serialize;

use crate::cli::NvmeIdentifyArgs;
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

/// Bytes of a store's page, where none is asked for.
const PAGE_BYTES: u64 = 4096;

#[derive(Serialize)]
struct Step {
    step: &'static str,
    microseconds: f64,
}

#[derive(Serialize)]
struct Report {
    address: String,
    subsystem: String,
    nsid: u32,
    header_digest: bool,
    data_digest: bool,
    tls: bool,
    steps: Vec<Step>,
    failed_step: Option<&'static str>,
    error: Option<String>,
    queues: u16,
    queue_entries_max: u32,
    in_capsule_bytes: u32,
    fused_compare_and_write_bytes_max: u64,
    volatile_cache: Option<bool>,
    ana: Option<String>,
    round_trip_microseconds_min: Option<f64>,
    round_trip_microseconds_p50: Option<f64>,
    round_trip_microseconds_p99: Option<f64>,
    good_for_the_store: bool,
    reasons: Vec<String>,
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// The value below which `percent` of the ascending `trips` lie.
fn percentile(trips: &[Duration], percent: usize) -> Option<f64> {
    trips.get(trips.len() * percent / 100).or(trips.last()).copied().map(microseconds)
}

/// Runs the verb.
pub async fn run(args: &NvmeIdentifyArgs) -> Result<(), Failure> {
    let options = super::options(&args.namespace).await?;
    let found = trial(&options).await;
    let mut reasons: Vec<String> = found.namespace.iter().flat_map(|info| obstacles(info, PAGE_BYTES)).collect();
    reasons.extend(found.failed.as_ref().map(|(step, error)| format!("{step}: {error}")));
    let controller = found.controller.as_deref();
    let report = Report {
        address: options.address.to_string(),
        subsystem: options.subsystem.to_string(),
        nsid: options.nsid,
        header_digest: options.header_digest,
        data_digest: options.data_digest,
        tls: options.security.tls.is_some(),
        steps: found.steps.iter().map(|step| Step { step: step.name, microseconds: microseconds(step.took) }).collect(),
        failed_step: found.failed.as_ref().map(|(step, _)| *step),
        error: found.failed.as_ref().map(|(_, error)| error.to_string()),
        queues: found.queues,
        queue_entries_max: found.queue_entries_max,
        in_capsule_bytes: controller.map_or(0, |page| page.ioccsz.get().saturating_mul(16).saturating_sub(64)),
        fused_compare_and_write_bytes_max: found.namespace.as_ref().map_or(0, swap_bytes_max),
        volatile_cache: found.namespace.as_ref().map(|info| info.volatile_cache),
        ana: found.ana.map(|state| state.to_string()),
        round_trip_microseconds_min: percentile(&found.trips, 0),
        round_trip_microseconds_p50: percentile(&found.trips, 50),
        round_trip_microseconds_p99: percentile(&found.trips, 99),
        good_for_the_store: reasons.is_empty(),
        reasons,
    };
    output::report(args.common.json, &report, |report| describe(report, &found))?;
    match found.failed {
        Some((step, error)) => Err(Failure::unavailable(format!("{step}: {error}"))),
        None => Ok(()),
    }
}

fn describe(report: &Report, found: &Trial) -> String {
    let switch = |on| if on { "on" } else { "off" };
    let mut text = format!("{} namespace {} at {}\n", report.subsystem, report.nsid, report.address);
    for step in &report.steps {
        text += &format!("{:>12.1} us  {}\n", step.microseconds, step.step);
    }
    if let (Some(step), Some(error)) = (report.failed_step, &report.error) {
        text += &format!("{:>15}  {step}: {error}\n", "FAILED");
    }
    let (header, data) = (switch(report.header_digest), switch(report.data_digest));
    text += &format!("header digest {header}, data digest {data}, TLS {}\n", switch(report.tls));
    if found.controller.is_some() {
        let capsule = Size(report.in_capsule_bytes.into());
        let (queues, entries) = (report.queues, report.queue_entries_max);
        text += &format!("I/O queues: {queues}, up to {entries} entries each; data in a command capsule: {capsule}\n");
    }
    if let Some(info) = &found.namespace {
        let swap = match report.fused_compare_and_write_bytes_max {
            0 => "not offered".to_owned(),
            bytes => format!("atomic up to {}", Size(bytes)),
        };
        let size = Size(info.bytes());
        text += &format!("{size} in blocks of {} bytes; fused compare and write: {swap}\n", info.block_size);
    }
    if let Some(ana) = &report.ana {
        text += &format!("this path is {ana}\n");
    }
    let trips =
        (report.round_trip_microseconds_min, report.round_trip_microseconds_p50, report.round_trip_microseconds_p99);
    if let (Some(min), Some(median), Some(high)) = trips {
        text += &format!("round trip of a one-block read: min {min:.1} us, median {median:.1} us, p99 {high:.1} us\n");
    }
    text += if report.good_for_the_store { "good for the store" } else { "NOT good for the store:" };
    text += "\n";
    report.reasons.iter().for_each(|reason| text += &format!("  {reason}\n"));
    text
}
