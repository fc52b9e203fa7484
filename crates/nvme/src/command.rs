//! Submission and completion queue entries (NVMe Base 2.0 §3.3.3).

use std::fmt;

use crate::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use crate::words::size;
use crate::{SglDescriptor, Status, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A submission queue entry, 64 bytes (NVMe Base 2.0 figure 87).
///
/// ```text
///  0 opcode | 1 flags: PSDT 7:6, FUSE 1:0 | 2 command identifier | 4 NSID (Fabrics: type in byte 4) | 8 CDW2, CDW3
///  16 metadata pointer | 24 SGL descriptor | 40 CDW10 … CDW15
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Submission {
    /// Opcode; its meaning depends on the queue.
    pub opcode: u8,
    /// FUSE (1:0) and PSDT (7:6).
    pub flags: u8,
    /// Command identifier: comes back in the completion.
    pub command_id: U16,
    /// Namespace identifier; for Fabrics commands the type is in the lowest byte.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer; not used over fabrics.
    pub metadata: U64,
    /// The command's data.
    pub sgl: SglDescriptor,
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}
size!(Submission = 64);

/// Place of a command in a fused operation (NVMe Base 2.0 §3.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fuse {
    /// Not fused.
    None,
    /// First command.
    First,
    /// Second command.
    Second,
    /// The reserved code 11b.
    Reserved,
}

/// CDW12 bit 30 of writes: Force Unit Access.
pub const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// CDW12 bit 25 of Write Zeroes: Deallocate.
pub const WRITE_ZEROES_DEALLOCATE: u32 = 1 << 25;
/// CDW11 bit 2 of Dataset Management: Attribute – Deallocate.
pub const DATASET_DEALLOCATE: u32 = 1 << 2;
/// PSDT 01b: SGLs are used for data transfer; the only form over fabrics.
pub const FLAGS_SGL: u8 = 0x40;

impl Submission {
    /// An admin command with SGLs.
    pub fn admin(opcode: AdminOpcode, command_id: u16, nsid: u32) -> Submission {
        Submission::any(opcode.0, command_id, nsid)
    }

    /// An NVM command with SGLs.
    pub fn nvm(opcode: NvmOpcode, command_id: u16, nsid: u32) -> Submission {
        Submission::any(opcode.0, command_id, nsid)
    }

    /// A Fabrics command of the given type.
    pub fn fabrics(kind: FabricsType, command_id: u16) -> Submission {
        Submission::any(AdminOpcode::FABRICS.0, command_id, u32::from(kind.0))
    }

    fn any(opcode: u8, command_id: u16, nsid: u32) -> Submission {
        Submission {
            opcode,
            flags: FLAGS_SGL,
            command_id: command_id.into(),
            nsid: nsid.into(),
            ..Submission::default()
        }
    }

    /// Fills the starting LBA and the number of blocks (1 to 65,536) of a read, write, compare or write zeroes.
    pub fn set_range(&mut self, lba: u64, blocks: u32) {
        debug_assert!((1..=65_536).contains(&blocks));
        self.set_lba(lba);
        let rest = self.cdw12.get() & 0xFFFF_0000;
        self.cdw12 = (rest | (blocks.wrapping_sub(1) & 0xFFFF)).into();
    }

    /// Fills the starting LBA alone.
    pub fn set_lba(&mut self, lba: u64) {
        self.cdw10 = (lba as u32).into();
        self.cdw11 = ((lba >> 32) as u32).into();
    }

    /// Starting LBA of a read, write, compare or write zeroes.
    pub fn lba(&self) -> u64 {
        u64::from(self.cdw10.get()) | u64::from(self.cdw11.get()) << 32
    }

    /// Number of blocks of a read, write, compare or write zeroes (the field is zero based), 1 to 65,536.
    pub fn blocks(&self) -> u32 {
        (self.cdw12.get() & 0xFFFF) + 1
    }

    /// Whether Force Unit Access is set.
    pub fn force_unit_access(&self) -> bool {
        self.cdw12.get() & FORCE_UNIT_ACCESS != 0
    }

