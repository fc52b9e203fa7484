//! The flash log from outside.

mod admission;
mod crash;
mod faults;
mod kill;
mod life;
mod owner;
mod packing;
mod shared;
mod threads;
