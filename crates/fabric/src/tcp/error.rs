//! What ends a connection (NVMe/TCP 1.0 §3.5, §3.6.2.5).

use std::fmt;

use nvme::tcp::{FatalStatus, PduType};

/// A PDU that can not be accepted: the connection ends with a TermReq that carries `status` and `information`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FatalError {
    /// FES.
    pub status: FatalStatus,
    /// FEI: for a field in error its byte offset in the PDU, for a header digest the digest received.
    pub information: u32,
    /// The PDU, as far as known.
    pub pdu_type: PduType,
    /// What was wrong, in words.
    pub what: &'static str,
    /// The value that was wrong.
    pub value: u64,
}

impl FatalError {
    /// A header field at byte `offset` has a value that is not allowed.
    pub fn field(pdu_type: PduType, offset: u32, what: &'static str, value: impl Into<u64>) -> FatalError {
        let status = FatalStatus::INVALID_HEADER_FIELD;
        FatalError { status, information: offset, pdu_type, what, value: value.into() }
    }

    /// A header field at byte `offset` asks for what we do not support.
    pub fn unsupported(pdu_type: PduType, offset: u32, what: &'static str, value: impl Into<u64>) -> FatalError {
        let status = FatalStatus::UNSUPPORTED_PARAMETER;
        FatalError { status, information: offset, pdu_type, what, value: value.into() }
    }

    /// The PDU is not allowed at this point.
    pub fn sequence(pdu_type: PduType, what: &'static str) -> FatalError {
        let status = FatalStatus::SEQUENCE_ERROR;
        FatalError { status, information: 0, pdu_type, what, value: u64::from(pdu_type.0) }
    }

    /// Data that lies outside of what was asked for, or in the wrong order.
    pub fn out_of_range(pdu_type: PduType, what: &'static str, value: impl Into<u64>) -> FatalError {
        let status = FatalStatus::DATA_OUT_OF_RANGE;
        FatalError { status, information: 0, pdu_type, what, value: value.into() }
    }

    /// More than the agreed limit.
    pub fn limit(pdu_type: PduType, what: &'static str, value: impl Into<u64>) -> FatalError {
        let status = FatalStatus::LIMIT_EXCEEDED;
        FatalError { status, information: 0, pdu_type, what, value: value.into() }
    }

    pub(crate) fn header_digest(pdu_type: PduType, received: [u8; 4]) -> FatalError {
        let received = u32::from_le_bytes(received);
        FatalError {
            status: FatalStatus::HEADER_DIGEST_ERROR,
            information: received,
            pdu_type,
            what: "header digest",
            value: u64::from(received),
        }
    }
}

impl fmt::Display for FatalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}: {} ({:#x})", self.status, self.pdu_type, self.what, self.value)
    }
}

impl std::error::Error for FatalError {}
