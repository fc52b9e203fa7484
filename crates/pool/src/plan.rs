//! Planning a change: from the map in force and what an operator asks for to the joint map, and on from there.
//!
//! All pure. What a change moves, [`crate::balance`] tells.

use crate::change::{Change, ChangeKind, Epoch, Phase, Seat, Side, State};
use crate::domain::{Domain, Level};
use crate::map::{MEMBERS_MAX, Map, MapError, Member, MemberId, VOTERS_MAX, WEIGHT_MAX};

/// What an operator asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// These members come.
    Add(Vec<Member>),
    /// These members go.
    Remove(Vec<MemberId>),
    /// The new member takes the place of the old one: its points on the ring, its weight, its vote.
    Replace {
        /// Who goes.
        old: MemberId,
        /// Who comes.
        new: Box<Member>,
    },
    /// These members stay, but hold nothing.
    Drain(Vec<MemberId>),
    /// Members get other weights.
    SetWeight(Vec<(MemberId, u32)>),
    /// A member that has lost what it held begins a new life in its own place: as [`crate::renew`] has made it.
    Renew(Box<Member>),
}

impl Request {
    /// Its kind.
    pub fn kind(&self) -> ChangeKind {
        match self {
            Request::Add(_) => ChangeKind::Add,
            Request::Remove(_) => ChangeKind::Remove,
            Request::Replace { .. } => ChangeKind::Replace,
            Request::Drain(_) => ChangeKind::Drain,
            Request::SetWeight(_) => ChangeKind::SetWeight,
            Request::Renew(_) => ChangeKind::Renew,
        }
    }

    /// Members that hold nothing any more of what they held before: they go, or begin anew.
    pub fn ends(&self) -> Vec<MemberId> {
        match self {
            Request::Remove(ids) => ids.clone(),
            Request::Replace { old, .. } => vec![*old],
            Request::Renew(member) => vec![member.id],
            Request::Add(_) | Request::Drain(_) | Request::SetWeight(_) => Vec::new(),
        }
    }
}

