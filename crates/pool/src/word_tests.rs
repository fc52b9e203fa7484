//! What an operator's word on the half of a key's homes that is left does, and what it does not.

use super::*;
use crate::Member;
use crate::map::tests::sample;
use crate::plan::Request;

/// Half of two homes was served without a word, though a write may have been acknowledged by the other half alone.
#[test]
fn a_half_that_may_not_know_all_is_not_gone_on_with_unless_an_operator_accepts_that() {
    let equal = sample(2, 2);
    let unequal = Map { unequal: true, ..equal.clone() };
    let lost = [equal.members[0].id];
    assert!(equal.seized_without(&lost, HalfLeft::MustKnowAll).is_ok(), "one of two knows all");
    assert_eq!(unequal.seized_without(&lost, HalfLeft::MustKnowAll), Err(PlanError::HalfMayKnow(2)));
    let accepted = unequal.seized_without(&lost, HalfLeft::WillDo).unwrap();
    assert!(accepted.members[0].lost && accepted.encode().is_ok());
    let spare = Box::new(sample(3, 2).members.pop().unwrap());
    assert!(accepted.begin(&Request::Replace { old: lost[0], new: spare }, 9).is_ok(), "from what is left");
    // Of an odd number a majority is left, or nothing is served; and of these keys half was left before.
    assert!(Map { unequal: true, ..sample(3, 3) }.seized_without(&lost, HalfLeft::MustKnowAll).is_ok());
    let mut half = unequal;
    half.members[1].lost = true;
    half.members.extend(sample(3, 2).members.pop());
    let refused = half.seized_without(&lost, HalfLeft::MustKnowAll);
    assert_eq!(refused, Err(PlanError::HalfMayKnow(2)), "keys of the first and the third");
    half.members[0].weight = 0;
    assert!(half.seized_without(&lost, HalfLeft::MustKnowAll).is_ok(), "it held nothing");
}

/// It was heeded only by those who go on without a majority of the voters, and not behind a change that was taken back.
#[test]
fn half_of_two_goes_on_by_an_operators_word_in_every_state() {
    let (map, spare) = (sample(2, 2), sample(3, 2).members.pop().unwrap());
    let [first, second] = [map.members[0].id, map.members[1].id];
    let replace = |old| Request::Replace { old, new: Box::new(Member { id: MemberId([9; 16]), ..spare.clone() }) };
    let refused = Err(PlanError::HalfMayKnow(2));
    // Unclean, behind a change that was taken back.
    let joint = map.begin(&Request::Add(vec![spare.clone()]), 7).unwrap();
    let back = joint.take_back().unwrap().end_joint();
    for lost in [first, second] {
        let seized = [HalfLeft::MustKnowAll, HalfLeft::WillDo].map(|half| back.seized_without(&[lost], half));
        let given_up = [HalfLeft::MustKnowAll, HalfLeft::WillDo].map(|half| back.give_up(&[lost], half));
        for [without, by_word] in [seized, given_up] {
            assert_eq!(without, refused);
            assert!(by_word.unwrap().end_unclean().begin(&replace(lost), 8).is_ok());
        }
    }
    // At rest, with the majority of the voters there.
    let unequal = Map { unequal: true, ..map };
    assert_eq!(unequal.give_up(&[second], HalfLeft::MustKnowAll), Ok(unequal.clone()), "nothing is under way");
    let accepted = unequal.give_up(&[second], HalfLeft::WillDo).unwrap();
    assert_eq!((accepted.unequal, accepted.members[1].lost, accepted.version()), (true, true, (unequal.epoch, 1)));
    assert_eq!(accepted.give_up(&[second], HalfLeft::WillDo), Ok(accepted.clone()), "once is enough");
    assert!(accepted.begin(&replace(second), 8).is_ok());
    // Begun before anybody knew that it is lost. What is left of other keys is still to be made equal.
    let joint = unequal.begin(&replace(second), 8).unwrap();
    assert_eq!(joint.give_up(&[second], HalfLeft::MustKnowAll), refused);
    let accepted = joint.give_up(&[second], HalfLeft::WillDo).unwrap();
    assert!(!accepted.goes_back() && accepted.is_known(Side::Old) && accepted.end_joint().end_unclean().unequal);
    // Given back, and nobody of the new side is left who could say so.
    let back = unequal.begin(&replace(first), 8).unwrap().take_back().unwrap();
    let alone = back.seized_without(&[second, MemberId([9; 16])], HalfLeft::WillDo).unwrap();
    assert_eq!((alone.state, alone.members.len()), (State::Unclean, 2));
}

