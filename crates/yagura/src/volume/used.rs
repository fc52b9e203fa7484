//! How a volume is used on the machine that has it attached: by a block device of the kernel, or by none.
//!
//! Invariants:
//! - A device that a former process left is gone on with only in the tenure that it is of. Otherwise it is given up before the
//!   volume is used.
//! - The volume is not used by another way while a device of the tenure is left: what waits for that device would be written later,
//!   over what is acknowledged meanwhile.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use device::AnyNamespace;
use fabric::auth::HostKeys;
use prometheus_client::registry::Registry;
use uuid::Uuid;

use super::words::usual_name;
use super::{kernel, named, ublk};
use crate::aside::aside;
use crate::cli::{DeviceWay, VolumeAttachArgs, VolumeOf};
use crate::exit::Failure;

/// By which way the kernel has a device.
enum Device {
    Nvme(kernel::Device),
    Ublk(ublk::Device),
}

impl Device {
    fn enter(&self, tenure: Uuid) {
        if let Device::Ublk(device) = self {
            device.enter(tenure);
        }
    }

    fn is_connected(&self) -> bool {
        match self {
            Device::Nvme(device) => device.is_connected(),
            Device::Ublk(device) => device.is_connected(),
        }
    }

    fn is_of(&self, tenure: Uuid) -> Result<bool, Failure> {
        match self {
            Device::Nvme(device) => Ok(device.is_of(tenure)),
            Device::Ublk(device) => device.is_of(tenure),
        }
    }

    fn disconnect(&self) -> Result<(), Failure> {
        match self {
            Device::Nvme(device) => {
                device.disconnect();
                Ok(())
            }
            Device::Ublk(device) => device.disconnect(),
        }
    }

    /// Sees to it that this device, of which nothing was asked, has nothing to write in the tenure that this host is in.
    fn pass_by(&self, tenure: Uuid) -> Result<(), Failure> {
        self.enter(tenure);
        if !self.is_connected() {
            return Ok(());
        }
        match (self.is_of(tenure)?, self) {
            (true, _) => {
                let way = match self {
                    Device::Nvme(_) => "nvme",
                    Device::Ublk(_) => "ublk",
                };
                let mend = format!("go on with it by `yagura volume attach --device={way}`, and stop that by a signal");
                Err(Failure::refused(format!(
                    "the kernel has a device of the volume, to which writes may wait: {mend}"
                )))
            }
            // Somebody may have connected by hand.
            (false, Device::Nvme(_)) => Ok(()),
            (false, Device::Ublk(_)) => {
                self.disconnect()?;
                Err(lost())
            }
        }
    }
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
        // Without a host's name the volume is refused a moment later.
        if args.of.name.is_none() || args.of.host.host_nqn.is_none() {
            return Ok(Used { device: None });
        }
        let named::Known { volume, host, tenure } = named::known(&args.of)?;
        let nqn = args.nqn.clone().unwrap_or_else(|| usual_name(volume));
        let device = match args.device {
            None => None,
            Some(DeviceWay::Nvme) => Some(Device::Nvme(kernel::Device::new(&nqn)?)),
            Some(DeviceWay::Ublk) => Some(Device::Ublk(ublk::Device::new(volume)?)),
        };
        let used = Used { device: device.map(Rc::new) };
        if host == args.of.host.host_nqn {
            if let Some(tenure) = tenure {
                if args.device != Some(DeviceWay::Nvme) {
                    Device::Nvme(kernel::Device::left(&nqn)).pass_by(tenure)?;
                }
                if args.device != Some(DeviceWay::Ublk)
                    && let Some(left) = ublk::Device::left(volume)?
                {
                    Device::Ublk(left).pass_by(tenure)?;
                }
            }
        } else if used.device.is_some() && (used.is_connected() || args.tenure.is_some()) {
            used.give_up()?;
            return Err(lost());
        }
        Ok(used)
    }

    /// Whether no other host has had the volume since the kernel was connected, nor since the tenure that is to be gone on with
    /// began. That this host's name is in the catalogue still does not tell: another one may have come and gone.
    pub fn continues(&self, args: &VolumeAttachArgs, attachment: &named::Attachment) -> Result<bool, Failure> {
        let tenure = attachment.tenure;
        if args.tenure.is_some_and(|asked| asked != tenure) {
            return Ok(false);
        }
        let Some(device) = &self.device else { return Ok(true) };
        device.enter(tenure);
        device.is_of(tenure)
    }

    /// Whether the kernel has a device of the volume, or may have one.
    pub fn is_connected(&self) -> bool {
        self.device.as_deref().is_some_and(Device::is_connected)
    }

    /// Has the kernel give up a device that nobody serves.
    pub fn give_up(&self) -> Result<(), Failure> {
        self.device.as_deref().map_or(Ok(()), Device::disconnect)
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

    /// Ends by a failure when the device was answered, and is not any more.
    pub async fn ended(&self) -> Failure {
        match self.device.as_deref() {
            Some(Device::Ublk(device)) => device.ended().await,
            _ => std::future::pending().await,
        }
        Failure::unavailable("--device=ublk: the kernel has ended the device, or gives it to this process no more")
    }

    /// Has the kernel give the device up while the volume is served still; `is_lost`: nothing can be written to it any more. Where
    /// this process has never answered the device, it may be that of another process of this host by now: of that the volume is
    /// not lost.
    pub async fn disconnected(&self, of: &VolumeOf, is_lost: bool) -> Result<(), Failure> {
        match self.device.as_deref() {
            None => return Ok(()),
            Some(Device::Nvme(device)) => device.disconnected().await,
            Some(Device::Ublk(device)) => {
                let of = of.clone();
                let is_lost = is_lost && (device.is_answered() || aside(move || named::is_anothers(&of)).await?);
                device.disconnected(is_lost).await;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    const TENURE: Uuid = Uuid::from_u128(7 << 64 | 8);
    const OTHER: Uuid = Uuid::from_u128(9);

    #[test]
    fn a_device_of_the_tenure_is_not_passed_by() {
        let said = |device: Device| device.pass_by(TENURE).expect_err("refused");
        for recorded in [Some(TENURE), None] {
            let (_root, _, device) = ublk::tests::machine(&[(3, TENURE, 2)], recorded);
            let failure = said(Device::Ublk(device));
            assert!(
                failure.sentence().contains("attach --device=ublk") && !failure.is_lost(),
                "{}",
                failure.sentence()
            );
        }
        let (_root, device) = kernel::tests::connected_in(TENURE);
        assert!(said(Device::Nvme(device)).sentence().contains("attach --device=nvme"));
        let (_root, device) = kernel::tests::connected_in(OTHER);
        Device::Nvme(device).pass_by(TENURE).expect("somebody's own connection");
        let (_root, _, device) = ublk::tests::machine(&[(3, OTHER, 2)], Some(OTHER));
        let device = Device::Ublk(device);
        assert!(device.pass_by(TENURE).expect_err("another host has had the volume").is_lost());
        device.pass_by(TENURE).expect("it is given up");
    }
}
