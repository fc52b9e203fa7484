//! Reservations between hosts: the commands on the wire, conflicts on every path, what is under way, notifications.

use nvme::Fuse;
use nvme::command::{DATASET_DEALLOCATE, DatasetRange};
use nvme::reservation::{
    AcquireAction, AcquireKeys, PersistChange, RegisterAction, RegisterKeys, RegisteredController, ReleaseAction,
    ReleaseKey, ReservationCommand, ReservationStatus, ReservationType,
};
use zerocopy::{FromBytes, IntoBytes};

use super::super::raw_host::subsystem;
use super::*;
use crate::subsystem::{PortConfig, PortId};
use crate::tcp::{DataPdu, Pdu};

/// The I/O queue of host `number` on the same target.
pub(super) fn another(first: &RawHost, number: u8) -> RawHost {
    let mut session = RawHost::on(&first.target).by_host(number);
    session.open(false, false);
    session.connect_io();
    session.inbox.clear();
    session
}

pub(super) fn reserve(session: &mut RawHost, what: ReservationCommand, keys: &[u8]) -> Status {
    let mut command = what.to_submission(1);
    command.command_id = 0x99.into();
    command.sgl = SglDescriptor::in_capsule(keys.len() as u32);
    status(session.send(&command, keys))
}

pub(super) fn register_as(session: &mut RawHost, action: RegisterAction, current: u64, new: u64) -> Status {
    let what = ReservationCommand::Register { action, ignore_key: false, persist: PersistChange::Keep };
    reserve(session, what, RegisterKeys { current: current.into(), new: new.into() }.as_bytes())
}

pub(super) fn register(session: &mut RawHost, key: u64) -> Status {
    register_as(session, RegisterAction::Register, 0, key)
}

pub(super) fn acquire_command(action: AcquireAction, rtype: ReservationType) -> Submission {
    let mut command = ReservationCommand::Acquire { action, rtype }.to_submission(1);
    command.command_id = 0x99.into();
    command.sgl = SglDescriptor::in_capsule(16);
    command
}

pub(super) fn keys(current: u64, preempt: u64) -> AcquireKeys {
    AcquireKeys { current: current.into(), preempt: preempt.into() }
}

/// Acquires a reservation; the others' queues let go of what they have under way.
pub(super) fn acquire(session: &mut RawHost, others: &mut [&mut RawHost], rtype: ReservationType, key: u64) -> Status {
    let command = acquire_command(AcquireAction::Acquire, rtype);
    session.receive(&session.capsule(&command, keys(key, 0).as_bytes()));
    others.iter_mut().for_each(|other| other.turn());
    session.turn();
    status(session.take_answer(0x99))
}

pub(super) fn preempt(session: &mut RawHost, rtype: ReservationType, key: u64, preempted: u64) -> Status {
    status(session.send(&acquire_command(AcquireAction::Preempt, rtype), keys(key, preempted).as_bytes()))
}

pub(super) fn release(session: &mut RawHost, action: ReleaseAction, rtype: ReservationType, key: u64) -> Status {
    let what = ReservationCommand::Release { action, rtype: Some(rtype) };
    reserve(session, what, ReleaseKey { current: key.into() }.as_bytes())
}

pub(super) fn report(session: &mut RawHost) -> (ReservationStatus, Vec<RegisteredController>) {
    let mut command = ReservationCommand::Report { bytes: 4096, extended: true }.to_submission(1);
    command.sgl = SglDescriptor::transport(4096);
    let (completion, data) = session.send(&command, &[]).expect("answered");
    assert_eq!((completion.status(), data.len()), (Status::SUCCESS, 4096));
    let (head, rest) = ReservationStatus::read_from_prefix(&data).expect("long enough");
    let entries = rest.chunks_exact(64).take(head.controllers.get().into());
    (head, entries.map(|entry| RegisteredController::read_from_bytes(entry).expect("64 bytes")).collect())
}

