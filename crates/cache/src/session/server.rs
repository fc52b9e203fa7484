//! What a session needs of the server it belongs to: its rules, its figures, and what administrators change.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{PoisonError, RwLock};

use tls::Secret;

use crate::slot::NoRoom;

/// Which protocols a connection may speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocols {
    /// What its first byte says.
    #[default]
    Both,
    /// The text and the meta protocol (`-B ascii`).
    Text,
    /// The binary protocol (`-B binary`).
    Binary,
}

/// How a connection proves who it is.
#[derive(Debug, Default)]
pub enum Authentication {
    /// Not at all.
    #[default]
    None,
    /// By a `set` whose value is a name and a password (`-Y`); the text protocol alone is spoken.
    Text(Users),
    /// By SASL PLAIN (`-S`); the binary protocol alone is spoken.
    Sasl(Users),
}

impl Authentication {
    /// Who is known, where it has to be proven.
    pub fn users(&self) -> Option<&Users> {
        match self {
            Authentication::None => None,
            Authentication::Text(users) | Authentication::Sasl(users) => Some(users),
        }
    }
}

/// Names and passwords, which may change while the server runs.
#[derive(Default)]
pub struct Users {
    users: RwLock<Vec<(Secret, Secret)>>,
}

/// Bytes of a name and a password with the colon between them. Chosen: twice memcached's.
pub const USER_BYTES_MAX: usize = 512;

/// What is wrong with a file of users.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UsersError {
    /// A line has no colon: its number, from 1 on.
    #[error("line {0} is no name:password")]
    NoColon(usize),
    /// A line is too long: its number.
    #[error(
        "line {0} is longer than the {USER_BYTES_MAX} bytes that a name and a password may have: shorten the password"
    )]
    TooLong(usize),
}

impl Users {
    /// Reads lines of `name:password`, as memcached's file for `-Y` has them.
    ///
    /// # Errors
    /// Which line is wrong.
    pub fn parse(text: &str) -> Result<Users, UsersError> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty());
        let user = |(at, line): (usize, &str)| {
            let (name, password) = line.split_once(':').ok_or(UsersError::NoColon(at + 1))?;
            if line.len() > USER_BYTES_MAX {
                return Err(UsersError::TooLong(at + 1));
            }
            Ok((Secret::new(name.into()), Secret::new(password.into())))
        };
        Ok(Users { users: RwLock::new(lines.map(user).collect::<Result<_, UsersError>>()?) })
    }

    /// Takes `others` in place of all of them. Who has proven who he is stays so.
    pub fn replace(&self, others: Users) {
        let others = others.users.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.users.write().unwrap_or_else(PoisonError::into_inner) = others;
    }

    /// There is such a user with this password. Takes as long whichever byte is wrong.
    pub fn accepts(&self, name: &[u8], password: &[u8]) -> bool {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        users.iter().fold(false, |found, (known, secret)| found | (known.is(name) & secret.is(password)))
    }
}

impl fmt::Debug for Users {
    /// Tells no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.users.read().unwrap_or_else(PoisonError::into_inner).len())
    }
}

/// What holds for every connection of a server.
#[derive(Debug)]
pub struct Rules {
    /// The longest item in memcached's counting, key and overhead among it (`-I`).
    pub item_bytes_max: usize,
    /// What may be spoken.
    pub protocols: Protocols,
    /// Who may speak.
    pub authentication: Authentication,
    /// `shutdown` is served (`-A`).
    pub serves_shutdown: bool,
    /// `flush_all` is served (not with `-F`).
    pub serves_flush: bool,
    /// `stats cachedump` and `lru_crawler metadump` are served (not with `-X`).
    pub serves_dump: bool,
    /// `watch` is served (not with `-W`).
    pub serves_watch: bool,
}

impl Default for Rules {
    /// memcached's.
    fn default() -> Rules {
        Rules {
            item_bytes_max: 1 << 20,
            protocols: Protocols::Both,
            authentication: Authentication::None,
            serves_shutdown: false,
            serves_flush: true,
            serves_dump: true,
            serves_watch: true,
        }
    }
}

