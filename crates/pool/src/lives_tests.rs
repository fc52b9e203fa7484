//! Voters that were rolled back, or that have begun anew, asked by hosts that know an old map only.

use engine::sim::{SimConfig, World};

use super::*;
use crate::map::tests::sample;
use crate::plan::Request;
use crate::testing::{Plain, plain_pool, renew_under};
use crate::{AgreeError, Error, Proposer, open};

fn run<T>(future: impl Future<Output = T>) -> T {
    World::new(1, SimConfig::default()).run_until(future).expect("the test's tasks are never all asleep for good")
}

fn three() -> Vec<Plain> {
    (1..=3).map(|id| Plain::new(id, 2 << 20, 4096)).collect()
}

fn labelled(namespaces: &[Plain]) -> Vec<(String, Plain)> {
    namespaces.iter().map(|namespace| ("m".to_owned(), namespace.clone())).collect()
}

fn reach(namespaces: &[Plain], reached: [bool; 3]) {
    reached.iter().zip(namespaces).for_each(|(reached, namespace)| namespace.0.down.set(!reached));
}

fn image(namespace: &Plain) -> Vec<u8> {
    namespace.0.bytes.borrow().clone()
}

fn roll_back(namespace: &Plain, to: &[u8]) {
    namespace.0.bytes.borrow_mut().copy_from_slice(to);
}

/// A voter is rolled back to what it was between two marks. The only other one that knows what was agreed on since is away, and
/// who asks knows of the first mark alone: the second is named by the map that the third voter shows.
#[test]
fn a_voter_rolled_back_between_two_marks_makes_no_quorum_with_one_that_was_away() {
    run(async {
        let namespaces = three();
        let map = plain_pool(&namespaces, 3).await;
        let proposer = Proposer::new(&namespaces);
        let known = proposer.roll_call(&map).await.unwrap();
        let before = image(&namespaces[0]);
        let marked = proposer.roll_call(&known).await.unwrap();
        reach(&namespaces, [true, true, false]);
        let newest = proposer.agree(&marked, |map| Ok(map.raise_epoch())).await.unwrap();
        roll_back(&namespaces[0], &before);
        reach(&namespaces, [true, false, true]);
        // As often as it likes: promises to those who don't know of the mark don't lift it above that, nor do their roll calls.
        for attempt in 0..8 {
            let forked = proposer.agree(&known, |map| Ok(map.raise_epoch())).await;
            let refused = matches!(&forked, Err(AgreeError::Unavailable { reasons, outcome_unknown: false })
                if reasons.contains("rolled back"));
            assert!(refused, "attempt {attempt}: {forked:?}");
            assert!(matches!(proposer.roll_call(&known).await, Err(AgreeError::Unavailable { .. })));
            assert!(matches!(open(&labelled(&namespaces), None).await, Err(Error::NoQuorum { agreeing: 1, .. })));
        }
        reach(&namespaces, [true, true, true]);
        assert_eq!(proposer.agree(&known, |map| Ok(map.clone())).await.unwrap(), newest);
    });
}

/// What was deleted before a sweep is dropped because of it: a member that is rolled back to before may hold it still, and nobody
/// has a tombstone any more. The floor was raised without a mark of any member.
#[test]
fn who_is_rolled_back_to_before_a_sweep_has_no_vote() {
    run(async {
        let namespaces = three();
        let map = plain_pool(&namespaces, 3).await;
        let before = image(&namespaces[0]);
        let proposer = Proposer::new(&namespaces);
        reach(&namespaces, [false, true, true]);
        let refused = proposer.note_swept(&map, map.epoch).await.unwrap_err().to_string();
        assert!(refused.contains(&map.members[0].id.to_string()), "{refused}");
        reach(&namespaces, [true, true, true]);
        assert_eq!(proposer.agree(&map, |map| Ok(map.clone())).await.unwrap().swept, 0, "it could not be marked");
        let swept = proposer.note_swept(&map, map.epoch).await.unwrap();
        assert_eq!(swept.swept, map.epoch);
        crate::check_member(&namespaces[0], &swept, 0).await.unwrap();
        roll_back(&namespaces[0], &before);
        let floor = proposer.agree(&swept, |map| Ok(map.raise_epoch())).await.unwrap();
        assert_eq!(floor.floor, map.epoch);
        for known in [&swept, &floor] {
            let checked = crate::check_member(&namespaces[0], known, 0).await.unwrap_err();
            assert!(matches!(&checked, Error::Unfit { reason, .. } if reason.contains("rolled back")), "{checked}");
        }
    });
}

