//! Flags of `yagura drive`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Common;
use crate::size::Size;

/// `yagura drive …`
#[derive(Subcommand, Debug)]
pub enum DriveVerb {
    /// Make an empty drive of a file or block device.
    Format(DriveFormatArgs),
    /// List the namespaces.
    List(DriveArgs),
    /// Make a namespace; it takes room when it is written to.
    Create(DriveCreateArgs),
    /// Delete a namespace, snapshot or clone.
    Delete(DriveNameArgs),
    /// Make a namespace larger.
    Grow(DriveGrowArgs),
    /// Keep what a namespace holds now, read-only.
    Snapshot(DriveCopyArgs),
    /// Make a writable namespace of what another holds now.
    Clone(DriveCopyArgs),
    /// Read every block that was written and verify it.
    Scrub(DriveArgs),
    /// Check that the drive's structures agree with one another; changes nothing.
    Check(DriveArgs),
    /// Show every structure in words; changes nothing.
    Dump(DriveArgs),
    /// Show how much room is taken.
    Usage(DriveArgs),
}

/// A drive that nobody else has open.
#[derive(Args, Debug)]
pub struct DriveArgs {
    #[command(flatten)]
    pub common: Common,
    /// File or block device.
    pub path: PathBuf,
}

/// `yagura drive format`
#[derive(Args, Debug)]
pub struct DriveFormatArgs {
    #[command(flatten)]
    pub drive: DriveArgs,
    /// Create the file with this size if it does not exist.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// What is allocated at a time: a power of two from 64KiB to 4MiB.
    #[arg(long, value_name = "SIZE", default_value = "256KiB")]
    pub extent: Size,
    /// Bytes under one checksum: 4096, or 512 for namespaces with blocks of 512.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    pub unit: u32,
    /// Size of the journal; default: by the drive's size.
    #[arg(long, value_name = "SIZE")]
    pub journal: Option<Size>,
    /// Destroy the drive that is there.
    #[arg(long)]
    pub force: bool,
}

/// `yagura drive create`
#[derive(Args, Debug)]
pub struct DriveCreateArgs {
    #[command(flatten)]
    pub drive: DriveArgs,
    /// Name of the new namespace.
    pub name: String,
    /// Its size; all namespaces together may have more than the drive.
    #[arg(long, value_name = "SIZE")]
    pub size: Size,
    /// Block size: 4096, or 512 where the drive has checksums over 512.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    pub block: u32,
}

/// A namespace of a drive.
#[derive(Args, Debug)]
pub struct DriveNameArgs {
    #[command(flatten)]
    pub drive: DriveArgs,
    /// Name of the namespace.
    pub name: String,
}

/// `yagura drive grow`
#[derive(Args, Debug)]
pub struct DriveGrowArgs {
    #[command(flatten)]
    pub drive: DriveArgs,
    /// Name of the namespace.
    pub name: String,
    /// Its new size.
    #[arg(long, value_name = "SIZE")]
    pub size: Size,
}

/// `yagura drive snapshot`, `yagura drive clone`
#[derive(Args, Debug)]
pub struct DriveCopyArgs {
    #[command(flatten)]
    pub drive: DriveArgs,
    /// Name of the namespace.
    pub name: String,
    /// Name of the new one.
    pub new: String,
}
