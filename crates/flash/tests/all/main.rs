//! Flash from outside. One program: each that links this crate costs the gate seconds.

mod begun;
mod conformance;
mod crash;
mod figures;
mod life;
mod losses;
mod model;
mod nand;
mod opening;
mod over_zones;
mod room;
mod sim;
mod zones;
