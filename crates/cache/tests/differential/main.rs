//! The same bytes to memcached and to a session over the plainest slots: the answers are equal, byte for byte.
//!
//! memcached is Debian's (`scripts/deps.sh test` installs it). Its answers that tell a time may be off by the tick of a clock.

mod binary;
mod cases;
mod generator;
mod memcached;
mod text;
