//! A file system of ours in the kernel's tree: the requests of FUSE, answered by [`file::Files`].
//!
//! - [`Mount`]: mounted, until it is unmounted by whomever.
//! - `face`, `replies`: each request, from the kernel's thread to the reactor and back.
//! - `caller`: what the requests of locks do not say.
//! - `told`: attributes as the kernel wants them.
//! - `figures`: what is counted of requests.
//!
//! Invariants:
//! - A request is answered once; one whose reactor is gone is answered by EIO.
//! - The kernel's thread never waits for the pool: it hands requests on.
//! - What a close or fsync has acknowledged is stable.

mod caller;
mod face;
mod figures;
mod lockers;
mod mount;
mod replies;
mod serve;
mod told;

pub use figures::FuseMetrics;
pub use mount::{Mount, MountError, MountOptions};
