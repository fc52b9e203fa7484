//! Who is asked about a key, and when enough of them have answered.
//!
//! A pool at rest has one set of homes for a key, and an operation's phase is done when a majority of it has answered. While
//! the pool changes there are two, those of the old map and those of the new one, and a phase needs a majority of the new
//! set and as many of the old one as meet every majority of it: it then meets the operations of hosts that know only the old
//! set, of hosts that know only the new one, and of those that know both. A member in both sets is asked once and counts in
//! both, unless it has lost what its old place says it holds.
//!
//! Of a set that has lost members for good (`pool::Map::give_up`) a majority of what it was may be left, and is asked as ever; or
//! half of an even number, which meets every majority: then all of that half are asked, and so meet each other as well. Whoever
//! has not heard that they were given up, and still reaches them, needs a majority, with one of that half in it.

use pool::map::REPLICAS_MAX;
use pool::ring::Placements;
use pool::{Enough, KeyHash, Map, Ring, Side};

/// Homes of a key: two sets of replicas, at most.
const HOMES_MAX: usize = 2 * REPLICAS_MAX;

/// The sets of homes that a member is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sets(u8);

impl Sets {
    const SETS: usize = 2;
    /// The only set, or the one after the change under way.
    pub(super) const NEW: Sets = Sets(1);
    /// The set before the change under way.
    pub(super) const OLD: Sets = Sets(2);

    /// Whether it is in all the sets there are.
    pub(super) fn are(self, all: Sets) -> bool {
        self.0 & all.0 == all.0
    }

    /// Whether it shares a set with `other`.
    pub(super) fn meets(self, other: Sets) -> bool {
        self.0 & other.0 != 0
    }
}

/// One home of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Home {
    /// Index of the member.
    pub(super) member: u16,
    /// The sets it is in.
    pub(super) sets: Sets,
}

/// All homes of a key, each once; those of the new set first, nearest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Homes {
    list: [Home; HOMES_MAX],
    count: usize,
    quorum: Quorum,
}

impl Homes {
    /// When enough of them have answered.
    pub(super) fn quorum(&self) -> Quorum {
        self.quorum
    }

    /// Those that hold all that was acknowledged, but for what is missing by mischance: the set before the change, if one
    /// is under way.
    pub(super) fn settled(&self) -> Vec<u16> {
        let set = if self.quorum.needed[1] > 0 { Sets::OLD } else { Sets::NEW };
        self.iter().filter(|home| home.sets.meets(set)).map(|home| home.member).collect()
    }

    /// Whether those among them of which this is said are a quorum.
    pub(super) fn is_quorum(&self, are: impl Fn(usize) -> bool) -> bool {
        let those = self.iter().filter(|home| are(home.member.into()));
        self.quorum.is_met(those.map(|home| home.sets))
    }

    /// Whether this member is one of them.
    pub(super) fn contains(&self, member: usize) -> bool {
        self.iter().any(|home| usize::from(home.member) == member)
    }

    /// Those whose content of before the change is gone no longer count in the set before it.
    fn forget(&mut self, void: &[u16]) {
        for home in self.list[..self.count].iter_mut().filter(|home| void.contains(&home.member)) {
            home.sets.0 &= !Sets::OLD.0;
        }
    }

    fn add(&mut self, member: u16, sets: Sets) {
        match self.list[..self.count].iter_mut().find(|home| home.member == member) {
            Some(home) => home.sets.0 |= sets.0,
            None => {
                self.list[self.count] = Home { member, sets };
                self.count += 1;
            }
        }
    }
}

impl std::ops::Deref for Homes {
    type Target = [Home];

    fn deref(&self) -> &[Home] {
        &self.list[..self.count]
    }
}

/// How many of each set must have answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Quorum {
    needed: [u8; Sets::SETS],
    /// What operations of the map before needed of the old set.
    old_majority: u8,
}

