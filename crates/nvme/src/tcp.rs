//! PDU headers of the TCP transport (NVMe/TCP 1.0 §3.6.2). Lengths of whole headers include the common header.

use crate::words::{codes, size};
use crate::{Completion, Submission, U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The PDU type, byte 0 of every PDU (NVMe/TCP 1.0 figure 13).
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct PduType(pub u8);

codes! { PduType(u8), "PDU type";
    IC_REQ = 0x00, "ICReq";
    IC_RESP = 0x01, "ICResp";
    H2C_TERM_REQ = 0x02, "H2CTermReq";
    C2H_TERM_REQ = 0x03, "C2HTermReq";
    CAPSULE_CMD = 0x04, "CapsuleCmd";
    CAPSULE_RESP = 0x05, "CapsuleResp";
    H2C_DATA = 0x06, "H2CData";
    C2H_DATA = 0x07, "C2HData";
    R2T = 0x09, "R2T";
}

/// Flags, byte 1 of the common header.
pub mod flags {
    /// A header digest follows the header.
    pub const HDGST: u8 = 1 << 0;
    /// A data digest follows the data.
    pub const DDGST: u8 = 1 << 1;
    /// H2CData and C2HData: the last PDU of this transfer.
    pub const LAST_PDU: u8 = 1 << 2;
    /// C2HData: the command has succeeded and no CapsuleResp follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// The first 8 bytes of every PDU (NVMe/TCP 1.0 figure 12).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// PDU type.
    pub pdu_type: PduType,
    /// Flags, see [`flags`].
    pub flags: u8,
    /// Length of the header in bytes, without digest.
    pub hlen: u8,
    /// Offset of the data from the start of the PDU; 0 without data.
    pub pdo: u8,
    /// Length of the whole PDU: header, digest, padding, data, digest.
    pub plen: U32,
}

/// Initialize Connection Request (NVMe/TCP 1.0 §3.6.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IcReq {
    /// Common header.
    pub common: CommonHeader,
    /// PDU format version, 0.
    pub pfv: U16,
    /// Alignment of data sent to the host, in dwords, zero based (at most 31).
    pub hpda: u8,
    /// Digests wanted, see [`digest`].
    pub dgst: u8,
    /// The most outstanding R2T PDUs of one command, zero based.
    pub maxr2t: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}

/// Initialize Connection Response (NVMe/TCP 1.0 §3.6.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IcResp {
    /// Common header.
    pub common: CommonHeader,
    /// PDU format version, 0.
    pub pfv: U16,
    /// Alignment of data sent to the controller, in dwords, zero based (at most 31).
    pub cpda: u8,
    /// Digests that will be used, see [`digest`].
    pub dgst: u8,
    /// The most data bytes of one H2CData PDU; at least 4,096, a multiple of 4.
    pub maxh2cdata: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}

/// The DGST field of ICReq and ICResp.
pub mod digest {
    /// Header digest.
    pub const HEADER: u8 = 1 << 0;
    /// Data digest.
    pub const DATA: u8 = 1 << 1;
}

/// The largest alignment code of HPDA and CPDA: 32 dwords.
pub const ALIGNMENT_CODE_MAX: u8 = 31;
/// The smallest MAXH2CDATA that a controller may state.
pub const MAXH2CDATA_MIN: u32 = 4096;
/// Bytes of in-capsule data that every admin queue takes (NVMe/TCP 1.0 §3.3.1.1).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// H2CTermReq and C2HTermReq (NVMe/TCP 1.0 §3.6.2.4, §3.6.2.5); the offending PDU's header follows as data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TermReq {
    /// Common header.
    pub common: CommonHeader,
    /// Fatal Error Status, see [`FatalStatus`].
    pub fes: U16,
    /// Fatal Error Information.
    pub fei: U32,
    /// Reserved.
    pub reserved: [u8; 10],
}

/// The most bytes of the offending PDU's header that a TermReq carries.
pub const TERM_DATA_BYTES_MAX: usize = 128;

/// Fatal Error Status of a TermReq (NVMe/TCP 1.0 figures 20 and 22).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FatalStatus(pub u16);

codes! { FatalStatus(u16), "fatal error status";
    INVALID_HEADER_FIELD = 0x01, "Invalid PDU Header Field";
    SEQUENCE_ERROR = 0x02, "PDU Sequence Error";
    HEADER_DIGEST_ERROR = 0x03, "Header Digest Error";
    DATA_OUT_OF_RANGE = 0x04, "Data Transfer Out of Range";
    LIMIT_EXCEEDED = 0x05, "Data Transfer (host: R2T) Limit Exceeded";
    UNSUPPORTED_PARAMETER = 0x06, "Unsupported Parameter";
}

/// Command capsule (NVMe/TCP 1.0 §3.6.2.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CapsuleCmd {
    /// Common header.
    pub common: CommonHeader,
    /// The command.
    pub command: Submission,
}

/// Response capsule (NVMe/TCP 1.0 §3.6.2.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CapsuleResp {
    /// Common header.
    pub common: CommonHeader,
    /// The completion.
    pub completion: Completion,
}

/// H2CData and C2HData (NVMe/TCP 1.0 §3.6.2.8, §3.6.2.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DataHeader {
    /// Common header.
    pub common: CommonHeader,
    /// Command identifier.
    pub cccid: U16,
    /// Transfer tag of the R2T (H2CData; reserved in C2HData).
    pub ttag: U16,
    /// Offset of this PDU's data in the command's data.
    pub datao: U32,
    /// Bytes of data.
    pub datal: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}

/// Ready to Transfer (NVMe/TCP 1.0 §3.6.2.10).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct R2t {
    /// Common header.
    pub common: CommonHeader,
    /// Command identifier.
    pub cccid: U16,
    /// Transfer tag, to be repeated in the H2CData PDUs.
    pub ttag: U16,
    /// Offset of the data asked for in the command's data.
    pub r2to: U32,
    /// Bytes of data asked for.
    pub r2tl: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}

size!(
    CommonHeader = 8,
    IcReq = 128,
    IcResp = 128,
    TermReq = 24,
    CapsuleCmd = 72,
    CapsuleResp = 24,
    DataHeader = 24,
    R2t = 24,
);
