//! The lines of `stats`, under memcached's names. What has no counterpart here (its slab mover, its crawler, its logger) is not
//! told, rather than told as zero.

use std::fmt::Display;

use engine::net::serving::ACCEPT_PAUSE;

use super::connection::Tcp;
use super::counters::Totals;
use super::holdings::{Figures, FlashFigures};
use super::shared::Shared;
use crate::item::{NEVER, Seconds};
use crate::protocol::VERSION;
use crate::session::CLASS;
use crate::session::{Authentication, Protocols};

/// Bytes of the longest record of TLS, which is what a connection's replies are written in.
const RECORD_BYTES: usize = 16 << 10;

/// Tells one line.
type Tell<'a> = dyn FnMut(&str, &dyn Display) + 'a;

/// A moment of the server's clock in seconds since 1970; `None`: never.
pub(super) fn unix(at: Seconds, began: u64) -> Option<u64> {
    (at != NEVER).then(|| began + u64::from(at.0))
}

/// `stats`.
pub(super) fn general(shared: &Shared, (totals, figures): &(Totals, Figures), tell: &mut Tell<'_>) {
    let now = shared.now();
    tell("pid", &std::process::id());
    tell("uptime", &shared.uptime());
    tell("time", &(now.began + u64::from(now.at.0)));
    tell("version", &VERSION);
    tell("yagura_version", &env!("CARGO_PKG_VERSION"));
    tell("pointer_size", &usize::BITS);
    if let Some((user, system)) = cpu_seconds() {
        tell("rusage_user", &format_args!("{user:.6}"));
        tell("rusage_system", &format_args!("{system:.6}"));
    }
    tell("max_connections", &shared.connections_max());
    tell("curr_connections", &shared.connections());
    tell("total_connections", &totals.connections_total);
    tell("rejected_connections", &totals.connections_rejected);
    tell("rejected_unauthenticated", &totals.rejected_unauthenticated);
    tell("idle_kicks", &totals.idle_kicks);
    commands(totals, tell);
    tell("bytes_read", &totals.bytes_read);
    tell("bytes_written", &totals.bytes_written);
    tell("limit_maxbytes", &figures.limit);
    tell("accepting_conns", &u8::from(shared.connections() < shared.connections_max()));
    tell("listen_disabled_num", &totals.accept_pauses);
    tell("time_in_listen_disabled_us", &(u128::from(totals.accept_pauses) * ACCEPT_PAUSE.as_micros()));
    tell("threads", &shared.threads());
    tell("hash_bytes", &figures.index_bytes);
    tell("bytes", &figures.bytes);
    tell("curr_items", &figures.items);
    tell("total_items", &figures.stored);
    tell("memory_held", &figures.held);
    figures.held_by.iter().for_each(|(name, bytes)| tell(&format!("memory_{name}"), bytes));
    tell("expired_unfetched", &figures.expired_unfetched);
    tell("evicted_unfetched", &figures.evicted_unfetched);
    tell("evictions", &figures.evictions);
    figures.evicted_by.iter().for_each(|(why, items)| tell(&format!("evicted_{why}"), items));
    tell("reclaimed", &figures.reclaimed);
    tell("flushed_items", &figures.flushed);
    let (watchers, sent, skipped) = shared.watchers().counts();
    tell("log_watchers", &watchers);
    tell("log_watcher_sent", &sent);
    tell("log_watcher_skipped", &skipped);
    if shared.tls().is_some() {
        tell("ssl_handshake_errors", &totals.tls_errors);
        tell("time_since_server_cert_refresh", &shared.uptime().saturating_sub(shared.refreshed()));
    }
    if let Some(of_flash) = &figures.flash {
        flash(of_flash, tell);
    }
}

