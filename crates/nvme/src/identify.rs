//! Identify data structures (NVMe Base 2.0 §5.17, NVM Command Set 1.0 §4.1.5).

use crate::words::{codes, size};
use crate::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Controller or Namespace Structure: what an Identify command asks for (NVMe Base 2.0 figure 273).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cns(pub u8);

codes! { Cns(u8), "CNS";
    NAMESPACE = 0x00, "Identify Namespace";
    CONTROLLER = 0x01, "Identify Controller";
    ACTIVE_NAMESPACES = 0x02, "Active Namespace ID list";
    DESCRIPTORS = 0x03, "Namespace Identification Descriptor list";
    NVM_SET_LIST = 0x04, "NVM Set List";
    CSI_NAMESPACE = 0x05, "I/O Command Set specific Identify Namespace";
    CSI_CONTROLLER = 0x06, "I/O Command Set specific Identify Controller";
    CSI_ACTIVE_NAMESPACES = 0x07, "I/O Command Set specific Active Namespace ID list";
    INDEPENDENT_NAMESPACE = 0x08, "I/O Command Set Independent Identify Namespace";
    ALLOCATED_NAMESPACES = 0x10, "Allocated Namespace ID list";
    ALLOCATED_NAMESPACE = 0x11, "Identify Namespace of an allocated namespace";
    NAMESPACE_CONTROLLERS = 0x12, "Controller list of a namespace";
    CONTROLLERS = 0x13, "Controller list of the subsystem";
    CSI_ALLOCATED_NAMESPACES = 0x1A, "I/O Command Set specific Allocated Namespace ID list";
    CSI_ALLOCATED_NAMESPACE = 0x1B, "I/O Command Set specific Identify Namespace of an allocated namespace";
    COMMAND_SETS = 0x1C, "I/O Command Set list";
}

