//! Strings: what their commands make of an entry. Pure functions of the entry, the command and the moment.

use std::borrow::Cow;

use engine::{Buf, View};

use crate::types::VALUE_BYTES_MAX;
use crate::value::Value;

use super::backend::{Change, Entry, TAG_STRING};
use super::command::{Command, parse_i64};
use super::float::Extended;
use super::keys::{Lifetime, Moment, TimeError};
use super::reply::Reply;

/// What a command asks of a string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// `GET key`
    Get,
    /// `GETRANGE key start end`, both inclusive, negative from the end
    GetRange {
        /// First byte.
        start: i64,
        /// Last byte.
        end: i64,
    },
}

/// What a command makes of a string.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Update {
    /// `SET key value` with conditions, and `SETNX`.
    Set(SetOptions),
    /// `GETSET key value`
    GetSet,
    /// `GETDEL key`
    GetDel,
    /// `GETEX key` with a lifetime
    GetEx(Result<Lifetime, TimeError>),
    /// `APPEND key value`
    Append,
    /// `SETRANGE key offset value`
    SetRange(u64),
    /// `INCR`, `DECR`, `INCRBY`, `DECRBY`
    Increment(i64),
    /// `INCRBYFLOAT key increment`; none: it was no number
    IncrementFloat(Option<Extended>),
}

/// The options of `SET`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetOptions {
    /// Only if there is no such key.
    pub absent: bool,
    /// Only if there is one.
    pub present: bool,
    /// Answer what was there.
    pub get: bool,
    /// How long it lives.
    pub lifetime: Lifetime,
    /// `SETNX`: numbers in place of `OK` and null.
    pub numbers: bool,
}

/// Redis's answer to a command for another type.
pub fn wrong_type() -> Reply {
    Reply::Error("WRONGTYPE Operation against a key holding the wrong kind of value".into())
}

/// Redis's answer to a value that would be too long.
pub fn too_long() -> Reply {
    Reply::error("string exceeds maximum allowed size (proto-max-bulk-len)")
}

/// A plain string that lives for ever.
pub fn string(bytes: &[u8]) -> Entry {
    Entry { value: Value::copy_from(bytes), expiry: None, tag: TAG_STRING }
}

/// The bytes of a value, copied only where they lie in pieces.
pub fn bytes_of(value: &Value) -> Cow<'_, [u8]> {
    match value.segments() {
        [] => Cow::Borrowed(&[]),
        [segment] => Cow::Borrowed(segment),
        _ => Cow::Owned(value.to_vec()),
    }
}

/// The entry, if it is a string or nothing.
fn only_string(entry: Option<&Entry>) -> Result<Option<&Entry>, Reply> {
    match entry {
        Some(entry) if entry.tag != TAG_STRING => Err(wrong_type()),
        entry => Ok(entry),
    }
}

fn value_of(entry: Option<&Entry>) -> Reply {
    entry.map_or(Reply::Null, |entry| Reply::Value(entry.value.clone()))
}

impl Read {
    /// The reply.
    pub fn reply(self, entry: Option<&Entry>) -> Reply {
        let entry = match only_string(entry) {
            Ok(entry) => entry,
            Err(reply) => return reply,
        };
        match self {
            Read::Get => value_of(entry),
            Read::GetRange { start, end } => entry.map_or(Reply::bulk(""), |entry| range(&entry.value, start, end)),
        }
    }
}

impl Update {
    /// Whether another value takes the place of the one that the reply is. (`GETDEL` and `GETEX` make none.)
    pub fn tells_what_was(&self) -> bool {
        matches!(self, Update::GetSet | Update::Set(SetOptions { get: true, .. }))
    }

    /// What becomes of the key.
    pub fn change(self, entry: Option<&Entry>, command: &Command, moment: &Moment) -> Change {
        let result = match self {
            // Without GET the type of what was there does not matter.
            Update::Set(options) => set(entry, command, options),
            _ => only_string(entry).and_then(|entry| match self {
                Update::GetSet => Ok(Change::Put(string(command.arg(2)), value_of(entry))),
                Update::GetDel => Ok(entry.map_or(Change::Keep(Reply::Null), |_| Change::Delete(value_of(entry)))),
                Update::GetEx(lifetime) => get_ex(entry, lifetime, moment),
                Update::Append => append(entry, command.arg(2)),
                Update::SetRange(offset) => set_range(entry, offset, command.arg(3)),
                Update::Increment(delta) => increment(entry, delta),
                Update::IncrementFloat(delta) => increment_float(entry, delta),
                Update::Set(_) => set(entry, command, SetOptions::PLAIN),
            }),
        };
        result.unwrap_or_else(Change::Keep)
    }
}

impl SetOptions {
    /// `SET key value`
    pub const PLAIN: SetOptions =
        SetOptions { absent: false, present: false, get: false, lifetime: Lifetime::Never, numbers: false };

    /// Whether what is there does not matter.
    pub fn is_blind(&self) -> bool {
        !self.absent && !self.present && !self.get && self.lifetime != Lifetime::Keep
    }
}

