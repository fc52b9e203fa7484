//! The voter of two members dies, and the other one goes on.

use engine::sim::{SimConfig, World};

use crate::change::State;
use crate::plan::{PlanError, Request};
use crate::testing::{Plain, new_member, plain_pool};
use crate::{AgreeError, HalfLeft, Map, MemberId, Proposer, Word, open};

fn run<T>(future: impl Future<Output = T>) -> T {
    World::new(1, SimConfig::default()).run_until(future).expect("the test's tasks are never all asleep for good")
}

fn label(namespace: &Plain) -> (String, Plain) {
    ("m".to_owned(), namespace.clone())
}

/// Three namespaces, a pool of the first two with two replicas, and who alone votes there.
async fn two() -> (Vec<Plain>, Map, usize) {
    let namespaces: Vec<Plain> = (1..=3).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
    let map = plain_pool(&namespaces[..2], 2).await;
    let voters: Vec<usize> = map.voter_indices().collect();
    assert_eq!(voters.len(), 1);
    (namespaces, map, voters[0])
}

#[test]
fn the_one_left_of_two_goes_on_by_an_operators_word() {
    run(async {
        let (namespaces, map, voter) = two().await;
        let (lost, left) = (map.members[voter].id, map.members[1 - voter].id);
        let proposer = Proposer::new(&namespaces);
        let noted = proposer.agree(&map, |map| Ok(map.raise_epoch())).await.unwrap();
        namespaces[voter].0.down.set(true);
        assert!(proposer.agree(&map, |map| Ok(map.clone())).await.is_err());
        assert!(
            open(&[label(&namespaces[1 - voter])], None).await.is_err(),
            "nobody knows what the voter has agreed on"
        );
        // From an old map, too: the one that is left has the newer.
        let seized = proposer.seize(&map, Word::lost(&[lost], HalfLeft::MustKnowAll)).await.unwrap();
        assert!(seized.epoch > noted.epoch + 1000 && seized.members[voter].lost, "{seized:?}");
        let voters: Vec<MemberId> = seized.voter_indices().map(|index| seized.members[index].id).collect();
        assert_eq!(voters, [left]);
        let opened = open(&[label(&namespaces[1 - voter])], None).await.unwrap();
        assert_eq!(opened.map, seized);
        assert_eq!(
            proposer.seize(&map, Word::lost(&[lost], HalfLeft::MustKnowAll)).await,
            Ok(seized.clone()),
            "once is enough"
        );
        // As any other map from then on.
        let new = new_member(&namespaces[2]);
        let member = crate::candidate(&new, &seized, None, false).await.unwrap();
        crate::admit(&new, &seized, &member, false, async || Ok(seized.clone())).await.unwrap();
        let request = Request::Replace { old: lost, new: Box::new(member) };
        let joint = proposer.agree(&seized, |map| Ok(map.begin(&request, 9)?)).await.unwrap();
        let ended = proposer.agree(&joint, |map| Ok(map.end_joint())).await.unwrap();
        let stable = proposer.agree(&ended, |map| Ok(map.end_unclean())).await.unwrap();
        assert_eq!((stable.state, stable.index_of(lost)), (State::Stable, None));
        // The lost one is back, and alone: it knows of nothing, and whoever asks both finds the newer.
        namespaces[voter].0.down.set(false);
        let both: Vec<_> = namespaces.iter().map(label).collect();
        assert_eq!(open(&both, None).await.unwrap().map, stable);
    });
}

