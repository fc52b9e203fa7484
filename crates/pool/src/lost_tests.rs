//! Members that never come back, at every state of a change; new lives of voters, under crashes and in competition.

use std::cell::Cell;
use std::rc::Rc;

use engine::sim::{SimConfig, World};

use super::*;
use crate::change::{Change, ChangeKind, Phase};
use crate::geometry::SUPERBLOCK_OFFSETS;
use crate::map::tests::sample;
use crate::plan::Request;
use crate::testing::{Plain, plain_pool, renew_under};
use crate::{Error, Member, Presence, Proposer, open};

fn run<T>(future: impl Future<Output = T>) -> T {
    World::new(1, SimConfig::default()).run_until(future).expect("the test's tasks are never all asleep for good")
}

/// A map of `members` to which one more is being added.
fn adding(members: usize, replicas: u8) -> (Map, MemberId) {
    let mut all = sample(members + 1, replicas);
    let new = all.members.pop().unwrap();
    let joint = all.begin(&Request::Add(vec![new.clone()]), 7).unwrap();
    (joint, new.id)
}

fn at(id: u64, phase: Phase, cursor: u64) -> Change {
    Change { phase, cursor, ..Change::new(ChangeKind::Add, id) }
}

#[test]
fn a_member_lost_in_a_change_goes_with_the_next_one_and_nothing_else_does() {
    let (joint, new) = adding(4, 3);
    for (state, map) in [("joint", joint.clone()), ("unclean", joint.end_joint())] {
        for lost in [new, map.members[1].id] {
            let given_up = map.give_up(&[lost], HalfLeft::MustKnowAll).unwrap();
            assert_eq!((given_up.epoch, given_up.revision, given_up.state), (map.epoch, 1, map.state), "{state}");
            assert_eq!(given_up.give_up(&[lost], HalfLeft::MustKnowAll), Ok(given_up.clone()), "once is enough");
            let stable = given_up.end_joint().end_unclean();
            assert_eq!((stable.state, &stable.change), (State::Stable, &None));
            let other = stable.members[2].id;
            assert_eq!(stable.begin(&Request::Drain(vec![other]), 8), Err(PlanError::GivesToLost(lost)), "{state}");
            let kept = stable.begin(&Request::SetWeight(vec![(other, 200)]), 8).unwrap();
            assert!(kept.end_joint().members.iter().any(|member| member.id == lost && member.lost), "{state}: no vote");
            let joint = stable.begin(&Request::Remove(vec![lost]), 8).unwrap();
            let member = &joint.members[joint.index_of(lost).unwrap()];
            assert!(member.lost && member.leaving && !member.counts(Side::Old));
            assert!(joint.encode().is_ok() && joint.end_joint().index_of(lost).is_none());
        }
    }
    let mut two_lost = sample(4, 3);
    two_lost.members[..2].iter_mut().for_each(|member| member.lost = true);
    let refused = two_lost.begin(&Request::Drain(vec![two_lost.members[2].id]), 8);
    assert!(matches!(refused, Err(PlanError::Lost(_) | PlanError::TooFewDomains { .. })), "{refused:?}");
    let new = Member { domain: Default::default(), ..sample(5, 3).members.pop().unwrap() };
    assert_eq!(two_lost.begin(&Request::Add(vec![new]), 8), Err(PlanError::Lost(two_lost.members[0].id)));
    let stable = sample(4, 3);
    assert_eq!(
        stable.give_up(&[stable.members[0].id], HalfLeft::MustKnowAll),
        Ok(stable.clone()),
        "it may be taken out as it is"
    );
}