/// Identify Controller (NVMe Base 2.0 figure 275). Fields that this project does not use stand in the reserved ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI vendor.
    pub vid: U16,
    /// PCI subsystem vendor.
    pub ssvid: U16,
    /// Serial number, ASCII padded with spaces.
    pub sn: [u8; 20],
    /// Model number, ASCII padded with spaces.
    pub mn: [u8; 40],
    /// Firmware revision, ASCII padded with spaces.
    pub fr: [u8; 8],
    /// Recommended arbitration burst.
    pub rab: u8,
    /// IEEE OUI.
    pub ieee: [u8; 3],
    /// Multi-path: bit 0 several ports, bit 1 several controllers, bit 3 ANA.
    pub cmic: u8,
    /// Maximum data transfer size, a power of two of the smallest page; 0: no limit.
    pub mdts: u8,
    /// Controller identifier.
    pub cntlid: U16,
    /// Version.
    pub ver: U32,
    /// RTD3 resume latency.
    pub rtd3r: U32,
    /// RTD3 entry latency.
    pub rtd3e: U32,
    /// Optional asynchronous events.
    pub oaes: U32,
    /// Controller attributes: bit 0 128-bit host identifier, bit 6 traffic based keep alive.
    pub ctratt: U32,
    /// Read recovery levels.
    pub rrls: U16,
    /// Reserved.
    pub reserved102: [u8; 9],
    /// Controller type: 1 I/O, 2 discovery, 3 administrative.
    pub cntrltype: u8,
    /// FRU GUID.
    pub fguid: [u8; 16],
    /// Command retry delay times, 100 ms.
    pub crdt: [U16; 3],
    /// Reserved.
    pub reserved134: [u8; 122],
    /// Optional admin commands.
    pub oacs: U16,
    /// Abort command limit, zero based.
    pub acl: u8,
    /// Asynchronous event request limit, zero based.
    pub aerl: u8,
    /// Firmware updates.
    pub frmw: u8,
    /// Log page attributes: bit 1 effects log, bit 2 extended data (offsets).
    pub lpa: u8,
    /// Error log entries, zero based.
    pub elpe: u8,
    /// Power states, zero based.
    pub npss: u8,
    /// Admin vendor specific command configuration.
    pub avscc: u8,
    /// Autonomous power state transitions.
    pub apsta: u8,
    /// Warning temperature threshold, kelvin.
    pub wctemp: U16,
    /// Critical temperature threshold, kelvin.
    pub cctemp: U16,
    /// Maximum time for firmware activation.
    pub mtfa: U16,
    /// Host memory buffer, preferred.
    pub hmpre: U32,
    /// Host memory buffer, minimum.
    pub hmmin: U32,
    /// Total capacity, bytes.
    pub tnvmcap: U128,
    /// Unallocated capacity, bytes.
    pub unvmcap: U128,
    /// Reserved (RPMB, self-test, firmware granularity).
    pub reserved312: [u8; 8],
    /// Keep alive granularity, 100 ms; 0: not supported.
    pub kas: U16,
    /// Reserved (thermal management, sanitize, host memory, sets, groups).
    pub reserved322: [u8; 20],
    /// ANA transition time, seconds.
    pub anatt: u8,
    /// ANA capabilities.
    pub anacap: u8,
    /// ANA group identifiers, maximum.
    pub anagrpmax: U32,
    /// ANA groups.
    pub nanagrpid: U32,
    /// Reserved.
    pub reserved352: [u8; 160],
    /// Submission entry size: required 3:0, maximum 7:4.
    pub sqes: u8,
    /// Completion entry size: required 3:0, maximum 7:4.
    pub cqes: u8,
    /// Commands outstanding on one queue, at most.
    pub maxcmd: U16,
    /// Number of namespaces: the highest NSID.
    pub nn: U32,
    /// Optional NVM commands, see [`oncs`].
    pub oncs: U16,
    /// Fused operations: bit 0 compare and write.
    pub fuses: U16,
    /// Format attributes.
    pub fna: u8,
    /// Volatile write cache: bit 0 present, bits 2:1 how flush treats NSID FFFFFFFFh.
    pub vwc: u8,
    /// Atomic write unit normal, blocks, zero based.
    pub awun: U16,
    /// Atomic write unit at power fail, blocks, zero based.
    pub awupf: U16,
    /// NVM vendor specific command configuration.
    pub icsvscc: u8,
    /// Write protection.
    pub nwpc: u8,
    /// Atomic compare and write unit, blocks, zero based.
    pub acwu: U16,
    /// Copy descriptor formats, a bit each.
    pub ocfs: U16,
    /// SGL support.
    pub sgls: U32,
    /// Maximum number of allowed namespaces.
    pub mnan: U32,
    /// Reserved.
    pub reserved544: [u8; 224],
    /// NQN of the subsystem.
    pub subnqn: [u8; 256],
    /// Reserved.
    pub reserved1024: [u8; 768],
    /// I/O command capsule size, units of 16 bytes: 4 plus the in-capsule data.
    pub ioccsz: U32,
    /// I/O response capsule size, units of 16 bytes.
    pub iorcsz: U32,
    /// In-capsule data offset, units of 16 bytes.
    pub icdoff: U16,
    /// Fabrics controller attributes: bit 0 clear: dynamic controllers.
    pub fcatt: u8,
    /// SGL data block descriptors, at most.
    pub msdbd: u8,
    /// Optional fabrics commands: bit 0 Disconnect.
    pub ofcs: U16,
    /// Reserved.
    pub reserved1806: [u8; 242],
    /// Power states.
    pub psd: [PowerState; 32],
    /// Vendor specific.
    pub vendor: [u8; 1024],
}

/// A power state descriptor (NVMe Base 2.0 figure 276).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PowerState {
    /// Maximum power, centiwatts.
    pub max_power: U16,
    /// Reserved and flags.
    pub reserved2: [u8; 2],
    /// Entry latency, microseconds.
    pub entry_latency: U32,
    /// Exit latency, microseconds.
    pub exit_latency: U32,
    /// Relative throughputs and latencies, idle and active power.
    pub relative: [u8; 20],
}

