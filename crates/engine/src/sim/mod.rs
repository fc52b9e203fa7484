//! The simulated world: the code under test on a virtual clock, with seeded order and seeded faults.
//!
//! Everything the code can learn (time, order, random numbers, what arrives when, what fails) is a function of the seed and of
//! the code itself: **one seed is one run**, and [`World::trace_hash`] shows it. Time stands still while any task can run, and
//! jumps to the next event when none can; an hour of waiting costs nothing. The fault models stand at the top of `network`
//! and `disk`.
//!
//! A scenario is a future given to [`World::run_until`], which plays the outside world (it crashes, partitions, heals and
//! checks) while tasks spawned on nodes play the machines.
//!
//! ```
//! use std::time::Duration;
//! use engine::{sim::{SimConfig, World}, time};
//!
//! let world = World::new(1, SimConfig::default());
//! let node = world.node("a");
//! let task = world.spawn_on(node, async {
//!     time::sleep(Duration::from_secs(3600)).await;
//!     time::now()
//! });
//! assert_eq!(world.run_until(task).unwrap().as_nanos(), 3_600_000_000_000);
//! ```

mod config;
mod core;
mod disk;
mod driver;
mod event;
pub(crate) mod file;
mod id;
mod image;
pub(crate) mod net;
mod network;
mod rng;
mod sched;
mod trace;
mod world;

pub use self::config::{DiskConfig, SimConfig};
pub use self::disk::DiskImage;
pub(crate) use self::driver::Driver;
pub use self::id::NodeId;
pub use self::world::{StallReason, Stalled, World};
