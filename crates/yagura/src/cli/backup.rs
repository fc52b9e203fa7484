//! `yagura volume snapshot`, `diff`, `export` and `import`.

use std::path::PathBuf;

use clap::Args;
use volume::SnapshotName;

use super::{Common, VolumeHolders, VolumeOf};
use crate::size::Size;

/// `yagura volume snapshot`
#[derive(Args, Debug)]
pub struct VolumeSnapshotArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub holders: VolumeHolders,
    /// Take the volume from the host that has it attached, or had it last: which of both can't be told.
    #[arg(long)]
    pub take: bool,
    /// Delete this snapshot in the place of taking one.
    #[arg(long, value_name = "SNAPSHOT")]
    pub delete: Option<SnapshotName>,
}

/// A volume whose snapshots are read.
#[derive(Args, Clone, Debug)]
pub struct SnapshotsOf {
    #[command(flatten)]
    pub of: VolumeOf,
    /// By addresses: take each holder for a moment to read which snapshots there are; a host that has the volume attached takes the
    /// holder back.
    #[arg(long)]
    pub take: bool,
    /// An older snapshot: what is the same in both is left out. Default: everything.
    #[arg(long, value_name = "SNAPSHOT")]
    pub from: Option<String>,
}

/// `yagura volume diff`
#[derive(Args, Debug)]
pub struct VolumeDiffArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub of: SnapshotsOf,
    /// The snapshot: its name at the control plane, or as `volume snapshot` and `volume status` write it.
    #[arg(long, value_name = "SNAPSHOT")]
    pub to: String,
}

/// `yagura volume export`
#[derive(Args, Debug)]
pub struct VolumeExportArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub of: SnapshotsOf,
    /// The snapshot: its name at the control plane, or as `volume snapshot` and `volume status` write it.
    #[arg(long, value_name = "SNAPSHOT")]
    pub snapshot: String,
    /// Bytes a second that are read, at most.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
    /// No progress bar.
    #[arg(long)]
    pub quiet: bool,
    /// The file, which must not be there yet; -: standard output.
    #[arg(value_name = "FILE", default_value = "-")]
    pub file: PathBuf,
}

/// `yagura volume import`
#[derive(Args, Debug)]
pub struct VolumeImportArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub of: VolumeOf,
    /// Take the volume from the host that the control plane has as its user; by addresses from the host that has it attached, or
    /// had it last: which of both can't be told.
    #[arg(long)]
    pub take: bool,
    /// Import everything into a volume that is not blank: what it holds is lost.
    #[arg(long)]
    pub force: bool,
    /// Bytes a second that are read, compared and written, at most.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
    /// No progress bar.
    #[arg(long)]
    pub quiet: bool,
    /// The file; -: standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    pub file: PathBuf,
}
