//! The checker against histories whose verdict is known, and against the plainest checker there is.

use check::Action::{Add, Append, CompareAndSet, Delete, Expire, Get, Increment, Look, Put, Replace, Take};
use check::{Action, Fault, History, Operation, Recorder, appended, check};
use proptest::prelude::*;

fn operation(action: Action, value: Option<u64>, invoked: u64, returned: Option<u64>) -> Operation {
    Operation { client: 0, key: "k".into(), action, value, done: true, invoked, returned }
}

/// The same, but its condition did not hold.
fn refused(action: Action, value: Option<u64>, invoked: u64, returned: u64) -> Operation {
    Operation { done: false, ..operation(action, value, invoked, Some(returned)) }
}

/// The verdict on operations one after the other, `None` standing for one without an answer.
fn verdict(operations: Vec<Operation>) -> bool {
    match check(&History { operations }) {
        Ok(_) => true,
        Err(Fault::NotLinearizable { .. }) => false,
        Err(fault) => panic!("{fault}"),
    }
}

fn history(operations: &[(Action, Option<u64>, u64, Option<u64>)]) -> History {
    History { operations: operations.iter().map(|&(a, v, i, r)| operation(a, v, i, r)).collect() }
}

fn good(operations: &[(Action, Option<u64>, u64, Option<u64>)]) {
    check(&history(operations)).unwrap();
}

fn bad(operations: &[(Action, Option<u64>, u64, Option<u64>)]) {
    let verdict = check(&history(operations));
    assert!(matches!(verdict, Err(Fault::NotLinearizable { .. })), "{verdict:?}");
}

/// A value that ends is there or not; once it was missed it does not come back, and another value does not end with it.
#[test]
fn values_that_end() {
    let put = |returned| (Put, Some(7), 1, returned);
    let (end, gone) = ((Expire { of: 7 }, None, 1, None), |at| (Get, None, at, Some(at + 1)));
    let there = |at| (Get, Some(7), at, Some(at + 1));
    good(&[put(Some(2)), end, there(3), there(5)]);
    good(&[put(Some(2)), end, there(3), gone(5), gone(7)]);
    bad(&[put(Some(2)), end, gone(3), there(5)]);
    bad(&[put(Some(2)), (Expire { of: 7 }, None, 5, None), gone(3)]);
    bad(&[put(Some(2)), end, (Put, Some(8), 3, Some(4)), gone(5)]);
    good(&[put(None), end, gone(3), there(5), gone(7)]);
}

#[test]
fn who_looks_sees_what_is_there() {
    let put = |returned| operation(Put, Some(7), 1, returned);
    let (saw, saw_nothing) = (|at| operation(Look, None, at, Some(at + 1)), |at| refused(Look, None, at, at + 1));
    assert!(verdict(vec![put(Some(2)), saw(3)]) && !verdict(vec![put(Some(2)), saw_nothing(3)]));
    assert!(verdict(vec![saw_nothing(3)]) && !verdict(vec![saw(3)]));
    assert!(verdict(vec![put(Some(4)), saw(2)]) && verdict(vec![put(Some(4)), saw_nothing(2)]));
    // A put without an answer that nobody has read is why somebody saw one.
    assert!(verdict(vec![put(None), saw(2), operation(Get, Some(7), 5, Some(6))]) && verdict(vec![put(None), saw(2)]));
    assert!(!verdict(vec![put(None), saw(2), operation(Get, None, 5, Some(6))]));
}

#[test]
fn sequential_histories() {
    good(&[(Get, None, 1, Some(2)), (Put, Some(7), 3, Some(4)), (Get, Some(7), 5, Some(6))]);
    good(&[(Put, Some(7), 1, Some(2)), (Delete, None, 3, Some(4)), (Get, None, 5, Some(6))]);
    bad(&[(Put, Some(7), 1, Some(2)), (Get, None, 3, Some(4))]); // a lost write
    bad(&[(Put, Some(7), 1, Some(2)), (Delete, None, 3, Some(4)), (Get, Some(7), 5, Some(6))]); // risen from the dead
    bad(&[(Put, Some(7), 1, Some(2)), (Put, Some(8), 3, Some(4)), (Get, Some(7), 5, Some(6))]); // stale
    bad(&[(Get, Some(7), 1, Some(2)), (Put, Some(7), 3, Some(4))]); // from the future
    bad(&[(Get, Some(9), 1, Some(2))]); // from nowhere
}