/// Bits of OACS.
pub mod oacs {
    /// Namespace Management and Namespace Attachment.
    pub const NAMESPACE_MANAGEMENT: u16 = 1 << 3;
}

/// Bits of ONCS.
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// SAVE and SELECT of the features commands.
    pub const SAVE_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Timestamp.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
    /// Copy.
    pub const COPY: u16 = 1 << 8;
}

/// An LBA format (NVM Command Set 1.0 figure 98).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata bytes per block.
    pub ms: U16,
    /// Block size, a power of two; 0: format not available.
    pub lbads: u8,
    /// Relative performance.
    pub rp: u8,
}

/// Identify Namespace (NVM Command Set 1.0 figure 97).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Size, blocks.
    pub nsze: U64,
    /// Capacity, blocks.
    pub ncap: U64,
    /// Utilization, blocks.
    pub nuse: U64,
    /// Features: bit 0 thin, bit 1 the N* atomic fields are valid, bit 2 deallocated block errors, bit 4 NP* valid.
    pub nsfeat: u8,
    /// LBA formats, zero based.
    pub nlbaf: u8,
    /// The format in use.
    pub flbas: u8,
    /// Metadata capabilities.
    pub mc: u8,
    /// Protection capabilities.
    pub dpc: u8,
    /// Protection settings.
    pub dps: u8,
    /// Sharing: bit 0 several controllers at a time.
    pub nmic: u8,
    /// Reservation capabilities.
    pub rescap: u8,
    /// Format progress.
    pub fpi: u8,
    /// Deallocation: bits 2:0 how such blocks read (1: zeroes), bit 3 Write Zeroes takes the Deallocate bit.
    pub dlfeat: u8,
    /// Atomic write unit normal, blocks, zero based.
    pub nawun: U16,
    /// Atomic write unit at power fail, blocks, zero based.
    pub nawupf: U16,
    /// Atomic compare and write unit, blocks, zero based.
    pub nacwu: U16,
    /// Atomic boundary size, normal.
    pub nabsn: U16,
    /// Atomic boundary offset.
    pub nabo: U16,
    /// Atomic boundary size, power fail.
    pub nabspf: U16,
    /// Optimal I/O boundary, blocks.
    pub noiob: U16,
    /// Capacity, bytes.
    pub nvmcap: U128,
    /// Preferred write granularity, blocks, zero based.
    pub npwg: U16,
    /// Preferred write alignment, blocks, zero based.
    pub npwa: U16,
    /// Preferred deallocate granularity, blocks, zero based.
    pub npdg: U16,
    /// Preferred deallocate alignment, blocks, zero based.
    pub npda: U16,
    /// Optimal write size, blocks, zero based.
    pub nows: U16,
    /// Blocks of one source range of a Copy command, at most.
    pub mssrl: U16,
    /// Blocks of all source ranges of a Copy command, at most.
    pub mcl: U32,
    /// Source ranges of a Copy command, at most, zero based.
    pub msrc: u8,
    /// Reserved.
    pub reserved81: [u8; 11],
    /// ANA group.
    pub anagrpid: U32,
    /// Reserved.
    pub reserved96: [u8; 3],
    /// Attributes: bit 0 write protected.
    pub nsattr: u8,
    /// NVM set.
    pub nvmsetid: U16,
    /// Endurance group.
    pub endgid: U16,
    /// Globally unique identifier.
    pub nguid: [u8; 16],
    /// IEEE extended unique identifier; 0: none.
    pub eui64: [u8; 8],
    /// LBA formats.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor: [u8; 3712],
}

/// Identify Controller for the NVM Command Set, CNS 06h (NVM Command Set 1.0 figure 102).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IdentifyNvmController {
    /// Verify size limit.
    pub vsl: u8,
    /// Write Zeroes size limit, a power of two of the smallest page; 0: no limit.
    pub wzsl: u8,
    /// Write Uncorrectable size limit.
    pub wusl: u8,
    /// Ranges of a Dataset Management command, at most; 0: no limit.
    pub dmrl: u8,
    /// Blocks of one range, at most; 0: no limit.
    pub dmrsl: U32,
    /// Blocks of all ranges, at most; 0: no limit.
    pub dmsl: U64,
    /// Reserved.
    pub reserved: [u8; 4080],
}

