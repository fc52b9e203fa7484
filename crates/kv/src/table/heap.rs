//! The heap's space: runs of data pages, claimed and released by compare-and-write on their group's allocation page, under
//! a random tag that names one claim and no other. A claim is free again only when somebody who knows its tag says so.

use std::time::Duration;

use device::Namespace;
use engine::View;
use engine::time::Instant;
use pool::{HeapGroup, HeapPage, TablePage};

use super::leftover::Leftover;
use super::{ATTEMPTS_MAX, Table, TableError, bump, uncertain};
use crate::page::{AllocationPage, SLOTS};

/// How long a heap that had no room is believed to have none. Guessed: looking costs a read per group.
const FULL_BELIEVED: Duration = Duration::from_secs(1);

/// When a search of the whole heap found no run of so many pages.
#[derive(Clone, Copy)]
pub(super) struct HeapFull {
    pages: usize,
    seen: Instant,
}

impl<N: Namespace> Table<N> {
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
        for _ in 0..groups {
            let group = HeapGroup(self.group_next.get() % groups);
            match self.claim_in(group, home, pages, tag).await {
                Ok(Some(slot)) => return Ok(HeapPage::new(group, slot)),
                // A damaged group is passed over: what it holds stays readable, it gives nothing away.
                Ok(None) | Err(TableError::Allocation { .. }) => {}
                Err(error) => return Err(error),
            }
            // Whoever shares this hint may have moved it already.
            if self.group_next.get() % groups == group.0 {
                self.group_next.set((group.0 + 1) % groups);
            }
        }
        self.heap_full.set(Some(HeapFull { pages, seen: engine::time::now() }));
        Err(NO_ROOM)
    }

    async fn claim_in(
        &self,
        group: HeapGroup,
        home: TablePage,
        pages: usize,
        tag: u64,
    ) -> Result<Option<u32>, TableError> {
        let mut claimed = None;
        let change = |allocation: &mut AllocationPage| {
            let owned = (0..SLOTS).find(|&slot| allocation.owns(slot, tag));
            claimed = owned.or_else(|| allocation.find_run(pages));
            match (owned, claimed) {
                (None, Some(slot)) => {
                    allocation.claim(slot, pages, tag, home.0);
                    true
                }
                // An earlier attempt took effect after all, or there is no room.
                _ => false,
            }
        };
        let changed = self.change_group(group, change).await;
        if changed.as_ref().is_err_and(TableError::may_pass) {
            // The claim may have taken effect; nothing was written there, and nobody knows of it.
            self.keep(Leftover::Extent(group, tag));
        }
        changed?;
        Ok(claimed.map(|slot| slot as u32))
    }

    /// Rule 3: only what `tag` owns. Done also if it owns nothing here (any more).
    pub(super) async fn release(&self, group: HeapGroup, tag: u64) -> Result<(), TableError> {
        if group.0 >= self.layout.geometry.heap_groups {
            return Ok(());
        }
        self.change_group(group, |allocation| allocation.release(tag)).await?;
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

    /// Applies `change` to an allocation page, again on every newer image, until it is stored or says that there is nothing
    /// to do. Changes know their own tag, so one that took effect unnoticed is recognised. Whether it was stored.
    async fn change_group(
        &self,
        group: HeapGroup,
        mut change: impl FnMut(&mut AllocationPage) -> bool,
    ) -> Result<bool, TableError> {
        let lba = self.layout.allocation(group);
        let lock = self.group_locks.lock(u64::from(group.0)).await;
        let mut in_doubt = false;
        for _ in 0..ATTEMPTS_MAX {
            let expected: View = match lock.image() {
                Some(image) => image,
                None => self.read_at(lba, self.layout.page_bytes()).await?,
            };
            let decoded = AllocationPage::decode(&expected, group.0, self.incarnation);
            let mut allocation = decoded.map_err(|error| TableError::Allocation { group: group.0, error })?;
            if !change(&mut allocation) {
                return Ok(false);
            }
            let new = allocation.encode_next(self.layout.page_bytes()).freeze();
            lock.set_image(None);
            match self.replace(lba, expected, new.clone()).await {
                Ok(()) => {
                    lock.set_image(Some(new));
                    return Ok(true);
                }
                Err(device::Error::CompareFailure) => bump(&self.stats.misses),
                Err(error) if uncertain(&error) && !in_doubt => in_doubt = true,
                Err(error) => return Err(error.into()),
            }
        }
        Err(TableError::Contended)
    }
}
