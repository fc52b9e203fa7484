//! Flags of `yagura target drive`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{TargetControl, TargetSubsystem};
use crate::size::Size;

/// `yagura target drive VERB`: as `yagura drive`, on a drive that a target serves.
#[derive(Subcommand, Debug)]
pub enum TargetDriveVerb {
    /// List the namespaces, and where they are served.
    List(TargetDriveArgs),
    /// Show how much room is taken.
    Usage(TargetDriveArgs),
    /// Make a namespace and serve it to every host.
    Create(TargetDriveCreateArgs),
    /// Delete a namespace, snapshot or clone that no connected host has.
    Delete(TargetDriveDeleteArgs),
    /// Make a namespace larger. Hosts that have it are told.
    Grow(TargetDriveGrowArgs),
    /// Keep what a namespace holds now, read-only.
    Snapshot(TargetDriveCopyArgs),
    /// Make a writable namespace of what another holds now, and serve it to every host.
    Clone(TargetDriveCopyArgs),
    /// Read every block that was written and verify it, beside whatever the hosts do. It goes on without its watcher.
    Scrub(TargetDriveScrubArgs),
    /// End the scrub that is under way; it says how far it came, and what it found.
    StopScrub(TargetDriveArgs),
}

/// Which drive of which target.
#[derive(Args, Clone, Debug)]
pub struct TargetDriveArgs {
    #[command(flatten)]
    pub control: TargetControl,
    /// The drive, as --drive of `yagura target` names it; default: the only one.
    #[arg(long, value_name = "PATH")]
    pub drive: Option<PathBuf>,
}

/// `yagura target drive create`
#[derive(Args, Debug)]
pub struct TargetDriveCreateArgs {
    #[command(flatten)]
    pub at: TargetDriveArgs,
    #[command(flatten)]
    pub subsystem: TargetSubsystem,
    /// Name of the new namespace.
    pub name: String,
    /// Its size; all namespaces together may have more than the drive.
    #[arg(long, value_name = "SIZE")]
    pub size: Size,
    /// Block size: 4096, or 512 where the drive has checksums over 512.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    pub block: u32,
}

/// `yagura target drive delete`
#[derive(Args, Debug)]
pub struct TargetDriveDeleteArgs {
    #[command(flatten)]
    pub at: TargetDriveArgs,
    /// Name of the namespace.
    pub name: String,
    /// Delete it although hosts have it; they lose it.
    #[arg(long)]
    pub force: bool,
}

/// `yagura target drive grow`
#[derive(Args, Debug)]
pub struct TargetDriveGrowArgs {
    #[command(flatten)]
    pub at: TargetDriveArgs,
    /// Name of the namespace.
    pub name: String,
    /// Its new size.
    #[arg(long, value_name = "SIZE")]
    pub size: Size,
}

/// `yagura target drive scrub`
#[derive(Args, Debug)]
pub struct TargetDriveScrubArgs {
    #[command(flatten)]
    pub at: TargetDriveArgs,
    /// Bytes a second that it reads, at most, so that hosts have the rest; 0: as fast as it goes; default: 64MiB. One that is
    /// under way keeps its own.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
}

/// `yagura target drive snapshot`, `yagura target drive clone`
#[derive(Args, Debug)]
pub struct TargetDriveCopyArgs {
    #[command(flatten)]
    pub at: TargetDriveArgs,
    /// Name of the namespace.
    pub name: String,
    /// Name of the new one.
    pub new: String,
}
