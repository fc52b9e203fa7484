//! The binary protocol.

use std::ops::Range;

use cache::slot::Slots;
use cache::testing::{PlainSlots, ready};

use super::generator::Generator;
use super::memcached::Pair;

/// A request.
pub fn request(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let body = extras.len() + key.len() + value.len();
    header(0x80, opcode, [extras.len(), key.len(), body], cas)
        .into_iter()
        .chain([extras, key, value].concat())
        .collect()
}

/// A header with these lengths of extras, key and body, whatever follows it.
fn header(magic: u8, opcode: u8, [extras, key, body]: [usize; 3], cas: u64) -> Vec<u8> {
    let mut header = vec![magic, opcode];
    header.extend_from_slice(&(key as u16).to_be_bytes());
    header.extend_from_slice(&[extras as u8, 0, 0, 0]);
    header.extend_from_slice(&(body as u32).to_be_bytes());
    header.extend_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    header.extend_from_slice(&cas.to_be_bytes());
    header
}

/// The answer to a no-op ends with these.
const LAST: &[u8] = &[0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0, 0, 0, 0, 0];

fn noop() -> Vec<u8> {
    request(0x0a, b"", b"", b"", 0)
}

fn numbers(delta: u64, initial: u64, expiry: u32) -> Vec<u8> {
    [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &expiry.to_be_bytes()].concat()
}

const FLAGS: &[u8] = &[0, 0, 0, 7, 0, 0, 0, 0];
const NOW: &[u8] = &[0; 4];

fn right() -> Vec<Vec<u8>> {
    let long = vec![b'v'; 300_000];
    let r = request;
    vec![
        [r(0x01, FLAGS, b"a", b"val", 0), r(0x00, b"", b"a", b"", 0), r(0x0c, b"", b"a", b"", 0)].concat(),
        [r(0x00, b"", b"no", b"", 0), r(0x0c, b"", b"no", b"", 0), r(0x09, b"", b"no", b"", 0)].concat(),
        [r(0x0d, b"", b"no", b"", 0), r(0x0d, b"", b"a", b"", 0), r(0x09, b"", b"a", b"", 0)].concat(),
        [r(0x1c, NOW, b"a", b"", 0), r(0x1c, NOW, b"no", b"", 0), r(0x1d, NOW, b"a", b"", 0)].concat(),
        [r(0x1e, NOW, b"a", b"", 0), r(0x1e, NOW, b"no", b"", 0), r(0x23, NOW, b"a", b"", 0)].concat(),
        [r(0x23, NOW, b"no", b"", 0), r(0x24, NOW, b"a", b"", 0), r(0x24, NOW, b"no", b"", 0)].concat(),
        [r(0x02, FLAGS, b"a", b"x", 0), r(0x02, FLAGS, b"b", b"x", 0), r(0x12, FLAGS, b"a", b"x", 0)].concat(),
        [r(0x12, FLAGS, b"c", b"x", 0), r(0x03, FLAGS, b"no", b"x", 0), r(0x03, FLAGS, b"a", b"y", 0)].concat(),
        [r(0x13, FLAGS, b"no", b"x", 0), r(0x13, FLAGS, b"a", b"z", 0), r(0x00, b"", b"a", b"", 0)].concat(),
        [r(0x01, FLAGS, b"a", b"x", 999), r(0x01, FLAGS, b"no", b"x", 999), r(0x02, FLAGS, b"a", b"x", 999)].concat(),
        [r(0x03, FLAGS, b"a", b"x", 1), r(0x11, FLAGS, b"a", b"x", 1), r(0x0e, b"", b"a", b"1", 1)].concat(),
        [r(0x0e, b"", b"a", b"1", 0), r(0x0f, b"", b"a", b"2", 0), r(0x19, b"", b"a", b"3", 0)].concat(),
        [r(0x1a, b"", b"a", b"4", 0), r(0x00, b"", b"a", b"", 0), r(0x0e, b"", b"no", b"4", 0)].concat(),
        [r(0x19, b"", b"no", b"4", 0), r(0x0e, b"", b"a", b"", 0), r(0x01, FLAGS, b"e", b"", 0)].concat(),
        [r(0x05, &numbers(1, 10, 0), b"n", b"", 0), r(0x05, &numbers(1, 10, 0), b"n", b"", 0)].concat(),
        [r(0x06, &numbers(100, 10, 0), b"n", b"", 0), r(0x05, &numbers(1, 10, u32::MAX), b"no", b"", 0)].concat(),
        [r(0x05, &numbers(1, 10, 0), b"n", b"", 1), r(0x05, &numbers(1, 10, 0), b"a", b"", 0)].concat(),
        [r(0x15, &numbers(5, 10, 0), b"n", b"", 0), r(0x16, &numbers(1, 10, 0), b"n", b"", 0)].concat(),
        [r(0x15, &numbers(5, 10, u32::MAX), b"no", b"", 0), r(0x15, &numbers(5, 10, 0), b"a", b"", 0)].concat(),
        [r(0x05, &numbers(u64::MAX, u64::MAX, 100), b"m", b"", 0), r(0x05, &numbers(2, 0, 0), b"m", b"", 0)].concat(),
        [r(0x04, b"", b"no", b"", 0), r(0x14, b"", b"no", b"", 0), r(0x04, b"", b"a", b"", 3)].concat(),
        [r(0x04, b"", b"a", b"", 0), r(0x14, b"", b"b", b"", 0), r(0x00, b"", b"b", b"", 0)].concat(),
        [r(0x0b, b"", b"", b"", 0), r(0x08, b"", b"", b"", 0), r(0x18, b"", b"", b"", 0), r(0x08, NOW, b"", b"", 0)]
            .concat(),
        [r(0x01, &[0, 0, 0, 0, 0, 39, 141, 1], b"x", b"x", 0), r(0x00, b"", b"x", b"", 0)].concat(),
        [r(0x01, &[255; 8], b"x", b"x", 0), r(0x00, b"", b"x", b"", 0), r(0x1d, &[0, 39, 141, 1], b"x", b"", 0)]
            .concat(),
        [r(0x01, FLAGS, b"l", &long, 0), r(0x0c, b"", b"l", b"", 0), r(0x0e, b"", b"l", &long, 0)].concat(),
        [r(0x0c, b"", b"l", b"", 0), r(0x11, FLAGS, b"l", &long, 0), r(0x05, &numbers(1, 1, 0), b"l", b"", 0)].concat(),
        [r(0x10, b"", b"reset", b"", 0), r(0x10, b"", b"sizes", b"", 0), r(0x10, b"", b"no", b"", 0)].concat(),
        [r(0x10, b"", b"detail off", b"", 0), r(0x10, b"", b"detail x", b"", 0), r(0x10, b"", b"resetting", b"", 0)]
            .concat(),
        r(0x07, b"", b"", b"", 0),
        r(0x17, b"", b"", b"", 0),
    ]
}

