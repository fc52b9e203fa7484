//! The PDU codec of the TCP transport, used by target and host alike (NVMe/TCP 1.0 §3.6).
//!
//! [`Decoder`] takes the bytes of a connection in pieces of any size and says what they are: a PDU's header, pieces of its
//! data, the data's end. [`Encoder`] makes headers. Neither does I/O, keeps payload, or allocates.
//!
//! Invariants:
//! - Bytes are hostile. Whatever arrives, the decoder answers with an event or with one [`FatalError`], and after an
//!   error it answers nothing else: it swallows what follows. A PDU whose announced length does not fit its kind is
//!   refused before any of its data is waited for, so a length never makes us wait for, or hold, more than the bounds
//!   in [`Rules`].
//! - The order of events is `Pdu (Data* DataEnd)?`: data is never announced without its header, and a header's data is
//!   complete when `DataEnd` has come. Whoever consumes them needs no lengths of its own.
//! - A wrong data digest is not fatal (§3.5): it is told with `DataEnd` and costs one command, not the connection.

mod decode;
mod digest;
mod encode;
mod error;
mod pdu;

pub use decode::{Decoder, Event, Role, Rules};
pub use digest::{DIGEST_BYTES, Digest};
pub use encode::{Encoder, HEADER_BYTES_MAX, Header};
pub use error::FatalError;
pub use pdu::{CapsuleCmd, DataPdu, IcReq, IcResp, Pdu, ReadyToTransfer, TermReq};

/// Data alignment in bytes that an HPDA or CPDA code stands for (zero based dwords, §3.6.2.2).
pub const fn alignment_of_code(code: u8) -> u32 {
    (code as u32 + 1) * 4
}

#[cfg(test)]
mod tests;