/// Every command that a reservation can stop, as host 2 sends it; those that write first.
fn outcomes(session: &mut RawHost) -> [(Vec<Status>, usize); 2] {
    let data = pattern(1, 1);
    let mut trim = Submission::nvm(NvmOpcode::DATASET_MANAGEMENT, 4, 1);
    trim.cdw11 = DATASET_DEALLOCATE.into();
    trim.sgl = SglDescriptor::in_capsule(16);
    let range = DatasetRange { blocks: 1.into(), lba: 200.into(), ..DatasetRange::default() };
    // A Copy of block 3 to block 102; it reads as well, and so wants what a write does and more.
    let copy = Submission { sgl: SglDescriptor::in_capsule(32), ..command(NvmOpcode::COPY, 7, 102, 1) };
    let source = [&[0; 8][..], &3u64.to_le_bytes(), &[0; 16]].concat();
    let writes = vec![
        status(session.send(&in_capsule(NvmOpcode::WRITE, 1, 100, 1), &data)),
        status(session.send(&command(NvmOpcode::WRITE_ZEROES, 2, 101, 1), &[])),
        status(session.send(&command(NvmOpcode::FLUSH, 3, 0, 1), &[])),
        status(session.send(&trim, range.as_bytes())),
        status(session.send(&copy, &source)),
        status(session.send(&command(NvmOpcode::WRITE_UNCORRECTABLE, 8, 103, 1), &[])),
    ];
    let read = status(session.send(&command(NvmOpcode::READ, 5, 0, 1), &[]));
    let compare = session.send(&in_capsule(NvmOpcode::COMPARE, 6, 0, 1), &[0; BLOCK]);
    let verify = session.send(&command(NvmOpcode::VERIFY, 9, 0, 1), &[]);
    let (writes_len, reads) = (writes.len(), vec![read, status(compare), status(verify)]);
    [(writes, writes_len), (reads, 3)]
}

fn compare_and_write(session: &mut RawHost, lba: u64, new: &[u8]) -> (Status, Status) {
    let mut compare = in_capsule(NvmOpcode::COMPARE, 1, lba, 1);
    compare.set_fuse(Fuse::First);
    let mut write = in_capsule(NvmOpcode::WRITE, 2, lba, 1);
    write.set_fuse(Fuse::Second);
    let mut stream = session.capsule(&compare, &[0; BLOCK]);
    stream.extend(session.capsule(&write, new));
    session.receive(&stream);
    (status(session.take_answer(1)).kind(), status(session.take_answer(2)).kind())
}

#[test]
fn a_reservation_stops_what_its_type_says_on_every_path() {
    // Type, then whether another registrant and whether a stranger may read and write.
    for (rtype, registrant, stranger) in [
        (ReservationType::WriteExclusive, (true, false), (true, false)),
        (ReservationType::ExclusiveAccess, (false, false), (false, false)),
        (ReservationType::WriteExclusiveRegistrants, (true, true), (true, false)),
        (ReservationType::ExclusiveAccessRegistrants, (true, true), (false, false)),
        (ReservationType::WriteExclusiveAll, (true, true), (true, false)),
        (ReservationType::ExclusiveAccessAll, (true, true), (false, false)),
    ] {
        let mut holder = io_session(false, false);
        let (mut second, mut third) = (another(&holder, 2), another(&holder, 3));
        assert_eq!(register(&mut holder, 1), Status::SUCCESS);
        assert_eq!(register(&mut second, 2), Status::SUCCESS);
        assert_eq!(acquire(&mut holder, &mut [&mut second, &mut third], rtype, 1), Status::SUCCESS);
        for (session, (reads, writes)) in
            [(&mut holder, (true, true)), (&mut second, registrant), (&mut third, stranger)]
        {
            let expected = |allowed: bool, count| {
                vec![if allowed { Status::SUCCESS } else { Status::RESERVATION_CONFLICT.do_not_retry() }; count]
            };
            let [(written, writes_count), (read, reads_count)] = outcomes(session);
            assert_eq!(written, expected(writes, writes_count), "{rtype}");
            assert_eq!(read, expected(reads, reads_count), "{rtype}");
            let pair = match (reads, writes) {
                (true, true) => (Status::SUCCESS, Status::SUCCESS),
                (true, false) => (Status::FAILED_FUSED, Status::RESERVATION_CONFLICT),
                _ => (Status::RESERVATION_CONFLICT, Status::FAILED_FUSED),
            };
            assert_eq!(compare_and_write(session, 9, &[0; BLOCK]), pair, "{rtype}");
        }
        assert_eq!(read(&mut holder, 100, 1), pattern(1, 1));
        assert_eq!(release(&mut holder, ReleaseAction::Release, rtype, 1), Status::SUCCESS);
        assert_eq!(write(&mut third, 0, &pattern(1, 5)), Status::SUCCESS, "the reservation is gone");
    }
}

