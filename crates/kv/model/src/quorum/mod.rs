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
//! - [`change`]: epochs: seals, migration, cleaning, the collection of tombstones.
//! - [`room`]: gets where members are full.
//! - [`rules`]: the rules that can be broken.
//! - [`struck`]: what is known not to have happened.
//! - [`configs`], [`change_configs`]: the configurations that were searched, the sound ones and the broken ones.

pub mod change;
pub mod change_configs;
pub mod configs;
mod decide;
mod history;
pub mod host;
pub mod member;
pub mod room;
pub mod rules;
mod steps;
pub mod struck;

pub use change::Map;
use decide::Answers;
pub use rules::Rules;
pub use steps::Search;

/// Hosts in a configuration, at most: chosen by what can be searched.
pub const HOSTS_MAX: usize = 3;
/// Operations in a configuration, at most: a set of them is a `u8`.
pub const OPERATIONS_MAX: usize = 6;
/// Conditional operations that can stand on one put: bounds the list in the entry.
pub const APPLIED_MAX: usize = 3;
/// Attempts of one operation whose result is kept.
pub const ATTEMPTS_MAX: usize = 6;

/// Round, kind and operation, see [`slow_ballot`]; 0: none.
pub type Ballot = u16;

/// (counter, operation id of the put, ballot of the last conditional operation on top of it), compared in this order.
pub type Timestamp = (u8, u8, Ballot);

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
    pub ballot: Ballot,
    /// The value; [`ABSENT`] in a tombstone.
    pub value: u8,
    /// Conditional operations applied since the put, as (operation id, ballot of the attempt): a retry finds itself here.
    pub applied: [(u8, Ballot); APPLIED_MAX],
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
    fn ballot_of(&self, operation: u8) -> Option<Ballot> {
        self.applied.iter().find(|a| a.0 == operation).map(|a| a.1)
    }
    fn apply(&mut self, operation: u8, ballot: Ballot) {
        let free = self.applied.iter_mut().find(|a| a.0 == 0).expect("a configuration has at most APPLIED_MAX of them");
        *free = (operation, ballot);
    }
}

/// Set in the ballots that go through a prepare: they sort above the fast ballots of their round.
const SLOW: Ballot = 1 << 4;
/// Counters of an epoch, and rounds of an epoch: the epoch stands in the bits above.
const EPOCH_SHIFT: u8 = 4;

fn round(ballot: Ballot) -> u16 {
    ballot >> 5
}
fn slow_ballot(round: u16, operation: u8) -> Ballot {
    round << 5 | SLOW | fast_operation(operation)
}
fn fast_ballot(round: u16, operation: u8) -> Ballot {
    round << 5 | fast_operation(operation)
}
fn fast_operation(operation: u8) -> Ballot {
    assert!(Ballot::from(operation) < SLOW);
    Ballot::from(operation)
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
    /// Close the page to older epochs.
    Seal,
    /// The same, and forget the key where this is not its home any more.
    Clean,
    /// The same, and forget a tombstone of before the floor.
    Drop,
    /// Forget exactly the tombstone expected.
    DropExact,
    /// Install the entry in a member that lost its own, by compare-and-write on the damaged bytes.
    Restore,
}

/// A request under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Request {
    kind: Kind,
    /// Epoch of the operation.
    epoch: u8,
    ballot: Ballot,
    entry: Entry,
    /// What the member must still hold ([`Kind::FastAccept`], [`Kind::DropExact`]).
    expected: Timestamp,
    /// Promise that must be unchanged ([`Kind::FastAccept`]), that is made as well ([`Kind::Accept`] with
    /// [`Rules::reserve`]), or that is restored ([`Kind::Restore`]).
    promise: Ballot,
    /// Number of the loss that is repaired ([`Kind::Restore`] and the read before it).
    loss: u8,
}

/// A member's answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Reply {
    /// None yet.
    #[default]
    None,
    /// Done; what the member holds now: entry and promise; and whether the page was open to older epochs (told where
    /// [`Rules::full`] needs it).
    Done(Entry, Ballot, bool),
    /// A newer entry is there already; the promise.
    Superseded(Ballot),
    /// Not done; what stood against it.
    Refused(Ballot),
    /// Not done; the page is closed to epochs older than this.
    Sealed(u8),
}