impl Quorum {
    /// Whether these are enough of each set. Each member may be named once.
    pub(super) fn is_met(&self, answered: impl Iterator<Item = Sets>) -> bool {
        let mut count = [0; Sets::SETS];
        for sets in answered {
            count[0] += sets.0 & 1;
            count[1] += sets.0 >> 1;
        }
        count[0] >= self.needed[0] && count[1] >= self.needed[1]
    }

    /// Whether these are enough of one set.
    pub(super) fn is_met_in(&self, set: Sets, answered: impl Iterator<Item = Sets>) -> bool {
        let needed = if set == Sets::OLD { self.needed[1] } else { self.needed[0] };
        answered.filter(|sets| sets.meets(set)).count() >= usize::from(needed)
    }

    /// Whether these are as many of the old set as have decided things before the change: a majority.
    pub(super) fn is_majority_of_old(&self, answered: impl Iterator<Item = Sets>) -> bool {
        answered.filter(|sets| sets.meets(Sets::OLD)).count() >= usize::from(self.old_majority)
    }

    /// The sets there are.
    pub(super) fn sets(&self) -> Sets {
        Sets(if self.needed[1] > 0 { Sets::NEW.0 | Sets::OLD.0 } else { Sets::NEW.0 })
    }

    /// A majority of the new set.
    pub(super) fn majority_of_new(&self) -> usize {
        usize::from(self.needed[0])
    }

    /// Answers needed of the set that needs most; for messages.
    pub(super) fn needed(&self) -> usize {
        usize::from(self.needed[0].max(self.needed[1]))
    }
}

/// Of which sets of homes half may be all that know of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct HalfMayKnow {
    pub(super) of_old: bool,
    pub(super) of_new: bool,
}

impl HalfMayKnow {
    pub(super) fn of(map: &Map) -> HalfMayKnow {
        HalfMayKnow { of_old: map.half_may_know(Side::Old), of_new: map.half_may_know(Side::New) }
    }
}

/// Where keys live: one ring, or two while the pool changes. Both name members by their index in the same list.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    new: Ring,
    old: Option<Ring>,
    /// Members that don't count in the old one, as they begin a new life with this change.
    void: Vec<u16>,
    /// Members that count nowhere, as they were given up.
    lost: Vec<u16>,
    /// Answers needed of the old one: so many as know all.
    enough_of_old: Enough,
}

impl Placement {
    /// Of a map.
    pub(super) fn of(map: &Map) -> Placement {
        let Placements { new, old } = map.placements();
        let indices = || 0..map.members.len() as u16;
        let void = indices().filter(|index| map.members[usize::from(*index)].renewed).collect();
        let lost = indices().filter(|index| map.members[usize::from(*index)].lost).collect();
        Placement { new, old, void, lost, enough_of_old: map.enough(Side::Old) }
    }

    /// The homes of a key.
    pub(super) fn homes(&self, hash: KeyHash) -> Homes {
        let new = self.new.homes(hash);
        let old = self.old.as_ref().map(|ring| (ring.homes(hash), ring.majority() as u8));
        let old_majority = old.map_or(0, |(_, majority)| majority);
        let old_needed = old.map_or(0, |(homes, _)| self.enough_of_old.of(homes) as u8);
        let quorum = Quorum { needed: [self.needed_of(new) as u8, old_needed], old_majority };
        let nobody = Home { member: 0, sets: Sets(0) };
        let mut homes = Homes { list: [nobody; HOMES_MAX], count: 0, quorum };
        new.iter().for_each(|&member| homes.add(member, Sets::NEW));
        if let Some((old, _)) = old {
            old.iter().for_each(|&member| homes.add(member, Sets::OLD));
            homes.forget(&self.void);
        }
        homes
    }

    /// Answers needed of a new set of homes: a majority, or all that are left of half of them.
    fn needed_of(&self, homes: &[u16]) -> usize {
        let left = || homes.iter().filter(|home| !self.lost.contains(home)).count();
        match self.lost.as_slice() {
            [] => self.new.majority(),
            _ => self.new.majority().min(left().max(self.new.counter_majority())),
        }
    }

