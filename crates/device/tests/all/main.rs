//! Namespaces from outside.
//! One program: each that links this crate costs the gate seconds.

mod block_device;
mod conformance;
mod drive;
mod drive_crash;
mod drive_faults;
mod drive_late;
mod drive_model;
mod drive_races;
mod drive_random;
mod drive_scrub;
mod full_medium;
mod open;
mod sidecar;
