//! Entry points for fuzzing: each takes any bytes, and must neither panic, nor hang, nor hold more than its bounds.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use device::{AnyNamespace, Memory, ZonedInfo, ZonedMemory};

pub use crate::host::fuzz_session as host_session;
use crate::subsystem::{RawHost, UNAUTHENTICATED_TIME_MAX, raw_subsystem as subsystem};
use crate::tcp::{Decoder, Event, Pdu, Role, Rules};

/// Decodes `bytes` as both ends would, with digests and without, in pieces whose size the first byte says.
pub fn pdu_decode(bytes: &[u8]) {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let role = if first & 1 == 0 { Role::Controller } else { Role::Host };
    let mut decoder = Decoder::new(role);
    if first & 2 != 0 {
        decoder.establish(Rules {
            header_digest: first & 4 != 0,
            data_digest: first & 8 != 0,
            alignment_code: if first & 16 != 0 { 31 } else { 0 },
            capsule_data_bytes_max: 8192,
            data_pdu_bytes_max: 1 << 20,
        });
    }
    let mut data = 0;
    for mut piece in bytes.chunks(usize::from(first >> 5) * 16 + 1) {
        while let Ok(Some(event)) = decoder.next(&mut piece) {
            match event {
                Event::Pdu(pdu) => data = data_bytes(&pdu),
                Event::Data(bytes) => {
                    assert!(bytes.len() <= data, "more data was told than the header announced");
                    data -= bytes.len();
                }
                Event::DataEnd { .. } => assert_eq!(data, 0, "the end was told before all data"),
            }
        }
    }
}

fn data_bytes(pdu: &Pdu) -> usize {
    let bytes = match pdu {
        Pdu::CapsuleCmd(capsule) => capsule.data_bytes,
        Pdu::H2cData(data) | Pdu::C2hData(data) => data.bytes,
        Pdu::H2cTermReq(term) | Pdu::C2hTermReq(term) => term.data_bytes,
        Pdu::IcReq(_) | Pdu::IcResp(_) | Pdu::CapsuleResp(_) | Pdu::R2t(_) => 0,
    };
    bytes as usize
}

/// Runs a target's connection on `bytes`: at the start of a connection, or with an admin or I/O queue connected already.
pub fn target_session(bytes: &[u8]) {
    run_target_session(bytes);
}

/// A session whose target has zones too, as namespace 2, for a host that enables all I/O command sets.
fn with_zones() -> RawHost {
    let mut session = RawHost::new(memory());
    let zoned = ZonedInfo { zone_blocks: 8, open_max: Some(2), active_max: Some(3), append_blocks_max: 4 };
    let zones = ZonedMemory::new(6, 6, zoned, [8; 16]);
    let added = session.target.add_namespace(&subsystem(), 2, AnyNamespace::other(zones));
    debug_assert!(added.is_ok());
    session.command_sets = true;
    session
}

/// The session after it took all bytes; none without a first byte.
fn run_target_session(bytes: &[u8]) -> Option<RawHost> {
    let (&first, bytes) = bytes.split_first()?;
    let mut session = with_zones();
    if first & 3 != 0 {
        session.open(first & 4 != 0, first & 8 != 0);
    }
    match first & 3 {
        2 => session.connect_admin(),
        3 => session.connect_io(),
        _ => {}
    }
    for piece in bytes.chunks(usize::from(first >> 4) * 64 + 1) {
        session.receive(piece);
        session.advance(Duration::from_millis(u64::from(first)));
    }
    Some(session)
}

/// Sends `bytes` as authentication messages to a queue that must authenticate: two bytes of length before each, some behind
/// a proper start of a transaction, and with time between them. None of them may open the queue, nor make it stay.
pub fn target_authentication(bytes: &[u8]) {
    let Some((&first, mut bytes)) = bytes.split_first() else { return };
    let mut session = RawHost::new(memory());
    session.require_authentication();
    session.open(false, false);
    session.connect_admin();
    let over = session.now + UNAUTHENTICATED_TIME_MAX;
    if first & 1 != 0 {
        session.negotiate();
        if first & 2 != 0 {
            session.receive_authentication(4096);
        }
    }
    let mut command_id = 0;
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length) & 0x7FF).min(rest.len());
        let (message, rest) = rest.split_at(length);
        bytes = rest;
        session.send_authentication(message);
        // One that is held back keeps its identifier.
        command_id = u16::wrapping_add(command_id, 1);
        session.receive_authentication_by(command_id, if first & 4 != 0 { 4096 } else { u32::from(first) });
        session.advance(Duration::from_millis(u64::from(first) * 4));
        assert!(session.now < over || session.is_over(), "a queue stayed without the key");
    }
    session.advance(over.duration_since(session.now));
    assert!(session.is_over(), "a queue stayed without the key");
    assert_eq!(session.target.stats().authenticated(), 0, "a queue was opened without the key");
}

