//! In-band authentication of queues (NVMe Base 2.0 §8.13), seen from a host.

use std::sync::Arc;
use std::time::Duration;

use nvme::auth::{Concatenation, Failure, Fields, required};
use nvme::opcode::{AdminOpcode, FabricsType};
use nvme::register::Configuration;
use nvme::{Completion, Nqn, SglDescriptor, Status, Submission};
use zerocopy::IntoBytes;

use super::super::end::End;
use super::super::limits::{AUTHENTICATION_BEGIN_TIME_MAX, AUTHENTICATION_TIME_MAX};
use super::super::raw_host::{host, subsystem};
use super::*;
use crate::auth::{AuthError, DhchapKey, Group, Hash, HostKeys, HostSide, Names, Policy, Step};
use crate::subsystem::{HostConfig, PortConfig, PortId, Target, TargetConfig, TlsPolicy};

/// More than a failure is held back.
const PAUSE: Duration = Duration::from_millis(1_100);

pub(super) fn keys(both: bool) -> HostKeys {
    let key = || Arc::new(DhchapKey::generate(Some(Hash::Sha256), None).expect("random bytes"));
    HostKeys { host: key(), controller: both.then(key) }
}

fn suite() -> Policy {
    Policy::new(vec![Hash::Sha256], vec![Group::Null]).expect("not empty")
}

pub(super) fn host_side(keys: &HostKeys) -> HostSide {
    side_of(host(), keys)
}

fn side_of(host: Nqn, keys: &HostKeys) -> HostSide {
    side_for(subsystem(), host, keys)
}

fn side_for(subsystem: Nqn, host: Nqn, keys: &HostKeys) -> HostSide {
    let names = Names { host, subsystem };
    HostSide::new(names, keys.clone(), suite(), 7, Concatenation::NONE)
}

pub(super) fn allow(target: &Target, keys: &HostKeys) {
    let config = HostConfig { keys: Some(keys.clone()), ..HostConfig::default() };
    target.allow_host(&subsystem(), &host(), config).expect("there is the subsystem");
}

/// A connection to a target that has `keys` of the session's host, past ICReq.
pub(super) fn session(keys: &HostKeys) -> RawHost {
    let mut session = RawHost::new(memory());
    allow(&session.target, keys);
    session.open(false, false);
    session
}

/// Runs a whole transaction; the answer to a failure is waited for.
pub(super) fn login(session: &mut RawHost, keys: &HostKeys) -> Result<(), AuthError> {
    run_login(session, side_of(session.host.clone(), keys))
}

/// The same at the discovery subsystem.
pub(super) fn login_to_discovery(session: &mut RawHost, keys: &HostKeys) -> Result<(), AuthError> {
    run_login(session, side_for(Nqn::discovery(), session.host.clone(), keys))
}

pub(super) fn run_login(session: &mut RawHost, mut side: HostSide) -> Result<(), AuthError> {
    loop {
        match side.step() {
            Step::Send(message) => {
                let completion = session.send_authentication(&message).expect("answered");
                assert_eq!(completion.status(), Status::SUCCESS);
            }
            Step::Receive => {
                let answer = session.receive_authentication(4096).or_else(|| {
                    session.advance(PAUSE);
                    session.take_answer(0xC003)
                });
                let (completion, message) = answer.expect("answered");
                assert_eq!((completion.status(), message.len()), (Status::SUCCESS, 4096));
                side.received(&message);
            }
            Step::Done(_) => return Ok(()),
            Step::Failed(error) => return Err(error),
        }
    }
}

pub(super) fn connect(session: &mut RawHost, qid: u16) -> Completion {
    session.connect(qid, &subsystem(), |_, _| {}).expect("answered")
}

/// AUTHREQ of a Connect's completion.
fn asked(completion: Completion) -> u16 {
    assert_eq!(completion.status(), Status::SUCCESS);
    (completion.result.get() >> 16) as u16
}

/// A controller whose admin queue has authenticated, enabled.
fn admin(keys: &HostKeys) -> RawHost {
    let mut session = session(keys);
    assert_eq!(asked(connect(&mut session, 0)), required::AUTHENTICATION);
    assert_eq!(login(&mut session, keys), Ok(()));
    let enabled = session.set_configuration(Configuration::ENABLE).expect("answered");
    assert_eq!(enabled.status(), Status::SUCCESS);
    session
}

