//! `yagura kv add`, `replace`, `cas`, `incr`, `append` and `expire`: changes that depend on what is there, at once.
//!
//! They work on single values. An object in parts is replaced by one, and its parts are removed; it can't be appended to.

use std::io::Read;

use engine::time;
use kv::object;
use kv::store::{CasOutcome, Change, Increment, PutOptions, Versioned};
use kv::{StoreError, Value};
use serde::Serialize;

use crate::cli::{Given, KvCasArgs, KvExpireArgs, KvIncrArgs, KvPutArgs};
use crate::exit::Failure;
use crate::{client, output};

use super::{object_failure, settle, source, store_failure};

/// What a change came to.
#[derive(Serialize, Default)]
struct Outcome {
    key: String,
    /// Whether the key was changed.
    done: bool,
    /// The version that it has now, of `cas`.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// The sum, of `incr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<i64>,
    /// Bytes of the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    /// When it ends, in Unix milliseconds, of `expire`.
    #[serde(skip_serializing_if = "Option::is_none")]
    expiry: Option<u64>,
}

/// When `add` and `replace` store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// There is no value.
    Missing,
    /// There is one.
    There,
}

/// What was found, where it must not be changed so.
#[derive(Clone, Copy)]
enum Refused {
    Missing,
    There,
    InParts,
    Tagged(u32),
}

impl Refused {
    fn failure(self, key: &str) -> Failure {
        match self {
            Refused::Missing => Failure::check(format!("no such key: {key}")),
            Refused::There => Failure::check(format!("{key}: there is one already")),
            Refused::InParts => {
                Failure::check(format!("{key}: is stored in parts: read it, change it and `kv put` it"))
            }
            Refused::Tagged(tag) => Failure::check(format!("{key}: holds no plain bytes (tag {tag}), such as a hash")),
        }
    }
}

fn failure(error: StoreError) -> Failure {
    store_failure(error.into())
}

