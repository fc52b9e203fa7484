//! The key-value store: pages on passive members, joined by quorums on the host. The store keeps no metadata.
//!
//! - [`types`]: timestamps, operation ids, keys; [`value`]: bytes in segments.
//! - [`link`]: a connection to a member.
//! - [`page`]: the bytes on the members.
//! - [`object`]: values of any length, in parts.
//! - [`resp`]: the store as a Redis server.
//! - [`table`]: one member's table: an atomic register per key.
//! - [`store`]: the quorum over the members: get, put, delete, list, verify, repair.

#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod object;
pub mod page;
pub mod resp;
pub mod store;
pub mod table;
pub mod types;
pub mod value;

pub use store::{Store, StoreError};
pub use types::{FILES_PREFIX, KEY_BYTES_MAX, Key, NotAVersion, OpId, Timestamp, VALUE_BYTES_MAX, Version};
pub use value::Value;

#[cfg(test)]
mod testing;