/// One of two was given up and is back, and the other one, which was served alone and is the only voter, is dead: no map was
/// possible that takes the one in without a vote of the other.
#[test]
fn who_is_back_goes_on_without_the_last_voter_by_the_same_word() {
    for knows in [false, true] {
        run(async {
            let (namespaces, map, voter) = two().await;
            let [dead, back] = [voter, 1 - voter].map(|index| [map.members[index].id]);
            let proposer = Proposer::new(&namespaces);
            namespaces[1 - voter].0.down.set(true);
            let unequal = |map: &Map| Ok(Map { unequal: true, revision: map.revision + 1, ..map.clone() });
            let given_up = proposer.agree(&map, unequal).await.unwrap();
            let given_up = proposer.agree(&given_up, |map| Ok(map.give_up(&back, HalfLeft::WillDo)?)).await.unwrap();
            assert!(given_up.members[1 - voter].lost);
            namespaces[1 - voter].0.down.set(false);
            if knows {
                proposer.agree(&given_up, |map| Ok(map.clone())).await.unwrap();
            }
            namespaces[voter].0.down.set(true);
            let known = if knows { &given_up } else { &map };
            let word = |half| Word { lost: &dead, returned: &back, half };
            // What the one served alone may not be known to the other.
            let refused = proposer.seize(known, word(HalfLeft::MustKnowAll)).await;
            assert_eq!(refused, Err(AgreeError::Plan(PlanError::HalfMayKnow(2))), "{knows}");
            let seized = proposer.seize(known, word(HalfLeft::WillDo)).await.unwrap();
            assert_eq!((seized.members[voter].lost, seized.members[1 - voter].lost), (true, false));
            assert!(seized.unequal && seized.members[1 - voter].voter && seized.version() > given_up.version());
            assert_eq!(proposer.seize(&seized, word(HalfLeft::WillDo)).await, Ok(seized.clone()), "once is enough");
            let opened = open(&[label(&namespaces[1 - voter])], None).await.unwrap();
            assert_eq!(opened.map, seized);
            let spare = Box::new(crate::map::tests::sample(3, 2).members.pop().unwrap());
            assert!(seized.begin(&Request::Replace { old: dead[0], new: spare }, 9).is_ok());
        });
    }
}

/// The same, and a sweep has passed it over: with a vote of the other one it would be begun anew. Nobody else is left.
#[test]
fn who_is_back_and_was_left_behind_is_all_that_is_left() {
    run(async {
        let (namespaces, map, voter) = two().await;
        let [dead, back] = [voter, 1 - voter].map(|index| [map.members[index].id]);
        let proposer = Proposer::new(&namespaces);
        let given_up = |map: &Map| {
            let mut next = Map { revision: map.revision + 1, ..map.clone() };
            (next.members[1 - voter].lost, next.members[1 - voter].left_behind) = (true, true);
            Ok(next)
        };
        let map = proposer.agree(&map, given_up).await.unwrap();
        namespaces[voter].0.down.set(true);
        for half in [HalfLeft::MustKnowAll, HalfLeft::WillDo, HalfLeft::NeedNotBe] {
            let Err(AgreeError::Refused(refused)) = proposer.seize(&map, Word::lost(&dead, half)).await else {
                panic!("a map without a voter")
            };
            assert!(refused.contains(&format!("--returned {}", back[0])), "{refused}");
        }
        let word = |half| Word { lost: &dead, returned: &back, half };
        let refused = proposer.seize(&map, word(HalfLeft::MustKnowAll)).await;
        assert_eq!(refused, Err(AgreeError::Plan(PlanError::LeftBehind(back[0]))));
        let seized = proposer.seize(&map, word(HalfLeft::WillDo)).await.unwrap();
        assert!(!seized.members[1 - voter].lost && seized.members[1 - voter].voter && seized.unequal);
    });
}

/// The lost voter of two is back with what it held, and somebody who knows the map before agrees on the next one with it alone.
#[test]
fn a_lost_voter_that_is_back_and_agrees_on_maps_does_not_undo_the_one_without_it() {
    for rounds in 0..4 {
        run(async {
            let (namespaces, map, voter) = two().await;
            let lost = map.members[voter].id;
            namespaces[voter].0.down.set(true);
            let seized =
                Proposer::new(&namespaces).seize(&map, Word::lost(&[lost], HalfLeft::MustKnowAll)).await.unwrap();
            namespaces[voter].0.down.set(false);
            // As long as the other one is away nobody can know better.
            namespaces[1 - voter].0.down.set(true);
            for _ in 0..rounds {
                Proposer::new(&namespaces).roll_call(&map).await.unwrap();
            }
            namespaces[1 - voter].0.down.set(false);
            let called = Proposer::new(&namespaces).roll_call(&map).await.unwrap();
            assert!(called.version() >= seized.version() && called.members[voter].lost, "{rounds} {called:?}");
            for labelled in
                [vec![&namespaces[1 - voter]], vec![&namespaces[0], &namespaces[1]], vec![&namespaces[voter]]]
            {
                let labelled: Vec<_> = labelled.into_iter().map(label).collect();
                let found = match open(&labelled, None).await {
                    Ok(opened) => opened.map,
                    Err(crate::Error::NoQuorum { map, .. }) => *map,
                    Err(error) => panic!("{rounds} {error}"),
                };
                assert_eq!(found, called, "also by the lost one");
            }
        });
    }
}

