//! Attached volumes over the real target and the real host, in the simulated world.

mod basics;
mod cluster;
mod crash;
mod gated;
mod sim;