#[test]
fn overlapping_operations_take_effect_in_any_order() {
    good(&[(Put, Some(7), 1, Some(10)), (Get, None, 2, Some(3)), (Get, Some(7), 4, Some(5))]);
    good(&[(Put, Some(7), 1, Some(10)), (Put, Some(8), 1, Some(10)), (Get, Some(7), 11, Some(12))]);
    // New, then old: the put cannot have taken effect between the two reads and before the first.
    bad(&[(Put, Some(7), 1, Some(10)), (Get, Some(7), 2, Some(3)), (Get, None, 4, Some(5))]);
    // Both orders of two puts cannot be seen.
    bad(&[
        (Put, Some(7), 1, Some(4)),
        (Put, Some(8), 1, Some(4)),
        (Get, Some(7), 5, Some(6)),
        (Get, Some(8), 7, Some(8)),
    ]);
}

#[test]
fn an_unknown_outcome_takes_effect_at_any_time_or_never_but_once() {
    let unknown = (Put, Some(7), 1, None);
    good(&[unknown, (Get, None, 2, Some(3)), (Get, Some(7), 4, Some(5))]);
    good(&[unknown, (Get, None, 2, Some(3)), (Put, Some(8), 4, Some(5)), (Get, Some(8), 6, Some(7))]);
    good(&[unknown, (Put, Some(8), 4, Some(5)), (Get, Some(8), 6, Some(7)), (Get, Some(7), 8, Some(9))]);
    bad(&[unknown, (Get, Some(7), 4, Some(5)), (Get, None, 6, Some(7))]);
    // Twice: before 8 and after it.
    bad(&[unknown, (Get, Some(7), 2, Some(3)), (Put, Some(8), 4, Some(5)), (Get, Some(7), 6, Some(7))]);
    good(&[(Put, Some(7), 1, Some(2)), (Delete, None, 3, None), (Get, Some(7), 4, Some(5)), (Get, None, 6, Some(7))]);
    good(&[(Put, Some(7), 1, Some(2)), (Get, None, 3, None)]); // a get without answer says nothing
}

#[test]
fn a_condition_is_judged_where_it_took_effect() {
    let put = || operation(Put, Some(7), 1, Some(2));
    let get = |value| operation(Get, value, 9, Some(10));
    for (action, when_there) in [(Add, false), (Replace, true), (CompareAndSet { expected: Some(7) }, true)] {
        let done = || operation(action, Some(8), 3, Some(4));
        let not_done = || refused(action, Some(8), 3, 4);
        assert_eq!(verdict(vec![put(), done(), get(Some(8))]), when_there, "{action:?} on a value");
        assert_eq!(verdict(vec![put(), not_done(), get(Some(7))]), !when_there, "{action:?} refused on a value");
        assert_eq!(verdict(vec![done(), get(Some(8))]), !when_there, "{action:?} on nothing");
        assert_eq!(verdict(vec![not_done(), get(None)]), when_there, "{action:?} refused on nothing");
        assert!(!verdict(vec![put(), done(), get(Some(7))]), "{action:?} is lost");
        assert!(!verdict(vec![put(), not_done(), get(Some(8))]), "{action:?} was refused and has an effect");
    }
    assert!(verdict(vec![operation(CompareAndSet { expected: None }, Some(8), 3, Some(4)), get(Some(8))]));
}

