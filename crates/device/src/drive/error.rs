//! Why a drive could not be formatted, opened or changed.

use std::io;
use std::path::PathBuf;

use super::layout::{EXTENT_BYTES_MAX, EXTENT_BYTES_MIN};
use super::state::{NAME_BYTES_MAX, NAMESPACES_MAX};

/// Why a drive could not be formatted, opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// Somebody else has it open.
    #[error("{path}: in use by another process (one process owns a medium); stop it first")]
    Busy {
        /// The file or device.
        path: PathBuf,
    },
    /// It has zones that are written in order; a drive writes anywhere.
    #[error(
        "{path}: a zoned device, which is written in the order of its zones; put a media manager on it: yagura flash format {path}"
    )]
    Zoned {
        /// The device.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or device.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no drive in it.
    #[error("{path}: holds no drive; make one with `yagura drive format {path}`")]
    NotADrive {
        /// The file or device.
        path: PathBuf,
    },
    /// There is one already, and formatting would destroy it.
    #[error("{path}: holds a drive already, which formatting would destroy; say --force to do it all the same")]
    IsADrive {
        /// The file or device.
        path: PathBuf,
    },
    /// It is not blank.
    #[error(
        "{path}: there is something in its first or last MiB, a file system perhaps, which formatting would destroy; say --force to \
         do it all the same"
    )]
    InUse {
        /// The file or device.
        path: PathBuf,
    },
    /// What the drive knows of itself does not verify.
    #[error("{path}: {what} is damaged; nothing was changed. Copy the medium before anything else, then restore it")]
    Damaged {
        /// The file or device.
        path: PathBuf,
        /// Which structure, and how it shows.
        what: String,
    },
    /// What was being written when the power failed can't be read, so nobody can say what it is.
    #[error(
        "{path}: {bytes} bytes at {at} were being written when the power failed, and can't be read: {source}. Try again; if it \
         stays so, open the drive read-only and copy what is needed, then write zeroes over these bytes: the drive opens, and \
         the block is a read fault until it is rewritten"
    )]
    Undecided {
        /// The file or device.
        path: PathBuf,
        /// Where they are.
        at: u64,
        /// How many.
        bytes: u64,
        /// What the system says.
        source: io::Error,
    },
    /// Options that can't be.
    #[error("{0}")]
    Options(String),
    /// The extent size is not offered.
    #[error("extents of {0} bytes: must be a power of two from {EXTENT_BYTES_MIN} to {EXTENT_BYTES_MAX}")]
    ExtentSize(u32),
    /// The medium is too small.
    #[error("{path}: {bytes} bytes are too few for a drive with these extents; {bytes_min} are the least")]
    TooSmall {
        /// The file or device.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The least.
        bytes_min: u64,
    },
    /// No namespace of that name or number.
    #[error("the drive has no namespace {0}; `yagura drive list` names those it has")]
    NoNamespace(String),
    /// The name is taken.
    #[error("the drive has a namespace {0:?} already; choose another name")]
    NameTaken(String),
    /// The name can't be one.
    #[error(
        "{0:?} is no name: 1 to {NAME_BYTES_MAX} bytes of letters, digits, '.', '_' and '-', not beginning with '-'"
    )]
    Name(String),
    /// The block size is not offered on this drive.
    #[error("blocks of {asked} bytes: this drive has checksums over {unit} bytes, so blocks have {unit} or 4096 bytes")]
    BlockSize {
        /// What was asked for.
        asked: u32,
        /// What the drive was formatted with.
        unit: u32,
    },
    /// The size can't be.
    #[error(
        "{bytes} bytes: a namespace has a positive multiple of its block size {block_size}, at most {bytes_max} here; \
         larger ones need a drive with larger extents"
    )]
    Size {
        /// What was asked for.
        bytes: u64,
        /// The block size.
        block_size: u32,
        /// The largest.
        bytes_max: u64,
    },
    /// Namespaces only grow.
    #[error("{name}: has {bytes} bytes, and {asked} are fewer; a namespace only grows")]
    Shrink {
        /// The namespace.
        name: String,
        /// Its size.
        bytes: u64,
        /// What was asked for.
        asked: u64,
    },
    /// A snapshot keeps its size.
    #[error("{0}: is a snapshot and read-only; make a clone of it")]
    Snapshot(String),
    /// A bound of the drive's metadata.
    #[error(
        "the drive's metadata has no room for this (at most {NAMESPACES_MAX} namespaces, {entries_max} extents mapped by all \
         of them together); delete namespaces or snapshots"
    )]
    MetadataFull {
        /// Extents that all namespaces together may map.
        entries_max: u64,
    },
    /// The drive has failed, or was opened read-only.
    #[error("the drive takes no changes: {0}")]
    ReadOnly(String),
    /// A command on the medium failed.
    #[error(transparent)]
    Device(#[from] crate::Error),
}
