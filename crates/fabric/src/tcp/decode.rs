//! The incremental decoder.
//!
//! ```text
//!   Common (8 bytes) ─► Header (HLEN + digest) ─► Padding ─► Data ─► DataDigest ─► Common …
//!    type, HLEN          digest, flags, PDO, PLEN, fields       told in pieces
//! ```
//! Type and HLEN are checked first because they say how long the header is; the header's digest before any other field,
//! because a flipped bit is a digest error and not the peer's mistake.

use super::pdu::{CapsuleCmd, DataPdu, IcReq, IcResp, Pdu, ReadyToTransfer, TermReq};
use super::{DIGEST_BYTES, Digest, FatalError, alignment_of_code};
use nvme::tcp::{
    self, ALIGNMENT_CODE_MAX, CapsuleResp, CommonHeader, DataHeader, FatalStatus, MAXH2CDATA_MIN, PduType, R2t,
    TERM_DATA_BYTES_MAX, digest, flags,
};
use zerocopy::FromBytes;

/// The longest header and its digest.
const HELD_BYTES_MAX: usize = 128 + DIGEST_BYTES;
/// Byte offsets in the common header, for the FEI.
const AT_TYPE: u32 = 0;
const AT_FLAGS: u32 = 1;
const AT_HLEN: u32 = 2;
const AT_PDO: u32 = 3;
const AT_PLEN: u32 = 4;
const COMMON_BYTES: usize = 8;

/// Who decodes: it decides which PDUs may come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// We are the controller and read what a host sends.
    Controller,
    /// We are the host and read what a controller sends.
    Host,
}

/// What was agreed in the ICReq/ICResp exchange, and our bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Headers carry a digest.
    pub header_digest: bool,
    /// Data carries a digest.
    pub data_digest: bool,
    /// The alignment code that **we** stated (CPDA or HPDA): data must start at a multiple of it.
    pub alignment_code: u8,
    /// The most in-capsule data of a command, bytes (controller; 0 for a host).
    pub capsule_data_bytes_max: u32,
    /// The most data of one H2CData (controller: the MAXH2CDATA we stated) or C2HData PDU (host: its largest read), bytes.
    pub data_pdu_bytes_max: u32,
}

/// What the bytes say.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(clippy::large_enum_variant)] // a command is the common case, and events are not stored
pub enum Event<'a> {
    /// A header, checked. If it announces data, `Data` events and one `DataEnd` follow before the next header.
    Pdu(Pdu),
    /// The next piece of the data.
    Data(&'a [u8]),
    /// All data of the PDU was told. `digest_ok` is false where a data digest did not match.
    DataEnd {
        /// The data digest matched, or none is used.
        digest_ok: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Common,
    Header,
    Padding(u32),
    Data(u32),
    DataDigest(usize),
    Failed,
}

/// Turns a connection's bytes into events.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    /// `None` until the ICReq/ICResp exchange is done.
    rules: Option<Rules>,
    /// The header being gathered; after an error, the offending one.
    held: [u8; HELD_BYTES_MAX],
    filled: usize,
    /// Bytes of the last whole header; they stay held until the next one begins.
    last: usize,
    step: Step,
    /// Data bytes of the current PDU, and whether a digest follows them.
    data_bytes: u32,
    digest_follows: bool,
    digest: Digest,
    digest_held: [u8; DIGEST_BYTES],
}

impl Decoder {
    /// A decoder at the start of a connection: only the ICReq (controller) or ICResp (host) is accepted.
    pub fn new(role: Role) -> Decoder {
        Decoder {
            role,
            rules: None,
            held: [0; HELD_BYTES_MAX],
            filled: 0,
            last: 0,
            step: Step::Common,
            data_bytes: 0,
            digest_follows: false,
            digest: Digest::default(),
            digest_held: [0; DIGEST_BYTES],
        }
    }

    /// Sets what was agreed; from now on everything but ICReq and ICResp is accepted. May be called again at a PDU's
    /// boundary, when bounds change.
    pub fn establish(&mut self, rules: Rules) {
        debug_assert!(rules.alignment_code <= ALIGNMENT_CODE_MAX);
        self.rules = Some(rules);
    }

