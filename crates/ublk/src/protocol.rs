//! The driver's structures, in the machine's order of bytes (`include/uapi/linux/ublk_cmd.h` of Linux 6.5 to 6.12), and requests.
//!
//! ```text
//!  description   op u8, flags u24 · sectors u32 · first sector u64 · address u64 (unused: data is copied by the server)
//! ```

use device::{Error, NamespaceInfo, TRANSFER_BYTES_MAX};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Requests under way, at most: tags of the only queue. Chosen: as many as the kernel's NVMe/TCP initiator has for a queue.
pub const REQUESTS_MAX: u16 = 128;
/// Bytes of a read or a write, at most: one transfer of a namespace.
const DATA_BYTES_MAX: u32 = TRANSFER_BYTES_MAX as u32;
/// Bytes of one request to zero or to discard, at most. Guessed: what a slow medium writes in some seconds, where it has no better
/// way; the device is asked for nothing else through that tag meanwhile.
const RANGE_BYTES_MAX: u32 = 256 << 20;
/// Bytes of a sector, in which the kernel counts.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// Bytes of a logical block, at most: no page of any machine is smaller.
const BLOCK_BYTES_MAX: u32 = 4096;
/// A device's reads and writes may have as many bytes as the largest page of any machine, or the kernel takes no such device; those
/// that a namespace takes in parts only are given so.
const PAGE_BYTES_MAX: u32 = 64 << 10;

/// Features of the driver, and flags of a device.
pub(crate) mod feature {
    /// A device waits for the next server when its own has ended,
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// and gives that one the requests that were not answered.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are encoded as for `ioctl`.
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// The server copies data by reading and writing the device's file.
    pub const USER_COPY: u64 = 1 << 7;
    /// The size can be changed.
    pub const UPDATE_SIZE: u64 = 1 << 10;
}

/// What the driver knows of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Queues.
    pub queues: u16,
    /// Tags of each.
    pub depth: u16,
    /// 0: there is no block device; 1: there is one; 2: it waits for a server.
    pub state: u16,
    pad0: u16,
    /// Bytes of a read or a write, at most.
    pub data_bytes_max: u32,
    /// The number in the names `/dev/ublkcN` and `/dev/ublkbN`.
    pub id: u32,
    /// The server's process.
    pub server: i32,
    pad1: u32,
    /// Its features.
    pub flags: u64,
    /// What its maker has put there; nothing to the driver.
    pub mark: u64,
    owner_uid: u32,
    owner_gid: u32,
    reserved: [u64; 2],
}

const _: () = assert!(size_of::<DeviceInfo>() == 64);

impl DeviceInfo {
    /// A device to be made, whose number the driver chooses.
    pub(crate) fn new(mark: u64) -> DeviceInfo {
        use feature as f;
        DeviceInfo {
            queues: 1,
            depth: REQUESTS_MAX,
            data_bytes_max: DATA_BYTES_MAX,
            id: u32::MAX,
            flags: f::USER_RECOVERY | f::USER_RECOVERY_REISSUE | f::CMD_IOCTL_ENCODE | f::USER_COPY,
            mark,
            ..DeviceInfo::default()
        }
    }
}

/// Of what size and kind a block device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Parameters {
    bytes: u32,
    types: u32,
    attributes: u32,
    logical_block_shift: u8,
    physical_block_shift: u8,
    io_opt_shift: u8,
    io_min_shift: u8,
    max_sectors: u32,
    chunk_sectors: u32,
    sectors: u64,
    virt_boundary_mask: u64,
    discard_alignment: u32,
    discard_granularity: u32,
    max_discard_sectors: u32,
    max_write_zeroes_sectors: u32,
    max_discard_segments: u16,
    reserved: u16,
    /// The driver's own structure goes on here, at a multiple of four; what is not told is not set.
    end: u32,
}

const _: () = assert!(size_of::<Parameters>() == 64);
/// Bytes of them that are told: those of both parts.
const PARAMETERS_BYTES: u32 = 60;

/// Attributes.
mod attribute {
    pub const READ_ONLY: u32 = 1;
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    pub const FUA: u32 = 1 << 3;
}

/// What the kernel is told of a namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    info: NamespaceInfo,
    is_read_only: bool,
}

