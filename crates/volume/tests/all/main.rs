//! Attached volumes over the real target and the real host, in the simulated world and the real one.

mod basics;
mod cluster;
mod crash;
mod faulty;
mod fencing;
mod gated;
mod real;
mod sim;
mod taking;
mod unreadable;
