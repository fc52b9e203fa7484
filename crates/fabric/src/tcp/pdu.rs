//! PDUs as values: what remains of a header once it is checked.

use nvme::tcp::FatalStatus;
use nvme::{Completion, Submission};

/// A checked header. Where data belongs to it, its length is in the variant and the data follows as events.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(clippy::large_enum_variant)] // passed by value once; a command is the common case
pub enum Pdu {
    /// Host to controller, first of all.
    IcReq(IcReq),
    /// Its answer.
    IcResp(IcResp),
    /// The host ends the connection.
    H2cTermReq(TermReq),
    /// The controller ends the connection.
    C2hTermReq(TermReq),
    /// A command.
    CapsuleCmd(CapsuleCmd),
    /// A completion.
    CapsuleResp(Completion),
    /// Data that an R2T asked for.
    H2cData(DataPdu),
    /// Data of a read.
    C2hData(DataPdu),
    /// The controller asks for data.
    R2t(ReadyToTransfer),
}

/// Initialize Connection Request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcReq {
    /// Alignment code of data sent to the host, see [`super::alignment_of_code`].
    pub alignment_code: u8,
    /// The host wants header digests.
    pub header_digest: bool,
    /// The host wants data digests.
    pub data_digest: bool,
    /// The most outstanding R2Ts of one command, zero based (0: one).
    pub maxr2t: u32,
}

/// Initialize Connection Response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcResp {
    /// Alignment code of data sent to the controller, see [`super::alignment_of_code`].
    pub alignment_code: u8,
    /// Header digests are used.
    pub header_digest: bool,
    /// Data digests are used.
    pub data_digest: bool,
    /// The most data bytes of one H2CData PDU.
    pub maxh2cdata: u32,
}

/// A request to end the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TermReq {
    /// FES.
    pub status: FatalStatus,
    /// FEI.
    pub information: u32,
    /// Bytes of the offending header that follow as data.
    pub data_bytes: u32,
}

/// A command capsule.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CapsuleCmd {
    /// The command.
    pub command: Submission,
    /// Bytes of in-capsule data that follow.
    pub data_bytes: u32,
}

/// An H2CData or C2HData header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataPdu {
    /// Command identifier.
    pub cccid: u16,
    /// Transfer tag (H2CData).
    pub ttag: u16,
    /// Offset in the command's data.
    pub offset: u32,
    /// Bytes that follow, above 0.
    pub bytes: u32,
    /// Last PDU of the transfer.
    pub last: bool,
    /// C2HData: the command succeeded; no CapsuleResp follows.
    pub success: bool,
}

/// An R2T.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyToTransfer {
    /// Command identifier.
    pub cccid: u16,
    /// Transfer tag, repeated in the H2CData PDUs that answer.
    pub ttag: u16,
    /// Offset in the command's data.
    pub offset: u32,
    /// Bytes asked for, above 0.
    pub bytes: u32,
}