/// A member with the messages on their way to and from it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Member {
    /// What it stores.
    pub entry: Entry,
    /// Highest ballot promised.
    pub promised: Ballot,
    /// Operations of older epochs find the page closed.
    pub seal: u8,
    /// Set of epochs whose map has this member as a home of the key.
    homes: u16,
    /// Its entry was lost by the n-th loss and is not yet restored: it answers nothing. 0: it has a vote.
    pub voteless: u8,
    /// Epoch of the map in force when that was lost; 0 once it is restored.
    lost_at: u8,
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
    /// Gave up for good.
    Dead,
}

/// One attempt of a conditional operation that may have reached members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
struct Attempt {
    ballot: Ballot,
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
    /// Highest round that this operation has met ([`Config::ballots_as_met`]).
    round_met: u16,
    /// Epoch of the map as the host last read it, and of the current operation.
    epoch: u8,
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
    /// Epoch of the newest map.
    map: u8,
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
    /// A get by a host whose clock says that this value has expired: a conditional delete of it.
    GetExpired(u8),
    /// Restore the member that lost its data.
    Rebuild,
    /// Make the map of this epoch the newest.
    Publish(u8),
    /// Close the pages of a majority of the old homes to older epochs.
    Seal(u8),
    /// Close the pages of all homes.
    SealAll(u8),
    /// Copy the key to its new homes.
    Migrate(u8),
    /// Seal all pages, forget the key where it is no longer at home.
    Clean(u8),
    /// Make all homes hold the newest entry.
    Sweep(u8),
    /// Seal all pages, forget tombstones of before the floor.
    Drop(u8),
    /// Drop a tombstone of an older epoch that all homes hold, without a sweep: looks right and is not.
    DropHeld(u8),
}

impl Operation {
    /// Whether it is of the pool's upkeep: not part of the history.
    fn is_upkeep(self) -> bool {
        use Operation::{Clean, Drop, DropHeld, Migrate, Publish, Rebuild, Seal, SealAll, Sweep};
        matches!(
            self,
            Rebuild | Publish(_) | Seal(_) | SealAll(_) | Migrate(_) | Clean(_) | Sweep(_) | Drop(_) | DropHeld(_)
        )
    }
    /// Whether it reads, decides and writes by ballots, and may so end unknown.
    fn is_conditional(self) -> bool {
        matches!(self, Operation::Increment | Operation::CompareAndSet(..) | Operation::GetExpired(_))
    }
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
    /// A ballot is above those that the operation has met, instead of above all there are: more refusals, more states.
    pub ballots_as_met: bool,
    /// How many times a member may lose its data.
    pub losses: u8,
    /// Members that are given up at some time, of which hosts hear at any time or never: whoever has heard is content with all
    /// that are left of half of the homes. They may answer all the while.
    pub given_up: u8,
    /// The first epoch in which they may be.
    pub given_up_in: u8,
    /// The epoch from which on all hosts have heard: those that go by its map, or a later one.
    pub heard: Option<u8>,
    /// The epoch from which on they are members as before.
    pub taken_in: Option<u8>,
    /// The map of each epoch.
    pub maps: Vec<Map>,
    /// The protocol.
    pub rules: Rules,
}

impl Config {
    /// The default protocol with two ballots per operation.
    pub fn new(name: &'static str, hosts: &[&[Operation]]) -> Config {
        let hosts: Vec<Vec<Operation>> = hosts.iter().map(|host| host.to_vec()).collect();
        let clients = hosts.iter().flatten().filter(|operation| !operation.is_upkeep()).count();
        let clients_first = hosts.iter().flatten().take(clients).all(|operation| !operation.is_upkeep());
        assert!(hosts.len() <= HOSTS_MAX && clients <= OPERATIONS_MAX && clients_first);
        Config {
            name,
            hosts,
            ballots_max: 2,
            ballots_as_met: false,
            losses: 0,
            given_up: 0,
            given_up_in: 0,
            heard: None,
            taken_in: None,
            maps: vec![Map::stable(0b111)],
            rules: Rules::default(),
        }
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
}
