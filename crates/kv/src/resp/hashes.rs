//! Hashes: what their commands make of an entry. Pure functions, as in [`super::strings`].

use std::borrow::Cow;

use engine::rng::SplitMix;
use xxhash_rust::xxh3::xxh3_64;

use crate::store::CURSOR_BITS;
use crate::types::VALUE_BYTES_MAX;
use crate::value::Value;

use super::backend::{Change, Entry, Failure, TAG_HASH};
use super::command::{Command, parse_i64};
use super::execute::too_slow;
use super::float::Extended;
use super::glob::Pace;
use super::hash::{self, FIELDS_MAX, Fields};
use super::keys::Moment;
use super::memory::FIELD_COST;
use super::reply::Reply;
use super::request::{parse_scan_options, syntax_error};
use super::strings::{bytes_of, wrong_type};
use super::{KEYS_MAX, REPLY_BYTES_MAX};

/// By how much a reply may be longer than the hash that it is made of, where a field is asked for more than once. Chosen: what is
/// little beside the room that was taken for it, or beside all of it.
const REPEATED_BYTES_MAX: usize = 1 << 20;

/// What a command asks of a hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// `HGET key field`
    Get,
    /// `HMGET key field…`
    GetMany,
    /// `HGETALL key`
    All,
    /// `HKEYS key`
    Fields,
    /// `HVALS key`
    Values,
    /// `HLEN key`
    Len,
    /// `HEXISTS key field`
    Exists,
    /// `HSTRLEN key field`
    StrLen,
    /// `HSCAN key cursor …`
    Scan(u64),
    /// `HRANDFIELD key`
    RandomField,
    /// `HRANDFIELD key count [WITHVALUES]`
    RandomFields {
        /// How many; negative: with repetitions.
        count: i64,
        /// With their values.
        values: bool,
    },
}

/// What a command makes of a hash.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Update {
    /// `HSET key (field value)…`, which answers how many fields are new.
    Set,
    /// `HMSET key (field value)…`, which answers `OK`.
    SetMany,
    /// `HSETNX key field value`
    SetAbsent,
    /// `HDEL key field…`
    Delete,
    /// `HINCRBY key field increment`
    Increment(i64),
    /// `HINCRBYFLOAT key field increment`
    IncrementFloat(Extended),
}

type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

fn damaged() -> Reply {
    Reply::error(
        "the hash under this key can not be read: it is damaged, or of a newer version; DEL or SET replaces it",
    )
}

/// The bytes of the hash, if it is one or nothing.
fn only_hash(entry: Option<&Entry>) -> Result<Option<Cow<'_, [u8]>>, Reply> {
    match entry {
        Some(entry) if entry.tag != TAG_HASH => Err(wrong_type()),
        entry => Ok(entry.map(|entry| bytes_of(&entry.value))),
    }
}

fn find<'a>(pairs: &Pairs<'a>, field: &[u8]) -> Option<&'a [u8]> {
    let index = pairs.binary_search_by(|(known, _)| (*known).cmp(field)).ok()?;
    Some(pairs[index].1)
}

/// `HRANDFIELD key [count [WITHVALUES]]`
pub fn parse_random(command: &Command) -> Result<Read, Reply> {
    if command.len() == 2 {
        return Ok(Read::RandomField);
    }
    let out_of_range = || Reply::error("value is out of range");
    let count = super::request::integer(command, 2)?;
    if count == i64::MIN {
        return Err(Reply::error(format_args!(
            "value is out of range, value must between {} and {}",
            -i64::MAX,
            i64::MAX
        )));
    }
    let values = match command.len() {
        3 => false,
        4 if command.arg(3).eq_ignore_ascii_case(b"WITHVALUES") => true,
        _ => return Err(syntax_error()),
    };
    if values && !(-(i64::MAX / 2)..=i64::MAX / 2).contains(&count) {
        return Err(out_of_range());
    }
    Ok(Read::RandomFields { count, values })
}

impl Read {
    /// The reply.
    pub fn reply(self, entry: Option<&Entry>, command: &Command, moment: &Moment) -> Reply {
        self.try_reply(entry, command, moment).unwrap_or_else(|error| error)
    }

