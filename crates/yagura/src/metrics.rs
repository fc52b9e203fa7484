//! `--metrics`: Prometheus counters and latency histograms.
//!
//! Figures are read from atomics when they are asked for; the data path only ever adds to them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cache::server::{Figures, FlashFigures, Holdings, Times, Totals, cpu_seconds};
use engine::histogram::Histogram;
use fabric::target::{CommandKind, Stats};
use kv::resp::stats::{GatewayStats, Shared};
use kv::store::StoreStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

mod http;
mod pool;

pub use http::{CONNECTIONS_MAX, Ready, always, serve};
pub use pool::PoolMetrics;

/// Of the connections that a server of clients has refused.
const UNAUTHENTICATED: &str = "Those of them whose address had its share of unauthenticated connections.";

/// A counter read when it is asked for.
pub fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

/// A gauge read when it is asked for.
pub fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
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

/// The figures of a gateway.
#[derive(Debug)]
pub struct GatewayMetrics(pub Arc<Shared>);

impl Collector for GatewayMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = &self.0.stats;
        let load = GatewayStats::load;
        let e = &mut encoder;
        counter(e, "yagura_gateway_connections_accepted", "Connections accepted.", load(&stats.connections_total))?;
        gauge(e, "yagura_gateway_connections", "Connections open.", load(&stats.connections))?;
        counter(
            e,
            "yagura_gateway_connections_refused",
            "Connections over a limit.",
            load(&stats.connections_refused),
        )?;
        let refused = load(&stats.refused_unauthenticated);
        counter(e, "yagura_gateway_connections_refused_unauthenticated", UNAUTHENTICATED, refused)?;
        counter(e, "yagura_gateway_commands", "Commands answered.", load(&stats.commands))?;
        counter(e, "yagura_gateway_errors", "Commands answered by an error.", load(&stats.errors))?;
        counter(e, "yagura_gateway_protocol_errors", "Connections ended by bad input.", load(&stats.protocol_errors))?;
        counter(e, "yagura_gateway_hits", "Reads that found their key.", load(&stats.hits))?;
        counter(e, "yagura_gateway_misses", "Reads that found nothing.", load(&stats.misses))?;
        counter(e, "yagura_gateway_received_bytes", "Bytes received.", load(&stats.bytes_received))?;
        counter(e, "yagura_gateway_sent_bytes", "Bytes sent.", load(&stats.bytes_sent))?;
        latency(e, "yagura_gateway_read_seconds", "Time of commands that read.", &stats.read_latency)?;
        latency(e, "yagura_gateway_write_seconds", "Time of commands that write.", &stats.write_latency)
    }
}

/// The figures of a cache server.
pub struct CacheMetrics<S> {
    /// What its threads count.
    pub shared: Arc<cache::server::Shared>,
    /// Its items.
    pub store: Arc<S>,
}

impl<S> fmt::Debug for CacheMetrics<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheMetrics")
    }
}

impl<S: Holdings + Send + Sync + 'static> Collector for CacheMetrics<S> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (totals, figures) = (self.shared.totals(), self.store.figures());
        let e = &mut encoder;
        cache_process(e, &self.shared, &figures)?;
        cache_connections(e, &self.shared, &totals)?;
        cache_commands(e, &totals)?;
        cache_items(e, &figures)?;
        let times = self.shared.times();
        for (name, help, of) in [
            (
                "memory",
                "From received to answered, of what memory answered.",
                (|times| &times.memory) as fn(&Times) -> &Histogram,
            ),
            ("flash", "From received to answered, of what flash was read for.", |times| &times.flash),
        ] {
            merged(e, &format!("yagura_cache_{name}_seconds"), help, times.iter().map(|times| of(times)))?;
        }
        figures.flash.map_or(Ok(()), |flash| flash_tier(e, &flash))
    }
}

/// The process: when it began, its CPU time, its memory.
fn cache_process(e: &mut DescriptorEncoder<'_>, shared: &cache::server::Shared, figures: &Figures) -> fmt::Result {
    if let Some(started) = shared.started() {
        gauge(e, "yagura_cache_start_time_seconds", "When the server started, in seconds since 1970.", started)?;
    }
    gauge(e, "yagura_cache_threads", "Threads that serve.", shared.threads() as u64)?;
    if let Some((user, system)) = cpu_seconds() {
        let mut of = e.encode_descriptor("yagura_cache_cpu_seconds", "CPU time.", None, MetricType::Counter)?;
        for (mode, seconds) in [("user", user), ("system", system)] {
            ConstCounter::new(seconds).encode(of.encode_family(&[("mode", mode)])?)?;
        }
    }
    gauge(e, "yagura_cache_memory_held_bytes", "Memory held.", figures.held)?;
    gauge(e, "yagura_cache_memory_limit_bytes", "Memory that may be held.", figures.limit)?;
    let mut kinds = e.encode_descriptor(
        "yagura_cache_memory_bytes",
        "Memory held, by what it is held for.",
        None,
        MetricType::Gauge,
    )?;
    for (kind, bytes) in figures.held_by {
        ConstGauge::new(bytes as i64).encode(kinds.encode_family(&[("kind", kind)])?)?;
    }
    Ok(())
}

