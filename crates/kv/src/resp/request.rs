//! What a command asks of the store, parsed once; with Redis's own sentences where it cannot be.

use xxhash_rust::xxh3::xxh3_64;

use super::access::Access;
use super::command::{self, Command, c_string, parse_i64};
use super::commands::{CommandSpec, Kind};
use super::float::Extended;
use super::glob::PATTERN_BYTES_MAX;
use super::keys::{self, Lifetime, Unit};
use super::reply::Reply;
use super::strings::{self, SetOptions};
use super::{SCAN_COUNT_MAX, hashes};

/// What is read of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// A string.
    String(strings::Read),
    /// A hash.
    Hash(hashes::Read),
    /// Whatever it holds.
    Key(keys::Read),
}

/// What becomes of one key, by what is there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Update {
    /// A string.
    String(strings::Update),
    /// A hash.
    Hash(hashes::Update),
    /// Whatever it holds.
    Key(keys::Update),
}

/// Work for the store. Arguments stay in the [`Command`]; here are the parsed numbers and the places of the rest.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Request {
    /// Reads one key.
    Read(Read),
    /// Changes one key by what is there.
    Update(Update),
    /// Sets one key, whatever is there: `SET`, `SETEX`, `PSETEX`.
    Put {
        /// Which argument is the value.
        value: usize,
        /// How long it lives.
        lifetime: Lifetime,
    },
    /// `MGET key…`
    MGet,
    /// `MSET (key value)…`
    MSet,
    /// `DEL key…`, `UNLINK key…`
    Delete,
    /// `EXISTS key…`, `TOUCH key…`
    Exists,
    /// `KEYS pattern`
    Keys,
    /// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE t]`
    Scan(u64, ScanOptions),
    /// `RANDOMKEY`
    RandomKey,
    /// `DBSIZE`
    DbSize,
    /// `INFO [section…]`
    Info,
    /// `TIME`
    Time,
    /// `WAIT replicas timeout`
    Wait,
    /// A command of this name that needs no store, and whose reply may be long.
    Answer(&'static str),
}

/// The options of `SCAN` and `HSCAN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanOptions {
    /// Which argument is the pattern.
    pub pattern: Option<usize>,
    /// How many to look at.
    pub count: usize,
    /// Which argument is the name of the wanted type.
    pub type_name: Option<usize>,
}

impl Read {
    /// Which argument is the key.
    pub fn key_place(self) -> usize {
        use keys::Read::{Encoding, Frequency, IdleTime, MemoryUsage, RefCount};
        match self {
            Read::Key(Encoding | RefCount | Frequency | IdleTime | MemoryUsage) => 2,
            _ => 1,
        }
    }
}

impl Request {
    /// What this request, with the arguments in `command`, touches.
    pub fn access(self, command: &Command) -> Access {
        let key = |place: usize| xxh3_64(command.arg(place));
        match self {
            Request::Read(read) => Access::Read(key(read.key_place())),
            Request::Update(_) | Request::Put { .. } => Access::Write(key(1)),
            Request::MGet | Request::Exists if command.len() == 2 => Access::Read(key(1)),
            Request::Delete if command.len() == 2 => Access::Write(key(1)),
            Request::MSet if command.len() == 3 => Access::Write(key(1)),
            Request::MGet | Request::Exists | Request::Keys | Request::Scan(..) => Access::ReadAny,
            Request::DbSize | Request::RandomKey => Access::ReadAny,
            // After all writes before it.
            Request::Wait => Access::ReadAny,
            Request::MSet | Request::Delete => Access::WriteAny,
            Request::Info | Request::Time | Request::Answer(_) => Access::None,
        }
    }

