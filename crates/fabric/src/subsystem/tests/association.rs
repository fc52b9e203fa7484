//! Controllers: Connect and what it refuses, enabling, shutdown, reset, keep alive, the end of an association.

use std::time::Duration;

use nvme::fabrics::{ConnectData, ConnectFields, PropertyFields};
use nvme::opcode::{AdminOpcode, FabricsType};
use nvme::register::{Capabilities, Configuration, offset, status_bits};
use nvme::{Nqn, SglDescriptor};
use zerocopy::IntoBytes;

use super::*;
use crate::subsystem::end::End;
use crate::subsystem::limits::{QUEUE_END_STEP, QUEUE_END_TIME_MAX};
use crate::subsystem::raw_host::subsystem;
use crate::subsystem::{IO_QUEUE_ENTRIES_MAX, IO_QUEUES_MAX};

fn property(kind: FabricsType, at: u32, size: u8, value: u64) -> Submission {
    let fields = PropertyFields { attrib: size, offset: at.into(), value: value.into(), ..PropertyFields::default() };
    let mut command = Submission::fabrics(kind, 5);
    command.sgl = SglDescriptor::transport(0);
    command.as_mut_bytes()[40..].copy_from_slice(fields.as_bytes());
    command
}

fn property_get(session: &mut RawHost, at: u32, size: u8) -> Result<u64, Status> {
    let (completion, _) = session.send(&property(FabricsType::PROPERTY_GET, at, size, 0), &[]).expect("answered");
    if completion.status().is_success() { Ok(completion.result.get()) } else { Err(completion.status().kind()) }
}

fn keep_alive() -> Submission {
    let mut command = Submission::admin(AdminOpcode::KEEP_ALIVE, 6, 0);
    command.sgl = SglDescriptor::transport(0);
    command
}

/// A Connect that must be refused with a parameter: its offset and whether it is in the data.
fn refused(
    session: &mut RawHost,
    qid: u16,
    subsystem: &Nqn,
    change: impl FnOnce(&mut ConnectFields, &mut ConnectData),
) -> (Status, u64) {
    let completion = session.connect(qid, subsystem, change).expect("answered");
    assert!(!completion.status().is_success());
    (completion.status().kind(), completion.result.get())
}

fn opened(like: &RawHost) -> RawHost {
    let mut session = RawHost::on(&like.target);
    session.open(false, false);
    session.controller = like.controller;
    session
}

#[test]
fn connect_names_the_parameter_it_refuses() {
    let session = admin_session();
    let mut other = opened(&session);
    let invalid = Status::CONNECT_INVALID_PARAMETERS;
    let in_data = |at: u64| (invalid, at | 1 << 16);
    let unknown: Nqn = "nqn.2026-01.example.yagura:nobody".parse().unwrap();
    assert_eq!(refused(&mut other, 0, &unknown, |_, _| {}), in_data(256));
    assert_eq!(refused(&mut other, 0, &subsystem(), |_, data| data.subnqn = [b'x'; 256]), in_data(256));
    assert_eq!(refused(&mut other, 0, &subsystem(), |_, data| data.hostnqn = [b'x'; 256]), in_data(512));
    assert_eq!(refused(&mut other, 0, &subsystem(), |_, data| data.cntlid = 1.into()), in_data(16));
    assert_eq!(refused(&mut other, 0, &subsystem(), |_, data| data.hostid = [0; 16]), in_data(0));
    assert_eq!(refused(&mut other, 0, &subsystem(), |fields, _| fields.sqsize = 0.into()), (invalid, 44));
    assert_eq!(refused(&mut other, 0, &subsystem(), |fields, _| fields.sqsize = 4000.into()), (invalid, 44));
    assert_eq!(refused(&mut other, 0, &subsystem(), |fields, _| fields.kato = u32::MAX.into()), (invalid, 48));
    let format = Status::CONNECT_INCOMPATIBLE_FORMAT;
    assert_eq!(refused(&mut other, 0, &subsystem(), |fields, _| fields.recfmt = 1.into()).0, format);

    let io = |session: &mut RawHost, change: fn(&mut ConnectFields, &mut ConnectData)| {
        refused(session, 1, &subsystem(), change)
    };
    assert_eq!(io(&mut other, |_, data| data.cntlid = 999.into()), in_data(16));
    assert_eq!(io(&mut other, |_, data| data.hostid = [2; 16]), in_data(16), "another host's controller");
    assert_eq!(io(&mut other, |fields, _| fields.qid = (IO_QUEUES_MAX + 1).into()), (invalid, 42));
    assert_eq!(io(&mut other, |fields, _| fields.sqsize = IO_QUEUE_ENTRIES_MAX.into()), (invalid, 44));
    assert!(other.connect(1, &subsystem(), |_, _| {}).unwrap().status().is_success(), "and then a good one");
}

