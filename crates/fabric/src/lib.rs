//! NVMe over Fabrics, both ends: protocol cores that do no I/O, and the TCP transport that drives them.
//!
//! [`tcp`] is the PDU codec that both ends share, [`target`] serves namespaces, [`host`] uses those of others.

pub mod auth;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod host;
#[cfg(test)]
#[path = "../tests/all/log.rs"]
mod log;
pub mod psk;
pub mod subsystem;
pub mod tcp;
