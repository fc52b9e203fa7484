//! Who has attached a volume, and when. Pure, no I/O.

/// An attachment: ordered by round, then by a random number, so that no two are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Ballot {
    /// Above all that was seen.
    pub round: u64,
    /// Random.
    pub host: u64,
}
