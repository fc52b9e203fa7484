//! The commands that a connection answers itself: protocol, password, and what clients ask about the server.

use super::client::{self, client_text};
use super::command::{Command, c_string};
use super::commands::{self, COMMANDS, CommandSpec, served_commands};
use super::glob;
use super::memory::LISTED_COST;
use super::reply::{Protocol, Reply};
use super::request::{check_pattern, integer, syntax_error, unknown_subcommand, wrong_arity};
use super::session::{Replies, Session};
use super::stats::GatewayState;
use crate::types::VALUE_BYTES_MAX;

/// The Redis release whose commands this follows; clients decide by it what they may send.
pub const REDIS_VERSION: &str = "7.0.15";

/// What `CONFIG GET` knows, with values that are true here.
const PARAMETERS: &[(&str, &str)] = &[
    // There are no snapshots, and every acknowledged write is stable.
    ("save", ""),
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("databases", "1"),
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
    ("proto-max-bulk-len", LONGEST_VALUE),
    ("timeout", "0"),
    ("cluster-enabled", "no"),
    ("slave-read-only", "no"),
    ("replica-read-only", "no"),
];

/// [`VALUE_BYTES_MAX`] as text.
const LONGEST_VALUE: &str = "67108864";

const _: () = assert!(VALUE_BYTES_MAX == 67_108_864, "CONFIG GET proto-max-bulk-len tells the limit of values");

impl Session {
    /// Answers a command that needs no store.
    pub(super) fn connection_command(&mut self, spec: &CommandSpec, command: &Command) -> Reply {
        let result = match spec.name {
            "hello" => self.hello(command),
            "auth" => self.auth(command),
            "select" => select(command),
            "client" => self.client(command),
            "ping" | "echo" | "config" | "command" => answer(spec.name, &self.shared, command),
            "object" => container(command, &["ENCODING", "FREQ", "IDLETIME", "REFCOUNT"]),
            "memory" => container(command, &["USAGE"]),
            "reset" => {
                self.protocol = Protocol::default();
                self.replies = Replies::default();
                self.identity.name.clear();
                self.set_authenticated(!self.shared.asks_password());
                self.publish_identity();
                Ok(Reply::Status("RESET".into()))
            }
            "quit" => {
                self.quit();
                Ok(Reply::OK)
            }
            other => unreachable!("invariant: {other} is served, so it has code (a test calls each one)"),
        };
        result.unwrap_or_else(|error| error)
    }

    fn hello(&mut self, command: &Command) -> Result<Reply, Reply> {
        let mut protocol = self.protocol;
        if command.len() > 1 {
            let version =
                integer(command, 1).map_err(|_| Reply::error("Protocol version is not an integer or out of range"))?;
            protocol = match version {
                2 => Protocol::Resp2,
                3 => Protocol::Resp3,
                _ => return Err(Reply::Error("NOPROTO unsupported protocol version".into())),
            };
        }
        let (mut at, mut name, mut given) = (2, None, None);
        while at < command.len() {
            let (option, left) = (command.arg(at), command.len() - at - 1);
            if option.eq_ignore_ascii_case(b"AUTH") && left >= 2 {
                given = Some((command.arg(at + 1), command.arg(at + 2)));
                at += 3;
            } else if option.eq_ignore_ascii_case(b"SETNAME") && left >= 1 {
                name = Some(client_text(command.arg(at + 1), "Client names")?);
                at += 2;
            } else {
                return Err(Reply::error_bytes(&[b"Syntax error in HELLO option '", c_string(option), b"'"]));
            }
        }
        if let Some((user, password)) = given {
            self.authenticate(user, password)?;
        }
        if !self.authenticated {
            return Err(Reply::Error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                 <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
                 same time"
                    .into(),
            ));
        }
        // Nothing changes unless everything is right.
        self.protocol = protocol;
        if let Some(name) = name {
            self.identity.name = name;
        }
        self.publish_identity();
        let text = |text: &str| Reply::bulk(text);
        Ok(Reply::Map(vec![
            (text("server"), text("redis")),
            (text("version"), text(REDIS_VERSION)),
            (text("proto"), Reply::Integer(protocol.number())),
            (text("id"), Reply::Integer(self.identity.id as i64)),
            (text("mode"), text("standalone")),
            (text("role"), text("master")),
            (text("modules"), Reply::Array(Vec::new())),
        ]))
    }

    fn auth(&mut self, command: &Command) -> Result<Reply, Reply> {
        let (user, password) = match command.len() {
            2 if !self.shared.asks_password() => {
                return Err(Reply::error(
                    "AUTH <password> called without any password configured for the default user. Are you sure your \
                     configuration is correct?",
                ));
            }
            2 => (&b"default"[..], command.arg(1)),
            3 => (command.arg(1), command.arg(2)),
            _ => return Err(syntax_error()),
        };
        self.authenticate(user, password).map(|()| Reply::OK)
    }

    /// There is one user. As in Redis, without a password that user may give any.
    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Result<(), Reply> {
        if user != b"default" || self.shared.is_password(password) == Some(false) {
            return Err(Reply::Error("WRONGPASS invalid username-password pair or user is disabled.".into()));
        }
        self.set_authenticated(true);
        Ok(())
    }
}