/// Two replicas, of which one is enough: so nothing but this kept a change from storing them on one member alone.
#[test]
fn no_change_gives_keys_to_a_member_that_was_given_up() {
    let mut map = sample(4, 2);
    map.members[0].lost = true;
    let [lost, other] = [map.members[0].id, map.members[1].id];
    let remove = map.begin(&Request::Remove(vec![other]), 7);
    assert_eq!(remove, Err(PlanError::GivesToLost(lost)));
    assert!(remove.unwrap_err().to_string().contains("by the same command"));
    assert_eq!(map.begin(&Request::SetWeight(vec![(other, 50)]), 7), Err(PlanError::GivesToLost(lost)));
    // The ways out, and what gives it nothing.
    let new = || sample(5, 2).members.pop().unwrap();
    let joint = map.begin(&Request::Remove(vec![lost]), 7).unwrap();
    assert!(joint.end_joint().end_unclean().begin(&Request::Remove(vec![other]), 8).is_ok());
    for request in [
        Request::Add(vec![new()]),
        Request::Remove(vec![lost, other]),
        Request::Replace { old: lost, new: Box::new(new()) },
        Request::Replace { old: other, new: Box::new(new()) },
        Request::Renew(Box::new(Member { incarnation: 99, ..map.members[0].clone() })),
    ] {
        match map.begin(&request, 7) {
            // Both homes of some keys.
            Err(PlanError::TooFewReplicas(2)) => assert!(matches!(request, Request::Remove(_))),
            begun => assert_eq!(begun.unwrap().gains_though_lost(), None),
        }
    }
}

/// Of keys that nobody is served any more it had made nothing equal, and yet passed the lost ones over: they were refused when they
/// were back, though nothing else could bring those keys back.
#[test]
fn a_sweep_while_keys_are_served_to_nobody_counts_for_nothing_and_passes_nobody_over() {
    for (members, replicas, lost) in [(3, 3, 2), (4, 4, 3), (5, 3, 2)] {
        let map = sample(members, replicas);
        let lost: Vec<MemberId> = map.members[..lost].iter().map(|member| member.id).collect();
        let raised = map.seized_without(&lost, HalfLeft::NeedNotBe).unwrap().raise_epoch();
        let swept = raised.note_swept(raised.epoch);
        assert_eq!(swept, raised, "{members} members, {replicas} replicas");
        assert_eq!(swept.raise_epoch().floor, map.floor);
        let back = swept.take_in(&lost).unwrap();
        assert!(!swept.serves_all() && back.serves_all());
        assert_eq!(back.note_swept(back.epoch).swept, back.epoch);
    }
}

/// Deleted keys that the others have forgotten would be back, and what was not cleaned.
#[test]
fn a_member_that_a_sweep_or_a_change_has_passed_over_is_not_taken_in_again() {
    let map = sample(4, 3);
    let lost = map.members[0].id;
    let seized = map.seized_without(&[lost], HalfLeft::MustKnowAll).unwrap();
    assert!(seized.take_in(&[lost]).is_ok() && seized.note_clock(seized.clock.ms, 9, None).take_in(&[lost]).is_ok());
    let swept = seized.note_swept(seized.epoch);
    assert_eq!(swept.take_in(&[lost]), Err(PlanError::LeftBehind(lost)));
    let returned = seized.take_in(&[lost]).unwrap();
    assert_eq!(returned.note_swept(seized.epoch), returned, "a sweep of the epoch before has passed it over");
    let joint = seized.begin(&Request::SetWeight(vec![(seized.members[2].id, 200)]), 9).unwrap();
    assert!(joint.take_in(&[lost]).is_ok() && joint.end_joint().take_in(&[lost]).is_ok(), "nothing has ended");
    let ended = joint.end_joint().end_unclean();
    assert_eq!(ended.take_in(&[lost]), Err(PlanError::LeftBehind(lost)));
    let fresh = Member { incarnation: 99, ..ended.members[0].clone() };
    let anew = ended.begin(&Request::Renew(Box::new(fresh)), 10).unwrap().end_joint().end_unclean();
    assert!(!anew.members[0].lost && !anew.members[0].left_behind && anew.encode().is_ok());
}

