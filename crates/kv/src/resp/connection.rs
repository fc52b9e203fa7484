//! The commands that a connection answers itself: protocol, name, and what clients ask about the server.

use super::commands::{self, CommandSpec, served_commands};
use super::decode::Command;
use super::glob;
use super::reply::{Protocol, Reply};
use super::request::{integer, syntax_error, unknown_subcommand, wrong_arity};
use super::session::Session;

/// The Redis release whose strings commands this follows; clients decide by it what they may send.
pub const REDIS_VERSION: &str = "7.2.0";

/// What `CONFIG GET` knows, with values that are true here.
const PARAMETERS: &[(&str, &str)] = &[
    // There are no snapshots, and every acknowledged write is stable.
    ("save", ""),
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("databases", "1"),
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
    ("proto-max-bulk-len", "536870912"),
    ("timeout", "0"),
];

/// The longest client or library name that is kept. Chosen: what fits a line of `CLIENT LIST`.
const NAME_BYTES_MAX: usize = 256;

impl Session {
    /// Answers a command that needs no store.
    pub(super) fn connection_command(&mut self, spec: &CommandSpec, command: &Command) -> Reply {
        let result = match spec.name {
            "ping" => ping(command),
            "echo" => Ok(Reply::bulk(command.arg(1))),
            "hello" => self.hello(command),
            "auth" => auth(command, 1, command.len()),
            "select" => select(command),
            "client" => self.client(command),
            "config" => config(command),
            "command" => command_command(command),
            "reset" => {
                self.protocol = Protocol::default();
                self.identity.name.clear();
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

    /// Makes the connection's line for `CLIENT LIST` current.
    pub(super) fn publish_identity(&self) {
        self.shared.set_client(self.identity.id, self.client_line());
    }

    fn client_line(&self) -> String {
        let who = &self.identity;
        format!(
            "id={} addr={} laddr={} name={} db=0 flags=N user=default lib-name={} lib-ver={} resp={}",
            who.id,
            who.peer,
            who.local,
            who.name,
            who.library,
            who.library_version,
            self.protocol.number()
        )
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
        let (mut at, mut name) = (2, None);
        while at < command.len() {
            let (option, left) = (command.arg(at), command.len() - at - 1);
            if option.eq_ignore_ascii_case(b"AUTH") && left >= 2 {
                auth(command, at + 1, at + 3)?;
                at += 3;
            } else if option.eq_ignore_ascii_case(b"SETNAME") && left >= 1 {
                name = Some(client_text(command.arg(at + 1), "Client names")?);
                at += 2;
            } else {
                let option = String::from_utf8_lossy(option);
                return Err(Reply::error(format_args!("Syntax error in HELLO option '{option}'")));
            }
        }
        // Nothing changes unless everything is right.
        self.protocol = protocol;
        if let Some(name) = name {
            self.identity.name = name;
        }
        self.publish_identity();
        let text = |text: &str| Reply::bulk(text);
        Ok(Reply::Map(vec![
            (text("server"), text("yagura")),
            (text("version"), text(REDIS_VERSION)),
            (text("proto"), Reply::Integer(protocol.number())),
            (text("id"), Reply::Integer(self.identity.id as i64)),
            (text("mode"), text("standalone")),
            (text("role"), text("master")),
            (text("modules"), Reply::Array(Vec::new())),
        ]))
    }

    fn client(&mut self, command: &Command) -> Result<Reply, Reply> {
        let subcommand = command.arg(1).to_ascii_lowercase();
        let arity = |count: usize| {
            let name = || format!("client|{}", String::from_utf8_lossy(&subcommand));
            if command.len() == count { Ok(()) } else { Err(wrong_arity(&name())) }
        };
        match &subcommand[..] {
            b"id" => arity(2).map(|()| Reply::Integer(self.identity.id as i64)),
            b"getname" => arity(2).map(|()| match self.identity.name.as_str() {
                "" => Reply::Null,
                name => Reply::bulk(name),
            }),
            b"info" => arity(2).map(|()| Reply::Text(self.client_line() + "\n")),
            b"list" => arity(2).map(|()| Reply::Text(self.shared.client_list())),
            b"setname" => {
                arity(3)?;
                self.identity.name = client_text(command.arg(2), "Client names")?;
                self.publish_identity();
                Ok(Reply::OK)
            }
            b"setinfo" => {
                arity(4)?;
                match &command.arg(2).to_ascii_lowercase()[..] {
                    b"lib-name" => self.identity.library = client_text(command.arg(3), "lib-name")?,
                    b"lib-ver" => self.identity.library_version = client_text(command.arg(3), "lib-ver")?,
                    other => {
                        let other = String::from_utf8_lossy(other);
                        return Err(Reply::error(format_args!("Unrecognized option '{other}'")));
                    }
                }
                self.publish_identity();
                Ok(Reply::OK)
            }
            // Nothing is evicted and no access times are kept: both settings hold as they are.
            b"no-evict" | b"no-touch" => {
                arity(3)?;
                let on_off = command.arg(2).eq_ignore_ascii_case(b"on") || command.arg(2).eq_ignore_ascii_case(b"off");
                if on_off { Ok(Reply::OK) } else { Err(syntax_error()) }
            }
            b"help" => {
                Ok(help("CLIENT", &["GETNAME", "ID", "INFO", "LIST", "NO-EVICT", "NO-TOUCH", "SETINFO", "SETNAME"]))
            }
            _ => Err(unknown_subcommand(command)),
        }
    }
}

/// A name that fits a line of `CLIENT LIST`: printable, no blanks.
fn client_text(bytes: &[u8], what: &str) -> Result<String, Reply> {
    if bytes.len() > NAME_BYTES_MAX {
        return Err(Reply::error(format_args!("{what} cannot be longer than {NAME_BYTES_MAX} bytes")));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text.to_string()),
        _ => Err(Reply::error(format_args!("{what} cannot contain spaces, newlines or special characters."))),
    }
}

fn ping(command: &Command) -> Result<Reply, Reply> {
    match command.len() {
        1 => Ok(Reply::Status("PONG".into())),
        2 => Ok(Reply::bulk(command.arg(1))),
        _ => Err(wrong_arity("ping")),
    }
}

/// `[user] password` in arguments `first..end`. As Redis without a password: the default user may give any with its name.
fn auth(command: &Command, first: usize, end: usize) -> Result<Reply, Reply> {
    match end - first {
        1 => Err(Reply::error(
            "AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
        )),
        2 if command.arg(first) == b"default" => Ok(Reply::OK),
        2 => Err(Reply::Error("WRONGPASS invalid username-password pair or user is disabled.".into())),
        _ => Err(syntax_error()),
    }
}

fn select(command: &Command) -> Result<Reply, Reply> {
    match integer(command, 1)? {
        0 => Ok(Reply::OK),
        _ => Err(Reply::error("DB index is out of range")),
    }
}

fn config(command: &Command) -> Result<Reply, Reply> {
    match &command.arg(1).to_ascii_lowercase()[..] {
        b"get" if command.len() < 3 => Err(wrong_arity("config|get")),
        b"get" => {
            let asked = |name: &str| {
                command.args_from(2).any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
            };
            let found = PARAMETERS.iter().filter(|(name, _)| asked(name));
            Ok(Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect()))
        }
        b"set" | b"resetstat" | b"rewrite" => {
            Err(Reply::error("CONFIG is read-only here: the gateway is configured by its flags and its config file"))
        }
        b"help" => Ok(help("CONFIG", &["GET"])),
        _ => Err(unknown_subcommand(command)),
    }
}

fn command_command(command: &Command) -> Result<Reply, Reply> {
    if command.len() == 1 {
        return Ok(Reply::Array(served_commands().map(spec_reply).collect()));
    }
    let named = || command.args_from(2).map(commands::find);
    match &command.arg(1).to_ascii_lowercase()[..] {
        b"count" if command.len() > 2 => Err(wrong_arity("command|count")),
        b"count" => Ok(Reply::Integer(served_commands().count() as i64)),
        b"list" if command.len() > 2 => Err(Reply::error("COMMAND LIST takes no filter here")),
        b"list" => Ok(Reply::Array(served_commands().map(|spec| Reply::bulk(spec.name)).collect())),
        b"info" if command.len() == 2 => Ok(Reply::Array(served_commands().map(spec_reply).collect())),
        b"info" => Ok(Reply::Array(named().map(|spec| spec.map_or(Reply::Null, spec_reply)).collect())),
        b"docs" if command.len() == 2 => Ok(Reply::Map(served_commands().map(docs_reply).collect())),
        b"docs" => Ok(Reply::Map(named().flatten().map(docs_reply).collect())),
        b"help" => Ok(help("COMMAND", &["COUNT", "DOCS", "INFO", "LIST"])),
        _ => Err(unknown_subcommand(command)),
    }
}

fn spec_reply(spec: &CommandSpec) -> Reply {
    let (first, last, step) = spec.keys;
    let flags = spec.flags.iter().map(|flag| Reply::Status((*flag).into())).collect();
    let none = || Reply::Array(Vec::new());
    Reply::Array(vec![
        Reply::bulk(spec.name),
        Reply::Integer(spec.arity),
        Reply::Array(flags),
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

fn help(container: &str, subcommands: &[&str]) -> Reply {
    let title = format!("{container} <subcommand> [<arg> ...]. Subcommands are:");
    Reply::Array(std::iter::once(title.as_str()).chain(subcommands.iter().copied()).map(Reply::bulk).collect())
}