/// A host that closes a queue and connects it anew was refused where its Connect was read before the end of the old
/// connection was seen.
#[test]
fn a_queue_that_is_connected_anew_waits_for_the_end_of_the_old_one() {
    let session = admin_session();
    let [mut old, mut new] = [opened(&session), opened(&session)];
    assert!(old.connect(1, &subsystem(), |_, _| {}).unwrap().status().is_success());
    assert_eq!(new.connect(1, &subsystem(), |_, _| {}), None);
    let deadline = new.core.deadline().expect("it looks again");
    assert!(deadline <= new.now + QUEUE_END_STEP);
    new.advance(QUEUE_END_STEP);
    assert_eq!(new.take_answer(0xC000), None, "it is still there");
    drop(old);
    new.advance(QUEUE_END_STEP);
    assert_eq!(status(new.take_answer(0xC000)), Status::SUCCESS);

    let mut second = opened(&session);
    assert_eq!(second.connect(1, &subsystem(), |_, _| {}), None);
    second.advance(QUEUE_END_TIME_MAX);
    assert_eq!(status(second.take_answer(0xC000)), Status::SEQUENCE_ERROR, "and stays");
    drop(new);
    assert!(second.connect(1, &subsystem(), |_, _| {}).unwrap().status().is_success(), "the identifier is free again");
}

#[test]
fn nothing_comes_before_connect_and_connect_only_once() {
    let session = admin_session();
    let mut other = opened(&session);
    assert_eq!(status(other.send(&keep_alive(), &[])).kind(), Status::SEQUENCE_ERROR);
    let short = Submission { sgl: SglDescriptor::in_capsule(512), ..Submission::fabrics(FabricsType::CONNECT, 1) };
    assert_eq!(status(other.send(&short, &[0; 512])).kind(), Status::DATA_SGL_LENGTH_INVALID);
    assert!(other.connect(0, &subsystem(), |_, _| {}).unwrap().status().is_success());
    assert_ne!(other.controller, session.controller);
    assert_eq!(status(other.send(&keep_alive(), &[])).kind(), Status::SEQUENCE_ERROR, "not enabled yet");
    let again = other.connect(0, &subsystem(), |_, _| {}).unwrap();
    assert_eq!(again.status().kind(), Status::SEQUENCE_ERROR);
    let mut disconnect = Submission::fabrics(FabricsType::DISCONNECT, 2);
    disconnect.sgl = SglDescriptor::transport(0);
    assert_eq!(status(other.send(&disconnect, &[])).kind(), Status::INVALID_QUEUE_TYPE);
    let unknown = Submission { sgl: SglDescriptor::transport(0), ..Submission::fabrics(FabricsType(0x77), 3) };
    assert_eq!(status(other.send(&unknown, &[])).kind(), Status::INVALID_OPCODE);
}

#[test]
fn properties_are_read_and_written() {
    let mut session = admin_session();
    let capabilities = Capabilities(property_get(&mut session, offset::CAP, 1).unwrap());
    assert_eq!(capabilities.queue_entries_max(), u32::from(IO_QUEUE_ENTRIES_MAX));
    assert_eq!(capabilities.0 >> 59 & 3, 1, "ready with media");
    assert_eq!(property_get(&mut session, offset::CRTO, 0), Ok(capabilities.timeout_500ms().into()));
    assert_eq!(property_get(&mut session, offset::VS, 0), Ok(u64::from(nvme::VERSION)));
    assert_eq!(property_get(&mut session, offset::CC, 0), Ok(u64::from(Configuration::ENABLE.0)));
    assert_eq!(property_get(&mut session, offset::CSTS, 0), Ok(u64::from(status_bits::READY)));
    for (at, size) in [(offset::CAP, 0), (offset::CC, 1), (offset::CSTS, 2), (0x999, 0)] {
        assert_eq!(property_get(&mut session, at, size), Err(Status::INVALID_FIELD));
    }
    let set = property(FabricsType::PROPERTY_SET, offset::CSTS, 0, 1);
    assert_eq!(status(session.send(&set, &[])).kind(), Status::INVALID_FIELD);
    session.set_configuration(Configuration(0));
    assert_eq!(property_get(&mut session, offset::CSTS, 0), Ok(0));
    session.set_configuration(Configuration(1)); // entry sizes 0
    assert_eq!(property_get(&mut session, offset::CSTS, 0), Ok(u64::from(status_bits::FATAL)));
}

