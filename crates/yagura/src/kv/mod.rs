//! `yagura kv …`

mod change;
pub mod copy;
pub mod scrub;
mod stat;
pub mod timed;
mod verify;

use std::fs::File;
use std::io::Write;

use engine::time;
use kv::object::{self, ObjectError};
use kv::resp::Failure as StoreFailure;
use kv::store::{LIST_ENTRIES_MAX, Store};
use serde::Serialize;

use crate::cli::{Given, KvDeleteArgs, KvGetArgs, KvImportArgs, KvListArgs, KvPutArgs, KvVerb};
use crate::client;
use crate::exit::Failure;
use crate::tree::Tree;
use crate::{output, reactors};
use copy::describe_import;
use timed::timed;

/// How long the end of a verb waits for what outlives its operations (late replicas, space being freed).
const SETTLE_TIME: std::time::Duration = std::time::Duration::from_secs(5);

/// Runs a verb.
pub fn run(verb: &KvVerb) -> Result<(), Failure> {
    match verb {
        KvVerb::Put(args) => reactors::run_one(put(args)),
        KvVerb::Get(args) => reactors::run_one(get(args)),
        KvVerb::Delete(args) => reactors::run_one(delete(args)),
        KvVerb::Add(args) => reactors::run_one(change::set(args, change::Condition::Missing)),
        KvVerb::Replace(args) => reactors::run_one(change::set(args, change::Condition::There)),
        KvVerb::Cas(args) => reactors::run_one(change::cas(args)),
        KvVerb::Incr(args) => reactors::run_one(change::incr(args)),
        KvVerb::Append(args) => reactors::run_one(change::append(args)),
        KvVerb::Expire(args) => reactors::run_one(change::expire(args)),
        KvVerb::List(args) => reactors::run_one(list(args)),
        KvVerb::Import(args) => reactors::run_one(import(args)),
        KvVerb::Verify(args) => reactors::run_one(verify::verify(args)),
        KvVerb::Scrub(args) => reactors::run_one(scrub::scrub(args)),
        KvVerb::Repair(args) => reactors::run_one(scrub::repair(args)),
        KvVerb::Stat(args) => reactors::run_one(stat::stat(args)),
    }
}

/// A store's failure as an exit status.
pub fn store_failure(error: StoreFailure) -> Failure {
    match error.code {
        _ if error.is_full => Failure::out_of_space(error.sentence),
        StoreFailure::TRY_AGAIN | StoreFailure::UNKNOWN => Failure::unavailable(error.sentence),
        _ => Failure::usage(error.sentence),
    }
}

/// An object's failure as an exit status.
pub fn object_failure(error: ObjectError) -> Failure {
    match error {
        ObjectError::Store(error) => store_failure(error),
        ObjectError::Io(error) => Failure::usage(error),
        other => Failure::check(other),
    }
}

/// Lets what outlives its operation finish, so that no replica is left behind only because the program ended.
pub async fn settle(store: &Store) {
    if time::timeout(SETTLE_TIME, store.settle()).await.is_err() {
        tracing::warn!(
            "some replicas have not taken the last writes yet; the gateway's repair, or `kv repair`, mends that"
        );
    }
}

#[derive(Serialize)]
struct Changed {
    key: String,
    bytes: u64,
    parts: u64,
}

