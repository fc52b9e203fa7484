//! Copy, Verify and Write Uncorrectable (NVM Command Set 1.0c §3.2.2, §3.2.5, §3.2.7).

use device::{Memory, Namespace};
use nvme::SglDescriptor;
use nvme::command::{CopyRange, DATASET_DEALLOCATE, DatasetRange, FORCE_UNIT_ACCESS};
use nvme::identify::{Cns, IdentifyController, IdentifyNamespace, IdentifyNvmController, oncs};
use nvme::opcode::AdminOpcode;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::subsystem::io::Work;

fn source(lba: u64, blocks: u32) -> CopyRange {
    CopyRange { lba: lba.into(), nlb: ((blocks - 1) as u16).into(), ..CopyRange::default() }
}

fn copy(to: u64, ranges: &[CopyRange]) -> Submission {
    let mut command = Submission::nvm(NvmOpcode::COPY, 1, 1);
    command.cdw10 = (to as u32).into();
    command.cdw11 = ((to >> 32) as u32).into();
    command.cdw12 = (ranges.len() as u32 - 1).into();
    command.sgl = SglDescriptor::in_capsule(size_of_val(ranges) as u32);
    command
}

fn copied(session: &mut RawHost, to: u64, ranges: &[CopyRange]) -> (Status, u64) {
    let (completion, _) = session.send(&copy(to, ranges), ranges.as_bytes()).expect("answered");
    (completion.status().kind(), completion.result.get())
}

fn without_data(session: &mut RawHost, opcode: NvmOpcode, lba: u64, blocks: u32) -> Status {
    let mut command = Submission::nvm(opcode, 3, 1);
    command.set_range(lba, blocks);
    status(session.send(&command, &[])).kind()
}

fn identify<T: FromBytes>(session: &mut RawHost, cns: Cns, nsid: u32) -> T {
    let mut command = Submission::admin(AdminOpcode::IDENTIFY, 1, nsid);
    command.sgl = SglDescriptor::transport(4096);
    command.cdw10 = u32::from(cns.0).into();
    let (_, page) = session.send(&command, &[]).expect("answered");
    T::read_from_bytes(&page).unwrap()
}

#[test]
fn copy_gathers_its_ranges_in_order() {
    let mut session = io_session(false, false);
    for (lba, seed) in [(10, 1), (20, 2), (40, 3)] {
        assert_eq!(write(&mut session, lba, &pattern(4, seed)), Status::SUCCESS);
    }
    let ranges = [source(20, 2), source(10, 4), source(41, 1)];
    assert_eq!(copied(&mut session, 100, &ranges), (Status::SUCCESS, 0));
    let expected = [&pattern(4, 2)[..2 * BLOCK], &pattern(4, 1), &pattern(4, 3)[BLOCK..2 * BLOCK]].concat();
    assert_eq!(read(&mut session, 100, 7), expected);
    assert_eq!(read(&mut session, 20, 2), pattern(4, 2)[..2 * BLOCK], "the source is as it was");
    assert_eq!(session.target.stats().commands(super::super::CommandKind::Copy), 1);
}

/// Longer than the buffer that a copy holds, and by R2T.
#[test]
fn a_long_copy_goes_through_a_bounded_buffer() {
    let mut session = RawHost::new(Memory::new(8 << 20, BLOCK as u32, [7; 16]).unwrap());
    session.open(false, false);
    session.connect_io();
    for piece in 0..50 {
        assert_eq!(write(&mut session, piece * 4, &pattern(4, piece as u8)), Status::SUCCESS);
    }
    let from = read(&mut session, 0, 200);
    let ranges = [source(0, 200)];
    let command = Submission { sgl: SglDescriptor::transport(32), ..copy(1000, &ranges) };
    assert_eq!(session.send(&command, &[]), None, "the ranges are asked for");
    super::io::transfer(&mut session, 1, ranges.as_bytes(), 8);
    assert_eq!(status(session.take_answer(1)), Status::SUCCESS);
    assert_eq!(read(&mut session, 1000, 200), from);
}

