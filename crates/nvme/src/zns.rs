//! The Zoned Namespace Command Set (ZNS 1.1): its data structures, and the fields of its commands.
//!
//! ```text
//!  79h Zone Management Send     CDW10, CDW11: a zone's first block; CDW13 7:0 action, 8 all zones
//!  7Ah Zone Management Receive  CDW10, CDW11: a block of the first zone; CDW12: dwords, zero based;
//!                               CDW13 7:0 action, 15:8 which states, 16 partial
//!  7Dh Zone Append              CDW10, CDW11: a zone's first block; CDW12 as of a write;
//!                               dwords 0 and 1 of the completion: where it was written
//! ```

use crate::opcode::NvmOpcode;
use crate::words::size;
use crate::{Submission, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// I/O command set identifiers (NVMe Base 2.0 figure 274).
pub mod command_set {
    /// NVM.
    pub const NVM: u8 = 0;
    /// Zoned Namespace.
    pub const ZONED: u8 = 2;
}

/// "As many as there are" in MAR and MOR, which are zero based otherwise.
pub const NO_LIMIT: u32 = u32::MAX;

/// Identify Namespace for the Zoned Namespace Command Set, CNS 05h (ZNS 1.1 §4.1.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyZoned {
    /// Zone operation characteristics: bit 0 capacities may change, bit 1 zones may be finished by the controller.
    pub zoc: U16,
    /// Optional zoned command support: bit 0 reads across a zone's end.
    pub ozcs: U16,
    /// Zones that may be active, zero based; [`NO_LIMIT`].
    pub mar: U32,
    /// Zones that may be open, zero based; [`NO_LIMIT`].
    pub mor: U32,
    /// Seconds after which a full zone should be reset; 0: not reported.
    pub rrl: U32,
    /// Seconds after which an active zone should be finished; 0: not reported.
    pub frl: U32,
    /// Reserved, and further limits of those two kinds.
    pub reserved20: [u8; 2796],
    /// What each LBA format means for zones, in the order of the formats in Identify Namespace.
    pub lbafe: [ZonedFormat; 64],
    /// Vendor specific.
    pub vendor: [u8; 256],
}

/// OZCS bit 0: Read Across Zone Boundaries.
pub const READ_ACROSS_ZONES: u16 = 1 << 0;

/// LBA Format Extension (ZNS 1.1 §4.1.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ZonedFormat {
    /// Zone size, blocks.
    pub zsze: U64,
    /// Zone descriptor extension size, units of 64 bytes.
    pub zdes: u8,
    /// Reserved.
    pub reserved9: [u8; 7],
}

/// Identify Controller for the Zoned Namespace Command Set, CNS 06h (ZNS 1.1 §4.1.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyZonedController {
    /// Zone append size limit, a power of two of the smallest page; 0: as MDTS.
    pub zasl: u8,
    /// Reserved.
    pub reserved1: [u8; 4095],
}

/// What Zone Management Receive gives begins so; descriptors follow (ZNS 1.1 §3.4.2.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ZoneReportHead {
    /// Zones that the report is about; of a partial one: that follow.
    pub zones: U64,
    /// Reserved.
    pub reserved8: [u8; 56],
}

/// A zone in a report (ZNS 1.1 §3.4.2.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ZoneDescriptor {
    /// Type, bits 3:0: [`ZONE_SEQUENTIAL`].
    pub zt: u8,
    /// State, bits 7:4: see [`zone_state`].
    pub zs: u8,
    /// Attributes.
    pub za: u8,
    /// Attributes' information.
    pub zai: u8,
    /// Reserved.
    pub reserved4: [u8; 4],
    /// Blocks that can be written.
    pub zcap: U64,
    /// The first block.
    pub zslba: U64,
    /// Write pointer; all ones where the state has none.
    pub wp: U64,
    /// Reserved.
    pub reserved32: [u8; 32],
}

size!(IdentifyZoned = 4096, ZonedFormat = 16, IdentifyZonedController = 4096, ZoneReportHead = 64, ZoneDescriptor = 64,);
const _: () = assert!(std::mem::offset_of!(IdentifyZoned, lbafe) == 2816);
const _: () = assert!(std::mem::offset_of!(IdentifyZoned, vendor) == 3840);
const _: () = assert!(std::mem::offset_of!(ZoneDescriptor, wp) == 24);

/// Zone type: Sequential Write Required, the only one that NVMe has.
pub const ZONE_SEQUENTIAL: u8 = 2;
/// The write pointer of a zone that has none.
pub const WRITE_POINTER_NONE: u64 = u64::MAX;

/// Zone states (ZNS 1.1 figure 37).
pub mod zone_state {
    /// Empty.
    pub const EMPTY: u8 = 0x1;
    /// Implicitly Opened.
    pub const IMPLICITLY_OPEN: u8 = 0x2;
    /// Explicitly Opened.
    pub const EXPLICITLY_OPEN: u8 = 0x3;
    /// Closed.
    pub const CLOSED: u8 = 0x4;
    /// Read Only.
    pub const READ_ONLY: u8 = 0xD;
    /// Full.
    pub const FULL: u8 = 0xE;
    /// Offline.
    pub const OFFLINE: u8 = 0xF;
}