#[test]
fn of_two_that_exclude_each_other_one_is_done() {
    let cas =
        |value, done| Operation { done, ..operation(CompareAndSet { expected: Some(7) }, Some(value), 3, Some(6)) };
    let put = || operation(Put, Some(7), 1, Some(2));
    assert!(verdict(vec![put(), cas(8, true), cas(9, false), operation(Get, Some(8), 7, Some(8))]));
    assert!(!verdict(vec![put(), cas(8, true), cas(9, true)]));
    assert!(!verdict(vec![put(), cas(8, false), cas(9, false)]));
    let take = |value| operation(Take, value, 3, Some(6));
    assert!(verdict(vec![put(), take(Some(7)), take(None)]));
    assert!(!verdict(vec![put(), take(Some(7)), take(Some(7))]));
    assert!(!verdict(vec![put(), take(None), take(None)]));
    let add = |value| operation(Add, Some(value), 3, Some(6));
    assert!(!verdict(vec![add(1), add(2)]));
}

#[test]
fn nothing_is_added_twice_and_nothing_is_lost() {
    let one = |value, invoked, returned| operation(Increment { by: 1 }, value, invoked, returned);
    let get = |value| operation(Get, Some(value), 9, Some(10));
    assert!(verdict(vec![one(Some(2), 1, Some(4)), one(Some(1), 1, Some(4)), get(2)]));
    assert!(!verdict(vec![one(Some(1), 1, Some(4)), one(Some(1), 1, Some(4))]), "both saw nothing");
    assert!(!verdict(vec![one(Some(1), 1, Some(4)), one(Some(3), 1, Some(4))]), "applied twice");
    // Of unknown outcome: it counts once or not at all.
    let unknown = || one(None, 1, None);
    for (sum, possible) in [(1, true), (2, true), (3, false)] {
        assert_eq!(verdict(vec![unknown(), one(Some(1), 2, Some(3)), get(sum)]), possible, "{sum}");
    }
    // A put of unknown outcome that nobody read explains the sum.
    assert!(verdict(vec![operation(Put, Some(41), 1, None), one(Some(42), 2, Some(3))]));
    assert!(!verdict(vec![one(Some(42), 2, Some(3)), operation(Put, Some(41), 4, None)]));
}

#[test]
fn pieces_stand_in_the_order_of_their_appends() {
    let append = |piece, value: &[u64], invoked, returned| {
        let whole = value.iter().fold(None, |before, &piece| Some(appended(before, piece)));
        operation(Append { piece }, whole, invoked, Some(returned))
    };
    assert!(verdict(vec![append(1, &[1], 1, 9), append(2, &[1, 2], 1, 9)]));
    assert!(verdict(vec![append(1, &[2, 1], 1, 9), append(2, &[2], 1, 9)]));
    assert!(!verdict(vec![append(1, &[1], 1, 9), append(2, &[2], 1, 9)]));
    assert!(!verdict(vec![append(1, &[2, 1], 1, 2), append(2, &[2], 3, 4)]));
    // One that says only that it was done is done all the same.
    let get = |value: &[u64]| {
        let whole = value.iter().fold(None, |before, &piece| Some(appended(before, piece)));
        operation(Get, whole, 5, Some(6))
    };
    let untold = || operation(Append { piece: 2 }, None, 3, Some(4));
    assert!(verdict(vec![append(1, &[1], 1, 2), untold(), get(&[1, 2])]));
    assert!(!verdict(vec![append(1, &[1], 1, 2), untold(), get(&[1])]));
}

#[test]
fn an_unknown_condition_holds_or_not() {
    let put = || operation(Put, Some(7), 1, Some(2));
    let unknown = || operation(CompareAndSet { expected: Some(7) }, Some(8), 3, None);
    assert!(verdict(vec![put(), unknown(), operation(Get, Some(7), 5, Some(6)), operation(Get, Some(8), 7, Some(8))]));
    assert!(!verdict(vec![put(), unknown(), operation(Get, Some(8), 5, Some(6)), operation(Get, Some(7), 7, Some(8))]));
    // An add of unknown outcome that nobody read may be why another one was refused.
    assert!(verdict(vec![operation(Add, Some(1), 1, None), refused(Add, Some(2), 3, 4)]));
    assert!(!verdict(vec![refused(Add, Some(2), 3, 4), operation(Add, Some(1), 5, None)]));
}

