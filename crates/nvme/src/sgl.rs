//! SGL descriptors (NVMe Base 2.0 §4.1.2), of which the TCP binding uses two (NVMe/TCP 1.0 §2.2.1.4 and §3.5).

use crate::words::size;
use crate::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The data of a command: where it is and how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SglDescriptor {
    /// In-capsule: offset of the data in the capsule's data area, in bytes. Transport data block: not used.
    pub address: U64,
    /// Bytes of data.
    pub length: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// Descriptor type in the upper, sub type in the lower four bits.
    pub identifier: u8,
}
size!(SglDescriptor = 16);

/// What a descriptor says, as far as the TCP binding has a use for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SglKind {
    /// Data Block, sub type Offset (01h): the data follows in the capsule, at `offset` of its data area.
    InCapsule {
        /// Bytes into the capsule's data area.
        offset: u64,
    },
    /// Transport SGL Data Block (5Ah): the transport moves the data by its own PDUs.
    Transport,
    /// Anything else, by its identifier.
    Other(u8),
}

impl SglDescriptor {
    /// Identifier of a Data Block with sub type Offset.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Identifier of a Transport SGL Data Block with the transport specific sub type.
    pub const TRANSPORT: u8 = 0x5A;

    /// Data of `length` bytes at the start of the capsule's data area.
    pub fn in_capsule(length: u32) -> SglDescriptor {
        SglDescriptor { length: length.into(), identifier: Self::IN_CAPSULE, ..SglDescriptor::default() }
    }

    /// `length` bytes that the transport moves (R2T and H2CData, or C2HData).
    pub fn transport(length: u32) -> SglDescriptor {
        SglDescriptor { length: length.into(), identifier: Self::TRANSPORT, ..SglDescriptor::default() }
    }

    /// What the descriptor says.
    pub fn kind(&self) -> SglKind {
        match self.identifier {
            Self::IN_CAPSULE => SglKind::InCapsule { offset: self.address.get() },
            Self::TRANSPORT => SglKind::Transport,
            other => SglKind::Other(other),
        }
    }
}
