//! Both ends against each other, and each against messages that are not as they should be.

use std::sync::Arc;

use nvme::auth::{Concatenation, Failure, Message};

use super::*;

fn names() -> Names {
    let name = |text: &str| text.parse().expect("a name");
    Names { host: name("nqn.2014-08.org.example:host"), subsystem: name("nqn.2014-08.org.example:subsystem") }
}

fn key(hash: Option<Hash>) -> Arc<DhchapKey> {
    Arc::new(DhchapKey::generate(hash, None).expect("random bytes"))
}

fn keys(both: bool) -> HostKeys {
    HostKeys { host: key(Some(Hash::Sha256)), controller: both.then(|| key(Some(Hash::Sha512))) }
}

fn policy(hash: Hash, group: Group) -> Policy {
    Policy::new(vec![hash], vec![group]).expect("not empty")
}

/// The smallest policy: what the tests that do not care use.
fn quick() -> Policy {
    policy(Hash::Sha256, Group::Null)
}

struct Pair {
    host: HostSide,
    controller: ControllerSide,
    /// What was said, in order: the host's messages, and the controller's.
    said: Vec<(bool, Vec<u8>)>,
}

/// How a transaction ended at the two ends.
type Ends = (Result<Option<GeneratedPsk>, AuthError>, Verdict);

impl Pair {
    fn new(host: HostKeys, controller: HostKeys, policy: Policy, concatenation: Concatenation) -> Pair {
        Pair {
            host: HostSide::new(names(), host, policy.clone(), 0x0102, concatenation),
            controller: ControllerSide::new(names(), Some(controller), policy, ConcatenationPolicy::Allowed),
            said: Vec::new(),
        }
    }

    /// Runs until the host is done; `change` may change each message: whether it is the host's, its number, its bytes.
    fn run(&mut self, mut change: impl FnMut(bool, usize, &mut Vec<u8>)) -> Ends {
        let mut verdict = Verdict::Pending;
        for _ in 0..10 {
            match self.host.step() {
                Step::Send(mut message) => {
                    change(true, self.said.len(), &mut message);
                    self.said.push((true, message.clone()));
                    verdict = self.controller.send(&message);
                }
                Step::Receive => {
                    let (mut message, after) = self.controller.receive(4096).expect("room for every message");
                    change(false, self.said.len(), &mut message);
                    self.said.push((false, message.clone()));
                    verdict = after;
                    self.host.received(&message);
                }
                Step::Done(psk) => return (Ok(psk), verdict),
                Step::Failed(error) => return (Err(error), verdict),
            }
        }
        panic!("the transaction has no end: {:?}", self.said);
    }
}

fn authenticated(bidirectional: bool) -> Verdict {
    Verdict::Authenticated { bidirectional, psk: None }
}

#[test]
fn every_hash_and_group_one_way_and_both_ways() {
    for hash in Hash::ALL {
        for group in Group::ALL {
            for both in [false, true] {
                let keys = keys(both);
                let mut pair = Pair::new(keys.clone(), keys, policy(hash, group), Concatenation::NONE);
                let ends = pair.run(|_, _, _| {});
                assert_eq!(ends, (Ok(None), authenticated(both)), "{hash:?} {group:?}, both ways: {both}");
                assert_eq!(pair.said.len(), if both { 5 } else { 4 });
                assert!(!pair.controller.is_under_way());
            }
        }
    }
}

#[test]
fn keys_of_every_transformation_serve() {
    for hash in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
        let keys = HostKeys { host: key(hash), controller: Some(key(hash)) };
        let ends = Pair::new(keys.clone(), keys, quick(), Concatenation::NONE).run(|_, _, _| {});
        assert_eq!(ends, (Ok(None), authenticated(true)), "{hash:?}");
    }
}

#[test]
fn a_secure_channel_gets_the_same_key_at_both_ends() {
    for both in [false, true] {
        let keys = keys(both);
        let everything = Policy::default();
        let mut pair = Pair::new(keys.clone(), keys, everything, Concatenation::NEW_TLS_PSK);
        let (host, controller) = pair.run(|_, _, _| {});
        let host = host.expect("authenticated").expect("a key was asked for");
        assert_eq!(host.key.len(), host.hash.bytes());
        assert_eq!(controller, Verdict::Authenticated { bidirectional: both, psk: Some(host) });
    }
}

