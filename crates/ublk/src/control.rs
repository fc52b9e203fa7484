//! Devices: made, started, gone on with, stopped, deleted.
//!
//! Every command blocks: what calls it is no reactor's thread. Those that start a device, go on with it or stop it end when others
//! have answered its requests.

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use engine::ublk::Operation;
use zerocopy::{FromZeros, IntoBytes};

use crate::protocol::{DeviceInfo, Shape, feature};

/// What the driver must offer.
pub const FEATURES: [(u64, &str); 4] = [
    (feature::USER_RECOVERY, "USER_RECOVERY"),
    (feature::USER_RECOVERY_REISSUE, "USER_RECOVERY_REISSUE"),
    (feature::CMD_IOCTL_ENCODE, "CMD_IOCTL_ENCODE"),
    (feature::USER_COPY, "USER_COPY"),
];

/// Numbers of errors, after Linux's.
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
/// The kernel's own, which its drivers are not meant to give to programs, and do.
const ENOTSUPP: i32 = 524;

/// What a deletion is called where it fails.
const DELETE: &str = "to delete the device";

/// Why a command failed, and what mends it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file.
    #[error("there is no {0}: load the kernel's part by: modprobe ublk_drv")]
    NoDriver(String),
    /// The caller may not.
    #[error("{0}: only root may do that")]
    NotPermitted(&'static str),
    /// The driver is too old.
    #[error("this kernel's ublk_drv lacks {0}: Linux 6.5 or newer is needed")]
    TooOld(&'static str),
    /// Another process serves the device.
    #[error("{0}: another process has the device")]
    Busy(&'static str),
    /// There is no such device any more.
    #[error("{0}: there is no such device")]
    Gone(&'static str),
    /// Anything else.
    #[error("{0}: {1}")]
    Failed(&'static str, io::Error),
}

/// Who carries commands out: the kernel, or a double of it.
pub trait Driver: Send + Sync {
    /// See [`engine::ublk::Control::run`].
    ///
    /// # Errors
    /// As there.
    fn run(&self, operation: Operation, device: u32, data: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl Driver for engine::ublk::Control {
    fn run(&self, operation: Operation, device: u32, data: u64, buffer: &mut [u8]) -> io::Result<()> {
        engine::ublk::Control::run(self, operation, device, data, buffer)
    }
}

/// How a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// There is no block device (any more): the kernel holds nothing for it.
    Dead,
    /// There is one, and a server.
    Live,
    /// The block device waits for the next server.
    Quiesced,
}

impl DeviceInfo {
    /// How it is.
    pub fn state(&self) -> State {
        match self.state {
            0 => State::Dead,
            1 => State::Live,
            _ => State::Quiesced,
        }
    }

    /// Whether a server of ours can go on with it.
    pub fn is_served_so(&self) -> bool {
        self.queues == 1 && FEATURES.iter().all(|(bit, _)| self.flags & bit != 0)
    }
}

/// The driver's commands.
#[derive(Clone)]
pub struct Control {
    driver: Arc<dyn Driver>,
}

impl Control {
    /// Carried out by the kernel, at its driver's file, usually `/dev/ublk-control`.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::TooOld`], [`Error::NotPermitted`].
    pub fn open(path: &Path) -> Result<Control, Error> {
        let driver = engine::ublk::Control::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoDriver(path.display().to_string()),
            io::ErrorKind::PermissionDenied => Error::NotPermitted("to open the driver's file"),
            _ => Error::Failed("to open the driver's file", error),
        })?;
        Control::new(Arc::new(driver))
    }

    /// Carried out by a driver that offers what is needed.
    ///
    /// # Errors
    /// [`Error::TooOld`], [`Error::NotPermitted`].
    pub fn new(driver: Arc<dyn Driver>) -> Result<Control, Error> {
        let control = Control { driver };
        let features = control.features()?;
        match FEATURES.iter().find(|(bit, _)| features & bit == 0) {
            Some((_, name)) => Err(Error::TooOld(name)),
            None => Ok(control),
        }
    }

    fn run(
        &self,
        what: &'static str,
        operation: Operation,
        id: u32,
        data: u64,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        self.driver.run(operation, id, data, buffer).map_err(|error| match error.raw_os_error() {
            Some(EPERM | EACCES) => Error::NotPermitted(what),
            Some(EBUSY) => Error::Busy(what),
            Some(ENODEV) => Error::Gone(what),
            _ => Error::Failed(what, error),
        })
    }

    fn features(&self) -> Result<u64, Error> {
        let mut features = 0u64;
        match self.run("to ask for features", Operation::GetFeatures, u32::MAX, 0, features.as_mut_bytes()) {
            Ok(()) => Ok(features),
            Err(Error::NotPermitted(what)) => Err(Error::NotPermitted(what)),
            // A driver that does not know the question has no answer to it.
            Err(_) => Err(Error::TooOld("GET_FEATURES")),
        }
    }

    /// What the driver knows of a device.
    ///
    /// # Errors
    /// [`Error::Gone`], and what else the driver says.
    pub fn info(&self, id: u32) -> Result<DeviceInfo, Error> {
        let mut info = DeviceInfo::new_zeroed();
        self.run("to look at the device", Operation::GetDeviceInfo, id, 0, info.as_mut_bytes())?;
        Ok(info)
    }

    /// The device with that mark among those of a class in sysfs, usually `/sys/class/ublk-char`.
    ///
    /// # Errors
    /// What the system or the driver says, where the device was not found and may be one that can't be looked at.
    pub fn find(&self, class: &Path, mark: u64) -> Result<Option<DeviceInfo>, Error> {
        const WHAT: &str = "to look for the device";
        let entries = match fs::read_dir(class) {
            Ok(entries) => entries,
            // Without the class there is no device.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::Failed(WHAT, error)),
        };
        let mut unseen = None;
        for entry in entries {
            let name = entry.map_err(|error| Error::Failed(WHAT, error))?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_prefix("ublkc")?.parse().ok()) else { continue };
            match self.info(id) {
                Ok(info) if info.mark == mark => return Ok(Some(info)),
                // What goes while it is looked for is not there.
                Ok(_) | Err(Error::Gone(_)) => {}
                // A device that a user has made is shown only to who names its file, too: none of ours.
                Err(Error::Failed(_, error)) if error.raw_os_error() == Some(EINVAL) => {}
                Err(error) => unseen = Some(error),
            }
        }
        unseen.map_or(Ok(None), Err)
    }

    /// Makes a device with that mark. It has no block device before it is started.
    ///
    /// # Errors
    /// What the driver says. Nothing is left of the device then.
    pub fn add(&self, mark: u64, shape: &Shape) -> Result<DeviceInfo, Error> {
        let mut info = DeviceInfo::new(mark);
        self.run("to make a device", Operation::AddDevice, u32::MAX, 0, info.as_mut_bytes())?;
        let mut parameters = shape.parameters();
        let what = "to say what the device is";
        if let Err(error) = self.run(what, Operation::SetParameters, info.id, 0, parameters.as_mut_bytes()) {
            // Nobody can have it open: it has no block device.
            let deleted = match self.delete(info.id) {
                Ok(false) => self.delete_and_wait(info.id),
                deleted => deleted.map(drop),
            };
            if let Err(error) = deleted {
                tracing::warn!(id = info.id, %error, "a device without parameters is left");
            }
            return Err(error);
        }
        Ok(info)
    }

    /// Has a block device of it; ends when the kernel has looked at its partitions.
    ///
    /// # Errors
    /// What the driver says.
    pub fn start(&self, id: u32) -> Result<(), Error> {
        self.run("to start the device", Operation::StartDevice, id, u64::from(std::process::id()), &mut [])
    }

    /// Has a device, whose server has ended, take another one.
    ///
    /// # Errors
    /// [`Error::Busy`]: its server has not ended, or the kernel has not noticed yet.
    pub fn begin_recovery(&self, id: u32) -> Result<(), Error> {
        match self.run("to go on with the device", Operation::StartUserRecovery, id, 0, &mut []) {
            // It was begun by a server that has ended before it took anything.
            Err(Error::Failed(_, error)) if error.raw_os_error() == Some(EINVAL) => Ok(()),
            begun => begun,
        }
    }

    /// Goes on with the requests of its block device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn end_recovery(&self, id: u32) -> Result<(), Error> {
        let server = u64::from(std::process::id());
        self.run("to go on with the device", Operation::EndUserRecovery, id, server, &mut [])
    }

    /// Ends the block device, after what is under way; what comes later fails.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stop(&self, id: u32) -> Result<(), Error> {
        self.run("to stop the device", Operation::StopDevice, id, 0, &mut [])
    }

    /// Deletes a device that its server has closed; who has the block device open keeps the rest of it meanwhile. False: the driver
    /// can't delete without waiting for them, as before Linux 6.9.
    ///
    /// # Errors
    /// What the driver says. A device that is gone is no error.
    pub fn delete(&self, id: u32) -> Result<bool, Error> {
        match self.run(DELETE, Operation::DeleteDeviceAsync, id, 0, &mut []) {
            Ok(()) | Err(Error::Gone(_)) => Ok(true),
            Err(Error::Failed(_, error)) if matches!(error.raw_os_error(), Some(EOPNOTSUPP | ENOTSUPP)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes such a device; ends when nobody has the block device open, which may be never.
    ///
    /// # Errors
    /// As [`Control::delete`].
    pub fn delete_and_wait(&self, id: u32) -> Result<(), Error> {
        match self.run(DELETE, Operation::DeleteDevice, id, 0, &mut []) {
            Err(Error::Gone(_)) => Ok(()),
            deleted => deleted,
        }
    }

    /// Makes the block device as large as the namespace is by now; false: the driver can't.
    ///
    /// # Errors
    /// What the driver says.
    pub fn grow(&self, id: u32, shape: &Shape) -> Result<bool, Error> {
        if self.features()? & feature::UPDATE_SIZE == 0 {
            return Ok(false);
        }
        self.run("to grow the device", Operation::UpdateSize, id, shape.sectors(), &mut []).map(|()| true)
    }
}
