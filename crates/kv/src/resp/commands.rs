//! The commands there are, with what `COMMAND` tells clients about them.

/// What a command is to the dispatcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Served.
    Served,
    /// Redis has it; here it needs a conditional operation, an expiry or a type that the store does not offer.
    Refused(&'static str),
}

/// One command, in the terms of Redis's command table.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// Lower case.
    pub name: &'static str,
    /// Arguments with the name; negative: at least that many.
    pub arity: i64,
    /// Redis's flags.
    pub flags: &'static [&'static str],
    /// First key, last key (negative: from the end), step; zeroes where there is none.
    pub keys: (i64, i64, i64),
    /// Redis's group.
    pub group: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Whether it is served.
    pub kind: Kind,
}

const READ: &[&str] = &["readonly", "fast"];
const SCAN: &[&str] = &["readonly"];
const WRITE: &[&str] = &["write", "denyoom"];
const REMOVE: &[&str] = &["write"];
const PLAIN: &[&str] = &["loading", "stale", "fast"];

const ONE: (i64, i64, i64) = (1, 1, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);
const NONE: (i64, i64, i64) = (0, 0, 0);

const CONDITION: &str = "needs a conditional operation, which this store does not offer yet";
const EXPIRY: &str = "needs expiry, which this store does not offer yet";
const TRANSACTION: &str = "needs transactions, which this store does not offer: use a pipeline without MULTI";

const fn served(
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    keys: (i64, i64, i64),
    group: &'static str,
    summary: &'static str,
) -> CommandSpec {
    CommandSpec { name, arity, flags, keys, group, summary, kind: Kind::Served }
}

const fn refused(name: &'static str, arity: i64, keys: (i64, i64, i64), why: &'static str) -> CommandSpec {
    CommandSpec { name, arity, flags: WRITE, keys, group: "string", summary: why, kind: Kind::Refused(why) }
}

/// Every command that is known, served ones first.
pub const COMMANDS: &[CommandSpec] = &[
    served("get", 2, READ, ONE, "string", "Returns the string value of a key."),
    served("set", -3, WRITE, ONE, "string", "Sets the string value of a key."),
    served("mget", -2, READ, ALL, "string", "Returns the values of one or more keys, each read on its own."),
    served("mset", -3, WRITE, PAIRS, "string", "Sets one or more keys, each on its own: not atomic over several keys."),
    served("strlen", 2, READ, ONE, "string", "Returns the length of a string value."),
    served("getrange", 4, SCAN, ONE, "string", "Returns a part of a string value."),
    served("substr", 4, SCAN, ONE, "string", "Returns a part of a string value (the old name of GETRANGE)."),
    served("del", -2, REMOVE, ALL, "generic", "Deletes one or more keys."),
    served("unlink", -2, REMOVE, ALL, "generic", "Deletes one or more keys."),
    served("exists", -2, READ, ALL, "generic", "Counts how many of the keys exist."),
    served("type", 2, READ, ONE, "generic", "Returns the type of a value: always a string."),
    served("ttl", 2, READ, ONE, "generic", "Returns -1: keys do not expire; -2 if there is no such key."),
    served("pttl", 2, READ, ONE, "generic", "Returns -1: keys do not expire; -2 if there is no such key."),
    served("keys", 2, SCAN, NONE, "generic", "Returns all keys that match a pattern."),
    served("scan", -2, SCAN, NONE, "generic", "Iterates over the keys."),
    served("dbsize", 1, SCAN, NONE, "server", "Counts the keys, by reading the whole table."),
    served("info", -1, PLAIN, NONE, "server", "Returns information about the gateway and the pool."),
    served("time", 1, PLAIN, NONE, "server", "Returns the gateway's time."),
    served("config", -2, PLAIN, NONE, "server", "CONFIG GET: returns parameters that clients ask for."),
    served("command", -1, PLAIN, NONE, "server", "Returns what is known about commands."),
    served("ping", -1, PLAIN, NONE, "connection", "Returns PONG or its argument."),
    served("echo", 2, PLAIN, NONE, "connection", "Returns its argument."),
    served("hello", -1, PLAIN, NONE, "connection", "Chooses the protocol version."),
    served("auth", -2, PLAIN, NONE, "connection", "Authenticates: there are no passwords here."),
    served("select", 2, PLAIN, NONE, "connection", "Chooses a database: there is only 0."),
    served("client", -2, PLAIN, NONE, "connection", "Names and lists connections."),
    served("reset", 1, PLAIN, NONE, "connection", "Puts the connection back to its first state."),
    served("quit", -1, PLAIN, NONE, "connection", "Closes the connection."),
    refused("append", 3, ONE, CONDITION),
    refused("decr", 2, ONE, CONDITION),
    refused("decrby", 3, ONE, CONDITION),
    refused("getdel", 2, ONE, CONDITION),
    refused("getex", -2, ONE, EXPIRY),
    refused("getset", 3, ONE, CONDITION),
    refused("incr", 2, ONE, CONDITION),
    refused("incrby", 3, ONE, CONDITION),
    refused("incrbyfloat", 3, ONE, CONDITION),
    refused("msetnx", -3, PAIRS, CONDITION),
    refused("setnx", 3, ONE, CONDITION),
    refused("setrange", 4, ONE, CONDITION),
    refused("rename", 3, ALL, CONDITION),
    refused("renamenx", 3, ALL, CONDITION),
    refused("copy", -3, ALL, CONDITION),
    refused("expire", -3, ONE, EXPIRY),
    refused("expireat", -3, ONE, EXPIRY),
    refused("pexpire", -3, ONE, EXPIRY),
    refused("pexpireat", -3, ONE, EXPIRY),
    refused("persist", 2, ONE, EXPIRY),
    refused("setex", 4, ONE, EXPIRY),
    refused("psetex", 4, ONE, EXPIRY),
    refused("multi", 1, NONE, TRANSACTION),
    refused("exec", 1, NONE, TRANSACTION),
    refused("discard", 1, NONE, TRANSACTION),
    refused("watch", -2, ALL, TRANSACTION),
    refused("unwatch", 1, NONE, TRANSACTION),
    refused("flushall", -1, NONE, "is not offered: create the pool anew"),
    refused("flushdb", -1, NONE, "is not offered: create the pool anew"),
];

/// The longest name in [`COMMANDS`].
const NAME_BYTES_MAX: usize = 16;

/// The command of this name, in any case.
pub fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    let mut lower = [0; NAME_BYTES_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    COMMANDS.iter().find(|spec| spec.name.as_bytes() == lower)
}

/// The commands that are served.
pub fn served_commands() -> impl Iterator<Item = &'static CommandSpec> {
    COMMANDS.iter().filter(|spec| spec.kind == Kind::Served)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_stand_once() {
        for spec in COMMANDS {
            assert!(spec.name.len() <= NAME_BYTES_MAX);
            assert_eq!(find(spec.name.to_uppercase().as_bytes()).map(|s| s.name), Some(spec.name));
        }
        assert!(find(b"").is_none() && find(&[b'x'; 100]).is_none());
    }
}
