//! Collecting what a host that ended in the middle of a store has left: extents and guests that no home page refers to.
//!
//! Every copy names the home page that may refer to it, from before the first moment at which one can. So an orphan is told
//! from a copy in use by a look at one page; and from a copy that is about to be published by this order:
//!
//! 1. *condemn* the copy, by compare-and-write where it lies;
//! 2. *bump* its home page: the same records under the next version. A store that was planned before now fails;
//! 3. *look* whether the home page refers to it;
//! 4. *free* it by its tag, or, if it is in use, take the mark off.
//!
//! A writer that plans from an image newer than its copy looks at the copy after it has read that image, and publishes only
//! one that is not condemned ([`Table::is_whole`]). Its image is either older than the bump, and its store fails or is seen by
//! the look; or younger, and then so is its own look, which finds the mark.
//!
//! *A damaged home* tells nothing: its copies are left alone until it is rebuilt. Only one that repair has cleared for that
//! (`cleared`) refers to nothing.
//!
//! *Late data.* A write of data that its host never heard of again may land at any time; nothing can be compared with it.
//! Collecting trusts that none lands after [`AGE_MIN`]: a target drops what it has not begun when the connection ends, which the
//! keep-alive timeout brings about within minutes. A pool where that does not hold loses, at worst, one replica of a value,
//! and its checksum shows it.

use std::time::Duration;

use pool::{HeapGroup, HeapPage, TablePage};

use super::inspect::LOOKS_MAX;
use super::orphans::Orphans;
use super::slots::{Answer, Change};
use super::stock::STOCK_TIME_MAX;
use super::{ATTEMPTS_MAX, PageImage, Table, TableError, bump};
use crate::page::{Claim, Draft, LOST, PlaceKind, Reference, Stored, UNBOUND};
use crate::types::OpId;

/// For how long a collector has seen that nobody refers to a copy before it takes it for left behind; until then it may be one of
/// a store under way. By its own clock, which goes on in suspension, as every host's does that uses such a copy no longer than
/// [`STOCK_TIME_MAX`]. Chosen: far beyond that, and beyond every time-out of a connection.
pub const AGE_MIN: Duration = Duration::from_secs(1800);
const _: () = assert!(AGE_MIN.as_secs() >= 3 * STOCK_TIME_MAX.as_secs());

/// What became of a copy that a collector has looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collected {
    /// It was an orphan: so many pages of the heap, or bytes of a table page, are free.
    Freed(usize),
    /// Its home page refers to it.
    InUse,
    /// It may belong to a store under way: nobody has looked at it for long enough.
    Young,
    /// Somebody else has freed it.
    Gone,
}

impl Table {
    /// The extents of a heap group: tag, and the claim of the first slot.
    pub async fn extents(&self, group: HeapGroup) -> Result<Vec<(u64, Claim)>, TableError> {
        let page = self.read_allocation(group).await?;
        let mut heads: Vec<(u64, Claim)> = Vec::new();
        for claim in page.slots().iter().filter(|claim| claim.tag != 0) {
            if heads.last().is_none_or(|(tag, _)| *tag != claim.tag) {
                heads.push((claim.tag, *claim));
            }
        }
        Ok(heads)
    }

    /// Frees the extent of `tag` in `group` if nobody refers to it, nor has since it was first seen so, `age_min` ago at least
    /// ([`AGE_MIN`], but in tests).
    pub async fn collect_extent(
        &self,
        group: HeapGroup,
        tag: u64,
        orphans: &Orphans,
        age_min: Duration,
    ) -> Result<Collected, TableError> {
        let collected = self.try_collect_extent(group, tag, orphans, age_min).await?;
        if collected != Collected::Young {
            orphans.forget(group, tag);
        }
        Ok(collected)
    }

    async fn try_collect_extent(
        &self,
        group: HeapGroup,
        tag: u64,
        orphans: &Orphans,
        age_min: Duration,
    ) -> Result<Collected, TableError> {
        let page = self.read_allocation(group).await?;
        let Some((slot, pages)) = page.run_of(tag) else { return Ok(Collected::Gone) };
        let claim = page.slots()[slot];
        let home = TablePage(claim.home);
        match claim.home {
            // It names no home: only a walk over all pages can tell ([`Table::free_set_aside`]).
            LOST => return Ok(Collected::InUse),
            UNBOUND if orphans.note(group, tag) < age_min => return Ok(Collected::Young),
            UNBOUND => {
                self.release(group, tag).await?;
                return Ok(Collected::Freed(pages));
            }
            _ => {}
        }
        let is_page = home.0 < self.layout.geometry.table_pages;
        if !is_page || !self.refers(home, tag).await? {
            if orphans.note(group, tag) < age_min {
                return Ok(Collected::Young);
            }
            if self.condemn(group, tag, true).await? == Answer::Nothing {
                return Ok(Collected::Gone);
            }
            if is_page {
                self.bump_home(home).await?;
            }
            if !is_page || !self.refers(home, tag).await? {
                let answer = self.change_group(group, Change::Collect { tag }).await?;
                self.heap_full.set(None);
                return Ok(if answer == Answer::Nothing { Collected::Gone } else { Collected::Freed(pages) });
            }
        }
        if claim.condemned || self.read_allocation(group).await?.slots()[slot].condemned {
            self.condemn(group, tag, false).await?;
        }
        Ok(Collected::InUse)
    }

