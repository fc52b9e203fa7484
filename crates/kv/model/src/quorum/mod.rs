//! One key on three members joined by majorities, with stateless hosts and no leader.
//!
//! Every request to a member is a message that lands at any time or never. So a member that never answers is a crashed
//! or unreachable one, a host that is never scheduled again is a crashed one whose requests may still land, and a
//! request outlives the operation that sent it. What a member does with a message is atomic; that this is true although
//! the entry is spread over pages is shown by [`crate::page`].
//!
//! The property: each history of returned values is linearizable, operations without a known outcome being optional.
//!
//! - [`member`]: what a member does with a request (the binding rules STORE, PREPARE, ACCEPT).
//! - [`host`]: what a host does with the replies (put, get, delete, conditional operations).
//! - [`steps`]: which steps a state offers; symmetry; progress.
//! - [`configs`]: the configurations that were searched, the sound ones and the broken ones.

pub mod configs;
mod decide;
mod history;
pub mod host;
pub mod member;
mod steps;

pub use steps::Search;

/// Hosts in a configuration, at most: chosen by what can be searched.
pub const HOSTS_MAX: usize = 3;
/// Operations in a configuration, at most: a set of them is a `u8`.
pub const OPERATIONS_MAX: usize = 6;
/// Conditional operations that can stand on one put: bounds the list in the entry.
pub const APPLIED_MAX: usize = 3;
/// Attempts of one operation whose result is kept.
pub const ATTEMPTS_MAX: usize = 6;

/// (counter, operation id of the put, ballot of the last conditional operation on top of it), compared in this order.
pub type Timestamp = (u8, u8, u8);

/// The value of an absent key, and of a deleted one.
pub const ABSENT: u8 = 0;

/// What a member keeps for the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Entry {
    /// Counter of the put.
    pub counter: u8,
    /// The put's operation id: never used by another operation, or two values could share a timestamp.
    pub operation: u8,
    /// Ballot of the last conditional operation on this put; 0: none.
    pub ballot: u8,
    /// The value; [`ABSENT`] in a tombstone.
    pub value: u8,
    /// Conditional operations applied since the put, as (operation id, ballot of the attempt): a retry finds itself here.
    pub applied: [(u8, u8); APPLIED_MAX],
}

impl Entry {
    /// The entry's place in the order of all entries of the key.
    pub fn timestamp(&self) -> Timestamp {
        (self.counter, self.operation, self.ballot)
    }
    /// The put that this entry stands on.
    fn era(&self) -> (u8, u8) {
        (self.counter, self.operation)
    }
    /// Whether the entry was stored without a prepare (the variant [`Rules::fast`]).
    fn is_fast(&self) -> bool {
        self.ballot != 0 && self.ballot & SLOW == 0
    }
    fn ballot_of(&self, operation: u8) -> Option<u8> {
        self.applied.iter().find(|a| a.0 == operation).map(|a| a.1)
    }
    fn apply(&mut self, operation: u8, ballot: u8) {
        let free = self.applied.iter_mut().find(|a| a.0 == 0).expect("a configuration has at most APPLIED_MAX of them");
        *free = (operation, ballot);
    }
}

/// Set in the ballots that go through a prepare: they sort above the fast ballots of their round.
const SLOW: u8 = 8;

fn round(ballot: u8) -> u8 {
    ballot >> 4
}
fn slow_ballot(round: u8, operation: u8) -> u8 {
    assert!(round < 16 && operation < SLOW);
    round << 4 | SLOW | operation
}
fn fast_ballot(round: u8, operation: u8) -> u8 {
    round << 4 | operation
}

/// What a host asks of a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Kind {
    /// Return the entry.
    #[default]
    Read,
    /// Promise the ballot and return the entry.
    Prepare,
    /// Store if newer, whatever was promised.
    Store,
    /// Store if newer and no higher ballot was promised.
    Accept,
    /// Store if nothing changed since the read (variant).
    FastAccept,
    /// Forget a tombstone.
    Drop,
    /// Install the entry in a member that lost its own, by compare-and-write on the damaged bytes.
    Restore,
}