/// I/O queue 1 of such a controller, connected and not authenticated.
pub(super) fn io_queue(keys: &HostKeys) -> RawHost {
    let admin = admin(keys);
    let mut session = RawHost::on(&admin.target);
    session.open(false, false);
    session.controller = admin.controller;
    session.admin = Some(Box::new(admin));
    assert_eq!(asked(connect(&mut session, 1)), required::AUTHENTICATION);
    session
}

fn identify(session: &mut RawHost) -> Status {
    let mut command = Submission::admin(AdminOpcode::IDENTIFY, 9, 0);
    command.cdw10 = 1.into();
    command.sgl = SglDescriptor::transport(4096);
    status(session.send(&command, &[]))
}

#[test]
fn a_host_with_a_key_gets_nothing_before_it_has_shown_it() {
    for both in [false, true] {
        let keys = keys(both);
        let mut session = session(&keys);
        connect(&mut session, 0);
        let enable = session.set_configuration(Configuration::ENABLE).expect("answered");
        assert_eq!(enable.status(), Status::AUTHENTICATION_REQUIRED.do_not_retry());
        for opcode in (0..=0x20).chain(0x80..=0x90) {
            let command = Submission::admin(AdminOpcode(opcode), 5, 1);
            assert_eq!(status(session.send(&command, &[])).kind(), Status::AUTHENTICATION_REQUIRED, "{opcode:#x}");
        }
        for fabrics in [FabricsType::PROPERTY_GET, FabricsType::PROPERTY_SET, FabricsType::DISCONNECT] {
            let command = Submission::fabrics(fabrics, 5);
            assert_eq!(status(session.send(&command, &[])).kind(), Status::AUTHENTICATION_REQUIRED, "{fabrics}");
        }
        assert_eq!(login(&mut session, &keys), Ok(()));
        session.set_configuration(Configuration::ENABLE);
        assert_eq!(identify(&mut session), Status::SUCCESS);
        assert_eq!(session.target.stats().authenticated(), 1);
    }
}

#[test]
fn an_io_queue_authenticates_for_itself() {
    let keys = keys(true);
    let mut session = io_queue(&keys);
    for opcode in 0..=0x20 {
        let command = command(NvmOpcode(opcode), 3, 0, 1);
        assert_eq!(status(session.send(&command, &[])).kind(), Status::AUTHENTICATION_REQUIRED, "{opcode:#x}");
    }
    assert_eq!(login(&mut session, &keys), Ok(()));
    assert_eq!(write(&mut session, 3, &pattern(1, 9)), Status::SUCCESS);
    assert_eq!(read(&mut session, 3, 1), pattern(1, 9));
}

#[test]
fn a_wrong_key_ends_the_connection_after_a_pause() {
    let keys = keys(false);
    let mut session = session(&keys);
    connect(&mut session, 0);
    let wrong = self::keys(false);
    let mut side = host_side(&wrong);
    for _ in 0..3 {
        match side.step() {
            Step::Send(message) => session.send_authentication(&message).map(|_| ()).expect("answered"),
            _ => side.received(&session.receive_authentication(4096).expect("the challenge").1),
        }
    }
    assert_eq!(side.step(), Step::Receive);
    assert!(session.receive_authentication(4096).is_none(), "the word comes later");
    assert_eq!(session.core.reason(), None);
    session.advance(PAUSE);
    let (_, message) = session.take_answer(0xC003).expect("now");
    side.received(&message);
    assert_eq!(side.step(), Step::Failed(AuthError::Refused(Failure::FAILED)));
    assert_eq!(session.core.ended(), Some(&End::AuthenticationFailed(Failure::FAILED)));
    assert_eq!(session.target.stats().authentications_failed(), 1);
    assert!(session.set_configuration(Configuration::ENABLE).is_none(), "nothing is answered any more");
}

#[test]
fn a_host_that_finds_fault_with_us_ends_the_connection() {
    let keys = keys(true);
    let mut session = session(&keys);
    connect(&mut session, 0);
    let other = HostKeys { host: keys.host.clone(), controller: self::keys(true).controller };
    assert_eq!(login(&mut session, &other), Err(AuthError::WrongController));
    assert_eq!(session.core.ended(), Some(&End::AuthenticationFailed(Failure::FAILED)));
}

