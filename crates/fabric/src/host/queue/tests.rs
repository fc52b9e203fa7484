//! Scenarios of one queue against a controller made of the codec's other half: no sockets, no clock.

use super::*;
use crate::tcp::{CapsuleCmd, DataPdu, Event, IcResp, Pdu, Rules};
use nvme::opcode::NvmOpcode;
use nvme::sgl::SglKind;
use nvme::tcp::FatalStatus;
use nvme::{Completion, Status};

/// The controller's end: takes the host's bytes apart, and encodes what a test wants to answer.
struct Peer {
    decoder: Decoder,
    encoder: Encoder,
    batch: SendBatch,
}

/// What the host sent: a header with its data.
type Sent = (Pdu, Vec<u8>);

const MAXH2CDATA: u32 = 4096;

fn config(digests: bool) -> QueueConfig {
    QueueConfig {
        depth: 4,
        in_capsule_bytes_max: 4096,
        header_digest: digests,
        data_digest: digests,
        read_bytes_max: 1 << 20,
    }
}

/// A queue and its peer, past ICReq and ICResp.
fn established(digests: bool, alignment_code: u8) -> (Queue, Peer) {
    let mut queue = Queue::new(config(digests));
    let mut peer = Peer {
        decoder: Decoder::new(Role::Controller),
        encoder: Encoder { header_digest: false, data_digest: false, alignment_code: 0 },
        batch: SendBatch::new(),
    };
    let sent = peer.take(&mut queue);
    let [(Pdu::IcReq(request), _)] = &sent[..] else { panic!("an ICReq comes first: {sent:?}") };
    assert_eq!((request.header_digest, request.data_digest), (digests, digests));
    assert_eq!(request.maxr2t + 1, u32::from(R2T_OUTSTANDING_MAX));
    let response = IcResp { alignment_code, header_digest: digests, data_digest: digests, maxh2cdata: MAXH2CDATA };
    queue.input(&Encoder::ic_resp(&response)).unwrap();
    peer.encoder = Encoder { header_digest: digests, data_digest: digests, alignment_code: 0 };
    peer.decoder.establish(Rules {
        header_digest: digests,
        data_digest: digests,
        alignment_code,
        capsule_data_bytes_max: 4096,
        data_pdu_bytes_max: MAXH2CDATA,
    });
    (queue, peer)
}

impl Peer {
    /// Everything the host has to send, decoded.
    fn take(&mut self, queue: &mut Queue) -> Vec<Sent> {
        let mut sent: Vec<Sent> = Vec::new();
        while queue.has_outgoing() {
            self.batch.clear();
            queue.fill(&mut self.batch);
            let bytes = self.batch.slices().collect::<Vec<_>>().concat();
            let mut rest = &bytes[..];
            while let Some(event) = self.decoder.next(&mut rest).expect("the host sends what a controller accepts") {
                match event {
                    Event::Pdu(pdu) => sent.push((pdu, Vec::new())),
                    Event::Data(data) => sent.last_mut().unwrap().1.extend_from_slice(data),
                    Event::DataEnd { digest_ok } => assert!(digest_ok, "the host's data digest is wrong"),
                }
            }
        }
        sent
    }

    /// The one command that the host has to send.
    fn command(&mut self, queue: &mut Queue) -> (Submission, Vec<u8>) {
        let mut sent = self.take(queue);
        assert_eq!(sent.len(), 1, "one command: {sent:?}");
        match sent.pop() {
            Some((Pdu::CapsuleCmd(CapsuleCmd { command, .. }), data)) => (command, data),
            other => panic!("a command: {other:?}"),
        }
    }

    fn completion(&self, command_id: u16, status: Status) -> Vec<u8> {
        self.encoder.capsule_resp(&Completion::new(command_id, status, 0, 0)).to_vec()
    }

    fn data(&self, pdu: DataPdu, data: &[u8]) -> Vec<u8> {
        let mut bytes = self.encoder.c2h_data(&pdu).to_vec();
        bytes.extend_from_slice(data);
        bytes.extend(self.encoder.data_digest_of(data).into_iter().flatten());
        bytes
    }

    fn r2t(&self, cccid: u16, ttag: u16, offset: u32, bytes: u32) -> Vec<u8> {
        self.encoder.r2t(&ReadyToTransfer { cccid, ttag, offset, bytes }).to_vec()
    }
}

fn c2h(cccid: u16, offset: u32, bytes: u32, last: bool, success: bool) -> DataPdu {
    DataPdu { cccid, ttag: 0, offset, bytes, last, success }
}

