//! What is searched: the replicas, the clients, the bounds, and the rule that is broken on purpose.

use crate::state::{
    BEHIND, CALLS, HOLDERS, Holder, INTENT, Link, Phase, Progress, REGIONS, Record, SNAPSHOTS, Set, State, has, only,
};

/// What a client does with a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Writes it.
    Write(usize),
    /// Reads it.
    Read(usize),
    /// Makes stable what was acknowledged before.
    Flush,
    /// Takes a snapshot.
    Snapshot,
    /// Deletes one that the record names.
    Delete,
    /// Makes the last region a part of the volume.
    Grow,
}

/// A rule that is broken on purpose: each looks right, and loses data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// B01: a write is acknowledged before the smaller set is at a majority.
    AcknowledgeEarly,
    /// B02: the majority is that of the in-sync replicas.
    MajorityOfInSync,
    /// B03: the first record that answers is believed.
    FirstRecord,
    /// B04: regions are read before they are settled.
    NoSettling,
    /// B05: a read is answered while its write is in flight.
    ReadsNotHeld,
    /// B06: the log is cleared before all have the data.
    ClearedEarly,
    /// B07: data are not fenced by the reservation.
    NoFence,
    /// B08: a replica is used before the record is accepted there.
    Unchecked,
    /// B09: writes to what was copied are not sent to the replica that joins.
    JoinMissesWrites,
    /// B10: a change of unknown outcome counts as done.
    UnknownIsDone,
    /// B11: an empty replacement counts as a holder.
    BlankCounts,
    /// B13: reads without a lease.
    NoLease,
    /// B14: a connection is made again with the same key.
    SameKey,
    /// B15: the returned replica's own log is ignored.
    OwnLogIgnored,
    /// B16: the target of settling is not marked.
    SettleUnmarked,
    /// B17: reads from any of the sets that are possible.
    ReadsFromUnion,
    /// B18: who joins is needed only when the record is stable.
    JoinNeededLate,
    /// B19: a region is copied while it is written.
    CopyBesideWrite,
    /// B20: a replacement's log is clean.
    BlankIsClean,
    /// B21: the log is cleared to clean while a replica is away.
    ClearedWhileAway,
    /// B22: the log is marked after the data.
    MarkedAfter,
    /// B23: a replacement becomes a holder by its own vote.
    OwnVote,
    /// B24: attaching without promises.
    NoPromises,
    /// B25: a restart loses the reservation.
    ReservationLost,
    /// B26: an empty replacement is believed in sync.
    BlankInSync,
    /// B27: the reservation lets others read, and nobody waits for leases.
    OthersRead,
    /// B28: a late promise counts as a vote.
    PromiseVotes,
    /// B29: attaching to a half-done change of holders by the new ones alone.
    NewHoldersAlone,
    /// B30: the log of who joins does not get what is copied.
    CopyUnmarked,
    /// V1: the log is cleared without a flush.
    NoFlush,
    /// V2: a replica that lost power stays in sync.
    PowerLossIgnored,
    /// V3: a flush is acknowledged by who was needed when it began.
    FlushByTheFirst,
    /// V4: a joining replica is in sync before it has flushed.
    JoinUnflushed,
    /// V5: a flush counts of a replica that has lost power since the data.
    FlushTrusted,
    /// V6: an attach goes back as soon as all that it reaches have lost power.
    RollBackEarly,
    /// V7: a host whose replicas have all lost power goes on with them.
    GoOnAfterAll,
    /// V8: without counts: a host that connects again goes on as if nothing were lost.
    ReconnectTrusted,
    /// V9: what was settled after an attach that goes back is served before it is flushed.
    SettledUnflushed,
    /// H1: a host that was asked to hand over is believed to be done.
    AskedIsDone,
    /// H2: a host says that it is done and goes on reading.
    DoneAndReads,
    /// H3: the word of a host that was superseded since counts.
    OldWord,
    /// H4: a host with a volatile cache behind it says that it is done without a flush.
    DoneUnflushed,
    /// S1: who was asked for a snapshot is counted, answer or not.
    CountedUnanswered,
    /// S2: writes go on while a snapshot is taken.
    WritesNotHeld,
    /// S3: a snapshot is asked for while a write is in flight.
    SnapshotBesideWrite,
    /// S4: a second attempt at a snapshot has the name of the first.
    NameUsedAgain,
    /// S5: a snapshot is there when all have answered, whatever the record says.
    SnapshotUnrecorded,
    /// S6: a snapshot that the record does not name is deleted before the host's own record is stable.
    DeletedEarly,
    /// S10: a host deletes what its own records do not name, also if a newer host has asked for it.
    DeletesNewer,
    /// S7: a snapshot is asked for before all is settled.
    SnapshotUnsettled,
    /// S8: who has replaced a replica is believed to have its snapshots.
    SnapshotOfBlank,
    /// S9: a replica that joins is asked, too.
    SnapshotOfJoining,
    /// S11: what the proposed record does not name any more is deleted before that record is stable.
    DeletesNamed,
    /// S12: a snapshot is said to be gone before the record without it is stable.
    GoneEarly,
    /// G1: the new region is used before the record that has it is stable.
    UsedEarly,
    /// G2: the record says the size before all that are needed have grown.
    GrownEarly,
    /// G3: the new region is believed to read as zeroes.
    NotZeroed,
    /// G4: a replica joins that has not grown.
    JoinUngrown,
    /// L1: a lease counts from when the last has answered, not from when the first was asked.
    LeaseFromTheAnswer,
    /// R1: of who joins an entry is cleared although those in sync know that somebody lacks the region.
    JoinerCleared,
}

