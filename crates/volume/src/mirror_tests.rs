use proptest::prelude::*;

use super::*;
use crate::label::tests::sample;

const LIVES: [Life; 3] = [10, 11, 12];

fn shape(replicas: u8) -> Shape {
    Shape { replicas, ..sample().shape }
}

fn record(version: u64, in_sync: u8) -> Record {
    let ballot = Ballot { round: 1, host: 1 };
    Record { ballot, version, in_sync: Set(in_sync), lives: LIVES, lives_before: LIVES, ..Record::default() }
}

fn promise(slot: usize, record: &Record) -> Option<Promise> {
    Some(Promise { life: LIVES[slot], record: record.clone() })
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

/// Those from `first` on accept the record.
fn all_have(mirror: &mut Mirror, first: usize) {
    for slot in first..3 {
        send(mirror, slot);
    }
}

#[test]
fn the_highest_record_of_a_majority_counts() {
    let all = record(1, 0b111);
    let less = record(2, 0b011);
    let choice = choose(&shape(3), &[None, promise(1, &less), promise(2, &all)]).expect("a majority");
    assert_eq!((&choice.record, choice.in_sync, choice.waits()), (&less, Set(0b010), true));
    let choice = choose(&shape(3), &[promise(0, &less), promise(1, &less), None]).expect("a majority");
    assert!(!choice.waits(), "all of them were reached");
    assert_eq!(choose(&shape(3), &[promise(0, &all), None, None]), Err(Refusal::NoMajority));
    let alone = record(3, 0b001);
    assert_eq!(choose(&shape(3), &[None, promise(1, &alone), promise(2, &all)]), Err(Refusal::NoneInSync));
    assert_eq!(choose(&shape(3), &[0; 3].map(|slot| promise(slot, &Record::default()))), Err(Refusal::NoRecord));
    assert!(choose(&shape(1), &[promise(0, &record(1, 1)), None, None]).is_ok());
}

#[test]
fn a_size_is_served_when_it_is_stable() {
    let mut mirror = attached(3);
    let made = mirror.blocks();
    assert!(!mirror.grow(made) && mirror.grow(made + 1) && !mirror.grow(made + 1));
    assert_eq!((mirror.blocks(), mirror.current().blocks), (made, made + 1));
    assert!(!send(&mut mirror, 0));
    assert_eq!(mirror.blocks(), made, "one alone has it");
    assert!(send(&mut mirror, 1));
    assert_eq!(mirror.blocks(), made + 1);
    let choice = Choice { record: mirror.current().clone(), in_sync: Set(0b111) };
    assert_eq!(Mirror::new(shape(3), ballot(), &choice).blocks(), made + 1, "also at the next host");
}

#[test]
fn a_copy_is_garbage_when_the_last_record_is_stable_and_does_not_name_it() {
    let mut mirror = attached(3);
    let name = |attempt: u32| SnapshotName { ballot: ballot(), attempt };
    assert!(mirror.is_garbage(name(1), 0) && mirror.is_gone(name(1)), "nobody has proposed it");
    assert!(mirror.add_snapshot(name(1), Set(0b011), None));
    assert!(!mirror.delete_snapshot(name(1)), "a minority may have it, and be followed");
    assert_eq!([0, 1, 2].map(|slot| mirror.is_garbage(name(1), slot)), [false; 3], "it is proposed");
    all_have(&mut mirror, 0);
    assert_eq!([0, 1, 2].map(|slot| mirror.is_garbage(name(1), slot)), [false, false, true]);
    assert!(mirror.delete_snapshot(name(1)) && !mirror.delete_snapshot(name(1)) && !mirror.is_gone(name(1)));
    assert!(!send(&mut mirror, 0));
    assert!(!mirror.is_garbage(name(1), 0), "the record before may yet be followed");
    assert!(send(&mut mirror, 1));
    assert!(mirror.is_garbage(name(1), 0) && mirror.is_gone(name(1)));
    let newer = SnapshotName { ballot: Ballot { round: 3, host: 0 }, attempt: 1 };
    assert!(!mirror.is_garbage(newer, 0), "somebody has attached since, and may have asked for it");
    let older = SnapshotName { ballot: Ballot { round: 1, host: 99 }, attempt: 1 };
    assert!(mirror.is_garbage(older, 0));
}

/// What an import has come to stands in one record with the snapshot that it is known by, and that of before is there no more.
#[test]
fn an_origin_changes_with_the_snapshots_that_it_names() {
    let mut mirror = attached(3);
    let name = |attempt: u32| SnapshotName { ballot: ballot(), attempt };
    let id = |attempt: u32| SnapshotId { volume: 99, name: name(attempt) };
    let names = |mirror: &Mirror| mirror.current().snapshots.iter().map(|one| one.name).collect::<Vec<_>>();
    let in_part = Origin::InPart { source: id(1), base: None };
    assert!(mirror.set_origin(in_part) && !mirror.set_origin(in_part));
    assert!(!mirror.has_origin(in_part), "a host may yet find that there is none");
    all_have(&mut mirror, 0);
    assert!(mirror.has_origin(in_part));
    assert!(mirror.add_snapshot(name(1), Set(0b111), Some(id(1))));
    let whole = Origin::Whole { source: id(1), own: Some(name(1)) };
    assert_eq!((mirror.current().origin, names(&mirror)), (Some(whole), vec![name(1)]));
    all_have(&mut mirror, 0);
    assert!(mirror.add_snapshot(name(2), Set(0b111), None), "one that somebody wants");
    assert_eq!(mirror.current().origin, Some(whole));
    all_have(&mut mirror, 0);
    let base = Some((id(1), name(1)));
    assert!(mirror.set_origin(Origin::InPart { source: id(2), base }));
    assert_eq!(names(&mirror), [name(1), name(2)], "it is compared with still");
    all_have(&mut mirror, 0);
    assert!(mirror.add_snapshot(name(3), Set(0b111), Some(id(2))));
    assert_eq!(names(&mirror), [name(2), name(3)]);
    // A minority may have the record with the one, and be followed.
    assert!(mirror.set_origin(in_part));
    assert_eq!(names(&mirror), [name(2), name(3)]);
    all_have(&mut mirror, 0);
    let choice = Choice { record: mirror.current().clone(), in_sync: Set(0b111) };
    assert_eq!(Mirror::new(shape(3), ballot(), &choice).current().origin, Some(in_part), "also at the next host");
}

#[test]
fn who_replaces_a_replica_has_none_of_its_snapshots() {
    let mut mirror = attached(3);
    let name = |attempt: u32| SnapshotName { ballot: ballot(), attempt };
    assert!(mirror.add_snapshot(name(1), Set(0b011), None) && mirror.add_snapshot(name(2), Set(0b001), None));
    all_have(&mut mirror, 0);
    mirror.down(0);
    assert!(mirror.leave_out(Set(0b001)));
    all_have(&mut mirror, 1);
    assert_eq!(mirror.current().snapshots.len(), 2, "it may be back");
    mirror.connected(0, 99);
    send(&mut mirror, 0);
    assert!(!mirror.change_holders(Set(0b110)), "it has not the room");
    assert!(mirror.change_holders(Set::first(3)));
    assert_eq!((mirror.current().snapshot(name(1)), mirror.current().snapshot(name(2))), (Set(0b010), Set(0)));
    assert!(!mirror.add_snapshot(name(3), Set(0), None), "nobody has it");
    assert!(!mirror.is_garbage(name(2), 0), "the record before may yet be followed");
}

#[test]
fn a_blank_in_a_holders_place_does_not_count() {
    let all = record(1, 0b111);
    let blank = Some(Promise { life: 99, record: Record::default() });
    assert_eq!(choose(&shape(3), &[promise(0, &all), blank.clone(), None]), Err(Refusal::NoMajority));
    let choice = choose(&shape(3), &[promise(0, &all), blank, promise(2, &all)]).expect("a majority");
    assert_eq!(choice.in_sync, Set(0b101));
    // In the middle of a change of holders the old ones count as well.
    let half = Record { lives: [10, 99, 12], ..record(2, 0b101) };
    let new = Some(Promise { life: 99, record: half.clone() });
    assert_eq!(
        choose(&shape(3), &[promise(0, &half), new.clone(), None]),
        Err(Refusal::NoMajority),
        "10 alone of those before"
    );
    assert!(choose(&shape(3), &[promise(0, &half), new, promise(2, &all)]).is_ok());
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
    let old = mirror.current().clone();
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
    assert!(mirror.change_holders(Set::first(3)));
    assert_eq!((mirror.current().lives, mirror.current().lives_before), ([10, 11, 99], LIVES));
    assert!(!send(&mut mirror, 2) && !send(&mut mirror, 0), "two by the new lives, one by the old");
    assert!(send(&mut mirror, 1));
    assert!(!mirror.may_join(2), "the change is not finished");
    assert!(mirror.change_holders(Set::first(3)));
    assert!(!send(&mut mirror, 0) && send(&mut mirror, 2), "the old one is left out");
    assert!(!mirror.change_holders(Set::first(3)));
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

/// What befalls a host and its holders.
#[derive(Clone, Copy, Debug)]
enum Event {
    Connected(usize),
    Down(usize),
    /// The record is written, and the host hears of it or does not.
    Sent(usize, bool),
    LeaveOut(u8),
    ChangeHolders,
    BeginJoining(usize),
    Join(usize),
    /// A blank takes the holder's place.
    Replaced(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let slot = || 0..3usize;
    let event = prop_oneof![
        4 => slot().prop_map(Event::Connected),
        2 => slot().prop_map(Event::Down),
        8 => (slot(), any::<bool>()).prop_map(|(slot, is_told)| Event::Sent(slot, is_told)),
        2 => (0..8u8).prop_map(Event::LeaveOut),
        2 => Just(Event::ChangeHolders),
        2 => slot().prop_map(Event::BeginJoining),
        2 => slot().prop_map(Event::Join),
        1 => slot().prop_map(Event::Replaced),
    ];
    proptest::collection::vec(event, 1..120)
}

/// A host, and what the holders have.
struct World {
    mirror: Mirror,
    holders: [Promise; 3],
    lives: Life,
}

impl World {
    fn apply(&mut self, event: Event) {
        let mirror = &mut self.mirror;
        match event {
            Event::Connected(slot) if mirror.to_send(slot).is_none() => mirror.connected(slot, self.holders[slot].life),
            Event::Connected(_) => {}
            Event::Down(slot) => mirror.down(slot),
            Event::Sent(slot, is_told) => {
                let Some(record) = mirror.to_send(slot) else { return };
                self.holders[slot].record = record.clone();
                if is_told {
                    mirror.accepted(slot, &record);
                } else {
                    mirror.down(slot);
                }
            }
            // Who is left out has no connection, or is another one.
            Event::LeaveOut(bad) => {
                let is_gone = |slot: usize| !mirror.is_usable(slot) || mirror.is_other(slot);
                let bad = Set::of(3, |slot| Set(bad).has(slot) && is_gone(slot));
                mirror.leave_out(bad);
            }
            Event::ChangeHolders => drop(mirror.change_holders(Set::first(3))),
            Event::BeginJoining(slot) if mirror.may_join(slot) => mirror.begin_joining(slot),
            Event::Join(slot) => drop(mirror.join(slot)),
            // One that is needed is not given away.
            Event::Replaced(slot) if !mirror.need().has(slot) => {
                mirror.down(slot);
                self.lives += 1;
                self.holders[slot] = Promise { life: self.lives, record: Record::default() };
            }
            Event::BeginJoining(_) | Event::Replaced(_) => {}
        }
    }

    /// Whoever attaches now, whichever holders it reaches: what it goes on with has every acknowledged write, and whoever is read
    /// by us it knows of.
    fn check(&self) {
        let mirror = &self.mirror;
        assert!(!mirror.current().in_sync.is_empty());
        assert_eq!(mirror.readable().without(mirror.need()), Set(0), "READ is a part of NEED");
        if !mirror.is_attached() {
            return;
        }
        for reached in 1..8u8 {
            let promises = std::array::from_fn(|slot| Set(reached).has(slot).then(|| self.holders[slot].clone()));
            let Ok(choice) = choose(&mirror.shape, &promises) else { continue };
            let (need, readable) = (mirror.need(), mirror.readable());
            assert_eq!(choice.in_sync.without(need), Set(0), "who reaches {reached:03b} goes on with {choice:?}");
            assert_eq!(
                readable.without(choice.record.in_sync),
                Set(0),
                "who reaches {reached:03b} goes on with {choice:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_host_that_follows_goes_on_with_less_than_was_acknowledged(replicas in 2..=3u8, events in events()) {
        let mut world = World {
            mirror: attached(replicas),
            holders: std::array::from_fn(|slot| Promise { life: LIVES[slot], record: Record::default() }),
            lives: 100,
        };
        let record = world.mirror.current().clone();
        world.holders.iter_mut().for_each(|holder| holder.record = record.clone());
        for event in events {
            world.apply(event);
            world.check();
        }
    }
}
