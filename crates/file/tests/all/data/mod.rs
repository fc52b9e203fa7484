//! Bytes of files over members, in the simulated world.

pub mod bed;
mod crash;
mod doubts;
mod files;
mod late;
mod loss;
mod many;
mod overdue;
mod parts;
mod room;
mod shelf;
mod stale;
