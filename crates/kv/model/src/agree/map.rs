//! Maps: who votes, in which life, and what changes make of them.

use super::{CHANGES_MAX, MEMBERS, Rules};

/// A map, as far as it matters for agreement on the next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Map {
    /// The changes that led to it, in order.
    pub(super) changes: [u8; CHANGES_MAX],
    pub(super) joint: bool,
    /// Voters before the change, in a joint map (set); the voters.
    pub(super) old: u8,
    pub(super) new: u8,
    /// Members that were given up, and that begin anew (sets).
    pub(super) lost: u8,
    pub(super) renewed: u8,
    /// How often the members left have gone on without the voters: a map of more of that counts over one of less.
    pub(super) seized: u8,
    /// The life of each member; 0: it is none of this map's.
    pub(super) lives: [u8; MEMBERS],
    /// The mark of each member.
    pub(super) marks: [u8; MEMBERS],
}

/// What a host asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Progress is noted: the same voters.
    Note,
    /// A joint map with these voters on its new side.
    Begin(u8),
    /// The new side alone.
    End,
    /// The old side alone.
    TakeBack,
    /// This member has no vote any more, while the map is joint.
    GiveUp(usize),
    /// A member that has lost what it had begins a new life in its place.
    Renew(usize),
    /// These members (set), the majority of the voters among them, are lost: all others go on with voters among themselves.
    Seize(u8),
    /// They are back.
    TakeIn(u8),
    /// Other voters without a joint map: looks right and is not.
    Direct(u8),
    /// No change: the pool is opened.
    Open,
}

impl Map {
    /// The first map; `learners`: members that have no vote.
    pub(super) fn first(voters: u8, learners: u8) -> Map {
        let lives = std::array::from_fn(|member| (voters | learners) >> member & 1);
        Map { new: voters, lives, ..Map::default() }
    }

    /// All members, but those that are lost for good.
    pub(super) fn left_without(&self, lost: u8) -> u8 {
        (0..MEMBERS).filter(|&member| self.lives[member] != 0).map(|member| 1 << member).sum::<u8>() & !lost
    }

    /// Which of two maps counts, by the ballots that they were accepted by.
    pub(super) fn order(&self, rules: &Rules, accepted: u8) -> (u8, u8) {
        (if rules.seized_by_ballot { 0 } else { self.seized }, accepted)
    }

    pub(super) fn voters(&self) -> u8 {
        if self.joint { self.old | self.new } else { self.new }
    }

    pub(super) fn length(&self) -> u8 {
        length(&self.changes)
    }

    /// Whether those that agree, and that count, are a majority of the voters, on every side. `agree`: by member, set.
    pub(super) fn has_quorum(&self, rules: &Rules, agree: u8) -> bool {
        let majority = |agreeing: u8, voters: u8| (agreeing & voters).count_ones() * 2 > voters.count_ones();
        let old = !self.joint || rules.joint_by_new || majority(agree & !self.lost & !self.renewed, self.old);
        old && majority(agree & !self.lost, self.new)
    }

    /// Members that are new come in their first life.
    fn admit(&mut self, voters: u8) {
        for (member, life) in self.lives.iter_mut().enumerate() {
            *life = (*life).max(voters >> member & 1);
        }
    }

    /// What the change makes of it; `None`: it does not fit. `life`: of a member that begins anew.
    pub(super) fn changed(&self, rules: &Rules, change: Change, token: u8, life: u8) -> Option<Map> {
        if self.changes.contains(&token) && !rules.not_recognised {
            return Some(*self);
        }
        let mut next = *self;
        match change {
            Change::Note => {}
            Change::Begin(_) | Change::Renew(_) | Change::Direct(_) if self.joint => return None,
            Change::Begin(voters) => {
                (next.joint, next.old, next.new) = (true, self.new, voters);
                next.admit(voters);
            }
            Change::Renew(member) => {
                (next.joint, next.old, next.renewed) = (true, self.new, 1 << member);
                next.lost &= !(1 << member);
                next.lives[member] = life;
            }
            Change::Seize(_) if self.joint => return None,
            Change::Seize(lost) => {
                (next.lost, next.seized) = (self.lost | lost, self.seized + 1);
                let left = self.left_without(next.lost);
                // An odd number of them, the lowest.
                next.new = if left.count_ones() < 3 { left & left.wrapping_neg() } else { left };
            }
            Change::TakeIn(_) if self.joint => return None,
            Change::TakeIn(members) => next.lost &= !members,
            Change::Direct(voters) => {
                next.new = voters;
                next.admit(voters);
            }
            Change::End | Change::TakeBack | Change::GiveUp(_) if !self.joint => return Some(*self),
            Change::End => (next.joint, next.old, next.renewed) = (false, 0, 0),
            Change::TakeBack => {
                next.lost |= next.renewed;
                (next.joint, next.new, next.old, next.renewed) = (false, self.old, 0, 0);
            }
            Change::GiveUp(member) => {
                next.lost |= 1 << member;
                next.renewed &= !next.lost;
            }
            Change::Open => return None,
        }
        let free = next.changes.iter().position(|&known| known == 0)?;
        next.changes[free] = token;
        Some(next)
    }
}

/// Of each member the higher of two marks.
pub(super) fn highest(one: &[u8; MEMBERS], other: &[u8; MEMBERS]) -> [u8; MEMBERS] {
    std::array::from_fn(|member| one[member].max(other[member]))
}

/// How many changes.
pub(super) fn length(changes: &[u8; CHANGES_MAX]) -> u8 {
    changes.iter().filter(|&&token| token != 0).count() as u8
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let changes: Vec<String> = self.changes.iter().filter(|&&token| token != 0).map(u8::to_string).collect();
        write!(f, "[{}", changes.join(" "))?;
        match self.joint {
            true => write!(f, " voters {:04b} and {:04b}", self.old, self.new)?,
            false => write!(f, " voters {:04b}", self.new)?,
        }
        let sets = [("lost", self.lost), ("anew", self.renewed)];
        sets.iter().filter(|(_, set)| *set != 0).try_for_each(|(name, set)| write!(f, " {name} {set:04b}"))?;
        write!(f, "]")
    }
}
