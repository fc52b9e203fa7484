//! Headers, with digest and padding, ready to send.

use std::ops::Deref;

use super::{DIGEST_BYTES, DataPdu, Digest, FatalError, IcReq, IcResp, ReadyToTransfer, alignment_of_code};
use nvme::tcp::{self, CapsuleResp, CommonHeader, DataHeader, PduType, R2t, TERM_DATA_BYTES_MAX, digest, flags};
use nvme::{Completion, Submission};
use zerocopy::IntoBytes;

/// The most bytes before a PDU's data, and of a whole TermReq.
pub const HEADER_BYTES_MAX: usize = 24 + TERM_DATA_BYTES_MAX;
// A command's header and digest, padded to the largest alignment, must fit as well.
const _: () = assert!(HEADER_BYTES_MAX >= alignment_of_code(tcp::ALIGNMENT_CODE_MAX) as usize);

/// Everything of a PDU that comes before its data: header, header digest, padding.
#[derive(Clone, Debug)]
pub struct Header {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
}

impl Header {
    fn start(header: &[u8]) -> Header {
        let mut bytes = [0; HEADER_BYTES_MAX];
        bytes[..header.len()].copy_from_slice(header);
        Header { bytes, len: header.len() }
    }
}

impl Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Makes headers as agreed with the peer in the ICReq/ICResp exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoder {
    /// Headers carry a digest.
    pub header_digest: bool,
    /// Data carries a digest.
    pub data_digest: bool,
    /// The alignment code that the peer stated (HPDA or CPDA).
    pub alignment_code: u8,
}

impl Encoder {
    /// An ICReq: HLEN and PLEN 128, never a digest (§3.6.2.2).
    pub fn ic_req(request: &IcReq) -> Header {
        let pdu = tcp::IcReq {
            common: common(PduType::IC_REQ, 0, 128, 0, 128),
            pfv: 0.into(),
            hpda: request.alignment_code,
            dgst: digest_bits(request.header_digest, request.data_digest),
            maxr2t: request.maxr2t.into(),
            reserved: [0; 112],
        };
        Header::start(pdu.as_bytes())
    }

    /// An ICResp: HLEN and PLEN 128, never a digest (§3.6.2.3).
    pub fn ic_resp(response: &IcResp) -> Header {
        let pdu = tcp::IcResp {
            common: common(PduType::IC_RESP, 0, 128, 0, 128),
            pfv: 0.into(),
            cpda: response.alignment_code,
            dgst: digest_bits(response.header_digest, response.data_digest),
            maxh2cdata: response.maxh2cdata.into(),
            reserved: [0; 112],
        };
        Header::start(pdu.as_bytes())
    }

    /// An H2CTermReq or C2HTermReq with the offending PDU's header, never a digest (§3.6.2.4, §3.6.2.5).
    pub fn term_req(pdu_type: PduType, error: &FatalError, offending: &[u8]) -> Header {
        let data = &offending[..offending.len().min(TERM_DATA_BYTES_MAX)];
        let pdu = tcp::TermReq {
            common: common(pdu_type, 0, 24, 0, 24 + data.len() as u32),
            fes: error.status.0.into(),
            fei: error.information.into(),
            reserved: [0; 10],
        };
        let mut header = Header::start(pdu.as_bytes());
        header.bytes[24..24 + data.len()].copy_from_slice(data);
        header.len += data.len();
        header
    }

    /// A command; `data_bytes` of in-capsule data follow (0: none).
    pub fn capsule_cmd(&self, command: &Submission, data_bytes: u32) -> Header {
        let common = self.common(PduType::CAPSULE_CMD, 72, data_bytes);
        self.seal(tcp::CapsuleCmd { common, command: *command }.as_bytes(), data_bytes)
    }

    /// A completion.
    pub fn capsule_resp(&self, completion: &Completion) -> Header {
        let common = self.common(PduType::CAPSULE_RESP, 24, 0);
        self.seal(CapsuleResp { common, completion: *completion }.as_bytes(), 0)
    }

    /// An H2CData header; `data.bytes` of data follow.
    pub fn h2c_data(&self, data: &DataPdu) -> Header {
        self.data(PduType::H2C_DATA, data)
    }

    /// A C2HData header; `data.bytes` of data follow.
    pub fn c2h_data(&self, data: &DataPdu) -> Header {
        self.data(PduType::C2H_DATA, data)
    }

    fn data(&self, pdu_type: PduType, data: &DataPdu) -> Header {
        let mut common = self.common(pdu_type, 24, data.bytes);
        common.flags |= if data.last { flags::LAST_PDU } else { 0 };
        common.flags |= if data.success { flags::SUCCESS } else { 0 };
        let pdu = DataHeader {
            common,
            cccid: data.cccid.into(),
            ttag: data.ttag.into(),
            datao: data.offset.into(),
            datal: data.bytes.into(),
            reserved: [0; 4],
        };
        self.seal(pdu.as_bytes(), data.bytes)
    }

    /// An R2T.
    pub fn r2t(&self, request: &ReadyToTransfer) -> Header {
        let pdu = R2t {
            common: self.common(PduType::R2T, 24, 0),
            cccid: request.cccid.into(),
            ttag: request.ttag.into(),
            r2to: request.offset.into(),
            r2tl: request.bytes.into(),
            reserved: [0; 4],
        };
        self.seal(pdu.as_bytes(), 0)
    }

    /// What has to follow data that was sent as `bytes`, where data digests are used. For data in pieces use [`Digest`].
    pub fn data_digest_of(&self, bytes: &[u8]) -> Option<[u8; DIGEST_BYTES]> {
        self.data_digest.then(|| Digest::of(bytes))
    }

    fn header_bytes(&self, hlen: u8) -> u32 {
        u32::from(hlen) + if self.header_digest { DIGEST_BYTES as u32 } else { 0 }
    }

    fn data_offset(&self, hlen: u8) -> u32 {
        self.header_bytes(hlen).next_multiple_of(alignment_of_code(self.alignment_code))
    }

    /// The common header of a PDU with `data_bytes` of data.
    fn common(&self, pdu_type: PduType, hlen: u8, data_bytes: u32) -> CommonHeader {
        let header_flag = if self.header_digest { flags::HDGST } else { 0 };
        if data_bytes == 0 {
            return common(pdu_type, header_flag, hlen, 0, self.header_bytes(hlen));
        }
        let (data_flag, digest) = if self.data_digest { (flags::DDGST, DIGEST_BYTES as u32) } else { (0, 0) };
        let pdo = self.data_offset(hlen);
        common(pdu_type, header_flag | data_flag, hlen, pdo as u8, pdo + data_bytes + digest)
    }

    fn seal(&self, bytes: &[u8], data_bytes: u32) -> Header {
        let mut header = Header::start(bytes);
        if self.header_digest {
            let end = header.len + DIGEST_BYTES;
            header.bytes[header.len..end].copy_from_slice(&Digest::of(bytes));
            header.len = end;
        }
        if data_bytes > 0 {
            header.len = self.data_offset(bytes.len() as u8) as usize;
        }
        header
    }
}

fn common(pdu_type: PduType, flags: u8, hlen: u8, pdo: u8, plen: u32) -> CommonHeader {
    CommonHeader { pdu_type, flags, hlen, pdo, plen: plen.into() }
}

fn digest_bits(header: bool, data: bool) -> u8 {
    (if header { digest::HEADER } else { 0 }) | if data { digest::DATA } else { 0 }
}
