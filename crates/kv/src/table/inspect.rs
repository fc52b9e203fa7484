//! What of a member's heap its pages refer to, and what follows: which allocation pages are damaged or contradict the
//! references, and how they are put right.
//!
//! A damaged allocation page is frozen: nobody claims or frees anything in its group, since nobody can decode it, and a change
//! that was planned before the damage fails at its compare. So its group's references only ever become fewer, but for
//! writers that had claimed an extent there and have not published it yet. The page is rebuilt, in one compare-and-write
//! from the damaged bytes to a salted page, with
//! - every extent that a page of this member refers to, under the reference's tag;
//! - every other data page as [`LOST`]: it may be free, an orphan, or about to be published. Given away it might be
//!   overwritten under a value that refers to it.
//!
//! A reference into a data page that its allocation page calls free (the medium has lost an acknowledged change) is claimed
//! again: the next writer would get it otherwise.

use std::collections::BTreeSet;
use std::time::Duration;

use device::Namespace;
use engine::View;
use pool::{HeapGroup, HeapPage, TablePage};

use super::collect::age;
use super::group::stamp_now;
use super::{ATTEMPTS_MAX, PageImage, Table, TableError, uncertain};
use crate::page::{AllocationPage, LOST, PageError, PlaceKind, Reference, SLOTS, Stored};
use crate::types::OpId;

/// Looks at a page whose index of extents vanishes under the eyes of a walk: another writer replaces the value.
const LOOKS_MAX: usize = 8;
/// References into free pages that are remembered by one walk; more are found by the next.
pub(crate) const MISSING_MAX: usize = 1024;
const WORD_BITS: usize = 64;
const GROUP_WORDS: usize = SLOTS.div_ceil(WORD_BITS);

/// An extent as a reference has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Owner {
    pub(crate) place: HeapPage,
    pub(crate) pages: usize,
    pub(crate) tag: u64,
    pub(crate) home: TablePage,
}

/// Which data pages of a member are referred to: one bit each.
pub(crate) struct Marks {
    bits: Vec<[u64; GROUP_WORDS]>,
    /// Groups whose owners are wanted by name.
    wanted: BTreeSet<u32>,
    /// The extents in them.
    owners: Vec<Owner>,
    /// Pages or indices that could not be read: what they refer to is not known.
    pub(crate) unread: u64,
    /// Extents that are referred to.
    pub(crate) extents: u64,
    /// Guests that are referred to, and guests there are.
    pub(crate) guests: (u64, u64),
    /// Bytes read.
    pub(crate) bytes: u64,
}

/// What the allocation pages say, beside what is referred to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct HeapState {
    /// Data pages that are claimed.
    pub(crate) claimed: u64,
    /// Claimed ones that nothing refers to: orphans, and what waits for its page.
    pub(crate) unreferenced: u64,
    /// Those of them that a rebuild has set aside.
    pub(crate) lost: u64,
    /// Groups with extents that are referred to and not claimed.
    pub(crate) missing: BTreeSet<u32>,
    /// Damaged allocation pages.
    pub(crate) damaged: Vec<(HeapGroup, TableError)>,
}

impl Marks {
    fn has(&self, group: HeapGroup, slot: usize) -> bool {
        self.bits[group.0 as usize][slot / WORD_BITS] >> (slot % WORD_BITS) & 1 == 1
    }

    fn add(&mut self, owner: Owner) {
        let (group, first) = (owner.place.group(), owner.place.slot() as usize);
        // A reference to nowhere covers nothing.
        let Some(words) = self.bits.get_mut(group.0 as usize) else { return };
        for slot in first..(first + owner.pages).min(SLOTS) {
            words[slot / WORD_BITS] |= 1 << (slot % WORD_BITS);
        }
        self.extents += 1;
        if self.wanted.contains(&group.0) {
            self.owners.push(owner);
        }
    }
}