/// Zone Send Actions (ZNS 1.1 figure 39).
pub mod send_action {
    /// Close Zone.
    pub const CLOSE: u8 = 0x01;
    /// Finish Zone.
    pub const FINISH: u8 = 0x02;
    /// Open Zone.
    pub const OPEN: u8 = 0x03;
    /// Reset Zone.
    pub const RESET: u8 = 0x04;
    /// Offline Zone.
    pub const OFFLINE: u8 = 0x05;
    /// Set Zone Descriptor Extension.
    pub const SET_EXTENSION: u8 = 0x10;
}

/// Zone Receive Actions (ZNS 1.1 figure 34).
pub mod receive_action {
    /// Report Zones.
    pub const REPORT: u8 = 0;
    /// Extended Report Zones.
    pub const EXTENDED_REPORT: u8 = 1;
}

/// Which zones are reported (ZNS 1.1 figure 34): all, or those of one state.
pub const REPORTED_STATES: [Option<u8>; 8] = [
    None,
    Some(zone_state::EMPTY),
    Some(zone_state::IMPLICITLY_OPEN),
    Some(zone_state::EXPLICITLY_OPEN),
    Some(zone_state::CLOSED),
    Some(zone_state::FULL),
    Some(zone_state::READ_ONLY),
    Some(zone_state::OFFLINE),
];

/// What a Zone Management Receive asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneReceive {
    /// A block of the first zone that is reported.
    pub lba: u64,
    /// Bytes asked for, a multiple of 4.
    pub bytes: u64,
    /// See [`receive_action`].
    pub action: u8,
    /// An index into [`REPORTED_STATES`].
    pub states: u8,
    /// The head counts those zones that follow it, and not all that there are.
    pub partial: bool,
}

impl ZoneReceive {
    /// Reads the fields of a command.
    pub fn from_submission(command: &Submission) -> ZoneReceive {
        let how = command.cdw13.get();
        ZoneReceive {
            lba: command.lba(),
            bytes: (u64::from(command.cdw12.get()) + 1) * 4,
            action: how as u8,
            states: (how >> 8) as u8,
            partial: how & 1 << 16 != 0,
        }
    }

    /// A command that asks for it; `bytes` is rounded up to a multiple of 4.
    pub fn to_submission(&self, nsid: u32) -> Submission {
        let mut command = Submission::nvm(NvmOpcode::ZONE_MANAGEMENT_RECEIVE, 0, nsid);
        command.set_lba(self.lba);
        command.cdw12 = (self.bytes.div_ceil(4).saturating_sub(1) as u32).into();
        command.cdw13 = (u32::from(self.action) | u32::from(self.states) << 8 | u32::from(self.partial) << 16).into();
        command
    }
}

/// What a Zone Management Send asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneSend {
    /// The first block of a zone; `None`: all zones that it concerns.
    pub zone: Option<u64>,
    /// See [`send_action`].
    pub action: u8,
}

impl ZoneSend {
    /// Reads the fields of a command.
    pub fn from_submission(command: &Submission) -> ZoneSend {
        let how = command.cdw13.get();
        ZoneSend { zone: (how & 1 << 8 == 0).then_some(command.lba()), action: how as u8 }
    }

    /// A command that asks for it.
    pub fn to_submission(&self, nsid: u32) -> Submission {
        let mut command = Submission::nvm(NvmOpcode::ZONE_MANAGEMENT_SEND, 0, nsid);
        command.set_lba(self.zone.unwrap_or_default());
        command.cdw13 = (u32::from(self.action) | u32::from(self.zone.is_none()) << 8).into();
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_zones_survives_the_command() {
        for partial in [false, true] {
            let asked = ZoneReceive { lba: 0x1_0000_0040, bytes: 64 * 9, action: 1, states: 7, partial };
            let command = asked.to_submission(3);
            assert_eq!((command.opcode, command.nsid.get(), command.cdw12.get()), (0x7A, 3, 143));
            assert_eq!(command.cdw13.get(), 1 | 7 << 8 | u32::from(partial) << 16);
            assert_eq!(ZoneReceive::from_submission(&command), asked);
        }
        for zone in [None, Some(0), Some(0x2_0000_0000)] {
            let asked = ZoneSend { zone, action: send_action::RESET };
            let command = asked.to_submission(3);
            assert_eq!((command.opcode, command.cdw13.get()), (0x79, 4 | u32::from(zone.is_none()) << 8));
            assert_eq!(ZoneSend::from_submission(&command), asked);
        }
    }

    #[test]
    fn a_descriptor_has_its_fields_where_the_wire_has_them() {
        let descriptor = ZoneDescriptor {
            zt: ZONE_SEQUENTIAL,
            zs: zone_state::CLOSED << 4,
            zcap: 0x11.into(),
            zslba: 0x22.into(),
            wp: 0x33.into(),
            ..ZoneDescriptor::default()
        };
        let bytes = descriptor.as_bytes();
        assert_eq!((bytes[0], bytes[1], bytes[8], bytes[16], bytes[24]), (2, 0x40, 0x11, 0x22, 0x33));
    }
}