/// Under the names of memcached's extstore where there is one; ours begin with `flash`.
fn flash(figures: &FlashFigures, tell: &mut Tell<'_>) {
    let stats = &figures.stats;
    tell("get_extstore", &figures.hits);
    tell("recache_from_extstore", &figures.promoted);
    tell("miss_from_extstore", &stats.other_key_reads);
    tell("badcrc_from_extstore", &stats.checksum_errors);
    tell("extstore_page_evictions", &stats.collected_segments);
    tell("extstore_pages_free", &stats.free_segments);
    tell("extstore_pages_used", &stats.segments.saturating_sub(stats.free_segments));
    tell("extstore_objects_evicted", &figures.collected);
    tell("extstore_objects_read", &(stats.device_reads + stats.buffer_reads));
    tell("extstore_objects_written", &(stats.admitted_items + stats.kept_items));
    tell("extstore_bytes_written", &stats.device_written_bytes);
    tell("extstore_bytes_read", &stats.device_read_bytes);
    tell("extstore_limit_maxbytes", &figures.capacity_bytes);
    tell("extstore_compact_rescues", &stats.kept_items);
    figures.left_by.iter().for_each(|(why, items)| tell(&format!("flash_left_{why}"), items));
    tell("flash_lowered", &figures.lowered);
    tell("flash_admitted_items", &stats.admitted_items);
    tell("flash_admitted_bytes", &stats.admitted_bytes);
    tell("flash_kept_bytes", &stats.kept_bytes);
    tell("flash_refused_items", &stats.refused_items);
    tell("flash_buffer_reads", &stats.buffer_reads);
    tell("flash_read_errors", &stats.read_errors);
    tell("flash_write_errors", &stats.write_errors);
    tell("flash_abandoned_segments", &stats.abandoned_segments);
    tell("flash_failure", &figures.failure.as_deref().unwrap_or("none"));
}

fn commands(totals: &Totals, tell: &mut Tell<'_>) {
    tell("cmd_get", &(totals.get_hits + totals.get_misses));
    tell("cmd_set", &totals.sets);
    tell("cmd_flush", &totals.flushes);
    tell("cmd_touch", &(totals.touch_hits + totals.touch_misses));
    tell("cmd_meta", &totals.metas);
    tell("get_hits", &totals.get_hits);
    tell("get_misses", &totals.get_misses);
    tell("get_expired", &totals.expired);
    tell("delete_misses", &totals.delete_misses);
    tell("delete_hits", &totals.delete_hits);
    tell("incr_misses", &totals.increment_misses);
    tell("incr_hits", &totals.increment_hits);
    tell("decr_misses", &totals.decrement_misses);
    tell("decr_hits", &totals.decrement_hits);
    tell("cas_misses", &totals.cas_misses);
    tell("cas_hits", &totals.cas_hits);
    tell("cas_badval", &totals.cas_bad_values);
    tell("touch_hits", &totals.touch_hits);
    tell("touch_misses", &totals.touch_misses);
    tell("store_too_large", &totals.too_large);
    tell("store_no_memory", &totals.no_memory);
    tell("auth_cmds", &totals.authentications);
    tell("auth_errors", &totals.authentication_errors);
}

/// `stats settings`.
pub(super) fn settings(shared: &Shared, figures: &Figures, tell: &mut Tell<'_>) {
    let (rules, said) = (shared.rules(), shared.said());
    let yes = |is: bool| if is { "yes" } else { "no" };
    tell("maxbytes", &figures.limit);
    tell("maxconns", &shared.connections_max());
    tell("tcpport", &shared.port());
    tell("udpport", &0);
    tell("inter", &said.listen);
    tell("verbosity", &shared.verbosity());
    tell("evictions", &if said.evicts { "on" } else { "off" });
    tell("domain_socket", &said.unix_socket.as_deref().unwrap_or("NULL"));
    tell("shutdown_command", &yes(rules.serves_shutdown));
    tell("num_threads", &shared.threads());
    tell("stat_key_prefix", &":");
    tell("detail_enabled", &yes(shared.prefixes().is_on()));
    tell("cas_enabled", &"yes");
    tell(
        "binding_protocol",
        &match rules.protocols {
            Protocols::Both => "auto-negotiate",
            Protocols::Text => "ascii",
            Protocols::Binary => "binary",
        },
    );
    tell("auth_enabled_sasl", &yes(matches!(rules.authentication, Authentication::Sasl(_))));
    tell("auth_enabled_ascii", &yes(matches!(rules.authentication, Authentication::Text(_))));
    tell("item_size_max", &rules.item_bytes_max);
    tell("maxconns_fast", &"yes");
    // Nothing looks for expired items before their room is wanted.
    tell("lru_crawler", &"no");
    tell("flush_enabled", &yes(rules.serves_flush));
    tell("dump_enabled", &yes(rules.serves_dump));
    tell("hash_algorithm", &"siphash13");
    tell("idle_timeout", &shared.idle_timeout().unwrap_or(0));
    tell("track_sizes", &"no");
    tell("ssl_enabled", &yes(said.tls.is_some()));
    let files = said.tls.as_ref();
    let authorities = files.and_then(|files| files.authorities.as_ref());
    tell("ssl_chain_cert", &files.map_or("(null)".into(), |files| files.chain.to_string_lossy()));
    tell("ssl_key", &files.map_or("(null)".into(), |files| files.key.to_string_lossy()));
    // As OpenSSL counts, in memcached's way: 0 nobody shows a certificate, 2 everybody has to; PEM.
    tell("ssl_verify_mode", &if authorities.is_some() { 2 } else { 0 });
    tell("ssl_keyformat", &1);
    tell("ssl_ciphers", &"NULL");
    tell("ssl_ca_cert", &authorities.map_or("NULL".into(), |path| path.to_string_lossy()));
    tell("ssl_wbuf_size", &RECORD_BYTES);
    tell("ssl_session_cache", &"no");
    tell("ssl_kernel_tls", &"no");
    tell("ssl_min_version", &"tlsv1.3");
}

