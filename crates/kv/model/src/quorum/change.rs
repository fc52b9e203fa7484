//! Epochs: which members an operation asks, what is old, and the pool's upkeep.
//!
//! A map stands for an epoch. An operation keeps the epoch it began in. A page is sealed with an epoch by compare-and-write;
//! from then on it answers nothing to operations of older epochs. Who meets a seal reads the map again, and starts its
//! operation again if it has sent nothing that may take effect; else the outcome is unknown.
//!
//! A change: publish a joint map; seal a majority of the old homes with it; copy the key to a majority of both; publish the
//! final map; seal all pages with it and forget the key where it is no longer at home.
//!
//! A collection of tombstones: publish a map, seal all homes, make all homes hold the newest entry (the sweep). The next map
//! names the swept epoch as its *floor*: a tombstone from before the floor is as good as absent, and may be dropped wherever
//! the page is sealed with an epoch that has this floor.

use super::{
    ABSENT, Answers, Ballot, Config, EPOCH_SHIFT, Entry, Kind, Operation, Phase, Reply, Request, State, round,
};

/// The homes of the key in an epoch.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    old: u8,
    new: u8,
    floor: u8,
    unequal: bool,
}

impl Map {
    /// One set of homes.
    pub const fn stable(homes: u8) -> Map {
        Map { old: homes, new: homes, floor: 0, unequal: false }
    }
    /// Two sets of homes: each phase of each operation needs a majority of both.
    pub const fn joint(old: u8, new: u8) -> Map {
        Map { old, new, floor: 0, unequal: false }
    }
    /// The same, of two sets, where half of the old one may know alone: a majority of it is asked.
    pub const fn unequal(self) -> Map {
        Map { unequal: true, ..self }
    }
    /// The same with a floor: this epoch was swept.
    pub const fn floor(self, floor: u8) -> Map {
        Map { floor, ..self }
    }
}

impl Config {
    fn map(&self, epoch: u8) -> Map {
        self.maps[usize::from(epoch)]
    }

    /// The homes of the key before and after the change under way; the same if there is none.
    pub(super) fn homes(&self, epoch: u8) -> (u8, u8) {
        let Map { old, new, .. } = self.map(epoch);
        (old, new)
    }

    /// Members that there are.
    pub(super) fn member_count(&self) -> usize {
        let all = self.maps.iter().fold(0, |all, map| all | map.old | map.new);
        all.count_ones() as usize
    }

    /// Set of epochs in whose map the member is a home.
    pub(super) fn epochs_at_home(&self, member: usize) -> u16 {
        let homes = |map: &Map| (map.old | map.new) >> member & 1 == 1;
        self.maps.iter().enumerate().filter(|(_, map)| homes(map)).map(|(epoch, _)| 1 << epoch).sum()
    }

    /// Set of members that are the same in all maps as this one, for ever.
    pub(super) fn alike(&self, one: usize, other: usize) -> bool {
        let same = |homes: u8| homes >> one & 1 == homes >> other & 1;
        self.maps.iter().all(|map| same(map.old) && same(map.new)) && same(self.given_up)
    }

    /// Set of members that the operation asks.
    pub(super) fn targets(&self, operation: Operation, epoch: u8) -> u8 {
        let Map { old, new, .. } = self.map(epoch);
        match operation {
            Operation::Seal(_) => old,
            // Those of the joint map that was ended, or taken back.
            Operation::Clean(_) => self.map(epoch - 1).old | self.map(epoch - 1).new | new,
            _ => (old | new) & !self.passed_over(epoch),
        }
    }

    /// Whether these members are a majority of the homes, or all that are left of half of them; between two sets of them, whether
    /// they are that of the new one and meet every majority of the old one.
    pub(super) fn quorum(&self, epoch: u8, members: u8) -> bool {
        let Map { old, new, .. } = self.map(epoch);
        let members = members & !self.passed_over(epoch);
        (is_majority(members, new) || self.are_all_left(epoch, members, new))
            && (old == new || self.enough_of_old(epoch, members))
    }