    /// Takes bytes from the front of `input` and says the next thing they mean; `None` when more bytes are needed (then
    /// all of `input` was taken). Call again until `None`.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, FatalError> {
        let result = self.advance(input);
        if result.is_err() {
            self.step = Step::Failed;
        }
        result
    }

    /// Data bytes of the current PDU that have not been told yet. Where this is large the owner may receive straight into
    /// the place where the data belongs, and tell the decoder by [`Decoder::data_received`].
    pub fn data_remaining(&self) -> usize {
        match self.step {
            Step::Data(remaining) => remaining as usize,
            _ => 0,
        }
    }

    /// Tells of data that was received past the decoder, in order: `bytes` are the next of the current PDU. Then call
    /// [`Decoder::next`], with or without new input.
    ///
    /// # Panics
    /// Where `bytes` are more than [`Decoder::data_remaining`]: they would be part of the next PDU.
    pub fn data_received(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.data_remaining(), "data beyond the PDU was received past the decoder");
        if self.digest_follows {
            self.digest.update(bytes);
        }
        self.step = Step::Data(self.data_remaining() as u32 - bytes.len() as u32);
    }

    /// The header of the current PDU (after an error: the offending one), as far as it arrived; between two PDUs that of
    /// the one before, which may be what the owner objects to.
    pub fn header(&self) -> &[u8] {
        let held = if self.filled == 0 { self.last } else { self.filled };
        &self.held[..held.min(TERM_DATA_BYTES_MAX)]
    }

    fn advance<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, FatalError> {
        loop {
            match self.step {
                Step::Failed => {
                    *input = &[];
                    return Ok(None);
                }
                Step::Common => {
                    if !self.gather(input, COMMON_BYTES) {
                        return Ok(None);
                    }
                    self.check_start()?;
                    self.step = Step::Header;
                }
                Step::Header => {
                    let hlen = usize::from(self.held[AT_HLEN as usize]);
                    let digest = if self.header_digest() { DIGEST_BYTES } else { 0 };
                    if !self.gather(input, hlen + digest) {
                        return Ok(None);
                    }
                    let pdu = self.finish_header(hlen)?;
                    return Ok(Some(Event::Pdu(pdu)));
                }
                Step::Padding(remaining) => {
                    let taken = remaining.min(input.len() as u32);
                    *input = &input[taken as usize..];
                    self.step =
                        if taken == remaining { Step::Data(self.data_bytes) } else { Step::Padding(remaining - taken) };
                    if input.is_empty() {
                        return Ok(None);
                    }
                }
                Step::Data(0) if self.digest_follows => self.step = Step::DataDigest(0),
                Step::Data(0) => {
                    self.restart();
                    return Ok(Some(Event::DataEnd { digest_ok: true }));
                }
                Step::Data(remaining) => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let (data, rest) = input.split_at(input.len().min(remaining as usize));
                    *input = rest;
                    self.data_received(data);
                    return Ok(Some(Event::Data(data)));
                }
                Step::DataDigest(held) => {
                    let taken = input.len().min(DIGEST_BYTES - held);
                    self.digest_held[held..held + taken].copy_from_slice(&input[..taken]);
                    *input = &input[taken..];
                    if held + taken < DIGEST_BYTES {
                        self.step = Step::DataDigest(held + taken);
                        return Ok(None);
                    }
                    let digest_ok = self.digest.finish() == self.digest_held;
                    self.restart();
                    return Ok(Some(Event::DataEnd { digest_ok }));
                }
            }
        }
    }

    fn restart(&mut self) {
        self.step = Step::Common;
        self.filled = 0;
    }

    /// Fills the held header up to `wanted` bytes; false if more input is needed.
    fn gather(&mut self, input: &mut &[u8], wanted: usize) -> bool {
        let taken = input.len().min(wanted - self.filled);
        self.held[self.filled..self.filled + taken].copy_from_slice(&input[..taken]);
        self.filled += taken;
        *input = &input[taken..];
        self.filled == wanted
    }

    fn pdu_type(&self) -> PduType {
        PduType(self.held[0])
    }

    fn is_plain(&self) -> bool {
        let plain = [PduType::IC_REQ, PduType::IC_RESP, PduType::H2C_TERM_REQ, PduType::C2H_TERM_REQ];
        plain.contains(&self.pdu_type())
    }

    /// Whether the current PDU must carry a header digest: all but those that set up and end the connection.
    fn header_digest(&self) -> bool {
        !self.is_plain() && self.rules.is_some_and(|rules| rules.header_digest)
    }

    /// Type, direction, order, HLEN.
    fn check_start(&self) -> Result<(), FatalError> {
        let pdu_type = self.pdu_type();
        let (from_host, hlen) = match pdu_type {
            PduType::IC_REQ => (true, 128),
            PduType::IC_RESP => (false, 128),
            PduType::H2C_TERM_REQ => (true, 24),
            PduType::C2H_TERM_REQ => (false, 24),
            PduType::CAPSULE_CMD => (true, 72),
            PduType::CAPSULE_RESP => (false, 24),
            PduType::H2C_DATA => (true, 24),
            PduType::C2H_DATA | PduType::R2T => (false, 24),
            _ => return Err(FatalError::field(pdu_type, AT_TYPE, "unknown PDU type", pdu_type.0)),
        };
        if from_host != (self.role == Role::Controller) {
            return Err(FatalError::sequence(pdu_type, "a PDU that only we may send"));
        }
        let opens = matches!(pdu_type, PduType::IC_REQ | PduType::IC_RESP);
        let ends = matches!(pdu_type, PduType::H2C_TERM_REQ | PduType::C2H_TERM_REQ);
        if opens && self.rules.is_some() {
            return Err(FatalError::sequence(pdu_type, "the connection is initialized already"));
        }
        if !opens && !ends && self.rules.is_none() {
            return Err(FatalError::sequence(pdu_type, "the connection is not initialized yet"));
        }
        if self.held[AT_HLEN as usize] != hlen {
            return Err(FatalError::field(pdu_type, AT_HLEN, "HLEN", self.held[AT_HLEN as usize]));
        }
        Ok(())
    }

    /// Checks the gathered header and sets the step for what follows it.
    fn finish_header(&mut self, hlen: usize) -> Result<Pdu, FatalError> {
        let pdu_type = self.pdu_type();
        if self.header_digest() {
            let mut received = [0; DIGEST_BYTES];
            received.copy_from_slice(&self.held[hlen..hlen + DIGEST_BYTES]);
            if Digest::of(&self.held[..hlen]) != received {
                return Err(FatalError::header_digest(pdu_type, received));
            }
        }
        let (common, _) = CommonHeader::read_from_prefix(&self.held).expect("the array is longer than the header");
        let padding = if self.is_plain() { self.check_plain(&common)? } else { self.check_lengths(&common)? };
        let pdu = self.parse(&common)?;
        self.last = hlen;
        if self.data_bytes == 0 {
            self.restart();
        } else {
            self.digest = Digest::default();
            self.step = if padding == 0 { Step::Data(self.data_bytes) } else { Step::Padding(padding) };
        }
        Ok(pdu)
    }

    /// PLEN of the PDUs without digests: ICReq, ICResp and the TermReqs, which may carry a header as data.
    fn check_plain(&mut self, common: &CommonHeader) -> Result<u32, FatalError> {
        let (plen, hlen) = (common.plen.get(), u32::from(common.hlen));
        let data_max = if hlen == 24 { TERM_DATA_BYTES_MAX as u32 } else { 0 };
        if plen < hlen || plen > hlen + data_max {
            return Err(FatalError::field(common.pdu_type, AT_PLEN, "PLEN", plen));
        }
        self.data_bytes = plen - hlen;
        self.digest_follows = false;
        Ok(0)
    }

    /// Flags, PDO and PLEN of all others; sets the length of the data and returns the bytes of padding before it.
    fn check_lengths(&mut self, common: &CommonHeader) -> Result<u32, FatalError> {
        let pdu_type = common.pdu_type;
        let rules = self.rules.expect("check_start lets these through only when established");
        if (common.flags & flags::HDGST != 0) != rules.header_digest {
            return Err(FatalError::field(pdu_type, AT_FLAGS, "HDGSTF is not as agreed", common.flags));
        }
        let start = u32::from(common.hlen) + if rules.header_digest { DIGEST_BYTES as u32 } else { 0 };
        let plen = common.plen.get();
        let data_bytes_max = match pdu_type {
            PduType::CAPSULE_CMD => rules.capsule_data_bytes_max,
            PduType::H2C_DATA | PduType::C2H_DATA => rules.data_pdu_bytes_max,
            _ => 0,
        };
        self.data_bytes = 0;
        self.digest_follows = false;
        if plen == start {
            return Ok(0);
        }
        if plen < start || data_bytes_max == 0 {
            return Err(FatalError::field(pdu_type, AT_PLEN, "PLEN", plen));
        }
        if (common.flags & flags::DDGST != 0) != rules.data_digest {
            return Err(FatalError::field(pdu_type, AT_FLAGS, "DDGSTF is not as agreed", common.flags));
        }
        let pdo = u32::from(common.pdo);
        if pdo < start || pdo % alignment_of_code(rules.alignment_code) != 0 {
            return Err(FatalError::field(pdu_type, AT_PDO, "PDO", common.pdo));
        }
        let digest = if rules.data_digest { DIGEST_BYTES as u32 } else { 0 };
        let Some(data_bytes) = plen.checked_sub(pdo + digest).filter(|&bytes| bytes > 0) else {
            return Err(FatalError::field(pdu_type, AT_PLEN, "PLEN", plen));
        };
        if data_bytes > data_bytes_max {
            return Err(match pdu_type {
                PduType::CAPSULE_CMD => FatalError::field(pdu_type, AT_PLEN, "PLEN over the capsule size", plen),
                _ => FatalError::limit(pdu_type, "data over the largest PDU agreed", data_bytes),
            });
        }
        self.data_bytes = data_bytes;
        self.digest_follows = rules.data_digest;
        Ok(pdo - start)
    }

    fn parse(&self, common: &CommonHeader) -> Result<Pdu, FatalError> {
        let pdu_type = common.pdu_type;
        Ok(match pdu_type {
            PduType::IC_REQ => Pdu::IcReq(parse_ic_req(&self.read())?),
            PduType::IC_RESP => Pdu::IcResp(parse_ic_resp(&self.read())?),
            PduType::H2C_TERM_REQ => Pdu::H2cTermReq(self.parse_term_req()),
            PduType::C2H_TERM_REQ => Pdu::C2hTermReq(self.parse_term_req()),
            PduType::CAPSULE_CMD => {
                let pdu: tcp::CapsuleCmd = self.read();
                Pdu::CapsuleCmd(CapsuleCmd { command: pdu.command, data_bytes: self.data_bytes })
            }
            PduType::CAPSULE_RESP => Pdu::CapsuleResp(self.read::<CapsuleResp>().completion),
            PduType::H2C_DATA => Pdu::H2cData(self.parse_data()?),
            PduType::C2H_DATA => Pdu::C2hData(self.parse_data()?),
            _ => {
                let pdu: R2t = self.read();
                if pdu.r2tl.get() == 0 {
                    return Err(FatalError::field(pdu_type, 16, "R2TL", 0u32));
                }
                Pdu::R2t(ReadyToTransfer {
                    cccid: pdu.cccid.get(),
                    ttag: pdu.ttag.get(),
                    offset: pdu.r2to.get(),
                    bytes: pdu.r2tl.get(),
                })
            }
        })
    }

    fn parse_data(&self) -> Result<DataPdu, FatalError> {
        let pdu: DataHeader = self.read();
        let common = pdu.common;
        if pdu.datal.get() != self.data_bytes || self.data_bytes == 0 {
            return Err(FatalError::field(common.pdu_type, 16, "DATAL does not fit PLEN", pdu.datal.get()));
        }
        let success = common.pdu_type == PduType::C2H_DATA && common.flags & flags::SUCCESS != 0;
        let last = common.flags & flags::LAST_PDU != 0;
        if success && !last {
            return Err(FatalError::field(common.pdu_type, AT_FLAGS, "SUCCESS without LAST_PDU", common.flags));
        }
        Ok(DataPdu {
            cccid: pdu.cccid.get(),
            ttag: pdu.ttag.get(),
            offset: pdu.datao.get(),
            bytes: self.data_bytes,
            last,
            success,
        })
    }

    fn parse_term_req(&self) -> TermReq {
        let pdu: tcp::TermReq = self.read();
        TermReq { status: FatalStatus(pdu.fes.get()), information: pdu.fei.get(), data_bytes: self.data_bytes }
    }

    /// The held header as the structure of its type; [`Decoder::check_start`] has made sure of the length.
    fn read<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable>(&self) -> T {
        const { assert!(size_of::<T>() <= HELD_BYTES_MAX) };
        T::read_from_prefix(&self.held).expect("the array is at least as long as every header").0
    }
}