fn cache_connections(e: &mut DescriptorEncoder<'_>, shared: &cache::server::Shared, totals: &Totals) -> fmt::Result {
    gauge(e, "yagura_cache_connections", "Connections open.", shared.connections() as u64)?;
    gauge(e, "yagura_cache_connections_max", "Connections that may be open.", shared.connections_max() as u64)?;
    let (watchers, sent, skipped) = shared.watched();
    gauge(e, "yagura_cache_watchers", "Connections that watch.", watchers as u64)?;
    for (name, help, value) in [
        ("connections_accepted", "Connections accepted.", totals.connections_total),
        ("connections_refused", "Connections over a limit.", totals.connections_rejected),
        ("connections_refused_unauthenticated", UNAUTHENTICATED, totals.rejected_unauthenticated),
        ("connections_idle", "Connections ended because they rested too long.", totals.idle_kicks),
        ("accept_pauses", "Pauses after a connection could not be accepted.", totals.accept_pauses),
        ("tls_errors", "Connections without a TLS handshake.", totals.tls_errors),
        ("authentications", "Passwords given.", totals.authentications),
        ("authentication_errors", "Wrong passwords.", totals.authentication_errors),
        ("received_bytes", "Bytes received.", totals.bytes_read),
        ("sent_bytes", "Bytes sent.", totals.bytes_written),
        ("watcher_lines", "Lines sent to who watches.", sent),
        ("watcher_lines_skipped", "Lines that who watches was too slow for.", skipped),
    ] {
        counter(e, &format!("yagura_cache_{name}"), help, value)?;
    }
    Ok(())
}

fn cache_commands(e: &mut DescriptorEncoder<'_>, totals: &Totals) -> fmt::Result {
    for (name, help, value) in [
        ("get_hits", "Keys looked up that were found.", totals.get_hits),
        ("get_misses", "Keys looked up that were not.", totals.get_misses),
        ("get_expired", "Items met that were over.", totals.expired),
        ("sets", "Values that came to be stored.", totals.sets),
        ("cas_hits", "Values whose cas was right.", totals.cas_hits),
        ("cas_misses", "Values with a cas whose item was not there.", totals.cas_misses),
        ("cas_badval", "Values whose cas was another's.", totals.cas_bad_values),
        ("incr_hits", "Items counted up.", totals.increment_hits),
        ("incr_misses", "Items to be counted up that were not there.", totals.increment_misses),
        ("decr_hits", "Items counted down.", totals.decrement_hits),
        ("decr_misses", "Items to be counted down that were not there.", totals.decrement_misses),
        ("touch_hits", "Keys touched that were found.", totals.touch_hits),
        ("touch_misses", "Keys touched that were not.", totals.touch_misses),
        ("delete_hits", "Keys deleted that were found.", totals.delete_hits),
        ("delete_misses", "Keys deleted that were not.", totals.delete_misses),
        ("flushes", "Commands that flush all.", totals.flushes),
        ("meta_commands", "Commands `me`, the one that memcached counts as meta.", totals.metas),
        ("too_large", "Values longer than items may be.", totals.too_large),
        ("no_memory", "Values for which there was no room.", totals.no_memory),
    ] {
        counter(e, &format!("yagura_cache_{name}"), help, value)?;
    }
    Ok(())
}

fn cache_items(e: &mut DescriptorEncoder<'_>, figures: &Figures) -> fmt::Result {
    gauge(e, "yagura_cache_items", "Items in memory and on flash.", figures.items)?;
    gauge(e, "yagura_cache_item_bytes", "Bytes of items in memory.", figures.bytes)?;
    gauge(e, "yagura_cache_index_bytes", "Memory of the index.", figures.index_bytes)?;
    let help = "Items let go for others, by where they went or why not to flash.";
    by_reason(e, "yagura_cache_evictions", help, &figures.evicted_by)?;
    for (name, help, value) in [
        ("stored", "Items stored.", figures.stored),
        ("evicted_unfetched", "Items let go for others that nobody had read.", figures.evicted_unfetched),
        ("expired", "Items that were over when their room was taken.", figures.reclaimed),
        ("expired_unfetched", "Of these, such as nobody had read.", figures.expired_unfetched),
        ("flushed_items", "Items that a flush took away.", figures.flushed),
    ] {
        counter(e, &format!("yagura_cache_{name}"), help, value)?;
    }
    Ok(())
}