#[test]
fn copy_refuses_what_it_can_not_do() {
    let mut session = RawHost::new(Memory::new(64 << 20, 512, [7; 16]).unwrap());
    session.open(false, false);
    session.connect_io();
    let namespace: IdentifyNamespace = identify(session.admin.as_mut().unwrap(), Cns::NAMESPACE, 1);
    let (range_max, blocks_max) = (u32::from(namespace.mssrl.get()), namespace.mcl.get());
    assert_eq!((range_max, blocks_max, namespace.msrc), (2048, 32768, 255));
    let too_large = Status::COMMAND_SIZE_LIMIT_EXCEEDED;
    assert_eq!(copied(&mut session, 100_000, &[source(0, range_max + 1)]).0, too_large);
    assert_eq!(copied(&mut session, 100_000, &[source(0, range_max); 17]).0, too_large);
    assert_eq!(copied(&mut session, 60_000, &[source(0, range_max); 16]).0, Status::SUCCESS);
    let beyond = 131_072;
    assert_eq!(copied(&mut session, beyond - 1, &[source(0, 2)]).0, Status::LBA_OUT_OF_RANGE, "destination");
    assert_eq!(copied(&mut session, 0, &[source(beyond - 1, 2)]).0, Status::LBA_OUT_OF_RANGE, "source");
    assert_eq!(copied(&mut session, u64::MAX, &[source(0, 2)]).0, Status::LBA_OUT_OF_RANGE);
    assert_eq!(copied(&mut session, 0, &[source(u64::MAX, 2)]).0, Status::LBA_OUT_OF_RANGE);
    for (to, from) in [(10, 10), (9, 10), (13, 10), (8, 10)] {
        let expected = if to == 8 { Status::SUCCESS } else { Status::OVERLAPPING_IO_RANGE };
        assert_eq!(copied(&mut session, to, &[source(from, if to == 8 { 2 } else { 4 })]).0, expected, "{to} {from}");
    }
    let ranges = [source(0, 1), source(5, 1)];
    for format in 1..16 {
        let mut command = copy(100, &ranges);
        command.cdw12 = (command.cdw12.get() | format << 8).into();
        assert_eq!(status(session.send(&command, ranges.as_bytes())).kind(), Status::INVALID_FIELD, "format {format}");
    }
    let short = Submission { sgl: SglDescriptor::in_capsule(32), ..copy(100, &ranges) };
    assert_eq!(status(session.send(&short, &ranges.as_bytes()[..32])).kind(), Status::DATA_SGL_LENGTH_INVALID);
}

/// What can not be read is not copied: the answer says which range, and the ranges before it are there.
#[test]
fn a_copy_stops_at_a_source_that_can_not_be_read() {
    let mut session = io_session(false, false);
    assert_eq!(write(&mut session, 10, &pattern(2, 1)), Status::SUCCESS);
    assert_eq!(write(&mut session, 100, &pattern(4, 9)), Status::SUCCESS);
    assert_eq!(without_data(&mut session, NvmOpcode::WRITE_UNCORRECTABLE, 20, 1), Status::SUCCESS);
    let ranges = [source(10, 1), source(20, 1), source(11, 1)];
    assert_eq!(copied(&mut session, 100, &ranges), (Status::UNRECOVERED_READ_ERROR, 1));
    assert_eq!(read(&mut session, 100, 1), pattern(2, 1)[..BLOCK]);
    assert_eq!(
        read(&mut session, 101, 3),
        pattern(4, 9)[BLOCK..],
        "nothing was written in place of what is unreadable"
    );
}

#[test]
fn copies_under_way_are_bounded_and_force_unit_access_reaches_them() {
    let mut session = RawHost::new(memory());
    session.open(false, false);
    session.connect_io_of(128);
    session.stalled = true;
    let ranges = [source(0, 1)];
    for id in 0..100u16 {
        let mut command = Submission { command_id: id.into(), ..copy(10, &ranges) };
        command.cdw12 = FORCE_UNIT_ACCESS.into();
        session.receive(&session.capsule(&command, ranges.as_bytes()));
    }
    let mut begun = 0;
    while let Some(operation) = session.core.next_operation() {
        assert!(matches!(operation.work, Work::Copy { durability: device::Durability::Stable, .. }));
        begun += 1;
    }
    assert_eq!(begun, 64, "16 MiB of buffers");
}

