//! Provisioning: volumes of simulated drives, over a catalogue in memory, in a time that jumps.

mod asked;
mod chaos;
mod crash;
mod drives;
mod faults;
mod world;
