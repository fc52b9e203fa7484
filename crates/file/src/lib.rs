//! Files without a server: names, inodes and maps of files in the store, their data in stripes with parity over members.
//!
//! The design, its invariants and its crash states are in the README of this crate.

mod access;
mod across;
mod bytes;
pub mod data;
mod dirty;
mod error;
mod files;
mod fs;
pub mod fuzz;
pub mod mend;
pub mod meta;
mod name;
mod opened;
mod ops;
pub mod record;
mod roster;
mod stored;

pub use error::Error;
pub use files::{DIRTY_BYTES_MAX, Files};
pub use fs::{CreateOptions, FileSystem, ROOT, Reap};
pub use name::{Cursor, DirEntry};
pub use opened::OpenFile;
pub use ops::{Attributes, Change, New, RenameFlags, SetMode};
pub use roster::{Reach, Roster, RosterError, layout_of};
