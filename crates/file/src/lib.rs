//! Files without a server: names, inodes and maps of files in the store, their data in stripes with parity over members.
//!
//! The design, its invariants and its crash states are in the README of this crate.

mod access;
mod across;
mod alive;
mod amount;
mod bytes;
mod check;
pub mod data;
mod dirty;
mod draft;
mod error;
mod figures;
mod files;
mod fs;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod lying;
pub mod mend;
pub mod meta;
mod name;
mod opened;
mod ops;
mod paths;
mod quota;
mod recent;
pub mod record;
mod renewal;
mod roster;
mod stored;
mod walk;

pub use amount::Amount;
pub use check::{Damage, Fsck, Left, Report, Tally};
pub use draft::{DRAFT_PREFIX, Draft};
pub use error::Error;
pub use figures::FileMetrics;
pub use files::{DIRTY_BYTES_MAX, Files, Usage};
pub use fs::{CreateOptions, FileSystem, ROOT, Reap};
pub use lying::{ContentKind, Footprint, Lying, Part, Spot, column_bytes};
pub use name::{Cursor, DirEntry};
pub use opened::{Handle, OpenFile};
pub use ops::{Attributes, Change, LockRequest, New, Quota, RenameFlags, SetMode};
pub use paths::PATH_BYTES_MAX;
pub use record::quota::Limits;
pub use roster::{Reach, Roster, RosterError, layout_of};
pub use walk::{Pass, Visit, Walk};