fn nvm(opcode: NvmOpcode) -> Submission {
    Submission::nvm(opcode, 0, 1)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 5) as u8).collect()
}

fn write(queue: &mut Queue, len: usize) -> SlotId {
    let payload = Payload::Out(Buf::copy_from(&bytes(len)).freeze());
    queue.submit(nvm(NvmOpcode::WRITE), payload, 100).expect("a free slot")
}

fn read(queue: &mut Queue, len: usize) -> SlotId {
    queue.submit(nvm(NvmOpcode::READ), Payload::In(Buf::zeroed(len)), 100).expect("a free slot")
}

fn outcome(queue: &mut Queue, slot: SlotId) -> Option<(Ended, Payload)> {
    queue.poll_outcome(slot, Waker::noop())
}

fn status(queue: &mut Queue, slot: SlotId) -> Option<Status> {
    match outcome(queue, slot)? {
        (Ended::Completed(completion), _) => Some(completion.status()),
        (other, _) => panic!("completed, not {other:?}"),
    }
}

fn fatal(result: Result<(), QueueError>) -> FatalError {
    match result {
        Err(QueueError::Protocol(error)) => error,
        other => panic!("a protocol error: {other:?}"),
    }
}

#[test]
fn nothing_but_the_icreq_goes_out_before_its_answer() {
    let mut queue = Queue::new(config(false));
    let slot = write(&mut queue, 512);
    let mut batch = SendBatch::new();
    queue.fill(&mut batch);
    assert_eq!((batch.len(), queue.has_outgoing()), (128, false));
    assert!(outcome(&mut queue, slot).is_none());
}

#[test]
fn a_short_write_travels_in_its_capsule_and_a_read_comes_back() {
    for (digests, alignment_code) in [(false, 0), (true, 0), (true, 15), (false, 31)] {
        let (mut queue, mut peer) = established(digests, alignment_code);
        let slot = write(&mut queue, 4096);
        let (command, data) = peer.command(&mut queue);
        assert_eq!((command.sgl.kind(), data), (SglKind::InCapsule { offset: 0 }, bytes(4096)));
        queue.input(&peer.completion(command.command_id.get(), Status::SUCCESS)).unwrap();
        assert_eq!(status(&mut queue, slot), Some(Status::SUCCESS));

        for success in [false, true] {
            let slot = read(&mut queue, 1000);
            let (command, _) = peer.command(&mut queue);
            let id = command.command_id.get();
            let sent = bytes(1000);
            queue.input(&peer.data(c2h(id, 0, 300, false, false), &sent[..300])).unwrap();
            // In single bytes: every boundary is met.
            for byte in peer.data(c2h(id, 300, 700, true, success), &sent[300..]) {
                queue.input(&[byte]).unwrap();
            }
            if !success {
                queue.input(&peer.completion(id, Status::SUCCESS)).unwrap();
            }
            let (ended, payload) = outcome(&mut queue, slot).expect("the read has ended");
            let Payload::In(buf) = payload else { panic!("the buffer comes back") };
            assert!(matches!(ended, Ended::Completed(_)) && *buf == sent[..]);
        }
    }
}

#[test]
fn a_long_write_is_asked_for_and_cut_to_the_targets_limit() {
    let (mut queue, mut peer) = established(true, 3);
    let slot = write(&mut queue, 20_000);
    let (command, data) = peer.command(&mut queue);
    assert_eq!((command.sgl.kind(), data.len()), (SglKind::Transport, 0));
    let id = command.command_id.get();
    // Two requests are out at a time, as far as MAXR2T goes.
    queue.input(&peer.r2t(id, 7, 0, 10_000)).unwrap();
    queue.input(&peer.r2t(id, 8, 10_000, 10_000)).unwrap();
    let sent = peer.take(&mut queue);
    let mut received = Vec::new();
    for (pdu, data) in &sent {
        let Pdu::H2cData(pdu) = pdu else { panic!("data: {pdu:?}") };
        assert_eq!((pdu.cccid, pdu.offset as usize, pdu.bytes as usize), (id, received.len(), data.len()));
        assert_eq!(pdu.ttag, if received.len() < 10_000 { 7 } else { 8 });
        received.extend_from_slice(data);
        assert_eq!(pdu.last, received.len().is_multiple_of(10_000), "LAST_PDU ends what one R2T asked for");
    }
    assert_eq!((sent.len(), received), (6, bytes(20_000)));
    queue.input(&peer.completion(id, Status::SUCCESS)).unwrap();
    assert_eq!(status(&mut queue, slot), Some(Status::SUCCESS));
}