/// Something that statistics count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A key was looked up: with a hit or not.
    Get(bool),
    /// A key was touched, or looked up and touched.
    Touch(bool),
    /// An item was met that had expired.
    Expired,
    /// A value came to be stored, under whatever condition.
    Set,
    /// A value came with a cas: it was right, wrong, or there was no item.
    Cas(CasResult),
    /// An item was to be deleted.
    Delete(bool),
    /// An item was to be counted up.
    Increment(bool),
    /// An item was to be counted down.
    Decrement(bool),
    /// `flush_all`.
    Flush,
    /// A meta command.
    Meta,
    /// A value was longer than an item may be.
    TooLarge,
    /// There was no room for an item.
    NoMemory,
    /// Somebody gave a password: a right one or not.
    Authentication(bool),
}

/// What watchers are told of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happening {
    /// It was looked for.
    Fetch {
        /// Bytes of the value, if there was one.
        bytes: Option<usize>,
        /// There was one that had expired.
        had_expired: bool,
    },
    /// A value came for it.
    Store {
        /// memcached's name for what became of it.
        status: &'static str,
        /// The command.
        command: &'static str,
        /// Seconds until it expires; 0: it does not.
        ttl: u32,
        /// Bytes of the value.
        bytes: usize,
    },
}

/// Why a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Its peer is done.
    Normal,
    /// Something went wrong.
    Error,
    /// It rested for too long.
    IdleTimeout,
    /// The server ends.
    Shutdown,
}

impl Ending {
    /// memcached's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Ending::Normal => "normal",
            Ending::Error => "error",
            Ending::IdleTimeout => "idle_timeout",
            Ending::Shutdown => "shutdown",
        }
    }
}

/// How a cas compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CasResult {
    /// It was the item's.
    Hit,
    /// It was another's.
    BadValue,
    /// There was no item.
    Miss,
}

/// Which statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stats<'a> {
    /// `stats`.
    General,
    /// `stats settings`.
    Settings,
    /// `stats conns`.
    Connections,
    /// `stats extstore`: those of flash.
    Extstore,
    /// Any other word: `items`, `slabs`, `sizes`, or one that is not known.
    Named(&'a [u8]),
}

/// What an administrator asks for; the server's answer is a line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Control {
    /// `verbosity LEVEL`.
    Verbosity(u32),
    /// `cache_memlimit MEBIBYTES`, which is at least 8 and at most 1,000,000,000.
    MemoryLimit(u32),
    /// `lru mode flat`, or `segmented`.
    LruSegmented(bool),
    /// `lru tune`: per cent hot and warm, and their factors.
    LruTune(u32, u32, f64, f64),
    /// `lru temp_ttl SECONDS`; below 0: off.
    LruTemporary(i32),
    /// `slabs automove 0`, 1 or 2.
    SlabsAutomove(u32),
    /// `slabs automove ratio`.
    SlabsAutomoveRatio(f64),
    /// `lru_crawler tocrawl COUNT`.
    CrawlCount(u32),
    /// `lru_crawler sleep MICROSECONDS`.
    CrawlSleep(u32),
    /// `refresh_certs`.
    RefreshCertificates,
}

/// What administrators turn on and off without any further effect.
#[derive(Debug, Default)]
pub struct Switches {
    crawler_is_off: AtomicBool,
    tracks_sizes: AtomicBool,
}

impl Switches {
    /// `lru_crawler enable`, which is how a server begins.
    pub(super) fn crawls(&self) -> bool {
        !self.crawler_is_off.load(Relaxed)
    }

    pub(super) fn set_crawls(&self, on: bool) {
        self.crawler_is_off.store(!on, Relaxed);
    }

    /// `stats sizes_enable`.
    pub(super) fn tracks_sizes(&self) -> bool {
        self.tracks_sizes.load(Relaxed)
    }

    pub(super) fn set_tracks_sizes(&self, on: bool) {
        self.tracks_sizes.store(on, Relaxed);
    }
}

/// What a watcher wants to see: memcached's names for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watch {
    /// One bit each, in the order of [`Watch::NAMES`].
    pub bits: u16,
}