/// Where a value comes from.
fn source(given: &Given) -> Result<Box<dyn std::io::Read>, Failure> {
    Ok(match (&given.value, &given.file) {
        (Some(value), _) => Box::new(std::io::Cursor::new(value.clone().into_bytes())),
        (None, Some(path)) => {
            let file = File::open(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
            Box::new(file)
        }
        (None, None) => Box::new(std::io::stdin()),
    })
}

async fn put(args: &KvPutArgs) -> Result<(), Failure> {
    let store = client::open(&args.address).await?;
    let mut source = source(&args.given)?;
    let stored = object::put(&store, args.key.as_bytes(), &mut source, object::PART_BYTES_MAX).await;
    let stored = stored.map_err(object_failure)?;
    settle(&store).await;
    let changed = Changed { key: args.key.clone(), bytes: stored.bytes, parts: stored.parts };
    output::report(args.common.json, &changed, |changed| {
        format!("{}: {} stored", changed.key, output::many(changed.bytes, "byte"))
    })
}

/// What a get has found.
#[derive(Serialize)]
struct Got {
    key: String,
    bytes: u64,
    /// For `kv cas`; none: an object in parts.
    version: Option<String>,
    /// Unix milliseconds; none: never.
    expiry: Option<u64>,
    tag: u32,
    /// Unless it was written to a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

async fn get(args: &KvGetArgs) -> Result<(), Failure> {
    let store = client::open(&args.address).await?;
    let key = args.key.as_bytes();
    let missing = || Failure::check(format!("no such key: {}", args.key));
    let found = store.get_versioned(key).await.map_err(|error| store_failure(error.into()))?.ok_or_else(missing)?;
    let in_parts = !args.raw && object::is_in_parts(&found.value);
    let mut got = Got {
        key: args.key.clone(),
        bytes: found.value.len() as u64,
        version: (!in_parts).then(|| found.version.to_string()),
        expiry: found.expiry,
        tag: found.tag,
        value: None,
    };
    if args.common.json && args.output.is_none() {
        let text = if in_parts { None } else { String::from_utf8(found.value.to_vec()).ok() };
        let refused = || Failure::usage(format!("{}: no text, or too long, for a report: give --output", args.key));
        got.value = Some(text.ok_or_else(refused)?);
        return output::report(true, &got, |_| String::new());
    }
    let mut sink: Box<dyn Write> = match &args.output {
        Some(path) => {
            Box::new(File::create(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?)
        }
        None => Box::new(std::io::stdout().lock()),
    };
    if in_parts {
        let read = object::get(&store, key, |part| sink.write_all(part)).await;
        got.bytes = read.map_err(object_failure)?.ok_or_else(missing)?.bytes;
    } else {
        found.value.segments().iter().try_for_each(|segment| sink.write_all(segment))?;
    }
    sink.flush()?;
    if args.output.is_none() {
        return Ok(()); // standard output holds the value
    }
    output::report(args.common.json, &got, |got| format!("{}: {}", got.key, output::many(got.bytes, "byte")))
}

#[derive(Serialize)]
struct Deleted {
    deleted: Vec<String>,
    missing: Vec<String>,
}

async fn delete(args: &KvDeleteArgs) -> Result<(), Failure> {
    let store = client::open(&args.address).await?;
    let mut deleted = Deleted { deleted: Vec::new(), missing: Vec::new() };
    for key in &args.keys {
        let was_there = object::delete(&store, key.as_bytes()).await;
        let to = if was_there.map_err(object_failure)? { &mut deleted.deleted } else { &mut deleted.missing };
        to.push(key.clone());
    }
    settle(&store).await;
    output::report(args.common.json, &deleted, |deleted| format!("{} deleted", deleted.deleted.len()))?;
    match deleted.missing.as_slice() {
        [] => Ok(()),
        missing => Err(Failure::check(format!("no such key: {}", missing.join(", ")))),
    }
}

#[derive(Serialize)]
struct Listed {
    key: String,
    bytes: usize,
}

async fn list(args: &KvListArgs) -> Result<(), Failure> {
    let store = client::open(&args.address).await?;
    let (mut cursor, mut left) = (0, args.limit.unwrap_or(u64::MAX));
    let mut all = Vec::new();
    loop {
        let page = store.list(args.prefix.as_bytes(), cursor, LIST_ENTRIES_MAX).await;
        let page = page.map_err(|error| store_failure(error.into()))?;
        let mut text = String::new();
        let shown = page.entries.iter().filter(|entry| args.parts || !object::is_part_key(&entry.key));
        for entry in shown.take(usize::try_from(left).unwrap_or(usize::MAX)) {
            left -= 1;
            let key = String::from_utf8_lossy(&entry.key).into_owned();
            if args.common.json {
                all.push(Listed { key, bytes: entry.value_len });
            } else {
                text += &format!("{}\n", key.escape_debug());
            }
        }
        output::write(text.as_bytes())?;
        match page.next {
            Some(next) if left > 0 => cursor = next,
            _ => break,
        }
    }
    if args.common.json {
        output::report(true, &all, |_| String::new())?;
    }
    Ok(())
}

async fn import(args: &KvImportArgs) -> Result<(), Failure> {
    let tree = Tree::list(&args.directory, &args.prefix)?;
    let part_bytes =
        usize::try_from(args.part_size.0).ok().filter(|bytes| (1..=object::PART_BYTES_MAX).contains(bytes));
    let part_bytes =
        part_bytes.ok_or_else(|| Failure::usage("--part-size: 1 byte to 1 MiB, the longest part there is"))?;
    let store = timed(client::open(&args.address).await?);
    let bar = output::progress("import", tree.bytes(), args.common.json);
    let imported = copy::import(&store, &tree, part_bytes, usize::from(args.depth), |bytes| bar.inc(bytes)).await;
    bar.finish_and_clear();
    let imported = imported?;
    settle(&store.inner).await;
    output::report(args.common.json, &imported, describe_import)
}