#[test]
fn keys_are_judged_apart_and_the_culprit_is_named() {
    let mut two = history(&[(Put, Some(7), 1, Some(2)), (Get, None, 3, Some(4))]);
    two.operations[1].key = "other".into();
    assert_eq!(check(&two).unwrap().keys, 2);
    two.operations.push(operation(Get, Some(3), 5, Some(6)));
    let Err(Fault::NotLinearizable { key, report }) = check(&two) else { panic!("3 was never written") };
    assert_eq!(key, "k");
    assert!(report.contains("> client 0 Get 3 [5, 6]"), "{report}");
}

#[test]
fn malformed_histories_are_refused() {
    for operations in [
        vec![(Put, Some(7), 5, Some(4))],
        vec![(Put, None, 1, Some(2))],
        vec![(Put, Some(7), 1, Some(2)), (Put, Some(7), 3, Some(4))],
    ] {
        assert!(matches!(check(&history(&operations)), Err(Fault::Malformed(_))), "{operations:?}");
    }
    let broken = History::read("{\"client\":1}\n".as_bytes()).unwrap_err();
    assert!(broken.to_string().starts_with("line 1"), "{broken}");
}

#[test]
fn a_recording_survives_json_lines() {
    let recorder = Recorder::new();
    let _crashed = recorder.invoked(1, "k", Put, Some(7));
    let get = recorder.invoked(2, "k", Get, None);
    recorder.returned(get, Some(7));
    let failed = recorder.invoked(3, "k", Delete, None);
    recorder.failed(failed);
    assert_eq!((recorder.failures(), recorder.history().operations.len()), (1, 2));
    let mut lines = Vec::new();
    recorder.history().write(&mut lines).unwrap();
    let read = History::read(&lines[..]).unwrap();
    assert_eq!(read.operations, recorder.history().operations);
    assert_eq!(read.operations[0].returned, None);
    assert_eq!(check(&read).unwrap().unknown, 1);
}

/// Ten thousand operations by eight clients that overlap all the time, with one in twenty of unknown outcome.
#[test]
fn long_histories_are_quick() {
    let mut operations = Vec::new();
    let mut value = None;
    for index in 0..10_000u64 {
        let (effect, unknown) = (100 * index, index % 20 == 7);
        let (invoked, returned) = (effect.saturating_sub(330), (!unknown).then_some(effect + 370));
        operations.push(match index % 3 {
            0 => {
                value = Some(index);
                operation(Put, value, invoked, returned)
            }
            1 if index % 9 == 1 => {
                value = None;
                operation(Delete, None, invoked, returned)
            }
            _ => operation(Get, value, invoked, returned),
        });
    }
    let summary = check(&History { operations }).unwrap();
    assert_eq!((summary.operations, summary.unknown), (10_000, 500));
}

/// Hosts that come and go leave dozens of conditional writes and deletes without an answer: each may have taken effect at any
/// time or never, and an answer that none explains is refuted all the same.
#[test]
fn many_unknown_outcomes_are_decided() {
    let unknown = |index: u64| match index % 4 {
        0 => operation(Add, Some(index), index, None),
        1 => operation(Delete, None, index, None),
        2 => operation(Take, None, index, None),
        _ => operation(Replace, Some(index), index, None),
    };
    let mut operations: Vec<Operation> = (0..80).map(unknown).collect();
    for round in 0..8 {
        let at = 100 + 10 * round;
        operations.push(operation(Look, None, at, Some(at + 1)));
        operations.push(refused(Add, Some(1000 + round), at + 2, at + 3));
        operations.push(refused(Replace, Some(2000 + round), at + 4, at + 5));
    }
    assert!(check(&History { operations: operations.clone() }).is_ok());
    operations.push(operation(Get, Some(7777), 300, Some(301)));
    let fault = check(&History { operations }).unwrap_err();
    assert!(matches!(fault, Fault::NotLinearizable { .. }), "{fault}");
}

