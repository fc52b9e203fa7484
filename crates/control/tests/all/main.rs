//! The catalogue from outside: one suite on both engines, and what each of them has of its own.
//! One program: each that links this crate costs the gate seconds.

mod cluster;
mod crash;
mod embedded;
mod etcd;
mod failover;
mod medium;
mod model;
mod older;
#[path = "../../../cache/tests/all/port.rs"]
mod port;
mod provision;
mod proxy;
mod rest;
mod secrets;
mod served;
mod suite;
mod tls;
mod transfer;
mod words;