size!(
    PowerState = 32,
    LbaFormat = 4,
    IdentifyController = 4096,
    IdentifyNamespace = 4096,
    IdentifyNvmController = 4096,
);
const _: () = assert!(std::mem::offset_of!(IdentifyController, oacs) == 256);
const _: () = assert!(std::mem::offset_of!(IdentifyController, kas) == 320);
const _: () = assert!(std::mem::offset_of!(IdentifyController, anatt) == 342);
const _: () = assert!(std::mem::offset_of!(IdentifyController, sqes) == 512);
const _: () = assert!(std::mem::offset_of!(IdentifyController, acwu) == 532);
const _: () = assert!(std::mem::offset_of!(IdentifyController, subnqn) == 768);
const _: () = assert!(std::mem::offset_of!(IdentifyController, ioccsz) == 1792);
const _: () = assert!(std::mem::offset_of!(IdentifyController, psd) == 2048);
const _: () = assert!(std::mem::offset_of!(IdentifyNamespace, nacwu) == 38);
const _: () = assert!(std::mem::offset_of!(IdentifyNamespace, mssrl) == 74);
const _: () = assert!(std::mem::offset_of!(IdentifyNamespace, anagrpid) == 92);
const _: () = assert!(std::mem::offset_of!(IdentifyNamespace, nguid) == 104);
const _: () = assert!(std::mem::offset_of!(IdentifyNamespace, lbaf) == 128);

/// Types of the descriptors in the Namespace Identification Descriptor list (NVMe Base 2.0 figure 277).
pub mod descriptor {
    /// IEEE EUI-64, 8 bytes.
    pub const EUI64: u8 = 1;
    /// NGUID, 16 bytes.
    pub const NGUID: u8 = 2;
    /// UUID, 16 bytes.
    pub const UUID: u8 = 3;
    /// Command set identifier, 1 byte.
    pub const CSI: u8 = 4;
}

/// Walks a Namespace Identification Descriptor list: type and value of each, until its end or the first malformed one.
pub fn descriptors(list: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = list;
    std::iter::from_fn(move || {
        let (&kind, &length) = (rest.first()?, rest.get(1)?);
        let value = rest.get(4..4 + usize::from(length))?;
        if kind == 0 || length == 0 {
            return None;
        }
        rest = &rest[4 + usize::from(length)..];
        Some((kind, value))
    })
}

/// Copies text into an ASCII field, cut at its end and padded with spaces.
pub fn ascii_field<const BYTES: usize>(text: &str) -> [u8; BYTES] {
    let mut field = [b' '; BYTES];
    let printable = text.bytes().map(|b| if b.is_ascii_graphic() || b == b' ' { b } else { b'?' });
    for (place, byte) in field.iter_mut().zip(printable) {
        *place = byte;
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_end_at_the_first_hole() {
        let mut list = vec![descriptor::CSI, 1, 0, 0, 0, descriptor::NGUID, 16, 0, 0];
        list.extend([7; 16]);
        list.extend([0; 8]);
        let found: Vec<_> = descriptors(&list).collect();
        assert_eq!(found, vec![(descriptor::CSI, &[0][..]), (descriptor::NGUID, &[7; 16][..])]);
        assert_eq!(descriptors(&[2, 200, 0, 0, 1]).count(), 0);
    }

    #[test]
    fn ascii_fields_are_cut_and_padded() {
        assert_eq!(&ascii_field::<4>("ab"), b"ab  ");
        assert_eq!(&ascii_field::<4>("abcdé"), b"abcd");
        assert_eq!(&ascii_field::<4>("a\n"), b"a?  ");
    }
}