/// A reservation is a host's, not a controller's: by another port it has the same rights, and others have as few.
#[test]
fn a_host_has_its_rights_at_every_port() {
    let mut holder = io_session(false, false);
    holder.target.add_port(PortConfig::new(PortId(2))).expect("a new port");
    let by_two = RawHost::at(&holder.target, PortId(2));
    let [mut same, mut other] = [by_two, RawHost::at(&holder.target, PortId(2)).by_host(2)];
    for session in [&mut same, &mut other] {
        session.open(false, false);
        session.connect_io();
    }
    assert_eq!(register(&mut holder, 1), Status::SUCCESS);
    let others = &mut [&mut same, &mut other];
    assert_eq!(acquire(&mut holder, others, ReservationType::ExclusiveAccess, 1), Status::SUCCESS);
    for (session, expected) in
        [(&mut holder, Status::SUCCESS), (&mut same, Status::SUCCESS), (&mut other, Status::RESERVATION_CONFLICT)]
    {
        assert_eq!(write(session, 0, &pattern(1, 1)).kind(), expected);
        assert_eq!(status(session.send(&command(NvmOpcode::READ, 1, 0, 1), &[])).kind(), expected);
    }
    assert_eq!(report(&mut same).1.len(), 1, "one host, one entry");
    // What one controller of the host gives up is given up for all.
    let gone = release(&mut same, ReleaseAction::Release, ReservationType::ExclusiveAccess, 1);
    assert_eq!((gone, write(&mut other, 0, &pattern(1, 2))), (Status::SUCCESS, Status::SUCCESS));
}

#[test]
fn data_that_arrives_after_a_reservation_is_not_written() {
    let mut holder = io_session(false, false);
    let mut second = another(&holder, 2);
    assert_eq!(second.send(&command(NvmOpcode::WRITE, 5, 10, 8), &[]), None, "no data has come yet");
    let request = second.inbox.iter().find_map(|(pdu, ..)| match pdu {
        Pdu::R2t(request) => Some(*request),
        _ => None,
    });
    let ttag = request.expect("an R2T came").ttag;
    assert_eq!(register(&mut holder, 1), Status::SUCCESS);
    assert_eq!(acquire(&mut holder, &mut [&mut second], ReservationType::WriteExclusive, 1), Status::SUCCESS);
    let data = pattern(8, 9);
    let pdu = DataPdu { cccid: 5, ttag, offset: 0, bytes: data.len() as u32, last: true, success: false };
    let mut stream = second.encoder.h2c_data(&pdu).to_vec();
    stream.extend_from_slice(&data);
    second.receive(&stream);
    assert_eq!(status(second.take_answer(5)), Status::RESERVATION_CONFLICT.do_not_retry());
    assert_eq!(read(&mut holder, 10, 8), vec![0; 8 * BLOCK]);
}

#[test]
fn a_fused_pair_whose_data_arrives_after_a_reservation_fails_as_a_pair() {
    let mut holder = io_session(false, false);
    let mut second = another(&holder, 2);
    let mut compare = in_capsule(NvmOpcode::COMPARE, 1, 4, 1);
    compare.set_fuse(Fuse::First);
    second.receive(&second.capsule(&compare, &[0; BLOCK]));
    let mut half = in_capsule(NvmOpcode::WRITE, 2, 4, 1);
    half.set_fuse(Fuse::Second);
    let bytes = second.capsule(&half, &pattern(1, 3));
    second.receive(&bytes[..1000]);
    assert_eq!(register(&mut holder, 1), Status::SUCCESS);
    assert_eq!(acquire(&mut holder, &mut [&mut second], ReservationType::WriteExclusive, 1), Status::SUCCESS);
    second.receive(&bytes[1000..]);
    assert_eq!(status(second.take_answer(1)), Status::FAILED_FUSED);
    assert_eq!(status(second.take_answer(2)), Status::RESERVATION_CONFLICT.do_not_retry());
    assert_eq!(read(&mut holder, 4, 1), vec![0; BLOCK]);
}