/// Why a change can't be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// Another change is under way.
    #[error(
        "the pool is being changed already ({kind}, {phase} {percent} % done): finish that first with \
         `yagura pool rebalance`"
    )]
    UnderWay {
        /// What was asked for.
        kind: ChangeKind,
        /// What is being done for it.
        phase: Phase,
        /// How much of that is done.
        percent: u16,
    },
    /// No such member.
    #[error("the pool has no member {0}: `yagura pool status` lists them")]
    NoMember(MemberId),
    /// It is a member already.
    #[error("{0} is a member of the pool already")]
    IsMember(MemberId),
    /// Nothing would change.
    #[error("that changes nothing")]
    Nothing,
    /// A weight out of range.
    #[error("weight {0}: must be 0 to {WEIGHT_MAX} (100 is usual, 0 holds nothing)")]
    Weight(u32),
    /// Fewer failure domains would hold keys than there are replicas.
    #[error(
        "{replicas} replicas need {replicas} different {level}s, but the members left lie in {domains}: add members first"
    )]
    TooFewDomains {
        /// The level at which replicas must differ.
        level: Level,
        /// Different domains there would be.
        domains: usize,
        /// Different domains needed.
        replicas: usize,
    },
    /// A member was given up, and would be one home too few of some keys.
    #[error(
        "member {0} was given up as lost, and some keys would have too few other replicas: take it out first (`yagura pool \
         replace` or `remove`), or `yagura kv repair` it"
    )]
    Lost(MemberId),
    /// A member was given up, and would become a home of more keys.
    #[error(
        "member {0} was given up as lost, and would be given keys: take it out first, or by the same command (`yagura pool \
         remove`, or `replace`), or `yagura kv repair` it"
    )]
    GivesToLost(MemberId),
    /// A member is lost, and the other half of some keys' replicas may not know all.
    #[error(
        "half of the {0} replicas of some keys would be left, and may lack what was acknowledged: a change was taken back, and \
         the replicas were not made equal since (`yagura kv scrub --collect` does that). Bring the lost members back, or, if that \
         can't be and what they alone knew may be gone, say so by `--accept-stale` (`yagura pool rebalance --lost`)"
    )]
    HalfMayKnow(u8),
    /// The same of a change that can only be taken back.
    #[error(
        "the change can't go on without the members that are lost, only be taken back: what was stored with the members that came \
         is dropped then, and half of the {0} replicas of some keys may lack what was acknowledged since or before. Bring the lost \
         members back, or, if that can't be and it may be gone, say so by `--accept-stale` (`yagura pool rebalance --lost`)"
    )]
    BackMayLose(u8),
    /// Some keys would be left with too few replicas to be read.
    #[error(
        "of some keys too few of the {0} replicas are left without the members that are lost: bring members back first (those \
         that were given up as lost and hold what they held: `yagura pool rebalance --returned`)"
    )]
    TooFewReplicas(u8),
    /// Of some keys nothing would be served any more.
    #[error(
        "of some keys too few of the {0} replicas would be left without the members that are lost, and nobody would be served them \
         until some of those are back (`yagura pool rebalance --returned`, with `--lost` and `--force` where those that vote are \
         lost): if that is meant, say so by `--accept-unserved`"
    )]
    Unserved(u8),
    /// The pool has gone on without a member that is back.
    #[error(
        "member {0} was given up as lost, and the pool was swept, or a change of it ended, without it since, or it was being begun anew: \
         it may hold what the others have forgotten, or lack what it held; `yagura kv repair` begins it anew"
    )]
    LeftBehind(MemberId),
    /// The same, of a change that is to be taken back and can be gone on with.
    #[error(
        "the change can't be taken back: before it some keys had too many of their {0} replicas on members that have been \
         given up as lost since; go on with it (`yagura pool rebalance`)"
    )]
    NoWayBack(u8),
    /// Too many members.
    #[error("{0} members, at most {MEMBERS_MAX} are possible")]
    TooMany(usize),
    /// Anything else that makes the map impossible.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl Map {
    /// The joint map that begins `request`. `id` names the change from now on; if this is that change already, the map as it is.
    pub fn begin(&self, request: &Request, id: u64) -> Result<Map, PlanError> {
        if let Some(change) = &self.change {
            if change.id == id {
                return Ok(self.clone());
            }
            let (kind, phase, percent) = (change.kind, change.phase, change.done / 10);
            return Err(PlanError::UnderWay { kind, phase, percent });
        }
        let mut next = self.clone();
        for member in &mut next.members {
            member.old = member.seat(Side::New);
        }
        next.apply(request)?;
        next.state = State::Joint;
        next.epoch += 1;
        next.revision = 0;
        // Homes are others now, and not all of them have been seen to hold the newest.
        next.swept = 0;
        next.change = Some(Change::new(request.kind(), id));
        choose_voters(&mut next, Side::New);
        let same = |member: &Member| member.old == member.seat(Side::New) && !member.renewed;
        if next.members.len() == self.members.len() && next.members.iter().all(same) {
            return Err(PlanError::Nothing);
        }
        if next.members.len() > MEMBERS_MAX {
            return Err(PlanError::TooMany(next.members.len()));
        }
        let (domains, replicas) = (next.domains(next.spread), usize::from(next.replicas));
        if domains < replicas {
            return Err(PlanError::TooFewDomains { level: next.spread, domains, replicas });
        }
        // Who was given up and stays has no vote as before, gets no keys, and goes or begins anew with another change: of several
        // that were lost each may go with its own, where the others get nothing by it.
        let lost = next.members.iter().find(|member| member.lost && !member.leaving);
        if let Some(lost) = lost.filter(|_| !next.is_known(Side::New)) {
            return Err(PlanError::Lost(lost.id));
        }
        if let Some(lost) = next.gains_though_lost() {
            return Err(PlanError::GivesToLost(lost));
        }
        next.validate()?;
        match next.is_known(Side::Old) {
            true => Ok(next),
            false => Err(next.too_few(|half| next.is_known_by(Side::Old, half))),
        }
    }

    fn apply(&mut self, request: &Request) -> Result<(), PlanError> {
        match request {
            Request::Add(members) => {
                for member in members {
                    self.check_new(member)?;
                    // Points that somebody else has taken over meanwhile stay with that one.
                    let id = member.id;
                    let taken = self.members.iter().any(|other| other.points == Some(id));
                    let points = taken.then(|| fresh_points(id, self.epoch));
                    self.members.push(Member { voter: false, leaving: false, old: None, points, ..member.clone() });
                }
            }
            Request::Remove(ids) => {
                for &id in ids {
                    self.find(id)?.leave();
                }
            }
            Request::Replace { old, new } => {
                self.check_new(new)?;
                let leaving = self.find(*old)?;
                let Seat { weight, voter, points } = leaving.leave();
                let points = Some(points.unwrap_or(*old));
                self.members.push(Member { weight, voter, points, leaving: false, old: None, ..(**new).clone() });
            }
            Request::Drain(ids) => {
                for &id in ids {
                    self.find(id)?.weight = 0;
                }
            }
            Request::SetWeight(weights) => {
                for &(id, weight) in weights {
                    if weight > WEIGHT_MAX {
                        return Err(PlanError::Weight(weight));
                    }
                    self.find(id)?.weight = weight;
                }
            }
            Request::Renew(new) => {
                let member = self.find(new.id)?;
                (member.incarnation, member.mark) = (new.incarnation, new.mark);
                (member.lost, member.left_behind, member.renewed) = (false, false, true);
            }
        }
        Ok(())
    }

    fn check_new(&self, member: &Member) -> Result<(), PlanError> {
        if self.index_of(member.id).is_some() {
            return Err(PlanError::IsMember(member.id));
        }
        if member.weight > WEIGHT_MAX { Err(PlanError::Weight(member.weight)) } else { Ok(()) }
    }

    fn find(&mut self, id: MemberId) -> Result<&mut Member, PlanError> {
        let found = self.members.iter_mut().find(|member| member.id == id && !member.leaving);
        found.ok_or(PlanError::NoMember(id))
    }

    /// The map after the joint one: the new placement alone, or the old one if the change is taken back. Members that leave
    /// (then: that came) are gone from it. A map of another state, or that waits for members: as it is.
    pub fn end_joint(&self) -> Map {
        if !self.serves_all() {
            return self.clone();
        }
        if self.goes_back() {
            return self.went_back();
        }
        let mut next = self.clone();
        if self.state != State::Joint {
            return next;
        }
        next.members.retain(|member| !member.leaving);
        for member in &mut next.members {
            // What was written off with its old life is gone.
            member.written_off &= !member.renewed;
            (member.old, member.renewed) = (None, false);
        }
        next.become_unclean();
        next
    }

    pub(crate) fn become_unclean(&mut self) {
        self.state = State::Unclean;
        self.epoch += 1;
        self.revision = 0;
        if let Some(change) = &mut self.change {
            (change.phase, change.cursor, change.done) = (Phase::Clean, 0, 0);
        }
    }

    /// The map when nobody holds what is not at home there: the change is over. A map of another state, or that waits for members:
    /// as it is.
    pub fn end_unclean(&self) -> Map {
        let mut next = self.clone();
        if self.state == State::Unclean && self.serves_all() {
            next.state = State::Stable;
            next.unequal |= next.change.take().is_some_and(|change| change.unequal);
            next.leave_lost_behind();
            next.revision += 1;
        }
        next
    }

    /// A stable map of the next epoch with the same members: hosts of older epochs can be shut out by it. What was swept is
    /// its floor. Any other: as it is, its end raises the epoch anyway.
    pub fn raise_epoch(&self) -> Map {
        let mut next = self.clone();
        if self.state == State::Stable {
            next.floor = self.floor.max(self.swept);
            next.epoch += 1;
            next.revision = 0;
        }
        next
    }

    /// The map with a note that `epoch` was swept, if that still is its epoch, at rest, and all keys are served: of others nobody
    /// left knows what there was, and a member that a sweep has passed over can't bring it back any more.
    pub fn note_swept(&self, epoch: Epoch) -> Map {
        let mut next = self.clone();
        if self.state == State::Stable && self.epoch == epoch && self.swept < epoch && self.serves_all() {
            next.swept = epoch;
            next.unequal = false;
            next.write_nothing_off();
            next.leave_lost_behind();
            next.revision += 1;
        }
        next
    }

    /// The map of a change that cleans up in `epoch` with a note that a page was rebuilt which may lack what it alone knew: whoever
    /// has made its homes equal may have read it before. Of any other: as it is.
    pub fn note_unequal(&self, epoch: Epoch) -> Map {
        let mut next = self.clone();
        if let Some(change) = &mut next.change
            && (self.state, self.epoch, change.unequal) == (State::Unclean, epoch, false)
        {
            change.unequal = true;
            next.revision += 1;
        }
        next
    }

    /// The same map with this progress of its change noted, which was made under a map of `epoch`; unless somebody has come further
    /// already or taken it back, or its phase has begun again in a later epoch, which members have to be sealed for.
    pub fn note(&self, epoch: Epoch, progress: &Change, moved_bytes: u64, now_ms: u64) -> Map {
        let mut next = self.clone();
        let Change { phase, cursor, done, .. } = *progress;
        if let Some(change) = &mut next.change
            && (self.epoch, change.id) == (epoch, progress.id)
            && !self.goes_back()
            && (change.phase, change.cursor, change.noted_ms) < (phase, cursor, now_ms)
            && (phase == Phase::Clean) == (self.state == State::Unclean)
        {
            (change.phase, change.cursor, change.done) = (phase, cursor, done);
            change.unequal |= progress.unequal;
            change.moved_bytes += moved_bytes;
            change.noted_ms = now_ms;
            next.revision += 1;
        }
        next
    }
}