/// A counter for each reason.
fn by_reason(e: &mut DescriptorEncoder<'_>, name: &str, help: &str, all: &[(&str, u64)]) -> fmt::Result {
    let mut counters = e.encode_descriptor(name, help, None, MetricType::Counter)?;
    for &(reason, count) in all {
        ConstCounter::new(count).encode(counters.encode_family(&[("reason", reason)])?)?;
    }
    Ok(())
}

/// One histogram of several.
fn merged<'a>(
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
fn in_seconds(buckets: impl IntoIterator<Item = (u64, u64)>) -> Vec<(f64, u64)> {
    buckets.into_iter().map(|(bound, count)| (seconds(bound), count)).chain([(f64::INFINITY, 0)]).collect()
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

fn flash_tier(e: &mut DescriptorEncoder<'_>, flash: &FlashFigures) -> fmt::Result {
    let stats = &flash.stats;
    gauge(e, "yagura_cache_flash_up", "1 until flash is given up.", u64::from(flash.failure.is_none()))?;
    gauge(e, "yagura_cache_flash_capacity_bytes", "Bytes that items on flash can take.", flash.capacity_bytes)?;
    gauge(e, "yagura_cache_flash_free_segments", "Segments that hold nothing.", stats.free_segments)?;
    gauge(e, "yagura_cache_flash_segments", "Segments there are.", stats.segments)?;
    let help = "Items that left flash although nobody had stored or deleted anything under their key, by reason.";
    by_reason(e, "yagura_cache_flash_evictions", help, &flash.left_by)?;
    for (name, help, value) in [
        ("hits", "Hits of items on flash.", flash.hits),
        ("lowered", "Items that left memory and are on flash.", flash.lowered),
        ("promoted", "Items that came to memory again.", flash.promoted),
        ("collected", "Items that left because their segment was collected.", flash.collected),
        ("admitted_items", "Items that were admitted.", stats.admitted_items),
        ("admitted_bytes", "Bytes of their keys and values.", stats.admitted_bytes),
        ("kept_items", "Items written again when their segment was collected.", stats.kept_items),
        ("kept_bytes", "Bytes of their keys and values.", stats.kept_bytes),
        (
            "refused_items",
            "Items that the log did not take, from memory or of a collected segment.",
            stats.refused_items,
        ),
        ("written_bytes", "Bytes written to the device.", stats.device_written_bytes),
        ("writes", "Writes to the device.", stats.device_writes),
        ("read_bytes", "Bytes read from the device.", stats.device_read_bytes),
        ("reads", "Reads from the device.", stats.device_reads),
        ("buffer_reads", "Reads answered from what was on its way to the device.", stats.buffer_reads),
        ("other_key_reads", "Reads that found another key's item.", stats.other_key_reads),
        ("read_errors", "Reads that the device has failed.", stats.read_errors),
        ("checksum_errors", "Reads that found something else than was written.", stats.checksum_errors),
        ("write_errors", "Writes that the device has failed.", stats.write_errors),
        ("abandoned_segments", "Segments given up since a write had failed.", stats.abandoned_segments),
        ("collected_segments", "Segments that were collected.", stats.collected_segments),
    ] {
        counter(e, &format!("yagura_cache_flash_{name}"), help, value)?;
    }
    Ok(())
}

/// The figures of the stores of a process, one per reactor, summed up.
#[derive(Default, Debug)]
pub struct StoreMetrics(Mutex<Vec<Arc<StoreStats>>>);

impl StoreMetrics {
    /// Adds the store of one more reactor.
    pub fn add(&self, stats: Arc<StoreStats>) {
        self.stores().push(stats);
    }

    fn stores(&self) -> MutexGuard<'_, Vec<Arc<StoreStats>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stores = self.stores().clone();
        let sum = |of: fn(&StoreStats) -> &AtomicU64| stores.iter().map(|store| of(store).load(Relaxed)).sum();
        let e = &mut encoder;
        counter(e, "yagura_store_gets", "Gets answered.", sum(|store| &store.gets))?;
        counter(e, "yagura_store_puts", "Puts acknowledged.", sum(|store| &store.puts))?;
        counter(e, "yagura_store_deletes", "Deletes acknowledged.", sum(|store| &store.deletes))?;
        counter(e, "yagura_store_failures", "Operations that failed.", sum(|store| &store.failures))?;
        counter(e, "yagura_store_write_backs", "Gets that stored the newest first.", sum(|store| &store.write_backs))?;
        counter(e, "yagura_store_repaired", "Replicas stored by repair.", sum(|store| &store.repaired))?;
        counter(e, "yagura_store_skips", "Times a slow member was passed over.", sum(|store| &store.skips))?;
        for (name, help, of) in [
            ("yagura_store_get_seconds", "Time of gets.", (|store| &store.get_time) as fn(&StoreStats) -> &Histogram),
            ("yagura_store_put_seconds", "Time of puts and deletes.", |store| &store.put_time),
        ] {
            merged(e, name, help, stores.iter().map(|store| of(store)))?;
        }
        Ok(())
    }
}

