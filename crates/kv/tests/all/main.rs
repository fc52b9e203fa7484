//! The store from outside: in the simulated world, and its gateway over sockets.
//! One program: each that links this crate costs the gate seconds.

mod gateway;
mod gateway_slow;
mod sim;