    fn try_reply(self, entry: Option<&Entry>, command: &Command, moment: &Moment) -> Result<Reply, Reply> {
        let bytes = only_hash(entry)?;
        let pairs = match &bytes {
            Some(bytes) => hash::decode(bytes).ok_or_else(damaged)?,
            None => Vec::new(),
        };
        let value = |field: &[u8]| find(&pairs, field).map_or(Reply::Null, Reply::bulk);
        Ok(match self {
            Read::Get => value(command.arg(2)),
            Read::GetMany => {
                let found = || command.args_from(2).filter_map(|field| find(&pairs, field));
                let most = bytes.as_ref().map_or(0, |bytes| bytes.len()) + REPEATED_BYTES_MAX;
                if found().map(<[u8]>::len).sum::<usize>() > most {
                    return Err(Reply::error(
                        "fields that are asked for again make too long a reply: ask for each once",
                    ));
                }
                Reply::Array(command.args_from(2).map(value).collect())
            }
            Read::All => Reply::Map(pairs.iter().map(|(f, v)| (Reply::bulk(f), Reply::bulk(v))).collect()),
            Read::Fields => Reply::Array(pairs.iter().map(|(field, _)| Reply::bulk(field)).collect()),
            Read::Values => Reply::Array(pairs.iter().map(|(_, value)| Reply::bulk(value)).collect()),
            Read::Len => Reply::Integer(pairs.len() as i64),
            Read::Exists => Reply::Integer(i64::from(find(&pairs, command.arg(2)).is_some())),
            Read::StrLen => Reply::Integer(find(&pairs, command.arg(2)).map_or(0, |value| value.len() as i64)),
            Read::Scan(_) if entry.is_none() => scan_reply(0, Vec::new()),
            Read::Scan(cursor) => scan(&pairs, cursor, command)?,
            Read::RandomField if pairs.is_empty() => Reply::Null,
            Read::RandomField => Reply::bulk(pairs[moment.random as usize % pairs.len()].0),
            Read::RandomFields { count, values } => random_fields(&pairs, count, values, moment.random)?,
        })
    }
}

fn scan_reply(next: u64, found: Vec<Reply>) -> Reply {
    Reply::Array(vec![Reply::bulk(next.to_string()), Reply::Array(found)])
}

/// Fields in the order of their hashes, from the cursor's on: a field that is there throughout keeps its place, whatever comes
/// and goes beside it.
fn scan(pairs: &Pairs<'_>, cursor: u64, command: &Command) -> Result<Reply, Reply> {
    let options = parse_scan_options(command, 3, false)?;
    // 0 is the start and the end of a scan, so no field may have that place. Some clients keep cursors as floating point
    // numbers: as short as those of `SCAN`.
    let place = |field: &[u8]| (xxh3_64(field) >> (64 - CURSOR_BITS)).max(1);
    let mut rest: Vec<_> = pairs.iter().map(|pair| (place(pair.0), pair)).filter(|(at, _)| *at >= cursor).collect();
    rest.sort_unstable_by_key(|(at, _)| *at);
    let mut taken = options.count.min(rest.len());
    // Fields of one place go together, or the cursor would skip one.
    while taken > 0 && taken < rest.len() && rest[taken].0 == rest[taken - 1].0 {
        taken += 1;
    }
    let next = rest.get(taken).map_or(0, |(at, _)| *at);
    let found = rest[..taken].iter();
    Ok(scan_reply(next, found.flat_map(|(_, (field, value))| [Reply::bulk(field), Reply::bulk(value)]).collect()))
}

/// Of the fields in the reply to an `HSCAN` those that match its pattern: as many bytes of fields as a value has may be to be
/// matched, which is not done at once.
pub(super) async fn only_matching(read: Read, reply: Reply, command: &Command) -> Result<Reply, Failure> {
    let (Read::Scan(_), Reply::Array(parts)) = (read, &reply) else { return Ok(reply) };
    let pattern = parse_scan_options(command, 3, false).ok().and_then(|options| options.pattern);
    let (Some(pattern), [_, Reply::Array(found)]) = (pattern, &parts[..]) else { return Ok(reply) };
    let (mut wanted, mut pace) = (Vec::new(), Pace::new());
    for pair in found.chunks(2) {
        let [Reply::Bulk(field), _] = pair else { continue };
        if pace.matches(command.arg(pattern), field).await.ok_or_else(too_slow)? {
            wanted.extend_from_slice(pair);
        }
    }
    Ok(Reply::Array(vec![parts[0].clone(), Reply::Array(wanted)]))
}

