//! The way from any map of a pool to the one in force, look by look: a look reads the superblocks of the voters of every map that
//! was come by so far.
//!
//! Voters come and go, so that a newer map, or an older one that is in force still, may name others to ask. Who asked the
//! voters of one map at a time might come to no end: of a map on its way to force, whose old side names a voter that the new one
//! does not, either set of voters alone points to the other's. So whoever was to be asked once is asked from then on, and a
//! look either knows somebody new to ask or is the last.
//!
//! Where none of a map's voters answers, all its members are asked: the voters are lost and others have gone on without them
//! ([`crate::Proposer::seize`]), or all have left since. What they carry counts by the same rule as ever, a quorum of a map's own
//! voters, but only if it is newer: of an older map nobody can tell here whether it was followed. So members that were given up are
//! not asked: they know nothing but what was before.

use std::collections::BTreeSet;

use crate::change::Epoch;
use crate::error::Error;
use crate::map::{Map, MemberId};
use crate::open::Opened;
use crate::seen::voters;

/// Looks for the map in force.
pub struct Search {
    map: Map,
    asked: BTreeSet<MemberId>,
    silence: Option<Silence>,
}

/// A look at which no voter of a map had anything to say.
struct Silence {
    /// Which map's.
    version: (Epoch, u64),
    /// What they said.
    error: Error,
}

impl Silence {
    /// Whether somebody else, or they after all, can tell what followed.
    fn is_answered_by(&self, opened: &Result<Opened, Error>) -> bool {
        match opened {
            Ok(opened) => opened.map.version() >= self.version,
            Err(Error::NoQuorum { map, .. }) => map.version() > self.version,
            Err(_) => false,
        }
    }
}

/// What a look has come to.
#[derive(Debug)]
pub enum Found {
    /// A map that is in force, or was when it was read.
    InForce(Map),
    /// [`Search::asks`] names more to be asked, too.
    More,
    /// All were asked, and too few have accepted the newest map, which [`Search::map`] is now: `NoQuorum`. Somebody is about to
    /// have it agreed on, or it has to be settled ([`crate::Proposer::agree`] from there).
    Unsettled(Error),
}

impl Search {
    /// From any map of the pool.
    pub fn new(map: Map) -> Search {
        Search { map, asked: BTreeSet::new(), silence: None }
    }

    /// The newest map seen.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The members of [`Search::map`] that are to be asked in the next look, beside those that were asked before: its voters, or
    /// everybody after they were silent.
    pub fn asks(&self) -> Vec<usize> {
        match self.silence {
            None => self.map.voter_indices().collect(),
            Some(_) => (0..self.map.members.len()).filter(|&index| !self.map.members[index].lost).collect(),
        }
    }

    /// Judges what [`crate::open`] has made of all that were asked so far.
    ///
    /// # Errors
    /// Those of `open` but `NoQuorum`; where no voter answered and nobody else knows a newer map, what the voters said.
    pub fn heard(&mut self, opened: Result<Opened, Error>) -> Result<Found, Error> {
        let asks: Vec<MemberId> = self.asks().into_iter().map(|index| self.map.members[index].id).collect();
        self.asked.extend(asks);
        if self.silence.is_none() && matches!(opened, Err(Error::NoMembers { .. } | Error::OtherPool { .. })) {
            let version = self.map.version();
            self.silence = opened.err().map(|error| Silence { version, error });
            return Ok(Found::More);
        }
        if let Some(Silence { error, .. }) = self.silence.take_if(|silence| !silence.is_answered_by(&opened)) {
            return Err(error);
        }
        let seen = match &opened {
            Ok(opened) => &opened.map,
            Err(Error::NoQuorum { map, .. }) => map,
            Err(_) => return opened.map(|opened| Found::InForce(opened.map)),
        };
        self.map = seen.clone();
        if !voters(seen).is_subset(&self.asked) {
            return Ok(Found::More);
        }
        Ok(opened.map_or_else(Found::Unsettled, |opened| Found::InForce(opened.map)))
    }
}

#[cfg(test)]
mod tests {
    use device::Namespace;
    use engine::sim::{SimConfig, World};

    use super::*;
    use crate::open;
    use crate::plan::Request;
    use crate::testing::{Plain, new_member, plain_pool};
    use crate::{HalfLeft, Member, Proposer, Word};

    /// One look: the voters of the search's map are asked beside those of before.
    async fn look(search: &mut Search, namespaces: &[Plain], asked: &mut BTreeSet<MemberId>) -> Result<Found, Error> {
        asked.extend(search.asks().into_iter().map(|index| search.map().members[index].id));
        let labelled: Vec<(String, Plain)> = asked
            .iter()
            .filter_map(|id| namespaces.iter().find(|plain| plain.info().nguid == id.0 && !plain.0.down.get()))
            .map(|plain| (String::from("m"), plain.clone()))
            .collect();
        search.heard(open(&labelled, None).await)
    }

