//! NVM commands: what is checked before any data moves, what is executed, and how an outcome becomes a status
//! (NVM Command Set 1.0 §3).

use device::{AnyNamespace, Durability, Error, Lba, NamespaceInfo, ZoneError};
use engine::{Buf, View};
use nvme::command::{CopyRange, DATASET_DEALLOCATE, DATASET_RANGES_MAX, DatasetRange};
use nvme::opcode::NvmOpcode;
use nvme::sgl::SglKind;
use nvme::{Status, Submission};
use zerocopy::FromBytes;

use super::limits::{COPY_BYTES_MAX, COPY_RANGES_MAX, TRANSFER_BYTES_MAX};
use super::stats::CommandKind;
use super::zns::{Need, ZoneWork};
use super::{manage, reservation};

/// Data of a Dataset Management command. Derived: as many ranges as there can be.
const RANGES_BYTES_MAX: u32 = (DATASET_RANGES_MAX * size_of::<DatasetRange>()) as u32;

/// What a command needs before it can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// Nothing.
    Run,
    /// A buffer of this many bytes to read into.
    Read(u32),
    /// The data in its capsule.
    Capsule,
    /// This many bytes by R2T.
    Transfer(u32),
}

/// An I/O command ready to be executed, or a flush that a shutdown asked for (no slot).
pub(super) struct Operation {
    pub slot: Option<u16>,
    pub namespace: AnyNamespace,
    /// What was written before is made stable first, or the operation fails.
    pub commit: bool,
    pub work: Work,
}

/// What a connection has to do outside its core.
pub(super) enum Job {
    /// On a namespace.
    Operation(Operation),
    /// Namespace Management or Attachment, for the command in a slot. Boxed: these are rare.
    Manage(u16, Box<manage::Request>),
}

pub(super) enum Work {
    Read {
        lba: Lba,
        buf: Buf,
    },
    Write {
        lba: Lba,
        data: View,
        durability: Durability,
    },
    Flush,
    Compare {
        lba: Lba,
        expected: View,
    },
    CompareAndWrite {
        lba: Lba,
        expected: View,
        new: View,
        durability: Durability,
    },
    WriteZeroes {
        lba: Lba,
        blocks: u64,
        durability: Durability,
        /// The room may be given back.
        deallocates: bool,
    },
    /// Ranges as they came, checked.
    Deallocate {
        ranges: View,
    },
    Verify {
        lba: Lba,
        blocks: u64,
    },
    WriteUncorrectable {
        lba: Lba,
        blocks: u64,
    },
    /// Source ranges as they came, checked; `block_size` is the namespace's.
    Copy {
        lba: Lba,
        ranges: View,
        block_size: u32,
        durability: Durability,
    },
    /// On zones.
    Zones(ZoneWork),
    /// A reservation command. Boxed: these are rare, and every other operation would pay for its size.
    Reserve(Box<reservation::Request>),
}

/// What became of an [`Operation`].
pub(super) struct Outcome {
    pub slot: Option<u16>,
    pub result: Result<(), Error>,
    /// What a reservation or management command is answered with; `result` is of no interest then.
    pub status: Option<Status>,
    /// What was read; else empty.
    pub data: Buf,
    /// Dwords 0 and 1 of the completion: of a Copy that failed the first source range that was not copied whole, of a namespace
    /// that was made its identifier, of a Zone Append where it went.
    pub dwords: u64,
}