    /// The request in `command`, whose name is `spec`'s and whose arity fits. `Ok(None)`: the connection answers it itself.
    pub fn parse(spec: &CommandSpec, command: &Command) -> Result<Option<Request>, Reply> {
        if let Kind::Refused(why) = spec.kind {
            return Err(Reply::error(format_args!("{} {why}", spec.name.to_uppercase())));
        }
        if spec.group == "hash" {
            return parse_hash(spec.name, command).map(Some);
        }
        Ok(Some(match spec.name {
            "mget" => Request::MGet,
            "mset" if command.len().is_multiple_of(2) => return Err(wrong_arity(spec.name)),
            "mset" => Request::MSet,
            "del" | "unlink" => Request::Delete,
            "exists" | "touch" => Request::Exists,
            "keys" => check_pattern(command.arg(1)).map(|()| Request::Keys)?,
            "scan" => Request::Scan(parse_cursor(command, 1)?, parse_scan_options(command, 2, true)?),
            "randomkey" => Request::RandomKey,
            "dbsize" => Request::DbSize,
            "info" => Request::Info,
            "time" => Request::Time,
            "wait" => parse_wait(command)?,
            name => match parse_key(name, command)? {
                Some(request) => request,
                None => return parse_string(name, command),
            },
        }))
    }
}

fn parse_key(name: &str, command: &Command) -> Result<Option<Request>, Reply> {
    let expiry = |milliseconds, absolute| Request::Read(Read::Key(keys::Read::Expiry { milliseconds, absolute }));
    let expire = |unit| Ok(Some(Request::Update(Update::Key(keys::parse_expire(name, command, unit)?))));
    Ok(Some(match name {
        "type" => Request::Read(Read::Key(keys::Read::Type)),
        "ttl" => expiry(false, false),
        "pttl" => expiry(true, false),
        "expiretime" => expiry(false, true),
        "pexpiretime" => expiry(true, true),
        "expire" => return expire(Unit::EX),
        "pexpire" => return expire(Unit::PX),
        "expireat" => return expire(Unit::EXAT),
        "pexpireat" => return expire(Unit::PXAT),
        "persist" => Request::Update(Update::Key(keys::Update::Persist)),
        "object" => return parse_object(command),
        "memory" => return parse_memory(command),
        _ => return Ok(None),
    }))
}

fn parse_object(command: &Command) -> Result<Option<Request>, Reply> {
    let subcommand = command.arg(1).to_ascii_lowercase();
    match keys::parse_object(&subcommand) {
        Some(read) if command.len() == 3 => Ok(Some(Request::Read(Read::Key(read)))),
        Some(_) => Err(wrong_arity(&format!("object|{}", String::from_utf8_lossy(&subcommand)))),
        None => Ok(None),
    }
}

fn parse_memory(command: &Command) -> Result<Option<Request>, Reply> {
    match command.arg(1).eq_ignore_ascii_case(b"USAGE") {
        true if command.len() < 3 => Err(wrong_arity("memory|usage")),
        true => keys::parse_memory_usage(command).map(|read| Some(Request::Read(Read::Key(read)))),
        false => Ok(None),
    }
}

fn parse_string(name: &str, command: &Command) -> Result<Option<Request>, Reply> {
    use strings::{Read as R, Update as U};
    let read = |read| Request::Read(Read::String(read));
    let update = |update| Request::Update(Update::String(update));
    Ok(Some(match name {
        "get" => read(R::Get),
        "strlen" => Request::Read(Read::Key(keys::Read::StrLen)),
        "getrange" | "substr" => read(R::GetRange { start: integer(command, 2)?, end: integer(command, 3)? }),
        "set" => parse_set(command)?,
        "setnx" => update(U::Set(SetOptions { absent: true, numbers: true, ..SetOptions::PLAIN })),
        "setex" | "psetex" => {
            let unit = if name == "setex" { Unit::EX } else { Unit::PX };
            let lifetime = unit.lifetime(command.arg(2)).map_err(|error| error.reply(name))?;
            Request::Put { value: 3, lifetime }
        }
        "getset" => update(U::GetSet),
        "getdel" => update(U::GetDel),
        "getex" => parse_get_ex(command)?,
        "append" => update(U::Append),
        "setrange" => {
            let offset = u64::try_from(integer(command, 2)?).map_err(|_| Reply::error("offset is out of range"))?;
            update(U::SetRange(offset))
        }
        "incr" => update(U::Increment(1)),
        "decr" => update(U::Increment(-1)),
        "incrby" => update(U::Increment(integer(command, 2)?)),
        "decrby" => {
            let delta = integer(command, 2)?.checked_neg();
            update(U::Increment(delta.ok_or_else(|| Reply::error("decrement would overflow"))?))
        }
        // A number that is none is told after a key of another type is, as in Redis.
        "incrbyfloat" => update(U::IncrementFloat(Extended::parse(command.arg(2)))),
        _ => return Ok(None),
    }))
}

