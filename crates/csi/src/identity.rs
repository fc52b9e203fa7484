//! Who the driver is.

use crate::wire::{CONTROLLER_SERVICE, Capabilities, PluginInfo, ProbeResponse, Truth};

/// The driver's name, as orchestrators know it.
pub const DRIVER: &str = "csi.yagura.io";

/// `GetPluginInfo`
pub fn info() -> PluginInfo {
    PluginInfo { name: DRIVER.into(), vendor_version: env!("CARGO_PKG_VERSION").into() }
}

/// `GetPluginCapabilities`: of the driver as a whole, whichever services this process has. Volumes are reached from every node
/// alike, so that there is no topology to tell of.
pub fn capabilities() -> Capabilities {
    Capabilities::of(&[CONTROLLER_SERVICE])
}

/// `Probe`: a driver that answers is ready. That the control plane is away is told by the calls that need it: whoever ended the
/// driver for that would only add to the trouble.
pub fn probe() -> ProbeResponse {
    ProbeResponse { ready: Some(Truth { value: true }) }
}