/// Bytes of a command that makes a short reply, if its reply grows with it. Derived: sixty names in `COMMAND INFO`.
const SHORT_COMMAND_BYTES: usize = 512;
/// Names in one `COMMAND INFO` or `COMMAND DOCS`. Guessed: many times those that there are.
const NAMES_MAX: usize = 4096;

/// Whether the command's reply, for which no store is needed, may be as long as the peer wishes, or as the gateway has connections.
pub(super) fn may_be_long(name: &str, command: &Command) -> bool {
    match name {
        "ping" | "echo" | "config" | "command" => command.bytes_held() > SHORT_COMMAND_BYTES,
        "client" => command.arg(1).eq_ignore_ascii_case(b"LIST"),
        _ => false,
    }
}

/// The room that [`answer`] takes.
pub(super) fn answer_bytes(name: &str, shared: &GatewayState, command: &Command) -> Result<usize, Reply> {
    let subcommand = if command.len() > 1 { command.arg(1).to_ascii_lowercase() } else { Vec::new() };
    let of_name = match (name, &subcommand[..]) {
        ("client", _) => return Ok(command.len() * LISTED_COST + client::list_bytes(shared)),
        ("command", b"info" | b"docs") if command.len() > NAMES_MAX => {
            return Err(Reply::error(format_args!("more than {NAMES_MAX} arguments make too long a reply")));
        }
        ("command", b"info" | b"docs") => {
            let of = |spec| spec_reply(spec).memory_bytes().max(Reply::Map(vec![docs_reply(spec)]).memory_bytes());
            served_commands().map(of).max().unwrap_or(0)
        }
        _ => LISTED_COST,
    };
    Ok(2 * command.bytes_held() + command.len() * of_name)
}

/// The reply to a command that needs nothing but what all connections share.
pub(super) fn answer(name: &str, shared: &GatewayState, command: &Command) -> Result<Reply, Reply> {
    match name {
        "ping" => ping(command),
        "echo" => Ok(Reply::bulk(command.arg(1))),
        "config" => config(command),
        "command" => command_command(command),
        "client" => client::list(shared, command),
        other => unreachable!("invariant: {other} is none of those that may be long"),
    }
}

/// What is left of a container once its served subcommands were looked for.
fn container(command: &Command, subcommands: &[&str]) -> Result<Reply, Reply> {
    match command.arg(1).eq_ignore_ascii_case(b"HELP") {
        true => help(command, subcommands),
        false => Err(unknown_subcommand(command)),
    }
}

fn ping(command: &Command) -> Result<Reply, Reply> {
    match command.len() {
        1 => Ok(Reply::Status("PONG".into())),
        2 => Ok(Reply::bulk(command.arg(1))),
        _ => Err(wrong_arity("ping")),
    }
}

fn select(command: &Command) -> Result<Reply, Reply> {
    match integer(command, 1)? {
        0 => Ok(Reply::OK),
        // Redis keeps the number in C's `int`.
        number if i32::try_from(number).is_err() => {
            let bounds = format_args!("value is out of range, value must between {} and {}", i32::MIN, i32::MAX);
            Err(Reply::error(bounds))
        }
        _ => Err(Reply::error("DB index is out of range")),
    }
}

fn config(command: &Command) -> Result<Reply, Reply> {
    match &command.arg(1).to_ascii_lowercase()[..] {
        b"get" if command.len() < 3 => Err(wrong_arity("config|get")),
        b"get" => {
            let patterns: Vec<_> = command.args_from(2).map(<[u8]>::to_ascii_lowercase).collect();
            // Each counts its place too: they are matched at once.
            check_pattern(&patterns.join(&b' '))?;
            let asked = |name: &str| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes()));
            let found = PARAMETERS.iter().filter(|(name, _)| asked(name));
            Ok(Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect()))
        }
        b"set" if command.len() < 4 => Err(wrong_arity("config|set")),
        b"resetstat" if command.len() > 2 => Err(wrong_arity("config|resetstat")),
        b"rewrite" if command.len() > 2 => Err(wrong_arity("config|rewrite")),
        b"set" | b"resetstat" | b"rewrite" => {
            Err(Reply::error("CONFIG is read-only here: the gateway is configured by its flags and its config file"))
        }
        b"help" => help(command, &["GET"]),
        _ => Err(unknown_subcommand(command)),
    }
}

