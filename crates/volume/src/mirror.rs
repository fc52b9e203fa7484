//! What a host decides: which replicas are in sync, who must have a write and who may be read. Pure: no I/O and no clock.
//!
//! How a driver calls it. A host that attaches asks [`choose`] what to go on from, and makes a [`Mirror`] of the answer. From
//! then on: [`Mirror::connected`] when a connection has preempted, [`Mirror::to_send`] for the record that has to be written
//! over it, [`Mirror::accepted`] when that is stable, [`Mirror::down`] when the connection has ended. Each of these may change
//! what [`Mirror::need`] and [`Mirror::readable`] say.
//!
//! Invariants (those of the model, `crates/volume-model`):
//! - NEED is the union, READ the intersection, of the set that was last stable at a majority and of every set proposed since: the
//!   outcome of a proposal is not known before a majority has answered.
//! - A majority counts holders in the lives that the record says; during a change of holders, a majority in those before, too.
//! - An answer counts for the record it was for, and stays when the connection ends: the holder has it stably.
//! - Nothing is sent over a connection before a record was accepted there.

use crate::label::{Life, Shape};
use crate::origin::Origin;
use crate::record::{Ballot, HOLDERS_MAX, Record, Set, Snapshot};
use crate::snapshot_name::{SnapshotId, SnapshotName};

/// What a holder has answered to a promise.
#[derive(Clone, Debug)]
pub(crate) struct Promise {
    /// The life it is in.
    pub(crate) life: Life,
    /// The record it has accepted.
    pub(crate) record: Record,
}

/// What a host goes on from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    /// The highest record of those that have promised.
    pub(crate) record: Record,
    /// Those in sync that were reached.
    pub(crate) in_sync: Set,
}

impl Choice {
    /// Whether every lease that an older host may have must run out first: it may read a replica that was not preempted.
    pub(crate) fn waits(&self) -> bool {
        self.in_sync != self.record.in_sync
    }
}

/// Why a host can't go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// No majority of the holders has promised.
    NoMajority,
    /// No holder has a record.
    NoRecord,
    /// None of those in sync was reached.
    NoneInSync,
}

fn majority(shape: &Shape) -> u32 {
    shape.holders() as u32 / 2 + 1
}