    /// Place in a fused operation.
    pub fn fuse(&self) -> Fuse {
        match self.flags & 3 {
            0 => Fuse::None,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// Sets the place in a fused operation.
    pub fn set_fuse(&mut self, fuse: Fuse) {
        let bits = match fuse {
            Fuse::None => 0,
            Fuse::First => 1,
            Fuse::Second => 2,
            Fuse::Reserved => 3,
        };
        self.flags = self.flags & !3 | bits;
    }

    /// Whether PSDT says that SGLs are used (01b or 10b); over fabrics everything else is an error.
    pub fn uses_sgl(&self) -> bool {
        matches!(self.flags >> 6, 1 | 2)
    }

    /// The Fabrics command type, where the opcode is Fabrics.
    pub fn fabrics_type(&self) -> Option<FabricsType> {
        (self.opcode == AdminOpcode::FABRICS.0).then_some(FabricsType(self.nsid.get() as u8))
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cdw = [self.cdw10, self.cdw11, self.cdw12, self.cdw13, self.cdw14, self.cdw15].map(U32::get);
        write!(f, "opcode {:02x}h flags {:02x}h cid {} ", self.opcode, self.flags, self.command_id)?;
        write!(f, "nsid {:x}h sgl {:02x}h+{} cdw10 {cdw:x?}", self.nsid, self.sgl.identifier, self.sgl.length)
    }
}

/// A completion queue entry, 16 bytes (NVMe Base 2.0 figure 90; over fabrics the first 8 bytes are one result).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// Command specific result: dwords 0 and 1.
    pub result: U64,
    /// Submission queue head: how far the controller has taken entries from the queue.
    pub sq_head: U16,
    /// Submission queue identifier; reserved over fabrics.
    pub sq_id: U16,
    /// Command identifier of the command.
    pub command_id: U16,
    /// Status field, see [`Status::from_field`].
    pub status: U16,
}
size!(Completion = 16);

impl Completion {
    /// A completion of command `command_id`.
    pub fn new(command_id: u16, status: Status, result: u64, sq_head: u16) -> Completion {
        Completion {
            result: result.into(),
            sq_head: sq_head.into(),
            sq_id: 0.into(),
            command_id: command_id.into(),
            status: status.to_field().into(),
        }
    }

    /// The status.
    pub fn status(&self) -> Status {
        Status::from_field(self.status.get())
    }
}

/// One range of a Dataset Management command (NVM Command Set 1.0 figure 41).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DatasetRange {
    /// Context attributes: hints.
    pub attributes: U32,
    /// Length in logical blocks.
    pub blocks: U32,
    /// Starting LBA.
    pub lba: U64,
}
size!(DatasetRange = 16);

/// The most ranges of one Dataset Management command (the field is 8 bits, zero based).
pub const DATASET_RANGES_MAX: usize = 256;

/// One source range of a Copy command in descriptor format 0h (NVM Command Set 1.0c §3.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CopyRange {
    /// Reserved.
    pub reserved1: [u8; 8],
    /// Starting LBA.
    pub lba: U64,
    /// Number of logical blocks, zero based.
    pub nlb: U16,
    /// Reserved.
    pub reserved2: [u8; 6],
    /// Expected initial reference tag; not used without protection information.
    pub reference_tag: U32,
    /// Expected application tag and its mask; likewise.
    pub application_tag: U32,
}
size!(CopyRange = 32);

/// The most source ranges of one Copy command (the field is 8 bits, zero based).
pub const COPY_RANGES_MAX: usize = 256;

impl Submission {
    /// Number of source ranges of a Copy command, 1 to 256 (CDW12 bits 7:0, zero based).
    pub fn copy_ranges(&self) -> u32 {
        (self.cdw12.get() & 0xFF) + 1
    }

    /// Descriptor format of a Copy command (CDW12 bits 11:8).
    pub fn copy_format(&self) -> u8 {
        (self.cdw12.get() >> 8) as u8 & 0xF
    }

    /// Directive type of a write (CDW12 bits 23:20).
    pub fn directive_type(&self) -> u8 {
        (self.cdw12.get() >> 20) as u8 & 0xF
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_keeps_the_flags_above_it() {
        let mut command = Submission::nvm(NvmOpcode::WRITE, 7, 1);
        command.cdw12 = FORCE_UNIT_ACCESS.into();
        command.set_range(0x1_0000_0002, 65_536);
        assert_eq!((command.lba(), command.blocks()), (0x1_0000_0002, 65_536));
        assert!(command.force_unit_access() && command.uses_sgl());
        command.set_fuse(Fuse::Second);
        assert_eq!((command.fuse(), command.flags), (Fuse::Second, 0x42));
    }

    #[test]
    fn the_wire_places_of_the_fields() {
        let mut command = Submission::fabrics(FabricsType::CONNECT, 0x0102);
        command.cdw10 = 0x0304_0506.into();
        let bytes = command.as_bytes();
        assert_eq!((bytes[0], bytes[2], bytes[3], bytes[4]), (0x7F, 2, 1, 1));
        assert_eq!(&bytes[40..44], &[6, 5, 4, 3]);
    }
}
