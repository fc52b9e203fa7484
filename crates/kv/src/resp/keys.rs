//! Commands that mind the key and not what it holds: expiry, type, how it is kept. Pure functions, as in [`super::strings`].

use super::backend::{Change, Entry, Look, TAG_HASH, TAG_STRING};
use super::command::{Command, c_string, parse_i64};
use super::reply::Reply;
use super::request::{integer, syntax_error};
use super::strings::{not_an_integer, wrong_type};

/// What a command may go by beside the entry.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Unix milliseconds.
    pub now_ms: u64,
    /// A random number.
    pub random: u64,
}

impl Moment {
    /// The present one.
    pub fn now() -> Moment {
        Moment { now_ms: now_ms(), random: engine::task::random_u64() }
    }
}

/// Unix milliseconds.
pub fn now_ms() -> u64 {
    u64::try_from(engine::time::unix_time().as_millis()).unwrap_or(u64::MAX)
}

/// What a command asks of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// `TYPE key`
    Type,
    /// `TTL`, `PTTL`, `EXPIRETIME`, `PEXPIRETIME`
    Expiry {
        /// In milliseconds, not seconds.
        milliseconds: bool,
        /// A Unix time, not what is left.
        absolute: bool,
    },
    /// `OBJECT ENCODING key`
    Encoding,
    /// `OBJECT REFCOUNT key`
    RefCount,
    /// `OBJECT FREQ key`
    Frequency,
    /// `OBJECT IDLETIME key`
    IdleTime,
    /// `MEMORY USAGE key`
    MemoryUsage,
    /// `STRLEN key`
    StrLen,
}

/// What a command makes of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// `EXPIRE` and its kin.
    Expire {
        /// Unix milliseconds.
        at: i64,
        /// When it applies.
        conditions: Conditions,
    },
    /// `PERSIST key`
    Persist,
    /// `DEL key`
    Delete,
}

/// When `EXPIRE` applies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Conditions {
    /// Only without an expiry.
    nx: bool,
    /// Only with one.
    xx: bool,
    /// Only if it is later than the present one; none is never.
    gt: bool,
    /// Only if it is earlier.
    lt: bool,
}

/// How long a new value lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// For ever.
    Never,
    /// As long as the one before it would have.
    Keep,
    /// Until then, in Unix milliseconds.
    At(u64),
}

impl Lifetime {
    /// The expiry of what takes the place of `entry`.
    pub fn expiry(self, entry: Option<&Entry>) -> Option<u64> {
        match self {
            Lifetime::Never => None,
            Lifetime::Keep => entry.and_then(|entry| entry.expiry),
            Lifetime::At(at) => Some(at),
        }
    }
}

/// Why a time is no good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeError {
    /// Not a number.
    NotAnInteger,
    /// Zero, negative or past all bounds.
    OutOfRange,
}

impl TimeError {
    /// Redis's sentence.
    pub fn reply(self, command: &str) -> Reply {
        match self {
            TimeError::NotAnInteger => not_an_integer(),
            TimeError::OutOfRange => Reply::error(format_args!("invalid expire time in '{command}' command")),
        }
    }
}

/// The unit of a time, and where it counts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    /// Milliseconds, not seconds.
    pub milliseconds: bool,
    /// From 1970, not from now.
    pub absolute: bool,
}

impl Unit {
    /// Seconds from now.
    pub const EX: Unit = Unit { milliseconds: false, absolute: false };
    /// Milliseconds from now.
    pub const PX: Unit = Unit { milliseconds: true, absolute: false };
    /// Unix seconds.
    pub const EXAT: Unit = Unit { milliseconds: false, absolute: true };
    /// Unix milliseconds.
    pub const PXAT: Unit = Unit { milliseconds: true, absolute: true };

    /// The unit that an option of `SET` or `GETEX` names.
    pub fn of_option(option: &[u8]) -> Option<Unit> {
        let known = [(&b"EX"[..], Unit::EX), (b"PX", Unit::PX), (b"EXAT", Unit::EXAT), (b"PXAT", Unit::PXAT)];
        known.into_iter().find(|(name, _)| option.eq_ignore_ascii_case(name)).map(|(_, unit)| unit)
    }

    /// Unix milliseconds of `number`, if they are within bounds.
    fn unix_ms(self, number: i64) -> Option<i64> {
        let ms = if self.milliseconds { number } else { number.checked_mul(1000)? };
        if self.absolute { Some(ms) } else { ms.checked_add(i64::try_from(now_ms()).ok()?) }
    }

    /// The lifetime that `text` gives a new value.
    pub fn lifetime(self, text: &[u8]) -> Result<Lifetime, TimeError> {
        let number = parse_i64(text).ok_or(TimeError::NotAnInteger)?;
        let at = self.unix_ms(number).filter(|_| number > 0).ok_or(TimeError::OutOfRange)?;
        Ok(Lifetime::At(u64::try_from(at).map_err(|_| TimeError::OutOfRange)?))
    }
}

