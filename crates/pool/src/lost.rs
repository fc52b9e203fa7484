//! Members that are lost for good while the pool changes, and the way back from a change.
//!
//! Cleaning, by which a change ends, waits for every member. One that never comes back is *given up*: it has no vote any
//! more, under no host that knows it, cleaning passes it over, and the next change must take it out or begin a new life of it.
//!
//! What it holds can do no harm. Two things could: old entries of keys that were at home there before the change, were the
//! member made their home again; but it gets no keys any more, and whatever stands in its place is formatted and has another
//! incarnation. And hosts asleep in an older epoch that still reach it; but every other page of the pool is sealed, and a
//! majority of two or more needs one of them ([`Map::give_up`] refuses where one home alone is a majority and is lost).
//!
//! A joint map may also be *taken back*: the placement before it alone is the next one. That is decided by a joint map that says
//! so, under the majorities of both sides, and only such a one becomes the old side alone: or the new side could end the change
//! while the old one takes it back, each by voters of its own ([`crate::agree`]). Nothing has to be moved for it: every operation
//! of the joint epoch was stored at enough of a key's old homes to meet every majority of them, and so was, or was not, every
//! operation before. What was copied to new homes is dropped by the cleaning that follows.

use crate::change::{Phase, Side, State};
use crate::map::{Map, MemberId};
use crate::plan::PlanError;
use crate::ring::Ring;

impl Map {
    /// The same map without these members' votes: they are lost for good. If the change under way can't be carried out
    /// without them, it is taken back. A map that is stable: as it is, a change that takes them out may begin.
    pub fn give_up(&self, ids: &[MemberId]) -> Result<Map, PlanError> {
        let mut next = self.clone();
        if self.state == State::Stable {
            return Ok(next);
        }
        for &id in ids {
            let member = next.members.iter_mut().find(|member| member.id == id);
            member.ok_or(PlanError::NoMember(id))?.lost = true;
        }
        next.members.iter_mut().filter(|member| member.lost).for_each(|member| member.renewed = false);
        if next == *self {
            return Ok(next);
        }
        next.revision += 1;
        let goes_on = next.is_served(Side::New) && (self.state != State::Joint || next.is_served(Side::Old));
        if !goes_on && self.state == State::Joint {
            next.turn_back();
        }
        next.validate()?;
        let served = if next.goes_back() { next.went_back().is_served(Side::New) } else { goes_on };
        served.then_some(next).ok_or(PlanError::TooFewReplicas(self.replicas))
    }

    /// The joint map with the word that its change is not to be: what follows it is the old placement alone
    /// ([`Map::end_joint`]). A map of another state: as it is. Refused if members that were given up leave too few homes of
    /// some keys there.
    pub fn take_back(&self) -> Result<Map, PlanError> {
        if self.state != State::Joint || self.goes_back() {
            return Ok(self.clone());
        }
        let back = self.went_back();
        let mut next = self.clone();
        next.revision += 1;
        next.turn_back();
        back.is_served(Side::New).then_some(next).ok_or(PlanError::NoWayBack(self.replicas))
    }

    /// Whether this is a joint map whose change is taken back: both placements are in force, and the old one follows.
    pub fn goes_back(&self) -> bool {
        self.state == State::Joint && self.change.as_ref().is_some_and(|change| change.taken_back)
    }

    fn turn_back(&mut self) {
        if let Some(change) = &mut self.change {
            (change.phase, change.cursor, change.done) = (Phase::Migrate, 0, 0);
            change.taken_back = true;
        }
    }

    /// The old placement of a joint map alone.
    pub(crate) fn went_back(&self) -> Map {
        let mut next = self.clone();
        next.members.retain(|member| member.old.is_some());
        for member in &mut next.members {
            if let Some(seat) = member.old.take() {
                (member.weight, member.voter, member.points) = (seat.weight, seat.voter, seat.points);
            }
            member.lost |= member.renewed;
            (member.leaving, member.renewed) = (false, false);
        }
        next.become_unclean();
        next
    }

    /// Whether every key has enough homes that count: a majority; in the old placement of a joint map as many as meet every
    /// majority.
    pub(crate) fn is_served(&self, side: Side) -> bool {
        if self.members.iter().all(|member| member.counts(side)) {
            return true;
        }
        let ring = Ring::of(self, side);
        let counts = |member: usize| self.members[member].counts(side);
        let both = self.state == State::Joint && side == Side::Old;
        if both { ring.meets_every_majority(counts) } else { ring.majority_everywhere(counts) }
    }
}

#[cfg(test)]
#[path = "lost_tests.rs"]
mod tests;