impl<N: Namespace> Table<N> {
    /// Walks over all table pages and notes what they refer to; by name in the groups of `wanted`. `pace` is called with
    /// the bytes read so far, and may wait.
    pub(crate) async fn mark(
        &self,
        wanted: BTreeSet<u32>,
        mut pace: impl AsyncFnMut(u64, f64),
    ) -> Result<Marks, TableError> {
        let geometry = self.layout.geometry;
        let mut marks = Marks {
            bits: vec![[0; GROUP_WORDS]; geometry.heap_groups as usize],
            wanted,
            owners: Vec::new(),
            unread: 0,
            extents: 0,
            guests: (0, 0),
            bytes: 0,
        };
        let mut next = 0;
        while next < geometry.table_pages {
            let images = self.read_pages(TablePage(next)).await?;
            next += images.len() as u32;
            for image in images {
                match image {
                    Ok(image) => self.mark_page(image, &mut marks).await?,
                    Err(_) => marks.unread += 1,
                }
                marks.bytes += self.layout.page_bytes() as u64;
            }
            pace(marks.bytes, f64::from(next) / f64::from(geometry.table_pages)).await;
        }
        Ok(marks)
    }

    async fn mark_page(&self, mut image: PageImage, marks: &mut Marks) -> Result<(), TableError> {
        for _ in 0..LOOKS_MAX {
            let view = self.decode_again(&image)?;
            let home = image.page();
            let guests = view.guests().count() as u64;
            let (mut owners, mut referred, mut vanished) = (Vec::new(), 0, false);
            for entry in view.entries() {
                let Stored::Reference(_, reference) = entry.stored else { continue };
                match reference.kind {
                    PlaceKind::Guest => referred += 1,
                    PlaceKind::Extent | PlaceKind::Index => {
                        vanished |= !self.owners(home, &reference, entry.timestamp.op, &mut owners).await?;
                        marks.bytes += if reference.kind == PlaceKind::Index { reference.length.into() } else { 0 };
                    }
                }
            }
            if !vanished {
                owners.into_iter().for_each(|owner| marks.add(owner));
                marks.guests = (marks.guests.0 + referred, marks.guests.1 + guests);
                return Ok(());
            }
            // The index may belong to a value that has been replaced meanwhile; if it has not, it is damaged.
            let again = self.read_page(home).await?;
            if again.bytes[..] == image.bytes[..] {
                break;
            }
            image = again;
        }
        marks.unread += 1;
        Ok(())
    }

