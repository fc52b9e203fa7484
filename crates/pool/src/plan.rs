//! Planning a change: from the map in force and what an operator asks for to the joint map, and on from there.
//!
//! All pure. What a change moves, [`crate::balance`] tells.

use crate::change::{Change, ChangeKind, Phase, Seat, Side, State};
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
        next.change = Some(Change::new(request.kind(), id));
        choose_voters(&mut next);
        let same = |member: &Member| member.old == member.seat(Side::New);
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
        next.validate()?;
        Ok(next)
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

    /// The map after the joint one: the new placement alone. Members that leave are gone from it. A map of another state: as
    /// it is.
    pub fn end_joint(&self) -> Map {
        let mut next = self.clone();
        if self.state != State::Joint {
            return next;
        }
        next.members.retain(|member| !member.leaving);
        next.members.iter_mut().for_each(|member| member.old = None);
        next.state = State::Unclean;
        next.epoch += 1;
        next.revision = 0;
        if let Some(change) = &mut next.change {
            (change.phase, change.cursor, change.done) = (Phase::Clean, 0, 0);
        }
        next
    }

    /// The map when nobody holds what is not at home there: the change is over. A map of another state: as it is.
    pub fn end_unclean(&self) -> Map {
        let mut next = self.clone();
        if self.state == State::Unclean {
            next.state = State::Stable;
            next.change = None;
            next.revision += 1;
        }
        next
    }

    /// A stable map of the next epoch with the same members: hosts of older epochs can be shut out by it. Any other: as it is,
    /// its end raises the epoch anyway.
    pub fn raise_epoch(&self) -> Map {
        let mut next = self.clone();
        if self.state == State::Stable {
            next.epoch += 1;
            next.revision = 0;
        }
        next
    }

    /// The same map with this progress of its change noted, unless somebody has come further already.
    pub fn note(&self, id: u64, phase: Phase, cursor: u64, done: u16, moved_bytes: u64, now_ms: u64) -> Map {
        let mut next = self.clone();
        if let Some(change) = &mut next.change
            && change.id == id
            && (change.phase, change.cursor, change.noted_ms) < (phase, cursor, now_ms)
            && (phase == Phase::Clean) == (self.state == State::Unclean)
        {
            (change.phase, change.cursor, change.done) = (phase, cursor, done);
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

/// Voters wanted among so many members: all of one or two; else an odd number, as an even one survives no more failures.
fn voters_wanted(members: usize) -> usize {
    match members {
        0..=2 => members,
        _ => (members - (members + 1) % 2).min(VOTERS_MAX),
    }
}

/// Gives votes to members of the new placement: those that have one keep it, and others follow where the fewest voters are
/// near. Members that hold keys come first.
pub(crate) fn choose_voters(map: &mut Map) {
    let candidates: Vec<usize> = map.seats(Side::New).map(|(index, _)| index).collect();
    let wanted = voters_wanted(candidates.len());
    let mut chosen: Vec<usize> = Vec::with_capacity(wanted);
    while chosen.len() < wanted {
        let rank = |&index: &usize| {
            let member = &map.members[index];
            let near = |level: Level| {
                let here = member.domain.at(level);
                chosen.iter().filter(|&&other| map.members[other].domain.at(level) == here).count()
            };
            (member.weight == 0, !member.voter, Level::WIDEST_FIRST.map(near), index)
        };
        let free = candidates.iter().copied().filter(|index| !chosen.contains(index));
        let Some(best) = free.min_by_key(rank) else { break };
        chosen.push(best);
    }
    for index in candidates {
        map.members[index].voter = chosen.contains(&index);
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
mod tests {
    use super::*;
    use crate::balance::{Moved, imbalance, loads, moved};
    use crate::map::tests::sample;
    use crate::ring::Ring;

    fn newcomer(number: u8, domain: &str) -> Member {
        let mut member = sample(1, 1).members.remove(0);
        member.id = MemberId([100 + number; 16]);
        member.domain = Domain { machine: domain.into(), drive: domain.into(), ..Domain::default() };
        member
    }

    /// What a request moves, and what it must.
    fn cost(map: &Map, request: &Request) -> (Map, Moved) {
        let joint = map.begin(request, 7).unwrap();
        let placements = joint.placements();
        let moved = moved(&joint, placements.old.as_ref().unwrap(), &placements.new);
        (joint, moved)
    }

    /// `members` machines in racks of `rack`, replicas in different racks.
    fn racks(members: usize, rack: usize) -> Map {
        let mut map = sample(members, 3);
        map.spread = Level::Rack;
        for (index, member) in map.members.iter_mut().enumerate() {
            member.domain.rack = format!("r{}", index / rack);
        }
        map
    }

    #[test]
    fn a_change_moves_no_more_than_it_must() {
        for members in [3, 4, 5, 10, 30, 100, 300] {
            for map in [sample(members, 3), sample(members, 1)] {
                let one = map.members[members / 2].id;
                let mut requests = vec![
                    Request::Add(vec![newcomer(1, "new")]),
                    Request::Replace { old: one, new: Box::new(newcomer(1, "new")) },
                ];
                if members > 3 {
                    requests.push(Request::Remove(vec![one]));
                    requests.push(Request::Drain(vec![one]));
                    requests.push(Request::SetWeight(vec![(one, 60)]));
                    requests.push(Request::SetWeight(vec![(one, 170)]));
                }
                for request in requests {
                    let (_, moved) = cost(&map, &request);
                    assert!(
                        moved.least > 0.0 && moved.share <= moved.least * 1.000_001,
                        "{members} {request:?} {moved:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_change_among_racks_moves_at_most_a_tenth_more_than_it_must() {
        for (members, rack) in [(12, 3), (40, 8), (200, 20)] {
            let map = racks(members, rack);
            let mut same_rack = newcomer(1, "new");
            same_rack.domain.rack = "r1".into();
            let mut other_rack = newcomer(2, "other");
            other_rack.domain.rack = "r-new".into();
            let one = map.members[members / 2].id;
            let requests = [
                Request::Add(vec![same_rack.clone()]),
                Request::Add(vec![other_rack]),
                Request::Remove(vec![one]),
                Request::Replace {
                    old: one,
                    new: Box::new(Member { domain: map.members[members / 2].domain.clone(), ..same_rack }),
                },
                Request::SetWeight(vec![(one, 200)]),
            ];
            for request in requests {
                let (_, moved) = cost(&map, &request);
                assert!(moved.share <= moved.least * 1.1, "{members} {request:?} {moved:?}");
            }
        }
    }

    #[test]
    fn a_replacement_takes_the_place_and_nothing_else_moves() {
        let map = sample(10, 3);
        let old = map.members[3].id;
        let (joint, moved) = cost(&map, &Request::Replace { old, new: Box::new(newcomer(1, "new")) });
        let placements = joint.placements();
        let held = loads(&joint, placements.old.as_ref().unwrap())[3];
        assert!((moved.share - held).abs() < 1e-9, "exactly what the old one held");
        assert!(joint.members[3].leaving && joint.members[3].old.is_some_and(|seat| seat.voter));
        assert!(joint.members[10].voter && joint.members[10].old.is_none());
        // And again: the points are handed on.
        let stable = joint.end_joint().end_unclean();
        assert_eq!((stable.state, stable.members.len(), stable.epoch), (State::Stable, 10, 3));
        let (again, _) = cost(&stable, &Request::Replace { old: MemberId([101; 16]), new: Box::new(newcomer(2, "x")) });
        assert_eq!(again.members.last().unwrap().points, Some(old));
        // The one that went may come back, beside the one that has its points.
        let back = Member { leaving: false, ..map.members[3].clone() };
        let (joint, _) = cost(&stable, &Request::Add(vec![back]));
        assert!(joint.encode().is_ok() && joint.members.last().unwrap().points.is_some());
    }

    #[test]
    fn states_follow_each_other_and_a_change_is_begun_once() {
        let map = sample(4, 3);
        let request = Request::Drain(vec![map.members[0].id]);
        let joint = map.begin(&request, 7).unwrap();
        assert_eq!((joint.state, joint.epoch, joint.begin(&request, 7)), (State::Joint, 2, Ok(joint.clone())));
        assert!(matches!(joint.begin(&request, 8), Err(PlanError::UnderWay { kind: ChangeKind::Drain, .. })));
        let noted = joint.note(7, Phase::Migrate, 5, 300, 1000, 1);
        assert_eq!((noted.revision, noted.change.as_ref().unwrap().done), (1, 300));
        assert_eq!(noted.note(7, Phase::Seal, 9, 900, 1, 2), noted, "progress never goes back");
        assert_eq!(noted.note(8, Phase::Migrate, 9, 900, 1, 2), noted, "nor is another change's noted");
        let unclean = noted.end_joint();
        assert_eq!((unclean.state, unclean.epoch, unclean.end_joint()), (State::Unclean, 3, unclean.clone()));
        assert!(unclean.encode().is_ok() && unclean.members[0].weight == 0);
        let stable = unclean.end_unclean();
        assert_eq!((stable.state, stable.epoch, stable.raise_epoch().epoch), (State::Stable, 3, 4));
        assert!(Ring::new(&stable).all_homes().all(|homes| !homes.contains(&0)), "a drained member holds nothing");
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_way_out() {
        let map = sample(3, 3);
        let refused = |request: Request| map.begin(&request, 1).unwrap_err();
        assert!(matches!(
            refused(Request::Remove(vec![map.members[0].id])),
            PlanError::TooFewDomains { domains: 2, .. }
        ));
        assert!(matches!(refused(Request::Drain(vec![MemberId([9; 16])])), PlanError::NoMember(_)));
        assert!(matches!(refused(Request::Add(vec![map.members[0].clone()])), PlanError::IsMember(_)));
        assert_eq!(refused(Request::SetWeight(vec![(map.members[0].id, 100)])), PlanError::Nothing);
        assert_eq!(refused(Request::SetWeight(vec![(map.members[0].id, 10_001)])), PlanError::Weight(10_001));
    }

    #[test]
    fn voters_are_odd_in_number_spread_and_replaced_when_they_go() {
        let mut map = racks(12, 3);
        map.members.iter_mut().for_each(|member| member.voter = false);
        choose_voters(&mut map);
        let per_rack = |map: &Map| {
            let mut racks = [0; 4];
            map.seats(Side::New).filter(|(_, seat)| seat.voter).for_each(|(index, _)| racks[index / 3] += 1);
            racks
        };
        assert_eq!(per_rack(&map).iter().sum::<i32>(), 7);
        assert!(per_rack(&map).iter().all(|&count| (1..=2).contains(&count)), "{:?}", per_rack(&map));
        let gone = map.members.iter().find(|member| member.voter).unwrap().id;
        let joint = map.begin(&Request::Remove(vec![gone]), 1).unwrap();
        assert_eq!(joint.seats(Side::New).filter(|(_, seat)| seat.voter).count(), 7);
        assert_eq!([1, 2, 3, 4, 5, 6, 7, 8, 1000].map(voters_wanted), [1, 2, 3, 3, 5, 5, 7, 7, 7]);
    }

    #[test]
    fn loads_add_up_and_follow_weights() {
        let mut map = sample(20, 3);
        map.members[4].weight = 200;
        let ring = Ring::new(&map);
        let loads = loads(&map, &ring);
        assert!((loads.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((1.0..1.3).contains(&imbalance(&map, &ring, Side::New)));
        assert!(loads[4] > 1.5 / 21.0);
    }
}
