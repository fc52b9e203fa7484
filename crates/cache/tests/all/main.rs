//! The cache from outside, but for what measures its process's memory.
//! One program: each that links this crate costs the gate seconds.

mod differential;
mod entries;
mod flash;
mod port;
mod ratios;
mod server;
mod sessions;
mod threads;