#[test]
fn a_shutdown_completes() {
    let mut session = admin_session();
    session.set_configuration(Configuration::ENABLE.with_normal_shutdown());
    let csts = property_get(&mut session, offset::CSTS, 0).unwrap() as u32;
    assert_eq!(csts & status_bits::SHUTDOWN_MASK, status_bits::SHUTDOWN_COMPLETE);
}

#[test]
fn a_reset_ends_the_io_queues_and_keeps_the_admin_queue() {
    let mut session = io_session(false, false);
    let admin = session.admin.as_mut().unwrap();
    admin.set_configuration(Configuration(0));
    session.turn();
    assert_eq!(session.core.ended(), Some(&End::ControllerReset));
    let admin = session.admin.as_mut().unwrap();
    assert!(admin.core.ended().is_none());
    admin.set_configuration(Configuration::ENABLE);
    let mut again = opened(&session);
    assert_eq!(again.connect(2, &subsystem(), |_, _| {}).unwrap().status(), Status::SUCCESS);
}

/// A host that reads CSTS.RDY as 0 sends its writes over a new association at once. Were that told while a queue on another
/// reactor has yet to hear of the reset, an old write could begin after a new one was acknowledged, and cover it.
#[test]
fn a_reset_is_complete_when_nothing_of_before_it_can_begin() {
    let mut session = io_session(false, false);
    session.stalled = true;
    session.receive(&session.capsule(&in_capsule(NvmOpcode::WRITE, 1, 0, 1), &pattern(1, 1)));
    assert!(session.core.has_operations());
    let mut admin = session.admin.take().unwrap();
    admin.set_configuration(Configuration(0));
    let ready = Ok(u64::from(status_bits::READY));
    assert_eq!(property_get(&mut admin, offset::CSTS, 0), ready, "the queue has not heard of it");
    assert_eq!(refused(&mut opened(&session), 2, &subsystem(), |_, _| {}).0, Status::SEQUENCE_ERROR);
    session.core.poll(session.now);
    assert_eq!(session.core.ended(), Some(&End::ControllerReset));
    assert_eq!(property_get(&mut admin, offset::CSTS, 0), ready, "what executes has not been let go yet");
    drop(session);
    assert_eq!(property_get(&mut admin, offset::CSTS, 0), Ok(0));
}

/// A queue that is disconnected, and whose host does not read the answer, holds up no reset.
#[test]
fn a_reset_does_not_wait_for_a_goodbye_to_be_read() {
    let mut session = io_session(false, false);
    let goodbye = session.capsule(&Submission::fabrics(FabricsType::DISCONNECT, 9), &[]);
    session.core.receive(&goodbye, session.now);
    assert!(session.core.has_output() && session.core.ended().is_none(), "the answer goes first");
    session.admin.as_mut().unwrap().set_configuration(Configuration(0));
    session.core.poll(session.now);
    assert_eq!(session.core.ended(), Some(&End::ControllerReset));
}

#[test]
fn an_io_queue_needs_a_controller_that_is_ready() {
    let mut session = admin_session();
    session.set_configuration(Configuration(0));
    let mut io = opened(&session);
    assert_eq!(refused(&mut io, 1, &subsystem(), |_, _| {}).0, Status::SEQUENCE_ERROR);
}

/// A host that is on no list may do without keep alive as any other: it is the network that says when it has died. Were it ended
/// for what its admin queue has not said, it would be beside its I/O, and a disk that nobody reads for a while would be cut off.
#[test]
fn a_guest_without_keep_alive_stays_with_its_idle_disk() {
    let day = Duration::from_secs(24 * 3600);
    let mut session = RawHost::new(memory());
    session.open(false, false);
    session.connect_io();
    for _ in 0..3 {
        let admin = session.admin.as_mut().expect("it holds the controller");
        admin.advance(day);
        assert!(!admin.is_over() && admin.core.deadline().is_none());
        session.advance(day);
        assert_eq!(read(&mut session, 0, 1).len(), BLOCK);
    }
}

