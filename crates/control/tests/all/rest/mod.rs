//! The REST interface, over HTTP on a port of this machine.

mod answers;
mod client;
mod refusals;
mod secure;
