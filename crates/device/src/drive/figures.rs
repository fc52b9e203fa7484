//! What drives tell of themselves, for Prometheus.

use std::fmt;

use engine::figures::{by_labels, gauges};
use prometheus_client::encoding::DescriptorEncoder;

use super::Usage;

/// Tells of drives, each by its name.
pub fn tell(encoder: &mut DescriptorEncoder<'_>, drives: &[(String, Usage)]) -> fmt::Result {
    if drives.is_empty() {
        return Ok(());
    }
    type Value = fn(&Usage) -> u64;
    let all: [(&str, &str, Value); 4] = [
        ("yagura_drive_bytes", "Bytes of a drive for data.", |usage| usage.bytes),
        ("yagura_drive_used_bytes", "Those of them that are in use.", |usage| usage.used_bytes),
        ("yagura_drive_promised_bytes", "Bytes that its namespaces would have, were they full.", |usage| {
            usage.promised_bytes
        }),
        ("yagura_drive_failed", "1: it takes no more writes.", |usage| usage.fault.is_some().into()),
    ];
    for (name, help, value) in all {
        gauges(encoder, (name, help), drives.iter().map(|(drive, usage)| ([("drive", &**drive)], value(usage))))?;
    }
    let help =
        "Blocks found damaged since the drive was opened: not matching their checksum, or not readable by a scrub.";
    let mismatches = drives.iter().map(|(drive, usage)| ([("drive", &**drive)], usage.mismatches));
    by_labels(encoder, ("yagura_drive_checksum_failures", help), mismatches)
}
