//! TLS 1.3 with pre-shared keys on the TCP transport (NVMe/TCP 1.0c §3.6.1).
//!
//! ```text
//!  key file ─► ConfiguredPsk ─► RetainedPsk ─► TlsPsk ─┐
//!  authentication ─────────────────────────────────────┴► Keyring (target) or Options (host)
//!                                                              │ identity ─► key
//!  socket ◄─► TlsStream ◄─► Tunnel (OpenSSL, no I/O) ◄──────── session callbacks (the only unsafe)
//! ```
//! The identity of the key that a connection was made with names a host and a subsystem; the target lets its Connect command
//! name no others.

mod asking;
mod client;
mod error;
mod identity;
mod keyring;
mod psk;
mod session;
mod stream;
mod tunnel;

pub use asking::{AskingContext, AskingStream};
pub use client::{ClientStream, HANDSHAKE_TIME_MAX};
pub use error::TlsError;
pub use identity::{IDENTITY_BYTES_MAX, Identity, IdentityError, IdentityVersion, Origin};
pub use keyring::{
    GENERATED_MAX, GENERATED_PER_HOST_MAX, GENERATED_TIME_MAX, HOST_KEYS_MAX, Hold, Keyring, KeyringError,
};
pub use psk::{ConfiguredPsk, Derivation, PskError, PskHash, RetainedPsk, TlsKey, TlsPsk};
pub use stream::{HANDSHAKE_BYTES_MAX, TlsStream};
pub use tunnel::{CertificateContext, ServerContext};

#[cfg(test)]
mod tests;
