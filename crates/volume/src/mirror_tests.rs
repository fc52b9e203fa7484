use super::*;
use crate::label::tests::sample;

const LIVES: [Life; 3] = [10, 11, 12];

fn shape(replicas: u8) -> Shape {
    Shape { replicas, ..sample().shape }
}

fn record(version: u64, in_sync: u8) -> Record {
    let ballot = Ballot { round: 1, host: 1 };
    Record { ballot, version, in_sync: Set(in_sync), lives: LIVES, lives_before: LIVES }
}

fn promise(slot: usize, record: Record) -> Option<Promise> {
    Some(Promise { life: LIVES[slot], record })
}

fn ballot() -> Ballot {
    Ballot { round: 2, host: 9 }
}

/// A host whose first record all holders have accepted.
fn attached(replicas: u8) -> Mirror {
    let choice = Choice { record: record(1, Set::first(replicas.into()).0), in_sync: Set::first(replicas.into()) };
    let mut mirror = Mirror::new(shape(replicas), ballot(), &choice);
    for (slot, life) in LIVES.into_iter().enumerate().take(shape(replicas).holders()) {
        mirror.connected(slot, life);
        send(&mut mirror, slot);
    }
    assert!(mirror.is_attached() && mirror.is_full());
    mirror
}

fn send(mirror: &mut Mirror, slot: usize) -> bool {
    let record = mirror.to_send(slot).expect("there is a record to send");
    mirror.accepted(slot, &record)
}

#[test]
fn the_highest_record_of_a_majority_counts() {
    let all = record(1, 0b111);
    let less = record(2, 0b011);
    let choice = choose(&shape(3), &[None, promise(1, less), promise(2, all)]).expect("a majority");
    assert_eq!((choice.record, choice.in_sync, choice.waits()), (less, Set(0b010), true));
    let choice = choose(&shape(3), &[promise(0, less), promise(1, less), None]).expect("a majority");
    assert!(!choice.waits(), "all of them were reached");
    assert_eq!(choose(&shape(3), &[promise(0, all), None, None]), Err(Refusal::NoMajority));
    let alone = record(3, 0b001);
    assert_eq!(choose(&shape(3), &[None, promise(1, alone), promise(2, all)]), Err(Refusal::NoneInSync));
    assert_eq!(choose(&shape(3), &[promise(0, Record::default()); 3]), Err(Refusal::NoRecord));
    assert!(choose(&shape(1), &[promise(0, record(1, 1)), None, None]).is_ok());
}

#[test]
fn a_blank_in_a_holders_place_does_not_count() {
    let all = record(1, 0b111);
    let blank = Some(Promise { life: 99, record: Record::default() });
    assert_eq!(choose(&shape(3), &[promise(0, all), blank, None]), Err(Refusal::NoMajority));
    let choice = choose(&shape(3), &[promise(0, all), blank, promise(2, all)]).expect("a majority");
    assert_eq!(choice.in_sync, Set(0b101));
    // In the middle of a change of holders the old ones count as well.
    let half = Record { lives: [10, 99, 12], ..record(2, 0b101) };
    let new = Some(Promise { life: 99, record: half });
    assert_eq!(choose(&shape(3), &[promise(0, half), new, None]), Err(Refusal::NoMajority), "10 alone of those before");
    assert!(choose(&shape(3), &[promise(0, half), new, promise(2, all)]).is_ok());
}

#[test]
fn until_a_majority_has_answered_either_set_may_hold() {
    let mut mirror = attached(3);
    mirror.down(2);
    assert!(mirror.leave_out(Set::one(2)));
    assert_eq!((mirror.need(), mirror.readable()), (Set(0b111), Set(0b011)));
    assert!(!send(&mut mirror, 0));
    assert_eq!(mirror.need(), Set(0b111), "one has it");
    assert!(send(&mut mirror, 1));
    assert_eq!((mirror.need(), mirror.readable()), (Set(0b011), Set(0b011)));
    assert!(!mirror.is_full());
}