/// A search.
#[derive(Clone, Debug)]
pub struct Config {
    /// What it is called.
    pub name: &'static str,
    /// What each thread of each host does.
    pub clients: Vec<Vec<Vec<Op>>>,
    /// Replicas.
    pub replicas: usize,
    /// A holder that keeps the record only.
    pub witness: bool,
    /// Regions that count.
    pub regions: usize,
    /// Holders that are a majority.
    pub majority: u32,
    /// Host 0 is attached at the start.
    pub attached: bool,
    /// Replicas that start out of sync, without the last write to region 0.
    pub out: Set,
    /// Versions of the record within an attachment.
    pub versions_max: u8,
    /// Replacements by an empty device.
    pub replacements_max: u8,
    /// How often the device that was replaced and the new one change places again.
    pub returns_max: u8,
    /// Reconnections of each host.
    pub reconnects_max: u8,
    /// Times that each host gives up on a holder.
    pub failures_max: u8,
    /// Times that the lease of each host runs out; it is renewed by reads then, and not by a record.
    pub expiries_max: u8,
    /// Data are volatile until they are flushed.
    pub volatile: bool,
    /// Power losses of each replica.
    pub power_losses_max: u8,
    /// All that are in sync may lose power.
    pub loses_all: bool,
    /// How often it has lost power can be read of a replica.
    pub counted: bool,
    /// An attach may go back though an in-sync replica that has kept its cache is not reached: somebody has asked for it.
    pub forced: bool,
    /// Attempts at snapshots.
    pub attempts_max: usize,
    /// Snapshots that no record names are deleted.
    pub deletes: bool,
    /// The volume has all regions but the last, until it grows.
    pub grows: bool,
    /// What a replica grows by reads as zeroes.
    pub grown_is_zero: bool,
    /// Hosts that may release the volume: they are done, and say so.
    pub hands_over: Set,
    /// Hosts that give up on nobody and change no record after their first.
    pub calm: Set,
    /// Logs are cleared.
    pub clears: bool,
    /// Replicas that are back are resynchronised.
    pub resyncs: bool,
    /// What a replica that joins has got is cleared in its own log where nobody lacks it: a resync that begins anew goes on there.
    pub resumes: bool,
    /// A fresh host is tried in a share of the states.
    pub probes: bool,
    /// Copies are compared in every state.
    pub compares: bool,
    /// A host that is superseded at a majority, and has nothing under way that could end, is left out from then on.
    pub superseded_end: bool,
    /// Preempts of hosts that have ended still land.
    pub late_preempts: bool,
    /// The rule that is broken.
    pub broken: Option<Broken>,
}