    /// Whether these know all that an operation of before may have been known to.
    fn enough_of_old(&self, epoch: u8, members: u8) -> bool {
        let Map { old, unequal, .. } = self.map(epoch);
        if unequal { is_majority(members, old) } else { self.meets_majorities(members, old) }
    }

    /// Members that are lost in the map of this epoch.
    fn lost(&self, epoch: u8) -> u8 {
        let is_back = self.taken_in.is_some_and(|since| since <= epoch);
        if is_back || epoch < self.given_up_in { 0 } else { self.given_up }
    }

    /// Those that nobody asks who goes by a map of this epoch.
    fn passed_over(&self, epoch: u8) -> u8 {
        if self.heard.is_some_and(|since| since <= epoch) { self.lost(epoch) } else { 0 }
    }

    fn are_all_left(&self, epoch: u8, members: u8, of: u8) -> bool {
        let (asked, left) = (members & of, of & !self.lost(epoch));
        let is_half = |members: u8| members.count_ones() * 2 >= of.count_ones();
        left != of && is_half(left) && if self.rules.any_half { is_half(asked) } else { asked & left == left }
    }

    fn meets_majorities(&self, members: u8, of: u8) -> bool {
        let spared = u32::from(self.rules.old_quorum_too_small);
        ((members & of).count_ones() + spared) * 2 >= of.count_ones()
    }

    /// Whether these know all that a lost member, which is not one of them, may have held. Of each set that it is a home in they
    /// are so many others as every majority is met by (N − majority + 1). But of an operation between two sets no more old homes
    /// need know than that: unless a majority of these is asked, so many of the new ones are too, of which a majority knows. Behind
    /// a change that was taken back half of them may know alone.
    fn enough_to_rebuild(&self, lost: u8, epoch: u8, members: u8) -> bool {
        let Map { old, new, .. } = self.map(epoch);
        let meets = |of: u8| (members & of).count_ones() * 2 >= of.count_ones();
        if old == new {
            let half_may_know = self.went_back(epoch) && !self.rules.rebuild_from_half_taken_back;
            return if half_may_know { is_majority(members, new) } else { meets(new) };
        }
        let of_old = lost & old == 0 || self.rules.rebuild_asks_new_alone || self.enough_of_old(epoch, members);
        of_old && (is_majority(members, old) || self.rules.rebuild_asks_old_alone || meets(new))
    }

    /// Whether the map of this epoch is that of before a change which was taken back.
    fn went_back(&self, epoch: u8) -> bool {
        let Some(before) = epoch.checked_sub(1).map(|before| self.map(before)) else { return false };
        before.old != before.new && before.old == self.map(epoch).new
    }

    /// Whether the read or prepare of the operation has enough answers; `lost`: members without a vote.
    pub(super) fn enough_read(&self, operation: Operation, epoch: u8, members: u8, lost: u8) -> bool {
        match operation {
            Operation::Rebuild if self.rules.rebuild_from_one => members != 0,
            Operation::Rebuild => self.enough_to_rebuild(lost, epoch, members),
            Operation::Sweep(_) if self.rules.sweep_at_majority => self.quorum(epoch, members),
            Operation::Sweep(_) | Operation::DropHeld(_) => self.are_all(members, operation, epoch),
            _ => self.quorum(epoch, members),
        }
    }

    /// Whether the stores, accepts or seals of the operation have enough answers.
    pub(super) fn enough_stored(&self, operation: Operation, epoch: u8, members: u8) -> bool {
        match operation {
            Operation::Rebuild => members != 0,
            Operation::Seal(_) => {
                let Map { old, new, .. } = self.map(epoch);
                // What is copied then is read from sealed pages, and from homes that are new.
                self.enough_of_old(epoch, members) && is_majority(members | (new & !old), new)
            }
            Operation::Sweep(_) if self.rules.sweep_at_majority => self.quorum(epoch, members),
            Operation::Clean(_)
            | Operation::SealAll(_)
            | Operation::Drop(_)
            | Operation::DropHeld(_)
            | Operation::Sweep(_) => self.are_all(members, operation, epoch),
            _ => self.quorum(epoch, members),
        }
    }