fn set(entry: Option<&Entry>, command: &Command, options: SetOptions) -> Result<Change, Reply> {
    let old = if options.get { Some(value_of(only_string(entry)?)) } else { None };
    let refused = (options.absent && entry.is_some()) || (options.present && entry.is_none());
    let reply = match (old, options.numbers) {
        (Some(old), _) => old,
        (None, true) => Reply::Integer(i64::from(!refused)),
        (None, false) if refused => Reply::Null,
        (None, false) => Reply::OK,
    };
    if refused {
        return Ok(Change::Keep(reply));
    }
    let expiry = options.lifetime.expiry(entry);
    Ok(Change::Put(Entry { expiry, ..string(command.arg(2)) }, reply))
}

fn get_ex(entry: Option<&Entry>, lifetime: Result<Lifetime, TimeError>, moment: &Moment) -> Result<Change, Reply> {
    // A key that is not there is answered before a wrong time is looked at, as in Redis.
    let Some(entry) = entry else { return Ok(Change::Keep(Reply::Null)) };
    let expiry = lifetime.map_err(|error| error.reply("getex"))?.expiry(Some(entry));
    let reply = Reply::Value(entry.value.clone());
    Ok(match expiry {
        Some(at) if at <= moment.now_ms => Change::Delete(reply),
        expiry if expiry == entry.expiry => Change::Keep(reply),
        expiry => Change::Put(Entry { expiry, ..entry.clone() }, reply),
    })
}

/// The entry with another value: all else stays, above all the expiry.
fn with_value(entry: Option<&Entry>, value: Value) -> Entry {
    let (expiry, tag) = entry.map_or((None, TAG_STRING), |entry| (entry.expiry, entry.tag));
    Entry { value, expiry, tag }
}

fn with_bytes(entry: Option<&Entry>, bytes: &[u8]) -> Entry {
    with_value(entry, Value::copy_from(bytes))
}

fn append(entry: Option<&Entry>, more: &[u8]) -> Result<Change, Reply> {
    let before = entry.map_or(&[][..], |entry| entry.value.segments());
    let length = before.iter().map(|segment| segment.len()).sum::<usize>() + more.len();
    if length > VALUE_BYTES_MAX {
        return Err(too_long());
    }
    let reply = Reply::Integer(length as i64);
    if more.is_empty() && entry.is_some() {
        return Ok(Change::Keep(reply));
    }
    let value = Value::new(before.iter().chain(Value::copy_from(more).segments()).cloned().collect());
    Ok(Change::Put(with_value(entry, value), reply))
}

fn set_range(entry: Option<&Entry>, offset: u64, part: &[u8]) -> Result<Change, Reply> {
    if part.is_empty() {
        return Ok(Change::Keep(Reply::Integer(entry.map_or(0, |entry| entry.value.len() as i64))));
    }
    let offset = usize::try_from(offset).map_err(|_| too_long())?;
    if offset.saturating_add(part.len()) > VALUE_BYTES_MAX {
        return Err(too_long());
    }
    let value = entry.map_or_else(Value::default, |entry| entry.value.clone()).overwritten(offset, part);
    let reply = Reply::Integer(value.len() as i64);
    Ok(Change::Put(with_value(entry, value), reply))
}

fn increment(entry: Option<&Entry>, delta: i64) -> Result<Change, Reply> {
    let old = match entry {
        None => 0,
        Some(entry) => parse_i64(&bytes_of(&entry.value)).ok_or_else(not_an_integer)?,
    };
    let new = old.checked_add(delta).ok_or_else(|| Reply::error("increment or decrement would overflow"))?;
    Ok(Change::Put(with_bytes(entry, new.to_string().as_bytes()), Reply::Integer(new)))
}

fn increment_float(entry: Option<&Entry>, delta: Option<Extended>) -> Result<Change, Reply> {
    let old = entry.map_or(Some(Extended::ZERO), |entry| Extended::parse(&bytes_of(&entry.value)));
    let (Some(old), Some(delta)) = (old, delta) else { return Err(not_a_float()) };
    let new = old.plus(delta).ok_or_else(|| Reply::error("increment would produce NaN or Infinity"))?.to_string();
    Ok(Change::Put(with_bytes(entry, new.as_bytes()), Reply::bulk(new)))
}

/// Redis's sentence for what should be an integer.
pub fn not_an_integer() -> Reply {
    Reply::error("value is not an integer or out of range")
}

/// Redis's sentence for what should be a floating point number.
pub fn not_a_float() -> Reply {
    Reply::error("value is not a valid float")
}

/// `start` to `end`, both inclusive, negative ones counted from the end (Redis's `GETRANGE`).
fn range(value: &Value, start: i64, end: i64) -> Reply {
    let length = value.len() as i64;
    let place = |index: i64| if index < 0 { length.saturating_add(index).max(0) } else { index };
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
        // A slice keeps all of its segment, which is more than its reply is taken to hold.
        if to - from == segment.len() {
            parts.push(segment.clone());
        } else if from < to {
            parts.push(View::from(Buf::copy_from(&segment[from..to])));
        }
    }
    Reply::Value(Value::new(parts))
}