impl Config {
    /// One with the usual bounds.
    pub fn new(name: &'static str, replicas: usize, clients: Vec<Vec<Vec<Op>>>) -> Config {
        let holders: u32 = if replicas == 1 { 1 } else { 3 };
        Config {
            name,
            clients,
            replicas,
            witness: replicas == 2,
            regions: 1,
            majority: holders / 2 + 1,
            attached: true,
            out: 0,
            versions_max: 3,
            replacements_max: 0,
            returns_max: 0,
            reconnects_max: 1,
            failures_max: 1,
            expiries_max: 0,
            volatile: false,
            power_losses_max: 0,
            loses_all: false,
            counted: true,
            forced: false,
            attempts_max: SNAPSHOTS,
            deletes: false,
            grows: false,
            grown_is_zero: false,
            hands_over: 0,
            calm: 0,
            clears: true,
            resyncs: true,
            resumes: false,
            probes: true,
            compares: true,
            superseded_end: true,
            late_preempts: false,
            broken: None,
        }
    }

    /// Without this rule.
    pub fn without(self, broken: Broken) -> Config {
        Config { broken: Some(broken), ..self }
    }

    pub(crate) fn versions(self, versions_max: u8) -> Config {
        Config { versions_max, ..self }
    }

    pub(crate) fn failures(self, failures_max: u8) -> Config {
        Config { failures_max, ..self }
    }

    pub(crate) fn reconnects(self, reconnects_max: u8) -> Config {
        Config { reconnects_max, ..self }
    }

    pub(crate) fn replacements(self, replacements_max: u8) -> Config {
        Config { replacements_max, ..self }
    }

    pub(crate) fn returns(self, returns_max: u8) -> Config {
        Config { returns_max, ..self }
    }

    pub(crate) fn calm(self, calm: Set) -> Config {
        Config { calm, ..self }
    }

    pub(crate) fn out(self, out: Set) -> Config {
        Config { out, ..self }
    }

    pub(crate) fn majority(self, majority: u32) -> Config {
        Config { majority, ..self }
    }

    pub(crate) fn regions(self, regions: usize) -> Config {
        Config { regions, ..self }
    }

    pub(crate) fn expiries(self, expiries_max: u8) -> Config {
        Config { expiries_max, ..self }
    }

    pub(crate) fn power_losses(self, power_losses_max: u8) -> Config {
        Config { volatile: true, power_losses_max, ..self }
    }

    pub(crate) fn loses_all(self) -> Config {
        Config { loses_all: true, ..self }
    }

    pub(crate) fn uncounted(self) -> Config {
        Config { counted: false, loses_all: true, ..self }
    }

    pub(crate) fn forced(self) -> Config {
        Config { forced: true, ..self }
    }

    pub(crate) fn attempts(self, attempts_max: usize) -> Config {
        Config { attempts_max, ..self }
    }

    pub(crate) fn deletes(self) -> Config {
        Config { deletes: true, ..self }
    }

    pub(crate) fn grows(self) -> Config {
        Config { grows: true, regions: REGIONS, ..self }
    }

    pub(crate) fn grown_is_zero(self) -> Config {
        Config { grown_is_zero: true, ..self }
    }

    pub(crate) fn hands_over(self, hands_over: Set) -> Config {
        Config { hands_over, ..self }
    }

    pub(crate) fn uncleared(self) -> Config {
        Config { clears: false, ..self }
    }

    pub(crate) fn unprobed(self) -> Config {
        Config { probes: false, ..self }
    }

    pub(crate) fn unattached(self) -> Config {
        Config { attached: false, ..self }
    }

