//! Files from outside, in the simulated world.
//! One program: each that links this crate costs the gate seconds.

mod alive;
mod audit;
mod collected;
mod crash;
mod damaged;
mod data;
mod directories;
mod figures;
mod fsck;
mod gates;
mod in_step;
mod interleave;
mod keepers;
mod lapses;
mod large;
mod late;
mod leases;
mod locks;
mod mend;
mod model;
mod opened;
mod operations;
mod overdue;
mod paths;
mod quotas;
mod quotas_held;
mod quotas_kept;
mod quotas_many;
mod random;
mod recent;
mod records;
mod standing;
mod store;
mod unknown;
mod world;
