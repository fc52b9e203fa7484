//! Where two namespaces may differ: what a snapshot and its successor do not share.
//!
//! An extent that both maps name at the same place holds the same bytes for both: whoever writes to a shared extent gets a copy.
//! So what is told is never too little. It may be too much: whole extents, and also where the same bytes were written.

use std::ops::Range;

use super::map::ExtentMap;
use super::{Drive, DriveError};

/// What one look has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Differences {
    /// Ranges of bytes that may differ, ascending.
    pub ranges: Vec<Range<u64>>,
    /// Where the look has ended and the next one begins; `None`: at the end of the namespace.
    pub next: Option<u64>,
}

impl Drive {
    /// Where `newer` may differ from `base` (`None`: from one that was never written), from byte `from` on. A look takes a bounded
    /// time, finds at most so many ranges and goes on where it ended. What lies behind the end of `base` counts as zeroes there.
    pub fn differences(
        &self,
        newer: u32,
        base: Option<u32>,
        from: u64,
        ranges_max: usize,
    ) -> Result<Differences, DriveError> {
        let extent_bytes = u64::from(self.inner.layout.extent_bytes);
        self.inner.with(|core| {
            let space = |number: u32| core.state.space(number).map_err(|_| DriveError::NoNamespace(number.to_string()));
            let (newer, nothing) = (space(newer)?, ExtentMap::default());
            let base = base.map_or(Ok(&nothing), |base| space(base).map(|base| &base.map))?;
            // Both fit 32 bits: a namespace has no more extents.
            let end = newer.bytes.div_ceil(extent_bytes) as u32;
            let first = (from / extent_bytes).min(u64::from(end)) as u32;
            let (found, next) = newer.map.differences(base, first, end, ranges_max);
            let bytes = |extent: u32| (u64::from(extent) * extent_bytes).clamp(from, newer.bytes.max(from));
            let ranges = found.into_iter().map(|range| bytes(range.start)..bytes(range.end));
            let next = (next < end).then(|| bytes(next));
            Ok(Differences { ranges: ranges.filter(|range| !range.is_empty()).collect(), next })
        })
    }
}