fn wrong() -> Vec<Vec<u8>> {
    let r = request;
    let too_long = vec![b'v'; 1_100_000];
    let long_key = vec![b'k'; 251];
    let mut cases = vec![
        [r(0x01, FLAGS, b"a", b"x", 0), r(0x01, FLAGS, b"a", &too_long, 0), r(0x00, b"", b"a", b"", 0)].concat(),
        [r(0x11, FLAGS, b"a", &too_long, 0), r(0x02, FLAGS, b"a", &too_long, 0)].concat(),
        [r(0x01, FLAGS, b"a", b"x", 0), r(0x0e, b"", b"a", &too_long, 0), r(0x00, b"", b"a", b"", 0)].concat(),
        [r(0x20, b"", b"", b"", 0), r(0x21, b"", b"PLAIN", b"\0u\0p", 0), r(0x22, b"", b"PLAIN", b"", 0)].concat(),
        [r(0x50, b"", b"", b"", 0), r(0x50, b"", b"", b"abc", 0)].concat(),
        // Extras and key of what is not known are passed over twice.
        [r(0x50, b"", b"abc", b"", 0), b"xxx".to_vec()].concat(),
        r(0x1b, NOW, b"", b"", 0),
        r(0x1f, NOW, b"a", b"", 0),
        r(0x30, b"", b"a", b"", 0),
        [noop(), header(0x81, 0, [0, 0, 0], 0)].concat(),
        [noop(), b"version\r\n".to_vec(), vec![b'x'; 20]].concat(),
        r(0x00, b"", &long_key, b"", 0),
        r(0x01, FLAGS, &long_key, b"x", 0),
        [r(0x01, FLAGS, &long_key[1..], b"x", 0), r(0x0c, b"", &long_key[1..], b"", 0)].concat(),
        [header(0x80, 0x00, [0, 3, 1], 0), b"abc".to_vec()].concat(),
        header(0x80, 0x01, [8, 0, 0], 0),
        header(0x80, 0x01, [0, 0, 0], 0),
        r(0x10, b"1234", b"", b"", 0),
    ];
    // Each with what it should not have.
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x07, 0x08, 0x0a, 0x0b, 0x0e, 0x1c, 0x1d, 0x20, 0x21] {
        cases.push(r(opcode, b"123", b"a", b"x", 0));
        cases.push(r(opcode, b"", b"", b"", 0));
        cases.push(r(opcode, b"", b"", b"x", 0));
        cases.push(r(opcode, b"12345678", b"", b"", 0));
    }
    cases
}

pub async fn compare<S: Slots>(pair: &mut Pair<S>, cases: Vec<Vec<u8>>) {
    let mut differences = Vec::new();
    for case in cases {
        let mut connection = pair.connect();
        let bytes = [case, noop()].concat();
        if let Some(difference) = pair.exchange(&mut connection, &bytes, LAST).await.difference() {
            differences.push(format!("{}\n{difference}", super::memcached::shown(&bytes)));
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n\n"));
}

#[test]
fn every_opcode() {
    ready(compare(&mut Pair::usual(), right()));
}

#[test]
fn every_malformed_request() {
    ready(compare(&mut Pair::usual(), wrong()));
}

#[test]
fn the_same_with_every_other_item_on_flash() {
    let cases = right().into_iter().chain(wrong()).collect();
    ready(compare(&mut Pair::at_rest(PlainSlots::with_flash()), cases));
}

#[test]
fn the_same_over_the_store() {
    let cases = right().into_iter().chain(wrong()).collect();
    ready(compare(&mut Pair::at_rest(super::store()), cases));
}

#[test]
fn random_streams() {
    ready(stream(&mut Pair::at_rest(PlainSlots::default()), 100..106));
}

#[test]
fn random_streams_over_the_store() {
    ready(stream(&mut Pair::at_rest(super::store()), 106..112));
}

pub async fn stream<S: Slots>(pair: &mut Pair<S>, seeds: Range<u64>) {
    for seed in seeds {
        let mut generator = Generator::new(seed);
        let mut connection = pair.connect();
        for round in 0..250 {
            let bytes = [generator.binary_batch(), noop()].concat();
            let answers = pair.exchange(&mut connection, &bytes, LAST).await;
            answers.check(&format!("seed {seed}, round {round}"), &bytes);
            if answers.our_end {
                connection = pair.connect();
            }
        }
    }
}
