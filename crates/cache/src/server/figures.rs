//! A cache server's figures, for Prometheus.

use std::fmt;
use std::sync::Arc;

use engine::figures::{UNAUTHENTICATED, by_reason, counters, gauge, gauges, merged};
use engine::histogram::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::counters::Totals;
use super::holdings::{Figures, FlashFigures, Holdings};
use super::shared::Shared;
use super::statistics::cpu_seconds;
use super::times::Times;

/// The figures of a cache server.
pub struct CacheMetrics<S> {
    /// What its threads count.
    pub shared: Arc<Shared>,
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
fn cache_process(e: &mut DescriptorEncoder<'_>, shared: &Shared, figures: &Figures) -> fmt::Result {
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
    let kinds = figures.held_by.into_iter().map(|(kind, bytes)| ([("kind", kind)], bytes));
    gauges(e, ("yagura_cache_memory_bytes", "Memory held, by what it is held for."), kinds)
}

fn cache_connections(e: &mut DescriptorEncoder<'_>, shared: &Shared, totals: &Totals) -> fmt::Result {
    gauge(e, "yagura_cache_connections", "Connections open.", shared.connections() as u64)?;
    gauge(e, "yagura_cache_connections_max", "Connections that may be open.", shared.connections_max() as u64)?;
    let (watchers, sent, skipped) = shared.watched();
    gauge(e, "yagura_cache_watchers", "Connections that watch.", watchers as u64)?;
    let all = [
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
    ];
    counters(e, "yagura_cache_", &all)
}

fn cache_commands(e: &mut DescriptorEncoder<'_>, totals: &Totals) -> fmt::Result {
    let all = [
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
    ];
    counters(e, "yagura_cache_", &all)
}

fn cache_items(e: &mut DescriptorEncoder<'_>, figures: &Figures) -> fmt::Result {
    gauge(e, "yagura_cache_items", "Items in memory and on flash.", figures.items)?;
    gauge(e, "yagura_cache_item_bytes", "Bytes of items in memory.", figures.bytes)?;
    gauge(e, "yagura_cache_index_bytes", "Memory of the index.", figures.index_bytes)?;
    let help = "Items let go for others, by where they went or why not to flash.";
    by_reason(e, "yagura_cache_evictions", help, &figures.evicted_by)?;
    let all = [
        ("stored", "Items stored.", figures.stored),
        ("evicted_unfetched", "Items let go for others that nobody had read.", figures.evicted_unfetched),
        ("expired", "Items that were over when their room was taken.", figures.reclaimed),
        ("expired_unfetched", "Of these, such as nobody had read.", figures.expired_unfetched),
        ("flushed_items", "Items that a flush took away.", figures.flushed),
    ];
    counters(e, "yagura_cache_", &all)
}

fn flash_tier(e: &mut DescriptorEncoder<'_>, flash: &FlashFigures) -> fmt::Result {
    let stats = &flash.stats;
    gauge(e, "yagura_cache_flash_up", "1 until flash is given up.", u64::from(flash.failure.is_none()))?;
    gauge(e, "yagura_cache_flash_capacity_bytes", "Bytes that items on flash can take.", flash.capacity_bytes)?;
    gauge(e, "yagura_cache_flash_free_segments", "Segments that hold nothing.", stats.free_segments)?;
    gauge(e, "yagura_cache_flash_segments", "Segments there are.", stats.segments)?;
    let help = "Items that left flash although nobody had stored or deleted anything under their key, by reason.";
    by_reason(e, "yagura_cache_flash_evictions", help, &flash.left_by)?;
    let all = [
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
    ];
    counters(e, "yagura_cache_flash_", &all)
}
