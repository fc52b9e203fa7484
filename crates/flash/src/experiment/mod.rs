//! Experiments on the model, in virtual time: what a media manager costs in writes, beside what analysis says.
//!
//! One seed is one run: nothing here looks at this machine's clock.

mod access;
mod amplification;
mod block;
mod bound;

pub use access::{Access, Served, Side, serve};
pub use amplification::{Load, Plan, Window, Written, endurance, write_amplification};
pub use block::Cache;
pub use bound::greedy_bound;

use std::time::Duration;

use device::Error;
use engine::sim::{SimConfig, World};

use crate::manager::ManagerError;
use crate::nand::NandError;

/// Virtual time that an experiment may take. Chosen: longer than any, and within the nanoseconds of 64 bits.
const TIME_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Why there is nothing to show.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExperimentError {
    /// There is no such device.
    #[error(transparent)]
    Nand(#[from] NandError),
    /// There is no media manager on it.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// A command failed.
    #[error(transparent)]
    Command(#[from] Error),
    /// It did not come to an end.
    #[error("the experiment stands still: {0}")]
    Stalled(String),
}

/// Runs an experiment in a world of its own.
fn in_world<T: 'static>(
    seed: u64,
    experiment: impl Future<Output = Result<T, ExperimentError>> + 'static,
) -> Result<T, ExperimentError> {
    // A device without times works at one instant, however much it does.
    let sim = SimConfig { polls_per_instant_max: u64::MAX, virtual_time_max: TIME_MAX, ..SimConfig::default() };
    let world = World::new(seed, sim);
    let task = world.spawn_on(world.node("host"), experiment);
    world.run_until(task).map_err(|stalled| ExperimentError::Stalled(stalled.to_string()))?
}
