//! Host identifiers: each is one host's, and reservations are kept by it and by the host's name.

use std::sync::Arc;

use device::AnyNamespace;
use nvme::fabrics::connect_invalid_parameter;
use nvme::register::Configuration;
use nvme::reservation::{ReleaseAction, ReservationType};
use nvme::{Completion, Nqn};

use super::authentication::{keys as key, login};
use super::reservations::{acquire, register, release};
use super::*;
use crate::subsystem::raw_host::subsystem;
use crate::subsystem::{HostConfig, Target};

/// The identifier of the host that a session is.
const OF_FIRST: [u8; 16] = [1; 16];

/// An admin queue of host `number`, which gives the identifier of the first.
fn impostor(target: &Target, number: u8, subsystem: &Nqn) -> (RawHost, Completion) {
    let mut session = RawHost::on(target).by_host(number);
    session.open(false, false);
    let completion = session.connect(0, subsystem, |_, data| data.hostid = OF_FIRST).expect("answered");
    (session, completion)
}

fn is_refused(completion: &Completion) -> bool {
    let invalid = Status::CONNECT_INVALID_PARAMETERS.do_not_retry();
    completion.status() == invalid && completion.result.get() == connect_invalid_parameter(0, true)
}

/// Reservations went by an identifier that every report shows and nothing proves: whoever was let in at all gave another host's,
/// and read and wrote under its exclusive reservation.
#[test]
fn the_identifier_of_a_host_that_is_here_or_has_registered_is_no_other_hosts() {
    let mut first = io_session(false, false);
    let target = first.target.clone();
    assert!(is_refused(&impostor(&target, 2, &subsystem()).1), "it is here");
    assert!(impostor(&target, 2, &Nqn::discovery()).1.status().is_success(), "discovery has no reservations");
    assert_eq!(register(&mut first, 7), Status::SUCCESS);
    drop(first);
    assert!(is_refused(&impostor(&target, 2, &subsystem()).1), "it has registered");
    let mut again = RawHost::on(&target);
    again.open(false, false);
    again.connect_io();
    assert_eq!(release(&mut again, ReleaseAction::Clear, ReservationType::WriteExclusive, 7), Status::SUCCESS);
    drop(again);
    assert!(impostor(&target, 2, &subsystem()).1.status().is_success(), "nothing of it is left");
}

#[test]
fn who_has_not_shown_its_key_keeps_no_host_from_its_identifier() {
    let session = RawHost::new(memory());
    let target = session.target.clone();
    let keys = key(false);
    let named = RawHost::on(&target).by_host(2).host;
    let config = HostConfig { keys: Some(keys.clone()), ..HostConfig::default() };
    target.allow_host(&subsystem(), &named, config).expect("room");
    let (mut waiting, completion) = impostor(&target, 2, &subsystem());
    assert!(completion.status().is_success(), "it has to show its key yet");
    let mut first = RawHost::on(&target);
    first.open(false, false);
    first.connect_io();
    let _ = login(&mut waiting, &keys);
    waiting.turn();
    assert!(waiting.is_over(), "the host has come meanwhile");
    assert!(!first.is_over() && !first.admin.as_ref().expect("an admin queue").is_over());
}

/// A namespace of two subsystems has hosts that do not know of each other, and so has one that is added with its registrations.
#[test]
fn a_host_of_another_name_is_not_the_registrant() {
    let shared: AnyNamespace = Arc::new(memory()).into();
    let mut first = RawHost::new(shared.clone());
    let target = first.target.clone();
    let other: Nqn = "nqn.2026-01.example.yagura:other".parse().expect("a name");
    target.add_subsystem(other.clone(), "OTHER").and_then(|()| target.add_namespace(&other, 1, shared)).expect("room");
    let (mut admin, completion) = impostor(&target, 2, &other);
    assert!(completion.status().is_success(), "nobody else is there");
    admin.set_configuration(Configuration::ENABLE);
    let mut second = RawHost::on(&target).by_host(2);
    second.open(false, false);
    second.controller = admin.controller;
    let joined = second.connect(1, &other, |_, data| data.hostid = OF_FIRST).expect("answered");
    assert!(joined.status().is_success());
    first.open(false, false);
    first.connect_io();
    assert_eq!(register(&mut first, 7), Status::SUCCESS);
    assert_eq!(acquire(&mut first, &mut [&mut second], ReservationType::ExclusiveAccess, 7), Status::SUCCESS);
    let read = command(NvmOpcode::READ, 1, 0, 1);
    assert_eq!(status(second.send(&read, &[])), Status::RESERVATION_CONFLICT.do_not_retry());
    assert_eq!(status(first.send(&read, &[])), Status::SUCCESS);
}