/// What a host goes on from that has these promises.
pub(crate) fn choose(shape: &Shape, promises: &[Option<Promise>; HOLDERS_MAX]) -> Result<Choice, Refusal> {
    let known = promises.iter().flatten();
    if (known.clone().count() as u32) < majority(shape) {
        return Err(Refusal::NoMajority);
    }
    let record = known.map(|promise| &promise.record).max_by_key(|record| record.order()).ok_or(Refusal::NoMajority)?;
    if !record.exists() {
        return Err(Refusal::NoRecord);
    }
    let those_in = |lives: &[Life; HOLDERS_MAX]| {
        Set::of(shape.holders(), |slot| promises[slot].as_ref().is_some_and(|promise| promise.life == lives[slot]))
    };
    let is_majority = |lives| those_in(lives).0.count_ones() >= majority(shape);
    if !is_majority(&record.lives) || !is_majority(&record.lives_before) {
        return Err(Refusal::NoMajority);
    }
    let in_sync = record.in_sync.and(those_in(&record.lives));
    if in_sync.is_empty() { Err(Refusal::NoneInSync) } else { Ok(Choice { record: record.clone(), in_sync }) }
}

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Progress {
    #[default]
    Down,
    /// It has preempted; no record was accepted over it.
    Unchecked,
    Usable,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    progress: Progress,
    life: Life,
    /// The record that was accepted over this connection.
    version: u64,
    /// The life in which the current record was accepted, over this connection or one before.
    answered: Option<Life>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Mirror {
    shape: Shape,
    links: [Link; HOLDERS_MAX],
    current: Record,
    /// The current record is stable at a majority.
    is_stable: bool,
    /// The record of this attachment that was stable last.
    stable: Option<Record>,
    need: Set,
    readable: Set,
    joining: Set,
    is_over: bool,
}

impl Mirror {
    /// A host that goes on from `choice`.
    pub(crate) fn new(shape: Shape, ballot: Ballot, choice: &Choice) -> Mirror {
        let Choice { record, in_sync } = choice.clone();
        Mirror {
            shape,
            links: Default::default(),
            current: Record { ballot, version: 1, in_sync, ..record },
            is_stable: false,
            stable: None,
            need: in_sync,
            readable: in_sync,
            joining: Set::default(),
            is_over: false,
        }
    }

    /// The record that was proposed last.
    pub(crate) fn current(&self) -> &Record {
        &self.current
    }

    /// Whether a majority has it.
    pub(crate) fn is_stable(&self) -> bool {
        self.is_stable
    }

    /// Whether the host serves.
    pub(crate) fn is_attached(&self) -> bool {
        self.stable.is_some() && !self.is_over
    }

    /// The record that was stable last: none before the volume is attached.
    pub(crate) fn stable(&self) -> Option<&Record> {
        self.stable.as_ref()
    }

    /// Blocks of the volume that are served.
    pub(crate) fn blocks(&self) -> u64 {
        self.stable.as_ref().unwrap_or(&self.current).size(self.shape.blocks)
    }

    /// Whether a newer host was seen: nothing is sent any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// A higher promise was seen.
    pub(crate) fn supersede(&mut self) {
        self.is_over = true;
    }

    /// Who must have a write before it is acknowledged.
    pub(crate) fn need(&self) -> Set {
        self.need
    }

    /// Who may be read.
    pub(crate) fn readable(&self) -> Set {
        self.readable
    }

    /// Who is being resynchronised.
    pub(crate) fn joining(&self) -> Set {
        self.joining
    }

    /// Whom a write goes to.
    pub(crate) fn targets(&self) -> Set {
        self.need.with(self.joining)
    }

    /// All replicas.
    pub(crate) fn everybody(&self) -> Set {
        Set::first(usize::from(self.shape.replicas))
    }

    /// Whether all is as it should be: everybody in sync, and that stable.
    pub(crate) fn is_full(&self) -> bool {
        self.is_stable && self.current.in_sync == self.everybody()
    }

    /// Whether log and data commands may be sent over the slot's connection.
    pub(crate) fn is_usable(&self, slot: usize) -> bool {
        self.is_attached() && self.links[slot].progress == Progress::Usable && self.is_holder(slot)
    }

    /// Whether a record was accepted over the slot's connection.
    pub(crate) fn is_checked(&self, slot: usize) -> bool {
        !self.is_over && self.links[slot].progress == Progress::Usable
    }

    fn is_holder(&self, slot: usize) -> bool {
        self.links[slot].life == self.current.lives[slot]
    }

    /// Whether what answers at the slot is not the one that the record means.
    pub(crate) fn is_other(&self, slot: usize) -> bool {
        self.links[slot].progress >= Progress::Unchecked && !self.is_holder(slot)
    }

    /// A connection has preempted; the holder is in this life.
    pub(crate) fn connected(&mut self, slot: usize, life: Life) {
        let link = &mut self.links[slot];
        *link = Link { progress: Progress::Unchecked, life, version: 0, ..*link };
    }

    /// The connection has ended.
    pub(crate) fn down(&mut self, slot: usize) {
        self.links[slot].progress = Progress::Down;
        self.links[slot].version = 0;
        self.joining = self.joining.without(Set::one(slot));
    }

    /// The record that has to be written over the slot's connection.
    pub(crate) fn to_send(&self, slot: usize) -> Option<Record> {
        let link = &self.links[slot];
        let lacks = link.progress >= Progress::Unchecked && link.version < self.current.version;
        (lacks && !self.is_over).then(|| self.current.clone())
    }

    /// This record is stable at the holder, over the connection that it has. Returns whether the current one is stable by that.
    pub(crate) fn accepted(&mut self, slot: usize, record: &Record) -> bool {
        let link = &mut self.links[slot];
        (link.progress, link.version) = (Progress::Usable, record.version);
        if record.order() == self.current.order() {
            link.answered = Some(link.life);
        }
        let Record { lives, lives_before, in_sync, .. } = self.current;
        let is_majority = |lives: &[Life; HOLDERS_MAX]| {
            let has_answered = |slot: usize| self.links[slot].answered == Some(lives[slot]);
            Set::of(self.shape.holders(), has_answered).0.count_ones() >= majority(&self.shape)
        };
        if self.is_stable || !is_majority(&lives) || !is_majority(&lives_before) {
            return false;
        }
        (self.is_stable, self.stable) = (true, Some(self.current.clone()));
        (self.need, self.readable) = (in_sync, in_sync);
        self.links.iter_mut().for_each(|link| link.answered = None);
        true
    }

    /// Whether these holders, which have shown that nobody newer was promised anything, are the majority that a lease needs.
    pub(crate) fn gives_lease(&self, confirmed: Set) -> bool {
        [self.current.lives, self.current.lives_before].iter().all(|lives| {
            let counts = |slot: usize| confirmed.has(slot) && self.links[slot].life == lives[slot];
            Set::of(self.shape.holders(), counts).0.count_ones() >= majority(&self.shape)
        })
    }

    /// The next record, with a change of some of its fields.
    fn propose(&mut self, change: impl FnOnce(&mut Record)) {
        let old = &self.current;
        let mut next = old.clone();
        next.version += 1;
        next.lives_before = if self.is_stable { old.lives } else { old.lives_before };
        change(&mut next);
        // Whoever replaces a replica has none of its snapshots.
        let stays = Set::of(HOLDERS_MAX, |slot| old.lives[slot] == next.lives[slot]);
        next.snapshots.iter_mut().for_each(|snapshot| snapshot.slots = snapshot.slots.and(stays));
        next.snapshots.retain(|snapshot| !snapshot.slots.is_empty());
        self.current = next;
        self.is_stable = false;
        let in_sync = self.current.in_sync;
        self.need = self.need.with(in_sync);
        self.readable = self.readable.and(in_sync);
        self.joining = self.joining.without(in_sync);
        self.links.iter_mut().for_each(|link| link.answered = None);
    }

    /// Goes on without those of `bad` that are in sync, if somebody who is in sync and connected is left. Never to a set of which
    /// nobody is there: whoever attaches next may find none of them, and be refused for nothing.
    pub(crate) fn leave_out(&mut self, bad: Set) -> bool {
        let may = self.may_leave_out(bad);
        if may {
            self.propose(|record| record.in_sync = record.in_sync.without(bad));
        }
        may
    }

    /// Whether it could.
    pub(crate) fn may_leave_out(&self, bad: Set) -> bool {
        let rest = self.current.in_sync.without(bad);
        self.is_attached() && rest != self.current.in_sync && rest.iter().any(|slot| self.is_usable(slot))
    }

    /// Begins or finishes a change of holders: a holder that is in another life than the record says, and not in sync, is taken
    /// in beside its former self, if it is of those that have the room for the volume; when that is stable the former one is left
    /// out. Returns whether there was something to do.
    pub(crate) fn change_holders(&mut self, roomy: Set) -> bool {
        if !self.is_attached() || !self.is_stable {
            return false;
        }
        if self.current.lives != self.current.lives_before {
            self.propose(|_| {});
            return true;
        }
        let is_new =
            |slot: &usize| self.is_checked(*slot) && !self.is_holder(*slot) && !self.current.in_sync.has(*slot);
        let Some(slot) = roomy.iter().find(is_new) else { return false };
        let life = self.links[slot].life;
        self.propose(|record| record.lives[slot] = life);
        true
    }

    /// Whether the resynchronisation of a replica may begin; that all regions are settled is for the caller to see.
    pub(crate) fn may_join(&self, slot: usize) -> bool {
        slot < usize::from(self.shape.replicas)
            && self.is_usable(slot)
            && !self.targets().with(self.current.in_sync).has(slot)
            && self.is_stable
            && self.current.lives == self.current.lives_before
            && self.need.iter().all(|slot| self.is_usable(slot))
    }

    /// Writes go to the replica from now on, too.
    pub(crate) fn begin_joining(&mut self, slot: usize) {
        self.joining = self.joining.with(Set::one(slot));
    }

    /// The replica lacks nothing: it is proposed to be in sync. False: it has left meanwhile.
    pub(crate) fn join(&mut self, slot: usize) -> bool {
        let may = self.is_attached() && self.joining.has(slot);
        if may {
            self.propose(|record| record.in_sync = record.in_sync.with(Set::one(slot)));
        }
        may
    }

    /// All of NEED have the room, and zeroes there: the new size is proposed.
    pub(crate) fn grow(&mut self, blocks: u64) -> bool {
        let may = self.is_attached() && blocks > self.current.size(self.shape.blocks);
        if may {
            self.propose(|record| record.blocks = blocks);
        }
        may
    }

    /// Whether the slot's holder has the current record, over the connection that it has.
    pub(crate) fn is_current(&self, slot: usize) -> bool {
        self.is_usable(slot) && self.links[slot].version == self.current.version
    }

    /// The holders that have the current record, over the connections that they have. None while that is not stable, or while a
    /// holder is changed for another: who has a place then is not decided.
    pub(crate) fn holding(&self) -> Set {
        let is_decided = self.is_stable && self.current.lives == self.current.lives_before;
        Set::of(self.shape.holders(), |slot| is_decided && self.is_current(slot))
    }

    /// These replicas have taken a snapshot: of a volume that has all bytes of `source` by now, if it was imported. The same record
    /// says so, and has the volume's own snapshot of what it was a copy of before no more. False: none of them counts any more, or
    /// the one from before can not go yet.
    pub(crate) fn add_snapshot(&mut self, name: SnapshotName, slots: Set, source: Option<SnapshotId>) -> bool {
        let slots = Set::of(HOLDERS_MAX, |slot| slots.has(slot) && self.is_holder(slot));
        let origin = source.map(|source| Origin::Whole { source, own: Some(name) });
        let old = self.given_up(origin);
        // There may be no room for both.
        let own = origin.and(self.current.origin).and_then(|origin| origin.own());
        let stays = own.is_some_and(|own| old.is_none() && !self.current.snapshot(own).is_empty());
        let may = self.is_attached() && !slots.is_empty() && !stays;
        if may {
            self.propose(|record| {
                record.snapshots.retain(|snapshot| Some(snapshot.name) != old);
                record.snapshots.push(Snapshot { name, slots });
                record.origin = origin.or(record.origin);
            });
        }
        may
    }

    /// Of what the volume is a copy from now on; its own snapshot of what it was a copy of before is there no more, unless it is
    /// named still. False: it is that already, or this host has not the volume.
    pub(crate) fn set_origin(&mut self, origin: Origin) -> bool {
        let may = self.is_attached() && self.current.origin != Some(origin);
        let old = self.given_up(Some(origin));
        if may {
            self.propose(|record| {
                record.snapshots.retain(|snapshot| Some(snapshot.name) != old);
                record.origin = Some(origin);
            });
        }
        may
    }

    /// The own snapshot that another origin has no use for.
    fn given_up(&self, new: Option<Origin>) -> Option<SnapshotName> {
        let own = self.current.origin.and_then(|origin| origin.own());
        own.filter(|&own| new.is_some_and(|new| new.own() != Some(own)) && self.may_delete(own))
    }

    /// Whether every host will find that the volume is a copy of that.
    pub(crate) fn has_origin(&self, origin: Origin) -> bool {
        self.is_attached() && self.is_stable && self.current.origin == Some(origin)
    }

    /// A snapshot is to be there no more. False: it is not, or it is not known yet whether it is: a holder may have the record that
    /// names it, and none that comes later.
    pub(crate) fn delete_snapshot(&mut self, name: SnapshotName) -> bool {
        let may = self.may_delete(name);
        if may {
            self.propose(|record| record.snapshots.retain(|snapshot| snapshot.name != name));
        }
        may
    }

    fn may_delete(&self, name: SnapshotName) -> bool {
        let names = |record: &Record| !record.snapshot(name).is_empty();
        self.is_attached() && names(&self.current) && self.stable.as_ref().is_some_and(names)
    }

    /// Whether no host will find a snapshot any more: the last record is stable, and does not name it. One that was proposed before
    /// it, and did name it, may be at a minority.
    pub(crate) fn is_gone(&self, name: SnapshotName) -> bool {
        self.is_attached() && self.is_stable && self.current.snapshot(name).is_empty()
    }

    /// Whether a copy that was found at a replica under this name is garbage: the last record is stable and does not give it to
    /// that replica, and nobody newer can have asked for it. The attempt that goes on is for the caller to leave out.
    pub(crate) fn is_garbage(&self, name: SnapshotName, slot: usize) -> bool {
        let is_given = self.current.snapshot(name).has(slot);
        self.is_attached() && self.is_stable && name.ballot <= self.current.ballot && !is_given
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