fn parse_ic_req(pdu: &tcp::IcReq) -> Result<IcReq, FatalError> {
    let pdu_type = PduType::IC_REQ;
    if pdu.pfv.get() != 0 {
        return Err(FatalError::unsupported(pdu_type, 8, "PFV", pdu.pfv.get()));
    }
    if pdu.hpda > ALIGNMENT_CODE_MAX {
        return Err(FatalError::field(pdu_type, 10, "HPDA", pdu.hpda));
    }
    Ok(IcReq {
        alignment_code: pdu.hpda,
        header_digest: pdu.dgst & digest::HEADER != 0,
        data_digest: pdu.dgst & digest::DATA != 0,
        maxr2t: pdu.maxr2t.get(),
    })
}

fn parse_ic_resp(pdu: &tcp::IcResp) -> Result<IcResp, FatalError> {
    let pdu_type = PduType::IC_RESP;
    if pdu.pfv.get() != 0 {
        return Err(FatalError::unsupported(pdu_type, 8, "PFV", pdu.pfv.get()));
    }
    if pdu.cpda > ALIGNMENT_CODE_MAX {
        return Err(FatalError::field(pdu_type, 10, "CPDA", pdu.cpda));
    }
    let maxh2cdata = pdu.maxh2cdata.get();
    if maxh2cdata < MAXH2CDATA_MIN {
        return Err(FatalError::field(pdu_type, 12, "MAXH2CDATA", maxh2cdata));
    }
    Ok(IcResp {
        alignment_code: pdu.cpda,
        header_digest: pdu.dgst & digest::HEADER != 0,
        data_digest: pdu.dgst & digest::DATA != 0,
        // A multiple of 4 it must be (§3.6.2.3); Linux's target said ffffh for years, and what is less is allowed.
        maxh2cdata: maxh2cdata & !3,
    })
}
