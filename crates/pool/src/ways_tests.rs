//! Every state of losses has a way out: all states that a change of a small pool goes through, all losses of one or two members
//! in each, and the commands that an operator has, searched for a sequence that leads to a stable pool without the lost ones. Where
//! half of each key's homes is left that may not know all, there is one by an operator's word, and none without.
//!
//! The commands are those of `yagura pool`, by the functions that decide for them ([`Map::ended_without`], [`Map::begin`],
//! [`Map::give_up`], [`Map::take_back`], [`Map::seized_without`], the quorums of `agree`); what carries a change out is modelled by
//! what it needs: so many homes of every key for migration, every member that was not given up for cleaning.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::map::Member;
use crate::map::tests::sample;
use crate::plan::Request;

/// Commands that the search tries one after the other at most. What it finds needs five.
const COMMANDS_MAX: usize = 6;

/// A pool, and who is gone for good.
#[derive(Clone)]
struct World {
    map: Map,
    /// The operator's word on what is left.
    half: HalfLeft,
    dead: BTreeSet<MemberId>,
    /// Those that were given up while they were away, and are back with all that they held.
    whole: BTreeSet<MemberId>,
    /// A gateway sweeps the pool whenever it can.
    is_swept: bool,
    /// Namespaces that join where they are no members, also again after a change was taken back.
    spares: Vec<Member>,
}

/// What each key's homes are on either side, and of how many members it has.
fn pairs(map: &Map) -> BTreeSet<(Vec<u16>, Vec<u16>)> {
    let Placements { new, old } = map.placements();
    let old = old.unwrap_or_else(|| new.clone());
    let sorted = |homes: &[u16]| {
        let mut homes = homes.to_vec();
        homes.sort_unstable();
        homes
    };
    let at = |point| KeyHash { home: 0, ring: point };
    let of = |(point, _): (u64, &[u16])| (sorted(old.homes(at(point))), sorted(new.homes(at(point))));
    old.arcs().chain(new.arcs()).map(of).collect()
}

impl World {
    fn new(map: &Map, dead: impl IntoIterator<Item = MemberId>, spares: &[Member]) -> World {
        let (half, dead, whole) = (HalfLeft::MustKnowAll, dead.into_iter().collect(), BTreeSet::new());
        World { map: map.clone(), half, dead, whole, is_swept: false, spares: spares.to_vec() }
    }

    /// Members die, are given up, and the change under way is stopped there or carried out as far as that goes. Then they are back.
    fn give_up_for_a_while(&mut self, away: &[MemberId], carry_out: bool) {
        self.dead.extend(away);
        let answers = |member: &Member| self.answers(member.id);
        let words = [HalfLeft::MustKnowAll, HalfLeft::NeedNotBe];
        if !self.map.has_quorum(answers) {
            if let Some(seized) = words.iter().find_map(|half| self.map.seized_without(away, *half).ok()) {
                self.map = seized;
            }
        } else if let Some(given_up) = words.iter().find_map(|half| self.map.give_up(away, *half).ok()) {
            self.agree(given_up);
        }
        if carry_out {
            self.finish();
        }
        self.sweep();
        self.dead.clear();
        self.whole.extend(away);
    }

    /// Sweeps, if a gateway does and it is noted.
    fn sweep(&mut self) {
        let raised = self.map.raise_epoch();
        let swept = raised.note_swept(raised.epoch);
        let is_heard = self.map.members.iter().all(|member| member.lost || self.answers(member.id));
        if self.is_swept
            && is_heard
            && self.map.state == State::Stable
            && self.map.swept < self.map.epoch
            && swept != raised
        {
            self.agree(swept);
        }
    }

    /// Those that were given up, are back, and hold all that they are to hold.
    fn returned(&self) -> Vec<MemberId> {
        let is_back = |member: &&Member| member.lost && !member.left_behind && self.whole.contains(&member.id);
        self.map.members.iter().filter(is_back).map(|member| member.id).filter(|id| self.answers(*id)).collect()
    }

    /// The same with those that are back: half of the homes, which may be asked alone meanwhile, may know what they do not.
    fn with_the_returned(&self) -> World {
        let (mut with, returned) = (self.clone(), self.returned());
        let is_back = |member: &&mut Member| returned.contains(&member.id);
        with.map.members.iter_mut().filter(is_back).for_each(|member| member.lost = false);
        with.map.unequal |= !returned.is_empty() && with.map.replicas.is_multiple_of(2);
        with
    }

    fn answers(&self, id: MemberId) -> bool {
        !self.dead.contains(&id)
    }