/// Its medium went back to before the sweep while that ran, and the mark that notes the sweep was given to what it was then.
#[test]
fn who_is_rolled_back_during_a_sweep_is_known_when_it_is_noted() {
    run(async {
        let namespaces = three();
        let map = plain_pool(&namespaces, 3).await;
        let before = image(&namespaces[0]);
        let proposer = Proposer::new(&namespaces);
        reach(&namespaces, [false, true, true]);
        assert!(matches!(proposer.begin_sweep(&map, map.epoch).await, Err(AgreeError::Refused(_))), "it is not marked");
        reach(&namespaces, [true, true, true]);
        let raised = proposer.begin_sweep(&map, map.epoch).await.unwrap();
        assert_eq!(raised.epoch, map.epoch + 1);
        assert_eq!(proposer.begin_sweep(&raised, map.epoch).await.unwrap().epoch, raised.epoch, "raised already");
        roll_back(&namespaces[0], &before);
        let refused = proposer.note_swept(&raised, raised.epoch).await.unwrap_err().to_string();
        assert!(refused.contains(&map.members[0].id.to_string()), "{refused}");
    });
}

/// Sweeps are voided beside a member that is silent, as a page is rebuilt then: it could not be, as that member could not be
/// marked. Whoever sweeps the epoch that was raised so has all of them marked first.
#[test]
fn an_epoch_that_was_raised_without_marks_is_swept_behind_marks_of_its_own() {
    run(async {
        let namespaces = three();
        let map = plain_pool(&namespaces, 3).await;
        let proposer = Proposer::new(&namespaces);
        reach(&namespaces, [false, true, true]);
        let raised = proposer.raise_epoch(&map, map.epoch).await.unwrap();
        assert_eq!(raised.epoch, map.epoch + 1);
        assert!(
            matches!(proposer.begin_sweep(&raised, map.epoch).await, Err(AgreeError::Refused(_))),
            "it is not marked"
        );
        reach(&namespaces, [true, true, true]);
        assert_eq!(proposer.note_swept(&raised, map.epoch).await.unwrap().swept, 0, "a sweep of before is void");
        let before = image(&namespaces[0]);
        let joined = proposer.begin_sweep(&raised, map.epoch).await.unwrap();
        assert_eq!(joined.epoch, raised.epoch, "raised already");
        roll_back(&namespaces[0], &before);
        let refused = proposer.note_swept(&joined, joined.epoch).await.unwrap_err().to_string();
        assert!(refused.contains(&map.members[0].id.to_string()), "{refused}");
    });
}

/// One slow command at the end of a sweep of hours made it count for nothing.
#[test]
fn a_member_that_is_slow_once_is_marked_all_the_same() {
    for slow in 0..16 {
        run(async {
            let namespaces = three();
            let map = plain_pool(&namespaces, 3).await;
            let proposer = Proposer::new(&namespaces);
            namespaces[0].0.slow_after.set(Some(slow));
            let swept = proposer.note_swept(&map, map.epoch).await;
            assert_eq!(swept.map(|map| map.swept), Ok(map.epoch), "write {slow}");
        });
    }
}

/// As above, but in the accept: the voters that promise do so without it, and it is asked for its promise with the map.
#[test]
fn a_voter_rolled_back_accepts_nothing() {
    run(async {
        let namespaces = three();
        let map = plain_pool(&namespaces, 3).await;
        let before = image(&namespaces[0]);
        let proposer = Proposer::new(&namespaces);
        let marked = proposer.roll_call(&map).await.unwrap();
        roll_back(&namespaces[0], &before);
        let next = proposer.agree(&map, |map| Ok(map.raise_epoch())).await.unwrap();
        assert_eq!(next.epoch, marked.epoch + 1, "the other two are enough");
        let found = crate::inspect(&namespaces[0], "m").await.unwrap();
        assert_eq!(found.map, map, "it was told nothing that it could be counted for");
    });
}