#[test]
fn a_secure_channel_needs_an_exchange_and_a_hash_of_tls() {
    for (policy, expected) in [
        (policy(Hash::Sha256, Group::Null), Failure::GROUP_NOT_USABLE),
        (policy(Hash::Sha512, Group::Ffdhe2048), Failure::HASH_NOT_USABLE),
    ] {
        let keys = keys(false);
        let (host, controller) = Pair::new(keys.clone(), keys, policy, Concatenation::NEW_TLS_PSK).run(|_, _, _| {});
        assert_eq!((host, controller), (Err(AuthError::Refused(expected)), Verdict::Failed(expected)));
    }
    let keys = keys(false);
    let mut pair = Pair::new(keys.clone(), keys.clone(), Policy::default(), Concatenation::NEW_TLS_PSK);
    pair.controller = ControllerSide::new(names(), Some(keys), Policy::default(), ConcatenationPolicy::Refused);
    let mismatch = Failure::CONCATENATION_MISMATCH;
    assert_eq!(pair.run(|_, _, _| {}), (Err(AuthError::Refused(mismatch)), Verdict::Failed(mismatch)));
}

#[test]
fn a_host_that_must_set_up_a_secure_channel_and_does_not_is_refused() {
    let (keys, required) = (keys(false), ConcatenationPolicy::Required);
    let mut pair = Pair::new(keys.clone(), keys.clone(), quick(), Concatenation::NONE);
    pair.controller = ControllerSide::new(names(), Some(keys), quick(), required);
    let mismatch = Failure::CONCATENATION_MISMATCH;
    assert_eq!(pair.run(|_, _, _| {}), (Err(AuthError::Refused(mismatch)), Verdict::Failed(mismatch)));
}

#[test]
fn the_controllers_preference_decides() {
    let keys = keys(false);
    let mut pair = Pair::new(keys.clone(), keys.clone(), Policy::default(), Concatenation::NONE);
    let preferred = Policy::new(vec![Hash::Sha512, Hash::Sha256], vec![Group::Null, Group::Ffdhe2048]);
    pair.controller =
        ControllerSide::new(names(), Some(keys), preferred.expect("not empty"), ConcatenationPolicy::Refused);
    assert_eq!(pair.run(|_, _, _| {}), (Ok(None), authenticated(false)));
    assert_eq!(pair.said[1].1[8..10], [3, 0], "SHA-512 and the null group");
}

#[test]
fn nothing_in_common_fails_and_says_what() {
    for (host, controller, expected) in [
        (policy(Hash::Sha256, Group::Null), policy(Hash::Sha384, Group::Null), Failure::HASH_NOT_USABLE),
        (policy(Hash::Sha256, Group::Null), policy(Hash::Sha256, Group::Ffdhe2048), Failure::GROUP_NOT_USABLE),
    ] {
        let keys = keys(false);
        let mut pair = Pair::new(keys.clone(), keys.clone(), host, Concatenation::NONE);
        pair.controller = ControllerSide::new(names(), Some(keys), controller, ConcatenationPolicy::Refused);
        assert_eq!(pair.run(|_, _, _| {}), (Err(AuthError::Refused(expected)), Verdict::Failed(expected)));
    }
}

#[test]
fn a_wrong_key_fails_at_whoever_checks_it() {
    let (mine, theirs) = (keys(true), keys(true));
    let wrong_host = HostKeys { host: theirs.host.clone(), controller: mine.controller.clone() };
    let failed = Failure::FAILED;
    let ends = Pair::new(wrong_host, mine.clone(), quick(), Concatenation::NONE).run(|_, _, _| {});
    assert_eq!(ends, (Err(AuthError::Refused(failed)), Verdict::Failed(failed)));
    let wrong_controller = HostKeys { host: mine.host.clone(), controller: theirs.controller };
    let ends = Pair::new(mine.clone(), wrong_controller, quick(), Concatenation::NONE).run(|_, _, _| {});
    assert_eq!(ends, (Err(AuthError::WrongController), Verdict::Failed(failed)));
    // The controller has no key of its own, and the host demands that it has.
    let none = HostKeys { host: mine.host.clone(), controller: None };
    let ends = Pair::new(mine.clone(), none, quick(), Concatenation::NONE).run(|_, _, _| {});
    assert_eq!(ends, (Err(AuthError::Refused(failed)), Verdict::Failed(failed)));
    // The controller does not know the host.
    let mut pair = Pair::new(mine.clone(), mine, quick(), Concatenation::NONE);
    pair.controller = ControllerSide::new(names(), None, quick(), ConcatenationPolicy::Refused);
    let unknown = Failure::PROTOCOL_NOT_USABLE;
    assert_eq!(pair.run(|_, _, _| {}), (Err(AuthError::Refused(unknown)), Verdict::Failed(unknown)));
}

