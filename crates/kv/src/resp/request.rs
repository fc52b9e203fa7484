//! What a command asks of the store, parsed once; with Redis's own sentences where it cannot be.

use xxhash_rust::xxh3::xxh3_64;

use super::commands::{CommandSpec, Kind};
use super::decode::{Command, parse_i64};
use super::reply::Reply;

/// Work for the store. Arguments stay in the [`Command`]; here are the parsed numbers and the places of the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// `GET key`
    Get,
    /// `SET key value`, unconditional
    Set,
    /// `MGET key…`
    MGet,
    /// `MSET (key value)…`
    MSet,
    /// `STRLEN key`
    StrLen,
    /// `GETRANGE key start end`, both inclusive, negative from the end
    GetRange {
        /// First byte.
        start: i64,
        /// Last byte.
        end: i64,
    },
    /// `DEL key…`
    Delete,
    /// `EXISTS key…`
    Exists,
    /// `TYPE key`
    Type,
    /// `TTL key`
    Ttl,
    /// `KEYS pattern`
    Keys,
    /// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE t]`
    Scan {
        /// Where to go on.
        cursor: u64,
        /// Which argument is the pattern.
        pattern: Option<usize>,
        /// How many keys to look at.
        count: usize,
        /// The type asked for is one that exists here.
        type_exists: bool,
    },
    /// `DBSIZE`
    DbSize,
    /// `INFO [section…]`
    Info,
    /// `TIME`
    Time,
}

/// What a request touches: two of one connection run at once only where these do not conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// No key.
    None,
    /// Reads the key of this hash. (Equal hashes of different keys only cost concurrency.)
    Read(u64),
    /// Writes the key of this hash.
    Write(u64),
    /// Reads any keys.
    ReadAny,
    /// Writes any keys.
    WriteAny,
}

impl Access {
    /// Whether the order of the two matters.
    pub fn conflicts(self, other: Access) -> bool {
        use Access::{None, Read, ReadAny, Write, WriteAny};
        match (self, other) {
            (None, _) | (_, None) => false,
            (Read(_) | ReadAny, Read(_) | ReadAny) => false,
            (WriteAny | ReadAny, _) | (_, WriteAny | ReadAny) => true,
            (Read(a) | Write(a), Read(b) | Write(b)) => a == b,
        }
    }

    /// Whether it changes anything.
    pub fn writes(self) -> bool {
        matches!(self, Access::Write(_) | Access::WriteAny)
    }
}

impl Request {
    /// What this request, with the arguments in `command`, touches.
    pub fn access(self, command: &Command) -> Access {
        let key = || xxh3_64(command.arg(1));
        match self {
            Request::Get | Request::StrLen | Request::GetRange { .. } | Request::Type | Request::Ttl => {
                Access::Read(key())
            }
            Request::Set => Access::Write(key()),
            Request::MGet | Request::Exists if command.len() == 2 => Access::Read(key()),
            Request::Delete if command.len() == 2 => Access::Write(key()),
            Request::MSet if command.len() == 3 => Access::Write(key()),
            Request::MGet | Request::Exists | Request::Keys | Request::Scan { .. } | Request::DbSize => Access::ReadAny,
            Request::MSet | Request::Delete => Access::WriteAny,
            Request::Info | Request::Time => Access::None,
        }
    }

    /// The request in `command`, whose name is `spec`'s and whose arity fits. `Ok(None)`: the connection answers it itself.
    pub fn parse(spec: &CommandSpec, command: &Command) -> Result<Option<Request>, Reply> {
        if let Kind::Refused(why) = spec.kind {
            return Err(Reply::error(format_args!("{} {why}", spec.name.to_uppercase())));
        }
        Ok(Some(match spec.name {
            "get" => Request::Get,
            "set" => parse_set(command)?,
            "mget" => Request::MGet,
            "mset" if command.len().is_multiple_of(2) => return Err(wrong_arity(spec.name)),
            "mset" => Request::MSet,
            "strlen" => Request::StrLen,
            "getrange" | "substr" => Request::GetRange { start: integer(command, 2)?, end: integer(command, 3)? },
            "del" | "unlink" => Request::Delete,
            "exists" => Request::Exists,
            "type" => Request::Type,
            "ttl" | "pttl" => Request::Ttl,
            "keys" => Request::Keys,
            "scan" => parse_scan(command)?,
            "dbsize" => Request::DbSize,
            "info" => Request::Info,
            "time" => Request::Time,
            _ => return Ok(None),
        }))
    }
}

/// Redis's sentence for a wrong number of arguments.
pub fn wrong_arity(name: &str) -> Reply {
    Reply::error(format_args!("wrong number of arguments for '{name}' command"))
}

/// Redis's sentence for an option it does not know.
pub fn syntax_error() -> Reply {
    Reply::error("syntax error")
}

/// Redis's sentence for an unknown command.
pub fn unknown_command(command: &Command) -> Reply {
    // How much of name and arguments is quoted, as in Redis.
    const QUOTED_BYTES_MAX: usize = 128;
    let quote = |bytes: &[u8], max: usize| String::from_utf8_lossy(&bytes[..bytes.len().min(max)]).into_owned();
    let mut args = String::new();
    for arg in command.args_from(1) {
        if args.len() >= QUOTED_BYTES_MAX {
            break;
        }
        args.push_str(&format!("'{}' ", quote(arg, QUOTED_BYTES_MAX - args.len())));
    }
    let name = quote(command.arg(0), QUOTED_BYTES_MAX);
    Reply::error(format_args!("unknown command '{name}', with args beginning with: {args}"))
}