/// A request under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Request {
    kind: Kind,
    ballot: u8,
    entry: Entry,
    /// What the member must still hold ([`Kind::FastAccept`], [`Kind::Drop`]).
    expected: Timestamp,
    /// Promise that must be unchanged ([`Kind::FastAccept`]), or that is made as well ([`Kind::Accept`] with
    /// [`Rules::reserve`]); number of the loss that is repaired ([`Kind::Restore`]
    /// and the read before it).
    promise: u8,
}

/// A member's answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Reply {
    /// None yet.
    #[default]
    None,
    /// Done; what the member holds now: entry and promise.
    Done(Entry, u8),
    /// A newer entry is there already; the promise.
    Superseded(u8),
    /// Not done; what stood against it.
    Refused(u8),
}

/// A member with the messages on their way to and from it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Member {
    /// What it stores.
    pub entry: Entry,
    /// Highest ballot promised.
    pub promised: u8,
    /// Its entry was lost by the n-th loss and is not yet restored: it answers nothing. 0: it has a vote.
    pub voteless: u8,
    replies: [Reply; HOSTS_MAX],
    pending: [bool; HOSTS_MAX],
    /// Requests whose sender no longer waits.
    late: Vec<Request>,
}

/// Where a host stands in its operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Phase {
    /// Between operations.
    #[default]
    Idle,
    /// Waiting for a majority of reads.
    Read,
    /// Waiting for a majority of promises.
    Prepare,
    /// Waiting for a majority of stores.
    Store,
    /// Waiting for a majority of accepts.
    Accept,
    /// Waiting for fast accepts.
    FastAccept,
    /// Waiting for tombstones to be dropped.
    Drop,
    /// Gave up for good.
    Dead,
}

/// One attempt of a conditional operation that may have reached members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
struct Attempt {
    ballot: u8,
    era: (u8, u8),
    result: u8,
}

/// A host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Host {
    /// Index of the current or next operation.
    next: u8,
    phase: Phase,
    ballots_used: u8,
    /// Epoch the host is in: 0 old, 1 joint, 2 new.
    epoch: u8,
    /// Epoch of the current operation, fixed when it began.
    operation_epoch: u8,
    request: Request,
    result: u8,
    attempt_count: u8,
    attempts: [Attempt; ATTEMPTS_MAX],
}

/// What is known of an operation from outside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Status {
    /// Not invoked.
    #[default]
    Never,
    /// Invoked, not returned.
    Pending,
    /// Returned.
    Done,
    /// Returned "the outcome is unknown".
    Unknown,
}

/// One operation in the history.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Record {
    status: Status,
    /// Set of operations that had returned when this one was invoked.
    preceding: u8,
    result: u8,
}

/// A state of the whole system.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The members.
    pub members: Vec<Member>,
    hosts: [Host; HOSTS_MAX],
    /// The history so far.
    pub history: [Record; OPERATIONS_MAX],
    /// The migrator has finished, or the tombstones were drained.
    settled: bool,
    /// Members that may yet lose their data.
    losses_left: u8,
}

/// An operation of a host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// Write the value.
    Put(u8),
    /// Read, write 1 more, return it.
    Increment,
    /// Write the second value if the first is there; returns 1 or 0.
    CompareAndSet(u8, u8),
    /// Return the value.
    Get,
    /// Put of a tombstone.
    Delete,
    /// Drop the tombstone.
    Collect,
    /// Move the key to the new members.
    Migrate,
    /// Restore the member that lost its data.
    Rebuild,
}