#[test]
fn an_answer_counts_once_and_for_its_own_record() {
    let mut mirror = attached(3);
    let old = *mirror.current();
    mirror.down(2);
    assert!(mirror.leave_out(Set::one(2)));
    assert!(!mirror.accepted(0, &old) && !mirror.accepted(1, &old), "answers to the record before");
    assert!(!mirror.is_stable());
    // What a holder has it keeps when its connection ends.
    let record = mirror.to_send(0).expect("it lacks the record");
    assert!(!mirror.accepted(0, &record));
    mirror.down(0);
    assert!(mirror.accepted(1, &record));
}

#[test]
fn the_last_one_that_is_there_stays() {
    let mut mirror = attached(3);
    (0..3).for_each(|slot| mirror.down(slot));
    assert!(!mirror.leave_out(Set(0b111)), "nobody would be left");
    assert!(!mirror.leave_out(Set(0b110)), "the one that would be left is away");
    mirror.connected(0, LIVES[0]);
    assert!(!mirror.leave_out(Set(0b110)), "it is not checked yet");
    assert!(send(&mut mirror, 0) || mirror.is_stable());
    assert!(mirror.leave_out(Set(0b110)));
}

#[test]
fn nothing_is_sent_before_the_record() {
    let mut mirror = attached(2);
    assert!(mirror.is_usable(0));
    mirror.down(0);
    mirror.connected(0, LIVES[0]);
    assert!(!mirror.is_usable(0));
    send(&mut mirror, 0);
    assert!(mirror.is_usable(0));
    mirror.supersede();
    assert!(!mirror.is_usable(0) && mirror.to_send(0).is_none());
}

#[test]
fn who_joins_is_needed_at_once_and_read_when_it_is_decided() {
    let mut mirror = attached(3);
    mirror.down(2);
    mirror.leave_out(Set::one(2));
    assert!(!send(&mut mirror, 0) && send(&mut mirror, 1));
    mirror.connected(2, LIVES[2]);
    assert!(!mirror.may_join(2), "its record is on the way");
    send(&mut mirror, 2);
    assert!(mirror.may_join(2));
    mirror.begin_joining(2);
    assert!(!mirror.may_join(2));
    assert_eq!((mirror.targets(), mirror.need()), (Set(0b111), Set(0b011)));
    assert!(mirror.join(2));
    assert_eq!((mirror.need(), mirror.readable()), (Set(0b111), Set(0b011)));
    assert!(!send(&mut mirror, 2) && send(&mut mirror, 0));
    assert!(mirror.is_full() && mirror.readable() == Set(0b111));
}

#[test]
fn a_replacement_takes_a_majority_of_the_old_and_of_the_new() {
    let mut mirror = attached(3);
    mirror.down(2);
    mirror.leave_out(Set::one(2));
    assert!(!send(&mut mirror, 0) && send(&mut mirror, 1));
    mirror.connected(2, 99);
    send(&mut mirror, 2);
    assert!(mirror.is_other(2) && !mirror.may_join(2));
    assert!(mirror.change_holders());
    assert_eq!((mirror.current().lives, mirror.current().lives_before), ([10, 11, 99], LIVES));
    assert!(!send(&mut mirror, 2) && !send(&mut mirror, 0), "two by the new lives, one by the old");
    assert!(send(&mut mirror, 1));
    assert!(!mirror.may_join(2), "the change is not finished");
    assert!(mirror.change_holders());
    assert!(!send(&mut mirror, 0) && send(&mut mirror, 2), "the old one is left out");
    assert!(!mirror.change_holders());
    send(&mut mirror, 1);
    assert!(mirror.may_join(2));
}

#[test]
fn a_lease_takes_a_majority_in_the_lives_of_the_record() {
    let mut mirror = attached(3);
    assert!(mirror.gives_lease(Set(0b011)) && !mirror.gives_lease(Set(0b100)));
    mirror.down(2);
    mirror.connected(2, 99);
    assert!(!mirror.gives_lease(Set(0b101)) && mirror.gives_lease(Set(0b011)));
}
