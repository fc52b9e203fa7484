//! The real machine: `yagura volume attach --device` for each volume, and the system's programs that make, grow and mount
//! filesystems.

mod keeper;
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::capability::Filesystem;
use crate::node::{Device, Machine, MachineError, Shown, Usage};
use keeper::{Begin, Keeper};

/// How long a volume may take to have a device. Chosen: who attaches waits for the lease of a host that was lost (9 s unless told
/// otherwise, and some more), and for the kernel.
const ATTACH_TIME: Duration = Duration::from_secs(60);
/// How long it may take to be let go of. Chosen: the last flush, with a replica that is being given up.
const DETACH_TIME: Duration = Duration::from_secs(40);

/// This machine.
pub struct Host {
    program: PathBuf,
    arguments: Vec<String>,
    keepers: Mutex<BTreeMap<String, Arc<Keeper>>>,
}

impl Host {
    /// `program` with these arguments, and those that name a volume, attaches it.
    pub fn new(program: PathBuf, arguments: Vec<String>) -> Host {
        Host { program, arguments, keepers: Mutex::default() }
    }

    /// Nothing that panics leaves the map half changed.
    fn keepers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Keeper>>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volume's process, started if there is none; whether it was.
    fn keeper(&self, volume: &str, port: u16, begin: Begin) -> Result<(Arc<Keeper>, bool), MachineError> {
        let mut keepers = self.keepers();
        if let Some(present) = keepers.get(volume).filter(|present| !present.has_ended()) {
            return Ok((present.clone(), false));
        }
        let mut arguments = self.arguments.clone();
        arguments.extend([format!("--name={volume}"), format!("--listen=127.0.0.1:{port}")]);
        arguments.extend(["--device", "--json", "--until-stdin-closes"].map(str::to_owned));
        let kept = Keeper::start(volume, self.program.clone(), arguments, begin)
            .map_err(|error| MachineError::Failed(format!("a thread for volume {volume}: {error}")))?;
        let kept = Arc::new(kept);
        keepers.insert(volume.to_owned(), kept.clone());
        Ok((kept, true))
    }

    fn stop(&self, volume: &str) -> Result<(), MachineError> {
        let kept = self.keepers().remove(volume);
        kept.map_or(Ok(()), |kept| kept.stop(DETACH_TIME))
    }
}

impl Machine for Host {
    fn attach(&self, volume: &str, port: u16) -> Result<Device, MachineError> {
        let (mut kept, mut is_new) = self.keeper(volume, port, Begin::New)?;
        let mut found = kept.device(ATTACH_TIME);
        if let Ok((device, nqn)) = &found
            && !programs::is_of(&device.path, nqn)
        {
            tracing::warn!(volume, "somebody had the kernel give the device up: the volume is attached anew");
            self.stop(volume)?;
            (kept, is_new) = self.keeper(volume, port, Begin::New)?;
            found = kept.device(ATTACH_TIME);
        }
        if found.is_err()
            && is_new
            && let Err(error) = self.stop(volume)
        {
            tracing::debug!(volume, %error, "what it was tried for is told already");
        }
        found.map(|(device, _)| device)
    }

    fn device(&self, volume: &str) -> Result<Device, MachineError> {
        let kept = self.keepers().get(volume).cloned();
        let refused = |why: &str| MachineError::Refused(format!("volume {volume} {why}: stage it again"));
        let (device, nqn) = kept.ok_or_else(|| refused("is not attached"))?.device(ATTACH_TIME)?;
        if programs::is_of(&device.path, &nqn) { Ok(device) } else { Err(refused("has lost its device")) }
    }

    fn resume(&self, volume: &str, port: u16, tenure: Option<&str>) {
        let begin = Begin::Again { tenure: tenure.map(str::to_owned) };
        if let Err(error) = self.keeper(volume, port, begin) {
            tracing::error!(volume, %error, "it is not attached again");
        }
    }

    fn detach(&self, volume: &str, port: u16) -> Result<(), MachineError> {
        // What a process left that was killed only another one undoes: the kernel's device, and the control plane's word that this
        // host has the volume. Where another host has the volume there is nothing to undo: the process has seen to the device.
        // After any other failure this host may have the volume still.
        match self.attach(volume, port) {
            Ok(_) | Err(MachineError::Lost(_)) => self.stop(volume),
            Err(error) => Err(error),
        }
    }

    fn is_blank(&self, device: &Path) -> Result<bool, MachineError> {
        programs::is_blank(device)
    }

    fn format(&self, device: &Path, filesystem: Filesystem) -> Result<(), MachineError> {
        programs::format(device, filesystem)
    }

    fn size(&self, device: &Path, least: u64) -> Result<u64, MachineError> {
        programs::size(device, least)
    }

    fn grow(&self, device: &Path, at: &Path, filesystem: Filesystem) -> Result<(), MachineError> {
        programs::grow(device, at, filesystem)
    }

    fn is_mounted(&self, target: &Path) -> Result<bool, MachineError> {
        programs::is_mounted(target)
    }

    fn shown(&self, device: &Path, target: &Path) -> Result<Shown, MachineError> {
        programs::shown(device, target)
    }

    fn mount(&self, device: &Path, at: &Path, filesystem: Filesystem, flags: &[String]) -> Result<(), MachineError> {
        programs::mount(device, at, filesystem, flags)
    }

    fn bind(&self, source: &Path, target: &Path, is_read_only: bool) -> Result<(), MachineError> {
        programs::bind(source, target, is_read_only)
    }

    fn unmount(&self, target: &Path) -> Result<(), MachineError> {
        programs::unmount(target)
    }

    fn usage(&self, path: &Path) -> Result<Usage, MachineError> {
        programs::usage(path)
    }
}