/// `stats conns`.
pub(super) fn connections(shared: &Shared, tell: &mut Tell<'_>) {
    let now = shared.now().at.0;
    for (id, at) in shared.listeners() {
        tell(&format!("{id}:addr"), &at);
        tell(&format!("{id}:state"), &"conn_listening");
        tell(&format!("{id}:secs_since_last_cmd"), &shared.uptime());
    }
    shared.each_connection(|id, seen| {
        tell(&format!("{id}:addr"), &seen.origin);
        let listens_at = seen.origin.local().map_or_else(|| shared.unix_address(), |local| Tcp(local).to_string());
        tell(&format!("{id}:listen_addr"), &listens_at);
        tell(&format!("{id}:state"), &seen.activity().name());
        tell(&format!("{id}:secs_since_last_cmd"), &now.saturating_sub(seen.active().0));
    });
}

/// `stats items`: all items are of one class.
pub(super) fn items(figures: &Figures, tell: &mut Tell<'_>) {
    if figures.items == 0 {
        return;
    }
    let mut of = |name: &str, value: u64| tell(&format!("items:{CLASS}:{name}"), &value);
    of("number", figures.items);
    of("mem_requested", figures.bytes);
    of("evicted", figures.evictions);
    of("reclaimed", figures.reclaimed);
    of("expired_unfetched", figures.expired_unfetched);
    of("evicted_unfetched", figures.evicted_unfetched);
}

/// `stats slabs`: the segments, as pages of the one class.
pub(super) fn slabs((totals, figures): &(Totals, Figures), tell: &mut Tell<'_>) {
    let mut of = |name: &str, value: u64| tell(&format!("{CLASS}:{name}"), &value);
    of("chunk_size", figures.segment_bytes);
    of("chunks_per_page", 1);
    of("total_pages", figures.segments);
    of("total_chunks", figures.segments);
    of("used_chunks", figures.segments);
    of("get_hits", totals.get_hits);
    of("cmd_set", totals.sets);
    of("delete_hits", totals.delete_hits);
    of("incr_hits", totals.increment_hits);
    of("decr_hits", totals.decrement_hits);
    of("cas_hits", totals.cas_hits);
    of("cas_badval", totals.cas_bad_values);
    of("touch_hits", totals.touch_hits);
    tell("active_slabs", &1);
    tell("total_malloced", &(figures.segments * figures.segment_bytes));
}

/// CPU time of this process in user and in system mode, if the kernel tells.
pub fn cpu_seconds() -> Option<(f64, f64)> {
    // What a tick is to programs on Linux, whatever the kernel's own.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name may hold anything, also blanks; what follows its parenthesis does not.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok().map(|ticks| ticks / TICKS_PER_SECOND);
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_from_the_kernel() {
        let (user, system) = cpu_seconds().expect("Linux tells");
        assert!((0.0..1e6).contains(&user) && (0.0..1e6).contains(&system), "{user} {system}");
    }

    #[test]
    fn moments_are_told_in_unix_time() {
        assert_eq!((unix(NEVER, 1000), unix(Seconds(7), 1000)), (None, Some(1007)));
    }
}