/// Variations of the protocol: the default is what Yagura does, each flag departs from it.
#[derive(Clone, Default, Debug)]
pub struct Rules {
    /// One flat timestamp for puts and conditional operations, puts subject to promises.
    pub flat: bool,
    /// … puts ignore promises.
    pub flat_put_ignores_promise: bool,
    /// … a refused put tries again with a new timestamp.
    pub flat_put_retries: bool,
    /// … a superseded put counts as done, also where a promise would refuse it.
    pub flat_superseded_first: bool,
    /// A get returns the newest entry without writing it back.
    pub no_write_back: bool,
    /// A get writes a conditional operation's entry back as if it were a put's.
    pub write_back_ignores_promise: bool,
    /// Conditional operations leave no operation id.
    pub no_operation_id: bool,
    /// A conditional operation goes on although a put came between its attempts.
    pub retry_across_era: bool,
    /// A put is done when one member holds something newer.
    pub superseded_once_is_done: bool,
    /// Operation ids are reused after a restart.
    pub reuse_operation_id: bool,
    /// A failed condition is reported on a value that only a minority may hold.
    pub fail_without_write_back: bool,
    /// ACCEPT looks at the timestamp before the promise.
    pub superseded_before_promise: bool,
    /// Conditional operations in two round trips if all members answer alike.
    pub fast: bool,
    /// … already if a majority does.
    pub fast_majority: bool,
    /// … without looking whether a promise stands.
    pub fast_ignores_promise: bool,
    /// … and such an entry is read from a majority.
    pub fast_majority_read: bool,
    /// Four members, the first three in the old epoch and the last three in the new one.
    pub epochs: bool,
    /// … a host enters the new epoch before all are in the joint one.
    pub new_epoch_early: bool,
    /// … and before the migration is complete.
    pub new_epoch_before_migration: bool,
    /// A tombstone is dropped when this many fewer than all members hold it.
    pub drop_missing: usize,
    /// A tombstone is dropped only when older operations have ended and their messages landed; later puts start above it.
    pub drop_after_drain: bool,
    /// … but later puts may use small counters.
    pub drop_without_floor: bool,
    /// ACCEPT also promises the host's next ballot, so that the repeat needs no prepare.
    pub reserve: bool,
    /// A host may report any operation as unknown at any time and go on.
    pub give_up: bool,
    /// A delete removes the entry, timestamp and all.
    pub delete_forgets: bool,
    /// A member that lost its data keeps its vote.
    pub lost_member_votes: bool,
    /// A lost member is rebuilt from a single other.
    pub rebuild_from_one: bool,
    /// A lost member is rebuilt while operations count on acknowledgements it gave before.
    pub rebuild_at_once: bool,
}

/// A configuration: who does what, under which rules.
#[derive(Clone, Debug)]
pub struct Config {
    /// As it is printed.
    pub name: &'static str,
    /// The operations of each host.
    pub hosts: Vec<Vec<Operation>>,
    /// Ballots an operation may use.
    pub ballots_max: u8,
    /// How many times a member may lose its data.
    pub losses: u8,
    /// The protocol.
    pub rules: Rules,
}

impl Config {
    /// The default protocol with two ballots per operation.
    pub fn new(name: &'static str, hosts: &[&[Operation]]) -> Config {
        let hosts: Vec<Vec<Operation>> = hosts.iter().map(|host| host.to_vec()).collect();
        assert!(hosts.len() <= HOSTS_MAX && hosts.iter().map(Vec::len).sum::<usize>() <= OPERATIONS_MAX);
        Config { name, hosts, ballots_max: 2, losses: 0, rules: Rules::default() }
    }

    /// The same with something changed.
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Config {
        change(&mut self);
        self
    }

    /// The same under other rules.
    pub fn under(self, change: impl FnOnce(&mut Rules)) -> Config {
        self.with(|config| change(&mut config.rules))
    }

    fn operation_index(&self, host: usize, next: usize) -> usize {
        self.hosts[..host].iter().map(Vec::len).sum::<usize>() + next
    }

    /// The operation the host is in, with its index and its unique id.
    fn current(&self, state: &State, host: usize) -> (Operation, usize, u8) {
        let next = usize::from(state.hosts[host].next);
        let index = self.operation_index(host, next);
        (self.hosts[host][next], index, index as u8 + 1)
    }

    fn finished(&self, state: &State, host: usize) -> bool {
        usize::from(state.hosts[host].next) == self.hosts[host].len()
    }

    /// Set of members that an operation of this epoch asks.
    fn targets(&self, epoch: u8) -> u8 {
        if self.rules.epochs { [0b0111, 0b1111, 0b1110][usize::from(epoch)] } else { 0b0111 }
    }

    fn quorum(&self, epoch: u8, members: u8) -> bool {
        let old = (members & 0b0111).count_ones() >= 2;
        let new = (members & 0b1110).count_ones() >= 2;
        match epoch {
            _ if !self.rules.epochs => old,
            0 => old,
            1 => old && new,
            _ => new,
        }
    }
}
