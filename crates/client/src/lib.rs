//! Reaching a pool: what every program that uses one shares, the command line and the gateway included.

mod error;
pub mod reach;
mod security;

pub use error::{Error, ErrorKind};
pub use security::{SecurityOptions, tls_key};
