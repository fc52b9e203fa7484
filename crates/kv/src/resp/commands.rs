//! The commands there are, with what `COMMAND` tells clients about them: arities, flags and key positions are Redis's own
//! (compared with a `redis-server` by a test).

/// What a command is to the dispatcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Served.
    Served,
    /// Redis has it; here it is answered by this error.
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

impl CommandSpec {
    /// Whether so many arguments, the name included, are right.
    pub fn takes(&self, count: usize) -> bool {
        let count = count as i64;
        if self.arity >= 0 { count == self.arity } else { count >= -self.arity }
    }

    /// Whether it has one of Redis's flags.
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// The places of the keys in a command of `count` arguments.
    pub fn key_places(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { count as i64 + last } else { last };
        let none = first == 0;
        (first..=last).step_by(step.max(1) as usize).filter(move |_| !none).map(|place| place as usize)
    }
}

const READ: &[&str] = &["readonly", "fast"];
const WRITE_LONG: &[&str] = &["write", "denyoom"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
const REMOVE: &[&str] = &["write", "fast"];
const READ_LONG: &[&str] = &["readonly"];
const REMOVE_LONG: &[&str] = &["write"];
const CONTAINER: &[&str] = &[];
const WAIT: &[&str] = &["noscript"];
const LOADING: &[&str] = &["loading", "stale"];
const PLAIN: &[&str] = &["loading", "stale", "fast"];
const FAST: &[&str] = &["fast"];
const NO_AUTH: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"];

const ONE: (i64, i64, i64) = (1, 1, 1);
const TWO: (i64, i64, i64) = (1, 2, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);
const NONE: (i64, i64, i64) = (0, 0, 0);

const ATOMIC: &str =
    "would have to be atomic over several keys, which this store does not offer: use commands on one key each";
pub(super) const TRANSACTION: &str =
    "needs transactions, which this store does not offer: use a pipeline without MULTI";
const FLUSH: &str = "is not offered: create the pool anew";
const DEBUG: &str = "is not offered";

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
    CommandSpec { name, arity, flags: REMOVE_LONG, keys, group: "generic", summary: why, kind: Kind::Refused(why) }
}