fn parse_hash(name: &str, command: &Command) -> Result<Request, Reply> {
    use hashes::{Read as R, Update as U};
    let read = |read| Request::Read(Read::Hash(read));
    let update = |update| Request::Update(Update::Hash(update));
    Ok(match name {
        "hset" | "hmset" if !command.len().is_multiple_of(2) => return Err(wrong_arity(name)),
        "hset" => update(U::Set),
        "hmset" => update(U::SetMany),
        "hsetnx" => update(U::SetAbsent),
        "hdel" => update(U::Delete),
        "hincrby" => update(U::Increment(integer(command, 3)?)),
        "hincrbyfloat" => match float(command, 3)? {
            delta if delta.is_infinite() => return Err(Reply::error("value is NaN or Infinity")),
            delta => update(U::IncrementFloat(delta)),
        },
        "hget" => read(R::Get),
        "hmget" => read(R::GetMany),
        "hgetall" => read(R::All),
        "hkeys" => read(R::Fields),
        "hvals" => read(R::Values),
        "hlen" => read(R::Len),
        "hexists" => read(R::Exists),
        "hstrlen" => read(R::StrLen),
        "hrandfield" => read(hashes::parse_random(command)?),
        "hscan" => read(R::Scan(parse_cursor(command, 2)?)),
        other => unreachable!("invariant: {other} is in the table, so it has code (a test calls each one)"),
    })
}

/// Redis's sentence for a wrong number of arguments.
pub fn wrong_arity(name: &str) -> Reply {
    Reply::error(format_args!("wrong number of arguments for '{name}' command"))
}

/// Redis's sentence for an option it does not know.
pub fn syntax_error() -> Reply {
    Reply::error("syntax error")
}

/// As much of a name or an argument as Redis quotes: it prints C strings.
fn quoted(bytes: &[u8], max: usize) -> &[u8] {
    let bytes = c_string(bytes);
    &bytes[..bytes.len().min(max)]
}

/// How much of a name, and of all arguments, is quoted: as in Redis.
const QUOTED_BYTES_MAX: usize = 128;

/// Redis's sentence for an unknown command.
pub fn unknown_command(command: &Command) -> Reply {
    let mut args = Vec::new();
    for arg in command.args_from(1) {
        if args.len() >= QUOTED_BYTES_MAX {
            break;
        }
        args.extend_from_slice(&[b"'", quoted(arg, QUOTED_BYTES_MAX - args.len()), b"' "].concat());
    }
    let name = quoted(command.arg(0), QUOTED_BYTES_MAX);
    Reply::error_bytes(&[b"unknown command '", name, b"', with args beginning with: ", &args])
}

/// Redis's sentence for an unknown subcommand.
pub fn unknown_subcommand(command: &Command) -> Reply {
    let container = command.arg(0).to_ascii_uppercase();
    let name = quoted(command.arg(1), QUOTED_BYTES_MAX);
    Reply::error_bytes(&[b"unknown subcommand '", name, b"'. Try ", &container, b" HELP."])
}

/// Argument `index` as a number.
pub fn integer(command: &Command, index: usize) -> Result<i64, Reply> {
    parse_i64(command.arg(index)).ok_or_else(strings::not_an_integer)
}

