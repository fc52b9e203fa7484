//! NVM commands: data both ways, fused pairs, every status.

use device::Namespace;
use nvme::command::{DATASET_DEALLOCATE, DatasetRange, WRITE_ZEROES_DEALLOCATE};
use nvme::{Fuse, SglDescriptor};
use zerocopy::IntoBytes;

use super::*;
use crate::subsystem::limits::SHARED_DATA_BYTES_MAX;
use crate::subsystem::{CommandKind, IN_CAPSULE_BYTES_MAX};
use crate::tcp::{DataPdu, Pdu, ReadyToTransfer};

/// Answers the R2T of command `id` with PDUs of at most `piece` bytes.
pub(super) fn transfer(session: &mut RawHost, id: u16, data: &[u8], piece: usize) {
    let is_r2t = |pdu: &Pdu| matches!(pdu, Pdu::R2t(request) if request.cccid == id);
    let found = session.inbox.iter().position(|(pdu, ..)| is_r2t(pdu)).expect("an R2T came");
    let (Pdu::R2t(request), ..) = session.inbox.remove(found) else { unreachable!("found as an R2T") };
    assert_eq!((request.offset, request.bytes as usize), (0, data.len()));
    send_data(session, request, data, piece);
}

fn send_data(session: &mut RawHost, request: ReadyToTransfer, data: &[u8], piece: usize) {
    for (index, part) in data.chunks(piece).enumerate() {
        let offset = (index * piece) as u32;
        let bytes = part.len() as u32;
        let last = offset as usize + part.len() == data.len();
        let pdu = DataPdu { cccid: request.cccid, ttag: request.ttag, offset, bytes, last, success: false };
        let mut stream = session.encoder.h2c_data(&pdu).to_vec();
        stream.extend_from_slice(part);
        stream.extend(session.encoder.data_digest_of(part).into_iter().flatten());
        session.receive(&stream);
    }
}

fn fused(opcode: NvmOpcode, id: u16, lba: u64, blocks: u32, fuse: Fuse) -> Submission {
    let mut command = in_capsule(opcode, id, lba, blocks);
    command.set_fuse(fuse);
    command
}

fn compare_and_write(session: &mut RawHost, lba: u64, expected: &[u8], new: &[u8]) -> (Status, Status) {
    let blocks = (new.len() / BLOCK) as u32;
    let mut stream = session.capsule(&fused(NvmOpcode::COMPARE, 1, lba, blocks, Fuse::First), expected);
    stream.extend(session.capsule(&fused(NvmOpcode::WRITE, 2, lba, blocks, Fuse::Second), new));
    session.receive(&stream);
    (status(session.take_answer(1)), status(session.take_answer(2)))
}

#[test]
fn data_goes_both_ways_with_and_without_digests() {
    for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut session = io_session(header_digest, data_digest);
        let short = pattern(2, 1);
        assert_eq!(write(&mut session, 3, &short), Status::SUCCESS);
        assert_eq!(read(&mut session, 3, 2), short);

        let long = pattern(200, 2);
        assert_eq!(session.send(&command(NvmOpcode::WRITE, 5, 10, 200), &[]), None, "no data has come yet");
        transfer(&mut session, 5, &long, 100_000);
        assert_eq!(status(session.take_answer(5)), Status::SUCCESS);
        assert_eq!(read(&mut session, 10, 200), long);
    }
}

#[test]
fn a_read_without_flow_control_is_one_pdu_with_the_success_flag() {
    let mut session = io_session(false, false);
    session.receive(&session.capsule(&command(NvmOpcode::READ, 9, 0, 1), &[]));
    assert!(matches!(&session.inbox[..], [(Pdu::C2hData(pdu), ..)] if pdu.success && pdu.last && pdu.cccid == 9));
}

