//! Attached volumes over the real target and the real host, in the simulated world and the real one.

mod adopting;
mod backup;
mod basics;
mod cluster;
mod crash;
mod crash_snapshots;
mod drives;
mod faulty;
mod fencing;
mod gated;
mod growing;
mod parts;
mod real;
mod restoring;
mod shelf;
mod sim;
mod snapshots;
mod streams;
mod taking;
mod unreadable;
