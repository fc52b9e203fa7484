//! What the dead have left, and what is damaged: found, and mended. The rows of the README's table of crash states that say `fsck`
//! are ended here.
//!
//! - `clients`: those that are no more, which everybody who mounts collects by itself.
//! - `fsck`: a look at everything, and what comes of it. It reads keys (`listed`), space and maps (`maps`), and then all names
//!   (`tries`), judges (`names`, `space`), and mends (`mend`). What it tells is a `report`.
//! - `quotas`, `counted`: what counts, beside what quotas say.
//! - `noted`, `unnamed`: what it has seen before, in its memory alone.

pub(crate) mod clients;
mod counted;
mod found;
mod fsck;
mod listed;
mod maps;
mod mend;
mod names;
mod noted;
mod paths;
mod quotas;
mod report;
mod space;
mod tries;
mod unnamed;

use std::time::Duration;

use crate::error::Error;

pub use fsck::Fsck;
pub use report::{Damage, Left, Report, Tally};

/// How long something must have been as it is before it is taken for left over, by the clock of whoever looks. Derived: a client
/// that could not renew its record for ten minutes writes no more, and a command takes effect within half an hour or never.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Records that are read at once. Chosen: keeps a store over a network busy, and is no burden beside what mounts do.
pub(crate) const TOGETHER: usize = 32;

/// `None`: it does not parse, which is told by whoever reads everything.
pub(crate) fn unless_damaged<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Err(Error::Damaged(_)) => Ok(None),
        found => found.map(Some),
    }
}