    /// Frees guest `copy` of a key at home in `home`, which lies in `page`, if nobody refers to it. Guests bear no stamp;
    /// none is needed, since what is written to them is compared: a store that is disturbed places its value again.
    pub async fn collect_guest(&self, page: TablePage, copy: u64, home: TablePage) -> Result<Collected, TableError> {
        if home.0 < self.layout.geometry.table_pages && self.refers(home, copy).await? {
            return Ok(Collected::InUse);
        }
        if !self.condemn_guest(page, copy, home, true).await? {
            return Ok(Collected::Gone);
        }
        if home.0 < self.layout.geometry.table_pages {
            self.bump_home(home).await?;
            if self.refers(home, copy).await? {
                self.condemn_guest(page, copy, home, false).await?;
                return Ok(Collected::InUse);
            }
        }
        let image = self.read_page(page).await?;
        let bytes = self.decode_again(&image)?.guest(copy).map_or(0, |guest| guest.encoded_len());
        let freed = self.remove_guest(page, copy, home).await?;
        Ok(if freed { Collected::Freed(bytes) } else { Collected::Gone })
    }

    /// The guests that lie in a page: copy id and home of each.
    pub fn guests(&self, image: &PageImage) -> Result<Vec<(u64, TablePage)>, TableError> {
        Ok(self.decode_again(image)?.guests().map(|guest| (guest.copy, TablePage(guest.home))).collect())
    }

    async fn condemn(&self, group: HeapGroup, tag: u64, condemned: bool) -> Result<Answer, TableError> {
        self.change_group(group, Change::Condemn { tag, condemned }).await
    }

    /// Whether an entry at home in `home` refers to the copy of this tag. A cleared page refers to nothing.
    pub(super) async fn refers(&self, home: TablePage, tag: u64) -> Result<bool, TableError> {
        let mut before: Option<PageImage> = None;
        for _ in 0..LOOKS_MAX {
            let image = match self.read_page(home).await {
                Err(error @ TableError::Page { .. }) => {
                    let cleared = self.is_cleared(home, &self.read_raw(home).await?);
                    return if cleared { Ok(false) } else { Err(error) };
                }
                image => image?,
            };
            match self.refers_in(&image, tag).await {
                // An index that does not verify may have listed anything, but one of a value that was replaced meanwhile.
                Err(TableError::CopyDamaged { .. })
                    if before.replace(image.clone()).is_none_or(|before| before.bytes[..] != image.bytes[..]) => {}
                result => return result,
            }
        }
        Err(TableError::Contended)
    }

    async fn refers_in(&self, image: &PageImage, tag: u64) -> Result<bool, TableError> {
        for (reference, op) in self.references(image)? {
            if reference.copy == tag {
                return Ok(true);
            }
            if reference.kind == PlaceKind::Index {
                let parts = self.read_index(&reference, op).await?.ok_or(TableError::CopyDamaged { op })?;
                if parts.iter().any(|part| part.tag == tag) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Every copy that the entries at home in a page refer to.
    pub(super) fn references(&self, image: &PageImage) -> Result<Vec<(Reference, OpId)>, TableError> {
        let view = self.decode_again(image)?;
        let reference = |entry: crate::page::Entry<'_>| match entry.stored {
            Stored::Reference(_, reference) => Some((reference, entry.timestamp.op)),
            Stored::Inline(_) | Stored::Tombstone => None,
        };
        let bundled = image.bundles.entries(&view).into_iter().filter_map(|bundled| reference(bundled.entry));
        let bundles = view.forwards().map(|forward| (forward.reference, OpId::default()));
        Ok(view.entries().filter_map(reference).chain(bundled).chain(bundles).collect())
    }

    /// Replaces a page by itself under the next version; a cleared one by another cleared one. Whether it is cleared.
    pub(super) async fn bump_home(&self, page: TablePage) -> Result<bool, TableError> {
        let lock = self.locks.lock(u64::from(page.0)).await;
        for _ in 0..ATTEMPTS_MAX {
            let expected = self.read_raw(page).await?;
            let (new, cleared) = match self.decode(page, &expected) {
                Ok(view) => {
                    self.check_seal(page, view.header().seal)?;
                    (Draft::new(&view).encode().expect("invariant: a page's own records fit it").freeze(), false)
                }
                Err(_) if self.is_cleared(page, &expected) => (self.cleared(page), true),
                Err(error) => return Err(error),
            };
            lock.set_image(None);
            match self.replace(self.layout.table(page), expected, new).await {
                Ok(()) => return Ok(cleared),
                // Somebody else's write has bumped it just as well; but it may have been planned before the mark.
                Err(device::Error::CompareFailure) => bump(&self.stats.misses),
                Err(error) => return Err(error.into()),
            }
        }
        Err(TableError::Contended)
    }

    /// Whether a copy of this host's, not published yet, is where it was put, and no collector has marked it.
    pub(super) async fn is_whole(&self, home: TablePage, reference: &Reference, op: OpId) -> Result<bool, TableError> {
        let place = HeapPage(reference.place);
        match reference.kind {
            PlaceKind::Guest => self.guest_is_whole(home, reference).await,
            PlaceKind::Extent => self.extent_is_whole(place, reference.copy).await,
            PlaceKind::Index => {
                let Some(parts) = self.read_index(reference, op).await? else { return Ok(false) };
                for (place, tag) in parts.iter().map(|part| (part.place, part.tag)).chain([(place, reference.copy)]) {
                    if !self.extent_is_whole(place, tag).await? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    async fn extent_is_whole(&self, place: HeapPage, tag: u64) -> Result<bool, TableError> {
        let page = self.read_allocation(place.group()).await?;
        let slot = place.slot() as usize;
        Ok(page.owns(slot, tag) && !page.slots()[slot].condemned)
    }
}
