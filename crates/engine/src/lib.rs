//! The engine: one reactor per core over `io_uring`, and the simulated world behind the same interface.
//!
//! Code above this crate is plain `async` code, single-threaded, written against the concrete types here
//! ([`net::TcpStream`], [`file::File`], [`time::sleep`], [`task::spawn`], [`task::random_u64`]). Which world it runs
//! in is decided by who polls it: [`Reactor::run`] (kernel, wall clock) or [`sim::World`] (virtual clock, seeded order,
//! seeded faults). The dispatch is one `match` per operation; there is no second code path to test.

pub mod backoff;
pub mod buf;
pub mod figures;
pub mod file;
pub mod histogram;
pub mod job;
pub mod map;
pub mod net;
pub mod offload;
pub mod pace;
pub mod pages;
pub mod rng;
mod runtime;
pub mod sim;
pub mod sync;
pub mod task;
pub mod time;
mod timers;
mod uring;

pub use buf::{Buf, View};
pub use map::Mapped;
pub use pages::Pages;
pub use uring::{Reactor, ReactorConfig, ublk};
