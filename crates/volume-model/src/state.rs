//! What a state of the model consists of: all that determines the future, and nothing else.

/// Holders of the record, at most: the replicas, and a witness where there are two.
pub const HOLDERS: usize = 3;
/// Regions of the volume, at most; a region is one block.
pub const REGIONS: usize = 2;
/// Hosts, at most: each attaches once.
pub const HOSTS: usize = 3;
/// Threads of clients on a host, at most.
pub const THREADS: usize = 2;
/// Operations of all clients, at most, and [`ROLLBACKS`].
pub const CALLS: usize = 8;
/// Attachments that may go back to an earlier state, at most: each stands among the calls, from the end.
pub const ROLLBACKS: usize = 2;

/// Snapshots, at most: each attempt has a name.
pub const SNAPSHOTS: usize = 2;

/// A set of holders, regions or hosts: one bit each.
pub type Set = u8;

/// A set of values of a region: one bit each.
pub type Values = u16;

/// The set of one value. Those that no client writes share a bit: no two of them meet in a cache.
pub fn only(value: u8) -> Values {
    1 << value.min(15)
}

/// Whether a set has an index.
pub fn has(set: Set, index: usize) -> bool {
    set >> index & 1 == 1
}

/// In-sync replicas have the same bytes here.
pub const CLEAN: u8 = 0;
/// In-sync replicas may differ here.
pub const INTENT: u8 = 1;
/// Only replicas that are not in sync may lack something here.
pub const BEHIND: u8 = 2;
/// What a log entry will be is under way.
pub const UNDER_WAY: u8 = 9;

/// Which replicas are in sync: kept by every holder, ordered by ballot and version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Record {
    /// Of the attachment that wrote it.
    pub ballot: u8,
    /// Within the attachment, from 1; 0: none.
    pub version: u8,
    /// The replicas in sync.
    pub in_sync: Set,
    /// The life of each holder.
    pub lives: Set,
    /// Those before a change of holders that is not finished, else the same.
    pub lives_before: Set,
    /// How often each has lost power: two bits for each.
    pub power_losses: u8,
    /// Who has each snapshot.
    pub snapshots: [Set; SNAPSHOTS],
    /// The last region belongs to the volume, where that grows.
    pub grown: bool,
}

impl Record {
    /// How often a holder has lost power.
    pub fn losses(&self, i: usize) -> u8 {
        self.power_losses >> (2 * i) & 3
    }

    /// With another number for a holder.
    pub fn with_losses(self, i: usize, losses: u8) -> Record {
        Record { power_losses: self.power_losses & !(3 << (2 * i)) | losses << (2 * i), ..self }
    }
}

/// A holder: it executes commands and does nothing by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Holder {
    /// Which of two lives: 1 after it was replaced by an empty one.
    pub life: u8,
    /// Whose reservation it has: one more than the host, or 0.
    pub reserved: u8,
    /// The highest ballot that it has promised.
    pub promised: u8,
    /// The record that it has accepted.
    pub accepted: Record,
    /// The value of each region.
    pub data: [u8; REGIONS],
    /// The log's entry of each region.
    pub log: [u8; REGIONS],
    /// With a volatile cache: the values of each region that a loss of power may leave.
    pub stable: [Values; REGIONS],
    /// How often it has lost power.
    pub power_losses: u8,
    /// Its snapshots.
    pub snapshots: [Option<[u8; REGIONS]>; SNAPSHOTS],
    /// It has room for the last region, where the volume grows.
    pub grown: bool,
}

/// How far a host has come with a holder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Progress {
    /// No connection.
    #[default]
    Down,
    /// It asks for the reservation.
    Preempting,
    /// It has the reservation; its record is not known to be accepted there.
    Unchecked,
    /// It may send log and data.
    Usable,
}

/// A host's connection to a holder: the commands in flight, and what the host knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Link {
    /// How far it has come.
    pub progress: Progress,
    /// A preempt is in flight.
    pub preempt: bool,
    /// A request for a promise is.
    pub promise: bool,
    /// A record is, if its version is not 0.
    pub record: Record,
    /// A log entry is, of each region.
    pub log: [Option<u8>; REGIONS],
    /// Data are, of each region.
    pub data: [Option<u8>; REGIONS],
    /// Data of an earlier connection are, where that is not ended by a new key.
    pub leftover: [Option<u8>; REGIONS],
    /// A flush is, and counts for these: regions of which no data were under way since it was sent, and [`JOINS`].
    pub flush: Option<Set>,
    /// A flush for a client's own is, and counts for these regions.
    pub sync: Option<Set>,
    /// A read of the ballot promised is, for the lease.
    pub ask: bool,
    /// Snapshots are to be taken.
    pub snapshots: Set,
    /// Snapshots are to be deleted.
    pub deletes: Set,
    /// The holder is known to have room for the last region.
    pub grown: bool,
    /// The holder's power losses, as read when the reservation was taken.
    pub power_losses: u8,
    /// The holder's life, as read then.
    pub life: u8,
    /// The version of the record that it has accepted.
    pub version: u8,
    /// Its log, as far as it is known.
    pub known: [u8; REGIONS],
    /// It has answered the round that goes on, in this life.
    pub answered: Option<u8>,
}

/// A flush that was sent when nothing was left to copy, after which no flush of a client was acknowledged.
pub const JOINS: Set = 1 << 7;