/// The value that was given, as a single one.
fn value_of(given: &Given) -> Result<Value, Failure> {
    let mut bytes = Vec::new();
    // One byte more shows that there are too many.
    source(given)?.take(kv::VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    let value = Value::copy_from(&bytes);
    match object::is_in_parts(&value) {
        true => {
            Err(Failure::usage("the value begins as the list of an object's parts does: `kv put` stores such ones"))
        }
        false => Ok(value),
    }
}

/// Says what was done, or why not: the exit status tells as well.
fn report(json: bool, outcome: &Outcome, people: String, refused: Option<Failure>) -> Result<(), Failure> {
    if json || refused.is_none() {
        output::report(json, outcome, |_| people)?;
    }
    refused.map_or(Ok(()), Err)
}

/// `add` and `replace`.
pub async fn set(args: &KvPutArgs, condition: Condition) -> Result<(), Failure> {
    let value = value_of(&args.given)?;
    let store = client::open(&args.address).await?;
    let decide = |found: Option<&Versioned>| match (found, condition) {
        (None, Condition::There) => Change::Keep(Err(Refused::Missing)),
        (Some(_), Condition::Missing) => Change::Keep(Err(Refused::There)),
        (before, _) => Change::Put {
            value: value.clone(),
            options: PutOptions::default(),
            result: Ok(before.map(|before| before.value.clone())),
        },
    };
    let result = store.update(args.key.as_bytes(), decide).await.map_err(failure)?;
    let refused = match result {
        Ok(before) => {
            let before = before.unwrap_or_default();
            object::delete_parts_of(&store, args.key.as_bytes(), &before).await.map_err(object_failure)?;
            settle(&store).await;
            None
        }
        Err(refused) => Some(refused.failure(&args.key)),
    };
    let (key, done) = (args.key.clone(), refused.is_none());
    let outcome = Outcome { key, done, bytes: done.then_some(value.len()), ..Outcome::default() };
    report(
        args.common.json,
        &outcome,
        format!("{}: {} stored", args.key, output::many(value.len() as u64, "byte")),
        refused,
    )
}

pub async fn cas(args: &KvCasArgs) -> Result<(), Failure> {
    let value = value_of(&args.given)?;
    let store = client::open(&args.address).await?;
    let key = args.key.as_bytes();
    let before = store.get_versioned(key).await.map_err(failure)?.filter(|found| found.version == args.version);
    let length = value.len();
    let done = store.compare_and_set(key, args.version, value, PutOptions::default()).await.map_err(failure)?;
    let mut outcome = Outcome { key: args.key.clone(), ..Outcome::default() };
    let refused = match done {
        CasOutcome::Stored(version) => {
            if let Some(before) = before {
                object::delete_parts_of(&store, key, &before.value).await.map_err(object_failure)?;
            }
            settle(&store).await;
            (outcome.done, outcome.bytes, outcome.version) = (true, Some(length), Some(version.to_string()));
            None
        }
        CasOutcome::Changed(Some(version)) => {
            outcome.version = Some(version.to_string());
            Some(Failure::check(format!("{}: has another version: {version}", args.key)))
        }
        CasOutcome::Changed(None) => Some(Refused::Missing.failure(&args.key)),
    };
    let people = format!(
        "{}: {} stored, version {}",
        args.key,
        output::many(length as u64, "byte"),
        outcome.version.as_deref().unwrap_or("?")
    );
    report(args.common.json, &outcome, people, refused)
}

pub async fn incr(args: &KvIncrArgs) -> Result<(), Failure> {
    let store = client::open(&args.address).await?;
    let done = store.increment(args.key.as_bytes(), args.delta, Some(args.initial)).await.map_err(failure)?;
    let (value, refused) = match done {
        Increment::Value(sum) => (Some(sum), None),
        Increment::Missing => (None, Some(Refused::Missing.failure(&args.key))),
        Increment::NotANumber => {
            (None, Some(Failure::check(format!("{}: holds no decimal number of 64 bits", args.key))))
        }
        Increment::Overflow => (None, Some(Failure::check(format!("{}: the sum does not fit 64 bits", args.key)))),
    };
    settle(&store).await;
    let outcome = Outcome { key: args.key.clone(), done: value.is_some(), value, ..Outcome::default() };
    report(args.common.json, &outcome, value.map(|sum| sum.to_string()).unwrap_or_default(), refused)
}

pub async fn append(args: &KvPutArgs) -> Result<(), Failure> {
    let piece = value_of(&args.given)?;
    let store = client::open(&args.address).await?;
    let decide = |found: Option<&Versioned>| {
        let (before, options) = match found {
            Some(found) if object::is_in_parts(&found.value) => return Change::Keep(Err(Refused::InParts)),
            Some(found) if found.tag != 0 => return Change::Keep(Err(Refused::Tagged(found.tag))),
            Some(found) => (found.value.segments(), PutOptions { expiry: found.expiry, tag: found.tag }),
            None => (&[][..], PutOptions::default()),
        };
        let value = Value::new(before.iter().chain(piece.segments()).cloned().collect());
        let length = value.len();
        Change::Put { value, options, result: Ok(length) }
    };
    let result = store.update(args.key.as_bytes(), decide).await.map_err(failure)?;
    settle(&store).await;
    let refused = result.err().map(|refused| refused.failure(&args.key));
    let (key, bytes) = (args.key.clone(), result.ok());
    let people = format!("{key}: {} bytes", bytes.unwrap_or(0));
    report(args.common.json, &Outcome { key, done: bytes.is_some(), bytes, ..Outcome::default() }, people, refused)
}

pub async fn expire(args: &KvExpireArgs) -> Result<(), Failure> {
    let store = client::open(&args.address).await?;
    let after = |seconds: u32| time::unix_time().as_millis() as u64 + u64::from(seconds) * 1000;
    let expiry = args.seconds.filter(|_| !args.never).map(after);
    let decide = |found: Option<&Versioned>| match found {
        None => Change::Keep(Err(Refused::Missing)),
        // Its parts would stay, and nobody know of them.
        Some(found) if object::is_in_parts(&found.value) => Change::Keep(Err(Refused::InParts)),
        Some(found) => {
            let options = PutOptions { expiry, tag: found.tag };
            Change::Put { value: found.value.clone(), options, result: Ok(()) }
        }
    };
    let result = store.update(args.key.as_bytes(), decide).await.map_err(failure)?;
    settle(&store).await;
    let refused = result.err().map(|refused| refused.failure(&args.key));
    let (key, done) = (args.key.clone(), refused.is_none());
    let people = match args.seconds {
        Some(seconds) => format!("{key}: ends in {seconds} s"),
        None => format!("{key}: does not end by itself"),
    };
    report(args.common.json, &Outcome { key, done, expiry, ..Outcome::default() }, people, refused)
}