#[test]
fn marked_blocks_are_unreadable_until_they_are_written() {
    let mut session = io_session(false, false);
    assert_eq!(write(&mut session, 0, &pattern(4, 1)), Status::SUCCESS);
    assert_eq!(without_data(&mut session, NvmOpcode::VERIFY, 0, 256), Status::SUCCESS);
    assert_eq!(without_data(&mut session, NvmOpcode::WRITE_UNCORRECTABLE, 1, 2), Status::SUCCESS);
    let unreadable = Status::UNRECOVERED_READ_ERROR;
    assert_eq!(without_data(&mut session, NvmOpcode::VERIFY, 0, 256), unreadable);
    assert_eq!(without_data(&mut session, NvmOpcode::VERIFY, 3, 253), Status::SUCCESS);
    assert_eq!(status(session.send(&command(NvmOpcode::READ, 1, 0, 2), &[])).kind(), unreadable);
    assert_eq!(status(session.send(&in_capsule(NvmOpcode::COMPARE, 1, 2, 1), &pattern(1, 1))).kind(), unreadable);
    assert_eq!(read(&mut session, 0, 1), pattern(4, 1)[..BLOCK]);
    assert_eq!(write(&mut session, 1, &pattern(1, 2)), Status::SUCCESS);
    assert_eq!(read(&mut session, 0, 2)[BLOCK..], pattern(1, 2));
    assert_eq!(without_data(&mut session, NvmOpcode::VERIFY, 2, 1), unreadable);
    let range = [DatasetRange { attributes: 0.into(), blocks: 1.into(), lba: 2.into() }];
    let mut deallocate = Submission::nvm(NvmOpcode::DATASET_MANAGEMENT, 1, 1);
    deallocate.cdw11 = DATASET_DEALLOCATE.into();
    deallocate.sgl = SglDescriptor::in_capsule(16);
    assert_eq!(status(session.send(&deallocate, range.as_bytes())), Status::SUCCESS);
    assert_eq!(without_data(&mut session, NvmOpcode::VERIFY, 0, 256), Status::SUCCESS);
    for opcode in [NvmOpcode::VERIFY, NvmOpcode::WRITE_UNCORRECTABLE] {
        assert_eq!(without_data(&mut session, opcode, BLOCKS - 1, 2), Status::LBA_OUT_OF_RANGE);
    }
}

/// The limit that CNS 06h states is the one that holds (WUSL is 2^8 pages of 4 KiB here).
#[test]
fn the_controller_states_the_limits_of_its_commands() {
    let mut session = RawHost::new(Memory::new(4 << 20, 512, [7; 16]).unwrap());
    session.open(false, false);
    session.connect_io();
    let admin = session.admin.as_mut().unwrap();
    let controller: IdentifyController = identify(admin, Cns::CONTROLLER, 0);
    let all = oncs::COMPARE | oncs::WRITE_UNCORRECTABLE | oncs::WRITE_ZEROES | oncs::VERIFY | oncs::COPY;
    assert_eq!((controller.oncs.get() & all, controller.ocfs.get()), (all, 1));
    let limits: IdentifyNvmController = identify(admin, Cns::CSI_CONTROLLER, 0);
    assert_eq!((limits.vsl, limits.wusl, limits.wzsl), (0, 8, 13));
    let blocks = (4096u32 << limits.wusl) / 512;
    assert_eq!(without_data(&mut session, NvmOpcode::WRITE_UNCORRECTABLE, 0, blocks), Status::SUCCESS);
    assert_eq!(without_data(&mut session, NvmOpcode::WRITE_UNCORRECTABLE, 0, blocks + 1), Status::INVALID_FIELD);
    assert_eq!(without_data(&mut session, NvmOpcode::VERIFY, 4096, 4096), Status::SUCCESS);
}

/// A namespace that can not keep marks refuses the command by itself; the others of the controller go on.
#[test]
fn a_namespace_without_write_uncorrectable_refuses_it() {
    let mut session = io_session(false, false);
    read(&mut session, 0, 1); // the connection has looked at its namespaces
    let attached = session.core.namespaces[0].clone();
    session.core.namespaces[0].info = device::NamespaceInfo { write_uncorrectable: false, ..attached.info };
    assert!(attached.namespace.info().write_uncorrectable);
    assert_eq!(without_data(&mut session, NvmOpcode::WRITE_UNCORRECTABLE, 0, 1), Status::INVALID_OPCODE);
}

/// A copy gave back the room of its ranges and kept them: a queue of copies held its ranges for nothing.
#[test]
fn a_copy_that_waits_has_room_for_all_that_it_holds() {
    use crate::subsystem::limits::COPY_BUFFER_BYTES;
    use crate::tcp::{DataPdu, Pdu};

    let mut session = io_session(false, false);
    session.stalled = true;
    let ranges = [source(1, 1); 8];
    let bytes = size_of_val(&ranges) as u32;
    let asked = Submission { sgl: SglDescriptor::transport(bytes), ..copy(100, &ranges) };
    session.receive(&session.capsule(&asked, &[]));
    let Some((Pdu::R2t(r2t), ..)) = session.inbox.pop() else { panic!("its ranges are asked for") };
    let pdu = DataPdu { cccid: 1, ttag: r2t.ttag, offset: 0, bytes, last: true, success: false };
    session.receive(&[&session.encoder.h2c_data(&pdu)[..], ranges.as_bytes()].concat());
    assert_eq!(session.core.room.taken(), bytes + COPY_BUFFER_BYTES);
    session.stalled = false;
    session.turn();
    assert_eq!(status(session.take_answer(1)), Status::SUCCESS);
    assert_eq!(session.core.room.taken(), 0);
}