#[test]
fn with_flow_control_a_response_tells_the_queue_head() {
    let mut session = RawHost::new(memory());
    session.open(false, false);
    let mut admin = RawHost::on(&session.target);
    admin.open(false, false);
    admin.connect_admin();
    session.controller = admin.controller;
    let connected = session.connect(1, &super::super::raw_host::subsystem(), |fields, _| {
        fields.cattr = 0;
        fields.sqsize = 2.into();
    });
    assert_eq!(connected.map(|completion| completion.sq_head.get()), Some(1));
    let heads: Vec<u16> = (0..4)
        .map(|id| {
            let (completion, data) = session.send(&command(NvmOpcode::READ, id, 0, 1), &[]).unwrap();
            assert_eq!(data.len(), BLOCK);
            completion.sq_head.get()
        })
        .collect();
    assert_eq!(heads, [2, 0, 1, 2]);
}

#[test]
fn a_capsule_takes_data_up_to_its_size_and_at_an_offset() {
    let mut session = io_session(false, false);
    let blocks = IN_CAPSULE_BYTES_MAX as usize / BLOCK;
    assert_eq!(write(&mut session, 0, &pattern(blocks, 3)), Status::SUCCESS);
    assert_eq!(read(&mut session, 0, blocks as u32), pattern(blocks, 3));
    let mut at_offset = in_capsule(NvmOpcode::WRITE, 4, 9, 1);
    at_offset.sgl.address = 8.into();
    let mut data = vec![0xEE; 8];
    data.extend(pattern(1, 4));
    assert_eq!(status(session.send(&at_offset, &data)), Status::SUCCESS);
    assert_eq!(read(&mut session, 9, 1), pattern(1, 4));
}

#[test]
fn bad_commands_get_the_specifications_status() {
    let mut session = io_session(false, false);
    let mut check = |command: Submission, data: &[u8], expected: Status| {
        assert_eq!(status(session.send(&command, data)).kind(), expected, "{command:?}");
        assert!(session.core.ended().is_none());
    };
    let good = || in_capsule(NvmOpcode::WRITE, 1, 0, 1);
    let data = pattern(1, 0);
    check(Submission { opcode: 0x55, ..good() }, &data, Status::INVALID_OPCODE);
    check(Submission { nsid: 2.into(), ..good() }, &data, Status::INVALID_NAMESPACE);
    check(Submission { nsid: 0.into(), ..good() }, &data, Status::INVALID_NAMESPACE);
    check(Submission { nsid: u32::MAX.into(), ..command(NvmOpcode::FLUSH, 1, 0, 1) }, &[], Status::INVALID_NAMESPACE);
    check(Submission { flags: 0, ..good() }, &data, Status::INVALID_FIELD);
    check(in_capsule(NvmOpcode::WRITE, 1, BLOCKS, 1), &data, Status::LBA_OUT_OF_RANGE);
    check(in_capsule(NvmOpcode::WRITE, 1, u64::MAX, 1), &data, Status::LBA_OUT_OF_RANGE);
    check(command(NvmOpcode::READ, 1, BLOCKS - 1, 2), &[], Status::LBA_OUT_OF_RANGE);
    check(command(NvmOpcode::WRITE_ZEROES, 1, BLOCKS - 1, 2), &[], Status::LBA_OUT_OF_RANGE);
    check(Submission { sgl: SglDescriptor::in_capsule(512), ..good() }, &data, Status::DATA_SGL_LENGTH_INVALID);
    let transferred = Submission { sgl: SglDescriptor::transport(512), ..command(NvmOpcode::WRITE, 1, 0, 1) };
    check(transferred, &[], Status::DATA_SGL_LENGTH_INVALID);
    check(good(), &data[..512], Status::SGL_OFFSET_INVALID);
    check(good(), &[], Status::SGL_OFFSET_INVALID);
    let mut keyed = good();
    keyed.sgl.identifier = 0x40;
    check(keyed, &data, Status::SGL_TYPE_INVALID);
    let read = |length| Submission { sgl: SglDescriptor::transport(length), ..command(NvmOpcode::READ, 1, 0, 1) };
    check(read(512), &[], Status::DATA_SGL_LENGTH_INVALID);
    check(read(8192), &[], Status::DATA_SGL_LENGTH_INVALID);
    check(in_capsule(NvmOpcode::READ, 1, 0, 1), &data, Status::SGL_TYPE_INVALID);
    let property = Submission::fabrics(nvme::opcode::FabricsType::PROPERTY_GET, 1);
    check(property, &[], Status::INVALID_OPCODE);
}

