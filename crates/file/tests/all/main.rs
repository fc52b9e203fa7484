//! Files from outside, in the simulated world.
//! One program: each that links this crate costs the gate seconds.

mod alive;
mod audit;
mod collected;
mod crash;
mod damaged;
mod data;
mod directories;
mod fsck;
mod gates;
mod interleave;
mod keepers;
mod large;
mod late;
mod mend;
mod model;
mod opened;
mod operations;
mod paths;
mod random;
mod recent;
mod records;
mod store;
mod unknown;
mod world;