fn memory() -> Memory {
    Memory::new(1 << 20, 4096, [7; 16]).expect("invariant: 1 MiB of 4 KiB blocks is a size that Memory takes")
}

/// Polls a future that never waits, as those of a memory namespace.
pub(crate) fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod seeds;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_queue_that_asks_without_end_does_not_stay() {
        // Nothing is sent and 4096 bytes are asked for, thirty times, a little less than a second apart.
        target_authentication(&[&[0xF4][..], &[0; 60]].concat());
    }

    proptest! {
        #[test]
        fn neither_entry_minds_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            pdu_decode(&bytes);
            target_session(&bytes);
            target_authentication(&bytes);
        }

        /// Messages that are nearly right: a known kind, the transaction of the start, lengths that may belong to it.
        #[test]
        fn no_message_opens_a_queue(first: u8, kind in 0u8..2, id in prop_oneof![0u8..6, 0xF0u8..0xF2],
                                    lengths in proptest::array::uniform10(prop_oneof![0u8..4, Just(32u8), any::<u8>()]),
                                    tail in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut message = vec![kind, id, 0, 0, 1, 0];
            message.extend(lengths);
            message.extend(tail);
            let mut bytes = vec![first];
            bytes.extend((message.len() as u16).to_le_bytes());
            bytes.extend(message);
            target_authentication(&bytes);
        }

        /// Bytes that begin like a PDU get further.
        #[test]
        fn a_session_minds_no_capsule(first: u8, kind in 0u8..10, command in proptest::collection::vec(any::<u8>(), 64),
                                      data in proptest::collection::vec(any::<u8>(), 0..64), tail: Vec<u8>) {
            let plen = (72 + data.len()) as u8;
            let mut bytes = vec![first, kind, 0, if kind == 4 { 72 } else { 24 }, 72, plen, 0, 0, 0];
            bytes.extend(command);
            bytes.extend(data);
            bytes.extend(tail);
            target_session(&bytes);
            pdu_decode(&bytes);
        }

        /// Commands that are nearly right get furthest: known opcodes, a namespace that is there, and data pointers,
        /// lengths and fields that belong to another command.
        #[test]
        fn a_session_minds_no_command(first in 2u8..4, digests in 0u8..4,
                                      commands in proptest::collection::vec(nearly_right(), 1..8)) {
            let mut session = with_zones();
            session.open(digests & 1 != 0, digests & 2 != 0);
            if first == 2 { session.connect_admin() } else { session.connect_io() }
            for (command, data) in commands {
                session.receive(&session.capsule(&command, &vec![0; data]));
            }
        }
    }

    fn nearly_right() -> impl Strategy<Value = (nvme::Submission, usize)> {
        use nvme::{SglDescriptor, Submission};

        let opcode = prop_oneof![2 => 0u8..0x20, 1 => 0x79u8..0x80, 1 => any::<u8>()];
        let flags = prop_oneof![Just(0x40u8), 0x40u8..0x44, any::<u8>()];
        let nsid = prop_oneof![3 => Just(1u32), 2 => Just(2u32), 1 => 0u32..16, 1 => Just(u32::MAX)];
        let bytes = || prop_oneof![Just(0u32), Just(16), Just(1024), Just(4096), Just(8192), any::<u32>()];
        let identifier = prop_oneof![Just(0x01u8), Just(0x5A), Just(0), any::<u8>()];
        let address = prop_oneof![3 => Just(0u64), 1 => 0u64..8192, 1 => any::<u64>()];
        let field = || prop_oneof![3 => 0u32..9, 1 => any::<u32>()].boxed();
        let data = prop_oneof![Just(0usize), Just(16), Just(1024), Just(4096), Just(8192)];
        let head = (opcode, flags, 0u16..4, nsid);
        let sgl = (bytes(), identifier, address);
        // What is done with which zones, in CDW13.
        let how = prop_oneof![2 => 0u32..6, 1 => (0u32..9).prop_map(|state| state << 8), 1 => any::<u32>()];
        (head, sgl, [field(), field(), field(), how.boxed()], data).prop_map(|(head, sgl, fields, data)| {
            let (opcode, flags, id, nsid) = head;
            let (length, identifier, address) = sgl;
            let sgl = SglDescriptor { address: address.into(), length: length.into(), identifier, reserved: [0; 3] };
            let mut command = Submission { opcode, flags, sgl, ..Submission::default() };
            (command.command_id, command.nsid) = (id.into(), nsid.into());
            [command.cdw10, command.cdw11, command.cdw12, command.cdw13] = fields.map(Into::into);
            (command, data)
        })
    }
}