#[test]
fn fused_halves_are_adjacent_and_sent_together() {
    let (mut queue, mut peer) = established(false, 0);
    let other = write(&mut queue, 512);
    let half = |len| Payload::Out(Buf::copy_from(&bytes(len)).freeze());
    let pair = queue.submit_fused((nvm(NvmOpcode::COMPARE), half(512)), (nvm(NvmOpcode::WRITE), half(512)), 9);
    let (first, second) = pair.expect("two free slots");
    assert!(queue.submit_fused((nvm(NvmOpcode::COMPARE), half(512)), (nvm(NvmOpcode::WRITE), half(512)), 9).is_none());
    let after = write(&mut queue, 512);
    let fuses: Vec<_> = peer
        .take(&mut queue)
        .iter()
        .map(|(pdu, _)| match pdu {
            Pdu::CapsuleCmd(capsule) => (capsule.command.command_id.get(), capsule.command.fuse()),
            other => panic!("a command: {other:?}"),
        })
        .collect();
    let ids = [other, first, second, after].map(SlotId::command_id);
    assert_eq!(fuses, std::iter::zip(ids, [Fuse::None, Fuse::First, Fuse::Second, Fuse::None]).collect::<Vec<_>>());
    queue.input(&peer.completion(first.command_id(), Status::COMPARE_FAILURE)).unwrap();
    queue.input(&peer.completion(second.command_id(), Status::FAILED_FUSED)).unwrap();
    assert_eq!(status(&mut queue, first), Some(Status::COMPARE_FAILURE));
    assert_eq!(status(&mut queue, second), Some(Status::FAILED_FUSED));
}

#[test]
fn long_data_is_received_straight_into_its_buffer() {
    for digests in [false, true] {
        let (mut queue, mut peer) = established(digests, 0);
        let slot = read(&mut queue, 100_000);
        let (command, _) = peer.command(&mut queue);
        let sent = peer.data(c2h(command.command_id.get(), 0, 100_000, true, true), &bytes(100_000));
        let (start, rest) = sent.split_at(sent.len() - 60_000);
        queue.input(start).unwrap();
        let mut rest = rest;
        while let Some(mut buf) = queue.take_direct() {
            let take = buf.spare_mut().len().min(17_000);
            buf.extend_from_slice(&rest[..take]);
            rest = &rest[take..];
            queue.give_direct(buf).unwrap();
        }
        queue.input(rest).unwrap();
        let Some((Ended::Completed(_), Payload::In(buf))) = outcome(&mut queue, slot) else {
            panic!("the read has ended")
        };
        assert!(*buf == bytes(100_000)[..]);
        assert!(rest.len() < 16_000, "most of the data went the straight way, {} bytes did not", rest.len());
    }
}

#[test]
fn a_wrong_data_digest_costs_the_command_and_not_the_connection() {
    // Whether success comes in the data's header or in a capsule of its own.
    for success in [false, true] {
        let (mut queue, mut peer) = established(true, 0);
        let slot = read(&mut queue, 600);
        let id = peer.command(&mut queue).0.command_id.get();
        let mut sent = peer.data(c2h(id, 0, 600, true, success), &bytes(600));
        *sent.last_mut().unwrap() ^= 1;
        queue.input(&sent).unwrap();
        if !success {
            queue.input(&peer.completion(id, Status::SUCCESS)).unwrap();
        }
        assert!(matches!(outcome(&mut queue, slot), Some((Ended::WrongDigest, _))));
    }
}

#[test]
fn success_with_too_little_data_is_no_success() {
    let (mut queue, mut peer) = established(false, 0);
    let slot = read(&mut queue, 600);
    let id = peer.command(&mut queue).0.command_id.get();
    queue.input(&peer.data(c2h(id, 0, 599, true, true), &bytes(599))).unwrap();
    assert!(matches!(outcome(&mut queue, slot), Some((Ended::ShortData, _))));
}