    /// Whether these are all that the operation asks, but for those that are lost: they are passed over.
    fn are_all(&self, members: u8, operation: Operation, epoch: u8) -> bool {
        members | self.lost(epoch) == self.targets(operation, epoch) | self.lost(epoch)
    }

    /// Whether the host's request can be carried out at the member, and answered.
    pub(super) fn may_land(&self, state: &State, host: usize, index: usize) -> bool {
        let (member, request) = (&state.members[index], state.hosts[host].request);
        let has_vote = member.voteless == 0 || request.kind == Kind::Restore;
        // What an unsealed old home shows may be followed by a store of an older epoch, which still counts this home.
        let believable = match (self.current(state, host).0, request.kind) {
            (Operation::Migrate(epoch), Kind::Read | Kind::Prepare) if !self.rules.migrate_unsealed => {
                self.map(epoch).old >> index & 1 == 0 || member.seal >= epoch
            }
            _ => true,
        };
        member.pending[host] && has_vote && believable
    }

    /// First counter of the epoch.
    pub(super) fn counter_base(&self, epoch: u8) -> u8 {
        if self.rules.counter_without_epoch { 0 } else { epoch << EPOCH_SHIFT }
    }

    /// Epoch in which the entry came to be: a conditional delete keeps the counter of what it deletes.
    fn age(&self, entry: &Entry) -> u8 {
        let of_put = entry.counter >> EPOCH_SHIFT;
        if self.rules.age_of_put { of_put } else { of_put.max(ballot_epoch(entry.ballot)) }
    }

    fn is_dead_tombstone(&self, entry: &Entry, epoch: u8) -> bool {
        entry.timestamp() != Default::default() && entry.value == ABSENT && self.age(entry) < self.map(epoch).floor
    }

    /// The entry as operations of this epoch compare it: an old tombstone is absent, and absent is older than everything.
    pub(super) fn normalised(&self, entry: Entry, epoch: u8) -> Entry {
        let absent = entry.timestamp() == Default::default() || self.is_dead_tombstone(&entry, epoch);
        match absent {
            true if self.rules.absent_sorts_as_epoch => Entry { counter: epoch << EPOCH_SHIFT, ..Entry::default() },
            true => Entry::default(),
            false => entry,
        }
    }

    /// What a conditional operation builds on: an absent key starts at the floor, above all that was dropped.
    pub(super) fn based(&self, entry: Entry, epoch: u8) -> Entry {
        if entry.timestamp() != Default::default() || self.rules.absent_based_on_zero {
            return entry;
        }
        let base = if self.rules.absent_based_on_epoch { epoch } else { self.map(epoch).floor };
        Entry { counter: base << EPOCH_SHIFT, ..entry }
    }

    /// First round of the epoch's ballots.
    pub(super) fn round_base(epoch: u8) -> u16 {
        u16::from(epoch) << EPOCH_SHIFT
    }

    /// Epoch of the oldest map that a host may go by when it begins its next operation. Who rebuilds what was lost has learnt since
    /// then which was in force, or a later one.
    pub(super) fn first_epoch(&self, state: &State, host: usize) -> u8 {
        let lost = state.members.iter().find(|member| member.voteless != 0);
        match (self.current(state, host).0, lost) {
            (Operation::Rebuild, Some(lost)) => lost.lost_at.saturating_sub(self.rules.rebuild_by_older_map.into()),
            _ => state.hosts[host].epoch,
        }
    }

