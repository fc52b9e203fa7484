//! Files without a server: names, inodes and maps of files in the store, their data in stripes with parity over members.
//!
//! The design, its invariants and its crash states are in the README of this crate.

mod error;
pub mod meta;

pub use error::Error;