/// What a target must not send, each with the error it ends in.
#[test]
fn a_target_that_breaks_the_protocol_is_left() {
    type Attack = fn(&Peer, u16, u16) -> Vec<u8>;
    let field = FatalStatus::INVALID_HEADER_FIELD;
    let attacks: [(&str, FatalStatus, Attack); 15] = [
        ("completion of nothing", field, |peer, _, _| peer.completion(3, Status::SUCCESS)),
        ("completion of no slot", field, |peer, _, _| peer.completion(999, Status::SUCCESS)),
        ("completion of an old generation", field, |peer, read, _| peer.completion(read | 1 << 10, Status::SUCCESS)),
        ("success before the data", FatalStatus::SEQUENCE_ERROR, |peer, _, write| {
            peer.completion(write, Status::SUCCESS)
        }),
        ("data for a write", field, |peer, _, write| peer.data(c2h(write, 0, 4, true, true), &[0; 4])),
        ("data with a gap", FatalStatus::DATA_OUT_OF_RANGE, |peer, read, _| {
            peer.data(c2h(read, 4, 4, true, true), &[0; 4])
        }),
        ("data beyond the read", FatalStatus::DATA_OUT_OF_RANGE, |peer, read, _| {
            peer.data(c2h(read, 0, 513, true, true), &[0; 513])
        }),
        ("request of a read", FatalStatus::SEQUENCE_ERROR, |peer, read, _| peer.r2t(read, 1, 0, 4)),
        ("request beyond the data", FatalStatus::DATA_OUT_OF_RANGE, |peer, _, write| peer.r2t(write, 1, 8000, 193)),
        ("request that overflows", FatalStatus::DATA_OUT_OF_RANGE, |peer, _, write| peer.r2t(write, 1, u32::MAX, 4)),
        ("more than the data asked for", FatalStatus::DATA_OUT_OF_RANGE, |peer, _, write| {
            [peer.r2t(write, 1, 0, 8000), peer.r2t(write, 2, 0, 8000)].concat()
        }),
        ("the same bytes again", FatalStatus::DATA_OUT_OF_RANGE, |peer, _, write| {
            [peer.r2t(write, 1, 0, 4), peer.r2t(write, 2, 0, 4)].concat()
        }),
        ("an overlapping request", FatalStatus::DATA_OUT_OF_RANGE, |peer, _, write| {
            [peer.r2t(write, 1, 4096, 512), peer.r2t(write, 2, 4000, 100)].concat()
        }),
        ("a request for nothing", field, |peer, _, write| peer.r2t(write, 1, 0, 0)),
        ("more requests than agreed", FatalStatus::LIMIT_EXCEEDED, |peer, _, write| {
            (0..5).flat_map(|tag| peer.r2t(write, tag, u32::from(tag) * 4, 4)).collect()
        }),
    ];
    for (name, expected, attack) in attacks {
        let (mut queue, mut peer) = established(false, 0);
        let (reading, writing) = (read(&mut queue, 512), write(&mut queue, 8192));
        assert_eq!(peer.take(&mut queue).len(), 2);
        let error = queue.input(&attack(&peer, reading.command_id(), writing.command_id()));
        let term_req = queue.term_req(error.as_ref().unwrap_err());
        assert_eq!(fatal(error).status, expected, "{name}");
        assert!(term_req.is_some_and(|pdu| pdu[0] == PduType::H2C_TERM_REQ.0), "{name}");
        queue.close(0);
        for slot in [reading, writing] {
            assert!(matches!(outcome(&mut queue, slot), Some((Ended::Lost, _))), "{name}");
        }
    }
}

#[test]
fn a_completion_before_the_command_is_refused() {
    let (mut queue, peer) = established(false, 0);
    let slot = read(&mut queue, 512);
    let error = queue.input(&peer.completion(slot.command_id(), Status::SUCCESS));
    assert_eq!(fatal(error).status, FatalStatus::INVALID_HEADER_FIELD);
}

#[test]
fn digests_that_were_not_agreed_are_refused() {
    let mut queue = Queue::new(config(true));
    let response = IcResp { alignment_code: 0, header_digest: true, data_digest: false, maxh2cdata: MAXH2CDATA };
    let error = queue.input(&Encoder::ic_resp(&response)).unwrap_err();
    assert!(matches!(error, QueueError::Digests { data: false, want_data: true, .. }), "{error}");
}

