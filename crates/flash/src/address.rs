//! Addresses on a flash device: four bytes for a sector, so that the map of a device costs four bytes a sector.

use std::fmt;

/// Addresses that there are. Derived: two of four bytes' values say that there is no sector, and why.
pub const ADDRESSES_MAX: u32 = u32::MAX - 1;

/// A sector, counted over chunks over parallel units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sector(pub u32);

/// A chunk, counted over parallel units.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Chunk(pub u32);

impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
