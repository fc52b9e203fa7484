//! `yagura cache`: memcached's protocols, and what tells of a server that speaks them.

mod ask;
mod flash;
mod listening;
mod namespace;
mod serve;
mod stats;

pub use namespace::FlashSpec;

use crate::cli::CacheVerb;
use crate::exit::Failure;

/// Runs the verb.
pub fn run(verb: &CacheVerb) -> Result<(), Failure> {
    match verb {
        CacheVerb::Serve(args) => serve::run(args),
        CacheVerb::Stats(args) => stats::stats(args),
        CacheVerb::Top(args) => stats::top(args),
    }
}
