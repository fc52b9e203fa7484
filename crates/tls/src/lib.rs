//! TLS for connections of the engine, by certificates or by pre-shared keys, and the secrets that both stand on.
//!
//! ```text
//!  files ─► Secret ─► CertificateContext ────────────────────────┐
//!  keys, found by identity (FindPsk) ─► ServerContext ───────────┤
//!                                                                ▼
//!  socket ◄─► TlsStream ◄─► Tunnel (OpenSSL, no I/O) ◄── session callbacks (the only unsafe)
//! ```
//! What identities mean, and whom they let in, is a matter of whoever finds keys by them.

mod asking;
mod certificate;
mod error;
mod psk;
mod secret;
mod session;
mod stream;
mod transport;
mod tunnel;

pub use asking::{AskingContext, AskingStream};
pub use certificate::{CertificateFiles, private_key};
pub use error::TlsError;
pub use psk::{FindPsk, Psk, Suite};
pub use secret::{SECRET_BYTES_MAX, Secret, SecretError};
pub use stream::{HANDSHAKE_BYTES_MAX, TlsStream};
pub use transport::{HANDSHAKE_TIME_MAX, REFUSALS_MAX, Transport};
pub use tunnel::{CertificateContext, ServerContext};

#[cfg(test)]
mod tests;
