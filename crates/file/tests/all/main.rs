//! Files from outside, in the simulated world.
//! One program: each that links this crate costs the gate seconds.

mod audit;
mod crash;
mod data;
mod directories;
mod gates;
mod interleave;
mod keepers;
mod large;
mod late;
mod mend;
mod model;
mod opened;
mod operations;
mod random;
mod records;
mod store;
mod unknown;
mod world;
