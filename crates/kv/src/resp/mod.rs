//! The RESP gateway: Redis's protocol, versions 2 and 3, in front of the key-value store.
//!
//! The parts, from the bytes upwards: [`decode`] (each [`command`] out of a byte stream), [`reply`] (replies into bytes),
//! [`commands`] (what exists and with which arity), [`request`] (a command's meaning), [`strings`], [`hashes`] and [`keys`] (what
//! it makes of an entry: pure functions), [`session`] (one connection as a pure state machine), [`execute`] (requests against a
//! [`Backend`]) and [`server`] (sockets).
//!
//! Invariants:
//! - Replies leave in the order of the commands, although commands run concurrently. Two commands of one connection that
//!   touch a common key, one of them writing, run one after the other; else `SET k` and a pipelined `GET k` could miss each
//!   other.
//! - Everything a peer can make us hold is bounded, by the constants here; a peer that does not read its replies stops being
//!   served.
//! - A command on one key is one atomic operation of the store, so any number of gateways over one pool are linearizable
//!   together. What would have to be atomic over several keys is refused.
//! - An option that is not implemented is refused. Ignoring `NX` or `EX` would overwrite, or keep for ever, what the caller
//!   meant not to.

pub mod access;
pub mod backend;
mod carry;
mod client;
pub mod command;
pub mod commands;
pub mod connection;
pub mod decode;
pub mod execute;
pub mod figures;
pub mod float;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod glob;
pub mod hash;
pub mod hashes;
mod info;
pub mod keys;
pub mod memory;
#[cfg(test)]
mod memory_tests;
pub mod reply;
pub mod request;
pub mod server;
pub mod session;
pub mod stats;
mod store;
pub mod strings;
#[cfg(test)]
mod tests;
pub mod turn;
mod watched;

use crate::types::VALUE_BYTES_MAX;

pub use backend::{Backend, Change, Entry, Failure, Look, Room, ScanKey, ScanPage};
pub use figures::GatewayMetrics;
pub use server::Gateway;
pub use stats::{GatewayState, GatewayStats};
pub use watched::{Operation, Watch, Watched};

/// The longest inline command or count line, as in Redis (`PROTO_INLINE_MAX_SIZE`).
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// The longest bulk string that is read at all, as in Redis (`proto-max-bulk-len`); a longer one ends the connection.
pub const BULK_BYTES_MAX: u64 = 512 << 20;
/// All arguments of one command together. Derived: a value of the greatest length, with room for keys; what is longer is read,
/// dropped and refused.
pub const COMMAND_BYTES_MAX: usize = VALUE_BYTES_MAX + (1 << 20);
/// Arguments of one command of a peer that has given no password yet; as in Redis.
pub const UNTRUSTED_ARGS_MAX: usize = 10;
/// Bytes of one argument of such a peer; as in Redis.
pub const UNTRUSTED_BULK_BYTES_MAX: u64 = 16 << 10;
/// Arguments of one command, as in Redis.
pub const ARGS_MAX: usize = 1 << 20;
/// Commands of one connection that run at once. Guessed: past it a pool of three gains no more, and each costs its slot's memory.
pub const RUNNING_MAX: usize = 32;
/// Commands of one connection that are decoded and not yet answered.
pub const PENDING_MAX: usize = 1024;
/// Argument bytes of one connection that wait; past it no further command is decoded. Guessed: an `MSET` of 15 values of 1 MiB.
pub const PENDING_BYTES_MAX: usize = 16 << 20;
/// Reply bytes that wait for the peer to read; past it no further command is started.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// The values of one reply. An `MGET` of more is refused: it would have to be held whole.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// Bytes of the commands of all connections of a thread, beyond [`COMMAND_BYTES_FREE`] each. Derived: four of the longest values.
pub const COMMANDS_BYTES_MAX: usize = 4 * VALUE_BYTES_MAX;
/// Bytes of its commands that a connection holds without asking. Guessed: usual commands fit many times over.
pub const COMMAND_BYTES_FREE: usize = 32 << 10;
/// Bytes of values that the commands of a thread's connections read and make, and of replies that are not sent, where they are
/// long. Derived: eight of the longest values, one and a half more than the dearest command takes, a change of the largest hash.
pub const LONG_BYTES_MAX: usize = 8 * VALUE_BYTES_MAX;
/// The same of short ones.
pub const SHORT_BYTES_MAX: usize = VALUE_BYTES_MAX;
/// Up to this length a value is short. Guessed.
pub const SHORT_VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes of replies that wait and hold no room, as a connection's own do (`COMMAND DOCS`). Guessed: three of the longest.
pub const OWN_OUTPUT_BYTES_MAX: usize = 64 << 10;
/// How long a command waits for room before it is refused. Chosen: as long as an operation may take.
pub const ROOM_TIME_MAX: std::time::Duration = crate::store::OPERATION_TIME_MAX;
/// Keys that one `KEYS` may answer; `SCAN` has no such limit.
pub const KEYS_MAX: usize = 1 << 20;
/// The largest `COUNT` of a `SCAN` that is honoured (it is a hint).
pub const SCAN_COUNT_MAX: usize = 10_000;
/// Operations of one multi-key command that run at once.
pub const FAN_OUT_MAX: usize = 32;
/// Connections of one gateway thread unless configured otherwise. Guessed, with Redis's default (10,000) as the model and
/// [`COMMAND_BYTES_MAX`] + [`OUTPUT_BYTES_MAX`] each as the worst case in mind.
pub const CONNECTIONS_MAX: usize = 4096;
/// How long a peer may leave replies unread, or a command unfinished, before it is disconnected: it holds memory that others could
/// use. Guessed.
pub const STALL_SECONDS_MAX: u64 = 60;
/// The same where others do wait for memory. Guessed.
pub const STALL_SECONDS_SCARCE: u64 = 5;
/// Commands of one connection that are run before it has given the password. Guessed: many times what a client needs for that; who
/// does not read what they answer would pin it.
pub const UNTRUSTED_COMMANDS_MAX: usize = 64;
/// Bytes of one command of such a peer. Derived: one argument of the longest, with what stands beside it.
pub const UNTRUSTED_COMMAND_BYTES_MAX: usize = 20 << 10;

const _: () = assert!(PENDING_MAX >= RUNNING_MAX, "running commands are pending ones");
const _: () = assert!(COMMAND_BYTES_MAX < u32::MAX as usize, "argument ends are kept in 32 bits");