/// The change waited for a member that does not answer, which could not be given up without the one that was back, which was to
/// wait for the end of the change.
#[test]
fn a_member_that_is_back_is_taken_in_again_while_the_pool_changes() {
    let (joint, new) = adding(3, 3);
    let (back, id) = (joint.members[2].id, 7);
    for (phase, map) in
        [(Phase::Migrate, joint.note(joint.epoch, &at(id, Phase::Migrate, 5), 0, 1)), (Phase::Clean, joint.end_joint())]
    {
        let stopped = map.give_up(&[back], HalfLeft::MustKnowAll).unwrap().note(map.epoch, &at(id, phase, 9), 0, 2);
        assert_eq!(stopped.change.as_ref().unwrap().cursor, 9);
        let taken_in = stopped.take_in(&[back]).unwrap();
        let change = taken_in.change.as_ref().unwrap();
        assert_eq!((taken_in.state, taken_in.epoch, taken_in.revision), (map.state, map.epoch + 1, 0));
        assert_eq!(
            (change.id, change.phase, change.cursor, change.done),
            (id, phase, 0, 0),
            "what was done was done without it"
        );
        assert_eq!((taken_in.floor, taken_in.swept, taken_in.unequal), (map.floor, 0, false));
        assert!(taken_in.encode().is_ok());
        assert_eq!(taken_in.take_in(&[back]), Ok(taken_in.clone()), "once is enough");
        // By who has not heard of it yet.
        assert_eq!(taken_in.note(map.epoch, &at(id, phase, 11), 0, 3), taken_in);
        let end = taken_in.give_up(&[new], HalfLeft::MustKnowAll).unwrap().end_joint().end_unclean();
        assert!(end.serves_all() && !end.members[2].left_behind, "the way out");
    }
    assert_eq!(joint.end_joint().give_up(&[back, new], HalfLeft::MustKnowAll), Err(PlanError::TooFewReplicas(3)));
    // Half was asked alone: then a majority is, on either side.
    let (joint, _) = adding(3, 2);
    let taken_in = joint.give_up(&[back], HalfLeft::MustKnowAll).unwrap().take_in(&[back]).unwrap();
    assert!(taken_in.half_may_know(Side::Old) && taken_in.end_joint().half_may_know(Side::New));
}

/// Refused, which left no way to have those that are back count.
#[test]
fn a_change_waits_while_keys_are_served_to_nobody() {
    let (joint, new) = adding(3, 3);
    for map in [joint.clone(), joint.end_joint()] {
        let lost = [map.members[0].id, map.members[1].id];
        assert_eq!(map.seized_without(&lost, HalfLeft::WillDo), Err(PlanError::TooFewReplicas(3)));
        let waits = map.seized_without(&lost, HalfLeft::NeedNotBe).unwrap();
        assert!(!waits.serves_all() && waits.encode().is_ok());
        assert_eq!((waits.end_joint(), waits.end_unclean(), waits.goes_back()), (waits.clone(), waits.clone(), false));
        let end = waits.take_in(&lost[..1]).unwrap().end_joint().end_unclean();
        assert_eq!((end.state, end.index_of(new).is_some()), (State::Stable, true));
    }
}

/// It was in its life and above its mark, and had none of what others had been told that it holds.
#[test]
fn a_member_lost_while_it_began_anew_is_not_taken_in_as_if_it_held_what_it_did() {
    let map = sample(4, 3);
    let anew = map.members[0].id;
    let joint = map.begin(&Request::Renew(Box::new(Member { incarnation: 99, ..map.members[0].clone() })), 7).unwrap();
    let given_up = joint.give_up(&[anew], HalfLeft::MustKnowAll).unwrap();
    let back = joint.take_back().unwrap().end_joint();
    for map in [given_up.clone(), given_up.end_joint(), back.clone(), back.end_unclean()] {
        assert_eq!(map.take_in(&[anew]), Err(PlanError::LeftBehind(anew)), "{}", map.state);
    }
    let filled = joint.end_joint().give_up(&[anew], HalfLeft::MustKnowAll).unwrap();
    assert!(filled.take_in(&[anew]).is_ok());
}

