//! A machine that notes what it is asked for, and dies at a point that is chosen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csi::{Device, Filesystem, Free, Machine, MachineError, Shown, Usage};

/// What a volume holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Content {
    #[default]
    Blank,
    /// A filesystem that was being made.
    Partial,
    Made(Filesystem),
    /// Somebody's.
    Data,
    Unreadable,
}

#[derive(Default)]
pub struct World {
    /// Volumes that have a process, and those of which the control plane has it that this host has them.
    pub attached: BTreeSet<String>,
    pub ours: BTreeSet<String>,
    pub contents: BTreeMap<String, Content>,
    /// Bytes of devices, those that are not there being as large as anybody wants them; and of the filesystems on them.
    pub sizes: BTreeMap<String, u64>,
    pub filesystems: BTreeMap<String, u64>,
    /// What is mounted, from where, and whether nothing can be written.
    pub mounts: BTreeMap<PathBuf, (PathBuf, bool)>,
    /// How often this host has come to have it, where another one may have had it before.
    tenures: BTreeMap<String, usize>,
    /// Points that are passed until the driver dies.
    pub lives: Option<usize>,
    /// How often the kernel has given the devices up.
    pub given_up: usize,
    /// Another host has the volumes.
    pub is_refused: bool,
    /// The control plane has it that this host has the volumes, and can't be told otherwise; nor can they be attached.
    pub is_cut_off: bool,
}

#[derive(Clone, Default)]
pub struct Double(Arc<Mutex<World>>);

impl World {
    /// The one that the kernel has given up has another name, but is nothing else.
    fn device(&self, volume: &str) -> PathBuf {
        format!("/dev/double/{}/{volume}", self.given_up).into()
    }

    /// Here the driver may die: nothing of it runs any more.
    fn point(&mut self) {
        match &mut self.lives {
            Some(0) => std::panic::resume_unwind(Box::new("the driver dies")),
            Some(lives) => *lives -= 1,
            None => {}
        }
    }

    fn start(&mut self, volume: &str) {
        if self.attached.insert(volume.into()) {
            let is_new = self.ours.insert(volume.into());
            *self.tenures.entry(volume.into()).or_default() += usize::from(is_new);
        }
    }

    fn tenure(&self, volume: &str) -> String {
        self.tenures.get(volume).copied().unwrap_or_default().to_string()
    }

    /// The filesystem is as large as its device, if that is known.
    fn fill(&mut self, device: &Path) {
        let volume = device.file_name().and_then(|name| name.to_str()).expect("a volume's device").to_owned();
        if let Some(size) = self.sizes.get(&volume) {
            self.filesystems.insert(volume, *size);
        }
    }

    pub fn content(&mut self, device: &Path) -> &mut Content {
        let volume = device.file_name().and_then(|name| name.to_str()).expect("a volume's device");
        assert!(self.attached.contains(volume), "{volume} has no device");
        self.contents.entry(volume.to_owned()).or_default()
    }
}

impl Double {
    pub fn world(&self) -> MutexGuard<'_, World> {
        // A driver that dies leaves the machine as it is.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As the driver's next process finds it, where the machine itself has started anew, too.
    pub fn restart(&self, is_reboot: bool) {
        let mut world = self.world();
        world.attached.clear();
        world.lives = None;
        if is_reboot {
            world.mounts.clear();
        }
    }
}

impl Machine for Double {
    fn attach(&self, volume: &str, _port: u16) -> Result<Device, MachineError> {
        let mut world = self.world();
        world.point();
        if world.is_refused {
            return Err(MachineError::Lost("another host has it".into()));
        }
        if world.is_cut_off {
            return Err(MachineError::Unavailable("nobody answers".into()));
        }
        world.start(volume);
        let tenure = world.tenure(volume);
        world.point();
        Ok(Device { path: world.device(volume), tenure })
    }

    fn device(&self, volume: &str) -> Result<Device, MachineError> {
        let mut world = self.world();
        world.point();
        match world.attached.contains(volume) {
            true => Ok(Device { path: world.device(volume), tenure: world.tenure(volume) }),
            false => Err(MachineError::Refused("is not attached".into())),
        }
    }

