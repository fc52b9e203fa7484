//! Which extents the scrubs under way have seen.
//!
//! Invariant: a mark is of what the extent holds, not of its number. It goes in the step that maps an extent which nobody had:
//! kept, it would pass over what a copy has moved there out of another extent, one that no scrub has seen, damage and all.

/// The marks of every scrub under way: a byte for each extent of the drive, so that nothing grows while it goes on.
#[derive(Debug, Default)]
pub(super) struct Seen {
    scrubs: Vec<(u64, Vec<bool>)>,
    begun: u64,
}

impl Seen {
    /// An extent is mapped that nobody had.
    pub(super) fn taken(&mut self, extent: u32) {
        self.scrubs.iter_mut().for_each(|(_, marks)| marks[extent as usize] = false);
    }

    /// A scrub begins on a drive of so many extents, and has seen nothing: its number here.
    pub(super) fn begin(&mut self, extents: usize) -> u64 {
        self.begun += 1;
        self.scrubs.push((self.begun, vec![false; extents]));
        self.begun
    }

    /// It is over.
    pub(super) fn end(&mut self, scrub: u64) {
        self.scrubs.retain(|(number, _)| *number != scrub);
    }

    /// A scrub's mark on an extent.
    pub(super) fn mark(&mut self, scrub: u64, extent: u32) -> &mut bool {
        let found = self.scrubs.iter_mut().find(|(number, _)| *number == scrub);
        // There from its beginning to its end, a mark for each extent that the drive has.
        &mut found.expect("a scrub under way has its marks").1[extent as usize]
    }
}
