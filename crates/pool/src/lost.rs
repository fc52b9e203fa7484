//! Members that are lost for good while the pool changes, and the way back from a change.
//!
//! Cleaning, by which a change ends, waits for every member. One that never comes back is *given up*: it has no vote any
//! more, under no host that knows it, cleaning passes it over, and the next change must take it out or begin a new life of it.
//!
//! What it holds can do no harm. Two things could: old entries of keys that were at home there before the change, were the
//! member made their home again; but it gets no keys any more ([`Map::begin`] refuses what would give it some), and whatever
//! stands in its place is formatted and has another incarnation. And hosts asleep in an older epoch that still reach it; but every
//! other page of the pool is sealed, and a majority of two or more needs one of them ([`Map::give_up`] refuses where one home alone
//! is a majority and is lost).
//!
//! **What is enough.** So many homes of every key as meet every majority of them ([`Map::is_known`]): they know all that was
//! acknowledged. Of an odd number that is a majority; of an even one half will do. Where half is left, all of these are asked
//! for everything from then on, which meets every majority in turn (`kv`'s `store::quorum`), until the next change has filled
//! other homes. Half will not do where half may be all that know of an operation: after a change was taken back, until the homes
//! were made equal ([`Map::unequal`]).
//!
//! A joint map may also be *taken back*: the placement before it alone is the next one. That is decided by a joint map that says
//! so, under the majorities of both sides, and only such a one becomes the old side alone: or the new side could end the change
//! while the old one takes it back, each by voters of its own ([`crate::agree`]). Nothing has to be moved for it: every operation
//! of the joint epoch was stored at enough of a key's old homes to meet every majority of them, and so was, or was not, every
//! operation before. What was copied to new homes is dropped by the cleaning that follows.

use crate::change::{Epoch, Phase, Seat, Side, State};
use crate::map::{Map, Member, MemberId};
use crate::plan::{PlanError, choose_voters};
use crate::ring::{KeyHash, Placements, Ring};

/// Epochs that a map is later for which the members left have taken the decision without its voters. Chosen: more than those can
/// have made since the others have heard of them, and few of the 2^24 there are.
pub(crate) const SEIZED_EPOCHS: Epoch = 1024;

/// What is asked of the half of a key's homes that is left where half of them may be all that know of an operation
/// ([`Map::half_may_know`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HalfLeft {
    /// That it knows all that was acknowledged: so it is refused.
    MustKnowAll,
    /// Nothing, by an operator's word: what the lost half alone knew is gone, and what was before may be read again.
    WillDo,
    /// Not even that there is one: keys of which less is left are served to nobody, until enough of the lost ones are back
    /// ([`Map::take_in`]).
    NeedNotBe,
}

impl Map {
    /// The same map without these members' votes: they are lost for good. If the change under way can't be carried out
    /// without them, it is taken back. A map that is stable: as it is, a change that takes them out may begin; but where half of
    /// a key's homes is left that may not know all, and `half` says that it will do, it does from then on.
    ///
    /// # Errors
    /// What is left of some keys' homes may lack what was acknowledged.
    pub fn give_up(&self, ids: &[MemberId], half: HalfLeft) -> Result<Map, PlanError> {
        let mut next = self.without_votes(ids)?;
        match self.state {
            State::Stable if half == HalfLeft::MustKnowAll || !next.is_half_left() => return Ok(self.clone()),
            State::Stable => next.is_enough_at_rest(self, half)?,
            State::Joint | State::Unclean if half == HalfLeft::MustKnowAll && next == *self => return Ok(next),
            State::Joint | State::Unclean => next.go_on_or_back(half)?,
        }
        next.accept(half);
        if next != *self {
            next.revision += 1;
        }
        next.validate()?;
        Ok(next)
    }

    fn without_votes(&self, ids: &[MemberId]) -> Result<Map, PlanError> {
        let mut next = self.clone();
        for &id in ids {
            let member = next.members.iter_mut().find(|member| member.id == id);
            member.ok_or(PlanError::NoMember(id))?.lost = true;
        }
        // Lost while it began anew: it holds nothing yet, whoever finds it.
        for member in next.members.iter_mut().filter(|member| member.lost && member.renewed) {
            (member.renewed, member.left_behind) = (false, true);
        }
        Ok(next)
    }