/// The figures of a target.
#[derive(Debug)]
pub struct TargetMetrics(pub Arc<Stats>);

impl Collector for TargetMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = &self.0;
        let e = &mut encoder;
        gauge(e, "yagura_target_connections", "Connections open.", stats.connections())?;
        counter(e, "yagura_target_connections_accepted", "Connections accepted.", stats.accepted())?;
        counter(e, "yagura_target_connections_refused", "Connections over the limit.", stats.refused())?;
        counter(e, "yagura_target_tls_connections", "Connections made over TLS.", stats.tls_connections())?;
        counter(e, "yagura_target_tls_failures", "Connections closed for want of security.", stats.tls_failures())?;
        counter(
            e,
            "yagura_target_authenticated",
            "Queues whose host has authenticated itself.",
            stats.authenticated(),
        )?;
        counter(
            e,
            "yagura_target_authentications_failed",
            "Queues ended because their host did not authenticate itself.",
            stats.authentications_failed(),
        )?;
        counter(e, "yagura_target_protocol_errors", "Connections ended by a bad PDU.", stats.protocol_errors())?;
        counter(
            e,
            "yagura_target_keep_alive_expired",
            "Associations whose host fell silent.",
            stats.keep_alive_expired(),
        )?;
        counter(e, "yagura_target_admin_commands", "Admin and Fabrics commands answered.", stats.admin_commands())?;
        counter(e, "yagura_target_read_bytes", "Bytes read for hosts.", stats.read_bytes())?;
        counter(e, "yagura_target_written_bytes", "Bytes written for hosts.", stats.written_bytes())?;
        let errors: u64 = stats.errors().map(|(_, count)| count).sum();
        counter(e, "yagura_target_errors", "Commands answered by another status than success.", errors)?;
        let mut commands = e.encode_descriptor("yagura_target_commands", "I/O commands.", None, MetricType::Counter)?;
        for kind in CommandKind::ALL {
            let labels = [("command", kind.label())];
            ConstCounter::new(stats.commands(kind)).encode(commands.encode_family(&labels)?)?;
        }
        let help = "From a command's arrival to its answer.";
        let mut times = e.encode_descriptor("yagura_target_command_seconds", help, None, MetricType::Histogram)?;
        for kind in CommandKind::ALL {
            let latency = stats.latency(kind);
            let buckets = in_seconds(latency.buckets());
            let count = buckets.iter().map(|(_, count)| count).sum();
            let labels = [("command", kind.label())];
            let mut one = times.encode_family(&labels)?;
            one.encode_histogram::<NoLabelSet>(seconds(latency.sum()), count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Of microseconds, by powers of two from 16 us to 8.4 s: the same bounds at every scrape.
fn latency(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, latency: &Histogram) -> fmt::Result {
    let bounds = (4..24).map(|power| (1u64 << power) as f64 / 1e6).chain([f64::INFINITY]);
    let mut buckets: Vec<(f64, u64)> = bounds.map(|bound| (bound, 0)).collect();
    for (bound, count) in latency.buckets() {
        buckets[bound.next_power_of_two().ilog2().clamp(4, 24) as usize - 4].1 += count;
    }
    histogram(encoder, name, help, &buckets, latency.sum() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn histograms_are_cumulative_and_end_at_infinity() {
        let shared = Arc::new(Shared::default());
        [0, 15, 16, 20, 31, 8_388_607, 100_000_000].iter().for_each(|us| shared.stats.read_latency.record_units(*us));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(GatewayMetrics(shared)));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a String takes all");
        for line in [
            "yagura_gateway_read_seconds_bucket{le=\"0.000016\"} 2",
            "yagura_gateway_read_seconds_bucket{le=\"0.000032\"} 5",
            "yagura_gateway_read_seconds_bucket{le=\"4.194304\"} 5",
            "yagura_gateway_read_seconds_bucket{le=\"8.388608\"} 6",
            "yagura_gateway_read_seconds_bucket{le=\"+Inf\"} 7",
            "yagura_gateway_read_seconds_count 7",
            "yagura_gateway_commands_total 0",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
