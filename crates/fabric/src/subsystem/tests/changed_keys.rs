//! Keys that are changed while a host authenticates by them.

use std::sync::Arc;

use nvme::auth::Failure;
use nvme::register::Configuration;
use nvme::{Nqn, Status};
use tls::Secret;

use super::super::end::End;
use super::super::raw_host::{host, subsystem};
use super::RawHost;
use super::authentication::{
    concatenating, connect, host_side, io_queue, keys, run_login, session, side_for_a_channel,
};
use crate::auth::{HostKeys, HostSide, Step};
use crate::psk::TlsPsk;
use crate::subsystem::{HostConfig, PortId, Target};

/// Whoever had the old key, and had begun a transaction before it was changed, was let in by it when it was over; with a secure
/// channel he had a key for TLS besides, by which he could connect anew for as long as he stayed.
#[test]
fn a_transaction_that_was_begun_by_a_key_is_worth_nothing_after_its_change() {
    let failed = Some(&End::AuthenticationFailed(Failure::FAILED));
    for both in [false, true] {
        let (old, new) = (keys(both), keys(both));
        let change = |session: &RawHost, keys: &HostKeys| {
            session.target.set_host_keys(&subsystem(), &host(), keys.clone()).expect("it is on the list");
        };
        // Of an admin queue and of an I/O queue, whose controller goes on.
        for mut session in [session(&old), io_queue(&old)] {
            if session.admin.is_none() {
                connect(&mut session, 0);
            }
            let mut side = host_side(&old);
            challenge(&mut session, &mut side);
            change(&session, &new);
            assert_eq!(run_login(&mut session, side), Ok(()), "the host can't tell yet");
            assert_eq!((session.core.ended(), session.target.stats().authentications_failed()), (failed, 1));
            assert!(session.core.controller.as_ref().is_some_and(|own| own.is_let_in() == session.admin.is_some()));
        }
        let mut session = concatenating(&old);
        connect(&mut session, 0);
        let mut side = side_for_a_channel(&old);
        challenge(&mut session, &mut side);
        change(&session, &new);
        assert_eq!(run_login(&mut session, side), Ok(()));
        assert_eq!(session.core.ended(), failed);
        assert!(!session.target.shared.secure.keyring().has_key(&host(), &subsystem()), "a key for TLS was made");
        // A change back is none.
        let mut session = self::session(&old);
        connect(&mut session, 0);
        let mut side = host_side(&old);
        challenge(&mut session, &mut side);
        change(&session, &new);
        change(&session, &old);
        assert_eq!((run_login(&mut session, side), session.core.ended()), (Ok(()), None));
    }
}

/// Begins a transaction, up to the challenge.
fn challenge(session: &mut RawHost, side: &mut HostSide) {
    let Step::Send(message) = side.step() else { panic!("the host begins") };
    assert_eq!(session.send_authentication(&message).expect("answered").status(), Status::SUCCESS);
    assert_eq!(side.step(), Step::Receive);
    side.received(&session.receive_authentication(4096).expect("the challenge").1);
}

/// A controller that has ended while its host authenticates, as it does by a change of anything about the host: the host has its
/// keys still, and gets nothing by them. It counted as one that has shown a wrong key, and its end was said to be that.
#[test]
fn an_association_that_ends_while_its_host_authenticates_is_no_wrong_key() {
    let keys = keys(false);
    for kind in 0..3 {
        for change_at in 0..5 {
            let (mut session, side, concatenation) = match kind {
                0 => (session(&keys), host_side(&keys), false),
                1 => (io_queue(&keys), host_side(&keys), false),
                _ => (concatenating(&keys), side_for_a_channel(&keys), true),
            };
            if kind != 1 {
                connect(&mut session, 0);
            }
            let target = session.target.clone();
            let config =
                HostConfig { keys: Some(keys.clone()), concatenation, tls_required: true, ..HostConfig::default() };
            let change = || target.allow_host(&subsystem(), &host(), config.clone()).expect("it is on the list");
            run_as_far_as_it_goes(&mut session, side, change_at, change);
            session.turn();
            let what = format!("kind {kind}, changed before step {change_at}");
            assert_eq!(session.core.ended(), Some(&End::AssociationEnded), "{what}");
            assert_eq!(target.stats().authentications_failed(), 0, "{what}");
            assert!(!target.shared.secure.keyring().has_key(&host(), &subsystem()), "{what}");
        }
    }
}

/// Runs a transaction until there is no answer, and does something before one of its steps.
fn run_as_far_as_it_goes(session: &mut RawHost, mut side: HostSide, change_at: usize, change: impl Fn()) {
    for step in 0..=change_at.max(5) {
        if step == change_at {
            change();
        }
        match side.step() {
            Step::Send(message) => {
                session.send_authentication(&message);
            }
            Step::Receive => match session.receive_authentication(4096) {
                Some((_, message)) => side.received(&message),
                None => return,
            },
            Step::Done(_) | Step::Failed(_) => {}
        }
    }
}

/// A target with a key for TLS that authentication by `keys` has made, for its subsystem or for discovery.
fn with_generated(keys: &HostKeys, of: &Nqn) -> (Target, Arc<TlsPsk>) {
    let session = concatenating(keys);
    let make = || TlsPsk::generated(&host(), of, "AAAA", &Secret::new(vec![7; 32])).expect("the right length");
    session.target.shared.secure.keep_generated(make(), session.now);
    (session.target.clone(), Arc::new(make()))
}

/// A connection by the port that requires TLS which was begun with this key.
fn over_tls(target: &Target, psk: &Arc<TlsPsk>) -> RawHost {
    let mut session = RawHost::at(target, PortId(2));
    session.core.origin.psk = Some(psk.clone());
    session.open(false, false);
    session
}

