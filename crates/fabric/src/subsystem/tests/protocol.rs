//! PDUs that end a connection, and what the C2HTermReq says.

use std::time::Duration;

use nvme::tcp::{FatalStatus, PduType};

use super::*;
use crate::subsystem::end::End;
use crate::tcp::{DataPdu, Encoder, FatalError, IcReq, Pdu, ReadyToTransfer};

/// Sends bytes that must end the connection: the status and the information of the C2HTermReq.
fn terminated(session: &mut RawHost, bytes: &[u8]) -> (FatalStatus, u32) {
    session.receive(bytes);
    assert!(session.core.ended().is_none(), "the host has a while to read the last word");
    let Some((Pdu::C2hTermReq(term), header, _)) = session.inbox.pop() else { panic!("no C2HTermReq came last") };
    assert_eq!(header.len(), term.data_bytes as usize);
    assert!(!header.is_empty(), "the bad header is told (NVMe/TCP 1.0 §3.6.2.5)");
    assert!(bytes.windows(header.len()).any(|window| window == header), "not the bad header");
    session.advance(Duration::from_secs(1));
    assert!(matches!(session.core.ended(), Some(End::Protocol(_))));
    assert!(session.core.ended().is_some_and(End::is_fault));
    (term.status, term.information)
}

fn requested(session: &mut RawHost, id: u16, blocks: u32) -> ReadyToTransfer {
    session.receive(&session.capsule(&command(NvmOpcode::WRITE, id, 0, blocks), &[]));
    match session.inbox.pop() {
        Some((Pdu::R2t(request), ..)) => request,
        other => panic!("no R2T but {other:?}"),
    }
}

fn answer_to(request: ReadyToTransfer) -> DataPdu {
    let (cccid, ttag, bytes) = (request.cccid, request.ttag, request.bytes);
    DataPdu { cccid, ttag, offset: 0, bytes, last: true, success: false }
}

fn h2c(session: &RawHost, pdu: DataPdu) -> Vec<u8> {
    let mut bytes = session.encoder.h2c_data(&pdu).to_vec();
    bytes.extend(vec![0; pdu.bytes as usize]);
    bytes
}

/// What is wrong with a PDU.
type Change = fn(&mut DataPdu);

#[test]
fn transfers_must_be_what_was_asked_for() {
    let field = FatalStatus::INVALID_HEADER_FIELD;
    let range = FatalStatus::DATA_OUT_OF_RANGE;
    let cases: [(Change, (FatalStatus, u32)); 7] = [
        (|pdu| pdu.ttag += 1, (field, 10)),
        (|pdu| pdu.cccid += 1, (field, 8)),
        (|pdu| pdu.offset = 4096, (range, 0)),
        (|pdu| pdu.bytes += 4, (range, 0)),
        (|pdu| pdu.last = false, (field, 1)),
        (|pdu| pdu.bytes -= 4, (field, 1)),
        (|pdu| pdu.bytes = 2 << 20, (FatalStatus::LIMIT_EXCEEDED, 0)),
    ];
    for (change, expected) in cases {
        let mut session = io_session(false, false);
        let mut pdu = answer_to(requested(&mut session, 1, 4));
        change(&mut pdu);
        let bytes = h2c(&session, pdu);
        assert_eq!(terminated(&mut session, &bytes), expected);
    }
}

#[test]
fn data_that_nobody_asked_for_ends_the_connection() {
    let mut session = io_session(false, false);
    let request = requested(&mut session, 1, 1);
    let bytes = h2c(&session, answer_to(request));
    session.receive(&bytes);
    assert_eq!(status(session.take_answer(1)), Status::SUCCESS);
    assert_eq!(terminated(&mut session, &bytes), (FatalStatus::INVALID_HEADER_FIELD, 10), "the same data again");
}

#[test]
fn more_commands_than_entries_end_the_connection() {
    let mut session = io_session(false, false);
    for id in 0..32 {
        session.receive(&session.capsule(&command(NvmOpcode::WRITE, id, 0, 4), &[]));
    }
    let bytes = session.capsule(&command(NvmOpcode::READ, 99, 0, 1), &[]);
    assert_eq!(terminated(&mut session, &bytes), (FatalStatus::LIMIT_EXCEEDED, 0));
}