    /// How many of these homes say what counts on this side.
    fn left(&self, homes: &[u16], side: Side) -> usize {
        let counts = |home: &&u16| {
            let member = &self.map.members[usize::from(**home)];
            self.answers(member.id) && member.counts(side)
        };
        homes.iter().filter(counts).count()
    }

    /// Whether those that are left know every operation that may have been acknowledged: by the definition, whatever the code
    /// under test makes of it.
    fn knows_all(&self) -> bool {
        let replicas = usize::from(self.map.replicas);
        let majority = replicas / 2 + 1;
        let half = replicas - majority + 1;
        let back = self.map.change.as_ref().is_some_and(|change| change.taken_back);
        pairs(&self.map).iter().all(|(before, after)| {
            let (old, new) = (self.left(before, Side::Old), self.left(after, Side::New));
            let left = |home: &&u16| self.left(&[**home], Side::Old) == 1;
            let elsewhere = after.iter().filter(|home| !before.iter().filter(left).any(|other| other == *home)).count();
            match self.map.state {
                // Of keys that the change does not move half may be all that know as before.
                State::Joint if self.map.unequal => old >= majority,
                // New homes will not be asked any more.
                State::Joint if back => old >= half && (replicas - old < half || elsewhere < majority),
                State::Joint => old >= half && (replicas - old < half || replicas - new < majority),
                State::Unclean if back => new >= majority,
                State::Stable | State::Unclean if self.map.unequal => new >= majority,
                State::Stable | State::Unclean => new >= half,
            }
        })
    }

    /// Whether of every key half of the homes is left that operations before the loss have asked.
    fn has_half(&self) -> bool {
        let half = usize::from(self.map.replicas / 2);
        let before = if self.map.state == State::Joint { Side::Old } else { Side::New };
        self.map.replicas.is_multiple_of(2)
            && pairs(&self.map).iter().all(|(old, new)| match before {
                Side::Old => self.left(old, Side::Old) >= half,
                Side::New => self.left(new, Side::New) >= half,
            })
    }

    /// Has `next` agreed on; `false`: too few voters answer.
    fn agree(&mut self, next: Map) -> bool {
        let answers = |member: &Member| self.answers(member.id);
        let agreed = self.map.has_quorum(answers) && next.has_quorum(answers);
        if agreed {
            self.map = next;
        }
        agreed
    }

    /// Carries the change under way out as far as it goes; whether that is to its end.
    fn finish(&mut self) -> bool {
        let replicas = usize::from(self.map.replicas);
        if !self.map.serves_all() {
            return false;
        }
        if self.map.state == State::Joint && !self.map.goes_back() {
            let is_enough = |(before, after): &(Vec<u16>, Vec<u16>)| {
                let given_up = |home: &&u16| self.map.members[usize::from(**home)].lost;
                let is_written_off = |home: &&u16| self.map.members[usize::from(**home)].written_off;
                let half_will_do = !self.map.unequal || before.iter().filter(is_written_off).count() == replicas / 2;
                let needed = if half_will_do { replicas - replicas / 2 } else { replicas / 2 + 1 };
                let asked = (replicas - after.iter().filter(given_up).count()).min(replicas / 2 + 1);
                self.left(before, Side::Old) >= needed && self.left(after, Side::New) >= asked
            };
            if !pairs(&self.map).iter().all(is_enough) {
                return false;
            }
        }
        if self.map.state == State::Joint && !self.agree(self.map.end_joint()) {
            return false;
        }
        if self.map.state == State::Unclean {
            let cleaned = self.map.members.iter().all(|member| member.lost || self.answers(member.id));
            return cleaned && self.agree(self.map.end_unclean());
        }
        true
    }

    /// `yagura pool add`, `remove`, `replace`.
    fn command(&mut self, request: &Request) {
        let has_no_vote =
            |id: &MemberId| !self.answers(*id) || self.map.members.iter().any(|member| member.id == *id && member.lost);
        let lost = match self.map.state {
            State::Stable => Vec::new(),
            State::Joint | State::Unclean => request.ends().into_iter().filter(has_no_vote).collect(),
        };
        let planned = self.map.ended_without(&lost).and_then(|settled| settled.begin(request, 0));
        if planned.is_err() {
            return;
        }
        if !lost.is_empty() {
            let Ok(given_up) = self.map.give_up(&lost, HalfLeft::MustKnowAll) else { return };
            if !self.agree(given_up) || !self.finish() {
                return;
            }
        }
        let Ok(joint) = self.map.begin(request, 7) else { return };
        if self.agree(joint) {
            self.finish();
        }
    }