    /// Takes the change back if it can't go on with the homes that are left; refused if it can't be that either. Forward where both
    /// can be: what is known to half of a key's homes is enough there, and may not be behind a change that was taken back. By an
    /// operator's word it waits where neither can.
    fn go_on_or_back(&mut self, half: HalfLeft) -> Result<(), PlanError> {
        let goes_on = |map: &Map, half| map.sides().iter().all(|&side| map.is_known_by(side, half));
        let before = self.clone();
        if self.state == State::Joint && !goes_on(self, half) {
            self.turn_back();
        }
        let known = |half| if self.goes_back() { self.is_known_before(half) } else { goes_on(self, half) };
        if known(half) {
            return Ok(());
        }
        if half != HalfLeft::NeedNotBe {
            return Err(match self.too_few(known) {
                PlanError::HalfMayKnow(replicas) if before.goes_back() || !goes_on(&before, HalfLeft::WillDo) => {
                    PlanError::BackMayLose(replicas)
                }
                error => error,
            });
        }
        // Neither way before some are back: it waits as it is ([`Map::serves_all`]).
        *self = before;
        Ok(())
    }

    /// Why what is left is not enough: half may be, and not know all.
    pub(crate) fn too_few(&self, is_known: impl Fn(HalfLeft) -> bool) -> PlanError {
        match is_known(HalfLeft::WillDo) {
            true => PlanError::HalfMayKnow(self.replicas),
            false => PlanError::TooFewReplicas(self.replicas),
        }
    }

    /// Whether a map at rest may be left with what it has, which had more `before`.
    fn is_enough_at_rest(&self, before: &Map, half: HalfLeft) -> Result<(), PlanError> {
        if half == HalfLeft::MustKnowAll && self.falls_to_half(before) {
            return Err(PlanError::HalfMayKnow(self.replicas));
        }
        // Nothing could give them back but the lost ones: no change begins without them.
        if half != HalfLeft::NeedNotBe && self.falls_below_half(before) {
            return Err(PlanError::Unserved(self.replicas));
        }
        Ok(())
    }

    /// Takes an operator's word that half of a key's homes will do where the other half is gone. Of other keys it would not, so the
    /// map says as before that half may be all that know.
    fn accept(&mut self, half: HalfLeft) {
        if half != HalfLeft::MustKnowAll {
            self.write_off_who_is_gone();
        }
    }

    fn write_off_who_is_gone(&mut self) {
        self.members.iter_mut().for_each(|member| member.written_off |= member.lost || member.renewed);
    }

    /// What a command finds the pool in that first ends the change under way without those of `lost`; none is lost: as it is.
    /// The next change begins there.
    pub fn ended_without(&self, lost: &[MemberId]) -> Result<Map, PlanError> {
        match lost {
            [] => Ok(self.clone()),
            lost => Ok(self.give_up(lost, HalfLeft::MustKnowAll)?.end_joint().end_unclean()),
        }
    }

    /// The map that the members left agree on where the majority of its voters, on some side, is among those `lost` for good, by
    /// an operator's word: others are voters in their stead, and the change under way begins its phase again. Its epoch is
    /// so much later than any that the lost ones can have come to among themselves, that whoever meets its seals looks for it.
    ///
    /// # Errors
    /// What is left of some keys' homes would be served, and may lack what was acknowledged.
    pub fn seized_without(&self, lost: &[MemberId], half: HalfLeft) -> Result<Map, PlanError> {
        let mut next = self.without_votes(lost)?;
        (next.epoch, next.revision, next.swept) = (self.epoch + SEIZED_EPOCHS, 0, 0);
        next.seized = self.seized.saturating_add(1);
        match self.state {
            State::Stable => next.is_enough_at_rest(self, half)?,
            State::Joint | State::Unclean => next.go_on_or_back(half)?,
        }
        next.accept(half);
        // Nobody is left to say on the new side that it is given up: all who are left say so.
        if next.goes_back() && !next.seats(Side::New).any(|(index, _)| next.members[index].counts(Side::New)) {
            next = next.went_back();
        }
        if let Some(change) = &mut next.change {
            (change.cursor, change.done) = (0, 0);
        }
        for &side in next.sides() {
            let left = |(index, seat): &(usize, Seat)| seat.voter && next.members[*index].counts(side);
            let (voters, left) =
                (next.seats(side).filter(|(_, seat)| seat.voter).count(), next.seats(side).filter(left).count());
            if left <= voters / 2 {
                choose_voters(&mut next, side);
            }
        }
        next.validate()?;
        Ok(next)
    }