/// With one association before the end of the last one whoever had the old key stayed for ever by what it had made, and never
/// needed the new one.
#[test]
fn a_key_for_tls_that_a_replaced_key_has_made_begins_no_association() {
    let (target, psk) = with_generated(&keys(false), &subsystem());
    let mut first = over_tls(&target, &psk);
    assert_eq!(connect(&mut first, 0).status(), Status::SUCCESS);
    first.set_configuration(Configuration::ENABLE);
    target.set_host_keys(&subsystem(), &host(), keys(false)).expect("it is on the list");
    let second = connect(&mut over_tls(&target, &psk), 0).status();
    assert_eq!(second.kind(), Status::CONNECT_INVALID_HOST);
    let mut io = over_tls(&target, &psk);
    io.controller = first.controller;
    assert_eq!(connect(&mut io, 1).status(), Status::SUCCESS, "what there is goes on");
    // Nor does it open a queue of what the new one has made: that would outlive its own association.
    let make =
        || TlsPsk::generated(&host(), &subsystem(), "BBBB", &Secret::new(vec![8; 32])).expect("the right length");
    target.shared.secure.keep_generated(make(), first.now);
    let mut anew = over_tls(&target, &Arc::new(make()));
    assert_eq!(connect(&mut anew, 0).status(), Status::SUCCESS);
    anew.set_configuration(Configuration::ENABLE);
    let mut other = over_tls(&target, &psk);
    other.controller = anew.controller;
    assert_eq!(connect(&mut other, 1).status().kind(), Status::CONNECT_INVALID_PARAMETERS);
    drop((io, other, anew, first));
    assert!(!target.shared.secure.keyring().has_key(&host(), &subsystem()), "it ends with the association");
}

/// The key for discovery that the same key had made was good for an association for a minute.
#[test]
fn what_a_key_has_made_for_discovery_ends_with_it() {
    let discovery = Nqn::discovery();
    let come = |target: &Target, psk: &Arc<TlsPsk>| {
        over_tls(target, psk).connect(0, &Nqn::discovery(), |_, _| {}).expect("answered").status().kind()
    };
    let old = keys(false);
    let changes: [fn(&Target); 3] = [
        |target| target.set_host_keys(&subsystem(), &host(), keys(false)).expect("it is on the list"),
        |target| target.allow_host(&subsystem(), &host(), HostConfig::default()).expect("it is on the list"),
        |target| target.deny_host(&subsystem(), &host()).expect("it is on the list"),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (target, psk) = with_generated(&old, &discovery);
        change(&target);
        assert_eq!(come(&target, &psk), Status::CONNECT_INVALID_HOST, "change {number}");
    }
    // Not by a change of anything else: the host is about to come by it.
    let (target, psk) = with_generated(&old, &discovery);
    let config = HostConfig { keys: Some(old.clone()), concatenation: true, manage: true, ..HostConfig::default() };
    target.allow_host(&subsystem(), &host(), config).expect("it is on the list");
    assert_eq!(come(&target, &psk), Status::SUCCESS);
    let (target, psk) = with_generated(&old, &discovery);
    assert_eq!(come(&target, &psk), Status::SUCCESS);
}

/// A host that was denied kept its controller of the discovery subsystem, also one that lives by a key that its own had made, and
/// with that the log of what is open to everybody, for as long as it asked.
#[test]
fn a_host_that_is_denied_loses_its_discovery_controllers_at_once() {
    let deny = |target: &Target| target.deny_host(&subsystem(), &host()).expect("it is on the list");
    // By a key, by a key after which its own were taken from it, and by none.
    for (is_keyed, is_emptied) in [(true, false), (true, true), (false, false)] {
        let (target, psk) = with_generated(&keys(false), &Nqn::discovery());
        let mut session = if is_keyed { over_tls(&target, &psk) } else { RawHost::at(&target, PortId(1)) };
        if !is_keyed {
            session.open(false, false);
        }
        let connected = session.connect(0, &Nqn::discovery(), |_, _| {}).expect("answered");
        assert_eq!(connected.status(), Status::SUCCESS);
        session.set_configuration(Configuration::ENABLE);
        match is_emptied {
            true => target.allow_host(&subsystem(), &host(), HostConfig::default()).expect("it is on the list"),
            false => target.set_host_keys(&subsystem(), &host(), keys(false)).expect("it is on the list"),
        }
        session.turn();
        assert_eq!(session.core.ended(), None, "it is on the list");
        deny(&target);
        session.turn();
        assert_eq!(session.core.ended(), Some(&End::AssociationEnded), "keyed: {is_keyed}, emptied: {is_emptied}");
        assert!(!target.shared.secure.keyring().has_key(&host(), &Nqn::discovery()));
    }
}

/// The controllers went on, and the key for their further queues had gone.
#[test]
fn a_host_that_is_configured_as_it_was_keeps_the_key_that_it_lives_by() {
    let keys = keys(false);
    let (target, psk) = with_generated(&keys, &subsystem());
    let mut first = over_tls(&target, &psk);
    assert_eq!(connect(&mut first, 0).status(), Status::SUCCESS);
    first.set_configuration(Configuration::ENABLE);
    let config = HostConfig { keys: Some(keys), concatenation: true, ..HostConfig::default() };
    target.allow_host(&subsystem(), &host(), config.clone()).expect("it is on the list");
    let mut io = over_tls(&target, &psk);
    io.controller = first.controller;
    assert_eq!(connect(&mut io, 1).status(), Status::SUCCESS);
    target.allow_host(&subsystem(), &host(), HostConfig { tls_required: true, ..config }).expect("it is on the list");
    first.turn();
    assert_eq!(first.core.ended(), Some(&End::AssociationEnded));
    assert!(!target.shared.secure.keyring().has_key(&host(), &subsystem()));
}