/// Every order of every subset of the operations without an answer: the plainest checker there is.
fn plain(operations: &[Operation], placed: u32, value: Option<u64>) -> bool {
    let is_placed = |index: usize| placed >> index & 1 == 1;
    let left = || (0..operations.len()).filter(|&index| !is_placed(index));
    if left().all(|index| operations[index].returned.is_none()) {
        return true;
    }
    left().any(|index| {
        let next = &operations[index];
        let must_follow = left().any(|other| operations[other].returned.is_some_and(|at| at < next.invoked));
        let answered = next.returned.is_some();
        let put = |holds: bool| (!answered || next.done == holds).then_some(if holds { next.value } else { value });
        let read = |after: Option<u64>, told: Option<u64>| (!answered || next.value == told).then_some(after);
        let after = match next.action {
            Get => read(value, value),
            Put => Some(next.value),
            Delete => Some(None),
            Take => read(None, value),
            Look => (!answered || next.done == value.is_some()).then_some(value),
            Expire { of } => (value == Some(of)).then_some(None),
            Add => put(value.is_none()),
            Replace => put(value.is_some()),
            CompareAndSet { expected } => put(value == expected),
            Increment { by } => {
                read(Some(value.unwrap_or(0).wrapping_add(by)), Some(value.unwrap_or(0).wrapping_add(by)))
            }
            Append { piece } => read(Some(appended(value, piece)), Some(appended(value, piece))),
        };
        let Some(after) = after else { return false };
        !must_follow && plain(operations, placed | 1 << index, after)
    })
}

fn small_history() -> impl Strategy<Value = Vec<Operation>> {
    let one = (0u8..7, 0u64..4, 0u64..12, 1u64..8, any::<bool>());
    prop::collection::vec(one, 1..7).prop_map(|shapes| {
        let shape = |(index, (kind, read, at, length, returns)): (usize, (u8, u64, u64, u64, bool))| {
            let (action, value) = match kind {
                0 | 1 => (Put, Some(index as u64 + 1)),
                2 => (Delete, None),
                3 => (Look, None),
                _ => (Get, (read > 0).then_some(read)),
            };
            let returned = (returns || length < 4).then_some(at + length);
            Operation { done: action != Look || read > 1, ..operation(action, value, at, returned) }
        };
        shapes.into_iter().enumerate().map(shape).collect()
    })
}

/// The same with conditional operations; on some keys numbers are counted, so that values repeat.
fn small_conditional_history() -> impl Strategy<Value = Vec<Operation>> {
    let one = (0u8..10, 0u64..4, 0u64..12, 1u64..8, any::<bool>(), any::<bool>());
    (any::<bool>(), prop::collection::vec(one, 1..6)).prop_map(|(counted, shapes)| {
        let shape = |(index, (kind, read, at, length, returns, done)): (usize, (u8, u64, u64, u64, bool, bool))| {
            let (wrote, told) = (Some(index as u64 + 1), (read > 0).then_some(read));
            let (action, value) = match kind {
                0 => (Put, wrote),
                1 => (Get, told),
                2 => (Take, told),
                3 | 4 => (Add, wrote),
                5 => (Replace, wrote),
                6 => (CompareAndSet { expected: told }, wrote),
                7 => (Look, None),
                _ if counted => (Increment { by: 1 }, Some(read)),
                _ => (Append { piece: read }, Some(appended((read > 1).then_some(1), read))),
            };
            let returned = (returns || length < 4).then_some(at + length);
            Operation { done: done || returned.is_none(), ..operation(action, value, at, returned) }
        };
        shapes.into_iter().enumerate().map(shape).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn agrees_with_the_plain_checker(operations in small_history()) {
        let expected = plain(&operations, 0, None);
        prop_assert_eq!(check(&History { operations }).is_ok(), expected);
    }

    #[test]
    fn agrees_with_the_plain_checker_on_conditions(operations in small_conditional_history()) {
        let expected = plain(&operations, 0, None);
        prop_assert_eq!(verdict(operations), expected);
    }
}