    /// The joint map with the word that its change is not to be: what follows it is the old placement alone
    /// ([`Map::end_joint`]). A map of another state: as it is. Refused if members that were given up leave too few homes of
    /// some keys there.
    pub fn take_back(&self) -> Result<Map, PlanError> {
        if self.state != State::Joint || self.goes_back() {
            return Ok(self.clone());
        }
        let mut next = self.clone();
        next.revision += 1;
        next.turn_back();
        // What was written off was, as far as was known then, for a change that goes on.
        let mut back = next.went_back();
        back.write_nothing_off();
        back.is_known(Side::New).then_some(next).ok_or(PlanError::NoWayBack(self.replicas))
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
            (member.lost, member.left_behind) = (member.lost | member.renewed, member.left_behind | member.renewed);
            (member.leaving, member.renewed) = (false, false);
        }
        next.become_unclean();
        next
    }

    /// Whether half of a key's homes may be all that know of an operation: their number is even, and a change was taken back.
    pub fn half_may_know(&self, side: Side) -> bool {
        let taken_back = self.change.as_ref().is_some_and(|change| change.taken_back);
        let may = match side {
            Side::Old => self.unequal,
            Side::New => self.state != State::Joint && (self.unequal || taken_back),
        };
        may && self.replicas.is_multiple_of(2)
    }

    /// Whether some key is left with half of its homes, and half of them may be all that know of an operation.
    fn is_half_left(&self) -> bool {
        self.half_may_know(Side::New) && self.falls(self, |ring, _, now| now == ring.counter_majority())
    }

    /// Whether some key is left with half of its homes, which would be all that is asked, had more than that `before`, and half of
    /// them may be all that know of an operation.
    fn falls_to_half(&self, before: &Map) -> bool {
        let falls = |ring: &Ring, before, now| before >= ring.majority() && now == ring.counter_majority();
        self.half_may_know(Side::New) && self.falls(before, falls)
    }

    /// Whether some key is left with fewer homes than it is served by, and was not `before`.
    fn falls_below_half(&self, before: &Map) -> bool {
        self.falls(before, |ring, before, now| before >= ring.counter_majority() && now < ring.counter_majority())
    }

    fn falls(&self, before: &Map, falls: impl Fn(&Ring, usize, usize) -> bool) -> bool {
        let ring = Ring::of(self, Side::New);
        let left = |map: &Map, homes: &[u16]| {
            homes.iter().filter(|&&home| map.members[usize::from(home)].counts(Side::New)).count()
        };
        ring.all_homes().any(|homes| falls(&ring, left(before, homes), left(self, homes)))
    }

    /// The map in which these members, given up as lost and back with all that they held, are members as before. They were as
    /// good as silent meanwhile, so what every majority of a key's homes has asked is met by any majority with them; but where
    /// half of the homes was left and asked alone, theirs may be the half that knows nothing ([`Map::unequal`]).
    ///
    /// A later epoch: no sweep that has passed them over is noted in it, nor anything that was done for the change under way, whose
    /// phase begins again. So a joint map ends as if they had been there all the time, and an unclean one when they too are cleaned
    /// and sealed. What was migrated without them is with a majority of those that are counted ([`Map::give_up`]), as ever.
    ///
    /// # Errors
    /// A sweep, or the end of a change, has passed one over, or it had begun anew and was not filled.
    pub fn take_in(&self, ids: &[MemberId]) -> Result<Map, PlanError> {
        let mut next = self.clone();
        for &id in ids {
            let member = next.members.iter_mut().find(|member| member.id == id).ok_or(PlanError::NoMember(id))?;
            if member.left_behind {
                return Err(PlanError::LeftBehind(id));
            }
            // One that begins anew has its vote already, and what it held before may be written off.
            if std::mem::take(&mut member.lost) {
                member.written_off = false;
            }
        }
        if next == *self {
            return Ok(next);
        }
        let is_taken_back = self.change.as_ref().is_some_and(|change| change.taken_back);
        if !self.unequal && !is_taken_back {
            // What is left where others are still gone has known all, and has been asked alone since.
            next.write_off_who_is_gone();
        }
        next.unequal |= self.replicas.is_multiple_of(2);
        match &mut next.change {
            Some(change) => {
                (change.cursor, change.done) = (0, 0);
                (next.epoch, next.revision) = (self.epoch + 1, 0);
            }
            None => next = next.raise_epoch(),
        }
        next.swept = 0;
        next.validate()?;
        Ok(next)
    }

    /// What others forget from here on, those that were given up may hold.
    pub(crate) fn leave_lost_behind(&mut self) {
        self.members.iter_mut().for_each(|member| member.left_behind |= member.lost);
    }

    pub(crate) fn write_nothing_off(&mut self) {
        self.members.iter_mut().for_each(|member| member.written_off = false);
    }

    /// A member that was given up, stays, and would be a home of keys of which it was none before the change.
    pub(crate) fn gains_though_lost(&self) -> Option<MemberId> {
        let is_lost = |member: &Member| member.lost && !member.leaving;
        if !self.members.iter().any(is_lost) {
            return None;
        }
        let Placements { new, old: Some(old) } = self.placements() else { return None };
        let gains = |(point, _): (u64, &[u16])| {
            let hash = KeyHash { home: 0, ring: point };
            let before = old.homes(hash);
            new.homes(hash)
                .iter()
                .map(|&home| (home, &self.members[usize::from(home)]))
                .find_map(|(home, member)| (is_lost(member) && !before.contains(&home)).then_some(member.id))
        };
        old.arcs().chain(new.arcs()).find_map(gains)
    }

    /// Whether the homes that a key had before the change under way, as far as they count, know all that was acknowledged: of the
    /// time before as many as meet every majority, and where half will do for that, half in both placements: an operation of
    /// the joint epoch may have asked any half of the old homes, but with a majority of the new ones.
    fn is_known_before(&self, half: HalfLeft) -> bool {
        let Placements { new, old: Some(old) } = self.placements() else { return self.is_known_by(Side::New, half) };
        let will_do = half != HalfLeft::MustKnowAll;
        let counts = |home: &&u16| self.members[usize::from(**home)].counts(Side::Old);
        let enough = self.enough(Side::Old);
        old.arcs().chain(new.arcs()).all(|(point, _)| {
            let hash = KeyHash { home: 0, ring: point };
            let (before, after) = (old.homes(hash), new.homes(hash));
            let left = before.iter().filter(counts).count();
            let needed = if will_do { old.counter_majority() } else { enough.of(before) };
            let in_both = after.iter().filter(counts).filter(|home| before.contains(home)).count();
            left >= needed && (will_do || left >= old.majority() || in_both >= new.counter_majority())
        })
    }

    /// Whether every key is left so many homes that it is served, or will be where a change is taken back: an operator has given
    /// none up with its members ([`HalfLeft::NeedNotBe`]). Where not, those members alone can bring it back, so they must not be
    /// passed over: no sweep is noted, and no phase of a change ends.
    pub fn serves_all(&self) -> bool {
        match self.goes_back() {
            true => self.is_known_before(HalfLeft::WillDo),
            false => self.sides().iter().all(|&side| self.is_known_by(side, HalfLeft::WillDo)),
        }
    }

    /// Whether the homes of every key that count know all that was acknowledged: see this module.
    pub(crate) fn is_known(&self, side: Side) -> bool {
        self.is_known_by(side, HalfLeft::MustKnowAll)
    }

    /// The same; half of them may be said to.
    pub(crate) fn is_known_by(&self, side: Side, half: HalfLeft) -> bool {
        if self.members.iter().all(|member| member.counts(side)) {
            return true;
        }
        let (ring, enough) = (Ring::of(self, side), self.enough(side));
        let counts = |member: usize| self.members[member].counts(side);
        match half {
            HalfLeft::MustKnowAll => ring.everywhere(counts, |homes| enough.of(homes)),
            HalfLeft::WillDo | HalfLeft::NeedNotBe => ring.everywhere(counts, |_| ring.counter_majority()),
        }
    }
}

#[cfg(test)]
#[path = "lost_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "word_tests.rs"]
mod word;

#[cfg(test)]
#[path = "ways_tests.rs"]
mod ways;