    /// The last of the `voters` namespaces that a pool is made of is replaced by the one after them, which has not heard of the
    /// final map yet: the maps before, meanwhile, and after.
    async fn replaced(namespaces: &[Plain], voters: usize) -> [Map; 3] {
        let map = plain_pool(&namespaces[..voters], voters as u8).await;
        let new = new_member(&namespaces[voters]);
        let member: Member = crate::candidate(&new, &map, None, false).await.unwrap();
        crate::admit(&new, &map, &member, false, async || Ok(map.clone())).await.unwrap();
        let proposer = Proposer::new(namespaces);
        let request = Request::Replace { old: map.members[voters - 1].id, new: Box::new(member) };
        let joint = proposer.agree(&map, |map| Ok(map.begin(&request, 9)?)).await.unwrap();
        let before = namespaces[voters].0.bytes.borrow().clone();
        let last = proposer.agree(&joint, |map| Ok(map.end_joint())).await.unwrap();
        *namespaces[voters].0.bytes.borrow_mut() = before;
        [map, joint, last]
    }

    /// The final map of a replacement is with one voter, another is down, and the one replaced is gone: a majority of the final map
    /// is there, none of the joint one.
    #[test]
    fn the_newest_map_is_settled_where_its_voters_are() {
        let world = World::new(1, SimConfig::default()).run_until(async {
            let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
            let [_, joint, last] = replaced(&namespaces, 3).await;
            let proposer = Proposer::new(&namespaces);
            namespaces[1..3].iter().for_each(|plain| plain.0.down.set(true));
            let (mut search, mut asked) = (Search::new(joint), BTreeSet::new());
            while matches!(look(&mut search, &namespaces, &mut asked).await, Ok(Found::More)) {}
            assert_eq!(search.map(), &last, "whose voters can settle it");
            assert_eq!(proposer.agree(search.map(), |map| Ok(map.clone())).await.unwrap(), last);
        });
        world.unwrap();
    }

    /// The final map of a replacement has reached the voter that goes alone. Who asked that one saw the final map, which its
    /// voters were to be asked for; those named the joint one, which the voter that goes has to be asked for; and so on.
    #[test]
    fn a_map_between_two_sets_of_voters_is_found_and_settled() {
        let world = World::new(1, SimConfig::default()).run_until(async {
            let namespaces: Vec<Plain> = (1..=2).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
            for known in replaced(&namespaces, 1).await {
                let (mut search, mut asked) = (Search::new(known), BTreeSet::new());
                let mut looks = 0;
                while matches!(look(&mut search, &namespaces, &mut asked).await, Ok(Found::More)) {
                    looks += 1;
                    assert!(looks <= 2, "each look asks somebody new");
                }
                let unsettled = look(&mut search, &namespaces, &mut asked).await.unwrap();
                assert!(matches!(unsettled, Found::Unsettled(Error::NoQuorum { .. })), "{unsettled:?}");
                let bytes: Vec<Vec<u8>> = namespaces.iter().map(|plain| plain.0.bytes.borrow().clone()).collect();
                let settled = Proposer::new(&namespaces).agree(search.map(), |map| Ok(map.clone())).await.unwrap();
                let (mut search, mut asked) = (Search::new(settled.clone()), BTreeSet::new());
                let found = look(&mut search, &namespaces, &mut asked).await.unwrap();
                assert!(matches!(&found, Found::InForce(map) if *map == settled), "{found:?}");
                namespaces.iter().zip(bytes).for_each(|(plain, bytes)| *plain.0.bytes.borrow_mut() = bytes);
            }
        });
        world.unwrap();
    }

    /// From `known` to where a search ends.
    async fn search(known: &Map, namespaces: &[Plain]) -> Result<Found, Error> {
        let (mut search, mut asked) = (Search::new(known.clone()), BTreeSet::new());
        loop {
            match look(&mut search, namespaces, &mut asked).await {
                Ok(Found::More) => {}
                ended => return ended,
            }
        }
    }

    /// The one voter of two is lost and the other has gone on without it. Whoever knew the map before asked the lost one alone, for
    /// ever, beside the one that knew better.
    #[test]
    fn a_map_that_was_seized_is_found_from_the_one_before_and_not_the_other_way() {
        let world = World::new(1, SimConfig::default()).run_until(async {
            let namespaces: Vec<Plain> = (1..=2).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
            let map = plain_pool(&namespaces, 2).await;
            let voter = map.voter_indices().next().unwrap();
            let silent = |of: usize, is: bool| namespaces[of].0.down.set(is);
            silent(voter, true);
            let found = search(&map, &namespaces).await;
            assert!(
                matches!(found, Err(Error::NoMembers { .. })),
                "nobody knows what the voter has agreed on: {found:?}"
            );
            let seized = Proposer::new(&namespaces)
                .seize(&map, Word::lost(&[map.members[voter].id], HalfLeft::MustKnowAll))
                .await
                .unwrap();
            let found = search(&map, &namespaces).await;
            assert!(matches!(&found, Ok(Found::InForce(map)) if *map == seized), "{found:?}");
            // The lost one is back with the map before, and the one that went on is away.
            silent(voter, false);
            silent(1 - voter, true);
            let found = search(&seized, &namespaces).await;
            assert!(matches!(found, Err(Error::NoMembers { .. })), "it was followed by a newer: {found:?}");
        });
        world.unwrap();
    }
}