#[test]
fn the_same_keys_under_other_names_fail() {
    let keys = keys(false);
    for change in [
        |names: &mut Names| names.host = names.subsystem.clone(),
        |names: &mut Names| {
            names.subsystem = names.host.clone();
        },
    ] {
        let mut other = names();
        change(&mut other);
        let mut pair = Pair::new(keys.clone(), keys.clone(), quick(), Concatenation::NONE);
        pair.host = HostSide::new(other, keys.clone(), quick(), 1, Concatenation::NONE);
        assert_eq!(pair.run(|_, _, _| {}).1, Verdict::Failed(Failure::FAILED));
    }
}

/// Bytes of a message that neither end looks at: reserved ones.
fn is_reserved(message: Message, at: usize) -> bool {
    let own: &[usize] = match message {
        Message::NEGOTIATE => &[9],
        Message::CHALLENGE => &[7],
        Message::REPLY => &[7, 9],
        Message::SUCCESS1 => &[7, 9, 10, 11, 12, 13, 14, 15],
        Message::SUCCESS2 => &[6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        _ => &[],
    };
    // A list of AUTH_Negotiate is looked at as far as its count goes.
    let unused = message == Message::NEGOTIATE && ((13..42).contains(&at) || at >= 43);
    at == 2 || at == 3 || unused || own.contains(&at)
}

/// Every byte of every message, changed one after the other: the two ends never both believe in a success.
#[test]
fn no_byte_of_a_message_can_be_changed() {
    let keys = keys(true);
    let suite = policy(Hash::Sha256, Group::Ffdhe2048);
    let run = |number: usize, at: usize| {
        let mut pair = Pair::new(keys.clone(), keys.clone(), suite.clone(), Concatenation::NONE);
        let ends = pair.run(|_, said, message| {
            if said == number {
                message[at] ^= 0x41;
            }
        });
        (ends, pair)
    };
    let (_, plain) = run(usize::MAX, 0);
    for (number, (_, message)) in plain.said.iter().enumerate() {
        let kind = Message(u16::from_be_bytes([message[0], message[1]]));
        // Each place in the fixed part; the values are long, and one byte of them is like the other.
        let tail = (16..message.len()).step_by(29).chain([message.len() - 1]);
        for at in (0..16).chain(tail).filter(|at| !is_reserved(kind, *at)) {
            let ((host, controller), _) = run(number, at);
            let both = host.is_ok() && matches!(controller, Verdict::Authenticated { .. });
            assert!(!both, "{kind}, byte {at}");
        }
    }
}

#[test]
fn a_message_cut_short_at_any_length_fails() {
    let keys = keys(true);
    let mut plain = Pair::new(keys.clone(), keys.clone(), quick(), Concatenation::NONE);
    assert_eq!(plain.run(|_, _, _| {}).1, authenticated(true));
    for (number, (_, message)) in plain.said.iter().enumerate() {
        for length in 0..message.len() {
            let mut pair = Pair::new(keys.clone(), keys.clone(), quick(), Concatenation::NONE);
            let (host, controller) = pair.run(|_, said, message| {
                if said == number {
                    message.truncate(length);
                }
            });
            let both = host.is_ok() && matches!(controller, Verdict::Authenticated { .. });
            assert!(!both, "message {number} cut to {length}");
        }
    }
}

/// What an eavesdropper has heard of one transaction does not serve in the next.
#[test]
fn a_transaction_cannot_be_replayed() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let keys = keys(false);
        let mut heard = Pair::new(keys.clone(), keys, policy(Hash::Sha256, group), Concatenation::NONE);
        assert_eq!(heard.run(|_, _, _| {}), (Ok(None), authenticated(false)));
        assert_eq!(heard.controller.send(&heard.said[0].1), Verdict::Pending);
        let (_, verdict) = heard.controller.receive(4096).expect("the challenge");
        assert_eq!(verdict, Verdict::Pending);
        assert_eq!(heard.controller.send(&heard.said[2].1), Verdict::Pending);
        let (message, verdict) = heard.controller.receive(4096).expect("the failure");
        assert_eq!(verdict, Verdict::Failed(Failure::FAILED), "{group:?}");
        assert_eq!(message[..2], [0x00, 0xF1], "AUTH_Failure1");
    }
}