/// What a host does with a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Work {
    /// Nothing.
    #[default]
    None,
    /// It writes for a client.
    Write,
    /// It brings one copy to all others after an attach.
    Settle,
    /// It writes zeroes where the volume is to grow.
    Zero,
    /// It copies to a replica that is to join.
    Copy,
}

/// Work on a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Job {
    /// What it is.
    pub work: Work,
    /// A write's thread.
    pub thread: u8,
    /// The value that is written.
    pub value: u8,
    /// Who has it.
    pub done: Set,
    /// To whom it is copied.
    pub target: u8,
}

/// A snapshot that a host takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Snapshot {
    /// What it is called, once it has been asked for.
    pub name: Option<u8>,
    /// Whom.
    pub asked: Set,
    /// Who has taken it, before it was proposed.
    pub answered: Set,
    /// What those have taken.
    pub bytes: u8,
    /// It is in the record that the host has proposed.
    pub proposed: bool,
}

/// How far growing has come at a host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Growth {
    /// Not begun.
    #[default]
    No,
    /// Begun.
    Begun,
    /// The new region reads as zeroes at all that are needed.
    Zeroed,
}

/// A client's thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Thread {
    /// Its operation, from 0.
    pub next: u8,
    /// That has begun.
    pub runs: bool,
    /// Whom a read was sent to.
    pub from: Option<u8>,
    /// What that has answered.
    pub got: Option<u8>,
    /// It flushes.
    pub flushes: bool,
    /// Who has flushed for it.
    pub done: Set,
}

/// How far a host's attachment has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Phase {
    /// Not begun.
    #[default]
    Idle,
    /// It preempts.
    Preempt,
    /// It asks for promises.
    Promise,
    /// Its first record is on the way.
    Record,
    /// It serves.
    Attached,
    /// It does nothing any more; its commands in flight stay.
    Over,
}

/// A host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Host {
    /// How far it has come.
    pub phase: Phase,
    /// Its ballot.
    pub ballot: u8,
    /// Its connections.
    pub links: [Link; HOLDERS],
    /// The highest record among the promises.
    pub read: Record,
    /// The record that it has proposed last.
    pub current: Record,
    /// The last that a majority has accepted.
    pub stable: Record,
    /// Who must have a write before it is acknowledged.
    pub need: Set,
    /// Who may be read.
    pub readable: Set,
    /// It has said that it is done.
    pub released: bool,
    /// It has the lease.
    pub leased: bool,
    /// A round goes on that gives it.
    pub renewing: bool,
    /// Who has answered a round of reads that gives it, with no higher ballot.
    pub confirmed: Set,
    /// How often the lease has run out.
    pub expiries: u8,
    /// It has gone back to an earlier state, perhaps.
    pub went_back: bool,
    /// Regions that are not settled.
    pub unsettled: Set,
    /// Replicas that are to join.
    pub joining: Set,
    /// How often it has connected again.
    pub reconnects: u8,
    /// How often it has given up on a holder.
    pub failures: u8,
    /// Who has flushed since the data of each region.
    pub flushed: [Set; REGIONS],
    /// Joining replicas that have flushed all that a flush of a client has promised.
    pub ready: Set,
    /// Replicas that may have lost power with data that were not flushed.
    pub doubtful: Set,
    /// Which regions each joining replica lacks.
    pub lacks: [Set; HOLDERS],
    /// The work on each region.
    pub jobs: [Job; REGIONS],
    /// The snapshot that it takes.
    pub snapshot: Option<Snapshot>,
    /// How far it has come with growing.
    pub growth: Growth,
    /// The clients.
    pub threads: [Thread; THREADS],
}

/// How far an operation of a client has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Called {
    /// Not begun.
    #[default]
    No,
    /// Begun.
    Begun,
    /// Answered.
    Answered,
}

/// An operation of a client, as the client sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Call {
    /// How far it has come.
    pub called: Called,
    /// Which operations were answered before it began.
    pub before: Set,
    /// What a read has returned.
    pub result: u8,
}

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct State {
    /// The holders.
    pub holders: [Holder; HOLDERS],
    /// The hosts.
    pub hosts: [Host; HOSTS],
    /// What the clients have seen.
    pub calls: [Call; CALLS],
    /// Replacements so far.
    pub replacements: u8,
    /// Names of snapshots that have been used.
    pub names: u8,
    /// Which operation each name is of, and one more.
    pub snapshot_calls: [u8; SNAPSHOTS],
    /// The ballot in each name: of the host that has asked.
    pub snapshot_ballots: [u8; SNAPSHOTS],
    /// Snapshots of which somebody was told that they are there.
    pub snapshots_done: Set,
    /// Those that somebody has asked to be deleted.
    pub snapshots_ended: Set,
    /// Those of which somebody was told that they are gone.
    pub snapshots_gone: Set,
    /// How many replicas have grown.
    pub grown: u8,
    /// Attachments that may have gone back to an earlier state.
    pub rollbacks: u8,
    /// A superseded host has changed an in-sync replica.
    pub fouled: bool,
    /// The device that was replaced, and one more than its place.
    pub stash: Holder,
    /// See `stash`.
    pub stash_at: u8,
    /// How often the other device has come to the place.
    pub returns: u8,
}

/// A client calls: what has been answered was before.
pub(crate) fn begin(state: &mut State, id: usize) {
    let answered = |call: &Call| call.called == Called::Answered;
    let before = state.calls.iter().enumerate().filter(|(_, call)| answered(call)).map(|(index, _)| 1 << index).sum();
    state.calls[id] = Call { called: Called::Begun, before, ..Call::default() };
}