    /// The extents of a reference; whether all are known.
    async fn owners(
        &self,
        home: TablePage,
        reference: &Reference,
        op: OpId,
        owners: &mut Vec<Owner>,
    ) -> Result<bool, TableError> {
        let pages = |length: usize| length.div_ceil(self.layout.page_bytes()).max(1);
        let place = HeapPage(reference.place);
        owners.push(Owner { place, pages: pages(reference.length as usize), tag: reference.copy, home });
        if reference.kind != PlaceKind::Index {
            return Ok(true);
        }
        match self.read_index(reference, op).await {
            Ok(Some(parts)) => {
                let part = |part: &super::extent::Part| Owner {
                    place: part.place,
                    pages: pages(part.length as usize),
                    tag: part.tag,
                    home,
                };
                owners.extend(parts.iter().map(part));
                Ok(true)
            }
            Ok(None) | Err(TableError::Device(device::Error::ReadFault(_))) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Compares the allocation pages with what is referred to.
    pub(crate) async fn heap_state(&self, marks: &Marks) -> Result<HeapState, TableError> {
        let mut state = HeapState::default();
        for group in (0..self.layout.geometry.heap_groups).map(HeapGroup) {
            let allocation = match self.read_allocation(group).await {
                Ok(allocation) => allocation,
                Err(error @ (TableError::Allocation { .. } | TableError::Device(device::Error::ReadFault(_)))) => {
                    state.damaged.push((group, error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            for (slot, claim) in allocation.slots().iter().enumerate() {
                match (claim.tag != 0, marks.has(group, slot)) {
                    (true, marked) => {
                        state.claimed += 1;
                        state.unreferenced += u64::from(!marked);
                        state.lost += u64::from(!marked && claim.home == LOST);
                    }
                    (false, true) if state.missing.len() < MISSING_MAX => drop(state.missing.insert(group.0)),
                    (false, _) => {}
                }
            }
        }
        Ok(state)
    }

    /// The bytes of a damaged allocation page; `None` if it is good (again).
    pub(crate) async fn damaged_allocation(&self, group: HeapGroup) -> Result<Option<View>, TableError> {
        let bytes = self.read_at(self.layout.allocation(group), self.layout.page_bytes()).await?;
        match AllocationPage::decode(&bytes, group.0, self.incarnation) {
            Ok(_) => Ok(None),
            Err(error @ PageError::Newer(_)) => Err(TableError::Allocation { group: group.0, error }),
            Err(_) => Ok(Some(bytes)),
        }
    }

    /// Replaces the allocation page of `group`, whose bytes are `damaged`, from `marks`, which were taken after the damage
    /// was seen, of all pages, with the owners of this group.
    pub(crate) async fn rebuild_allocation(
        &self,
        group: HeapGroup,
        damaged: View,
        marks: &Marks,
    ) -> Result<(), TableError> {
        debug_assert!(marks.unread == 0 && marks.wanted.contains(&group.0));
        let mut allocation = AllocationPage::rebuild(group.0, self.incarnation, engine::task::random_u64());
        for owner in marks.owners.iter().filter(|owner| owner.place.group() == group) {
            claim_back(&mut allocation, owner);
        }
        for slot in 0..SLOTS {
            if allocation.slots()[slot].tag == 0 {
                allocation.claim(slot, 1, engine::task::random_u64().max(1), LOST, stamp_now());
            }
        }
        let lock = self.group_locks.lock(u64::from(group.0)).await;
        lock.set_image(None);
        let new = allocation.encode_next(self.layout.page_bytes()).freeze();
        Ok(self.replace(self.layout.allocation(group), damaged, new).await?)
    }

    /// Claims again, in `group`, what is referred to and called free. Returns the extents claimed.
    pub(crate) async fn claim_missing(&self, group: HeapGroup, marks: &Marks) -> Result<usize, TableError> {
        let change = |allocation: &mut AllocationPage| {
            let owners = marks.owners.iter().filter(|owner| owner.place.group() == group);
            owners.filter(|owner| claim_back(allocation, owner)).count()
        };
        self.correct(group, change).await
    }

    /// Tags of the pages of a group that a rebuild has set aside, at least `age_min` ago.
    pub(crate) async fn set_aside(&self, group: HeapGroup, age_min: Duration) -> Result<Vec<u64>, TableError> {
        let allocation = self.read_allocation(group).await?;
        let old = allocation.slots().iter().filter(|claim| claim.home == LOST && age(claim.stamp) >= age_min);
        Ok(old.map(|claim| claim.tag).collect())
    }

    /// Frees those of `tags` that `marks`, taken after they were found, do not refer to. Returns the pages freed.
    pub(crate) async fn free_set_aside(
        &self,
        group: HeapGroup,
        tags: &[u64],
        marks: &Marks,
    ) -> Result<usize, TableError> {
        debug_assert!(marks.unread == 0);
        let change = |allocation: &mut AllocationPage| {
            let slots = allocation.slots().iter().enumerate();
            let unused = slots.filter(|(slot, claim)| tags.contains(&claim.tag) && !marks.has(group, *slot));
            let unused: Vec<u64> = unused.map(|(_, claim)| claim.tag).collect();
            unused.into_iter().filter(|&tag| allocation.release(tag)).count()
        };
        self.correct(group, change).await
    }

    /// Applies `change`, again on every newer image, until it is stored or changes nothing. Returns how much it changed.
    async fn correct(
        &self,
        group: HeapGroup,
        change: impl Fn(&mut AllocationPage) -> usize,
    ) -> Result<usize, TableError> {
        let lba = self.layout.allocation(group);
        let lock = self.group_locks.lock(u64::from(group.0)).await;
        for _ in 0..ATTEMPTS_MAX {
            lock.set_image(None);
            let expected = self.read_at(lba, self.layout.page_bytes()).await?;
            let decoded = AllocationPage::decode(&expected, group.0, self.incarnation);
            let mut allocation = decoded.map_err(|error| TableError::Allocation { group: group.0, error })?;
            let changed = change(&mut allocation);
            if changed == 0 {
                return Ok(0);
            }
            let new = allocation.encode_next(self.layout.page_bytes()).freeze();
            match self.replace(lba, expected, new).await {
                Ok(()) => return Ok(changed),
                Err(device::Error::CompareFailure) => {}
                Err(error) if uncertain(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(TableError::Contended)
    }
}

/// Gives an extent that is referred to back to its owner, if all of it is free; whether it was.
fn claim_back(allocation: &mut AllocationPage, owner: &Owner) -> bool {
    let first = owner.place.slot() as usize;
    let free = allocation.slots().get(first..first + owner.pages);
    let free = free.is_some_and(|slots| slots.iter().all(|claim| claim.tag == 0));
    if free {
        allocation.claim(first, owner.pages, owner.tag, owner.home.0, stamp_now());
    }
    free
}