#[test]
fn an_authentication_that_does_not_come_ends_the_connection() {
    let keys = keys(false);
    for begun in [false, true] {
        let mut session = session(&keys);
        connect(&mut session, 0);
        if begun {
            let Step::Send(message) = host_side(&keys).step() else { panic!("the host begins") };
            session.send_authentication(&message);
        }
        let deadline = session.core.deadline().expect("it is bounded");
        let limit = if begun { AUTHENTICATION_TIME_MAX } else { AUTHENTICATION_BEGIN_TIME_MAX };
        assert_eq!(deadline, session.now + limit, "who says nothing has the shorter one; begun: {begun}");
        session.advance(limit);
        assert_eq!(session.core.ended(), Some(&End::AuthenticationTimeout), "begun: {begun}");
    }
}

/// Each Authentication Receive after a failure held the word of it back for another second, without end, and the answer of the one
/// before was forgotten with its slot.
#[test]
fn a_failure_that_is_asked_for_again_and_again_is_told_in_its_time() {
    let mut session = session(&keys(false));
    connect(&mut session, 0);
    assert!(session.receive_authentication(4096).is_none(), "the word comes later");
    for id in 0..3 {
        session.advance(Duration::from_millis(300));
        let (completion, _) = session.receive_authentication_by(id, 4096).expect("answered");
        assert_eq!(completion.status(), Status::SEQUENCE_ERROR.do_not_retry());
        let sent = session.send_authentication(&[0; 16]).expect("answered");
        assert_eq!(sent.status(), Status::SEQUENCE_ERROR.do_not_retry());
    }
    session.advance(Duration::from_millis(100));
    assert_eq!(status(session.take_answer(0xC003)), Status::SUCCESS);
    assert_eq!(session.core.ended(), Some(&End::AuthenticationFailed(Failure::INCORRECT_MESSAGE)));
}

#[test]
fn a_queue_in_use_authenticates_again_and_is_served_meanwhile() {
    let keys = keys(false);
    let mut session = io_queue(&keys);
    assert_eq!(login(&mut session, &keys), Ok(()));
    let Step::Send(message) = host_side(&keys).step() else { panic!("the host begins") };
    session.send_authentication(&message);
    assert_eq!(write(&mut session, 0, &pattern(1, 1)), Status::SUCCESS);
    session.advance(AUTHENTICATION_TIME_MAX);
    assert_eq!(session.core.ended(), Some(&End::AuthenticationTimeout), "the second one never ended");

    let mut session = io_queue(&keys);
    assert_eq!(login(&mut session, &keys), Ok(()));
    assert_eq!(login(&mut session, &keys), Ok(()));
    assert_eq!(read(&mut session, 0, 1).len(), BLOCK);
    assert!(login(&mut session, &self::keys(false)).is_err());
    assert!(matches!(session.core.ended(), Some(End::AuthenticationFailed(_))));
}

#[test]
fn a_host_without_a_key_is_asked_for_nothing_unless_all_must_authenticate() {
    let mut session = RawHost::new(memory());
    session.open(false, false);
    assert_eq!(asked(connect(&mut session, 0)), 0);
    session.set_configuration(Configuration::ENABLE);
    assert_eq!(identify(&mut session), Status::SUCCESS);
    // It tries all the same.
    assert_eq!(login(&mut session, &keys(false)), Err(AuthError::Refused(Failure::PROTOCOL_NOT_USABLE)));

    let config = TargetConfig { require_authentication: true, ..TargetConfig::default() };
    let target = Target::new(config);
    target.add_subsystem(subsystem(), "SERIAL").expect("a new target");
    let discovery: Nqn = nvme::nqn::DISCOVERY.parse().expect("a name");
    for subsystem in [subsystem(), discovery.clone()] {
        let mut session = RawHost::on(&target);
        session.open(false, false);
        let completion = session.connect(0, &subsystem, |_, _| {}).expect("answered");
        assert_eq!(completion.status(), Status::CONNECT_INVALID_HOST.do_not_retry());
    }
    allow(&target, &keys(false));
    for subsystem in [subsystem(), discovery] {
        let mut session = RawHost::on(&target);
        session.open(false, false);
        let completion = session.connect(0, &subsystem, |_, _| {}).expect("answered");
        assert_eq!(asked(completion), required::AUTHENTICATION);
    }
}

