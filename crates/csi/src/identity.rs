//! Who the driver is.

use crate::wire::{
    CONTROLLER_SERVICE, Capabilities, Capability, CapabilityType, ONLINE, PluginInfo, ProbeResponse, Truth,
    VOLUME_ACCESSIBILITY_CONSTRAINTS,
};

/// The driver's name, as orchestrators know it.
pub const DRIVER: &str = "csi.yagura.io";

/// `GetPluginInfo`
pub fn info() -> PluginInfo {
    PluginInfo { name: DRIVER.into(), vendor_version: env!("CARGO_PKG_VERSION").into() }
}

/// `GetPluginCapabilities`: of the driver as a whole, whichever services this process has. Nodes that say where they stand do so
/// for what else an orchestrator does with that: volumes are reached from every node alike, and none says that it is not.
pub fn capabilities(has_topology: bool) -> Capabilities {
    let services = [CONTROLLER_SERVICE, VOLUME_ACCESSIBILITY_CONSTRAINTS];
    let mut all = Capabilities::of(&services[..1 + usize::from(has_topology)]);
    all.capabilities.push(Capability { of: None, expansion: Some(CapabilityType { kind: ONLINE }) });
    all
}

/// `Probe`: a driver that answers is ready. That the control plane is away is told by the calls that need it: whoever ended the
/// driver for that would only add to the trouble.
pub fn probe() -> ProbeResponse {
    ProbeResponse { ready: Some(Truth { value: true }) }
}
