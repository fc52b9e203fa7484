//! The search of one store for places outside a full home page.
//!
//! What has to go is chosen by what the other pages have room for. First a value is wanted for any page; where those that are
//! looked at are too full for it, the heap is asked; and where that is full, too, or there is none, something that fits the
//! roomiest page seen so far goes instead. Only when nothing in the home page is short enough for that are more pages looked
//! at, and [`PROBES_MAX`] of them in all.

use pool::TablePage;

use super::{Table, TableError};
use crate::page::Reference;
use crate::types::OpId;
use crate::value::Value;

/// Pages that are looked at for one copy before the heap is asked, or for a shorter one. Measured: with fewer a table of mixed
/// lengths fills less.
pub(super) const PROBES_AT_ONCE_MAX: usize = 32;
/// Pages that one store looks at. Measured: with a fourth of it mixed lengths of 16 to 1,024 bytes fill 90 % of a table, with
/// all of it 93 %.
pub(super) const PROBES_MAX: usize = 128;

/// What a copy is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// A page, which takes copies of so many bytes.
    Page(usize),
    /// The heap, which takes any, and a page of its own for the shortest.
    Heap,
}

/// How far the search is.
#[derive(Debug)]
pub(super) struct Search {
    wanted: Wanted,
    /// The longest copy that any page takes.
    longest: usize,
    /// The heap may have room.
    heap: bool,
    /// What the heap said when it had none.
    heap_said: Option<TableError>,
    /// The roomiest of the pages that were too full, and for how long a copy it has room.
    best: Option<(usize, TablePage)>,
    looked: usize,
    /// Something found no place.
    hard: bool,
}

impl Search {
    pub(super) fn new(longest: usize, heap: bool) -> Search {
        Search { wanted: Wanted::Page(longest), longest, heap, heap_said: None, best: None, looked: 0, hard: false }
    }

    /// What is to be placed next.
    pub(super) fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// Whether something has found no place: then nothing is moved that need not be.
    pub(super) fn is_hard(&self) -> bool {
        self.hard
    }

    /// The page to look at for a copy of `length` bytes, the `tried`th; `None`: no other. `random` chooses one.
    pub(super) fn page(
        &mut self,
        length: usize,
        tried: usize,
        random: impl FnOnce() -> TablePage,
    ) -> Option<TablePage> {
        if let Some((_, page)) = self.best.take_if(|(room, _)| *room >= length) {
            return Some(page);
        }
        let open = self.wanted == Wanted::Page(self.longest);
        if !open || tried >= PROBES_AT_ONCE_MAX || self.looked >= PROBES_MAX {
            return None;
        }
        self.looked += 1;
        Some(random())
    }

    /// `page` has only room for a copy of so many bytes.
    pub(super) fn too_full(&mut self, page: TablePage, room: usize) {
        if room > self.best.map_or(0, |(best, _)| best) {
            self.best = Some((room, page));
        }
    }

    /// No page took a copy of `length` bytes.
    fn no_page(&mut self, length: usize) {
        (self.hard, self.wanted) = (true, if self.heap { Wanted::Heap } else { self.shorter(length) });
    }

    /// For what fits the best page, which is shorter than `length`.
    fn shorter(&self, length: usize) -> Wanted {
        Wanted::Page(self.best.map_or(0, |(room, _)| room).min(length.saturating_sub(1)))
    }

    /// Nothing in the home page is as it is wanted, or the heap is full. Whether to go on.
    pub(super) fn refused(&mut self) -> bool {
        self.wanted = match self.wanted {
            Wanted::Heap => {
                self.heap = false;
                self.shorter(self.longest)
            }
            Wanted::Page(_) if self.heap => Wanted::Heap,
            Wanted::Page(length) if length < self.longest && self.looked < PROBES_MAX => Wanted::Page(self.longest),
            Wanted::Page(_) => return false,
        };
        true
    }

    /// `full` in the heap's own words, if it was asked: it is the heap that room is wanted in, where the pages have none.
    pub(super) fn refusal(&mut self, full: TableError) -> TableError {
        match full {
            TableError::OutOfSpace(_) => self.heap_said.take().unwrap_or(full),
            other => other,
        }
    }
}

impl Table {
    /// A search that has not begun.
    pub(super) fn search(&self) -> Search {
        Search::new(self.guest_bytes_max(), self.layout.geometry.heap_groups > 0)
    }

    /// Places a copy as it was wanted. `None`: there is no such place; something else is wanted now.
    pub(super) async fn place_wanted(
        &self,
        home: TablePage,
        op: OpId,
        value: &Value,
        search: &mut Search,
    ) -> Result<Option<Reference>, TableError> {
        let placed = match search.wanted {
            Wanted::Page(_) => self.place_guest(home, op, value, search).await?,
            Wanted::Heap => match self.place_extents(home, op, value).await {
                Err(full @ TableError::OutOfSpace(_)) => {
                    search.heap_said = Some(full);
                    None
                }
                placed => Some(placed?),
            },
        };
        match (placed, search.wanted) {
            (Some(_), _) => search.wanted = Wanted::Page(search.longest),
            (None, Wanted::Page(_)) => search.no_page(value.len()),
            (None, Wanted::Heap) => _ = search.refused(),
        }
        Ok(placed)
    }

    /// Places a value that stays as it is: in a page that has room, else in the heap.
    pub(super) async fn place(&self, home: TablePage, op: OpId, value: &Value) -> Result<Reference, TableError> {
        let mut search = self.search();
        if value.len() <= search.longest
            && let Some(reference) = self.place_guest(home, op, value, &mut search).await?
        {
            return Ok(reference);
        }
        self.place_extents(home, op, value).await
    }
}
