//! The key-value store: pages on passive members, joined by quorums on the host. The store keeps no metadata.
//!
//! - [`types`]: timestamps, operation ids, keys.
//! - [`page`]: the bytes on the members.
//! - [`object`]: values of any length, in parts.
//! - [`resp`]: the store as a Redis server.

pub mod fuzz;
pub mod object;
pub mod page;
pub mod resp;
pub mod types;