#[test]
fn an_abandoned_read_keeps_its_slot_until_its_answer() {
    let (mut queue, mut peer) = established(false, 0);
    let slot = read(&mut queue, 512);
    let id = peer.command(&mut queue).0.command_id.get();
    queue.abandon(slot);
    let others: Vec<_> = (0..3).map(|_| read(&mut queue, 512)).collect();
    assert!(queue.submit(nvm(NvmOpcode::FLUSH), Payload::None, 0).is_none(), "its slot is still taken");
    assert_eq!(peer.take(&mut queue).len(), 3);
    queue.input(&peer.data(c2h(id, 0, 512, true, true), &bytes(512))).unwrap();
    let slot = queue.submit(nvm(NvmOpcode::FLUSH), Payload::None, 0).expect("its slot is free again");
    assert_ne!(slot.command_id(), id, "the same slot has another command identifier");
    assert!(others.iter().all(|&other| outcome(&mut queue, other).is_none()));
}

#[test]
fn the_end_tells_everybody_and_says_who_was_late() {
    let (mut queue, mut peer) = established(false, 0);
    let late = queue.submit(nvm(NvmOpcode::FLUSH), Payload::None, 10).unwrap();
    let lost = queue.submit(nvm(NvmOpcode::FLUSH), Payload::None, 20).unwrap();
    peer.take(&mut queue);
    let mut overdue = VecDeque::new();
    assert!(!queue.check_deadlines(9, 0, &mut overdue) && queue.check_deadlines(10, 0, &mut overdue));
    assert!(overdue.is_empty(), "without grace nothing is aborted");
    queue.close(10);
    assert!(matches!(outcome(&mut queue, late), Some((Ended::TimedOut, _))));
    assert!(matches!(outcome(&mut queue, lost), Some((Ended::Lost, _))));
    assert!(queue.submit(nvm(NvmOpcode::FLUSH), Payload::None, 0).is_none());
}

#[test]
fn an_overdue_command_is_told_once_and_has_its_grace() {
    let (mut queue, mut peer) = established(false, 0);
    let slot = queue.submit(nvm(NvmOpcode::FLUSH), Payload::None, 10).unwrap();
    peer.take(&mut queue);
    let mut overdue = VecDeque::new();
    assert!(!queue.check_deadlines(10, 5, &mut overdue) && !queue.check_deadlines(14, 5, &mut overdue));
    assert_eq!(overdue, [slot.command_id()]);
    assert!(queue.check_deadlines(15, 5, &mut overdue), "its grace is over");
    queue.close(11);
    assert!(matches!(outcome(&mut queue, slot), Some((Ended::TimedOut, _))));
    let unsent = queue_with_an_unsent_command();
    assert!(unsent, "what could not even be sent needs no abort");
}

/// An Abort names a command by its identifier. While others are being aborted it may end, and its slot come round to the same
/// identifier with another command, which nobody wants aborted.
#[test]
fn an_identifier_that_is_used_again_is_not_aborted() {
    let (mut queue, mut peer) = established(false, 0);
    let late = queue.submit(nvm(NvmOpcode::FLUSH), Payload::None, 10).unwrap();
    peer.take(&mut queue);
    queue.check_deadlines(10, 5, &mut VecDeque::new());
    assert!(queue.is_overdue(late.command_id()));
    let mut same = None;
    for _ in 0..1000 {
        let pdu = peer.completion(same.unwrap_or(late).command_id(), Status::SUCCESS);
        queue.input(&pdu).unwrap();
        assert_eq!(status(&mut queue, same.unwrap_or(late)), Some(Status::SUCCESS));
        assert!(!queue.is_overdue(late.command_id()));
        let next = queue.submit(nvm(NvmOpcode::FLUSH), Payload::None, 100).unwrap();
        assert_ne!(next, late, "with room elsewhere its slot is used last");
        peer.take(&mut queue);
        same = Some(next);
    }
}

fn queue_with_an_unsent_command() -> bool {
    let (mut queue, _) = established(false, 0);
    queue.submit(nvm(NvmOpcode::FLUSH), Payload::None, 10).unwrap();
    queue.check_deadlines(10, 5, &mut VecDeque::new())
}

#[test]
fn term_req_from_the_target_is_told_and_not_answered() {
    let (mut queue, _) = established(false, 0);
    let error = FatalError::sequence(PduType::CAPSULE_CMD, "a test");
    let result = queue.input(&Encoder::term_req(PduType::C2H_TERM_REQ, &error, &[4; 72]));
    let Err(error @ QueueError::Terminated(_)) = result else { panic!("{result:?}") };
    assert!(queue.term_req(&error).is_none());
}

proptest::proptest! {
    #[test]
    fn hostile_bytes_never_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400), mode: u8) {
        let mut input = vec![mode, 6];
        input.extend(bytes);
        crate::host::fuzz_session(&input);
    }
}