    /// Whether those that are `whole`, which `lost` is not, know all that it may have held of every key that it is a home of; and
    /// whether, at rest, they are all others.
    ///
    /// Of each set that it is in they are so many others that every majority is met by them. Of the set before a change that does
    /// not do by itself: an operation of the time of the change may have had an answer of no more old homes than that, `lost` among
    /// them. But a majority of the new ones has it then. So as many of these have to be there too, or a majority of the old ones,
    /// which will do by itself.
    ///
    /// # Errors
    /// They may not; how many of a set would do.
    pub(super) fn know_what_was_held(
        &self,
        lost: usize,
        whole: impl Fn(usize) -> bool,
        half: HalfMayKnow,
    ) -> Result<bool, usize> {
        let (majority, counter) = (self.new.majority(), self.new.counter_majority());
        let [of_old, of_new] = [half.of_old, half.of_new].map(|may| if may { majority } else { counter });
        let count = |homes: &[u16], void: &[u16]| {
            let counts = || homes.iter().filter(|home| !void.contains(home)).map(|&home| usize::from(home));
            (counts().any(|home| home == lost), counts().filter(|&home| whole(home)).count())
        };
        let Some(old) = &self.old else {
            let others = self.new.all_homes().map(|homes| count(homes, &[])).filter(|(is_home, _)| *is_home);
            let fewest = others.map(|(_, others)| others).min().unwrap_or(self.replicas());
            return if fewest < of_new { Err(of_new) } else { Ok(fewest + 1 >= self.replicas()) };
        };
        for (ring, _) in old.arcs().chain(self.new.arcs()) {
            let hash = KeyHash { home: 0, ring };
            let ((was_home, before), (is_home, after)) =
                (count(old.homes(hash), &self.void), count(self.new.homes(hash), &[]));
            // Enough by themselves: of the time before as of that of the change.
            if before >= majority {
                continue;
            }
            if was_home && (before < of_old || after < counter) {
                return Err(of_old);
            }
            if is_home && after < of_new {
                return Err(of_new);
            }
        }
        Ok(false)
    }

    /// Members that hold each key at rest.
    pub(super) fn replicas(&self) -> usize {
        self.new.replicas()
    }

    /// A majority of them.
    pub(super) fn majority(&self) -> usize {
        self.new.majority()
    }

    /// Whether those that `alive` names meet every majority of every key's homes before the change.
    pub(super) fn meets_old_everywhere(&self, alive: impl Fn(usize) -> bool) -> bool {
        let counts = |member: usize| alive(member) && !self.void.contains(&(member as u16));
        self.old.as_ref().is_none_or(|ring| ring.everywhere(counts, |homes| self.enough_of_old.of(homes)))
    }

    /// Whether every key keeps its quorum when only those that `alive` names can answer.
    pub(super) fn quorum_everywhere(&self, alive: impl Fn(usize) -> bool) -> bool {
        self.new.everywhere(&alive, |homes| self.needed_of(homes)) && self.meets_old_everywhere(alive)
    }

    /// Whether any key has its quorum when only those that `alive` names can answer.
    pub(super) fn quorum_anywhere(&self, alive: impl Fn(usize) -> bool) -> bool {
        let answers = |homes: &[u16]| homes.iter().filter(|&&home| alive(usize::from(home))).count();
        self.new.all_homes().any(|homes| answers(homes) >= self.needed_of(homes))
    }