/// Checks a command against its namespace (NVM Command Set 1.0 §2.1, §3.2).
pub(super) fn plan(
    command: &Submission,
    kind: CommandKind,
    info: &NamespaceInfo,
    capsule_bytes: u32,
) -> Result<Plan, Status> {
    match kind {
        CommandKind::Flush => Ok(Plan::Run),
        CommandKind::Reservation => reservation::plan(command, capsule_bytes),
        CommandKind::WriteZeroes | CommandKind::Verify => {
            check_range(command.lba(), u64::from(command.blocks()), info)?;
            Ok(Plan::Run)
        }
        CommandKind::WriteUncorrectable if !info.write_uncorrectable => Err(Status::INVALID_OPCODE.do_not_retry()),
        CommandKind::WriteUncorrectable => {
            // Its size limit is that of transfers (WUSL, NVM Command Set 1.0c §4.1.5.4).
            transfer_bytes(command, info)?;
            Ok(Plan::Run)
        }
        CommandKind::Read => {
            let bytes = transfer_bytes(command, info)?;
            check_to_host(command, bytes)?;
            if command.sgl.length.get() != bytes {
                return Err(Status::DATA_SGL_LENGTH_INVALID.do_not_retry());
            }
            Ok(Plan::Read(bytes))
        }
        CommandKind::Write | CommandKind::Compare | CommandKind::CompareAndWrite => {
            plan_from_host(command, transfer_bytes(command, info)?, capsule_bytes)
        }
        CommandKind::Deallocate => {
            // Hosts may send room for all ranges there can be, whatever their number: Linux does.
            let room = command.sgl.length.get();
            if room < ranges_bytes(command) || room > RANGES_BYTES_MAX {
                return Err(Status::DATA_SGL_LENGTH_INVALID.do_not_retry());
            }
            plan_from_host(command, room, capsule_bytes)
        }
        CommandKind::Copy => {
            check_copy(command)?;
            plan_from_host(command, copy_ranges_bytes(command), capsule_bytes)
        }
        // Of a namespace without zones (`zns::plan`).
        CommandKind::ZoneAppend | CommandKind::ZoneSend | CommandKind::ZoneReceive => {
            Err(Status::INVALID_OPCODE.do_not_retry())
        }
    }
}

/// What a command on zones needs, by its data.
pub(super) fn plan_on_zones(command: &Submission, need: &Need, capsule_bytes: u32) -> Result<Plan, Status> {
    match *need {
        Need::Nothing => Ok(Plan::Run),
        Need::FromHost(bytes) => plan_from_host(command, bytes, capsule_bytes),
        Need::ToHost(bytes) => check_to_host(command, bytes).map(|()| Plan::Read(bytes)),
    }
}

/// What a Copy command says beside its ranges (NVM Command Set 1.0c §3.2.2): the descriptor format, and how many there are.
fn check_copy(command: &Submission) -> Result<(), Status> {
    if command.copy_format() != 0 {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    if command.copy_ranges() > COPY_RANGES_MAX {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.do_not_retry());
    }
    Ok(())
}

/// Bytes of the source ranges of a Copy command.
pub(super) fn copy_ranges_bytes(command: &Submission) -> u32 {
    command.copy_ranges() * size_of::<CopyRange>() as u32
}

/// Blocks of one source range of a Copy command, at most (MSSRL).
pub(super) fn copy_range_blocks_max(info: &NamespaceInfo) -> u16 {
    info.transfer_blocks_max.min(u32::from(u16::MAX)) as u16
}

/// Blocks that one Copy command may move, at most (MCL).
pub(super) fn copy_blocks_max(info: &NamespaceInfo) -> u32 {
    COPY_BYTES_MAX / info.block_size
}

/// Start and length of every source range of a Copy command.
pub(super) fn copy_ranges(data: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let ranges = data.chunks_exact(size_of::<CopyRange>());
    ranges.map(|bytes| {
        let range = CopyRange::read_from_bytes(bytes).expect("invariant: chunks_exact gives exactly its size");
        (range.lba.get(), u64::from(range.nlb.get()) + 1)
    })
}