    pub(crate) fn late_preempts(self) -> Config {
        Config { late_preempts: true, ..self }
    }

    pub(crate) fn superseded_go_on(self) -> Config {
        Config { superseded_end: false, ..self }
    }

    pub(crate) fn uncompared(self) -> Config {
        Config { compares: false, ..self }
    }

    pub(crate) fn resumed(self) -> Config {
        Config { resumes: true, ..self }
    }

    pub(crate) fn no_witness(self) -> Config {
        Config { witness: false, ..self }
    }

    pub(crate) fn unresynced(self) -> Config {
        Config { resyncs: false, ..self }
    }

    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// Holders.
    pub(crate) fn holders(&self) -> usize {
        self.replicas + usize::from(self.witness)
    }

    /// All replicas.
    pub(crate) fn everybody(&self) -> Set {
        (1 << self.replicas) - 1
    }

    /// The replicas of which something is true.
    pub(crate) fn replicas_where(&self, is: impl Fn(usize) -> bool) -> Set {
        (0..self.replicas).filter(|&i| is(i)).map(|i| 1 << i).sum()
    }

    /// The place of an operation among all.
    pub(crate) fn call(&self, host: usize, thread: usize, operation: usize) -> usize {
        let before = |(h, t): (usize, usize)| (h, t) < (host, thread);
        let threads = self.clients.iter().enumerate();
        let lengths =
            threads.flat_map(|(h, threads)| threads.iter().enumerate().map(move |(t, ops)| ((h, t), ops.len())));
        lengths.filter(|&(place, _)| before(place)).map(|(_, length)| length).sum::<usize>() + operation
    }

    /// All operations and their places.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (usize, Op)> {
        let all = self.clients.iter().flatten().flatten().copied().enumerate();
        all.take(CALLS)
    }

    /// The operations of a thread that have not ended.
    pub(crate) fn left<'a>(&'a self, state: &State, host: usize, thread: usize) -> &'a [Op] {
        &self.clients[host][thread][usize::from(state.hosts[host].threads[thread].next)..]
    }

    /// Where every run begins.
    pub(crate) fn first(&self) -> State {
        /// Below every ballot that is chosen.
        const BALLOT: u8 = 4;
        /// A value that nobody writes.
        const OLD: u8 = 200;
        let all = Record { ballot: BALLOT, version: 1, in_sync: self.everybody(), ..Record::default() };
        let record = Record { in_sync: all.in_sync & !self.out, ..all };
        let mut state = State::default();
        for i in 0..self.holders() {
            state.holders[i] =
                Holder { promised: BALLOT, accepted: record, stable: [only(0); REGIONS], ..Holder::default() };
        }
        for i in (0..self.holders()).filter(|_| self.out != 0) {
            let holder = &mut state.holders[i];
            if !has(self.out, i) {
                holder.log[0] = if i < self.replicas { BEHIND } else { 0 };
            } else {
                (holder.data[0], holder.stable[0]) = (OLD, only(OLD));
                if self.out >> (i + 1) == 0 {
                    // The last of them has not heard of it.
                    holder.accepted = Record { version: 0, ..all };
                }
            }
        }
        if self.attached {
            self.attach_first(&mut state, record);
        }
        state
    }

    fn attach_first(&self, state: &mut State, record: Record) {
        let host = &mut state.hosts[0];
        (host.phase, host.ballot, host.leased) = (Phase::Attached, record.ballot, true);
        (host.current, host.stable, host.need, host.readable) = (record, record, record.in_sync, record.in_sync);
        host.flushed = [(1 << HOLDERS) - 1; REGIONS];
        for i in (0..self.holders()).filter(|&i| !has(self.out, i)) {
            state.holders[i].reserved = 1;
            let known = state.holders[i].log;
            host.links[i] = Link { progress: Progress::Usable, version: 1, known, ..Link::default() };
        }
        debug_assert!(state.holders.iter().all(|holder| holder.log[0] != INTENT), "settled");
    }
}
