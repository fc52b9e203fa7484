//! The engine from outside, but for what counts its process's allocations.
//! One program: each that links this crate costs the gate seconds.

mod block_device;
mod file;
mod net;
mod reactor;
mod sim_and_real;
mod sim_determinism;
mod sim_disk;
mod sim_net;
mod sim_world;
mod sync;
mod unix;
