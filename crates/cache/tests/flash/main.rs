//! The flash log from outside.

mod crash;
mod faults;
mod life;
mod owner;
mod packing;