#[test]
fn more_than_mdts_is_refused() {
    let mut session = RawHost::new(device::Memory::new(4 << 20, 512, [1; 16]).unwrap());
    session.open(false, false);
    session.connect_io();
    let mut read = Submission::nvm(NvmOpcode::READ, 1, 1);
    read.set_range(0, 2049);
    read.sgl = SglDescriptor::transport(2049 * 512);
    assert_eq!(status(session.send(&read, &[])).kind(), Status::INVALID_FIELD);
    read.set_range(0, 2048);
    read.sgl = SglDescriptor::transport(1 << 20);
    let (completion, data) = session.send(&read, &[]).unwrap();
    assert_eq!((completion.status(), data.len()), (Status::SUCCESS, 1 << 20));
}

#[test]
fn an_identifier_in_use_is_a_conflict_and_leaves_the_first_alone() {
    let mut session = io_session(false, false);
    session.receive(&session.capsule(&command(NvmOpcode::WRITE, 6, 0, 16), &[]));
    let second = session.send(&command(NvmOpcode::READ, 6, 0, 1), &[]);
    assert_eq!(status(second).kind(), Status::COMMAND_ID_CONFLICT);
    transfer(&mut session, 6, &pattern(16, 5), 1 << 20);
    assert_eq!(status(session.take_answer(6)), Status::SUCCESS);
    assert_eq!(status(session.send(&command(NvmOpcode::FLUSH, 6, 0, 1), &[])), Status::SUCCESS);
}

#[test]
fn a_wrong_data_digest_fails_the_command_and_writes_nothing() {
    let mut session = io_session(true, true);
    let mut stream = session.capsule(&in_capsule(NvmOpcode::WRITE, 1, 0, 1), &pattern(1, 9));
    *stream.last_mut().unwrap() ^= 1;
    session.receive(&stream);
    assert_eq!(status(session.take_answer(1)), Status::TRANSIENT_TRANSPORT_ERROR);
    assert_eq!(read(&mut session, 0, 1), vec![0; BLOCK]);
}

#[test]
fn compare_flush_zeroes_and_deallocate() {
    let mut session = io_session(false, false);
    assert_eq!(write(&mut session, 0, &pattern(3, 1)), Status::SUCCESS);
    let compare = in_capsule(NvmOpcode::COMPARE, 1, 0, 3);
    assert_eq!(status(session.send(&compare, &pattern(3, 1))), Status::SUCCESS);
    assert_eq!(status(session.send(&compare, &pattern(3, 2))).kind(), Status::COMPARE_FAILURE);
    assert_eq!(status(session.send(&command(NvmOpcode::FLUSH, 1, 0, 1), &[])), Status::SUCCESS);
    let mut zeroes = command(NvmOpcode::WRITE_ZEROES, 1, 1, 1);
    zeroes.cdw12 = (zeroes.cdw12.get() | WRITE_ZEROES_DEALLOCATE).into();
    assert_eq!(status(session.send(&zeroes, &[])), Status::SUCCESS);
    assert_eq!(read(&mut session, 1, 1), vec![0; BLOCK]);

    let dataset = |ranges: &[DatasetRange], attributes: u32| {
        let mut command = Submission::nvm(NvmOpcode::DATASET_MANAGEMENT, 1, 1);
        command.cdw10 = (ranges.len() as u32 - 1).into();
        command.cdw11 = attributes.into();
        command.sgl = SglDescriptor::in_capsule(ranges.len() as u32 * 16);
        command
    };
    let range = |lba: u64, blocks: u32| DatasetRange { attributes: 0.into(), blocks: blocks.into(), lba: lba.into() };
    let ranges = [range(0, 1), range(5, 0), range(2, 1)];
    assert_eq!(status(session.send(&dataset(&ranges, 0), ranges.as_bytes())), Status::SUCCESS);
    assert_eq!(read(&mut session, 0, 1), pattern(1, 1), "hints change nothing");
    assert_eq!(status(session.send(&dataset(&ranges, DATASET_DEALLOCATE), ranges.as_bytes())), Status::SUCCESS);
    assert_eq!(read(&mut session, 0, 3), vec![0; 3 * BLOCK]);
    assert_eq!(write(&mut session, 0, &pattern(1, 1)), Status::SUCCESS);
    let long = Submission { sgl: SglDescriptor::in_capsule(4096), ..dataset(&ranges[..1], DATASET_DEALLOCATE) };
    let mut room = [0xFF; 4096];
    room[..16].copy_from_slice(ranges[0].as_bytes());
    assert_eq!(status(session.send(&long, &room)), Status::SUCCESS, "the kernel sends room for 256 ranges");
    assert_eq!(read(&mut session, 0, 1), vec![0; BLOCK]);
    let short = Submission { sgl: SglDescriptor::in_capsule(16), ..dataset(&ranges, DATASET_DEALLOCATE) };
    assert_eq!(status(session.send(&short, &room[..16])).kind(), Status::DATA_SGL_LENGTH_INVALID);
    let beyond = [range(0, 1), range(BLOCKS, 1)];
    let answer = session.send(&dataset(&beyond, DATASET_DEALLOCATE), beyond.as_bytes());
    assert_eq!(status(answer).kind(), Status::LBA_OUT_OF_RANGE);
}

