//! Requests against a [`Backend`].
//!
//! Commands over several keys run key by key, up to [`FAN_OUT_MAX`] at once; they are not atomic over keys, which `COMMAND DOCS`
//! says. One that fails midway answers the error; what it did to other keys stays done, as with any error of unknown outcome.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write;

pub use pool::together;

use crate::value::Value;

use super::backend::{Backend, Failure};
use super::connection::REDIS_VERSION;
use super::decode::Command;
use super::glob;
use super::reply::{Reply, VIEW_BYTES_MIN};
use super::request::Request;
use super::stats::{GatewayStats, Shared};
use super::{FAN_OUT_MAX, KEYS_MAX, REPLY_BYTES_MAX, SCAN_COUNT_MAX};

/// Runs one request and gives its reply. Once `gone` is set nobody reads the reply: walks over all keys then end early.
pub async fn execute<B: Backend>(
    backend: &B,
    shared: &Shared,
    request: Request,
    command: &Command,
    gone: &Cell<bool>,
) -> Reply {
    let result = match request {
        Request::Get => get(backend, shared, command.arg(1)).await.map(|value| value.map_or(Reply::Null, Reply::Value)),
        Request::Set => backend.put(command.arg(1), command.arg(2)).await.map(|()| Reply::OK),
        Request::MGet => mget(backend, shared, command).await,
        Request::MSet => mset(backend, command).await,
        Request::StrLen => {
            let value = get(backend, shared, command.arg(1)).await;
            value.map(|value| Reply::Integer(value.map_or(0, |value| value.len() as i64)))
        }
        Request::GetRange { start, end } => {
            let value = get(backend, shared, command.arg(1)).await;
            value.map(|value| value.map_or(Reply::bulk(""), |value| range(&value, start, end)))
        }
        Request::Delete => delete(backend, command).await,
        Request::Exists => exists(backend, shared, command).await,
        Request::Type => {
            let value = get(backend, shared, command.arg(1)).await;
            value.map(|value| Reply::Status(if value.is_some() { "string" } else { "none" }.into()))
        }
        Request::Ttl => {
            let value = get(backend, shared, command.arg(1)).await;
            value.map(|value| Reply::Integer(if value.is_some() { -1 } else { -2 }))
        }
        Request::Keys => keys(backend, command.arg(1), gone).await,
        Request::Scan { cursor, pattern, count, type_exists } => {
            let pattern = pattern.map(|index| command.arg(index));
            scan(backend, cursor, pattern, count, type_exists).await
        }
        Request::DbSize => count_keys(backend, gone).await,
        Request::Info => Ok(Reply::Text(info(backend, shared, command))),
        Request::Time => Ok(time()),
    };
    result.unwrap_or_else(|failure| Reply::Error(failure.to_string()))
}

async fn get<B: Backend>(backend: &B, shared: &Shared, key: &[u8]) -> Result<Option<Value>, Failure> {
    let value = backend.get(key).await?;
    GatewayStats::add(if value.is_some() { &shared.stats.hits } else { &shared.stats.misses }, 1);
    Ok(value)
}

async fn mget<B: Backend>(backend: &B, shared: &Shared, command: &Command) -> Result<Reply, Failure> {
    let mut values = Vec::with_capacity(command.len() - 1);
    let mut bytes = 0;
    let mut first = 1;
    while first < command.len() {
        let end = (first + FAN_OUT_MAX).min(command.len());
        for value in together((first..end).map(|index| get(backend, shared, command.arg(index)))).await {
            let value = value?;
            bytes += value.as_ref().map_or(0, |value| value.len());
            values.push(match value {
                // A view would keep the whole page it was read with, which the bound below does not count.
                Some(value) if value.len() < VIEW_BYTES_MIN => Reply::Bulk(value.to_vec()),
                value => value.map_or(Reply::Null, Reply::Value),
            });
        }
        if bytes > REPLY_BYTES_MAX {
            let sentence = format!("the values are more than {REPLY_BYTES_MAX} bytes together: ask for fewer keys");
            return Err(Failure::new("ERR", sentence));
        }
        first = end;
    }
    Ok(Reply::Array(values))
}

async fn mset<B: Backend>(backend: &B, command: &Command) -> Result<Reply, Failure> {
    // The last value of a key that is given twice wins, as in Redis; two concurrent puts would leave it to chance.
    let pairs: BTreeMap<&[u8], &[u8]> =
        (1..command.len()).step_by(2).map(|index| (command.arg(index), command.arg(index + 1))).collect();
    let pairs: Vec<_> = pairs.into_iter().collect();
    for part in pairs.chunks(FAN_OUT_MAX) {
        for result in together(part.iter().map(|(key, value)| backend.put(key, value))).await {
            result?;
        }
    }
    Ok(Reply::OK)
}

async fn delete<B: Backend>(backend: &B, command: &Command) -> Result<Reply, Failure> {
    // A key that is given twice is removed once.
    let keys: std::collections::BTreeSet<&[u8]> = command.args_from(1).collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let mut removed = 0;
    for part in keys.chunks(FAN_OUT_MAX) {
        for result in together(part.iter().map(|key| backend.delete(key))).await {
            removed += i64::from(result?);
        }
    }
    Ok(Reply::Integer(removed))
}

