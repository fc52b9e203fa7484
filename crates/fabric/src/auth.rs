//! DH-HMAC-CHAP in-band authentication (NVMe Base 2.0 §8.13): both ends as state machines without I/O.
//!
//! ```text
//!  HostSide                                        ControllerSide
//!     │ AUTH_Negotiate (hashes, groups)               │
//!     ├──────────────────────────────────────────────►│ chooses
//!     │               DH-HMAC-CHAP_Challenge (C1, g^x) │
//!     │◄──────────────────────────────────────────────┤
//!     │ DH-HMAC-CHAP_Reply (R1, [C2], g^y)             │
//!     ├──────────────────────────────────────────────►│ verifies R1: the host knows its key
//!     │                  DH-HMAC-CHAP_Success1 ([R2])  │
//!     │◄──────────────────────────────────────────────┤
//!     │ verifies R2; [DH-HMAC-CHAP_Success2]           │
//!     ├──────────────────────────────────────────────►│
//! ```
//! The host's messages travel in Authentication Send, the controller's in Authentication Receive. Whoever finds fault says
//! so by AUTH_Failure1 (controller) or AUTH_Failure2 (host), and the connection ends.
//!
//! Invariants:
//! - A response is compared in constant time, and nothing that depends on a key is said before the peer's was right, save
//!   the host's R1, which the protocol has first.
//! - Every challenge is random and used once: a transaction that is replayed meets another challenge.
//! - Keys, shared secrets and what is derived from them live in [`tls::Secret`]s. Nothing prints them.

mod controller;
mod derive;
mod group;
mod host;
mod key;
mod suite;

pub use controller::{ConcatenationPolicy, ControllerSide, Verdict};
pub use derive::GeneratedPsk;
pub use host::{AuthError, HostSide, Step};
pub use key::{DhchapKey, HostKeys, KeyError};
pub use suite::{Group, Hash, Policy, PolicyError};

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nvme::Nqn;

/// Who authenticates to whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// The host's NQN.
    pub host: Nqn,
    /// The subsystem's NQN.
    pub subsystem: Nqn,
}

/// The cryptographic library failed: out of memory, or without a function it should have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the cryptographic library failed: {0}")]
pub struct CryptoError(String);

impl From<openssl::error::ErrorStack> for CryptoError {
    fn from(error: openssl::error::ErrorStack) -> CryptoError {
        CryptoError(error.to_string())
    }
}

/// A fresh random value.
fn random(bytes: usize) -> Result<Vec<u8>, CryptoError> {
    let mut value = vec![0; bytes];
    openssl::rand::rand_bytes(&mut value)?;
    Ok(value)
}

/// A sequence number: never 0, random at first, and one more each time (NVMe Base 2.0 §8.13.5.2).
fn next_sequence() -> Result<u32, CryptoError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let seed = random(4)?;
    let seed = u64::from(u32::from_le_bytes([seed[0], seed[1], seed[2], seed[3]]));
    // Above 32 bits: it was seeded. Whoever comes second finds the first one's seed.
    let _ = NEXT.compare_exchange(0, 1 << 32 | seed, Relaxed, Relaxed);
    loop {
        let sequence = NEXT.fetch_add(1, Relaxed) as u32;
        if sequence != 0 {
            return Ok(sequence);
        }
    }
}

#[cfg(test)]
mod tests;
