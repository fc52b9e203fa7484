//! Hosts and targets from outside, but for what counts its process's allocations.
//! One program: each that links this crate costs the gate seconds.

mod authentication;
mod begun;
mod common;
mod concatenation;
mod crowd;
mod discovery;
mod host_extension;
mod host_loopback;
mod host_manager;
mod host_queues;
mod host_reservations;
mod host_sim;
mod host_zones;
mod hostile_target;
mod log;
mod multipath;
mod odd;
mod placement;
// Of the cache: what is there asks `rustix` for a port.
#[path = "../../../cache/tests/all/port.rs"]
mod port;
mod profile;
mod target_commands;
mod target_driver;
mod tls;
mod withheld;
