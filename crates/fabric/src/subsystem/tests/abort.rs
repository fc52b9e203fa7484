//! Abort of commands on I/O queues: two connections of one controller (NVMe Base 2.0c §5.1).

use nvme::Fuse;
use nvme::opcode::AdminOpcode;
use nvme::register::Configuration;

use super::io::transfer;
use super::*;
use crate::subsystem::io::Outcome;
use crate::subsystem::limits::ABORTS_MAX;

fn abort(id: u16, sqid: u16, command_id: u16) -> Submission {
    let mut command = Submission::admin(AdminOpcode::ABORT, id, 0);
    command.cdw10 = (u32::from(command_id) << 16 | u32::from(sqid)).into();
    command.sgl = SglDescriptor::transport(0);
    command
}

/// Sends an Abort on the admin queue, and lets both queues work. Its result, if it was answered.
fn aborted(session: &mut RawHost, id: u16, command_id: u16) -> Option<u64> {
    let admin = session.admin.as_mut().expect("an I/O session has its admin session");
    assert_eq!(admin.send(&abort(id, 1, command_id), &[]), None, "the other queue has to be asked first");
    session.turn();
    outcome(session, id)
}

fn outcome(session: &mut RawHost, id: u16) -> Option<u64> {
    let admin = session.admin.as_mut().expect("an I/O session has its admin session");
    admin.turn();
    let (completion, _) = admin.take_answer(id)?;
    assert_eq!(completion.status(), Status::SUCCESS);
    Some(completion.result.get() & 1)
}

fn fused(opcode: NvmOpcode, id: u16, fuse: Fuse) -> Submission {
    let mut command = command(opcode, id, 0, 1);
    command.set_fuse(fuse);
    command
}

#[test]
fn a_command_that_waits_for_buffers_is_aborted_at_once() {
    let mut session = io_session(false, false);
    for id in 0..18 {
        session.receive(&session.capsule(&command(NvmOpcode::WRITE, id, 0, 256), &[]));
    }
    assert_eq!(aborted(&mut session, 1, 16), Some(0));
    assert_eq!(status(session.take_answer(16)), Status::ABORT_REQUESTED);
    // The others go on, and the one behind it takes its turn.
    for id in (0..16).chain([17]) {
        transfer(&mut session, id, &pattern(256, id as u8), 1 << 20);
        assert_eq!(status(session.take_answer(id)), Status::SUCCESS);
    }
    assert_eq!(aborted(&mut session, 2, 16), Some(1), "it is no more");
}

/// Its data was asked for and will come: until then the command keeps its buffer, then it says that it was aborted.
#[test]
fn a_command_whose_data_is_on_its_way_is_aborted_when_that_has_come() {
    let mut session = io_session(false, true);
    session.receive(&session.capsule(&command(NvmOpcode::WRITE, 5, 0, 16), &[]));
    assert_eq!(aborted(&mut session, 1, 5), None, "its answer comes first");
    assert_eq!(session.take_answer(5), None);
    assert_eq!(aborted(&mut session, 2, 5), Some(1), "a second Abort aborts nothing");
    transfer(&mut session, 5, &pattern(16, 1), 10_000);
    assert_eq!(status(session.take_answer(5)), Status::ABORT_REQUESTED);
    assert_eq!(outcome(&mut session, 1), Some(0));
    assert_eq!(read(&mut session, 0, 16), vec![0; 16 * BLOCK], "nothing was written");
}

#[test]
fn a_command_that_executes_runs_to_its_end() {
    let mut session = io_session(false, false);
    session.stalled = true;
    session.receive(&session.capsule(&in_capsule(NvmOpcode::WRITE, 5, 0, 1), &pattern(1, 1)));
    let slot = session.core.next_operation().expect("a write").slot;
    assert_eq!(aborted(&mut session, 1, 5), Some(1), "it was not aborted");
    session.core.complete(Outcome { slot, result: Ok(()), status: None, data: Default::default(), dwords: 0 });
    session.turn();
    assert_eq!(status(session.take_answer(5)), Status::SUCCESS);
}

#[test]
fn a_command_that_is_ready_and_has_not_begun_never_begins() {
    let mut session = io_session(false, false);
    session.stalled = true;
    session.receive(&session.capsule(&in_capsule(NvmOpcode::WRITE, 5, 0, 1), &pattern(1, 1)));
    assert_eq!(aborted(&mut session, 1, 5), Some(0));
    assert_eq!(status(session.take_answer(5)), Status::ABORT_REQUESTED);
    assert!(session.core.next_operation().is_none());
}