#[test]
fn a_change_waits_for_commands_that_it_would_have_stopped() {
    for action in [AcquireAction::Acquire, AcquireAction::Preempt, AcquireAction::PreemptAndAbort] {
        let mut first = io_session(false, false);
        let (mut second, mut third) = (another(&first, 2), another(&first, 3));
        assert_eq!((register(&mut first, 1), register(&mut second, 2)), (Status::SUCCESS, Status::SUCCESS));
        if action != AcquireAction::Acquire {
            let others = &mut [&mut first, &mut third];
            assert_eq!(acquire(&mut second, others, ReservationType::WriteExclusive, 2), Status::SUCCESS);
        }
        // One write of host 2 executes, the next waits to; a read of host 3, which loses nothing, executes as well.
        second.stalled = true;
        second.receive(&second.capsule(&in_capsule(NvmOpcode::WRITE, 7, 1, 1), &pattern(1, 7)));
        let executing = second.core.next_operation().expect("it may begin");
        second.receive(&second.capsule(&in_capsule(NvmOpcode::WRITE, 8, 2, 1), &pattern(1, 8)));
        third.stalled = true;
        third.receive(&third.capsule(&command(NvmOpcode::READ, 1, 0, 1), &[]));
        let _reading = third.core.next_operation().expect("it may begin");

        let command = acquire_command(action, ReservationType::WriteExclusive);
        assert_eq!(first.send(&command, keys(1, 2).as_bytes()), None, "host 2's write is under way");
        second.turn();
        third.turn();
        first.turn();
        assert_eq!(first.take_answer(0x99), None);

        let outcome = executed(executing);
        second.core.complete(outcome);
        second.stalled = false;
        second.turn();
        first.turn();
        assert_eq!(status(first.take_answer(0x99)), Status::SUCCESS, "{action:?}");
        assert_eq!(status(second.take_answer(7)), Status::SUCCESS, "what had begun runs to its end");
        let late = match action {
            AcquireAction::PreemptAndAbort => Status::ABORTED_PREEMPT,
            _ => Status::RESERVATION_CONFLICT,
        };
        assert_eq!(status(second.take_answer(8)), late.do_not_retry());
        assert_eq!(read(&mut first, 1, 2), [pattern(1, 7), vec![0; BLOCK]].concat());
    }
}