/// The source ranges of a Copy command, once they are here: each and all within the limits and the namespace, and none of
/// them where the copy goes: what a range that overlaps its destination would read depends on how far the copy is.
pub(super) fn check_copy_ranges(command: &Submission, data: &[u8], info: &NamespaceInfo) -> Result<(), Status> {
    let too_large = Status::COMMAND_SIZE_LIMIT_EXCEEDED.do_not_retry();
    let mut blocks = 0;
    for (_, length) in copy_ranges(data) {
        if length > u64::from(copy_range_blocks_max(info)) {
            return Err(too_large);
        }
        blocks += length;
    }
    if blocks > u64::from(copy_blocks_max(info)) {
        return Err(too_large);
    }
    let to = command.lba();
    check_range(to, blocks, info)?;
    for (from, length) in copy_ranges(data) {
        check_range(from, length, info)?;
        if from < to + blocks && to < from + length {
            return Err(Status::OVERLAPPING_IO_RANGE.do_not_retry());
        }
    }
    Ok(())
}

fn check_range(lba: u64, blocks: u64, info: &NamespaceInfo) -> Result<(), Status> {
    let end = lba.checked_add(blocks);
    if end.is_none_or(|end| end > info.blocks) {
        return Err(Status::LBA_OUT_OF_RANGE.do_not_retry());
    }
    Ok(())
}