/// `EXPIRE key time [NX | XX | GT | LT]` and its kin.
pub fn parse_expire(name: &str, command: &Command, unit: Unit) -> Result<Update, Reply> {
    let mut conditions = Conditions::default();
    for option in command.args_from(3) {
        match &option.to_ascii_lowercase()[..] {
            b"nx" => conditions.nx = true,
            b"xx" => conditions.xx = true,
            b"gt" => conditions.gt = true,
            b"lt" => conditions.lt = true,
            _ => return Err(Reply::error_bytes(&[b"Unsupported option ", c_string(option)])),
        }
    }
    if conditions.nx && (conditions.xx || conditions.gt || conditions.lt) {
        return Err(Reply::error("NX and XX, GT or LT options at the same time are not compatible"));
    }
    if conditions.gt && conditions.lt {
        return Err(Reply::error("GT and LT options at the same time are not compatible"));
    }
    let number = integer(command, 2)?;
    let at = unit.unix_ms(number).ok_or_else(|| TimeError::OutOfRange.reply(name))?;
    Ok(Update::Expire { at, conditions })
}

/// `OBJECT subcommand key`, whose arity fits.
pub fn parse_object(subcommand: &[u8]) -> Option<Read> {
    Some(match subcommand {
        b"encoding" => Read::Encoding,
        b"refcount" => Read::RefCount,
        b"freq" => Read::Frequency,
        b"idletime" => Read::IdleTime,
        _ => return None,
    })
}

/// `MEMORY USAGE key [SAMPLES count]`: everything is counted, whatever the samples.
pub fn parse_memory_usage(command: &Command) -> Result<Read, Reply> {
    let mut at = 3;
    while at < command.len() {
        if !command.arg(at).eq_ignore_ascii_case(b"SAMPLES") || at + 1 == command.len() {
            return Err(syntax_error());
        }
        if integer(command, at + 1)? < 0 {
            return Err(syntax_error());
        }
        at += 2;
    }
    Ok(Read::MemoryUsage)
}

/// The name of a type.
pub fn type_name(tag: u32) -> &'static str {
    match tag {
        TAG_STRING => "string",
        TAG_HASH => "hash",
        _ => "other",
    }
}

impl Read {
    /// The reply.
    pub fn reply(self, entry: Option<&Look>, command: &Command, moment: &Moment) -> Reply {
        let Some(entry) = entry else {
            return match self {
                Read::StrLen => Reply::Integer(0),
                Read::Type => Reply::Status("none".into()),
                Read::Expiry { .. } => Reply::Integer(-2),
                _ => Reply::Null,
            };
        };
        match self {
            Read::StrLen if entry.tag != TAG_STRING => wrong_type(),
            Read::StrLen => Reply::Integer(entry.length as i64),
            Read::Type => Reply::Status(type_name(entry.tag).into()),
            Read::Expiry { milliseconds, absolute } => {
                let Some(at) = entry.expiry else { return Reply::Integer(-1) };
                let ms = if absolute { at } else { at.saturating_sub(moment.now_ms) };
                let shown = if milliseconds { ms } else { (ms / 1000) + u64::from(ms % 1000 >= 500) };
                Reply::Integer(i64::try_from(shown).unwrap_or(i64::MAX))
            }
            // What it is: bytes in a row, of a string or of field after field.
            Read::Encoding => Reply::bulk(if entry.tag == TAG_HASH { "listpack" } else { "raw" }),
            Read::RefCount => Reply::Integer(1),
            Read::Frequency => Reply::error(
                "An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
                 between policies at runtime LRU and LFU data will take some time to adjust.",
            ),
            Read::IdleTime => Reply::error("idle times are not tracked here: a read changes nothing"),
            Read::MemoryUsage => {
                let bytes = crate::page::ENTRY_FIXED_BYTES + command.arg(2).len() + entry.length;
                Reply::Integer(bytes as i64)
            }
        }
    }
}

impl Update {
    /// What becomes of the key.
    pub fn change(self, entry: Option<&Entry>, moment: &Moment) -> Change {
        let Some(entry) = entry else { return Change::Keep(Reply::Integer(0)) };
        match self {
            Update::Delete => Change::Delete(Reply::Integer(1)),
            Update::Persist if entry.expiry.is_none() => Change::Keep(Reply::Integer(0)),
            Update::Persist => Change::Put(Entry { expiry: None, ..entry.clone() }, Reply::Integer(1)),
            Update::Expire { at, conditions } => {
                if !conditions.hold(entry.expiry, at) {
                    return Change::Keep(Reply::Integer(0));
                }
                match u64::try_from(at) {
                    Ok(at) if at > moment.now_ms => {
                        Change::Put(Entry { expiry: Some(at), ..entry.clone() }, Reply::Integer(1))
                    }
                    _ => Change::Delete(Reply::Integer(1)),
                }
            }
        }
    }
}

impl Conditions {
    fn hold(self, present: Option<u64>, at: i64) -> bool {
        let present = present.map(|present| i64::try_from(present).unwrap_or(i64::MAX));
        let refused = (self.nx && present.is_some())
            || (self.xx && present.is_none())
            || (self.gt && present.is_none_or(|present| at <= present))
            || (self.lt && present.is_some_and(|present| at >= present));
        !refused
    }
}