    /// What an operator may do, the likeliest first.
    fn after_each_command(&self) -> Vec<World> {
        let mut worlds = Vec::new();
        let mut with = |change: &dyn Fn(&mut World)| {
            let mut world = self.clone();
            change(&mut world);
            world.sweep();
            worlds.push(world);
        };
        let lost: Vec<MemberId> = self.dead.iter().copied().filter(|id| self.map.index_of(*id).is_some()).collect();
        let is_free = |spare: &&Member| self.answers(spare.id) && self.map.index_of(spare.id).is_none();
        for &old in &lost {
            for spare in self.spares.iter().filter(is_free) {
                let request = Request::Replace { old, new: Box::new(spare.clone()) };
                with(&|world| world.command(&request));
            }
            with(&|world| world.command(&Request::Remove(vec![old])));
        }
        // All that are back, or one of them, with `--returned`.
        let returned = self.returned();
        for ids in returned.chunks(1).chain((returned.len() > 1).then_some(&*returned)) {
            with(&|world| {
                if let Ok(taken_in) = world.map.take_in(ids)
                    && world.agree(taken_in)
                {
                    world.finish();
                }
            });
        }
        // `yagura kv repair` begins anew who is there, and has no vote.
        for member in self.map.members.iter().filter(|member| member.lost && self.answers(member.id)) {
            let fresh = Member { incarnation: member.incarnation.wrapping_add(1), ..member.clone() };
            with(&|world| world.command(&Request::Renew(Box::new(fresh.clone()))));
        }
        with(&|world| world.command(&Request::Remove(lost.clone())));
        // Which gives room to take out several at once.
        if let Some(spare) = self.spares.iter().find(is_free) {
            with(&|world| world.command(&Request::Add(vec![spare.clone()])));
        }
        with(&|world| {
            world.finish();
        });
        // With `--lost`, and by the operator's word.
        with(&|world| {
            if let Ok(given_up) = world.map.give_up(&lost, world.half)
                && world.agree(given_up)
            {
                world.finish();
            }
        });
        with(&|world| {
            if let Ok(back) = world.map.take_back()
                && world.agree(back)
            {
                world.finish();
            }
        });
        // Where voters are left that are a majority it changes nothing.
        let answers = |member: &Member| self.answers(member.id);
        if !self.map.has_quorum(answers) {
            for ids in [&[][..], &returned] {
                if let Ok(seized) = self.map.take_in(ids).and_then(|map| map.seized_without(&lost, self.half)) {
                    with(&|world| world.map = seized.clone());
                }
            }
        }
        worlds
    }

    fn is_well(&self) -> bool {
        let well = |member: &Member| !member.lost && self.answers(member.id);
        self.map.state == State::Stable && self.map.members.iter().all(well)
    }

    /// How many commands lead to a pool that is well; none do: `None`.
    fn commands(&self) -> Option<usize> {
        let (mut seen, mut worlds) = (BTreeSet::new(), vec![self.clone()]);
        for count in 0..=COMMANDS_MAX {
            if worlds.iter().any(World::is_well) {
                return Some(count);
            }
            let next: Vec<World> = worlds.iter().flat_map(World::after_each_command).collect();
            worlds = next.into_iter().filter(|world| seen.insert(format!("{:?}", world.map))).collect();
        }
        None
    }
}

/// Members whose rings are small, `on` each machine.
fn pool(members: usize, replicas: u8, on: usize) -> (Map, Vec<Member>) {
    let mut map = sample(members + 3, replicas);
    for (index, member) in map.members.iter_mut().enumerate() {
        (member.weight, member.domain.machine) = (8, format!("m{}", index / on));
    }
    let spares = map.members.split_off(members);
    choose_voters(&mut map, Side::New);
    map.validate().expect("a pool");
    (map, spares)
}

/// Every state that a pool goes through when it is changed in any way.
fn states(map: &Map, spares: &[Member]) -> Vec<(String, Map)> {
    let mut requests = vec![Request::Add(vec![spares[0].clone()]), Request::Add(spares[..2].to_vec())];
    for member in &map.members {
        let (id, fresh) = (member.id, Member { incarnation: 99, ..member.clone() });
        requests.push(Request::Remove(vec![id]));
        requests.push(Request::Replace { old: id, new: Box::new(spares[0].clone()) });
        requests.push(Request::SetWeight(vec![(id, 24)]));
        requests.push(Request::Renew(Box::new(fresh)));
    }
    let mut at_rest = vec![("", map.clone())];
    if map.replicas.is_multiple_of(2) {
        at_rest.push((", unequal", Map { unequal: true, ..map.clone() }));
    }
    let mut states: Vec<_> = at_rest.iter().map(|(how, map)| (format!("at rest{how}"), map.clone())).collect();
    for (request, (how, map)) in requests.iter().flat_map(|request| at_rest.iter().map(move |at| (request, at))) {
        let Ok(joint) = map.begin(request, 5) else { continue };
        let name = |state: &str| format!("{} {state}{how}", request.kind());
        states.push((name("unclean"), joint.end_joint()));
        if let Ok(back) = joint.take_back() {
            states.push((name("going back"), back.clone()));
            states.push((name("gone back, unclean"), back.end_joint()));
        }
        states.push((name("joint"), joint));
    }
    states
}

