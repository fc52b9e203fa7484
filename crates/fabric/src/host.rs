//! The NVMe/TCP host: a remote namespace as a [`device::Namespace`].
//!
//! ```text
//!  Multipath          one namespace over several paths: which one, what is sent again and when
//!  RemoteNamespace    one namespace over one association: commands, each sent at most once
//!    └─ Session       makes the association anew; lets only the same namespaces in; follows events
//!         └─ Association  admin queue and I/O queues of one controller: enable, identify, keep alive, abort, reset
//!              └─ Link    a queue on its TCP connection: one task
//!                   └─ Queue   commands and bytes in, bytes and outcomes out: no I/O, no clock
//! ```
//!
//! Use: [`discover`] says what a target offers; [`RemoteNamespace::connect`] connects to one namespace of it,
//! [`Multipath::connect`] to one over several paths; [`Manager`] makes, clones, grows and deletes them. All of it lives on the
//! reactor thread that made it; another thread joins the association with a queue of its own
//! ([`RemoteNamespace::join`]) or connects for itself.

mod admin;
mod ana;
mod any_remote;
mod association;
mod authentication;
mod connect;
mod discovery;
mod error;
mod events;
mod extension;
mod fence;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod identity;
mod io;
mod joining;
mod link;
mod manager;
mod multipath;
mod options;
mod per_thread;
mod placement;
mod queue;
mod remote;
mod requested;
mod reservations;
mod session;
mod shape;
mod slot;
mod trial;
mod watching;
mod zns;
mod zoned;

pub use ana::ANA_GROUPS_MAX;
pub use any_remote::AnyRemote;
pub use association::QUEUES_MAX;
pub use discovery::{
    DISCOVERY_ENTRIES_MAX, DISCOVERY_SERVICES_MAX, Discovered, Discovery, DiscoveryLog, REFERRAL_DEPTH_MAX, discover,
    follow, watch,
};
pub use error::ConnectError;
pub use extension::{CopyTag, DIFFERENCES_MAX, NamespaceCopy};
pub use fence::QUIESCE_TIME;
#[cfg(any(test, feature = "testing"))]
pub use fuzz::session as fuzz_session;
pub use identity::HostIdentity;
pub use joining::Joiner;
pub use link::LinkError;
pub use manager::{Allocated, Capacity, Formats, Manager, Wanted};
pub use multipath::{Multipath, MultipathError, MultipathOptions, PATHS_MAX, PathPolicy, PathState};
pub use options::{Options, Security};
pub use per_thread::PerThread;
pub use queue::{QUEUE_DEPTH_MAX, QueueError, R2T_OUTSTANDING_MAX};
pub use remote::RemoteNamespace;
pub use shape::NAMESPACES_MAX;
pub use trial::{Step, TRIPS, Trial, obstacles, swap_bytes_max, trial};
pub use watching::watch_all;

pub use nvme::extension::Extension;
