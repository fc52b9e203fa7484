//! The mirror of a volume, small enough to be searched completely: passive replicas, hosts that attach, and the record of which
//! replicas are in sync, which the replicas keep themselves.
//!
//! A command sent to a replica executes at any time or never while its sender holds the reservation there. A host that is never
//! scheduled again is crashed, and a replica whose commands are never delivered is away: neither needs an event.
//!
//! - [`state`]: what there is.
//! - [`config`]: what is searched, and the rules that can be broken on purpose.
//! - `attach`, `host`, `steps`: what hosts do.
//! - `land`: what replicas do.
//! - `power`: flushes and losses of power.
//! - `snapshot`, `grow`: snapshots, and how the volume grows.
//! - [`judge`], `history`: what must hold.
//! - `symmetry`: which states are the same.
//!
//! The rules, and how many states each search has, are in `README.md`.

mod attach;
pub mod config;
pub mod configs;
mod extensions;
mod grow;
mod history;
mod host;
pub mod judge;
mod land;
mod notation;
mod power;
mod snapshot;
pub mod state;
mod steps;
mod symmetry;

pub use judge::Search;
