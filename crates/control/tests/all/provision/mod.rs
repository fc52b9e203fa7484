//! Provisioning: volumes of simulated drives, over a catalogue in memory, in a time that jumps.

mod asked;
mod changes;
mod chaos;
mod crash;
pub mod drives;
mod faults;
mod forced;
mod hosts;
mod shared;
pub mod world;
