//! Stripes that lack something found and written anew, and members that come and go, in the simulated world.

mod crash;
mod joined;
mod members;
mod random;
mod rebuild;
mod scrub;
mod yard;