impl Watch {
    /// The names.
    pub const NAMES: [&'static str; 9] = [
        "rawcmds",
        "evictions",
        "fetchers",
        "mutations",
        "sysevents",
        "connevents",
        "proxyreqs",
        "proxyevents",
        "proxyuser",
    ];

    /// Items that are let go for others.
    pub const EVICTIONS: Watch = Watch { bits: 1 << 1 };
    /// Keys that are looked for; what `watch` is without a word.
    pub const FETCHERS: Watch = Watch { bits: 1 << 2 };
    /// Values that come to be stored.
    pub const MUTATIONS: Watch = Watch { bits: 1 << 3 };
    /// Connections that begin and end.
    pub const CONNEVENTS: Watch = Watch { bits: 1 << 5 };

    /// One of these is wanted.
    pub fn wants(self, some: Watch) -> bool {
        self.bits & some.bits != 0
    }

    /// Adds a name; false if it is not known.
    pub(super) fn add(&mut self, name: &[u8]) -> bool {
        let at = Watch::NAMES.iter().position(|known| known.as_bytes() == name);
        self.bits |= at.map_or(0, |at| 1 << at);
        at.is_some()
    }
}

/// The server of a session.
pub trait Server {
    /// Counts something; called with every command, so it has to be quick.
    fn count(&self, event: Event);

    /// Tells statistics, by name and value. False if these are not known.
    fn stats(&self, stats: Stats<'_>, tell: &mut dyn FnMut(&str, &str)) -> bool;

    /// `stats reset`.
    fn reset_stats(&self);

    /// Somebody watches keys: [`Server::happened`] is to be told of each that a command meets. Asked with every command.
    fn is_watched(&self) -> bool;

    /// The connection of this number met a key.
    fn happened(&self, connection: u64, key: &[u8], what: Happening);

    /// Statistics by prefix of keys are kept: each command tells [`Server::count_prefix`] then.
    fn counts_prefixes(&self) -> bool;

    /// Turns the statistics by prefix on or off.
    fn set_counts_prefixes(&self, on: bool);

    /// Counts a command by the prefix of its key.
    fn count_prefix(&self, key: &[u8], event: Event);

    /// `stats detail dump`: lines, without the `END`.
    fn prefixes(&self) -> String;

    /// `stats cachedump CLASS LIMIT`: lines, without the `END`. `limit` 0: as many as two megabytes hold.
    fn cache_dump(&self, class: u32, limit: u32) -> String;

    /// What was turned on and off.
    fn switches(&self) -> &Switches;

    /// Commands are told on the log ([`Server::tell_command`]). Asked with every command.
    fn tells_commands(&self) -> bool {
        false
    }

    /// A command of the connection of this number is over: its line and its answer's first, made fit for a log; none: it had none.
    fn tell_command(&self, _connection: u64, _line: &str, _answer: Option<&str>) {}

    /// Does what an administrator asks for; answers a line, without its end.
    fn control(&self, control: Control) -> String;

    /// There is room for one more watcher.
    fn may_watch(&self) -> bool {
        true
    }

    /// `shutdown`; the connection closes without an answer.
    fn shut_down(&self, gracefully: bool);
}

/// What the driver of a session is to do.
#[derive(Debug)]
pub enum Step<P> {
    /// Send what waits, if anything does (else let other connections have their turn), and go on.
    Send,
    /// Send what waits, if anything does; receive into [`super::Session::lend`]'s buffer, and go on.
    Receive,
    /// Fetch these, all at once, and hand them to [`super::Session::fetched`] in their order.
    Fetch(Vec<P>),
    /// Make room and tell [`super::Session::made_room`].
    MakeRoom(NoRoom),
    /// From now on the connection is a watcher's: what happens is sent until it ends. An `OK` already waits.
    Watch(Watch),
    /// Send a line for each item (`lru_crawler metadump`) and then `END`, behind what waits; and go on.
    Dump(Dump),
    /// Send what waits, and close.
    Close(Ending),
}

/// What `lru_crawler metadump` tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dump {
    /// Items, and not the end alone: their class was asked for.
    pub has_items: bool,
}
