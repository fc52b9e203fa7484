//! Fabrics commands and the discovery log (NVMe Base 2.0 §5.16.1.23 and §6).

use crate::words::{codes, size};
use crate::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The last 24 bytes of a Connect command, CDW10 to CDW15 (NVMe Base 2.0 figure 379).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectFields {
    /// Record format, 0.
    pub recfmt: U16,
    /// Queue identifier; 0 is the admin queue.
    pub qid: U16,
    /// Queue size, zero based.
    pub sqsize: U16,
    /// Connect attributes, see [`connect_attributes`].
    pub cattr: u8,
    /// Reserved.
    pub reserved1: u8,
    /// Keep alive timeout in milliseconds, admin queue only.
    pub kato: U32,
    /// Reserved.
    pub reserved2: [u8; 12],
}

/// CATTR of a Connect command.
pub mod connect_attributes {
    /// Priority class, two bits.
    pub const PRIORITY_MASK: u8 = 3;
    /// The host does not use SQ flow control (SQHD).
    pub const DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;
    /// The host asks for individual I/O queue deletion.
    pub const INDIVIDUAL_QUEUE_DELETION: u8 = 1 << 3;
}

/// The data of a Connect command (NVMe Base 2.0 figure 380).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier; not zero.
    pub hostid: [u8; 16],
    /// Controller identifier; FFFFh asks for a dynamic controller.
    pub cntlid: U16,
    /// Reserved.
    pub reserved1: [u8; 238],
    /// NQN of the subsystem.
    pub subnqn: [u8; 256],
    /// NQN of the host.
    pub hostnqn: [u8; 256],
    /// Reserved.
    pub reserved2: [u8; 256],
}

/// Bytes 0 to 3 of a Connect completion, on success: the controller's identifier and whether it wants authentication.
pub fn connect_result(cntlid: u16, authentication: u16) -> u64 {
    u64::from(cntlid) | u64::from(authentication) << 16
}

/// A Connect completion with Connect Invalid Parameters: offset of the first invalid field, in the command or its data.
pub fn connect_invalid_parameter(offset: u16, in_data: bool) -> u64 {
    u64::from(offset) | u64::from(in_data) << 16
}

/// The last 24 bytes of a Property Get or Set command (NVMe Base 2.0 figures 388 and 390).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PropertyFields {
    /// Size in bits 2:0: 0 is 4 bytes, 1 is 8 bytes.
    pub attrib: u8,
    /// Reserved.
    pub reserved1: [u8; 3],
    /// Offset of the property, see [`crate::register::offset`].
    pub offset: U32,
    /// Value to set.
    pub value: U64,
    /// Reserved.
    pub reserved2: [u8; 8],
}

/// Transport type of a discovery entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransportType(pub u8);
codes! { TransportType(u8), "transport type";
    RDMA = 1, "rdma";
    FIBRE_CHANNEL = 2, "fc";
    TCP = 3, "tcp";
    LOOP = 254, "loop";
}

/// Address family of a discovery entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressFamily(pub u8);
codes! { AddressFamily(u8), "address family";
    IPV4 = 1, "ipv4";
    IPV6 = 2, "ipv6";
    INFINIBAND = 3, "ib";
    FIBRE_CHANNEL = 4, "fc";
}

/// Subsystem type of a discovery entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubsystemType(pub u8);
codes! { SubsystemType(u8), "subsystem type";
    REFERRAL = 1, "discovery subsystem referral";
    NVM = 2, "nvme subsystem";
    CURRENT_DISCOVERY = 3, "current discovery subsystem";
}

/// EFLAGS of a discovery entry.
pub mod entry_flags {
    /// DUPRETINFO, current discovery subsystem only: every port with this flag returns the same information.
    pub const SAME_INFORMATION: u16 = 1 << 0;
    /// EPCSD: explicit persistent connections are supported.
    pub const PERSISTENT: u16 = 1 << 1;
}

/// Header of the discovery log (NVMe Base 2.0 figure 264).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Changes with every change of the log.
    pub genctr: U64,
    /// Entries that follow.
    pub numrec: U64,
    /// Record format, 0.
    pub recfmt: U16,
    /// Reserved.
    pub reserved: [u8; 1006],
}

/// One entry of the discovery log (NVMe Base 2.0 figure 265).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Transport type, see [`TransportType`].
    pub trtype: u8,
    /// Address family, see [`AddressFamily`].
    pub adrfam: u8,
    /// Subsystem type, see [`SubsystemType`].
    pub subtype: u8,
    /// Transport requirements: bits 1:0 secure channel (2: not required), bit 2: SQ flow control may be disabled.
    pub treq: u8,
    /// Port identifier.
    pub portid: U16,
    /// Controller identifier; FFFFh: dynamic controllers.
    pub cntlid: U16,
    /// Admin submission queue, most entries.
    pub asqsz: U16,
    /// Entry flags.
    pub eflags: U16,
    /// Reserved.
    pub reserved1: [u8; 20],
    /// Transport service identifier: the TCP port, in decimal, padded with spaces or null bytes.
    pub trsvcid: [u8; 32],
    /// Reserved.
    pub reserved2: [u8; 192],
    /// NQN of the subsystem.
    pub subnqn: [u8; 256],
    /// Transport address: the IP address as text.
    pub traddr: [u8; 256],
    /// Transport specific address subtype; TCP: byte 0 is the security type.
    pub tsas: [u8; 256],
}

/// Reads a text field that is padded with null bytes or spaces.
pub fn text_field(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).ok().map(|text| text.trim_end_matches(' '))
}

size!(ConnectFields = 24, ConnectData = 1024, PropertyFields = 24, DiscoveryHeader = 1024, DiscoveryEntry = 1024);
