//! What the driver has done on a node.

use std::path::{Path, PathBuf};

use crate::capability::Filesystem;

/// A volume that is attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its block device.
    pub path: PathBuf,
    /// While the tenure is the same, no other host has had the volume: what this node has written down of the volume holds.
    pub tenure: String,
}

/// What is mounted somewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown {
    /// Nothing.
    Nothing,
    /// The device that was asked about, or a filesystem on it.
    Device,
    /// Something else: a device that the kernel has given up, say, though it had the same name.
    Other,
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MachineError {
    /// Another host has the volume, or there is none: this host has nothing of it.
    #[error("{0}")]
    Lost(String),
    /// The volume, or what it is to be used with, is not what it ought to be.
    #[error("{0}")]
    Refused(String),
    /// It may be done later.
    #[error("{0}")]
    Unavailable(String),
    /// This machine does not do it.
    #[error("{0}")]
    Failed(String),
}

/// How full a volume is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes in all.
    pub bytes: u64,
    /// Of a filesystem also what of them is free, and the files that it may have, and may still have.
    pub filesystem: Option<Free>,
}

/// See [`Usage`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Free {
    /// Bytes that can be written.
    pub available: u64,
    /// Bytes that are written.
    pub used: u64,
    /// Files that there may be.
    pub files: u64,
    /// Files that there may be still.
    pub files_free: u64,
}

/// A machine: processes that attach volumes, devices, mounts. Each call blocks, and may be made again after a crash at any point
/// of it. Calls that concern one volume come one after the other.
pub trait Machine: Send + Sync + 'static {
    /// Attaches a volume by a process that serves it at that port of this machine, or finds it attached.
    fn attach(&self, volume: &str, port: u16) -> Result<Device, MachineError>;

    /// The same for a volume that was attached before the driver was started anew: does not wait, and does not give up, unless the
    /// tenure is over: then only [`Machine::attach`] attaches the volume again.
    fn resume(&self, volume: &str, port: u16, tenure: Option<&str>);

    /// Detaches a volume, whether it is attached or not. Done is what the control plane has been told: any other host may have the
    /// volume then.
    fn detach(&self, volume: &str, port: u16) -> Result<(), MachineError>;

    /// Whether nothing was ever written to the device: no answer where that can't be read.
    fn is_blank(&self, device: &Path) -> Result<bool, MachineError>;

    /// Makes a filesystem, and destroys what the device holds.
    fn format(&self, device: &Path, filesystem: Filesystem) -> Result<(), MachineError>;

    /// The device of a volume that is attached; attaches none.
    fn device(&self, volume: &str) -> Result<Device, MachineError>;

    /// Bytes of the device: waits for a while until it has as many as `least`, of which the kernel may not know yet.
    fn size(&self, device: &Path, least: u64) -> Result<u64, MachineError>;

    /// Makes the device's filesystem, which is mounted there, as large as the device. One that is as large is left as it is.
    fn grow(&self, device: &Path, at: &Path, filesystem: Filesystem) -> Result<(), MachineError>;

    /// Whether something is mounted there.
    fn is_mounted(&self, target: &Path) -> Result<bool, MachineError>;

    /// Whether what is mounted there is that device.
    fn shown(&self, device: &Path, target: &Path) -> Result<Shown, MachineError>;

    /// Mounts a device.
    fn mount(&self, device: &Path, at: &Path, filesystem: Filesystem, flags: &[String]) -> Result<(), MachineError>;

    /// Shows what is at `source`, a folder or a device, at `target`, too. Where something is mounted already that is what is at
    /// `source`, but may be open for writing still.
    fn bind(&self, source: &Path, target: &Path, is_read_only: bool) -> Result<(), MachineError>;

    /// Ends what is mounted there.
    fn unmount(&self, target: &Path) -> Result<(), MachineError>;

    /// How full it is.
    fn usage(&self, path: &Path) -> Result<Usage, MachineError>;
}