#[test]
fn a_connection_opens_once_and_first() {
    let request = Encoder::ic_req(&IcReq { alignment_code: 0, header_digest: false, data_digest: false, maxr2t: 0 });
    let mut session = RawHost::new(memory());
    let early = session.capsule(&command(NvmOpcode::READ, 1, 0, 1), &[]);
    assert_eq!(terminated(&mut session, &early), (FatalStatus::SEQUENCE_ERROR, 0));
    let mut session = io_session(false, false);
    assert_eq!(terminated(&mut session, &request), (FatalStatus::SEQUENCE_ERROR, 0));
    let mut session = RawHost::new(memory());
    let mut newer = request.to_vec();
    newer[8] = 1;
    assert_eq!(terminated(&mut session, &newer), (FatalStatus::UNSUPPORTED_PARAMETER, 8));
}

#[test]
fn a_capsule_over_its_size_ends_the_connection() {
    let mut session = io_session(false, false);
    let bytes = session.capsule(&in_capsule(NvmOpcode::WRITE, 1, 0, 5), &pattern(5, 0));
    assert_eq!(terminated(&mut session, &bytes), (FatalStatus::INVALID_HEADER_FIELD, 4));
    let mut session = admin_session();
    let bytes = session.capsule(&in_capsule(NvmOpcode::WRITE, 1, 0, 3), &pattern(3, 0));
    assert_eq!(terminated(&mut session, &bytes), (FatalStatus::INVALID_HEADER_FIELD, 4), "8 KiB on the admin queue");
}

#[test]
fn a_wrong_header_digest_ends_the_connection() {
    let mut session = io_session(true, false);
    let mut bytes = session.capsule(&command(NvmOpcode::READ, 1, 0, 1), &[]);
    bytes[50] ^= 1;
    assert_eq!(terminated(&mut session, &bytes).0, FatalStatus::HEADER_DIGEST_ERROR);
}

#[test]
fn the_hosts_last_word_ends_the_connection_at_once() {
    let mut session = io_session(false, false);
    let error = FatalError::sequence(PduType::R2T, "a test");
    session.receive(&Encoder::term_req(PduType::H2C_TERM_REQ, &error, &[1; 24]));
    assert!(matches!(session.core.ended(), Some(End::HostTerminated(term)) if term.status == error.status));
    assert!(session.inbox.is_empty());
}

/// Commands that arrived with the bad PDU, or wait for data, must not run once the connection is condemned.
#[test]
fn nothing_is_executed_after_a_bad_pdu() {
    let mut session = io_session(false, false);
    let mut bytes = session.capsule(&in_capsule(NvmOpcode::WRITE, 1, 0, 1), &pattern(1, 1));
    bytes.extend([0x0B; 8]);
    bytes.extend(session.capsule(&in_capsule(NvmOpcode::WRITE, 2, 1, 1), &pattern(1, 1)));
    session.receive(&bytes);
    assert!(session.core.next_operation().is_none());
    assert!(matches!(&session.inbox[..], [(Pdu::C2hTermReq(_), ..)]));
    assert_eq!(session.target.stats().protocol_errors(), 1);
}

/// The C2HTermReq is the last word: what ends after it is not answered any more (NVMe/TCP 1.0 §3.5).
#[test]
fn nothing_is_said_after_the_last_word() {
    use crate::subsystem::io::Outcome;

    let mut session = io_session(false, false);
    session.stalled = true;
    session.receive(&session.capsule(&command(NvmOpcode::READ, 1, 0, 1), &[]));
    let slot = session.core.next_operation().expect("a read").slot;
    session.receive(&[0x0B; 8]);
    session.core.complete(Outcome { slot, result: Ok(()), status: None, data: engine::Buf::zeroed(BLOCK), dwords: 0 });
    session.turn();
    assert!(matches!(&session.inbox[..], [(Pdu::C2hTermReq(_), ..)]), "{:?}", session.inbox);
}