/// Whoever does not know the key sends the controller's own challenge back, to have it answered.
#[test]
fn a_challenge_is_not_reflected() {
    let keys = keys(true);
    let mut pair = Pair::new(keys.clone(), keys, quick(), Concatenation::NONE);
    let mut c1 = Vec::new();
    let ends = pair.run(|by_host, number, message| match (by_host, number) {
        (false, 1) => c1 = message[16..48].to_vec(),
        (true, 2) => message[48..80].copy_from_slice(&c1),
        _ => {}
    });
    assert_eq!(ends.1, Verdict::Failed(Failure::FAILED));
}

#[test]
fn a_message_out_of_turn_ends_the_transaction() {
    let keys = keys(true);
    let mut plain = Pair::new(keys.clone(), keys.clone(), quick(), Concatenation::NONE);
    assert_eq!(plain.run(|_, _, _| {}).1, authenticated(true));
    let [negotiate, reply, success] = [0, 2, 4].map(|number| plain.said[number].1.clone());
    // Before each step of a transaction, every message that does not belong there, and a receive where it is the host's turn.
    for turn in 0..4 {
        for (kind, message) in [&negotiate, &reply, &success].into_iter().enumerate() {
            let mut side = ControllerSide::new(names(), Some(keys.clone()), quick(), ConcatenationPolicy::Refused);
            if turn > 0 {
                side.send(&negotiate);
            }
            if turn > 1 {
                side.receive(4096).expect("the challenge");
            }
            if (turn, kind) == (0, 0) || (turn, kind) == (2, 1) {
                continue;
            }
            if turn == 3 {
                side.receive(4096).expect("the failure: there was nothing to receive");
            }
            assert_eq!(side.send(message), Verdict::Pending);
            let (_, verdict) = side.receive(4096).expect("the failure");
            assert_eq!(verdict, Verdict::Failed(Failure::INCORRECT_MESSAGE), "turn {turn}, message {kind}");
        }
    }
    let mut side = ControllerSide::new(names(), Some(keys), quick(), ConcatenationPolicy::Refused);
    assert_eq!(side.receive(4096).expect("the failure").1, Verdict::Failed(Failure::INCORRECT_MESSAGE));
}

#[test]
fn a_message_waits_until_there_is_room_for_it() {
    let keys = keys(false);
    let mut pair = Pair::new(keys.clone(), keys, quick(), Concatenation::NONE);
    let Step::Send(negotiate) = pair.host.step() else { panic!("the host begins") };
    pair.controller.send(&negotiate);
    assert_eq!(pair.controller.receive(47), Err(48));
    assert!(pair.controller.is_under_way());
    assert_eq!(pair.controller.receive(48).map(|(message, _)| message.len()), Ok(48));
}

#[test]
fn a_controller_that_skips_its_response_is_not_believed() {
    let keys = keys(true);
    let ends = Pair::new(keys.clone(), keys, quick(), Concatenation::NONE).run(|_, number, message| {
        if number == 3 {
            message[8] = 0;
            message[16..].fill(0);
        }
    });
    assert_eq!(ends, (Err(AuthError::WrongController), Verdict::Failed(Failure::FAILED)));
}

#[test]
fn a_host_authenticates_again_on_the_same_queue() {
    let keys = keys(true);
    let mut pair = Pair::new(keys.clone(), keys.clone(), quick(), Concatenation::NONE);
    for transaction in 1..4 {
        pair.host = HostSide::new(names(), keys.clone(), quick(), transaction, Concatenation::NONE);
        assert_eq!(pair.run(|_, _, _| {}), (Ok(None), authenticated(true)));
    }
}

#[test]
fn sequence_numbers_are_never_zero_and_never_the_same_twice() {
    let (one, two) = (next_sequence().expect("random"), next_sequence().expect("random"));
    assert!(one != 0 && two != 0 && one != two);
}
