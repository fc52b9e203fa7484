//! The codec against itself, against hostile bytes, and against every field that can be wrong.

use super::*;
use nvme::opcode::NvmOpcode;
use nvme::tcp::{FatalStatus, PduType};
use nvme::{Completion, Status, Submission};
use proptest::prelude::*;

const CAPSULE_MAX: u32 = 16 << 10;
const DATA_MAX: u32 = 64 << 10;

fn encoder(header_digest: bool, data_digest: bool, alignment_code: u8) -> Encoder {
    Encoder { header_digest, data_digest, alignment_code }
}

fn established(role: Role, encoder: &Encoder) -> Decoder {
    let mut decoder = Decoder::new(role);
    decoder.establish(Rules {
        header_digest: encoder.header_digest,
        data_digest: encoder.data_digest,
        alignment_code: encoder.alignment_code,
        capsule_data_bytes_max: CAPSULE_MAX,
        data_pdu_bytes_max: DATA_MAX,
    });
    decoder
}

/// What came out of a run: PDUs with their data and whether its digest was right.
type Decoded = Vec<(Pdu, Vec<u8>, bool)>;

fn decode_in_pieces(decoder: &mut Decoder, bytes: &[u8], piece: usize) -> Result<Decoded, FatalError> {
    let mut out: Decoded = Vec::new();
    for mut input in bytes.chunks(piece.max(1)) {
        while let Some(event) = decoder.next(&mut input)? {
            match event {
                Event::Pdu(pdu) => out.push((pdu, Vec::new(), true)),
                Event::Data(data) => out.last_mut().expect("data follows a header").1.extend(data),
                Event::DataEnd { digest_ok } => out.last_mut().expect("an end follows a header").2 = digest_ok,
            }
        }
        assert!(input.is_empty(), "the decoder asked for more and left bytes");
    }
    Ok(out)
}

fn with_data(header: Header, encoder: &Encoder, data: &[u8]) -> Vec<u8> {
    let mut bytes = header.to_vec();
    bytes.extend(data);
    bytes.extend(encoder.data_digest_of(data).into_iter().flatten());
    bytes
}

fn command() -> Submission {
    let mut command = Submission::nvm(NvmOpcode::WRITE, 0x1234, 1);
    command.set_range(77, 8);
    command
}

fn written(cccid: u16, ttag: u16, offset: u32, bytes: u32) -> DataPdu {
    DataPdu { cccid, ttag, offset, bytes, last: true, success: false }
}

/// The host's side of a conversation: every PDU a controller may get.
fn host_stream(encoder: &Encoder, data: &[u8]) -> (Vec<u8>, Decoded) {
    let bytes = data.len() as u32;
    let mut stream = with_data(encoder.capsule_cmd(&command(), bytes), encoder, data);
    let mut expected =
        vec![(Pdu::CapsuleCmd(CapsuleCmd { command: command(), data_bytes: bytes }), data.to_vec(), true)];
    stream.extend_from_slice(&encoder.capsule_cmd(&command(), 0));
    expected.push((Pdu::CapsuleCmd(CapsuleCmd { command: command(), data_bytes: 0 }), vec![], true));
    let pdu = written(9, 3, 512, bytes);
    stream.extend(with_data(encoder.h2c_data(&pdu), encoder, data));
    expected.push((Pdu::H2cData(pdu), data.to_vec(), true));
    (stream, expected)
}

/// The controller's side: every PDU a host may get.
fn controller_stream(encoder: &Encoder, data: &[u8]) -> (Vec<u8>, Decoded) {
    let completion = Completion::new(5, Status::COMPARE_FAILURE, 7, 1);
    let mut stream = encoder.capsule_resp(&completion).to_vec();
    let mut expected = vec![(Pdu::CapsuleResp(completion), vec![], true)];
    let request = ReadyToTransfer { cccid: 5, ttag: 6, offset: 4096, bytes: 8192 };
    stream.extend_from_slice(&encoder.r2t(&request));
    expected.push((Pdu::R2t(request), vec![], true));
    let pdu = DataPdu { success: true, ..written(5, 0, 0, data.len() as u32) };
    stream.extend(with_data(encoder.c2h_data(&pdu), encoder, data));
    expected.push((Pdu::C2hData(pdu), data.to_vec(), true));
    (stream, expected)
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_however_it_is_cut(
        header_digest: bool, data_digest: bool, alignment_code in 0u8..32, piece in 1usize..600,
        data in proptest::collection::vec(any::<u8>(), 1..2000),
    ) {
        let encoder = encoder(header_digest, data_digest, alignment_code);
        let (stream, expected) = host_stream(&encoder, &data);
        let mut decoder = established(Role::Controller, &encoder);
        prop_assert_eq!(decode_in_pieces(&mut decoder, &stream, piece).unwrap(), expected);
        let (stream, expected) = controller_stream(&encoder, &data);
        let mut decoder = established(Role::Host, &encoder);
        prop_assert_eq!(decode_in_pieces(&mut decoder, &stream, piece).unwrap(), expected);
    }

    #[test]
    fn no_bytes_make_it_panic_or_stall(bytes in proptest::collection::vec(any::<u8>(), 0..400), first in 0u8..10,
                                       host: bool, header_digest: bool, data_digest: bool, piece in 1usize..50) {
        let mut bytes = bytes;
        if let Some(byte) = bytes.first_mut() { *byte = first; }
        let encoder = encoder(header_digest, data_digest, 0);
        let mut decoder = established(if host { Role::Host } else { Role::Controller }, &encoder);
        let _ = decode_in_pieces(&mut decoder, &bytes, piece);
        let _ = decode_in_pieces(&mut Decoder::new(Role::Controller), &bytes, piece);
    }

    /// Header digests: whichever bit of a header flips, the PDU is refused.
    #[test]
    fn a_flipped_header_bit_is_never_accepted(bit in 0usize..76 * 8) {
        let encoder = encoder(true, false, 0);
        let mut bytes = encoder.capsule_cmd(&command(), 0).to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut decoder = established(Role::Controller, &encoder);
        prop_assert!(decode_in_pieces(&mut decoder, &bytes, 4096).is_err());
    }
}