/// Whoever knows a host's name may have the target compute for it, without any key. One peer that asked for that on all the
/// connections there could be kept every other host waiting until its time was over.
#[test]
fn one_address_leaves_others_room_to_authenticate() {
    let keys = keys(false);
    let target = session(&keys).target;
    let from = |address: u8| {
        let mut session = RawHost::on(&target);
        session.core.origin.peer = ([192, 0, 2, address], 50_000).into();
        session.open(false, false);
        session
    };
    let begun = |session: &mut RawHost| asked(connect(session, 0)) == required::AUTHENTICATION;
    let mut all: Vec<RawHost> = (0..64).map(|_| from(1)).collect();
    assert!(all.iter_mut().all(begun));
    let mut late = from(1);
    assert_eq!(connect(&mut late, 0).status(), Status::CONNECT_CONTROLLER_BUSY, "it may be tried again");
    let mut elsewhere = from(2);
    assert!(begun(&mut elsewhere) && login(&mut elsewhere, &keys) == Ok(()));
    // Who has authenticated, or has gone, makes room.
    assert_eq!(login(&mut all[0], &keys), Ok(()));
    assert!(begun(&mut late));
    assert_eq!(connect(&mut from(1), 0).status(), Status::CONNECT_CONTROLLER_BUSY);
    all.pop();
    assert!(begun(&mut from(1)));
}

/// It was a line of the log for each, past the bound on what peers can have written there, and the operator read of a host that
/// did not authenticate in time.
#[test]
fn an_authentication_for_which_there_is_no_time_says_so() {
    let keys = keys(false);
    let mut session = session(&keys);
    connect(&mut session, 0);
    let (gate, opened) = std::sync::mpsc::channel::<()>();
    let opened = Arc::new(std::sync::Mutex::new(opened));
    engine::Reactor::run(engine::ReactorConfig::default(), async {
        // The threads wait, and so does whatever comes after.
        let wait = || {
            let opened = opened.clone();
            engine::offload::offload(move || assert!(opened.lock().expect("nobody panics").recv().is_err()))
        };
        // A thread that comes late takes one out of the full line.
        for _ in 0..10 {
            while wait().is_ok() {}
            engine::time::sleep(Duration::from_millis(10)).await;
        }
        let Step::Send(message) = host_side(&keys).step() else { panic!("the host begins") };
        assert!(session.send_authentication(&message).is_none());
        drop(gate);
    })
    .expect("a reactor");
    assert_eq!(session.core.ended(), Some(&End::AuthenticationsBusy));
    assert_eq!(session.target.stats().authentications_failed(), 1);
}

#[test]
fn discovery_is_open_to_a_host_with_a_key() {
    let mut session = session(&keys(false));
    let discovery: Nqn = nvme::nqn::DISCOVERY.parse().expect("a name");
    let completion = session.connect(0, &discovery, |_, _| {}).expect("answered");
    assert_eq!(asked(completion), 0);
}

#[test]
fn commands_that_are_not_of_in_band_authentication_are_refused() {
    let mut session = session(&keys(false));
    connect(&mut session, 0);
    let invalid = Status::INVALID_FIELD.do_not_retry();
    let good = Fields::new(16);
    let bad = [
        Fields { secp: 0xEA, ..good },
        Fields { spsp0: 2, ..good },
        Fields { spsp1: 0, ..good },
        Fields { length: 0.into(), ..good },
    ];
    for fields in bad {
        for kind in [FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE] {
            let mut command = Submission::fabrics(kind, 1);
            command.sgl = SglDescriptor::transport(16);
            command.as_mut_bytes()[40..].copy_from_slice(fields.as_bytes());
            assert_eq!(status(session.send(&command, &[])), invalid, "{kind}: {fields:?}");
        }
    }
    let mut long = Submission::fabrics(FabricsType::AUTHENTICATION_SEND, 1);
    long.sgl = SglDescriptor::transport(1 << 20);
    long.as_mut_bytes()[40..].copy_from_slice(Fields::new(1 << 20).as_bytes());
    assert_eq!(status(session.send(&long, &[])), invalid, "longer than any message");
    // Room for less than the message: it stays to be fetched.
    let keys = keys(false);
    let mut session = self::session(&keys);
    connect(&mut session, 0);
    let Step::Send(message) = host_side(&keys).step() else { panic!("the host begins") };
    session.send_authentication(&message);
    assert_eq!(status(session.receive_authentication(16)), invalid);
    assert_eq!(status(session.receive_authentication(48)), Status::SUCCESS);
}

// Secure channel concatenation (NVMe Base 2.0c §8.13.5.9).

/// A session by a port that requires TLS, of a host that may make its key by authentication.
pub(super) fn concatenating(keys: &HostKeys) -> RawHost {
    let session = RawHost::new(memory());
    let secure = PortConfig { tls: TlsPolicy::Required, ..PortConfig::new(PortId(2)) };
    session.target.add_port(secure).expect("new");
    let config = HostConfig { keys: Some(keys.clone()), concatenation: true, ..HostConfig::default() };
    session.target.allow_host(&subsystem(), &host(), config).expect("there is the subsystem");
    let mut session = RawHost::at(&session.target, PortId(2));
    session.open(false, false);
    session
}