    fn resume(&self, volume: &str, _port: u16, tenure: Option<&str>) {
        let mut world = self.world();
        let is_over = !world.ours.contains(volume) || tenure.is_some_and(|tenure| tenure != world.tenure(volume));
        if !is_over {
            world.start(volume);
        }
    }

    fn detach(&self, volume: &str, _port: u16) -> Result<(), MachineError> {
        let mut world = self.world();
        world.point();
        assert!(!world.mounts.values().any(|(from, _)| *from == world.device(volume)), "{volume} is mounted");
        world.attached.remove(volume);
        world.point();
        if world.is_cut_off {
            return Err(MachineError::Unavailable("nobody answers".into()));
        }
        world.ours.remove(volume);
        world.point();
        Ok(())
    }

    fn is_blank(&self, device: &Path) -> Result<bool, MachineError> {
        let mut world = self.world();
        world.point();
        match world.content(device) {
            Content::Unreadable => Err(MachineError::Failed("can't be read".into())),
            content => Ok(*content == Content::Blank),
        }
    }

    fn format(&self, device: &Path, filesystem: Filesystem) -> Result<(), MachineError> {
        let mut world = self.world();
        world.point();
        assert!(!world.mounts.values().any(|(from, _)| from == device), "formatted while it is mounted");
        assert_ne!(*world.content(device), Content::Data, "somebody's data is destroyed");
        *world.content(device) = Content::Partial;
        world.point();
        *world.content(device) = Content::Made(filesystem);
        world.fill(device);
        world.point();
        Ok(())
    }

    fn size(&self, device: &Path, least: u64) -> Result<u64, MachineError> {
        let mut world = self.world();
        world.point();
        let volume = device.file_name().and_then(|name| name.to_str()).expect("a volume's device");
        Ok(world.sizes.get(volume).copied().unwrap_or(least))
    }

    fn grow(&self, device: &Path, at: &Path, _: Filesystem) -> Result<(), MachineError> {
        let mut world = self.world();
        world.point();
        assert!(world.mounts.get(at).is_some_and(|(from, _)| from == device), "grown while it is not mounted there");
        world.fill(device);
        world.point();
        Ok(())
    }

    fn is_mounted(&self, target: &Path) -> Result<bool, MachineError> {
        let mut world = self.world();
        world.point();
        Ok(world.mounts.contains_key(target))
    }

    fn shown(&self, device: &Path, target: &Path) -> Result<Shown, MachineError> {
        let mut world = self.world();
        world.point();
        // What is shown from a folder is the device that is mounted there, whatever is mounted there later.
        Ok(match world.mounts.get(target) {
            None => Shown::Nothing,
            Some((from, _)) if from == device => Shown::Device,
            Some(_) => Shown::Other,
        })
    }

    fn mount(&self, device: &Path, at: &Path, filesystem: Filesystem, _: &[String]) -> Result<(), MachineError> {
        let mut world = self.world();
        world.point();
        match world.content(device) {
            Content::Made(made) if *made == filesystem => {}
            Content::Data => {}
            other => return Err(MachineError::Failed(format!("no {filesystem:?}, but {other:?}"))),
        }
        world.mounts.insert(at.into(), (device.into(), false));
        world.point();
        Ok(())
    }

    fn bind(&self, source: &Path, target: &Path, is_read_only: bool) -> Result<(), MachineError> {
        let mut world = self.world();
        world.point();
        let from = world.mounts.get(source).map_or_else(|| source.to_owned(), |(from, _)| from.clone());
        world.mounts.entry(target.into()).or_insert((from, false));
        world.point();
        if let Some((_, is_now)) = world.mounts.get_mut(target) {
            *is_now = is_read_only;
        }
        world.point();
        Ok(())
    }

    fn unmount(&self, target: &Path) -> Result<(), MachineError> {
        let mut world = self.world();
        world.point();
        world.mounts.remove(target);
        world.point();
        Ok(())
    }

    fn usage(&self, path: &Path) -> Result<Usage, MachineError> {
        let free = Free { available: 3, used: 1, files: 10, files_free: 9 };
        let is_device = path.is_file();
        Ok(Usage { bytes: 4, filesystem: (!is_device).then_some(free) })
    }
}