fn float(command: &Command, index: usize) -> Result<Extended, Reply> {
    Extended::parse(command.arg(index)).ok_or_else(strings::not_a_float)
}

fn parse_set(command: &Command) -> Result<Request, Reply> {
    let (mut options, mut keep, mut time) = (SetOptions::PLAIN, false, None);
    let mut at = 3;
    while at < command.len() {
        let option = command.arg(at);
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        let unit = Unit::of_option(option)
            .filter(|unit| at + 1 < command.len() && !keep && time.is_none_or(|(_, u)| u == *unit));
        if is("NX") && !options.present {
            options.absent = true;
        } else if is("XX") && !options.absent {
            options.present = true;
        } else if is("GET") {
            options.get = true;
        } else if is("KEEPTTL") && time.is_none() {
            keep = true;
        } else if let Some(unit) = unit {
            time = Some((at + 1, unit));
            at += 1;
        } else {
            // Ignoring it would overwrite, or keep for ever, what the caller meant not to.
            return Err(syntax_error());
        }
        at += 1;
    }
    if let Some((place, unit)) = time {
        options.lifetime = unit.lifetime(command.arg(place)).map_err(|error| error.reply("set"))?;
    } else if keep {
        options.lifetime = Lifetime::Keep;
    }
    Ok(match options.is_blind() {
        true => Request::Put { value: 2, lifetime: options.lifetime },
        false => Request::Update(Update::String(strings::Update::Set(options))),
    })
}

fn parse_get_ex(command: &Command) -> Result<Request, Reply> {
    let (mut persist, mut time) = (false, None);
    let mut at = 2;
    while at < command.len() {
        let option = command.arg(at);
        let unit = Unit::of_option(option)
            .filter(|unit| at + 1 < command.len() && !persist && time.is_none_or(|(_, u)| u == *unit));
        if option.eq_ignore_ascii_case(b"PERSIST") && time.is_none() {
            persist = true;
        } else if let Some(unit) = unit {
            time = Some((at + 1, unit));
            at += 1;
        } else {
            return Err(syntax_error());
        }
        at += 1;
    }
    let lifetime = match time {
        Some((place, unit)) => unit.lifetime(command.arg(place)),
        None if persist => Ok(Lifetime::Never),
        None => return Ok(Request::Read(Read::String(strings::Read::Get))),
    };
    Ok(Request::Update(Update::String(strings::Update::GetEx(lifetime))))
}

fn parse_wait(command: &Command) -> Result<Request, Reply> {
    integer(command, 1)?;
    let timeout = parse_i64(command.arg(2)).ok_or_else(|| Reply::error("timeout is not an integer or out of range"))?;
    if timeout < 0 {
        return Err(Reply::error("timeout is negative"));
    }
    Ok(Request::Wait)
}

fn parse_cursor(command: &Command, index: usize) -> Result<u64, Reply> {
    command::parse_cursor(command.arg(index)).ok_or_else(|| Reply::error("invalid cursor"))
}

/// The options of `SCAN` and `HSCAN` from argument `first` on; of `SCAN` alone there is a `TYPE`.
pub fn parse_scan_options(command: &Command, first: usize, has_type: bool) -> Result<ScanOptions, Reply> {
    const COUNT_DEFAULT: usize = 10;
    let mut options = ScanOptions { pattern: None, count: COUNT_DEFAULT, type_name: None };
    let mut at = first;
    while at < command.len() {
        let option = command.arg(at);
        if at + 1 == command.len() {
            return Err(syntax_error());
        }
        if option.eq_ignore_ascii_case(b"MATCH") {
            check_pattern(command.arg(at + 1))?;
            options.pattern = Some(at + 1);
        } else if option.eq_ignore_ascii_case(b"COUNT") {
            let number = integer(command, at + 1)?;
            let number = usize::try_from(number).ok().filter(|n| *n > 0).ok_or_else(syntax_error)?;
            options.count = number.min(SCAN_COUNT_MAX);
        } else if has_type && option.eq_ignore_ascii_case(b"TYPE") {
            options.type_name = Some(at + 1);
        } else {
            return Err(syntax_error());
        }
        at += 2;
    }
    Ok(options)
}

