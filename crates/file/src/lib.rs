//! Files without a server: names, inodes and maps of files in the store, their data in stripes with parity over members.
//!
//! The design, its invariants and its crash states are in the README of this crate.

mod access;
mod across;
mod alive;
mod bytes;
mod check;
pub mod data;
mod dirty;
mod error;
mod files;
mod fs;
pub mod fuzz;
pub mod meta;
mod name;
mod opened;
mod ops;
mod recent;
pub mod record;
mod stored;

pub use check::{Damage, Fsck, Left, Report, Tally};
pub use error::Error;
pub use files::{DIRTY_BYTES_MAX, Files, layout_of};
pub use fs::{CreateOptions, FileSystem, ROOT, Reap};
pub use name::{Cursor, DirEntry};
pub use opened::{Handle, OpenFile};
pub use ops::{Attributes, Change, LockRequest, New, RenameFlags, SetMode};
