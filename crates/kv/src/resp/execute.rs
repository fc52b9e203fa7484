//! Requests against a [`Backend`].
//!
//! Commands over several keys run key by key, up to [`FAN_OUT_MAX`] at once; they are not atomic over keys, which `COMMAND DOCS`
//! says. One that fails midway answers the error; what it did to other keys stays done, as with any error of unknown outcome.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use pool::together;

use super::backend::{Backend, Entry, Failure, ScanKey, ScanPage, TAG_STRING};
use super::command::Command;
use super::glob;
use super::info::{asks_for, info};
use super::keys::{self, Moment, type_name};
use super::reply::{Reply, VIEW_BYTES_MIN};
use super::request::{Read, Request, ScanOptions, Update};
use super::stats::{GatewayStats, Shared};
use super::strings::string;
use super::{FAN_OUT_MAX, KEYS_MAX, REPLY_BYTES_MAX, SCAN_COUNT_MAX};

/// Of more keys than these an estimate has to do. Guessed: counting them is a matter of a second.
const KEYS_COUNTED_MAX: u64 = 100_000;
/// How long keys are counted one by one before an estimate has to do: few keys may lie in a large table. Chosen: as long as any
/// operation may take.
const COUNT_TIME_MAX: Duration = crate::store::OPERATION_TIME_MAX;
/// How old the number of keys in `INFO` may be. Guessed: it is polled each second, and looked at now and then.
const COUNT_AGE_MAX: Duration = Duration::from_secs(10);

/// Runs one request and gives its reply. Once `gone` is set nobody reads the reply: walks over all keys then end early.
pub async fn execute<B: Backend>(
    backend: &B,
    shared: &Shared,
    request: Request,
    command: &Command,
    gone: &Cell<bool>,
) -> Reply {
    let result = match request {
        Request::Read(what) => read(backend, shared, what, command).await,
        Request::Update(what) => update(backend, what, command).await,
        Request::Put { value, lifetime } => {
            let entry = Entry { expiry: lifetime.expiry(None), ..string(command.arg(value)) };
            backend.put_entry(command.arg(1), entry).await.map(|()| Reply::OK)
        }
        Request::MGet => mget(backend, shared, command).await,
        Request::MSet => mset(backend, command).await,
        Request::Delete => delete(backend, command).await,
        Request::Exists => exists(backend, shared, command).await,
        Request::Keys => all_keys(backend, command.arg(1), gone).await,
        Request::Scan(cursor, options) => scan(backend, cursor, options, command).await,
        Request::RandomKey => random_key(backend).await,
        Request::DbSize => count_keys(backend, shared, gone).await.map(|count| Reply::Integer(count as i64)),
        Request::Info => {
            // Whoever polls it must not have the pool walked every second.
            let keys = match (asks_for(command, "keyspace"), shared.keys_counted(COUNT_AGE_MAX)) {
                (false, _) => Ok(0),
                (true, Some(count)) => Ok(count),
                (true, None) => count_keys(backend, shared, gone).await,
            };
            Ok(Reply::Text(info(backend, shared, keys, command)))
        }
        Request::Time => Ok(time()),
        Request::Wait => Ok(Reply::Integer(backend.further_copies() as i64)),
    };
    result.unwrap_or_else(|failure| Reply::Error(failure.to_string()))
}

async fn get<B: Backend>(backend: &B, shared: &Shared, key: &[u8]) -> Result<Option<Entry>, Failure> {
    let entry = backend.entry(key).await?;
    GatewayStats::add(if entry.is_some() { &shared.stats.hits } else { &shared.stats.misses }, 1);
    Ok(entry)
}

/// [`get`] of the arguments from `first` up to `end`.
async fn get_several<B: Backend>(
    backend: &B,
    shared: &Shared,
    command: &Command,
    (first, end): (usize, usize),
) -> Vec<Result<Option<Entry>, Failure>> {
    let keys: Vec<&[u8]> = (first..end).map(|index| command.arg(index)).collect();
    let found = backend.entries(&keys).await;
    let hits = found.iter().filter(|entry| matches!(entry, Ok(Some(_)))).count();
    let misses = found.iter().filter(|entry| matches!(entry, Ok(None))).count();
    GatewayStats::add(&shared.stats.hits, hits as u64);
    GatewayStats::add(&shared.stats.misses, misses as u64);
    found
}

async fn read<B: Backend>(backend: &B, shared: &Shared, what: Read, command: &Command) -> Result<Reply, Failure> {
    let entry = get(backend, shared, command.arg(what.key_place())).await?;
    let entry = entry.as_ref();
    Ok(match what {
        Read::String(read) => read.reply(entry),
        Read::Hash(read) => read.reply(entry, command, &Moment::now()),
        Read::Key(read) => read.reply(entry, command, &Moment::now()),
    })
}

async fn update<B: Backend>(backend: &B, what: Update, command: &Command) -> Result<Reply, Failure> {
    let decide = |entry: Option<&Entry>| match what {
        Update::String(update) => update.change(entry, command, &Moment::now()),
        Update::Hash(update) => update.change(entry, command),
        Update::Key(update) => update.change(entry, &Moment::now()),
    };
    backend.update(command.arg(1), decide).await
}

