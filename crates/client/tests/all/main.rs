//! The client from outside, but for what counts its process's threads.
//! One program: each that links this crate costs the gate seconds.

mod client;
mod examples;