fn command_command(command: &Command) -> Result<Reply, Reply> {
    if command.len() == 1 {
        return Ok(Reply::Array(served_commands().map(spec_reply).collect()));
    }
    let named = || command.args_from(2).map(|name| commands::find(name).map(|place| &COMMANDS[place]));
    match &command.arg(1).to_ascii_lowercase()[..] {
        b"count" if command.len() > 2 => Err(wrong_arity("command|count")),
        b"count" => Ok(Reply::Integer(served_commands().count() as i64)),
        b"list" => command_list(command),
        b"getkeys" if command.len() < 4 => Err(wrong_arity("command|getkeys")),
        b"getkeys" => command_keys(command),
        b"info" if command.len() == 2 => Ok(Reply::Array(served_commands().map(spec_reply).collect())),
        b"info" => Ok(Reply::Array(named().map(|spec| spec.map_or(Reply::Null, spec_reply)).collect())),
        b"docs" if command.len() == 2 => Ok(Reply::Map(served_commands().map(docs_reply).collect())),
        b"docs" => Ok(Reply::Map(named().flatten().map(docs_reply).collect())),
        b"help" => help(command, &["COUNT", "DOCS", "GETKEYS", "INFO", "LIST"]),
        _ => Err(unknown_subcommand(command)),
    }
}

/// `COMMAND LIST [FILTERBY PATTERN pattern]`
fn command_list(command: &Command) -> Result<Reply, Reply> {
    let pattern = match command.len() {
        2 => b"*",
        5 if command.arg(2).eq_ignore_ascii_case(b"FILTERBY") && command.arg(3).eq_ignore_ascii_case(b"PATTERN") => {
            command.arg(4)
        }
        // There are no modules.
        5 if command.arg(2).eq_ignore_ascii_case(b"FILTERBY") && command.arg(3).eq_ignore_ascii_case(b"MODULE") => b"",
        _ => return Err(syntax_error()),
    };
    check_pattern(pattern)?;
    let pattern = pattern.to_ascii_lowercase();
    let found = served_commands().filter(|spec| glob::matches(&pattern, spec.name.as_bytes()));
    Ok(Reply::Array(found.map(|spec| Reply::bulk(spec.name)).collect()))
}

/// `COMMAND GETKEYS command…`
fn command_keys(command: &Command) -> Result<Reply, Reply> {
    let place = commands::find(command.arg(2)).ok_or_else(|| Reply::error("Invalid command specified"))?;
    let (spec, count) = (&COMMANDS[place], command.len() - 2);
    // Of these each subcommand names its key.
    if matches!(spec.name, "object" | "memory") && count > 2 {
        return Ok(Reply::Array(vec![Reply::bulk(command.arg(4))]));
    }
    if spec.key_places(spec.arity.unsigned_abs() as usize).next().is_none() {
        return Err(Reply::error("The command has no key arguments"));
    }
    if !spec.takes(count) {
        return Err(Reply::error("Invalid number of arguments specified for command"));
    }
    Ok(Reply::Array(spec.key_places(count).map(|place| Reply::bulk(command.arg(place + 2))).collect()))
}

fn spec_reply(spec: &CommandSpec) -> Reply {
    let (first, last, step) = spec.keys;
    let flags = spec.flags.iter().map(|flag| Reply::Status((*flag).into())).collect();
    let none = || Reply::Set(Vec::new());
    Reply::Array(vec![
        Reply::bulk(spec.name),
        Reply::Integer(spec.arity),
        Reply::Set(flags),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
        // ACL categories, tips, key specifications and subcommands: none are claimed.
        none(),
        none(),
        none(),
        none(),
    ])
}

fn docs_reply(spec: &CommandSpec) -> (Reply, Reply) {
    let docs =
        vec![(Reply::bulk("summary"), Reply::bulk(spec.summary)), (Reply::bulk("group"), Reply::bulk(spec.group))];
    (Reply::bulk(spec.name), Reply::Map(docs))
}

/// `HELP` of a command with subcommands.
pub(super) fn help(command: &Command, subcommands: &[&str]) -> Result<Reply, Reply> {
    let container = String::from_utf8_lossy(command.arg(0)).to_uppercase();
    if command.len() > 2 {
        return Err(wrong_arity(&format!("{}|help", container.to_lowercase())));
    }
    let title = format!("{container} <subcommand> [<arg> ...]. Subcommands are:");
    Ok(Reply::Array(std::iter::once(title.as_str()).chain(subcommands.iter().copied()).map(Reply::bulk).collect()))
}