/// The same of two voters of three: the one that was left has answered nobody while they agreed on the next map.
#[test]
fn the_voter_that_went_on_alone_is_asked_for_what_it_knows_and_not_overruled_by_ballots() {
    run(async {
        let namespaces: Vec<Plain> = (1..=3).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
        let map = plain_pool(&namespaces, 1).await;
        let lost: Vec<MemberId> = map.members[..2].iter().map(|member| member.id).collect();
        namespaces[..2].iter().for_each(|plain| plain.0.down.set(true));
        let proposer = Proposer::new(&namespaces);
        let seized = proposer.seize(&map, Word::lost(&lost, HalfLeft::NeedNotBe)).await.unwrap();
        namespaces[..2].iter().for_each(|plain| plain.0.down.set(false));
        namespaces[2].0.down.set(true);
        for _ in 0..4 {
            proposer.roll_call(&map).await.unwrap();
        }
        namespaces[2].0.down.set(false);
        let all: Vec<_> = namespaces.iter().map(label).collect();
        assert_eq!(open(&all, None).await.unwrap().map, seized, "whatever ballots the lost ones have come to");
        assert_eq!(proposer.agree(&map, |map| Ok(map.clone())).await.unwrap(), seized);
        assert_eq!(proposer.seize(&map, Word::lost(&[], HalfLeft::MustKnowAll)).await.unwrap(), seized);
    });
}

/// Its only voter has accepted the map, and another member that was to accept it does not answer any more: it is in force.
#[test]
fn a_seizure_that_may_have_taken_effect_is_not_told_as_refused() {
    run(async {
        let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
        let map = plain_pool(&namespaces, 2).await;
        let proposer = Proposer::new(&namespaces);
        let ids: Vec<MemberId> = map.members.iter().map(|member| member.id).collect();
        namespaces[..2].iter().for_each(|plain| plain.0.down.set(true));
        let mut effects = 0;
        for writes in 0..12 {
            let before: Vec<Vec<u8>> = namespaces.iter().map(|plain| plain.0.bytes.borrow().clone()).collect();
            *namespaces[3].0.budget.borrow_mut() = std::rc::Rc::new(std::cell::Cell::new(writes));
            let refused = proposer.seize(&map, Word::lost(&ids[..2], HalfLeft::NeedNotBe)).await;
            *namespaces[3].0.budget.borrow_mut() = std::rc::Rc::new(std::cell::Cell::new(u32::MAX));
            let opened = open(&[label(&namespaces[2]), label(&namespaces[3])], None).await;
            let in_force = opened.is_ok_and(|opened| opened.map.version() > map.version());
            effects += u32::from(in_force && refused.is_err());
            match refused {
                Ok(_) => assert!(in_force),
                Err(AgreeError::Unavailable { outcome_unknown: true, reasons }) => {
                    assert!(reasons.contains("run the command again"), "{reasons}");
                }
                Err(error) => assert!(!in_force, "after {writes} writes it is in force all the same: {error}"),
            }
            namespaces.iter().zip(before).for_each(|(plain, bytes)| *plain.0.bytes.borrow_mut() = bytes);
        }
        assert!(effects > 0, "the case was met");
    });
}