pub(super) fn login_for_a_channel(session: &mut RawHost, keys: &HostKeys) -> Result<(), AuthError> {
    run_login(session, side_for_a_channel(keys))
}

pub(super) fn side_for_a_channel(keys: &HostKeys) -> HostSide {
    let names = Names { host: host(), subsystem: subsystem() };
    let suite = Policy::new(vec![Hash::Sha256], vec![Group::Ffdhe2048]).expect("not empty");
    HostSide::new(names, keys.clone(), suite, 7, Concatenation::NEW_TLS_PSK)
}

#[test]
fn a_queue_for_a_secure_channel_serves_nothing_else_before_and_afterwards() {
    for both in [false, true] {
        let keys = keys(both);
        let mut session = concatenating(&keys);
        assert_eq!(asked(connect(&mut session, 0)), required::AUTHENTICATION | required::SECURE_CHANNEL);
        let refused = |session: &mut RawHost| {
            let enable = session.set_configuration(Configuration::ENABLE).expect("answered");
            assert_eq!(enable.status().kind(), Status::AUTHENTICATION_REQUIRED);
            assert_eq!(identify(session).kind(), Status::AUTHENTICATION_REQUIRED);
        };
        refused(&mut session);
        assert_eq!(login_for_a_channel(&mut session, &keys), Ok(()));
        refused(&mut session);
        // It does not stay.
        session.advance(AUTHENTICATION_TIME_MAX);
        assert_eq!(session.core.ended(), Some(&End::AuthenticationTimeout));
    }
}

#[test]
fn an_authentication_without_a_secure_channel_does_not_do_where_one_must_be() {
    let keys = keys(false);
    let mut session = concatenating(&keys);
    connect(&mut session, 0);
    assert_eq!(login(&mut session, &keys), Err(AuthError::Refused(Failure::CONCATENATION_MISMATCH)));
    assert_eq!(session.core.ended(), Some(&End::AuthenticationFailed(Failure::CONCATENATION_MISMATCH)));
}

#[test]
fn an_io_queue_makes_no_secure_channel() {
    let keys = keys(false);
    // A plain one at a port that requires TLS is refused, whatever it names.
    let mut admin = concatenating(&keys);
    connect(&mut admin, 0);
    assert_eq!(login_for_a_channel(&mut admin, &keys), Ok(()));
    let mut session = RawHost::at(&admin.target, PortId(2));
    session.open(false, false);
    session.controller = admin.controller;
    let completion = connect(&mut session, 1);
    assert_eq!(completion.status(), Status::CONNECT_INVALID_HOST.do_not_retry());
    // Where plain queues are served, it is refused the key.
    let mut session = io_queue(&keys);
    let mismatch = AuthError::Refused(Failure::CONCATENATION_MISMATCH);
    assert_eq!(login_for_a_channel(&mut session, &keys), Err(mismatch));
}

#[test]
fn a_host_that_was_given_another_key_goes_on_and_needs_it_the_next_time() {
    let (old, new) = (keys(false), keys(true));
    let mut session = admin(&old);
    session.target.set_host_keys(&subsystem(), &host(), new.clone()).expect("it is on the list");
    assert_eq!(identify(&mut session), Status::SUCCESS);
    assert_eq!(login(&mut session, &new), Ok(()));
    assert_eq!(login(&mut session, &old), Err(AuthError::Refused(Failure::FAILED)));
    let stranger: Nqn = "nqn.2026-01.example.yagura:stranger".parse().expect("a name");
    assert!(session.target.set_host_keys(&subsystem(), &stranger, new).is_err());
}

/// A host on the list without a key may be anybody that gives its name, and was connected for as long as it liked after it got one.
#[test]
fn a_hosts_first_key_ends_what_is_connected_without() {
    let mut session = RawHost::new(memory());
    session.target.allow_host(&subsystem(), &host(), HostConfig::default()).expect("room");
    session.open(false, false);
    session.connect_io();
    let mut other = RawHost::on(&session.target).by_host(2);
    other.open(false, false);
    other.connect_io();
    session.target.set_host_keys(&subsystem(), &host(), keys(false)).expect("it is on the list");
    session.turn();
    assert!(session.is_over() && session.admin.as_ref().is_some_and(|admin| admin.core.controller_end().is_some()));
    other.turn();
    assert!(!other.is_over(), "another host goes on");
}
