//! Entry points for fuzzing: each takes any bytes, and must neither panic, nor hang, nor hold more than its bounds.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use device::Memory;

pub use crate::host::fuzz_session as host_session;
use crate::target::Session;
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
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let mut session = Session::new(memory());
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
        session.advance(std::time::Duration::from_millis(u64::from(first)));
    }
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn neither_entry_minds_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            pdu_decode(&bytes);
            target_session(&bytes);
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
    }
}
