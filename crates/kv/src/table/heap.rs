//! The heap's space: runs of data pages, claimed and released by compare-and-write on their group's allocation page, under
//! a random tag that names one claim and no other. A claim is free again only when somebody who knows its tag says so.

use std::time::Duration;

use pool::{HeapGroup, HeapPage, TablePage};

use super::group::place;
use super::ledger::{HeapFull, Leftover};
use super::slots::{Answer, Change};
use super::{Table, TableError, bump};

/// How long a heap that had no room is believed to have none. Guessed: looking costs a read per group.
const FULL_BELIEVED: Duration = Duration::from_secs(1);

/// How long a heap is searched for a run, beyond [`SEARCH_GROUPS_MIN`]: one of millions of groups that is full but for a few is
/// as good as full. The next search goes on where this one stopped. Chosen: a fifth of what an operation may take.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(2);
/// Groups that are searched however slow the member is. Chosen: where one page in ten is free, as good as surely one of them
/// has a run.
const SEARCH_GROUPS_MIN: u32 = 64;

/// How long values are placed without a stock after the heap had no room: a round trip more for each. Guessed.
const TIGHT_TIME: Duration = Duration::from_secs(60);

impl Table {
    /// Claims `pages` data pages in a row.
    pub(super) async fn claim(&self, home: TablePage, pages: usize, tag: u64) -> Result<HeapPage, TableError> {
        const NO_ROOM: TableError = TableError::OutOfSpace("no run of free pages is left in the heap");
        let groups = self.layout.geometry.heap_groups;
        if let Some(full) = self.heap_full.get()
            && full.pages <= pages
            && full.seen.elapsed() < FULL_BELIEVED
        {
            return Err(NO_ROOM);
        }
        let begun = engine::time::now();
        for turn in 0..2 * groups {
            if turn >= SEARCH_GROUPS_MIN && begun.elapsed() > SEARCH_TIME_MAX {
                // For the next search.
                self.return_stock().await;
                break;
            }
            if turn == groups && !self.return_stock().await {
                break;
            }
            let group = HeapGroup(self.group_next.get() % groups);
            match self.claim_in(group, home, pages, tag).await {
                Ok(Some(place)) => return Ok(place),
                // A damaged group is passed over: what it holds stays readable, it gives nothing away.
                Ok(None) => {}
                Err(error) if error.group_is_damaged() => {}
                Err(error) => return Err(error),
            }
            self.next_group(group);
        }
        self.heap_full.set(Some(HeapFull { pages, seen: engine::time::now() }));
        self.save_room();
        Err(NO_ROOM)
    }

    /// Has values placed without a stock for a while.
    pub(super) fn save_room(&self) {
        self.heap_tight.set(Some(engine::time::now()));
    }

    /// Whether the heap was full just now, or has to take what fitted it before. Every page counts then: nothing goes into a
    /// stock, whose ends are too short for anybody.
    pub(super) fn is_tight(&self) -> bool {
        self.heap_tight.get().is_some_and(|seen| seen.elapsed() < TIGHT_TIME)
    }

    async fn claim_in(
        &self,
        group: HeapGroup,
        home: TablePage,
        pages: usize,
        tag: u64,
    ) -> Result<Option<HeapPage>, TableError> {
        match self.change_group(group, Change::Claim { pages, tag, home }).await {
            Ok(Answer::Run(slot, _)) => Ok(Some(place(group, slot))),
            Ok(Answer::Nothing) => Ok(None),
            Err(error) => {
                if error.may_pass() {
                    // The claim may have taken effect; nothing was written there, and nobody knows of it.
                    self.keep(Leftover::Extent(group, tag));
                }
                Err(error)
            }
        }
    }

    /// Looks elsewhere next time. Whoever shares this hint may have moved it already.
    pub(super) fn next_group(&self, group: HeapGroup) {
        let groups = self.layout.geometry.heap_groups;
        if self.group_next.get() % groups == group.0 {
            self.group_next.set((group.0 + 1) % groups);
        }
    }

    /// Rule 3: only what `tag` owns. Done also if it owns nothing here (any more).
    pub(super) async fn release(&self, group: HeapGroup, tag: u64) -> Result<(), TableError> {
        self.release_as(group, tag, false).await
    }

    /// The same of what may have been claimed by a command that is yet to land, if `doubted`: then it never does.
    pub(super) async fn release_as(&self, group: HeapGroup, tag: u64, doubted: bool) -> Result<(), TableError> {
        if group.0 >= self.layout.geometry.heap_groups {
            return Ok(());
        }
        self.change_group(group, Change::Release { tag, doubted }).await?;
        self.heap_full.set(None);
        Ok(())
    }

    /// Releases an extent that nothing refers to, now or later.
    pub(super) async fn release_or_keep(&self, group: HeapGroup, tag: u64) {
        match self.release(group, tag).await {
            Ok(()) => {}
            Err(error) if error.may_pass() => self.keep(Leftover::Extent(group, tag)),
            Err(_) => bump(&self.stats.abandoned),
        }
    }
}
