//! What has not begun when its right ends: the statuses, the buffers, and who waits for what executes.

use device::AnyNamespace;
use nvme::identify::IdentifyNamespace;
use nvme::{AnaState, Fuse, SglDescriptor};

use super::io::transfer;
use super::management::{active, admin_of, attach, create, detach, target, wanted};
use super::*;
use crate::subsystem::raw_host::subsystem;
use crate::subsystem::{PortId, Target};

type End = (fn(&Target), Status);

/// Ends the right of every host to namespace 1, in each way there is.
const ENDS: [End; 4] = [
    (|target| drop(removed(target)), Status::INVALID_NAMESPACE.do_not_retry()),
    (
        |target| {
            // Another one has its identifier when the data comes.
            drop(removed(target));
            target.add_namespace(&subsystem(), 1, memory()).expect("free");
        },
        Status::INVALID_NAMESPACE.do_not_retry(),
    ),
    (|target| set_state(target, AnaState::Inaccessible), Status::ANA_INACCESSIBLE),
    (|target| set_state(target, AnaState::Change), Status::ANA_TRANSITION),
];

fn removed(target: &Target) -> AnyNamespace {
    target.remove_namespace(&subsystem(), 1).expect("it is there")
}

fn set_state(target: &Target, state: AnaState) {
    target.set_ana_state(&subsystem(), PortId(1), 1, state).expect("it can be");
}

fn held(session: &RawHost) -> u64 {
    session.core.slots.iter().map(|(_, entry)| u64::from(entry.charged + entry.in_capsule)).sum()
}

#[test]
fn a_command_that_waits_for_data_or_its_turn_never_begins() {
    for (end, expected) in ENDS {
        let mut session = io_session(false, true);
        let kept = session.target.namespace(&subsystem(), 1).expect("it is there");
        session.stalled = true;
        // By R2T, with a part of the data here; half a capsule; complete, but not begun.
        session.receive(&session.capsule(&command(NvmOpcode::WRITE, 5, 0, 16), &[]));
        session.receive(&session.capsule(&in_capsule(NvmOpcode::WRITE, 6, 20, 1), &pattern(1, 6)));
        let capsule = session.capsule(&in_capsule(NvmOpcode::WRITE, 7, 21, 1), &pattern(1, 7));
        session.receive(&capsule[..2000]);
        assert!(held(&session) > 0);
        end(&session.target);
        session.turn();
        assert_eq!(held(&session), 0, "buffers and their room go at once");
        assert!(session.core.slots.iter().all(|(_, entry)| entry.addressed.is_none()), "and so does the namespace");
        session.stalled = false;
        session.turn();
        assert_eq!(status(session.take_answer(6)), expected);
        assert_eq!((session.take_answer(5), session.take_answer(7)), (None, None), "their data is owed");
        session.receive(&capsule[2000..]);
        transfer(&mut session, 5, &pattern(16, 5), 10_000);
        assert_eq!([5, 7].map(|id| status(session.take_answer(id))), [expected; 2]);
        let (result, data) =
            crate::fuzz::poll_once(device::Namespace::read(&kept, device::Lba(0), engine::Buf::with_len(32 * BLOCK)))
                .expect("memory never waits");
        assert!(result.is_ok() && data.iter().all(|&byte| byte == 0), "written all the same");
        assert!(session.core.ended().is_none());
    }
}

/// A buffer that the kernel receives into can't be given back: neither can its room.
#[test]
fn a_buffer_that_is_lent_to_a_receive_goes_when_it_comes_back() {
    let mut session = io_session(false, false);
    session.receive(&session.capsule(&command(NvmOpcode::WRITE, 5, 0, 16), &[]));
    let found = session.inbox.iter().find_map(|(pdu, ..)| match pdu {
        crate::tcp::Pdu::R2t(request) => Some(*request),
        _ => None,
    });
    let ttag = found.expect("an R2T came").ttag;
    let data = pattern(16, 5);
    let pdu = crate::tcp::DataPdu { cccid: 5, ttag, offset: 0, bytes: data.len() as u32, last: true, success: false };
    session.receive(&session.encoder.h2c_data(&pdu));
    let mut lent = session.core.take_direct().expect("worth a receive of its own");
    drop(removed(&session.target));
    session.turn();
    assert_eq!(held(&session), data.len() as u64);
    lent.extend_from_slice(&data[..40_000]);
    session.core.received_directly(lent, 40_000, session.now);
    assert_eq!(held(&session), 0);
    assert!(session.core.take_direct().is_none());
    session.receive(&data[40_000..]);
    assert_eq!(status(session.take_answer(5)), Status::INVALID_NAMESPACE.do_not_retry());
}