/// Every command that is known, served ones first.
pub const COMMANDS: &[CommandSpec] = &[
    // strings
    served("get", 2, READ, ONE, "string", "Returns the string value of a key."),
    served(
        "set",
        -3,
        WRITE_LONG,
        ONE,
        "string",
        "Sets a key to a string, on conditions and with an expiry if asked for.",
    ),
    served("setnx", 3, WRITE, ONE, "string", "Sets a key to a string if there is no such key."),
    served("setex", 4, WRITE_LONG, ONE, "string", "Sets a key to a string that expires, in seconds."),
    served("psetex", 4, WRITE_LONG, ONE, "string", "Sets a key to a string that expires, in milliseconds."),
    served("getset", 3, WRITE, ONE, "string", "Sets a key to a string and returns what it was."),
    served("getdel", 2, REMOVE, ONE, "string", "Returns a string and deletes its key."),
    served("getex", -2, REMOVE, ONE, "string", "Returns a string and sets or removes its expiry."),
    served("append", 3, WRITE, ONE, "string", "Appends to a string."),
    served("strlen", 2, READ, ONE, "string", "Returns the length of a string."),
    served("getrange", 4, READ_LONG, ONE, "string", "Returns a part of a string."),
    served("substr", 4, READ_LONG, ONE, "string", "Returns a part of a string (the old name of GETRANGE)."),
    served("setrange", 4, WRITE_LONG, ONE, "string", "Overwrites a part of a string."),
    served("incr", 2, WRITE, ONE, "string", "Adds one to an integer."),
    served("decr", 2, WRITE, ONE, "string", "Subtracts one from an integer."),
    served("incrby", 3, WRITE, ONE, "string", "Adds to an integer."),
    served("decrby", 3, WRITE, ONE, "string", "Subtracts from an integer."),
    served("incrbyfloat", 3, WRITE, ONE, "string", "Adds to a floating point number."),
    served("mget", -2, READ, ALL, "string", "Returns the strings of several keys, each read on its own."),
    served("mset", -3, WRITE_LONG, PAIRS, "string", "Sets several keys, each on its own: not atomic over the keys."),
    // hashes
    served("hset", -4, WRITE, ONE, "hash", "Sets fields of a hash."),
    served("hmset", -4, WRITE, ONE, "hash", "Sets fields of a hash (the old form of HSET)."),
    served("hsetnx", 4, WRITE, ONE, "hash", "Sets a field of a hash if there is no such field."),
    served("hget", 3, READ, ONE, "hash", "Returns the value of a field."),
    served("hmget", -3, READ, ONE, "hash", "Returns the values of several fields."),
    served("hgetall", 2, READ_LONG, ONE, "hash", "Returns all fields and values."),
    served("hdel", -3, REMOVE, ONE, "hash", "Deletes fields, and the hash with the last of them."),
    served("hexists", 3, READ, ONE, "hash", "Says whether there is such a field."),
    served("hlen", 2, READ, ONE, "hash", "Counts the fields."),
    served("hkeys", 2, READ_LONG, ONE, "hash", "Returns all fields."),
    served("hvals", 2, READ_LONG, ONE, "hash", "Returns all values."),
    served("hstrlen", 3, READ, ONE, "hash", "Returns the length of a field's value."),
    served("hincrby", 4, WRITE, ONE, "hash", "Adds to the integer of a field."),
    served("hincrbyfloat", 4, WRITE, ONE, "hash", "Adds to the floating point number of a field."),
    served("hrandfield", -2, READ_LONG, ONE, "hash", "Returns fields by chance."),
    served("hscan", -3, READ_LONG, ONE, "hash", "Iterates over the fields of a hash."),
    // keys
    served("del", -2, REMOVE_LONG, ALL, "generic", "Deletes keys, each on its own."),
    served("unlink", -2, REMOVE, ALL, "generic", "Deletes keys, each on its own."),
    served("exists", -2, READ, ALL, "generic", "Counts how many of the keys exist."),
    served("touch", -2, READ, ALL, "generic", "Counts how many of the keys exist: no access times are kept."),
    served("type", 2, READ, ONE, "generic", "Returns the type of what a key holds."),
    served("expire", -3, REMOVE, ONE, "generic", "Sets the expiry of a key, in seconds from now."),
    served("pexpire", -3, REMOVE, ONE, "generic", "Sets the expiry of a key, in milliseconds from now."),
    served("expireat", -3, REMOVE, ONE, "generic", "Sets the expiry of a key to a Unix time in seconds."),
    served("pexpireat", -3, REMOVE, ONE, "generic", "Sets the expiry of a key to a Unix time in milliseconds."),
    served("ttl", 2, READ, ONE, "generic", "Returns the time a key has left, in seconds."),
    served("pttl", 2, READ, ONE, "generic", "Returns the time a key has left, in milliseconds."),
    served("expiretime", 2, READ, ONE, "generic", "Returns when a key expires, as Unix time in seconds."),
    served("pexpiretime", 2, READ, ONE, "generic", "Returns when a key expires, as Unix time in milliseconds."),
    served("persist", 2, REMOVE, ONE, "generic", "Removes the expiry of a key."),
    served("keys", 2, READ_LONG, NONE, "generic", "Returns all keys that match a pattern."),
    served("scan", -2, READ_LONG, NONE, "generic", "Iterates over the keys."),
    served("randomkey", 1, READ_LONG, NONE, "generic", "Returns a key by chance, not all with the same chance."),
    served("object", -2, CONTAINER, NONE, "generic", "Returns how a value is kept."),
    served(
        "wait",
        3,
        WAIT,
        NONE,
        "generic",
        "Returns on how many further members each acknowledged write of this connection is stable.",
    ),
    // server
    served("dbsize", 1, READ, NONE, "server", "Returns how many keys there are: about, if they are many."),
    served("info", -1, LOADING, NONE, "server", "Returns information about the gateway and the pool."),
    served("time", 1, PLAIN, NONE, "server", "Returns the gateway's time."),
    served("config", -2, CONTAINER, NONE, "server", "CONFIG GET: returns parameters that clients ask for."),
    served("command", -1, LOADING, NONE, "server", "Returns what is known about commands."),
    served(
        "memory",
        -2,
        CONTAINER,
        NONE,
        "server",
        "MEMORY USAGE: returns the bytes that a key takes on each of its members.",
    ),
    // connection
    served("ping", -1, FAST, NONE, "connection", "Returns PONG or its argument."),
    served("echo", 2, PLAIN, NONE, "connection", "Returns its argument."),
    served("hello", -1, NO_AUTH, NONE, "connection", "Chooses the protocol version, and authenticates."),
    served("auth", -2, NO_AUTH, NONE, "connection", "Authenticates."),
    served("select", 2, PLAIN, NONE, "connection", "Chooses a database: there is only 0."),
    served("client", -2, CONTAINER, NONE, "connection", "Names, lists and closes connections."),
    served("reset", 1, NO_AUTH, NONE, "connection", "Puts the connection back to its first state."),
    served("quit", -1, NO_AUTH, NONE, "connection", "Closes the connection."),
    refused("msetnx", -3, PAIRS, ATOMIC),
    refused("rename", 3, TWO, ATOMIC),
    refused("renamenx", 3, TWO, ATOMIC),
    refused("copy", -3, TWO, ATOMIC),
    refused("multi", 1, NONE, TRANSACTION),
    refused("exec", 1, NONE, TRANSACTION),
    refused("discard", 1, NONE, TRANSACTION),
    refused("watch", -2, ALL, TRANSACTION),
    refused("unwatch", 1, NONE, TRANSACTION),
    refused("flushall", -1, NONE, FLUSH),
    refused("flushdb", -1, NONE, FLUSH),
    refused("debug", -2, NONE, DEBUG),
];

/// The longest name in [`COMMANDS`].
const NAME_BYTES_MAX: usize = 16;

/// The place in [`COMMANDS`] of the command of this name, in any case.
pub fn find(name: &[u8]) -> Option<usize> {
    let mut lower = [0; NAME_BYTES_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    COMMANDS.iter().position(|spec| spec.name.as_bytes() == lower)
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
        for (index, spec) in COMMANDS.iter().enumerate() {
            assert!(spec.name.len() <= NAME_BYTES_MAX);
            assert_eq!(find(spec.name.to_uppercase().as_bytes()), Some(index), "{}", spec.name);
        }
        assert!(find(b"").is_none() && find(&[b'x'; 100]).is_none());
    }

    #[test]
    fn keys_are_where_the_table_says() {
        let places = |name: &str, count| -> Vec<usize> {
            COMMANDS[find(name.as_bytes()).expect("known")].key_places(count).collect()
        };
        assert_eq!(places("get", 2), [1]);
        assert_eq!(places("mset", 5), [1, 3]);
        assert_eq!(places("del", 4), [1, 2, 3]);
        assert!(places("info", 1).is_empty());
    }
}