/// It was one for all keys: a change went by half of those of which both were there, and lost what the other half knew.
#[test]
fn an_operators_word_counts_for_keys_whose_other_half_is_gone_and_until_the_homes_are_equal() {
    let unequal = Map { unequal: true, ..sample(5, 2) };
    let [gone, other] = [unequal.members[0].id, unequal.members[1].id];
    let accepted = unequal.give_up(&[gone], HalfLeft::WillDo).unwrap();
    assert!(accepted.unequal && accepted.half_may_know(Side::New));
    let spare = sample(6, 2).members.pop().unwrap();
    let joint = accepted.begin(&Request::Replace { old: gone, new: Box::new(spare) }, 9).unwrap();
    let enough = joint.enough(Side::Old);
    let index = |id| joint.index_of(id).unwrap() as u16;
    assert_eq!([enough.of(&[index(gone), index(other)]), enough.of(&[index(other), 2])], [1, 2]);
    // It is no word on the next loss, nor on one after the homes were made equal.
    assert_eq!(accepted.seized_without(&[other], HalfLeft::MustKnowAll), Err(PlanError::HalfMayKnow(2)));
    let ended = joint.end_joint().end_unclean();
    assert!(ended.unequal && ended.members.iter().all(|member| !member.written_off));
    let swept = accepted.note_swept(accepted.epoch);
    assert_eq!((swept.unequal, swept.members[0].lost, swept.members[0].written_off), (false, true, false));
    assert!(accepted.take_in(&[gone]).unwrap().members.iter().all(|member| !member.written_off));
    let fresh = Member { incarnation: 99, ..accepted.members[0].clone() };
    let anew = accepted.begin(&Request::Renew(Box::new(fresh)), 9).unwrap();
    assert_eq!(anew.enough(Side::Old).of(&[0, 1]), 1, "its old life is gone as well");
    let [back, ended] = [anew.went_back(), anew.end_joint()];
    assert!(back.members[0].written_off && !ended.members[0].written_off);
    assert!(back.encode().is_ok() && ended.encode().is_ok());
}

/// Nothing brought such keys back: no change begins without them, and the lost ones had no vote when they were back.
#[test]
fn keys_are_not_given_up_with_their_members_unless_that_is_meant_and_come_back_with_them() {
    let map = sample(3, 3);
    let [first, second] = [map.members[0].id, map.members[1].id];
    assert_eq!(map.seized_without(&[first, second], HalfLeft::MustKnowAll), Err(PlanError::Unserved(3)));
    assert_eq!(map.seized_without(&[first, second], HalfLeft::WillDo), Err(PlanError::Unserved(3)));
    let seized = map.seized_without(&[first, second], HalfLeft::NeedNotBe).unwrap();
    let spare = || Member { domain: Default::default(), ..sample(4, 3).members.pop().unwrap() };
    assert!(seized.begin(&Request::Replace { old: first, new: Box::new(spare()) }, 9).is_err(), "from what?");
    let returned = seized.take_in(&[first, second]).unwrap();
    assert_eq!((returned.epoch, returned.floor, returned.unequal), (seized.epoch + 1, map.floor, false));
    assert!(returned.members.iter().all(|member| !member.lost));
    assert_eq!(returned.take_in(&[first]), Ok(returned.clone()), "once is enough");
    assert!(returned.begin(&Request::Replace { old: first, new: Box::new(spare()) }, 9).is_ok());
    // Of a larger pool: keys that are unserved already are no reason to refuse the next loss.
    let mut five = sample(5, 3);
    five.members[..2].iter_mut().for_each(|member| member.lost = true);
    assert_eq!(five.seized_without(&[five.members[2].id], HalfLeft::MustKnowAll), Err(PlanError::Unserved(3)));
    five.members[2].weight = 0;
    assert!(five.seized_without(&[five.members[2].id], HalfLeft::MustKnowAll).is_ok(), "it held nothing");
}

