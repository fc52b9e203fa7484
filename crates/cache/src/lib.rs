//! The cache server: memcached's protocols over items in memory.
//!
//! The parts, from the middle outwards: [`item`] (keys, values and what is kept with them), [`hash`] (of keys) and [`slot`] (the
//! place of one key, which is all that a command may look at and change while it runs); [`protocol`] (what stands on the wire),
//! [`commands`] (what they mean, over slots), [`session`] (one connection, without its I/O) and [`server`] (sockets). [`store`] is
//! where items are: in memory, by an [`index`] without keys, under one limit ([`memory`]), as long as a [`policy`] says. [`flash`]
//! is the log of items that have left memory.

pub mod commands;
pub mod flash;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod hash;
pub mod index;
pub mod item;
pub mod memory;
pub mod policy;
pub mod protocol;
pub mod server;
pub mod session;
mod shard;
pub mod slot;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// Bytes of a key, as in memcached (`KEY_MAX_LENGTH`).
pub const KEY_BYTES_MAX: usize = 250;
/// Bytes of the longest value a server can be configured for.
pub const VALUE_BYTES_MAX: usize = 128 << 20;
/// The least limit of items that a server can be configured for, as in memcached.
pub const ITEM_BYTES_MIN: usize = 1 << 10;
/// Bytes of the longest value that is stored as one piece. Chosen: short enough to be copied while its slot is held, some ten
/// microseconds; long enough that a longer one loses less than a twentieth to the ends of its chunks.
pub const WHOLE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a full chunk of a longer value.
pub const CHUNK_BYTES: usize = 256 << 10;

const _: () = assert!(WHOLE_BYTES_MAX < CHUNK_BYTES && CHUNK_BYTES <= engine::buf::BUF_BYTES_MAX);