#[test]
fn keep_alive_holds_the_association_and_its_absence_ends_it() {
    let mut session = RawHost::new(memory());
    session.open(false, false);
    session.connect(0, &subsystem(), |fields, _| fields.kato = 1000.into());
    session.set_configuration(Configuration::ENABLE);
    let mut io = opened(&session);
    io.connect(1, &subsystem(), |_, _| {});
    for _ in 0..5 {
        session.advance(Duration::from_millis(900));
        assert_eq!(status(session.send(&keep_alive(), &[])), Status::SUCCESS);
    }
    assert_eq!(session.core.deadline(), Some(session.now + Duration::from_secs(1)));
    session.advance(Duration::from_millis(999));
    assert!(session.core.ended().is_none());
    session.advance(Duration::from_millis(1));
    assert_eq!(session.core.ended(), Some(&End::KeepAliveExpired));
    io.turn();
    assert_eq!(io.core.ended(), Some(&End::AssociationEnded));
    let controller = session.controller;
    drop(session);
    let mut late = opened(&io);
    late.controller = controller;
    let (kind, _) = refused(&mut late, 2, &subsystem(), |_, _| {});
    assert_eq!(kind, Status::CONNECT_INVALID_PARAMETERS, "the controller is gone");
}

/// A command whose association has ended must not take effect: the host has been told, or will conclude, that it did not.
#[test]
fn nothing_is_executed_after_the_association_has_ended() {
    let mut session = io_session(false, false);
    session.stalled = true;
    session.receive(&session.capsule(&in_capsule(NvmOpcode::WRITE, 1, 0, 1), &pattern(1, 1)));
    assert!(session.core.has_operations());
    session.admin = None;
    session.core.poll(session.now);
    assert_eq!(session.core.ended(), Some(&End::AssociationEnded));
    assert!(session.core.next_operation().is_none());
}

/// The end comes while a queue is in the middle of a turn, and has commands that have not begun.
#[test]
fn nothing_begins_after_an_end_that_the_queue_has_yet_to_hear_of() {
    for reset in [false, true] {
        let mut session = io_session(false, false);
        session.stalled = true;
        session.receive(&session.capsule(&in_capsule(NvmOpcode::WRITE, 1, 0, 1), &pattern(1, 1)));
        assert!(session.core.has_operations());
        match reset {
            true => drop(session.admin.as_mut().unwrap().set_configuration(Configuration(0))),
            false => session.admin = None,
        }
        assert!(session.core.next_operation().is_none());
        let end = if reset { End::ControllerReset } else { End::AssociationEnded };
        assert_eq!((session.core.ended(), session.core.has_operations()), (Some(&end), false));
    }
}

#[test]
fn a_queue_can_be_disconnected_alone() {
    let mut session = io_session(false, false);
    let mut disconnect = Submission::fabrics(FabricsType::DISCONNECT, 2);
    disconnect.sgl = SglDescriptor::transport(0);
    let bad = Submission { cdw10: 1.into(), ..disconnect };
    assert_eq!(status(session.send(&bad, &[])).kind(), Status::CONNECT_INCOMPATIBLE_FORMAT);
    assert_eq!(status(session.send(&disconnect, &[])), Status::SUCCESS);
    assert_eq!(session.core.ended(), Some(&End::Disconnected));
    session.admin.as_mut().unwrap().turn();
    assert!(session.admin.as_ref().unwrap().core.ended().is_none());
}

#[test]
fn a_handshake_has_to_end() {
    let mut silent = RawHost::new(memory());
    silent.advance(Duration::from_secs(9));
    assert!(silent.core.ended().is_none());
    silent.advance(Duration::from_secs(1));
    assert_eq!(silent.core.ended(), Some(&End::HandshakeTimeout));
    let mut half = RawHost::new(memory());
    half.open(false, false);
    half.advance(Duration::from_secs(10));
    assert_eq!(half.core.ended(), Some(&End::HandshakeTimeout));
    let mut done = admin_session();
    done.advance(Duration::from_secs(1000));
    assert!(done.core.ended().is_none(), "a connected queue may be quiet as long as it likes");
}

/// A host that says goodbye and does not read the answer keeps its connection no longer than its association.
#[test]
fn a_disconnected_queue_ends_with_its_association_at_the_latest() {
    let mut session = io_session(false, false);
    let goodbye = session.capsule(&Submission::fabrics(FabricsType::DISCONNECT, 9), &[]);
    session.core.receive(&goodbye, session.now);
    assert!(session.core.has_output() && session.core.ended().is_none(), "the answer goes first");
    drop(session.admin.take());
    session.core.poll(session.now);
    assert_eq!(session.core.ended(), Some(&End::AssociationEnded));
}
