//! `INFO`: what Redis's own names mean here, and the pool behind.

use std::fmt::Write;

use super::backend::{Backend, Failure};
use super::command::Command;
use super::commands::COMMANDS;
use super::connection::REDIS_VERSION;
use super::stats::{GatewayState, GatewayStats};

type Section = (&'static str, Vec<(String, String)>);

/// Sections that are given only when they are asked for, or with `everything` and `all`.
const UPON_REQUEST: &[&str] = &["Commandstats"];

fn line(name: &str, value: impl std::fmt::Display) -> (String, String) {
    (name.to_string(), value.to_string())
}

/// Whether `INFO` is asked for this section (none named: all but the longest).
pub fn asks_for(command: &Command, section: &str) -> bool {
    let named = |names: &[&str]| {
        command.args_from(1).any(|arg| names.iter().any(|name| arg.eq_ignore_ascii_case(name.as_bytes())))
    };
    let by_default = command.len() == 1 || named(&["default"]);
    named(&[section, "all", "everything"]) || (by_default && !UPON_REQUEST.contains(&section))
}

/// The sections that are asked for; `keys`: how many there are.
pub fn info<B: Backend>(backend: &B, shared: &GatewayState, keys: Result<u64, Failure>, command: &Command) -> String {
    let mut sections = sections(shared);
    sections.extend([("Keyspace", keyspace(keys)), ("Pool", backend.info())]);
    let mut out = String::new();
    for (name, lines) in sections.iter().filter(|(name, _)| asks_for(command, name)) {
        let _ = write!(out, "{}# {name}\r\n", if out.is_empty() { "" } else { "\r\n" }); // a String takes all
        for (key, value) in lines {
            let _ = write!(out, "{key}:{value}\r\n"); // a String takes all
        }
    }
    out
}

fn sections(shared: &GatewayState) -> Vec<Section> {
    let load = GatewayStats::load;
    let stats = &shared.stats;
    let uptime = shared.uptime().as_secs();
    vec![
        (
            "Server",
            vec![
                line("redis_version", REDIS_VERSION),
                line("redis_mode", "standalone"),
                line("yagura_version", env!("CARGO_PKG_VERSION")),
                line("arch_bits", usize::BITS),
                line("process_id", std::process::id()),
                line("uptime_in_seconds", uptime),
                line("uptime_in_days", uptime / 86_400),
            ],
        ),
        ("Clients", vec![line("connected_clients", load(&stats.connections)), line("blocked_clients", 0)]),
        // There is no memory of keys here, and no policy that would drop any.
        ("Memory", vec![line("maxmemory", 0), line("maxmemory_policy", "noeviction")]),
        // An acknowledged write is stable on a majority; there are no snapshots and no log to load.
        ("Persistence", vec![line("loading", 0), line("async_loading", 0)]),
        (
            "Stats",
            vec![
                line("total_connections_received", load(&stats.connections_total)),
                line("total_commands_processed", load(&stats.commands)),
                line("total_error_replies", load(&stats.errors)),
                line("total_net_input_bytes", load(&stats.bytes_received)),
                line("total_net_output_bytes", load(&stats.bytes_sent)),
                line("rejected_connections", load(&stats.connections_refused)),
                line("rejected_unauthenticated", load(&stats.refused_unauthenticated)),
                line("keyspace_hits", load(&stats.hits)),
                line("keyspace_misses", load(&stats.misses)),
            ],
        ),
        ("Replication", vec![line("role", "master"), line("connected_slaves", 0)]),
        ("Modules", Vec::new()),
        ("Commandstats", command_stats(shared)),
        ("Cluster", vec![line("cluster_enabled", 0)]),
    ]
}

fn command_stats(shared: &GatewayState) -> Vec<(String, String)> {
    let used = COMMANDS.iter().zip(shared.stats.by_command()).filter(|(_, counters)| counters.calls() > 0);
    used.map(|(spec, counters)| (format!("cmdstat_{}", spec.name), counters.to_string())).collect()
}

/// Redis gives a line only for a database that holds something.
fn keyspace(keys: Result<u64, Failure>) -> Vec<(String, String)> {
    match keys {
        Ok(0) => Vec::new(),
        Ok(count) => vec![line("db0", format_args!("keys={count},expires=0,avg_ttl=0"))],
        Err(failure) => vec![line("db0_unavailable", failure)],
    }
}