#[test]
fn data_received_past_the_decoder_counts_and_is_digested() {
    let encoder = encoder(true, true, 0);
    let data: Vec<u8> = (0..5000).map(|i| i as u8).collect();
    for damage in [false, true] {
        let mut stream = with_data(encoder.h2c_data(&written(1, 2, 0, 5000)), &encoder, &data);
        stream[28 + 4000] ^= u8::from(damage);
        let mut decoder = established(Role::Controller, &encoder);
        let mut input = &stream[..28 + 100];
        assert!(matches!(decoder.next(&mut input), Ok(Some(Event::Pdu(Pdu::H2cData(_))))));
        assert!(matches!(decoder.next(&mut input), Ok(Some(Event::Data(data))) if data.len() == 100));
        assert_eq!(decoder.data_remaining(), 4900);
        decoder.data_received(&stream[128..28 + 5000]);
        assert_eq!(decoder.next(&mut &[][..]), Ok(None));
        let mut rest = &stream[28 + 5000..];
        assert_eq!(decoder.next(&mut rest), Ok(Some(Event::DataEnd { digest_ok: !damage })));
    }
}

#[test]
fn the_exchange_that_opens_a_connection() {
    let request = IcReq { alignment_code: 3, header_digest: true, data_digest: false, maxr2t: 7 };
    let out = decode_in_pieces(&mut Decoder::new(Role::Controller), &Encoder::ic_req(&request), 50).unwrap();
    assert_eq!(out, vec![(Pdu::IcReq(request), vec![], true)]);
    let response = IcResp { alignment_code: 0, header_digest: true, data_digest: true, maxh2cdata: 1 << 20 };
    let out = decode_in_pieces(&mut Decoder::new(Role::Host), &Encoder::ic_resp(&response), 50).unwrap();
    assert_eq!(out, vec![(Pdu::IcResp(response), vec![], true)]);
}

/// Linux's target said ffffh for years, which is no multiple of 4, and could not be connected to for it.
#[test]
fn an_odd_maxh2cdata_is_rounded_down() {
    let response = IcResp { alignment_code: 0, header_digest: false, data_digest: false, maxh2cdata: 0xFFFF };
    let out = decode_in_pieces(&mut Decoder::new(Role::Host), &Encoder::ic_resp(&response), 50).unwrap();
    assert_eq!(out, vec![(Pdu::IcResp(IcResp { maxh2cdata: 0xFFFC, ..response }), vec![], true)]);
}

#[test]
fn a_term_req_tells_the_error_and_the_header() {
    let error = FatalError::field(PduType::CAPSULE_CMD, 2, "HLEN", 71u8);
    let header = Encoder::term_req(PduType::C2H_TERM_REQ, &error, &[9; 200]);
    assert_eq!(header.len(), HEADER_BYTES_MAX);
    let encoder = encoder(true, true, 0);
    let out = decode_in_pieces(&mut established(Role::Host, &encoder), &header, 33).unwrap();
    let term = TermReq { status: FatalStatus::INVALID_HEADER_FIELD, information: 2, data_bytes: 128 };
    assert_eq!(out, vec![(Pdu::C2hTermReq(term), vec![9; 128], true)]);
}

/// Damages one byte of a good PDU and says which error must come.
fn refused(role: Role, good: &[u8], encoder: &Encoder, damage: &[(usize, u8)]) -> (FatalStatus, u32) {
    let mut bytes = good.to_vec();
    for &(at, value) in damage {
        bytes[at] = value;
    }
    let mut decoder = established(role, encoder);
    let error = decode_in_pieces(&mut decoder, &bytes, 4096).expect_err("a damaged header passed");
    assert_eq!(decode_in_pieces(&mut decoder, good, 4096), Ok(vec![]), "a failed decoder went on");
    (error.status, error.information)
}

