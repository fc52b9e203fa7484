//! Block devices of the Linux kernel whose requests this process answers (ublk), over any namespace.
//!
//! - [`protocol`]: the driver's structures, and requests; no I/O.
//! - [`control`]: devices: made, started, gone on with, stopped, deleted.
//! - [`server`]: the requests of a device.

mod control;
mod figures;
mod protocol;
mod server;
#[cfg(test)]
mod tests;

pub use control::{Control, Driver, Error, FEATURES, State};
pub use figures::{Figures, UblkMetrics};
pub use protocol::{DeviceInfo, REQUESTS_MAX, Shape};
pub use server::{Requests, Server};