    /// Whether all members count wherever they have a place.
    pub(super) fn is_whole(&self) -> bool {
        self.void.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{create, memories, run};

    /// Two maps over one list of members: of each key both sets are asked, nobody twice, and a majority of each is needed.
    #[test]
    fn between_two_maps_a_majority_of_each_set_is_needed() {
        run(1, async {
            let map = create(&memories(5, 16 << 20), 3, 500).await;
            let mut lighter = map.clone();
            lighter.members[0].weight = 1;
            let (old, new) = (Ring::new(&map), Ring::new(&lighter));
            let (void, lost) = (Vec::new(), Vec::new());
            let placement = Placement {
                new: new.clone(),
                old: Some(old.clone()),
                void,
                lost,
                enough_of_old: map.enough(Side::Old),
            };
            let mut differing = 0;
            for number in 0..200u64 {
                let hash = KeyHash::new(&number.to_le_bytes(), 1);
                let homes = placement.homes(hash);
                let of = |sets: Sets| -> Vec<u16> {
                    homes.iter().filter(|home| home.sets.meets(sets)).map(|home| home.member).collect()
                };
                assert_eq!(of(Sets::NEW), new.homes(hash));
                let (mut named, mut expected) = (of(Sets::OLD), old.homes(hash).to_vec());
                named.sort_unstable();
                expected.sort_unstable();
                assert_eq!(named, expected);
                differing += usize::from(homes.len() > 3);
                for answered in 0u32..1 << homes.len() {
                    let who = || homes.iter().enumerate().filter(|(index, _)| answered >> index & 1 == 1);
                    let count = |sets: Sets| who().filter(|(_, home)| home.sets.meets(sets)).count();
                    let met = homes.quorum().is_met(who().map(|(_, home)| home.sets));
                    assert_eq!(met, count(Sets::OLD) >= 2 && count(Sets::NEW) >= 2);
                }
            }
            assert!(differing > 50, "{differing} keys with other homes");
            // Who alone holds something in one of the sets can't have been passed by.
            let other = (0..200u64).map(|number| placement.homes(KeyHash::new(&number.to_le_bytes(), 1)));
            for homes in other.filter(|homes| homes.len() > 3) {
                let of_new = |member: usize| {
                    homes.iter().any(|home| usize::from(home.member) == member && home.sets.meets(Sets::NEW))
                };
                assert!(homes.is_quorum(|_| true) && homes.is_quorum(|member| member != usize::from(homes[0].member)));
                assert!(!homes.is_quorum(|member| !of_new(member)), "no majority of the new set");
            }
            let mut renewed = map.clone();
            (renewed.state, renewed.members[0].renewed) = (pool::State::Joint, true);
            renewed.members.iter_mut().for_each(|member| member.old = member.seat(pool::Side::New));
            let placement = Placement::of(&renewed);
            let homes = (0..200u64).map(|number| placement.homes(KeyHash::new(&number.to_le_bytes(), 1)));
            let homes = homes.filter(|homes| homes.contains(0)).inspect(|homes| assert_eq!(homes.len(), 3));
            let of_new_life = |homes: Homes| homes.iter().find(|home| home.member == 0).map(|home| home.sets);
            assert!(homes.map(of_new_life).all(|sets| sets == Some(Sets::NEW)), "what it held before is gone");
            let calm = Placement::of(&map);
            let homes = calm.homes(KeyHash::new(b"k", 1));
            assert_eq!((homes.len(), homes.quorum().needed(), calm.replicas()), (3, 2, 3));
            assert!(homes.quorum().is_met(homes[1..].iter().map(|home| home.sets)));
            assert!(!homes.quorum().is_met(homes[2..].iter().map(|home| home.sets)));
        });
    }

    /// Whether those that are whole know all that a lost one may have: whether each set of homes that an operation may have ended
    /// with, the lost one among them, has one of them. All sets are tried.
    #[test]
    fn a_lost_page_is_known_where_every_quorum_that_it_was_in_is_met() {
        run(1, async {
            for (replicas, half_may_know) in (1..=4).flat_map(|replicas| [(replicas, false), (replicas, true)]) {
                let mut map = create(&memories(5, 16 << 20), replicas, 500).await;
                map.members.iter_mut().for_each(|member| member.weight = 1);
                let mut fewer = map.clone();
                fewer.members[0].weight = 0;
                let [all, fewer] = [&map, &fewer].map(Ring::new);
                for (old, new) in [(None, &fewer), (Some(&all), &fewer), (Some(&fewer), &all)] {
                    let (old, enough_of_old) = (old.cloned(), map.enough(Side::Old));
                    let changes = old.is_some();
                    let placement =
                        Placement { new: new.clone(), old, void: Vec::new(), lost: Vec::new(), enough_of_old };
                    let half = HalfMayKnow { of_old: half_may_know, of_new: half_may_know && !changes };
                    for (lost, whole) in
                        (0..5).flat_map(|lost| (0..1u32 << 5).map(move |whole| (lost, whole & !(1 << lost))))
                    {
                        let known = placement.know_what_was_held(lost, |member| whole >> member & 1 == 1, half).is_ok();
                        assert_eq!(known, is_known(&placement, lost, whole, half), "{replicas}, {lost}, {whole:05b}");
                    }
                }
            }
        });
    }

    fn is_known(placement: &Placement, lost: usize, whole: u32, half: HalfMayKnow) -> bool {
        let (majority, counter) = (placement.new.majority(), placement.new.counter_majority());
        let of_before = if half.of_old || half.of_new { counter } else { majority };
        let points = placement.new.arcs().chain(placement.old.iter().flat_map(Ring::arcs)).map(|(point, _)| point);
        let mut hashes = points.map(|ring| KeyHash { home: 0, ring });
        hashes.all(|hash| {
            let after = placement.new.homes(hash);
            let before = placement.old.as_ref().map(|old| old.homes(hash));
            (0..1u32 << 5).filter(|answered| answered >> lost & 1 == 1 && answered & whole == 0).all(|answered| {
                let of = |homes: &[u16]| homes.iter().filter(|&&home| answered >> home & 1 == 1).count();
                let is_home = |homes: &[u16]| homes.contains(&(lost as u16));
                let (rest, joint) = match before {
                    None => (is_home(after) && of(after) >= of_before, false),
                    Some(before) => (
                        is_home(before) && of(before) >= of_before,
                        (is_home(before) || is_home(after)) && of(after) >= majority && of(before) >= counter,
                    ),
                };
                !rest && !joint
            })
        })
    }

    /// Some hosts have heard that members were given up, and others have not, in the same epoch: a phase of the ones meets every
    /// phase of the others.
    #[test]
    fn phases_meet_whoever_has_heard_which_members_were_given_up() {
        run(1, async {
            for replicas in 1..=4 {
                let map = create(&memories(5, 16 << 20), replicas, 500).await;
                let half = usize::from(replicas) - usize::from(replicas / 2);
                let heard = |lost: &[usize]| {
                    let mut map = map.clone();
                    lost.iter().for_each(|&index| map.members[index].lost = true);
                    Placement::of(&map)
                };
                for (first, second) in (0..5).flat_map(|first| (0..5).map(move |second| (first, second))) {
                    let stages = [heard(&[]), heard(&[first]), heard(&[first, second])];
                    for number in 0..20u64 {
                        let hash = KeyHash::new(&number.to_le_bytes(), 1);
                        let homes = stages[0].homes(hash);
                        // As long as a majority, or half, is left: else nobody gives them up.
                        let gone = |index: usize| [first, second].contains(&index);
                        if homes.iter().filter(|home| !gone(home.member.into())).count() < half {
                            continue;
                        }
                        let mut met = Vec::new();
                        for stage in &stages {
                            let lost = |home: &Home| stage.lost.contains(&home.member);
                            let quorum = stage.homes(hash).quorum();
                            let who = |answered: u32| {
                                homes
                                    .iter()
                                    .enumerate()
                                    .filter(move |(index, _)| answered >> index & 1 == 1)
                                    .map(|(_, home)| home)
                            };
                            let is_met = |answered: &u32| {
                                !who(*answered).any(lost) && quorum.is_met(who(*answered).map(|home| home.sets))
                            };
                            let sets: Vec<u32> = (0..1 << homes.len()).filter(is_met).collect();
                            assert!(
                                !sets.is_empty(),
                                "{replicas} replicas, {first} and {second} lost: nobody is served"
                            );
                            met.extend(sets);
                        }
                        assert!(met.iter().all(|one| met.iter().all(|other| one & other != 0)), "{met:?}");
                    }
                }
            }
        });
    }
}
