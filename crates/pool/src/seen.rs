//! [`Seen`]: what whoever proposes a map knows of the members that he asks, and what they have shown.

use std::collections::{BTreeMap, BTreeSet};

use crate::acceptor::{Promise, Refusal};
use crate::lives::Lives;
use crate::map::{Map, MemberId};
use crate::superblock::Ballot;

/// What members answered, by id.
pub(crate) type Answers<T> = BTreeMap<MemberId, Result<T, Refusal>>;

/// Everybody who is asked about the map after this one.
pub(crate) fn voters(map: &Map) -> BTreeSet<MemberId> {
    map.voter_indices().map(|index| map.members[index].id).collect()
}

/// What a proposal knows of those it asks, from all maps that it has come by.
pub(crate) struct Seen {
    pub(crate) pool: uuid::Uuid,
    pub(crate) asked: BTreeSet<MemberId>,
    pub(crate) lives: Lives,
    /// Who has to show what it has accepted, with a vote or without.
    pub(crate) carrier: Option<MemberId>,
}

impl Seen {
    pub(crate) fn new(known: &Map) -> Seen {
        let mut lives = Lives::default();
        lives.learn(known);
        Seen { pool: known.pool, asked: voters(known), lives, carrier: None }
    }

    /// The same, of a map besides that somebody carries.
    pub(crate) fn beside(known: &Map, carried: Option<&Map>) -> Seen {
        let mut seen = Seen::new(known);
        if let Some(carried) = carried.filter(|carried| carried.pool == known.pool) {
            seen.lives.learn(carried);
            // Of two maps of one version this one has been in force.
            seen.lives.learn(known);
            seen.asked.extend(voters(carried));
        }
        seen
    }

    /// Learns what the promises show, which are in the order of their ballots. Whether there is more to ask before a map is
    /// built on the last of them: voters that were not asked, or that other lives and marks than were known judge otherwise.
    pub(crate) fn learn(&mut self, shown: &[(Ballot, &Map)], base: &Map, promises: &Answers<Promise>) -> bool {
        let before = self.lives.clone();
        shown.iter().for_each(|(_, map)| self.lives.learn(map));
        let voters = voters(base);
        let is_judged_anew = |member: &MemberId| match promises.get(member) {
            Some(Ok(promise)) => !self.lives.is_current(*member, &promise.superblock),
            _ => before.of(*member) != self.lives.of(*member),
        };
        let more = voters.iter().any(|member| !self.asked.contains(member) || is_judged_anew(member));
        self.asked.extend(voters);
        more
    }

    /// Whether some have refused since they have gone on without the voters. They are asked from now on, and the voters of their
    /// map, who need not carry it yet.
    pub(crate) fn has_met_seized(&mut self, handed: &Answers<()>) -> bool {
        let mut has_met = false;
        for (member, result) in handed {
            if let Err(Refusal::Seized(map)) = result {
                self.asked.insert(*member);
                self.asked.extend(voters(map));
                has_met = true;
            }
        }
        has_met
    }

    /// The map that has to be shown, and by whom: none where nobody has to. `None`: it is not shown.
    pub(crate) fn carried<'p>(&self, promises: &'p Answers<Promise>) -> Option<Option<(MemberId, &'p Promise)>> {
        let Some(carrier) = self.carrier else { return Some(None) };
        let promise = promises.get(&carrier)?.as_ref().ok()?;
        promise.map.as_ref().map(|_| Some((carrier, promise)))
    }
}

/// What was accepted by whoever has promised and shows a whole map, in the order of ballots.
pub(crate) fn shown_by(promises: &Answers<Promise>) -> Vec<(Ballot, &Map)> {
    let granted = promises.values().filter_map(|promise| promise.as_ref().ok());
    let mut shown: Vec<_> =
        granted.filter_map(|promise| Some((promise.superblock.accepted, promise.map.as_ref()?))).collect();
    shown.sort_by_key(|(accepted, map)| map.order(*accepted));
    shown
}