async fn exists<B: Backend>(backend: &B, shared: &Shared, command: &Command) -> Result<Reply, Failure> {
    // A key that is given twice counts twice, as in Redis.
    let (mut found, mut first) = (0, 1);
    while first < command.len() {
        let end = (first + FAN_OUT_MAX).min(command.len());
        for value in together((first..end).map(|index| get(backend, shared, command.arg(index)))).await {
            found += i64::from(value?.is_some());
        }
        first = end;
    }
    Ok(Reply::Integer(found))
}

async fn keys<B: Backend>(backend: &B, pattern: &[u8], gone: &Cell<bool>) -> Result<Reply, Failure> {
    let (mut found, mut cursor, mut bytes) = (Vec::new(), 0, 0);
    loop {
        let page = backend.scan(cursor, SCAN_COUNT_MAX).await?;
        for key in page.keys.into_iter().filter(|key| glob::matches(pattern, key)) {
            bytes += key.len();
            found.push(Reply::Bulk(key));
        }
        if found.len() > KEYS_MAX || bytes > REPLY_BYTES_MAX {
            return Err(Failure::new("ERR", format!("more than {KEYS_MAX} keys match: use SCAN")));
        }
        if page.next == 0 || gone.get() {
            return Ok(Reply::Array(found));
        }
        cursor = page.next;
    }
}

async fn scan<B: Backend>(
    backend: &B,
    cursor: u64,
    pattern: Option<&[u8]>,
    count: usize,
    type_exists: bool,
) -> Result<Reply, Failure> {
    let page = backend.scan(cursor, count).await?;
    let wanted = |key: &Vec<u8>| type_exists && pattern.is_none_or(|pattern| glob::matches(pattern, key));
    let found = page.keys.into_iter().filter(wanted).map(Reply::Bulk).collect();
    Ok(Reply::Array(vec![Reply::bulk(page.next.to_string()), Reply::Array(found)]))
}

async fn count_keys<B: Backend>(backend: &B, gone: &Cell<bool>) -> Result<Reply, Failure> {
    let (mut count, mut cursor) = (0, 0);
    loop {
        let page = backend.scan(cursor, SCAN_COUNT_MAX).await?;
        count += page.keys.len() as i64;
        if page.next == 0 || gone.get() {
            return Ok(Reply::Integer(count));
        }
        cursor = page.next;
    }
}

/// `start` to `end`, both inclusive, negative ones counted from the end (Redis's `GETRANGE`).
fn range(value: &Value, start: i64, end: i64) -> Reply {
    let length = value.len() as i64;
    let place = |index: i64| if index < 0 { (length + index).max(0) } else { index };
    // Both negative and crossed is empty, although clamping alone would make it the first byte.
    if start < 0 && end < 0 && start > end {
        return Reply::bulk("");
    }
    let (start, end) = (place(start), place(end).min(length - 1));
    if length == 0 || start > end {
        return Reply::bulk("");
    }
    let (mut skip, mut left) = (start as usize, (end - start + 1) as usize);
    let mut parts = Vec::new();
    for segment in value.segments() {
        let from = skip.min(segment.len());
        let to = (from + left).min(segment.len());
        (skip, left) = (skip - from, left - (to - from));
        parts.push(segment.slice(from..to));
    }
    Reply::Value(Value::new(parts))
}

fn time() -> Reply {
    let now = engine::time::unix_time();
    Reply::Array(vec![Reply::bulk(now.as_secs().to_string()), Reply::bulk(now.subsec_micros().to_string())])
}

/// `INFO`, the sections that are asked for (none: all).
fn info<B: Backend>(backend: &B, shared: &Shared, command: &Command) -> String {
    let load = GatewayStats::load;
    let stats = &shared.stats;
    let number = |name: &str, value: u64| (name.to_string(), value.to_string());
    let text = |name: &str, value: &str| (name.to_string(), value.to_string());
    let sections = [
        (
            "Server",
            vec![
                text("redis_version", REDIS_VERSION),
                text("redis_mode", "standalone"),
                text("yagura_version", env!("CARGO_PKG_VERSION")),
                number("process_id", u64::from(std::process::id())),
            ],
        ),
        ("Clients", vec![number("connected_clients", load(&stats.connections))]),
        (
            "Stats",
            vec![
                number("total_connections_received", load(&stats.connections_total)),
                number("total_commands_processed", load(&stats.commands)),
                number("total_error_replies", load(&stats.errors)),
                number("total_net_input_bytes", load(&stats.bytes_received)),
                number("total_net_output_bytes", load(&stats.bytes_sent)),
                number("rejected_connections", load(&stats.connections_refused)),
                number("keyspace_hits", load(&stats.hits)),
                number("keyspace_misses", load(&stats.misses)),
            ],
        ),
        ("Replication", vec![text("role", "master"), number("connected_slaves", 0)]),
        ("Cluster", vec![number("cluster_enabled", 0)]),
        ("Pool", backend.info()),
    ];
    let wanted = |name: &str| {
        command.len() == 1
            || command.args_from(1).any(|arg| {
                [name, "all", "default", "everything"].iter().any(|known| arg.eq_ignore_ascii_case(known.as_bytes()))
            })
    };
    let mut out = String::new();
    for (name, lines) in sections.iter().filter(|(name, _)| wanted(name)) {
        let _ = write!(out, "{}# {name}\r\n", if out.is_empty() { "" } else { "\r\n" }); // a String takes all
        for (key, value) in lines {
            let _ = write!(out, "{key}:{value}\r\n"); // a String takes all
        }
    }
    out
}
