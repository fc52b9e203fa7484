//! The NVMe/TCP host: a remote namespace as a [`device::Namespace`].
//!
//! ```text
//!  RemoteNamespace   reconnects; splits what is longer than the controller takes; identity check
//!    └─ Association  admin queue + one I/O queue: connect, enable, identify, keep alive, events
//!         └─ Link    a queue on its TCP connection: one task
//!              └─ Queue   commands and bytes in, bytes and outcomes out: no I/O, no clock
//! ```
//!
//! Use: [`discover`] says what a target offers; [`RemoteNamespace::connect`] connects to one namespace of it. All of it lives
//! on the reactor thread that made it; another thread connects for itself, which gives it an I/O queue of its own.

mod admin;
mod ana;
mod association;
mod authentication;
mod connect;
mod discovery;
mod error;
mod events;
mod fence;
mod fuzz;
mod identity;
mod io;
mod joining;
mod link;
mod multipath;
mod options;
mod queue;
mod remote;
mod requested;
mod session;
mod shape;
mod slot;

pub use ana::ANA_GROUPS_MAX;
pub use association::QUEUES_MAX;
pub use discovery::{DISCOVERY_ENTRIES_MAX, Discovered, discover};
pub use error::ConnectError;
pub use fence::QUIESCE_TIME;
pub use fuzz::session as fuzz_session;
pub use identity::HostIdentity;
pub use joining::Joiner;
pub use link::LinkError;
pub use multipath::{Multipath, MultipathError, MultipathOptions, PATHS_MAX, PathPolicy, PathState};
pub use options::{Options, Security};
pub use queue::{QUEUE_DEPTH_MAX, QueueError, R2T_OUTSTANDING_MAX};
pub use remote::RemoteNamespace;
pub use shape::NAMESPACES_MAX;
