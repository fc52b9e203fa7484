//! What a table keeps in mind between operations: copies that are yet to be freed (`leftover`), pages of the heap that are claimed
//! before it is known what for (`stock`), and whether the heap had room (`heap`).

use std::rc::Rc;
use std::time::Duration;

use engine::sync::Notify;
use engine::time::Instant;
use pool::{HeapGroup, TablePage};

use crate::page::{Header, Reference};
use crate::types::OpId;

/// Age up to which a writer's own copy needs no second look. Derived: no collector touches it for far longer.
pub(super) const FRESH_TIME_MAX: Duration = Duration::from_secs(60);

/// A copy outside the page.
pub(super) type Copy = (Reference, OpId);

/// What is to be freed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leftover {
    /// A copy that was unlinked, or never published, of a key at home in this page.
    Garbage(TablePage, Copy),
    /// An extent that was claimed in this group, under this tag, and that no index and no page refers to.
    Extent(HeapGroup, u64),
    /// Slots of this group, first and count, that are in the stock of this tag and no longer wanted.
    Stock(HeapGroup, usize, usize, u64),
    /// A copy of a key at home in this page, for or against an image that was to replace one of this header; if there is none
    /// such any more, a bundle may refer to it.
    Undecided(TablePage, Copy, Option<Header>),
}

/// Slots in a row that are in the stock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) group: HeapGroup,
    pub(super) tag: u64,
    pub(super) slot: usize,
    pub(super) pages: usize,
    pub(super) claimed: Instant,
    /// The connection over which it was.
    pub(super) connection: u64,
}

impl Run {
    /// Whether it may be written to before it is bound.
    pub(super) fn is_fresh(&self) -> bool {
        self.claimed.elapsed() <= FRESH_TIME_MAX
    }
}

/// What is in stock, and how much is wanted.
#[derive(Default)]
pub(super) struct Stock {
    pub(super) runs: Vec<Run>,
    pub(super) wanted: usize,
    pub(super) filling: bool,
    pub(super) filled: Rc<Notify>,
}

impl Stock {
    pub(super) fn pages(&self) -> usize {
        self.runs.iter().map(|run| run.pages).sum()
    }
}

/// When a search of the heap found no run of so many pages.
#[derive(Clone, Copy)]
pub(super) struct HeapFull {
    pub(super) pages: usize,
    pub(super) seen: Instant,
}