#[test]
fn a_fused_pair_swaps_or_says_why_not() {
    let mut session = io_session(false, false);
    let (old, new) = (pattern(2, 1), pattern(2, 2));
    assert_eq!(write(&mut session, 4, &old), Status::SUCCESS);
    assert_eq!(compare_and_write(&mut session, 4, &old, &new), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(read(&mut session, 4, 2), new);
    let (compare, write) = compare_and_write(&mut session, 4, &old, &pattern(2, 3));
    assert_eq!((compare.kind(), write), (Status::COMPARE_FAILURE, Status::FAILED_FUSED));
    assert_eq!(read(&mut session, 4, 2), new);
    assert_eq!(session.target.stats().commands(CommandKind::CompareAndWrite), 2);
}

#[test]
fn a_fused_pair_over_r2t_runs_when_both_halves_have_arrived() {
    let mut session = io_session(false, true);
    let (old, new) = (vec![0; 16 * BLOCK], pattern(16, 2));
    let half = |opcode, id, fuse| {
        let mut command = command(opcode, id, 0, 16);
        command.set_fuse(fuse);
        command
    };
    session.receive(&session.capsule(&half(NvmOpcode::COMPARE, 1, Fuse::First), &[]));
    session.receive(&session.capsule(&half(NvmOpcode::WRITE, 2, Fuse::Second), &[]));
    transfer(&mut session, 2, &new, 10_000);
    assert!(session.inbox.iter().all(|(pdu, ..)| !matches!(pdu, Pdu::CapsuleResp(_))));
    // While the pair's data is on its way nothing is locked: others go on.
    assert_eq!(read(&mut session, 0, 1), vec![0; BLOCK]);
    transfer(&mut session, 1, &old, 10_000);
    assert_eq!(status(session.take_answer(1)), Status::SUCCESS);
    assert_eq!(status(session.take_answer(2)), Status::SUCCESS);
    assert_eq!(read(&mut session, 0, 16), new);
}

#[test]
fn halves_that_are_not_adjacent_are_missing_each_other() {
    let mut session = io_session(false, false);
    let data = vec![0; BLOCK];
    let first = fused(NvmOpcode::COMPARE, 1, 0, 1, Fuse::First);
    let second = fused(NvmOpcode::WRITE, 2, 0, 1, Fuse::Second);
    assert_eq!(status(session.send(&second, &data)), Status::MISSING_FUSED, "a second half alone");
    assert_eq!(session.send(&first, &data), None);
    assert_eq!(read(&mut session, 0, 1), data, "a command between the halves");
    assert_eq!(status(session.take_answer(1)), Status::MISSING_FUSED);
    assert_eq!(status(session.send(&second, &data)), Status::MISSING_FUSED);
    assert_eq!(session.send(&first, &data), None);
    assert_eq!(session.send(&Submission { command_id: 3.into(), ..first }, &data), None, "two first halves");
    assert_eq!(status(session.take_answer(1)), Status::MISSING_FUSED);
    assert_eq!(status(session.send(&second, &data)), Status::SUCCESS);
    assert_eq!(status(session.take_answer(3)), Status::SUCCESS);
}

#[test]
fn a_half_that_can_not_be_takes_the_other_with_it() {
    let mut session = io_session(false, false);
    let data = vec![0; BLOCK];
    let first = |lba| fused(NvmOpcode::COMPARE, 1, lba, 1, Fuse::First);
    let second = |lba| fused(NvmOpcode::WRITE, 2, lba, 1, Fuse::Second);
    let mut check = |one: Submission, two: Submission, expected: (Status, Status)| {
        let mut stream = session.capsule(&one, &data);
        stream.extend(session.capsule(&two, &data));
        session.receive(&stream);
        let found = (status(session.take_answer(1)).kind(), status(session.take_answer(2)).kind());
        assert_eq!(found, expected);
    };
    check(first(BLOCKS), second(BLOCKS), (Status::LBA_OUT_OF_RANGE, Status::FAILED_FUSED));
    check(first(0), second(1), (Status::INVALID_FIELD, Status::FAILED_FUSED));
    let read_second = fused(NvmOpcode::READ, 2, 0, 1, Fuse::Second);
    check(first(0), read_second, (Status::INVALID_FIELD, Status::FAILED_FUSED));
    let bad_second = Submission { sgl: SglDescriptor::in_capsule(512), ..second(0) };
    check(first(0), bad_second, (Status::FAILED_FUSED, Status::DATA_SGL_LENGTH_INVALID));
    let write_first = fused(NvmOpcode::WRITE, 1, 0, 1, Fuse::First);
    check(write_first, second(0), (Status::INVALID_FIELD, Status::FAILED_FUSED));
    let reserved = fused(NvmOpcode::COMPARE, 1, 0, 1, Fuse::Reserved);
    check(reserved, second(0), (Status::INVALID_FIELD, Status::MISSING_FUSED));
}

#[test]
fn a_fused_pair_over_the_atomic_size_is_refused() {
    let mut session = io_session(false, false);
    let blocks = memory().info().compare_and_write_blocks_max + 1;
    let half = |opcode, id, fuse| {
        let mut command = command(opcode, id, 0, blocks);
        command.set_fuse(fuse);
        command
    };
    let compare = session.send(&half(NvmOpcode::COMPARE, 1, Fuse::First), &[]);
    assert_eq!(status(compare).kind(), Status::ATOMIC_WRITE_UNIT_EXCEEDED);
    let write = session.send(&half(NvmOpcode::WRITE, 2, Fuse::Second), &[]);
    assert_eq!(status(write), Status::FAILED_FUSED);
}

#[test]
fn a_digest_error_in_one_half_fails_the_pair() {
    for damaged in [1, 2] {
        let mut session = io_session(false, true);
        let data = vec![0; BLOCK];
        for (id, opcode, fuse) in [(1, NvmOpcode::COMPARE, Fuse::First), (2, NvmOpcode::WRITE, Fuse::Second)] {
            let mut stream = session.capsule(&fused(opcode, id, 0, 1, fuse), &data);
            *stream.last_mut().unwrap() ^= u8::from(id == damaged);
            session.receive(&stream);
        }
        let found = (status(session.take_answer(1)), status(session.take_answer(2)));
        let (error, other) = (Status::TRANSIENT_TRANSPORT_ERROR, Status::FAILED_FUSED);
        assert_eq!(found, if damaged == 1 { (error, other) } else { (other, error) });
        assert_eq!(read(&mut session, 0, 1), data);
    }
}

/// Without the bound a queue of 31 transfers of 1 MiB would take 31 MiB of buffers.
#[test]
fn data_buffers_are_bounded_and_everyone_gets_his_turn() {
    let mut session = io_session(false, false);
    session.stalled = true;
    let writes = 31;
    for id in 0..writes {
        session.receive(&session.capsule(&command(NvmOpcode::WRITE, id, 0, 256), &[]));
    }
    let requested = |session: &RawHost| session.inbox.iter().filter(|(pdu, ..)| matches!(pdu, Pdu::R2t(_))).count();
    assert_eq!(requested(&session), 16);
    session.stalled = false;
    for id in 0..writes {
        transfer(&mut session, id, &pattern(256, id as u8), 1 << 20);
        assert_eq!(status(session.take_answer(id)), Status::SUCCESS);
    }
    assert_eq!(read(&mut session, 0, 256), pattern(256, writes as u8 - 1));
}

#[test]
fn an_error_of_the_medium_becomes_a_status() {
    use device::Error;
    let text = || "x".to_owned();
    let table = [
        (Error::CompareFailure, Status::COMPARE_FAILURE),
        (Error::OutOfRange { lba: device::Lba(0), blocks: 1, end: 0 }, Status::LBA_OUT_OF_RANGE),
        (Error::InvalidLength { bytes: 1, block_size: 512, bytes_max: 1 }, Status::INVALID_FIELD),
        (Error::ReadOnly("latched"), Status::WRITE_PROTECTED),
        (Error::Unsupported("it"), Status::INVALID_OPCODE),
        (Error::ReadFault(text()), Status::UNRECOVERED_READ_ERROR),
        (Error::WriteFault(text()), Status::WRITE_FAULT),
        (Error::OutOfSpace, Status::CAPACITY_EXCEEDED),
        (Error::NotConnected(text()), Status::INTERNAL_PATH_ERROR),
        (Error::Disconnected(text()), Status::INTERNAL_PATH_ERROR),
        (Error::Aborted, Status::ABORT_REQUESTED),
        (Error::Reserved(text()), Status::RESERVATION_CONFLICT),
        (Error::Status(text()), Status::INTERNAL_ERROR),
    ];
    for (error, expected) in table {
        let mut session = io_session(false, false);
        session.stalled = true;
        session.receive(&session.capsule(&command(NvmOpcode::READ, 1, 0, 1), &[]));
        let operation = session.core.next_operation().expect("a read is ready");
        let outcome = crate::subsystem::io::Outcome {
            slot: operation.slot,
            result: Err(error),
            status: None,
            data: Default::default(),
            dwords: 0,
        };
        session.core.complete(outcome);
        session.turn();
        assert_eq!(status(session.take_answer(1)).kind(), expected);
    }
}

/// What is acknowledged as stable must have been asked for as stable: FUA on a write, on the write half of a fused pair and
/// on write zeroes; and a flush reaches the medium.
#[test]
fn force_unit_access_and_flush_reach_the_namespace() {
    use crate::subsystem::io::Work;
    use device::Durability;

    for fua in [false, true] {
        let expected = if fua { Durability::Stable } else { Durability::Cached };
        let with_fua = |mut command: Submission| {
            command.cdw12 = (command.cdw12.get() | u32::from(fua) << 30).into();
            command
        };
        let mut session = io_session(false, false);
        session.stalled = true;
        let data = pattern(1, 1);
        session.receive(&session.capsule(&with_fua(in_capsule(NvmOpcode::WRITE, 1, 0, 1)), &data));
        session.receive(&session.capsule(&with_fua(command(NvmOpcode::WRITE_ZEROES, 2, 0, 1)), &[]));
        let mut deallocate = with_fua(command(NvmOpcode::WRITE_ZEROES, 6, 0, 1));
        deallocate.cdw12 = (deallocate.cdw12.get() | WRITE_ZEROES_DEALLOCATE).into();
        session.receive(&session.capsule(&deallocate, &[]));
        session.receive(&session.capsule(&fused(NvmOpcode::COMPARE, 3, 0, 1, Fuse::First), &data));
        session.receive(&session.capsule(&with_fua(fused(NvmOpcode::WRITE, 4, 0, 1, Fuse::Second)), &data));
        session.receive(&session.capsule(&command(NvmOpcode::FLUSH, 5, 0, 1), &[]));
        let mut work = || session.core.next_operation().expect("an operation is ready").work;
        assert!(matches!(work(), Work::Write { durability, .. } if durability == expected));
        for gives_back in [false, true] {
            let work = work();
            assert!(matches!(work, Work::WriteZeroes { durability, deallocates, .. }
                if (durability, deallocates) == (expected, gives_back)));
        }
        assert!(matches!(work(), Work::CompareAndWrite { durability, .. } if durability == expected));
        assert!(matches!(work(), Work::Flush));
    }
}

/// The data pointer of a command without data means nothing: whatever it says, no data is looked for.
#[test]
fn a_command_without_data_does_not_mind_what_its_data_pointer_says() {
    let mut session = io_session(false, false);
    for (id, opcode) in [(1, NvmOpcode::FLUSH), (2, NvmOpcode::WRITE_ZEROES)] {
        assert_eq!(status(session.send(&in_capsule(opcode, id, 0, 1), &[])), Status::SUCCESS);
        assert_eq!(status(session.send(&in_capsule(opcode, id, 0, 1), &pattern(1, 3))), Status::SUCCESS);
    }
    assert_eq!(read(&mut session, 0, 1), vec![0; BLOCK]);
}

/// Otherwise hosts that ask for all the room there is, and never send what they were then asked for, would stop every other one.
#[test]
fn hosts_that_hold_all_shared_room_hold_up_nobody() {
    let mut session = io_session(false, false);
    let shared = session.target.shared.room.clone();
    let data = pattern(256, 9);
    let ask = |session: &mut RawHost, ids: std::ops::RangeInclusive<u16>| {
        let writes = ids.clone().map(|id| command(NvmOpcode::WRITE, id, 0, 256));
        let stream: Vec<u8> = writes.flat_map(|write| session.capsule(&write, &[])).collect();
        session.receive(&stream);
        session.inbox.iter().filter(|(pdu, ..)| matches!(pdu, Pdu::R2t(_))).count()
    };
    let send = |session: &mut RawHost, id| {
        transfer(session, id, &data, data.len());
        assert_eq!(status(session.take_answer(id)), Status::SUCCESS);
    };

    assert!(shared.take(SHARED_DATA_BYTES_MAX), "others take it");
    assert_eq!(ask(&mut session, 1..=3), 2, "two have the connection's own room, the third waits for theirs");
    (1..=3).for_each(|id| send(&mut session, id));

    shared.give(SHARED_DATA_BYTES_MAX);
    assert_eq!(ask(&mut session, 4..=8), 5);
    assert!(!shared.take(SHARED_DATA_BYTES_MAX), "three are in the shared room");
    drop(session);
    assert!(shared.take(SHARED_DATA_BYTES_MAX), "which is whole again when the connection has ended");
}

/// Room was given back when an answer was handed to the send: what a host does not read is held all the same.
#[test]
fn data_has_its_room_until_it_is_sent() {
    use engine::net::SendBatch;

    let mut session = io_session(false, false);
    session.stalled = true;
    session.receive(&session.capsule(&command(NvmOpcode::READ, 1, 0, 4), &[]));
    let operation = session.core.next_operation().expect("a read");
    let outcome = executed(operation);
    session.core.complete(outcome);
    let mut batch = SendBatch::new();
    session.core.transmit(&mut batch, session.now);
    assert_eq!(session.core.room.taken(), 4 * BLOCK as u32, "the host may take its time");
    batch.clear();
    session.core.sent();
    assert_eq!(session.core.room.taken(), 0);
}