#[test]
fn neither_half_of_a_pair_begins_when_its_right_ends() {
    for complete in [false, true] {
        for (end, expected) in ENDS {
            let mut session = io_session(false, false);
            session.stalled = true;
            let half = |opcode, id, fuse| {
                let mut half = command(opcode, id, 0, 1);
                half.set_fuse(fuse);
                half
            };
            session.receive(&session.capsule(&half(NvmOpcode::COMPARE, 1, Fuse::First), &[]));
            session.receive(&session.capsule(&half(NvmOpcode::WRITE, 2, Fuse::Second), &[]));
            transfer(&mut session, 1, &vec![0; BLOCK], BLOCK);
            if complete {
                transfer(&mut session, 2, &pattern(1, 2), BLOCK);
            }
            end(&session.target);
            session.turn();
            assert!(session.core.next_operation().is_none());
            if !complete {
                transfer(&mut session, 2, &pattern(1, 2), BLOCK);
            }
            assert_eq!([1, 2].map(|id| status(session.take_answer(id))), [expected, Status::FAILED_FUSED]);
        }
    }
}

/// A first half that is alone when its right ends takes the second one with it, though that comes to a namespace that is there.
#[test]
fn a_lone_half_that_has_lost_its_right_fails_the_second() {
    let mut session = io_session(false, false);
    let half = |opcode, id, fuse| {
        let mut half = Submission { sgl: SglDescriptor::in_capsule(4096), ..command(opcode, id, 0, 1) };
        half.set_fuse(fuse);
        half
    };
    assert_eq!(session.send(&half(NvmOpcode::COMPARE, 1, Fuse::First), &[0; BLOCK]), None);
    (ENDS[1].0)(&session.target);
    session.turn();
    assert_eq!(status(session.take_answer(1)), ENDS[1].1);
    assert_eq!(status(session.send(&half(NvmOpcode::WRITE, 2, Fuse::Second), &[0; BLOCK])), Status::FAILED_FUSED);
}

/// Whoever has detached a namespace from another host may take it for its own when that is answered: a write of the other host
/// that had begun must not land afterwards.
#[test]
fn a_detach_waits_for_what_executes() {
    let (target, _) = target();
    let mut admin = admin_of(&target, 1);
    let mut other = RawHost::on(&target).by_host(2);
    other.open(false, false);
    other.connect_io();
    let nsid = create(&mut admin, &IdentifyNamespace { nmic: 1, ..wanted(8) }).expect("made");
    assert_eq!(attach(&mut admin, nsid, &[other.controller]), Ok(()));
    other.stalled = true;
    let write = Submission { nsid: nsid.into(), ..in_capsule(NvmOpcode::WRITE, 7, 1, 1) };
    other.receive(&other.capsule(&write, &pattern(1, 7)));
    let executing = other.core.next_operation().expect("it may begin");
    assert_eq!(detach_under_way(&mut admin, nsid, other.controller), None, "a write is under way");
    other.turn();
    admin.turn();
    assert_eq!(admin.take_answer(9), None);
    let outcome = executed(executing);
    other.core.complete(outcome);
    other.turn();
    admin.turn();
    assert_eq!(status(admin.take_answer(9)), Status::SUCCESS);
    assert_eq!(status(other.take_answer(7)), Status::SUCCESS, "it had begun");
    assert_eq!(active(other.admin.as_mut().expect("it has one")), [1]);
    assert_eq!(detach(&mut admin, nsid, &[other.controller]), Err(Status::NAMESPACE_NOT_ATTACHED));
}

fn detach_under_way(admin: &mut RawHost, nsid: u32, controller: u16) -> Option<Status> {
    let (command, data) = super::management::detach_command(nsid, &[controller]);
    admin.send(&command, &data).map(|answer| answer.0.status())
}

/// A host that owes data for two minutes loses its connection: by R2T, in a capsule, or the other half of a pair.
#[test]
fn a_host_that_owes_data_for_too_long_is_let_go() {
    let mut first = in_capsule(NvmOpcode::COMPARE, 5, 0, 1);
    first.set_fuse(Fuse::First);
    let session = io_session(false, false);
    let capsule = session.capsule(&in_capsule(NvmOpcode::WRITE, 5, 0, 1), &pattern(1, 1));
    let owing = [
        session.capsule(&command(NvmOpcode::WRITE, 5, 0, 16), &[]),
        capsule[..2000].to_vec(),
        session.capsule(&first, &pattern(1, 1)),
    ];
    let second = std::time::Duration::from_secs(1);
    for bytes in owing {
        let mut session = io_session(false, false);
        session.advance(100 * second);
        session.receive(&bytes);
        session.advance(119 * second);
        assert!(session.core.ended().is_none());
        session.advance(2 * second);
        assert_eq!(session.core.ended(), Some(&crate::subsystem::end::End::DataWithheld));
    }
    let mut session = io_session(false, false);
    for _ in 0..5 {
        session.receive(&capsule[..2000]);
        session.advance(100 * second);
        session.receive(&capsule[2000..]);
        assert_eq!(status(session.take_answer(5)), Status::SUCCESS);
    }
    session.advance(1000 * second);
    assert!(session.core.ended().is_none(), "an idle queue owes nothing");
}
