//! The Container Storage Interface (version 1) over volumes by name: how a container orchestrator, Kubernetes say, makes volumes
//! and mounts them where they are used.
//!
//! ```text
//!  orchestrator ─gRPC, unix socket─► Endpoint ─► Services ─┬─► Controller ─REST─► control plane
//!                                                          └─► Node ─► Machine: `yagura volume attach --device`, mkfs, mount
//! ```
//! Use: [`Endpoint::bind`], then [`Endpoint::serve`] with the [`Services`] that this process is to have.

mod asked;
mod capability;
mod capacity;
mod contents;
mod controller;
mod growth;
mod host;
mod identity;
mod names;
mod node;
mod parameters;
mod plane;
#[cfg(test)]
mod plane_double;
mod server;
mod service;
mod snapshots;
mod wire;

pub use capability::{Access, Filesystem, Use};
pub use controller::Controller;
pub use host::Host;
pub use identity::DRIVER;
pub use names::volume_name;
pub use node::{Device, Free, Machine, MachineError, Node, Shown, Usage, VOLUMES_MAX};
pub use plane::Plane;
pub use server::{Endpoint, EndpointError};
pub use service::{NodeService, Services};