#[test]
fn every_bad_field_is_named() {
    let plain = encoder(false, false, 0);
    let field = FatalStatus::INVALID_HEADER_FIELD;
    let command = plain.capsule_cmd(&command(), 0);
    let as_controller = |damage: &[(usize, u8)]| refused(Role::Controller, &command, &plain, damage);
    assert_eq!(as_controller(&[(0, 0x0B)]), (field, 0), "unknown type");
    assert_eq!(as_controller(&[(0, PduType::R2T.0)]), (FatalStatus::SEQUENCE_ERROR, 0), "wrong direction");
    assert_eq!(as_controller(&[(0, PduType::IC_REQ.0)]), (FatalStatus::SEQUENCE_ERROR, 0), "initialized twice");
    assert_eq!(as_controller(&[(1, 1)]), (field, 1), "digest flag not agreed");
    assert_eq!(as_controller(&[(2, 71)]), (field, 2), "HLEN");
    assert_eq!(as_controller(&[(4, 71)]), (field, 4), "PLEN below the header");
    assert_eq!(as_controller(&[(3, 72), (6, 2)]), (field, 4), "PLEN over the capsule");
    assert_eq!(as_controller(&[(3, 72), (1, 2), (5, 1)]), (field, 1), "data digest not agreed");

    let data = with_data(plain.h2c_data(&written(1, 1, 0, 8)), &plain, &[0; 8]);
    let as_controller = |damage: &[(usize, u8)]| refused(Role::Controller, &data, &plain, damage);
    assert_eq!(as_controller(&[(3, 20)]), (field, 3), "PDO inside the header");
    assert_eq!(as_controller(&[(3, 26)]), (field, 3), "PDO not aligned");
    assert_eq!(as_controller(&[(3, 32)]), (field, 4), "no data left");
    assert_eq!(as_controller(&[(16, 7)]), (field, 16), "DATAL");
    assert_eq!(as_controller(&[(6, 2)]), (FatalStatus::LIMIT_EXCEEDED, 0), "over MAXH2CDATA");
    assert_eq!(as_controller(&[(4, 24)]), (field, 16), "H2CData without data");

    let read = DataPdu { last: false, success: true, ..written(1, 0, 0, 8) };
    let read = with_data(plain.c2h_data(&read), &plain, &[0; 8]);
    assert_eq!(refused(Role::Host, &read, &plain, &[]), (field, 1), "success before the last PDU");
    let r2t = plain.r2t(&ReadyToTransfer { cccid: 1, ttag: 1, offset: 0, bytes: 8 });
    assert_eq!(refused(Role::Host, &r2t, &plain, &[(16, 0)]), (field, 16), "R2TL 0");
    assert_eq!(refused(Role::Host, &r2t, &plain, &[(4, 28)]), (field, 4), "R2T with data");

    let digests = encoder(true, true, 0);
    let resp = digests.capsule_resp(&Completion::default());
    let (status, information) = refused(Role::Host, &resp, &digests, &[(8, 1)]);
    let received = u32::from_le_bytes(resp[24..28].try_into().unwrap());
    assert_eq!((status, information), (FatalStatus::HEADER_DIGEST_ERROR, received));
}

#[test]
fn the_opening_is_checked_too() {
    let refused = |role: Role, good: &[u8], at: usize, value: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = value;
        let error = decode_in_pieces(&mut Decoder::new(role), &bytes, 4096).expect_err("passed");
        (error.status, error.information)
    };
    let field = FatalStatus::INVALID_HEADER_FIELD;
    let request = Encoder::ic_req(&IcReq { alignment_code: 0, header_digest: false, data_digest: false, maxr2t: 0 });
    assert_eq!(refused(Role::Controller, &request, 8, 1), (FatalStatus::UNSUPPORTED_PARAMETER, 8));
    assert_eq!(refused(Role::Controller, &request, 10, 32), (field, 10));
    assert_eq!(refused(Role::Controller, &request, 2, 127), (field, 2));
    assert_eq!(refused(Role::Controller, &request, 4, 129), (field, 4));
    assert_eq!(refused(Role::Controller, &request, 0, 4), (FatalStatus::SEQUENCE_ERROR, 0));
    let response =
        Encoder::ic_resp(&IcResp { alignment_code: 0, header_digest: false, data_digest: false, maxh2cdata: 4096 });
    assert_eq!(refused(Role::Host, &response, 13, 8), (field, 12), "MAXH2CDATA below 4096");
    assert_eq!(refused(Role::Host, &response, 10, 32), (field, 10));
}