impl Member {
    /// Gives up its place; what it was.
    fn leave(&mut self) -> Seat {
        let seat = Seat { weight: self.weight, voter: self.voter, points: self.points };
        (self.leaving, self.weight, self.voter) = (true, 0, false);
        seat
    }
}

/// Points of its own for a member whose own were taken over while it was away: an id that nobody has.
fn fresh_points(id: MemberId, epoch: u64) -> MemberId {
    let mut bytes = id.0;
    for (byte, salt) in bytes.iter_mut().zip((epoch + 1).to_le_bytes()) {
        *byte ^= salt;
    }
    MemberId(bytes)
}

/// Voters wanted among so many members: an odd number, as an even one survives no more failures.
fn voters_wanted(members: usize) -> usize {
    match members {
        0 => 0,
        _ => (members - (members + 1) % 2).min(VOTERS_MAX),
    }
}

/// Gives votes to members of a placement: those that have one keep it, and others follow where the fewest voters are near.
/// Members that hold keys come first; those that say nothing that counts are none, nor make it an even number.
pub(crate) fn choose_voters(map: &mut Map, side: Side) {
    let seats: Vec<(usize, Seat)> = map.seats(side).collect();
    let counts = |(index, _): &(usize, Seat)| map.members[*index].counts(side);
    let candidates: Vec<(usize, Seat)> = seats.iter().copied().filter(counts).collect();
    let wanted = voters_wanted(candidates.len());
    let mut chosen: Vec<usize> = Vec::with_capacity(wanted);
    while chosen.len() < wanted {
        let rank = |&(index, seat): &(usize, Seat)| {
            let member = &map.members[index];
            let near = |level: Level| {
                let here = member.domain.at(level);
                chosen.iter().filter(|&&other| map.members[other].domain.at(level) == here).count()
            };
            (seat.weight == 0, !seat.voter, Level::WIDEST_FIRST.map(near), index)
        };
        let free = candidates.iter().copied().filter(|(index, _)| !chosen.contains(index));
        let Some((best, _)) = free.min_by_key(rank) else { break };
        chosen.push(best);
    }
    for (index, _) in seats {
        let (member, votes) = (&mut map.members[index], chosen.contains(&index));
        match (side, &mut member.old) {
            (Side::Old, Some(seat)) => seat.voter = votes,
            (Side::Old, None) => {}
            (Side::New, _) => member.voter = votes,
        }
    }
}

/// Fills empty labels of a domain with the member's own id: it fails alone.
pub(crate) fn complete(domain: &Domain, id: MemberId) -> Domain {
    let mut domain = domain.clone();
    for label in [&mut domain.machine, &mut domain.drive] {
        if label.is_empty() {
            *label = id.to_string();
        }
    }
    domain
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