/// Bytes of a read, write or compare within the namespace and MDTS.
fn transfer_bytes(command: &Submission, info: &NamespaceInfo) -> Result<u32, Status> {
    let blocks = command.blocks();
    check_range(command.lba(), u64::from(blocks), info)?;
    let bytes = u64::from(blocks) * u64::from(info.block_size);
    if bytes > u64::from(TRANSFER_BYTES_MAX) || blocks > info.transfer_blocks_max {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    Ok(bytes as u32)
}

/// Data to the host needs a transport data block of at least `bytes`.
pub(super) fn check_to_host(command: &Submission, bytes: u32) -> Result<(), Status> {
    match command.sgl.kind() {
        SglKind::Transport if command.sgl.length.get() >= bytes => Ok(()),
        SglKind::Transport => Err(Status::DATA_SGL_LENGTH_INVALID.do_not_retry()),
        _ => Err(Status::SGL_TYPE_INVALID.do_not_retry()),
    }
}

/// Data from the host: in the capsule, or by R2T; exactly `bytes` (NVMe Base 2.0 §4.1.2: SGLS bit 18 is not set).
pub(super) fn plan_from_host(command: &Submission, bytes: u32, capsule_bytes: u32) -> Result<Plan, Status> {
    let fits = command.sgl.length.get() == bytes;
    match command.sgl.kind() {
        SglKind::InCapsule { .. } | SglKind::Transport if !fits => Err(Status::DATA_SGL_LENGTH_INVALID.do_not_retry()),
        SglKind::Transport => Ok(Plan::Transfer(bytes)),
        SglKind::InCapsule { offset } => {
            let end = offset.checked_add(u64::from(bytes));
            if end.is_none_or(|end| end > u64::from(capsule_bytes)) {
                return Err(Status::SGL_OFFSET_INVALID.do_not_retry());
            }
            Ok(Plan::Capsule)
        }
        SglKind::Other(_) => Err(Status::SGL_TYPE_INVALID.do_not_retry()),
    }
}

/// Whether a command that reads must not tell what the next power loss may take back (NVM Command Set 1.0c §3.2.1, §3.2.4,
/// §3.2.5: with FUA the controller commits the data to non-volatile medium, and then reads it there). Where this host has
/// switched the cache off, others write through it all the same, and it may have done so before.
pub(super) fn commits_first(command: &Submission, kind: CommandKind, info: &NamespaceInfo) -> bool {
    let reads = matches!(kind, CommandKind::Read | CommandKind::Compare | CommandKind::Verify);
    reads && command.force_unit_access() && info.volatile_cache
}

/// Whether a fused compare and write of this size is one the namespace can do (NVMe Base 2.0 §3.4.2, ACWU).
pub(super) fn check_fused_size(command: &Submission, info: &NamespaceInfo) -> Result<(), Status> {
    match info.compare_and_write_blocks_max {
        0 => Err(Status::INVALID_FIELD.do_not_retry()),
        max if command.blocks() > max => Err(Status::ATOMIC_WRITE_UNIT_EXCEEDED.do_not_retry()),
        _ => Ok(()),
    }
}

/// The halves of a fused pair must be a compare and a write of the same blocks (NVM Command Set 1.0 §2.1.2).
pub(super) fn is_pair(first: &Submission, second: &Submission) -> bool {
    second.opcode == NvmOpcode::WRITE.0
        && first.nsid == second.nsid
        && first.lba() == second.lba()
        && first.blocks() == second.blocks()
}

/// The ranges of a Dataset Management command, once its data is here: all must lie in the namespace.
pub(super) fn check_ranges(data: &[u8], info: &NamespaceInfo) -> Result<(), Status> {
    ranges(data).try_for_each(|(lba, blocks)| check_range(lba, blocks, info))
}

/// Start and length of every range.
pub(super) fn ranges(data: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let ranges = data.chunks_exact(size_of::<DatasetRange>());
    ranges.map(|bytes| {
        let range = DatasetRange::read_from_bytes(bytes).expect("invariant: chunks_exact gives exactly its size");
        (range.lba.get(), u64::from(range.blocks.get()))
    })
}

/// Bytes of the ranges of a Dataset Management command; its data may be longer.
pub(super) fn ranges_bytes(command: &Submission) -> u32 {
    ((command.cdw10.get() & 0xFF) + 1) * size_of::<DatasetRange>() as u32
}

/// Whether a Dataset Management command asks for more than hints.
pub(super) fn is_deallocate(command: &Submission) -> bool {
    command.cdw11.get() & DATASET_DEALLOCATE != 0
}

/// The status that tells a host of an error.
pub(super) fn status_of(error: &Error) -> Status {
    match error {
        Error::CompareFailure => Status::COMPARE_FAILURE.do_not_retry(),
        Error::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE.do_not_retry(),
        Error::InvalidLength { .. } => Status::INVALID_FIELD.do_not_retry(),
        Error::ReadOnly(_) => Status::WRITE_PROTECTED.do_not_retry(),
        Error::Unsupported(_) => Status::INVALID_OPCODE.do_not_retry(),
        Error::ReadFault(_) => Status::UNRECOVERED_READ_ERROR,
        Error::WriteFault(_) => Status::WRITE_FAULT,
        Error::OutOfSpace => Status::CAPACITY_EXCEEDED.do_not_retry(),
        Error::NotConnected(_) | Error::Disconnected(_) => Status::INTERNAL_PATH_ERROR,
        Error::Aborted => Status::ABORT_REQUESTED,
        Error::Reserved(_) => Status::RESERVATION_CONFLICT.do_not_retry(),
        Error::Zone(error) => zone_status(*error).do_not_retry(),
        Error::Status(_) => Status::INTERNAL_ERROR,
    }
}

/// The status that tells a host why a zone does not take a command (ZNS 1.1 figure 11).
fn zone_status(error: ZoneError) -> Status {
    match error {
        ZoneError::Boundary => Status::ZONE_BOUNDARY_ERROR,
        ZoneError::Full => Status::ZONE_IS_FULL,
        ZoneError::ReadOnly => Status::ZONE_IS_READ_ONLY,
        ZoneError::Offline => Status::ZONE_IS_OFFLINE,
        ZoneError::InvalidWrite => Status::ZONE_INVALID_WRITE,
        ZoneError::TooManyActive => Status::TOO_MANY_ACTIVE_ZONES,
        ZoneError::TooManyOpen => Status::TOO_MANY_OPEN_ZONES,
        ZoneError::InvalidTransition => Status::INVALID_ZONE_TRANSITION,
    }
}

/// The statuses of both halves of a fused pair: the half at fault tells it, the other that it was aborted for that.
pub(super) fn fused_statuses(result: &Result<(), Error>) -> (Status, Status) {
    match result {
        Ok(()) => (Status::SUCCESS, Status::SUCCESS),
        Err(error @ (Error::CompareFailure | Error::ReadFault(_) | Error::OutOfRange { .. })) => {
            (status_of(error), Status::FAILED_FUSED)
        }
        Err(error) => (Status::FAILED_FUSED, status_of(error)),
    }
}