#[test]
fn who_is_not_named_as_lost_has_to_answer_and_a_majority_needs_no_force() {
    run(async {
        let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
        let map = plain_pool(&namespaces, 2).await;
        let proposer = Proposer::new(&namespaces);
        let ids: Vec<MemberId> = map.members.iter().map(|member| member.id).collect();
        assert_eq!(map.voters(), 3);
        namespaces[0].0.down.set(true);
        let same = proposer.seize(&map, Word::lost(&ids[..1], HalfLeft::MustKnowAll)).await.unwrap();
        assert_eq!(same, map, "two voters of three are left");
        namespaces[1].0.down.set(true);
        let Err(AgreeError::Refused(refused)) =
            proposer.seize(&map, Word::lost(&ids[..1], HalfLeft::MustKnowAll)).await
        else {
            panic!("one that may have agreed on something was passed over");
        };
        assert!(refused.contains(&ids[1].to_string()), "{refused}");
        assert!(matches!(
            proposer.seize(&map, Word::lost(&ids, HalfLeft::MustKnowAll)).await,
            Err(AgreeError::Refused(_))
        ));
        let seized = proposer.seize(&map, Word::lost(&ids[..2], HalfLeft::NeedNotBe)).await.unwrap();
        assert_eq!((seized.voters(), seized.members[0].lost && seized.members[1].lost), (1, true));
        assert!(proposer.agree(&seized, |map| Ok(map.clone())).await.is_ok());
    });
}

/// The one that was to be the only voter is stopped after any write of its, and the other has accepted: whose map names a voter
/// that does not carry it. Nobody could go on: not by the command again, which asked the voter alone, nor
/// where the lost ones are back.
#[test]
fn a_seizure_that_its_voter_has_not_accepted_is_gone_on_with() {
    for (writes, back) in (0..12).flat_map(|writes| [(writes, false), (writes, true)]) {
        run(async {
            let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
            let map = plain_pool(&namespaces, 2).await;
            let proposer = Proposer::new(&namespaces);
            let ids: Vec<MemberId> = map.members.iter().map(|member| member.id).collect();
            namespaces[..2].iter().for_each(|plain| plain.0.down.set(true));
            let seized = map.seized_without(&ids[..2], HalfLeft::NeedNotBe).unwrap();
            let voter = seized.voter_indices().next().unwrap();
            *namespaces[voter].0.budget.borrow_mut() = std::rc::Rc::new(std::cell::Cell::new(writes));
            let first = proposer.seize(&map, Word::lost(&ids[..2], HalfLeft::NeedNotBe)).await;
            *namespaces[voter].0.budget.borrow_mut() = std::rc::Rc::new(std::cell::Cell::new(u32::MAX));
            namespaces[..2].iter().for_each(|plain| plain.0.down.set(!back));
            let second = match back {
                true => proposer.roll_call(&map).await,
                false => proposer.seize(&map, Word::lost(&ids[..2], HalfLeft::NeedNotBe)).await,
            };
            assert!(second.is_ok(), "{writes}, {back}: {first:?} {second:?}");
        });
    }
}

/// Whoever seizes the pool is stopped after any write: the next one ends it.
#[test]
fn a_seizure_that_was_cut_off_is_gone_on_with() {
    for writes in 0..12 {
        run(async {
            let namespaces: Vec<Plain> = (1..=4).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
            let map = plain_pool(&namespaces, 2).await;
            let proposer = Proposer::new(&namespaces);
            let ids: Vec<MemberId> = map.members.iter().map(|member| member.id).collect();
            namespaces[..2].iter().for_each(|plain| plain.0.down.set(true));
            let shared = namespaces[2].0.budget.borrow().clone();
            *namespaces[3].0.budget.borrow_mut() = shared.clone();
            shared.set(writes);
            let first = proposer.seize(&map, Word::lost(&ids[..2], HalfLeft::NeedNotBe)).await;
            shared.set(u32::MAX);
            let second = proposer.seize(&map, Word::lost(&ids[..2], HalfLeft::NeedNotBe)).await.unwrap();
            assert!(second.members[0].lost && second.epoch > map.epoch, "{first:?} {second:?}");
            assert_eq!(open(&[label(&namespaces[2]), label(&namespaces[3])], None).await.unwrap().map, second);
        });
    }
}