/// The half that was left has acknowledged alone since: the one that is back must not be all that is asked.
#[test]
fn half_of_the_homes_that_was_away_does_not_count_as_knowing_all() {
    let map = sample(2, 2);
    let [first, second] = [map.members[0].id, map.members[1].id];
    let returned = map.seized_without(&[first], HalfLeft::MustKnowAll).unwrap().take_in(&[first]).unwrap();
    assert_eq!(returned.seized_without(&[second], HalfLeft::MustKnowAll), Err(PlanError::HalfMayKnow(2)));
    let swept = returned.note_swept(returned.epoch);
    assert!(swept.seized_without(&[second], HalfLeft::MustKnowAll).is_ok(), "made equal");
}

#[test]
fn a_change_that_cannot_go_on_without_the_lost_one_is_taken_back() {
    let mut five = sample(5, 2);
    let two = five.members.split_off(3);
    let both = [two[0].id, two[1].id];
    let joint = five.begin(&Request::Add(two), 7).unwrap();
    let noted = joint.note(joint.epoch, &at(7, Phase::Migrate, 5), 1000, 1);
    let forward = noted.give_up(&both[..1], HalfLeft::MustKnowAll).unwrap();
    assert!(!forward.goes_back(), "the other replica of its keys is enough");
    let decided = noted.give_up(&both, HalfLeft::MustKnowAll).unwrap();
    assert!(decided.goes_back() && decided.encode().is_ok(), "{decided:?}");
    assert_eq!((decided.version(), decided.members.len()), ((joint.epoch, noted.revision + 1), 5));
    assert_eq!(decided.give_up(&both, HalfLeft::MustKnowAll), Ok(decided.clone()), "once is enough");
    assert_eq!(decided.note(decided.epoch, &at(7, Phase::Migrate, 9), 0, 2), decided, "nothing is moved any more");
    let back = decided.end_joint();
    assert_eq!((back.state, back.epoch, back.members.len()), (State::Unclean, joint.epoch + 1, 3));
    assert!(back.change.as_ref().is_some_and(|change| change.taken_back && change.cursor == 0));
    assert_eq!(back.end_unclean().members, sample(3, 2).members);
    // The one replica left of two knows all.
    let (joint, new) = adding(3, 2);
    assert!(
        joint.end_joint().give_up(&[new], HalfLeft::MustKnowAll).is_ok()
            && joint.give_up(&[joint.members[0].id], HalfLeft::MustKnowAll).is_ok()
    );
    // Two of the new homes of some keys, but no more than one of the old ones of any.
    let (joint, new) = adding(4, 3);
    let back = joint.give_up(&[new, joint.members[0].id], HalfLeft::MustKnowAll).unwrap().end_joint();
    assert!((back.state, back.members.len(), back.members[0].lost) == (State::Unclean, 4, true), "{back:?}");
    assert_eq!(
        joint.end_joint().give_up(&[new, joint.members[0].id], HalfLeft::MustKnowAll),
        Err(PlanError::TooFewReplicas(3))
    );
    // On request, at any time of the joint epoch.
    let replace = sample(3, 3);
    let old = replace.members[1].id;
    let spare = sample(4, 3).members.pop().unwrap();
    let joint = replace.begin(&Request::Replace { old, new: Box::new(spare) }, 9).unwrap();
    let decided = joint.take_back().unwrap();
    assert_eq!((decided.goes_back(), decided.version()), (true, (joint.epoch, joint.revision + 1)));
    assert_eq!((decided.take_back(), decided.sides()), (Ok(decided.clone()), joint.sides()));
    assert_eq!(decided.end_joint().take_back(), Ok(decided.end_joint()));
    assert_eq!(decided.end_joint().end_unclean().members, replace.members);
    assert_eq!(replace.take_back(), Ok(replace));
}