impl Shape {
    /// Of a namespace; `None` where its blocks are larger than the kernel's pages may be.
    pub fn of(info: NamespaceInfo, is_read_only: bool) -> Option<Shape> {
        (info.block_size <= BLOCK_BYTES_MAX).then_some(Shape { info, is_read_only })
    }

    /// Its size as the kernel counts.
    pub(crate) fn sectors(&self) -> u64 {
        self.info.bytes() / SECTOR_BYTES
    }

    pub(crate) fn parameters(&self) -> Parameters {
        const BASIC: u32 = 1;
        const DISCARD: u32 = 1 << 1;
        let NamespaceInfo { block_size, transfer_blocks_max, volatile_cache, .. } = self.info;
        let shift = |bytes: u32| bytes.ilog2() as u8;
        let sectors = |bytes: u32| bytes / SECTOR_BYTES as u32;
        let in_blocks = |blocks: u32, most: u32| block_size.saturating_mul(blocks).clamp(block_size, most);
        let preferred = in_blocks(self.info.preferred_write_blocks, DATA_BYTES_MAX);
        let largest = in_blocks(transfer_blocks_max, DATA_BYTES_MAX).max(PAGE_BYTES_MAX);
        let mut parameters = Parameters {
            bytes: PARAMETERS_BYTES,
            types: BASIC,
            logical_block_shift: shift(block_size),
            // Of those that are cheap to write a power of two.
            physical_block_shift: shift(preferred.min(BLOCK_BYTES_MAX)),
            io_min_shift: shift(preferred),
            io_opt_shift: shift(preferred),
            max_sectors: sectors(largest),
            sectors: self.sectors(),
            ..Parameters::default()
        };
        if volatile_cache {
            parameters.attributes |= attribute::VOLATILE_CACHE | attribute::FUA;
        }
        if self.is_read_only {
            parameters.attributes |= attribute::READ_ONLY;
            return parameters;
        }
        parameters.types |= DISCARD;
        parameters.discard_granularity = in_blocks(self.info.preferred_deallocate_blocks, RANGE_BYTES_MAX);
        parameters.max_discard_sectors = sectors(RANGE_BYTES_MAX);
        parameters.max_write_zeroes_sectors = sectors(RANGE_BYTES_MAX);
        parameters.max_discard_segments = 1;
        parameters
    }
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
    /// What a device like ours is not asked for.
    Other(u8),
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub operation: Operation,
    pub offset: u64,
    pub bytes: u64,
    /// To be stable when it is answered.
    pub fua: bool,
    /// What reads as zeroes keeps its room.
    pub keeps_room: bool,
}

impl Request {
    /// Reads a description; `None` where its range is none at all.
    pub fn read(words: [u64; 3]) -> Option<Request> {
        const FUA: u32 = 1 << 13;
        const NOUNMAP: u32 = 1 << 15;
        // Two numbers of 32 bits in the machine's order.
        let bytes = words[0].to_ne_bytes();
        let half = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (flags, sectors) = (half(0), half(4));
        let operation = match flags as u8 {
            0 => Operation::Read,
            1 => Operation::Write,
            2 => Operation::Flush,
            3 => Operation::Discard,
            5 => Operation::WriteZeroes,
            other => Operation::Other(other),
        };
        let (offset, bytes) = match operation {
            // The kernel has no range for it, and may say any.
            Operation::Flush => (0, 0),
            _ => (words[1].checked_mul(SECTOR_BYTES)?, u64::from(sectors) * SECTOR_BYTES),
        };
        offset.checked_add(bytes)?;
        Some(Request { operation, offset, bytes, fua: flags & FUA != 0, keeps_room: flags & NOUNMAP != 0 })
    }
}

/// Why a request failed, as a number that the kernel has a kind of error for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(crate) enum Errno {
    Io = 5,
    NoSpace = 28,
    /// Another host has it (EBADE).
    Reserved = 52,
    /// The medium can't give it back (ENODATA).
    Medium = 61,
    NotSupported = 95,
}

impl From<&Error> for Errno {
    fn from(error: &Error) -> Errno {
        match error {
            Error::OutOfSpace => Errno::NoSpace,
            Error::Reserved(_) => Errno::Reserved,
            Error::ReadFault(_) => Errno::Medium,
            Error::Unsupported(_) => Errno::NotSupported,
            _ => Errno::Io,
        }
    }
}