fn random_fields(pairs: &Pairs<'_>, count: i64, values: bool, random: u64) -> Result<Reply, Reply> {
    // One number of the world's is enough for a whole reply.
    let mut random = SplitMix(random);
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let mut chosen: Vec<usize> = Vec::new();
    if count < 0 && !pairs.is_empty() {
        let longest = pairs.iter().map(|(field, value)| field.len() + value.len()).max().unwrap_or(0);
        // Room was taken for the fields that there are, each once.
        let whole = pairs.iter().map(|(field, value)| field.len() + value.len() + FIELD_COST).sum::<usize>();
        let too_long = wanted.saturating_mul(longest) > REPLY_BYTES_MAX
            || wanted.saturating_mul(longest + FIELD_COST) > whole + REPEATED_BYTES_MAX;
        if wanted > KEYS_MAX || too_long {
            return Err(Reply::error("value is out of range: so many fields make too long a reply"));
        }
        chosen.extend((0..wanted).map(|_| random.index(pairs.len())));
    } else {
        chosen.extend(0..pairs.len());
        if wanted < pairs.len() {
            for index in 0..wanted {
                chosen.swap(index, index + random.index(pairs.len() - index));
            }
            chosen.truncate(wanted);
        }
    }
    let chosen = chosen.into_iter().map(|index| pairs[index]);
    Ok(match values {
        false => Reply::Array(chosen.map(|(field, _)| Reply::bulk(field)).collect()),
        true => Reply::Pairs(chosen.map(|(field, value)| (Reply::bulk(field), Reply::bulk(value))).collect()),
    })
}

impl Update {
    /// What becomes of the key.
    pub fn change(self, entry: Option<&Entry>, command: &Command) -> Change {
        self.try_change(entry, command).unwrap_or_else(Change::Keep)
    }

    fn try_change(self, entry: Option<&Entry>, command: &Command) -> Result<Change, Reply> {
        let bytes = only_hash(entry)?;
        let mut fields: Fields<'_> = match &bytes {
            Some(bytes) => {
                hash::decode(bytes).ok_or_else(damaged)?.into_iter().map(|(f, v)| (f.into(), v.into())).collect()
            }
            None => Fields::new(),
        };
        let before = fields.len();
        let reply = match self {
            Update::Set | Update::SetMany => {
                for index in (2..command.len()).step_by(2) {
                    fields.insert(command.arg(index).into(), command.arg(index + 1).into());
                }
                if self == Update::SetMany { Reply::OK } else { Reply::Integer((fields.len() - before) as i64) }
            }
            Update::SetAbsent => {
                if fields.contains_key(command.arg(2)) {
                    return Ok(Change::Keep(Reply::Integer(0)));
                }
                fields.insert(command.arg(2).into(), command.arg(3).into());
                Reply::Integer(1)
            }
            Update::Delete => {
                command.args_from(2).for_each(|field| drop(fields.remove(field)));
                let reply = Reply::Integer((before - fields.len()) as i64);
                match (fields.len(), before) {
                    (now, before) if now == before => return Ok(Change::Keep(reply)),
                    (0, _) => return Ok(Change::Delete(reply)),
                    _ => reply,
                }
            }
            Update::Increment(delta) => increment(&mut fields, command.arg(2), delta)?,
            Update::IncrementFloat(delta) => increment_float(&mut fields, command.arg(2), delta)?,
        };
        if fields.len() > FIELDS_MAX {
            return Err(Reply::error(format_args!("a hash has at most {FIELDS_MAX} fields: use several")));
        }
        let length = hash::encoded_len(&fields);
        if length > VALUE_BYTES_MAX {
            let sentence = format_args!(
                "the hash would take {length} bytes: all its fields together have at most {VALUE_BYTES_MAX}"
            );
            return Err(Reply::error(sentence));
        }
        let value = Value::copy_from(&hash::encode(&fields));
        Ok(Change::Put(Entry { value, tag: TAG_HASH, expiry: entry.and_then(|entry| entry.expiry) }, reply))
    }
}

fn increment<'a>(fields: &mut Fields<'a>, field: &'a [u8], delta: i64) -> Result<Reply, Reply> {
    let old = match fields.get(field) {
        None => 0,
        Some(old) => parse_i64(old).ok_or_else(|| Reply::error("hash value is not an integer"))?,
    };
    let new = old.checked_add(delta).ok_or_else(|| Reply::error("increment or decrement would overflow"))?;
    fields.insert(field.into(), new.to_string().into_bytes().into());
    Ok(Reply::Integer(new))
}

fn increment_float<'a>(fields: &mut Fields<'a>, field: &'a [u8], delta: Extended) -> Result<Reply, Reply> {
    let old = fields.get(field).map_or(Some(Extended::ZERO), |old| Extended::parse(old));
    let old = old.ok_or_else(|| Reply::error("hash value is not a float"))?;
    let new = old.plus(delta).ok_or_else(|| Reply::error("increment would produce NaN or Infinity"))?.to_string();
    fields.insert(field.into(), new.clone().into_bytes().into());
    Ok(Reply::bulk(new))
}
