//! Bytes of files over members, in the simulated world.

pub mod bed;
mod crash;
mod files;
mod late;
mod loss;
mod room;
