//! Files without a server: names, inodes and maps of files in the store, their data in stripes with parity over members.
//!
//! The design, its invariants and its crash states are in the README of this crate.

mod access;
mod across;
mod bytes;
pub mod data;
mod error;
mod fs;
pub mod fuzz;
pub mod meta;
mod name;
mod ops;
pub mod record;

pub use error::Error;
pub use fs::{CreateOptions, FileSystem, ROOT, Reap};
pub use name::{Cursor, DirEntry};
pub use ops::{Attributes, Change, New, RenameFlags, SetMode};
