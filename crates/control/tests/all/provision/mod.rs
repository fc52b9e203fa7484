//! Provisioning: volumes of simulated drives, over a catalogue in memory, in a time that jumps.

mod asked;
mod changes;
mod chaos;
mod cloning;
mod crash;
pub mod drives;
mod emptying;
mod faults;
mod forced;
mod heard;
mod hosts;
mod mirror;
mod replacing;
mod restoring;
mod shared;
mod sim_drive;
pub mod world;