/// Two replicas, one on each of two machines.
fn two_machines() -> (Map, [MemberId; 4], Member) {
    let mut map = sample(5, 2);
    for (index, member) in map.members.iter_mut().enumerate() {
        member.domain.machine = format!("m{}", index / 2 % 2);
    }
    let spare = map.members.pop().unwrap();
    let ids = [0, 1, 2, 3].map(|index| map.members[index].id);
    (map, ids, spare)
}

/// A machine with two members failed, and one of them came back: of the other one's keys both homes were asked from then on, of
/// which one is gone. The change waited for nobody, and was to be got out of by a word that was not true.
#[test]
fn a_member_that_is_back_casts_no_doubt_on_what_was_left_of_others() {
    let (map, [gone, back, other, _], spare) = two_machines();
    let replacing = map.begin(&Request::Replace { old: gone, new: Box::new(spare) }, 7).unwrap();
    let replacing = replacing.give_up(&[gone, back], HalfLeft::MustKnowAll).unwrap();
    let mut fresh = Member { incarnation: 99, ..map.members[0].clone() };
    let mut lost = map.clone();
    lost.members[..2].iter_mut().for_each(|member| member.lost = true);
    let renewing = lost.begin(&Request::Renew(Box::new(fresh.clone())), 8).unwrap();
    for joint in [replacing, renewing] {
        let taken_in = joint.take_in(&[back]).unwrap();
        let enough = taken_in.enough(Side::Old);
        assert_eq!([enough.of(&[0, 2]), enough.of(&[1, 2])], [1, 2], "{taken_in:?}");
        assert!(taken_in.unequal && taken_in.is_known(Side::Old) && taken_in.encode().is_ok());
        // Those that are gone are no excuse for the next one.
        assert_eq!(taken_in.give_up(&[other], HalfLeft::MustKnowAll), Err(PlanError::TooFewReplicas(2)));
    }
    // Where half might not know before, it may not since.
    let unequal = Map { unequal: true, ..lost.clone() }.take_in(&[back]).unwrap();
    assert_eq!(unequal.enough(Side::New).of(&[0, 2]), 2);
    // One that begins anew is no member that is back, and the word on its old life stays.
    let written_off = Map { unequal: true, ..lost }.give_up(&[gone], HalfLeft::WillDo).unwrap();
    fresh.incarnation += 1;
    let anew = written_off.begin(&Request::Renew(Box::new(fresh)), 9).unwrap();
    assert_eq!(anew.take_in(&[gone]), Ok(anew.clone()));
    assert_eq!(anew.enough(Side::Old).of(&[0, 2]), 1);
}

/// What the one that is written off and the new homes know was not to be dropped with these.
#[test]
fn what_was_written_off_for_a_change_that_goes_on_does_not_let_it_be_taken_back() {
    let map = sample(2, 2);
    let first = map.members[0].id;
    let joint = map.begin(&Request::Add(sample(4, 2).members.split_off(2)), 7).unwrap();
    let goes_on = joint.give_up(&[first], HalfLeft::WillDo).unwrap();
    assert!(!goes_on.goes_back() && goes_on.members[0].written_off);
    assert_eq!(goes_on.take_back(), Err(PlanError::NoWayBack(2)));
    // Where it can't go on either, the words are others.
    let all = [first, joint.members[2].id, joint.members[3].id];
    assert_eq!(joint.give_up(&all, HalfLeft::MustKnowAll), Err(PlanError::BackMayLose(2)));
    assert!(joint.give_up(&all, HalfLeft::WillDo).unwrap().goes_back());
}
