//! Memory under one hard limit.
//!
//! Invariants:
//! - [`Budget::used`] is what the process has resident, or more: whatever grows with load is counted before it is taken.
//! - Items and index live in segments of [`SEGMENT_BYTES`] from one [`Pool`], so that one can grow at the other's cost and no
//!   allocator keeps what was given back.

mod budget;
mod pool;

pub use budget::{Budget, Kind};
pub use pool::{Pool, SEGMENT_BYTES};