/// Whichever half is aborted, in whichever state the pair is: the other fails with it and nothing is compared or written.
#[test]
fn a_fused_pair_is_aborted_as_a_pair() {
    for (target, other) in [(1, 2), (2, 1)] {
        for stalled in [false, true] {
            let mut session = io_session(false, false);
            session.stalled = stalled;
            session.receive(&session.capsule(&fused(NvmOpcode::COMPARE, 1, Fuse::First), &[]));
            session.receive(&session.capsule(&fused(NvmOpcode::WRITE, 2, Fuse::Second), &[]));
            if stalled {
                transfer(&mut session, 1, &vec![0; BLOCK], BLOCK);
                transfer(&mut session, 2, &pattern(1, 2), BLOCK);
                assert_eq!(aborted(&mut session, 1, target), Some(0), "all data is here");
            } else {
                assert_eq!(aborted(&mut session, 1, target), None);
                transfer(&mut session, other, &vec![0; BLOCK], BLOCK);
                transfer(&mut session, target, &vec![0; BLOCK], BLOCK);
                assert_eq!(outcome(&mut session, 1), Some(0));
            }
            assert_eq!(status(session.take_answer(target)), Status::ABORT_REQUESTED);
            assert_eq!(status(session.take_answer(other)), Status::FAILED_FUSED);
            assert!(session.core.next_operation().is_none());
        }
    }
}

/// A first half that is aborted while it waits for its second one: the second finds a pair that has failed.
#[test]
fn a_first_half_alone_is_aborted_and_fails_its_second() {
    let mut session = io_session(false, false);
    let data = vec![0; BLOCK];
    let half = |opcode, id, fuse| Submission { sgl: SglDescriptor::in_capsule(4096), ..fused(opcode, id, fuse) };
    assert_eq!(session.send(&half(NvmOpcode::COMPARE, 1, Fuse::First), &data), None);
    assert_eq!(aborted(&mut session, 1, 1), Some(0));
    assert_eq!(status(session.take_answer(1)), Status::ABORT_REQUESTED);
    let second = session.send(&half(NvmOpcode::WRITE, 2, Fuse::Second), &data);
    assert_eq!(status(second), Status::FAILED_FUSED);
}

#[test]
fn what_is_not_there_is_not_aborted() {
    let mut session = io_session(false, false);
    assert_eq!(aborted(&mut session, 1, 77), Some(1), "no such command");
    let admin = session.admin.as_mut().unwrap();
    for sqid in [2, 9, u16::MAX] {
        let (completion, _) = admin.send(&abort(2, sqid, 1), &[]).expect("at once: there is no such queue");
        assert_eq!((completion.status(), completion.result.get()), (Status::SUCCESS, 1));
    }
}

/// The I/O connection may be slow to look; what waits for it is bounded, and is answered also when it ends instead.
#[test]
fn aborts_under_way_are_bounded_and_all_answered() {
    let mut session = io_session(false, false);
    let mut admin = session.admin.take().unwrap();
    let limit = u16::from(ABORTS_MAX);
    for id in 0..limit {
        assert_eq!(admin.send(&abort(id, 1, 1), &[]), None);
    }
    assert_eq!(status(admin.send(&abort(50, 1, 1), &[])).kind(), Status::ABORT_LIMIT_EXCEEDED);
    drop(session);
    admin.turn();
    for id in 0..limit {
        let (completion, _) = admin.take_answer(id).expect("the end of the queue answers it");
        assert_eq!((completion.status(), completion.result.get()), (Status::SUCCESS, 1));
    }
}

#[test]
fn a_reset_leaves_no_abort_waiting() {
    let session = &mut io_session(false, false);
    session.receive(&session.capsule(&command(NvmOpcode::WRITE, 5, 0, 16), &[]));
    assert_eq!(aborted(session, 7, 5), None);
    let admin = session.admin.as_mut().unwrap();
    admin.set_configuration(Configuration(0));
    assert_eq!(status(admin.take_answer(7)), Status::ABORT_REQUESTED);
    admin.set_configuration(Configuration::ENABLE);
    session.turn();
    let mut admin = session.admin.take().unwrap();
    session.core.poll(session.now);
    admin.turn();
    assert_eq!(admin.take_answer(7), None, "an outcome that comes late is nobody's");
}
