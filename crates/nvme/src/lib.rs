//! The words of the NVMe specifications: what stands on the wire and in the pages, byte for byte.
//!
//! Sources: NVMe Base 2.0c, NVM Command Set 1.0c, NVMe over TCP Transport 1.0c, Zoned Namespace
//! Command Set 1.1; clause numbers stand at the items.
//!
//! Invariants:
//! - Every structure is made of bytes and little-endian words, so it has no padding, needs no alignment, and any bytes of
//!   the right length are a value of it. What the bytes *mean* is checked by whoever receives them (`fabric`), not here.
//! - A `const` assertion beside each structure states its size; a field moved by mistake does not compile.
//! - Nothing here allocates, waits, or knows the time.

mod words;

pub mod ana;
pub mod auth;
pub mod command;
pub mod extension;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod log;
pub mod management;
pub mod nqn;
pub mod opcode;
pub mod placement;
pub mod register;
pub mod reservation;
pub mod sgl;
pub mod status;
pub mod tcp;
pub mod zns;

pub use ana::AnaState;
pub use command::{Completion, Fuse, Submission};
pub use nqn::{NQN_BYTES_MAX, Nqn};
pub use sgl::SglDescriptor;
pub use status::Status;
pub use zerocopy::little_endian::{U16, U32, U64, U128};

/// The specification version this crate follows and our controllers report: NVMe 2.0
/// (NVMe Base 2.0 §3.1.3.2, VS).
pub const VERSION: u32 = 0x0002_0000;
/// The namespace identifier that means "all namespaces" (NVMe Base 2.0 §3.2.1.2).
pub const NSID_ALL: u32 = 0xFFFF_FFFF;
/// The controller identifier that asks for a dynamically allocated controller (NVMe Base 2.0 §6.3).
pub const CONTROLLER_ID_DYNAMIC: u16 = 0xFFFF;
/// Bytes of every Identify data structure and of most log pages.
pub const PAGE_BYTES: usize = 4096;