#[test]
fn preempt_and_abort_ends_commands_that_wait_for_data_or_their_other_half() {
    let mut first = io_session(false, false);
    let mut second = another(&first, 2);
    assert_eq!((register(&mut first, 1), register(&mut second, 2)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(second.send(&command(NvmOpcode::WRITE, 5, 10, 8), &[]), None);
    let mut half = in_capsule(NvmOpcode::COMPARE, 1, 4, 1);
    half.set_fuse(Fuse::First);
    second.receive(&second.capsule(&half, &[0; BLOCK]));
    let command = acquire_command(AcquireAction::PreemptAndAbort, ReservationType::WriteExclusive);
    assert_eq!(first.send(&command, keys(1, 2).as_bytes()), None, "the other queue is asked first");
    second.turn();
    first.turn();
    assert_eq!(status(first.take_answer(0x99)), Status::SUCCESS);
    assert_eq!(status(second.take_answer(1)), Status::ABORTED_PREEMPT.do_not_retry());
    // The second half finds its first gone; the write ends when the data that was asked for is here.
    let mut half = in_capsule(NvmOpcode::WRITE, 2, 4, 1);
    half.set_fuse(Fuse::Second);
    assert_eq!(status(second.send(&half, &[0; BLOCK])), Status::FAILED_FUSED);
    assert_eq!(second.take_answer(5), None);
    assert_eq!(report(&mut first).0.rtype, 0, "there was no reservation to take over");
}

#[test]
fn a_connection_that_goes_does_not_hold_up_a_preemption() {
    let mut first = io_session(false, false);
    let mut second = another(&first, 2);
    assert_eq!((register(&mut first, 1), register(&mut second, 2)), (Status::SUCCESS, Status::SUCCESS));
    second.stalled = true;
    second.receive(&second.capsule(&in_capsule(NvmOpcode::WRITE, 7, 1, 1), &pattern(1, 7)));
    let executing = second.core.next_operation().expect("it may begin");
    let command = acquire_command(AcquireAction::Acquire, ReservationType::ExclusiveAccess);
    assert_eq!(first.send(&command, keys(1, 0).as_bytes()), None);
    drop(executing);
    drop(second);
    first.turn();
    assert_eq!(status(first.take_answer(0x99)), Status::SUCCESS);
}

#[test]
fn the_report_names_registrants_and_holder() {
    let mut first = io_session(false, false);
    let mut second = another(&first, 2);
    assert_eq!((register(&mut first, 0x11), register(&mut second, 0x22)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(acquire(&mut second, &mut [&mut first], ReservationType::ExclusiveAccess, 0x22), Status::SUCCESS);
    let (head, entries) = report(&mut first);
    assert_eq!((head.generation.get(), head.rtype, head.persist), (2, 2, 0));
    let entries: Vec<_> = entries.iter().map(|e| (e.cntlid.get(), e.status, e.key.get(), e.host_id)).collect();
    assert_eq!(entries, [(0xFFFF, 0, 0x11, [1; 16]), (0xFFFF, 1, 0x22, [2; 16])]);
    assert_eq!(release(&mut first, ReleaseAction::Clear, ReservationType::WriteExclusive, 0x11), Status::SUCCESS);
    let (head, entries) = report(&mut first);
    assert_eq!((head.generation.get(), head.rtype, entries.len()), (3, 0, 0));

    // A short buffer gets the beginning; the short structures have no room for this host's identifier.
    let mut command = ReservationCommand::Report { bytes: 8, extended: true }.to_submission(1);
    command.sgl = SglDescriptor::transport(8);
    assert_eq!(first.send(&command, &[]).expect("answered").1, head.as_bytes()[..8]);
    command.cdw11 = 0.into();
    assert_eq!(status(first.send(&command, &[])), Status::HOST_ID_INCONSISTENT.do_not_retry());
    command.cdw11 = 1.into();
    command.cdw10 = (1 << 20).into();
    assert_eq!(status(first.send(&command, &[])), Status::INVALID_FIELD.do_not_retry());
}

#[test]
fn bad_reservation_commands_get_the_specifications_status() {
    let mut session = io_session(false, false);
    let what = ReservationCommand::Register {
        action: RegisterAction::Register,
        ignore_key: false,
        persist: PersistChange::Keep,
    };
    assert_eq!(reserve(&mut session, what, &[1; 12]), Status::DATA_SGL_LENGTH_INVALID.do_not_retry());
    assert_eq!(reserve(&mut session, what, &[0; 16]), Status::INVALID_FIELD.do_not_retry(), "key 0");
    assert_eq!(reserve(&mut session, what, &[1; 16]), Status::SUCCESS);
    assert_eq!(register(&mut session, 9), Status::RESERVATION_CONFLICT.do_not_retry());
    let persistent = ReservationCommand::Register {
        action: RegisterAction::Register,
        ignore_key: false,
        persist: PersistChange::Set,
    };
    assert_eq!(
        reserve(&mut session, persistent, &[1; 16]),
        Status::INVALID_FIELD.do_not_retry(),
        "memory keeps nothing"
    );
    let mut bad = acquire_command(AcquireAction::Acquire, ReservationType::WriteExclusive);
    bad.cdw10 = 0.into();
    assert_eq!(status(session.send(&bad, &[1; 16])), Status::INVALID_FIELD.do_not_retry(), "no such type");
    assert_eq!(
        acquire(&mut session, &mut [], ReservationType::WriteExclusive, 5),
        Status::RESERVATION_CONFLICT.do_not_retry()
    );
    // 16 bytes where 8 would do: older Linux sends them.
    let mut release =
        ReservationCommand::Release { action: ReleaseAction::Release, rtype: Some(ReservationType::WriteExclusive) }
            .to_submission(1);
    release.sgl = SglDescriptor::in_capsule(16);
    assert_eq!(status(session.send(&release, &[1; 16])), Status::SUCCESS);
}

#[test]
fn a_namespace_that_was_removed_takes_its_reservation_along() {
    let mut first = io_session(false, false);
    let mut second = another(&first, 2);
    assert_eq!(register(&mut first, 1), Status::SUCCESS);
    assert_eq!(acquire(&mut first, &mut [&mut second], ReservationType::ExclusiveAccess, 1), Status::SUCCESS);
    first.target.refresh_namespace(&subsystem(), 1).expect("it is there");
    assert_eq!(status(second.send(&command(NvmOpcode::READ, 1, 0, 1), &[])).kind(), Status::RESERVATION_CONFLICT);
    let removed = first.target.remove_namespace(&subsystem(), 1).expect("it is there");
    first.target.add_namespace(&subsystem(), 1, removed).expect("the place is free");
    assert_eq!(status(second.send(&command(NvmOpcode::READ, 1, 0, 1), &[])), Status::SUCCESS);
    assert_eq!(report(&mut second).1.len(), 0);
}
