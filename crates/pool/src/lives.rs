//! In which life, and from which generation on, what a member says counts: by all maps that were seen so far, not by one.
//!
//! A map names for each of its members an incarnation (a life) and a *mark*, a generation that the member had reached before.
//! A member that is in another life, or below its mark, has forgotten what it promised and accepted. Whoever knew an old map
//! alone would count it all the same; so what counts is judged by the newest life and the highest mark that any map names which
//! was seen, on the way or among the very answers:
//!
//! - *A vote is counted only from a voter that has not forgotten anything since the highest mark that is known to whoever
//!   counts, or was to any voter when it answered.* A member reaches a mark by [`crate::acceptor::MARK_STRIDE`] generations
//!   at once: what it forgets lies so far below that no number of promises to those who don't know of the mark makes up for it.
//! - A mark is a fact, whatever became of the map that names it: the generation was reached before the map was proposed. So
//!   the highest counts.
//! - A member is in a life before a map names it, and never again in the one before. Of two lives that of the later map
//!   counts: the one of the higher version, and of two equal ones the one that was accepted by the higher ballot.

use std::collections::BTreeMap;

use crate::change::Epoch;
use crate::map::{Map, Member, MemberId};
use crate::superblock::Superblock;

/// The newest life of every member, with its mark.
#[derive(Clone, Default, Debug)]
pub(crate) struct Lives(BTreeMap<MemberId, Life>);

#[derive(Clone, Copy, Debug)]
struct Life {
    /// Of the newest map that names it.
    version: (Epoch, u64),
    incarnation: u64,
    mark: u64,
}

impl Lives {
    /// Learns what a map names. Of maps of one version the one of the highest ballot is to be the last.
    pub(crate) fn learn(&mut self, map: &Map) {
        for member in &map.members {
            let named = Life { version: map.version(), incarnation: member.incarnation, mark: member.mark };
            let life = self.0.entry(member.id).or_insert(named);
            if life.incarnation == named.incarnation {
                life.version = life.version.max(named.version);
                life.mark = life.mark.max(named.mark);
            } else if life.version <= named.version {
                *life = named;
            }
        }
    }

    /// The life a member must be in, and the smallest generation that counts; none: no map names it.
    pub(crate) fn of(&self, member: MemberId) -> Option<(u64, u64)> {
        self.0.get(&member).map(|life| (life.incarnation, life.mark))
    }

    /// Whether this is the life in which a map has the member as `named`.
    pub(crate) fn is_life_of(&self, named: &Member) -> bool {
        self.of(named.id).is_some_and(|(incarnation, _)| incarnation == named.incarnation)
    }

    /// Whether what a member says in `found` counts for a map that has it as `named`.
    pub(crate) fn counts(&self, named: &Member, found: &Superblock) -> bool {
        self.is_life_of(named) && self.is_current(named.id, found)
    }

    /// Whether the member has forgotten nothing that a map knows of.
    pub(crate) fn is_current(&self, member: MemberId, found: &Superblock) -> bool {
        self.of(member).is_none_or(|life| found.is_in_life(life).is_ok())
    }
}

#[cfg(test)]
#[path = "lives_tests.rs"]
mod tests;