async fn mget<B: Backend>(backend: &B, shared: &Shared, command: &Command) -> Result<Reply, Failure> {
    let mut values = Vec::with_capacity(command.len() - 1);
    let mut bytes = 0;
    let mut first = 1;
    while first < command.len() {
        let end = (first + FAN_OUT_MAX).min(command.len());
        for entry in get_several(backend, shared, command, (first, end)).await {
            // What is no string is as good as not there, as in Redis.
            let value = entry?.filter(|entry| entry.tag == TAG_STRING).map(|entry| entry.value);
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
        for result in backend.put_entries(part.iter().map(|(key, value)| (*key, string(value))).collect()).await {
            result?;
        }
    }
    Ok(Reply::OK)
}

async fn delete<B: Backend>(backend: &B, command: &Command) -> Result<Reply, Failure> {
    // A key that is given twice is removed once.
    let keys: BTreeSet<&[u8]> = command.args_from(1).collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let mut removed = 0;
    for part in keys.chunks(FAN_OUT_MAX) {
        // By a conditional operation, although it takes a round trip more: of two that delete one key at once, one answers 1.
        let deletes = part.iter().map(|key| {
            backend.update(key, |entry| keys::Update::Delete.change(entry, &Moment { now_ms: 0, random: 0 }))
        });
        for result in together(deletes).await {
            match result? {
                Reply::Integer(count) => removed += count,
                other => return Ok(other),
            }
        }
    }
    Ok(Reply::Integer(removed))
}

async fn exists<B: Backend>(backend: &B, shared: &Shared, command: &Command) -> Result<Reply, Failure> {
    // A key that is given twice counts twice, as in Redis.
    let (mut found, mut first) = (0, 1);
    while first < command.len() {
        let end = (first + FAN_OUT_MAX).min(command.len());
        for value in get_several(backend, shared, command, (first, end)).await {
            found += i64::from(value?.is_some());
        }
        first = end;
    }
    Ok(Reply::Integer(found))
}

async fn all_keys<B: Backend>(backend: &B, pattern: &[u8], gone: &Cell<bool>) -> Result<Reply, Failure> {
    // A scan may meet a key twice, `KEYS` does not.
    let (mut found, mut cursor, mut bytes) = (BTreeSet::new(), 0, 0);
    loop {
        let ScanPage { keys, next } = backend.scan(cursor, SCAN_COUNT_MAX).await?;
        for ScanKey { key, .. } in keys.into_iter().filter(|found| glob::matches(pattern, &found.key)) {
            bytes += key.len();
            found.insert(key);
        }
        if found.len() > KEYS_MAX || bytes > REPLY_BYTES_MAX {
            return Err(Failure::new("ERR", format!("more than {KEYS_MAX} keys match: use SCAN")));
        }
        if next == 0 || gone.get() {
            return Ok(Reply::Array(found.into_iter().map(Reply::Bulk).collect()));
        }
        cursor = next;
    }
}

/// How many keys there are: counted if they are few, since an estimate of few is far off; else about.
async fn count_keys<B: Backend>(backend: &B, shared: &Shared, gone: &Cell<bool>) -> Result<u64, Failure> {
    let begun = engine::time::now();
    let estimate = backend.estimate_keys().await?;
    if estimate > KEYS_COUNTED_MAX {
        shared.set_keys_counted(estimate);
        return Ok(estimate);
    }
    let (mut count, mut cursor) = (0, 0);
    loop {
        let page = backend.scan(cursor, SCAN_COUNT_MAX).await?;
        (count, cursor) = (count + page.keys.len() as u64, page.next);
        if cursor == 0 || gone.get() || begun.elapsed() > COUNT_TIME_MAX {
            break;
        }
    }
    // A walk that was broken off has a cursor.
    let count = if cursor == 0 { count } else { estimate };
    shared.set_keys_counted(count);
    Ok(count)
}

async fn scan<B: Backend>(backend: &B, cursor: u64, options: ScanOptions, command: &Command) -> Result<Reply, Failure> {
    let page = backend.scan(cursor, options.count).await?;
    let pattern = options.pattern.map(|index| command.arg(index));
    let type_wanted = options.type_name.map(|index| command.arg(index));
    let wanted = |found: &ScanKey| {
        type_wanted.is_none_or(|name| name.eq_ignore_ascii_case(type_name(found.tag).as_bytes()))
            && pattern.is_none_or(|pattern| glob::matches(pattern, &found.key))
    };
    let found = page.keys.into_iter().filter(wanted).map(|found| Reply::Bulk(found.key)).collect();
    Ok(Reply::Array(vec![Reply::bulk(page.next.to_string()), Reply::Array(found)]))
}

/// A key that stands behind a random place: one behind a long gap is chosen more often.
async fn random_key<B: Backend>(backend: &B) -> Result<Reply, Failure> {
    let (mut cursor, mut wrapped) = (backend.random_cursor(), false);
    loop {
        let ScanPage { keys, next } = backend.scan(cursor, FAN_OUT_MAX).await?;
        if !keys.is_empty() {
            let index = (engine::task::random_u64() % keys.len() as u64) as usize;
            return Ok(keys.into_iter().nth(index).map_or(Reply::Null, |found| Reply::Bulk(found.key)));
        }
        if next == 0 && wrapped {
            return Ok(Reply::Null);
        }
        wrapped |= next == 0;
        cursor = next;
    }
}

fn time() -> Reply {
    let now = engine::time::unix_time();
    Reply::Array(vec![Reply::bulk(now.as_secs().to_string()), Reply::bulk(now.subsec_micros().to_string())])
}