    /// Upkeep that needs no read first.
    pub(super) fn begin_upkeep(&self, state: &mut State, host: usize, operation: Operation) -> bool {
        let (kind, epoch) = match operation {
            Operation::Seal(epoch) | Operation::SealAll(epoch) => (Kind::Seal, epoch),
            Operation::Clean(epoch) => (Kind::Clean, epoch),
            Operation::Drop(epoch) => (Kind::Drop, epoch),
            Operation::Migrate(epoch) | Operation::Sweep(epoch) | Operation::DropHeld(epoch) => {
                state.hosts[host].epoch = epoch;
                return false;
            }
            _ => return false,
        };
        state.hosts[host].epoch = epoch;
        self.begin(state, host, Phase::Store, Request { kind, ..Request::default() });
        true
    }

    /// All homes were read: drop the tombstone if all hold it.
    pub(super) fn drop_held(&self, state: &mut State, host: usize, answers: &Answers) {
        let newest = answers.newest;
        let epoch = state.hosts[host].epoch;
        let tombstone = newest.timestamp() != Default::default() && newest.value == ABSENT;
        if !(answers.equal && tombstone && self.age(&newest) < epoch) {
            return self.complete(state, host, super::Status::Unknown, 0);
        }
        let expected = newest.timestamp();
        self.begin(state, host, Phase::Store, Request { kind: Kind::DropExact, expected, ..Request::default() });
    }

    /// A page is closed to the operation: what the host does about it, for each map it may read now.
    pub(super) fn met_seal(&self, state: &State, host: usize, seal: u8, after: &mut Vec<State>) {
        let (operation, ..) = self.current(state, host);
        let current = &state.hosts[host];
        let mut next = state.clone();
        if operation.is_upkeep() && operation != Operation::Rebuild {
            self.complete(&mut next, host, super::Status::Done, 0); // a newer epoch: others have done it
            return after.push(next);
        }
        self.strike(&mut next, host);
        let is_put = matches!(operation, Operation::Put(_) | Operation::Delete);
        let put_sent = is_put
            && current.phase == Phase::Store
            && !self.rules.put_restarts_after_stores
            && !self.is_refused_by_all(state, host);
        let attempted = next.hosts[host].attempt_count > 0;
        if put_sent || attempted {
            next.hosts[host].epoch = seal;
            self.complete(&mut next, host, super::Status::Unknown, 0);
            return after.push(next);
        }
        for epoch in seal..=state.map {
            let mut next = state.clone();
            let current = &mut next.hosts[host];
            current.epoch = epoch;
            current.attempt_count = 0;
            current.attempts = Default::default();
            self.start(&mut next, host);
            after.push(next);
        }
    }
}

/// Epoch of the operation that drew the ballot.
pub(super) fn ballot_epoch(ballot: Ballot) -> u8 {
    (round(ballot) >> EPOCH_SHIFT) as u8
}

fn is_majority(members: u8, of: u8) -> bool {
    (members & of).count_ones() * 2 > of.count_ones()
}

/// What the member does with requests that only upkeep sends.
pub(super) fn upkeep(config: &Config, member: &mut super::Member, request: &Request) -> Reply {
    let epoch = request.epoch;
    let promise_is_dead = ballot_epoch(member.promised) < epoch || config.rules.drop_forgets_promises;
    let forgets = match request.kind {
        // Behind the seal there may be something of a later epoch, in which it is a home.
        Kind::Clean => member.homes >> epoch & 1 == 0 && (member.seal < epoch || config.rules.clean_behind_seal),
        Kind::Drop => config.is_dead_tombstone(&member.entry, epoch) && promise_is_dead,
        Kind::DropExact => member.entry.timestamp() == request.expected && promise_is_dead,
        _ => false,
    };
    member.seal = member.seal.max(epoch);
    if forgets {
        member.entry = Entry::default();
        member.promised = 0;
    }
    super::member::holds(member)
}