/// Of two replicas one is enough of the old placement to go on, but not to go back to: the other may be on the member that
/// was given up. The map came into force all the same, and its keys were never served again.
#[test]
fn a_change_is_not_taken_back_to_a_placement_that_nobody_can_serve() {
    let two = sample(3, 2);
    let gone = two.members[0].id;
    let spare = sample(4, 2).members.pop().unwrap();
    let joint = two.begin(&Request::Replace { old: gone, new: Box::new(spare) }, 9).unwrap();
    let given_up = joint.give_up(&[gone], HalfLeft::MustKnowAll).unwrap();
    assert_eq!(given_up.state, State::Joint, "it goes on without the member that it replaces");
    assert_eq!(given_up.take_back(), Err(PlanError::NoWayBack(2)));
    assert!(given_up.take_back().unwrap_err().to_string().contains("pool rebalance"), "it says what to do");
    assert_eq!(given_up.end_joint().take_back(), Ok(given_up.end_joint()));
    assert!(joint.take_back().is_ok());
}

#[test]
fn a_new_life_counts_as_failed_in_the_old_placement() {
    let map = sample(3, 2);
    let fresh = |index: usize| Member { incarnation: 99, mark: 7, ..map.members[index].clone() };
    let joint = map.begin(&Request::Renew(Box::new(fresh(0))), 1).unwrap();
    let member = &joint.members[0];
    assert!(member.renewed && !member.counts(Side::Old) && member.counts(Side::New) && member.incarnation == 99);
    assert_eq!(member.old, member.seat(Side::New));
    let unclean = joint.end_joint();
    assert!(!unclean.members[0].renewed && unclean.encode().is_ok());
    // It dies again before it has anything.
    let given_up = joint.give_up(&[map.members[0].id], HalfLeft::MustKnowAll).unwrap();
    assert!(!given_up.goes_back() && given_up.members[0].lost, "the other replica of its keys knows all");
    assert_eq!(
        joint.give_up(&[map.members[1].id], HalfLeft::MustKnowAll),
        Err(PlanError::TooFewReplicas(2)),
        "that one alone did"
    );
    // Taken back, it holds nothing of what its place says.
    let map = sample(3, 3);
    let joint = map.begin(&Request::Renew(Box::new(Member { incarnation: 99, ..map.members[0].clone() })), 1).unwrap();
    assert!(joint.take_back().unwrap().end_joint().members[0].lost);
    // One of one is all there was.
    let map = sample(3, 1);
    let alone = map.begin(&Request::Renew(Box::new(Member { incarnation: 99, ..map.members[0].clone() })), 1);
    assert_eq!(alone, Err(PlanError::TooFewReplicas(1)));
}

fn labelled(namespaces: &[Plain]) -> Vec<(String, Plain)> {
    namespaces.iter().map(|namespace| ("m".to_owned(), namespace.clone())).collect()
}

/// Emptied: as from the factory.
fn empty(namespace: &Plain) {
    namespace.0.bytes.borrow_mut().fill(0);
}

/// A voter that has forgotten what it promised and accepted must not make a quorum with one that never knew.
#[test]
fn a_voter_in_a_new_life_makes_no_quorum_with_one_that_missed_the_map() {
    run(async {
        let namespaces: Vec<Plain> = (1..=3).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
        let [a, b, c] = [0, 1, 2].map(|index| &namespaces[index].0);
        let map = plain_pool(&namespaces, 3).await;
        let proposer = Proposer::new(&namespaces);
        c.down.set(true);
        let newer = proposer.agree(&map, |map| Ok(map.raise_epoch())).await.unwrap();
        c.down.set(false);
        empty(&namespaces[0]);
        let fresh = renew_under(&namespaces[0], &newer).await.unwrap();
        // Somebody who has seen the joint map on b, where alone it got to, asks when b is out of reach.
        let joint = newer.begin(&Request::Renew(Box::new(fresh)), 5).unwrap();
        b.down.set(true);
        let answered = proposer.agree(&joint, |map| Ok(map.raise_epoch())).await;
        assert!(answered.is_err(), "a in its new life and c, which knows the oldest map: {answered:?}");
        b.down.set(false);
        a.down.set(true);
        assert_eq!(proposer.agree(&map, |map| Ok(map.clone())).await.unwrap(), newer);
    });
}