/// Redis's sentence for an unknown subcommand.
pub fn unknown_subcommand(command: &Command) -> Reply {
    let container = String::from_utf8_lossy(command.arg(0)).to_uppercase();
    let name: String = String::from_utf8_lossy(command.arg(1)).chars().take(128).collect();
    Reply::error(format_args!("unknown subcommand '{name}'. Try {container} HELP."))
}

/// Argument `index` as a number.
pub fn integer(command: &Command, index: usize) -> Result<i64, Reply> {
    parse_i64(command.arg(index)).ok_or_else(|| Reply::error("value is not an integer or out of range"))
}

fn parse_set(command: &Command) -> Result<Request, Reply> {
    for option in command.args_from(3) {
        let is = |names: &[&str]| names.iter().any(|name| option.eq_ignore_ascii_case(name.as_bytes()));
        let upper = String::from_utf8_lossy(option).to_uppercase();
        if is(&["NX", "XX", "GET", "IFEQ", "IFNE", "IFDEQ", "IFDNE"]) {
            let why = "needs a conditional operation, which this store does not offer yet; nothing was set";
            return Err(Reply::error(format_args!("SET with {upper} {why}")));
        }
        if is(&["EX", "PX", "EXAT", "PXAT"]) {
            let why = "needs expiry, which this store does not offer yet; nothing was set";
            return Err(Reply::error(format_args!("SET with {upper} {why}")));
        }
        // No key has a time to live, so keeping it is what a plain SET does.
        if !is(&["KEEPTTL"]) {
            return Err(syntax_error());
        }
    }
    Ok(Request::Set)
}

fn parse_scan(command: &Command) -> Result<Request, Reply> {
    const COUNT_DEFAULT: usize = 10;
    let cursor = std::str::from_utf8(command.arg(1)).ok().and_then(|text| text.parse().ok());
    let cursor = cursor.ok_or_else(|| Reply::error("invalid cursor"))?;
    let (mut pattern, mut count, mut type_exists) = (None, COUNT_DEFAULT, true);
    let mut at = 2;
    while at < command.len() {
        let option = command.arg(at);
        if at + 1 == command.len() {
            return Err(syntax_error());
        }
        if option.eq_ignore_ascii_case(b"MATCH") {
            pattern = Some(at + 1);
        } else if option.eq_ignore_ascii_case(b"COUNT") {
            let number = integer(command, at + 1)?;
            let number = usize::try_from(number).ok().filter(|n| *n > 0).ok_or_else(syntax_error)?;
            count = number.min(super::SCAN_COUNT_MAX);
        } else if option.eq_ignore_ascii_case(b"TYPE") {
            type_exists = command.arg(at + 1).eq_ignore_ascii_case(b"string");
        } else {
            return Err(syntax_error());
        }
        at += 2;
    }
    Ok(Request::Scan { cursor, pattern, count, type_exists })
}

#[cfg(test)]
mod tests {
    use super::super::commands;
    use super::*;

    fn parse(args: &[&str]) -> Result<Option<Request>, String> {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        let spec = commands::find(args[0]).expect("a known command");
        Request::parse(spec, &Command::new(&args)).map_err(|reply| match reply {
            Reply::Error(text) => text,
            other => panic!("not an error: {other:?}"),
        })
    }

    #[test]
    fn an_option_that_is_not_offered_is_refused_never_ignored() {
        for option in ["NX", "xx", "GET", "EX", "PX", "exat", "PXAT", "IFEQ"] {
            let error = parse(&["SET", "k", "v", option, "1"]).expect_err("refused");
            assert!(error.contains("not offer") && error.contains(&option.to_uppercase()), "{error}");
        }
        assert_eq!(parse(&["SET", "k", "v", "FOO"]), Err("ERR syntax error".into()));
        assert_eq!(parse(&["SET", "k", "v", "KEEPTTL"]), Ok(Some(Request::Set)));
        assert!(parse(&["incr", "k"]).expect_err("refused").starts_with("ERR INCR needs a conditional"));
    }

    #[test]
    fn scan_options() {
        let expected = Request::Scan { cursor: 7, pattern: Some(3), count: 5, type_exists: true };
        assert_eq!(parse(&["scan", "7", "match", "a*", "count", "5", "type", "STRING"]), Ok(Some(expected)));
        assert_eq!(parse(&["scan", "x"]), Err("ERR invalid cursor".into()));
        assert_eq!(parse(&["scan", "0", "count", "0"]), Err("ERR syntax error".into()));
        assert_eq!(parse(&["scan", "0", "count"]), Err("ERR syntax error".into()));
        assert_eq!(parse(&["scan", "0", "count", "x"]), Err("ERR value is not an integer or out of range".into()));
    }

    #[test]
    fn unknown_commands_are_quoted_as_redis_does_and_bounded() {
        let Reply::Error(text) = unknown_command(&Command::new(&[b"foo", b"a", b"b"])) else { panic!("an error") };
        assert_eq!(text, "ERR unknown command 'foo', with args beginning with: 'a' 'b' ");
        let Reply::Error(text) = unknown_command(&Command::new(&[&[b'x'; 4096], &[b'y'; 4096], b"z"])) else {
            panic!("an error")
        };
        assert!(text.len() < 400, "{}", text.len());
    }

    #[test]
    fn conflicts_are_exactly_those_with_a_writer() {
        use Access::*;
        for (a, b, expected) in [
            (Read(1), Read(1), false),
            (Read(1), Write(1), true),
            (Write(1), Write(1), true),
            (Write(1), Write(2), false),
            (Read(1), Write(2), false),
            (ReadAny, Read(1), false),
            (ReadAny, Write(1), true),
            (WriteAny, Read(1), true),
            (ReadAny, WriteAny, true),
            (ReadAny, ReadAny, false),
            (None, WriteAny, false),
        ] {
            assert_eq!((a.conflicts(b), b.conflicts(a)), (expected, expected), "{a:?} {b:?}");
        }
    }
}
