//! Pre-shared keys for TLS 1.3 on the TCP transport (NVMe/TCP 1.0c §3.6.1); TLS itself is the crate `tls`.
//!
//! ```text
//!  key file ─► ConfiguredPsk ─► RetainedPsk ─► TlsPsk ─┐
//!  authentication ─────────────────────────────────────┴► Keyring (target) or Options (host)
//!                                                              │ identity ─► key
//!                                                              ▼
//!                                              tls::ServerContext, tls::TlsStream
//! ```
//! The identity of the key that a connection was made with names a host and a subsystem; the target lets its Connect command
//! name no others.

mod identity;
mod keyring;
mod keys;

use tls::TlsError;

pub use identity::{IDENTITY_BYTES_MAX, Identity, IdentityError, IdentityVersion, Origin};
pub use keyring::{
    GENERATED_MAX, GENERATED_PER_HOST_MAX, GENERATED_TIME_MAX, HOST_KEYS_MAX, Hold, Keyring, KeyringError,
};
pub use keys::{ConfiguredPsk, Derivation, PskError, PskHash, RetainedPsk, TlsKey, TlsPsk};

/// What mends a handshake that failed between a host and a target, as the end of a sentence.
pub(crate) fn mend(error: &TlsError) -> &'static str {
    match error {
        TlsError::UnknownIdentity(_) => "; give the target the host's key by --host nqn=...,tls-key-file=...",
        TlsError::TooManyIdentities(_) => "; a host needs one for each subsystem",
        TlsError::Refused(_) => ": has the target the same key for this host and subsystem, and does its port do TLS?",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