/// An error for a pattern that is longer than any that is meant: matching takes as long as it is.
pub(super) fn check_pattern(pattern: &[u8]) -> Result<(), Reply> {
    match pattern.len() <= PATTERN_BYTES_MAX {
        true => Ok(()),
        false => Err(Reply::error(format_args!("pattern is too long: at most {PATTERN_BYTES_MAX} bytes are taken"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::commands;
    use super::*;

    fn parse(args: &[&str]) -> Result<Option<Request>, String> {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        let index = commands::find(args[0]).expect("a known command");
        Request::parse(&commands::COMMANDS[index], &Command::new(&args)).map_err(|reply| match reply {
            Reply::Error(text) => text,
            other => panic!("not an error: {other:?}"),
        })
    }

    #[test]
    fn an_option_that_is_not_known_is_refused_never_ignored() {
        for options in [
            &["FOO"][..],
            &["IFEQ", "1"],
            &["NX", "XX"],
            &["XX", "NX"],
            &["EX"],
            &["EX", "1", "PX", "1"],
            &["KEEPTTL", "EX", "1"],
            &["PXAT", "1", "KEEPTTL"],
            &["PERSIST"],
        ] {
            let command = [&["SET", "k", "v"], options].concat();
            assert_eq!(parse(&command), Err("ERR syntax error".into()), "{options:?}");
        }
        for time in ["0", "-1", "9223372036854775807"] {
            assert_eq!(parse(&["SET", "k", "v", "EX", time]), Err("ERR invalid expire time in 'set' command".into()));
        }
        assert!(parse(&["msetnx", "k", "v"]).expect_err("refused").starts_with("ERR MSETNX would have to be atomic"));
    }

    /// A blind `SET` takes two round trips; one that looks at what is there is a conditional operation.
    #[test]
    fn a_set_that_asks_for_nothing_is_blind() {
        let blind = Request::Put { value: 2, lifetime: Lifetime::Never };
        assert_eq!(parse(&["SET", "k", "v"]), Ok(Some(blind)));
        let timed = parse(&["SET", "k", "v", "pxat", "99"]);
        assert_eq!(timed, Ok(Some(Request::Put { value: 2, lifetime: Lifetime::At(99) })));
        for option in ["NX", "xx", "GET", "KEEPTTL"] {
            assert!(matches!(parse(&["SET", "k", "v", option]), Ok(Some(Request::Update(_)))), "{option}");
        }
    }

    #[test]
    fn scan_options() {
        let expected = Request::Scan(7, ScanOptions { pattern: Some(3), count: 5, type_name: Some(7) });
        assert_eq!(parse(&["scan", "7", "match", "a*", "count", "5", "type", "STRING"]), Ok(Some(expected)));
        assert_eq!(parse(&["scan", "x"]), Err("ERR invalid cursor".into()));
        assert_eq!(parse(&["scan", "0", "count", "0"]), Err("ERR syntax error".into()));
        assert_eq!(parse(&["scan", "0", "count"]), Err("ERR syntax error".into()));
        assert_eq!(parse(&["scan", "0", "count", "x"]), Err("ERR value is not an integer or out of range".into()));
    }

    #[test]
    fn unknown_commands_are_quoted_as_redis_does_and_bounded() {
        let Reply::ErrorBytes(text) = unknown_command(&Command::new(&[b"foo", b"a", b"b"])) else { panic!("an error") };
        assert_eq!(text, b"ERR unknown command 'foo', with args beginning with: 'a' 'b' ");
        let Reply::ErrorBytes(text) = unknown_command(&Command::new(&[&[b'x'; 4096], &[b'y'; 4096], b"z"])) else {
            panic!("an error")
        };
        assert!(text.len() < 400, "{}", text.len());
    }
}
