//! How a volume is used on the machine that has it attached: by a block device of the kernel, or by none.
//!
//! Invariant: a device that a former process left is gone on with only in the tenure that it is of. Otherwise it is given up before
//! the volume is used.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use device::AnyNamespace;
use fabric::auth::HostKeys;
use prometheus_client::registry::Registry;
use uuid::Uuid;

use super::words::usual_name;
use super::{kernel, named, ublk};
use crate::cli::{DeviceWay, VolumeAttachArgs};
use crate::exit::Failure;

/// By which way the kernel has a device.
enum Device {
    Nvme(kernel::Device),
    Ublk(ublk::Device),
}

/// How the volume is used on this machine.
#[derive(Clone)]
pub struct Used {
    device: Option<Rc<Device>>,
}

impl Used {
    /// By the kernel's device, if there is to be one. One that a former process left, of a volume that is another host's by now, is
    /// given up before anything else; and a volume that is to be gone on with alone is not attached anew.
    pub fn before(args: &VolumeAttachArgs) -> Result<Used, Failure> {
        let Some(way) = args.device else { return Ok(Used { device: None }) };
        let (volume, host) = named::known(&args.of)?;
        let device = match way {
            DeviceWay::Nvme => {
                Device::Nvme(kernel::Device::new(&args.nqn.clone().unwrap_or_else(|| usual_name(volume)))?)
            }
            DeviceWay::Ublk => Device::Ublk(ublk::Device::new(volume)?),
        };
        let used = Used { device: Some(Rc::new(device)) };
        if host != args.of.host.host_nqn && (used.is_connected() || args.tenure.is_some()) {
            used.give_up();
            return Err(lost());
        }
        Ok(used)
    }

    /// Whether no other host has had the volume since the kernel was connected, nor since the tenure that is to be gone on with
    /// began. That this host's name is in the catalogue still does not tell: another one may have come and gone.
    pub fn continues(&self, args: &VolumeAttachArgs, attachment: &named::Attachment) -> bool {
        let tenure = attachment.tenure;
        args.tenure.is_none_or(|asked| asked == tenure)
            && match self.device.as_deref() {
                None => true,
                Some(Device::Nvme(device)) => device.is_of(tenure),
                Some(Device::Ublk(device)) => device.is_of(tenure),
            }
    }

    /// Whether the kernel has a device of the volume.
    pub fn is_connected(&self) -> bool {
        match self.device.as_deref() {
            None => false,
            Some(Device::Nvme(device)) => device.is_connected(),
            Some(Device::Ublk(device)) => device.is_connected(),
        }
    }

    /// Has the kernel give up a device that nobody serves.
    pub fn give_up(&self) {
        match self.device.as_deref() {
            None => {}
            Some(Device::Nvme(device)) => device.disconnect(),
            Some(Device::Ublk(device)) => device.disconnect(),
        }
    }

    /// Where the kernel expects the volume, or else where it was asked for.
    pub fn listen(&self, args: &VolumeAttachArgs) -> Option<SocketAddr> {
        let asked = args.listen()?;
        let port = match self.device.as_deref() {
            Some(Device::Nvme(device)) => device.port(),
            _ => None,
        };
        Some(SocketAddr::new(asked.ip(), port.unwrap_or_else(|| asked.port())))
    }

    /// By which the kernel and who serves the volume over NVMe/TCP know each other.
    pub fn keys(&self) -> Result<Option<HostKeys>, Failure> {
        match self.device.as_deref() {
            Some(Device::Nvme(device)) => device.keys(),
            _ => Ok(None),
        }
    }

    /// Puts in what is counted of the device.
    pub fn register(&self, registry: &mut Registry) {
        if let Some(Device::Ublk(device)) = self.device.as_deref() {
            registry.register_collector(Box::new(::ublk::UblkMetrics(device.figures())));
        }
    }

    /// The block device, once the volume is served (at that address, over NVMe/TCP).
    pub async fn connected(
        &self,
        (namespace, at): (&AnyNamespace, Option<SocketAddr>),
        tenure: Uuid,
        keys: Option<HostKeys>,
    ) -> Result<Option<PathBuf>, Failure> {
        match (self.device.as_deref(), at) {
            (Some(Device::Nvme(device)), Some(at)) => device.connected(at, tenure, keys).await.map(Some),
            (Some(Device::Ublk(device)), _) => device.connected(namespace, tenure).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Has the kernel give the device up while the volume is served still; `is_lost`: nothing can be written to it any more.
    pub async fn disconnected(&self, is_lost: bool) -> Result<(), Failure> {
        match self.device.as_deref() {
            None => return Ok(()),
            Some(Device::Nvme(device)) => device.disconnected().await,
            Some(Device::Ublk(device)) => device.disconnected(is_lost).await,
        }
        match self.is_connected() {
            true => Err(Failure::unavailable("the kernel keeps its device of the volume, and this host the volume")),
            false => Ok(()),
        }
    }

    /// The volume is not served any more: what the kernel has kept waits for the next process.
    pub fn leave(&self) {
        if let Some(Device::Ublk(device)) = self.device.as_deref() {
            device.leave();
        }
    }

    /// The volume has grown.
    pub fn grow(&self, namespace: &AnyNamespace) {
        if let Some(Device::Ublk(device)) = self.device.as_deref() {
            device.grow(namespace);
        }
    }
}

/// Another host has had the volume.
pub fn lost() -> Failure {
    let what = "another host has had the volume since this one used it: what was to be written here is lost";
    Failure::lost(format!("{what}, and the device is given up; unmount what is mounted of it, and attach it anew"))
}