#[test]
fn from_every_state_of_losses_that_leaves_all_that_was_acknowledged_commands_lead_to_a_stable_pool() {
    let mut found: BTreeMap<usize, usize> = BTreeMap::new();
    let (mut seized, mut by_word) = (0, 0);
    for (members, replicas, on) in [(2, 2, 1), (3, 2, 1), (3, 3, 1), (4, 2, 1), (4, 2, 2), (4, 3, 1), (4, 4, 1)] {
        let (map, spares) = pool(members, replicas, on);
        for (state, map) in states(&map, &spares) {
            let ids: Vec<MemberId> = map.members.iter().map(|member| member.id).collect();
            for (first, &one) in ids.iter().enumerate() {
                for &other in &ids[first..] {
                    let mut world = World::new(&map, [one, other], &spares);
                    if !world.knows_all() {
                        if !world.has_half() {
                            continue;
                        }
                        // The search for what there is not takes its time.
                        let without = (members <= 3).then(|| world.commands()).flatten();
                        assert_eq!(without, None, "{state}, {:?} lost: without a word", world.dead);
                        world.half = HalfLeft::WillDo;
                        by_word += 1;
                    }
                    seized += usize::from(!map.has_quorum(|member| world.answers(member.id)));
                    let commands = world.commands();
                    let what = format!("{members} members, {replicas} replicas, {on} a machine, {state}");
                    let commands = commands.unwrap_or_else(|| panic!("{what}, {:?} lost: no way out", world.dead));
                    *found.entry(commands).or_default() += 1;
                }
            }
        }
    }
    let all: usize = found.values().sum();
    assert!(all > 400 && seized > 20 && by_word > 20, "{found:?}, without a majority {seized}, by a word {by_word}");
}

/// A change is stopped in each state with one member given up, which is back with all that it held while another is lost; or
/// with two given up, so that keys are served to nobody, which are both back. With and without a gateway that sweeps meanwhile.
#[test]
fn members_that_are_back_lead_out_of_every_state_that_the_pool_came_to_without_them() {
    let (mut found, mut stopped, mut by_word): (BTreeMap<usize, usize>, usize, usize) = Default::default();
    for (members, replicas, on) in [(2, 2, 1), (3, 3, 1), (4, 2, 2)] {
        let (map, spares) = pool(members, replicas, on);
        for (state, map) in states(&map, &spares) {
            let ids: Vec<MemberId> = map.members.iter().map(|member| member.id).collect();
            let pairs = ids.iter().flat_map(|&one| ids.iter().map(move |&other| (one, other)));
            // Of two machines one fails, of which a member comes back.
            let is_searched = |&(one, other): &(MemberId, MemberId)| on == 1 || (one, other) == (ids[0], ids[1]);
            for ((one, other), goes_on) in pairs.filter(is_searched).flat_map(|pair| [(pair, false), (pair, true)]) {
                let first = World { is_swept: goes_on, ..World::new(&map, [], &spares) };
                let (mut both, mut another) = (first.clone(), first);
                both.give_up_for_a_while(&[one, other], goes_on);
                another.give_up_for_a_while(&[one], goes_on);
                another.dead.extend([other].into_iter().filter(|other| *other != one));
                // A machine fails, and one of its members is back.
                let mut one_of_both = both.clone();
                one_of_both.dead.extend([other].into_iter().filter(|other| *other != one));
                for mut world in [both, another, one_of_both] {
                    let with = world.with_the_returned();
                    if !with.knows_all() {
                        if !with.has_half() {
                            continue;
                        }
                        (world.half, by_word) = (HalfLeft::WillDo, by_word + 1);
                    }
                    stopped += usize::from(world.map.state != State::Stable && !world.returned().is_empty());
                    let what = format!("{members} members, {state}, {one} given up, then {other}, goes on: {goes_on}");
                    let commands = world.commands();
                    let commands = commands.unwrap_or_else(|| panic!("{what}: no way out of {:?}", world.map));
                    *found.entry(commands).or_default() += 1;
                }
            }
        }
    }
    assert!(
        found.values().sum::<usize>() > 400 && stopped > 100 && by_word > 20,
        "{found:?}, {stopped} stopped, {by_word} by a word"
    );
}