/// The map in force is with a voter that was rolled back and with one that is read; the one before it with the voter rolled back
/// and the one that was away. It was opened by those two.
#[test]
fn a_pool_is_not_opened_by_a_voter_below_the_mark_that_another_shows() {
    run(async {
        let namespaces = three();
        let map = plain_pool(&namespaces, 3).await;
        let before = image(&namespaces[0]);
        let proposer = Proposer::new(&namespaces);
        reach(&namespaces, [true, true, false]);
        let marked = proposer.roll_call(&map).await.unwrap();
        reach(&namespaces, [true, true, true]);
        assert_eq!(open(&labelled(&namespaces), None).await.unwrap().map, marked);
        roll_back(&namespaces[0], &before);
        let opened = open(&labelled(&namespaces), None).await;
        assert!(matches!(&opened, Err(Error::NoQuorum { map, .. }) if **map == marked), "{opened:?}");
        assert_eq!(proposer.agree(&map, |map| Ok(map.clone())).await.unwrap(), marked);
        assert_eq!(open(&labelled(&namespaces), None).await.unwrap().map, marked);
    });
}

/// Nor by one that was rolled back to the life before the one that another shows.
#[test]
fn a_pool_is_not_opened_by_a_voter_in_a_life_that_is_over() {
    run(async {
        let namespaces = three();
        let map = plain_pool(&namespaces, 3).await;
        let before = image(&namespaces[0]);
        let proposer = Proposer::new(&namespaces);
        namespaces[0].0.bytes.borrow_mut().fill(0);
        let fresh = renew_under(&namespaces[0], &map).await.unwrap();
        let request = Request::Renew(Box::new(fresh));
        let away = image(&namespaces[2]);
        let joint = proposer.agree(&map, |map| Ok(map.begin(&request, 3)?)).await.unwrap();
        roll_back(&namespaces[0], &before);
        // The third has not heard of it: as if its accept had been lost, which both sides need.
        roll_back(&namespaces[2], &away);
        let opened = open(&labelled(&namespaces), None).await;
        assert!(matches!(&opened, Err(Error::NoQuorum { map, .. }) if **map == joint), "{opened:?}");
    });
}

/// Whoever knows the map before asks it in the life that is over, is refused, and finds no quorum with one voter away.
#[test]
fn a_voter_in_a_new_life_is_asked_in_it_once_another_shows_it() {
    run(async {
        let namespaces = three();
        let map = plain_pool(&namespaces, 3).await;
        let proposer = Proposer::new(&namespaces);
        namespaces[0].0.bytes.borrow_mut().fill(0);
        let fresh = renew_under(&namespaces[0], &map).await.unwrap();
        let request = Request::Renew(Box::new(fresh));
        let joint = proposer.agree(&map, |map| Ok(map.begin(&request, 3)?)).await.unwrap();
        proposer.agree(&joint, |map| Ok(map.end_joint())).await.unwrap();
        let stable = proposer.agree(&joint, |map| Ok(map.end_unclean())).await.unwrap();
        reach(&namespaces, [true, false, true]);
        let next = proposer.agree(&map, |map| Ok(map.raise_epoch())).await.unwrap();
        assert_eq!(next.version(), (stable.epoch + 1, 0));
    });
}

#[test]
fn the_highest_mark_and_the_life_of_the_later_map_count() {
    let map = sample(3, 3);
    let with = |epoch: u64, incarnation: u64, mark: u64| {
        let mut map = map.clone();
        map.epoch = epoch;
        (map.members[0].incarnation, map.members[0].mark) = (incarnation, mark);
        map
    };
    let id = map.members[0].id;
    let learned = |maps: &[Map]| {
        let mut lives = Lives::default();
        maps.iter().for_each(|map| lives.learn(map));
        lives.of(id).unwrap()
    };
    assert_eq!(learned(&[with(4, 1, 9), with(5, 1, 7)]), (1, 9), "a mark is a fact");
    assert_eq!(learned(&[with(5, 2, 3), with(4, 1, 9)]), (2, 3), "a life that is over does not come back");
    assert_eq!(learned(&[with(4, 1, 9), with(5, 2, 3)]), (2, 3));
    assert_eq!(learned(&[with(5, 2, 3), with(5, 3, 1)]), (3, 1), "the later ballot");
    assert_eq!(Lives::default().of(id), None);
}