/// Stopped after each write in turn, and begun again: it ends as a voting member, and no step of it makes one too early.
#[test]
fn a_new_life_may_be_interrupted_after_every_write_and_begun_again() {
    let mut interrupted = 0;
    for crash in 0..40 {
        run(async {
            let namespaces: Vec<Plain> = (1..=3).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
            let map = plain_pool(&namespaces, 3).await;
            let second = SUPERBLOCK_OFFSETS[1] as usize..SUPERBLOCK_OFFSETS[1] as usize + 4096;
            let before = namespaces[1].0.bytes.borrow()[second.clone()].to_vec();
            empty(&namespaces[1]);
            let budget = Rc::new(Cell::new(crash));
            *namespaces[1].0.budget.borrow_mut() = budget.clone();
            let first = renew_under(&namespaces[1], &map).await;
            budget.set(u32::MAX);
            if crash == 1 {
                // A late step of the life before, while copy A alone is claimed: it must be in nobody's way.
                namespaces[1].0.bytes.borrow_mut()[second].copy_from_slice(&before);
            }
            let opened = open(&labelled(&namespaces), None).await.unwrap();
            assert!(matches!(opened.members[1], Presence::Refused(..)), "crash {crash}: {:?}", opened.members[1]);
            let member = match first {
                Ok(member) => member,
                Err(_) => {
                    interrupted += 1;
                    renew_under(&namespaces[1], &map).await.unwrap()
                }
            };
            let request = Request::Renew(Box::new(member));
            let proposer = Proposer::new(&namespaces);
            let joint = proposer.agree(&map, |map| Ok(map.begin(&request, 3)?)).await.unwrap();
            proposer.agree(&joint, |map| Ok(map.end_joint())).await.unwrap();
            let stable = proposer.agree(&joint, |map| Ok(map.end_unclean())).await.unwrap();
            assert_eq!((stable.epoch, stable.state), (map.epoch + 2, State::Stable));
            let opened = open(&labelled(&namespaces), None).await.unwrap();
            assert!(opened.members.iter().all(|member| matches!(member, Presence::Present(_))), "{opened:?}");
            // Its vote is worth as much as any.
            namespaces[0].0.down.set(true);
            assert!(proposer.agree(&stable, |map| Ok(map.raise_epoch())).await.is_ok());
        });
    }
    assert!(interrupted > 3, "{interrupted}");
}

#[test]
fn a_medium_that_is_another_pools_or_too_small_begins_no_new_life() {
    run(async {
        let namespaces: Vec<Plain> = (1..=3).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
        let map = plain_pool(&namespaces, 3).await;
        let voting = crate::renew(&namespaces[0], "m", async |_| Ok(map.clone())).await.unwrap();
        assert_eq!(voting, None, "nothing is wrong with it");
        empty(&namespaces[0]);
        let others = plain_pool(&namespaces[..1], 1).await;
        assert_ne!(others.pool, map.pool);
        let refused = renew_under(&namespaces[0], &map).await;
        assert!(
            matches!(&refused, Err(Error::InUse { found, .. }) if found.contains("a member of pool")),
            "{refused:?}"
        );
        // Others have gone on without the voters that tell of this map.
        let mut later = map.clone();
        later.epoch += SEIZED_EPOCHS;
        empty(&namespaces[1]);
        renew_under(&namespaces[1], &later).await.unwrap();
        let refused = renew_under(&namespaces[1], &map).await;
        assert!(matches!(&refused, Err(Error::InUse { found, .. }) if found.contains("gone on")), "{refused:?}");
        let small = Plain::new(2, 1 << 20, 4096);
        let refused = renew_under(&small, &map).await;
        assert!(matches!(&refused, Err(Error::Unfit { reason, .. }) if reason.contains("shrunk")), "{refused:?}");
        namespaces[2].0.bytes.borrow_mut()[..64].copy_from_slice(&b"\x7fELF".repeat(16));
        let refused = renew_under(&namespaces[2], &map).await;
        assert!(matches!(&refused, Err(Error::Unfit { reason, .. }) if reason.contains("pool replace")), "{refused:?}");
    });
}
