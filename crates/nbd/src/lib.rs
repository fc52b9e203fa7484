//! The server's side of the Network Block Device protocol, over any namespace: for clients without NVMe over TCP.
//!
//! - [`wire`]: numbers, requests and replies as bytes; no I/O.
//! - [`negotiation`]: options and their answers, up to the export that a client chooses; no I/O.
//! - [`export`]: bytes over blocks: what is not aligned, errors, holes.
//! - [`connection`]: one client; [`server`]: all of them.

mod connection;
mod export;
mod figures;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod negotiation;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use export::Export;
pub use figures::{Figures, NbdMetrics};
pub use server::{CONNECTIONS_MAX, Server, ServerError};
pub use wire::{NAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
