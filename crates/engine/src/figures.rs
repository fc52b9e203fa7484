//! Figures in Prometheus's form, read from atomics when they are asked for: the data path only ever adds to them.
//!
//! Each crate tells its own; here is what all of them write alike.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::histogram::Histogram;

/// Of the connections that a server of clients has refused.
pub const UNAUTHENTICATED: &str = "Those of them whose address had its share of unauthenticated connections.";

/// A counter read when it is asked for.
pub fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

/// A gauge read when it is asked for.
pub fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// A histogram of seconds. `buckets`: upper bound and count of each, not cumulative; the last bound is infinite.
pub fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    buckets: &[(f64, u64)],
    sum: f64,
) -> fmt::Result {
    let count = buckets.iter().map(|(_, count)| count).sum();
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    metric.encode_histogram::<NoLabelSet>(sum, count, buckets, None)
}

/// A gauge for each set of labels.
pub fn gauges<S: EncodeLabelSet, N: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    all: impl Iterator<Item = (S, N)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, gauge) in all {
        ConstGauge::new(gauge).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Counters that are named alike.
pub fn counters(encoder: &mut DescriptorEncoder<'_>, prefix: &str, all: &[(&str, &str, u64)]) -> fmt::Result {
    all.iter().try_for_each(|(name, help, value)| counter(encoder, &format!("{prefix}{name}"), help, *value))
}

/// A counter for each reason.
pub fn by_reason(e: &mut DescriptorEncoder<'_>, name: &str, help: &str, all: &[(&str, u64)]) -> fmt::Result {
    by_labels(e, (name, help), all.iter().map(|&(reason, count)| ([("reason", reason)], count)))
}

/// A counter for each set of labels.
pub fn by_labels<S: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    all: impl Iterator<Item = (S, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, count) in all {
        ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// A histogram of nanoseconds, told in seconds, for each value of a label.
pub fn histograms<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    label: &str,
    all: impl Iterator<Item = (&'a str, &'a Histogram)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (value, times) in all {
        let buckets = in_seconds(times.buckets());
        let count = buckets.iter().map(|(_, count)| count).sum();
        let labels = [(label, value)];
        let mut one = family.encode_family(&labels)?;
        one.encode_histogram::<NoLabelSet>(seconds(times.sum()), count, &buckets, None)?;
    }
    Ok(())
}

/// One histogram of several.
pub fn merged<'a>(
    e: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    all: impl Iterator<Item = &'a Histogram> + Clone,
) -> fmt::Result {
    let mut counts = BTreeMap::<u64, u64>::new();
    for (bound, count) in all.clone().flat_map(|one| one.buckets().collect::<Vec<_>>()) {
        *counts.entry(bound).or_default() += count;
    }
    histogram(e, name, help, &in_seconds(counts), seconds(all.map(Histogram::sum).sum()))
}

/// The buckets of a histogram of nanoseconds. Empty ones say nothing: they would be hundreds of lines a scrape.
pub fn in_seconds(buckets: impl IntoIterator<Item = (u64, u64)>) -> Vec<(f64, u64)> {
    buckets.into_iter().map(|(bound, count)| (seconds(bound), count)).chain([(f64::INFINITY, 0)]).collect()
}

/// Nanoseconds in seconds.
pub fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

/// Of microseconds, by powers of two from 16 us to 8.4 s: the same bounds at every scrape.
pub fn latency(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, latency: &Histogram) -> fmt::Result {
    let bounds = (4..24).map(|power| (1u64 << power) as f64 / 1e6).chain([f64::INFINITY]);
    let mut buckets: Vec<(f64, u64)> = bounds.map(|bound| (bound, 0)).collect();
    for (bound, count) in latency.buckets() {
        buckets[bound.next_power_of_two().ilog2().clamp(4, 24) as usize - 4].1 += count;
    }
    histogram(encoder, name, help, &buckets, latency.sum() as f64 / 1e6)
}
