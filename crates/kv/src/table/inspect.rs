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
//! again: the next writer would get it otherwise. Traffic does not look like that, in this order of looks: an extent that a
//! page refers to is free, and *after that* the page still refers to it. In a sound heap an extent becomes free only after
//! its last reference has gone, and no tag ever comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::View;
use pool::{HeapGroup, HeapPage, TablePage};

use super::group::stamp_now;
use super::orphans::Orphans;
use super::slots::{Answer, Change};
use super::{ATTEMPTS_MAX, PageImage, Table, TableError, uncertain};
use crate::page::{
    AllocationPage, CHECKSUM_BYTE, Identity, Kind, LOST, PageError, PlaceKind, Reference, SLOTS, is_left_of,
};
use crate::types::OpId;

/// Looks at a page whose index of extents vanishes under the eyes of a walk: another writer replaces the value.
pub(super) const LOOKS_MAX: usize = 8;
/// References into free pages that are remembered by one walk; more are counted, and seen to by the next. Chosen: 2 MiB.
const MISSING_MAX: usize = 65_536;
/// Damaged allocation pages that are seen to by one walk, likewise. Derived: with all their owners they take 12 MiB.
const DAMAGED_MAX: usize = 1024;
const WORD_BITS: usize = 64;

/// One bit for each data page of a group.
type Bits = [u64; SLOTS.div_ceil(WORD_BITS)];

fn has(bits: &Bits, slot: usize) -> bool {
    bits[slot / WORD_BITS] >> (slot % WORD_BITS) & 1 == 1
}

fn set(bits: &mut Bits, slot: usize) {
    bits[slot / WORD_BITS] |= 1 << (slot % WORD_BITS);
}

/// Bits of `one` that `other` lacks.
fn lacking(one: &Bits, other: &Bits) -> u64 {
    one.iter().zip(other).map(|(one, other)| u64::from((one & !other).count_ones())).sum()
}

/// An extent as a reference has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Owner {
    pub(crate) place: HeapPage,
    pub(crate) pages: usize,
    pub(crate) tag: u64,
    pub(crate) home: TablePage,
}

/// What the allocation pages of a member said, before its table pages were walked over.
#[derive(Default)]
pub(crate) struct Heap {
    claimed: Vec<Bits>,
    /// Claimed by a rebuild ([`LOST`]), in the groups that have any.
    set_aside: BTreeMap<u32, Bits>,
    /// The first damaged allocation pages.
    pub(crate) damaged: Vec<(HeapGroup, TableError)>,
    /// Further ones.
    pub(crate) damaged_more: u64,
}

/// Which data pages of a member are referred to, and what follows for its heap.
pub(crate) struct Marks {
    bits: Vec<Bits>,
    /// What is referred to is held against this.
    heap: Heap,
    /// Groups that are damaged: what is referred to in them is noted by name.
    damaged: BTreeSet<u32>,
    /// The extents in them.
    owners: Vec<Owner>,
    /// The first extents that are referred to and not claimed.
    pub(crate) missing: Vec<Owner>,
    /// Further ones.
    pub(crate) missing_more: u64,
    /// Pages or indices that could not be read: what they refer to is not known.
    pub(crate) unread: u64,
    /// Of those the pages that repair has cleared.
    cleared: Vec<TablePage>,
    /// Extents that are referred to.
    pub(crate) extents: u64,
    /// Guests that are referred to, and guests there are.
    pub(crate) guests: (u64, u64),
}

/// How many data pages are claimed, and what of them nothing refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) pages: u64,
    /// Orphans, and what waits for its page or was unlinked during the walk.
    pub(crate) unreferenced: u64,
    /// Those of them that a rebuild has set aside.
    pub(crate) lost: u64,
}

impl Marks {
    fn new(groups: u32, heap: Heap) -> Marks {
        Marks {
            bits: vec![Bits::default(); groups as usize],
            damaged: heap.damaged.iter().map(|(group, _)| group.0).collect(),
            heap,
            owners: Vec::new(),
            missing: Vec::new(),
            missing_more: 0,
            unread: 0,
            cleared: Vec::new(),
            extents: 0,
            guests: (0, 0),
        }
    }

    fn add(&mut self, owner: Owner) {
        let (group, first) = (owner.place.group(), owner.place.slot() as usize);
        // A reference to nowhere covers nothing.
        let Some(bits) = self.bits.get_mut(group.0 as usize) else { return };
        (first..(first + owner.pages).min(SLOTS)).for_each(|slot| set(bits, slot));
        self.extents += 1;
        if self.damaged.contains(&group.0) {
            self.owners.push(owner);
        }
    }

    /// Whether some of an extent was free when the walk began, or when its group was last looked at.
    fn seemed_free(&self, owner: &Owner) -> bool {
        let (group, first) = (owner.place.group().0, owner.place.slot() as usize);
        let claimed = self.heap.claimed.get(group as usize).filter(|_| !self.damaged.contains(&group));
        claimed.is_some_and(|claimed| (first..(first + owner.pages).min(SLOTS)).any(|slot| !has(claimed, slot)))
    }

    /// What is claimed, beside what is referred to.
    pub(crate) fn claimed(&self) -> Claimed {
        let mut found = Claimed::default();
        for (claimed, marked) in self.heap.claimed.iter().zip(&self.bits) {
            found.pages += claimed.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            found.unreferenced += lacking(claimed, marked);
        }
        let lost = |(group, set_aside): (&u32, &Bits)| lacking(set_aside, &self.bits[*group as usize]);
        found.lost = self.heap.set_aside.iter().map(lost).sum();
        found
    }

    /// The damaged allocation pages, and how many there are beyond these.
    pub(crate) fn damaged(&self) -> (&[(HeapGroup, TableError)], u64) {
        (&self.heap.damaged, self.heap.damaged_more)
    }
}

impl Table {
    /// Reads all allocation pages. `pace` is called before each command with the bytes that it reads and the share that is
    /// done, and may wait.
    pub(crate) async fn heap(&self, pace: impl AsyncFn(u64, f64)) -> Result<Heap, TableError> {
        let groups = self.layout.geometry.heap_groups;
        let mut heap = Heap { claimed: vec![Bits::default(); groups as usize], ..Heap::default() };
        for group in (0..groups).map(HeapGroup) {
            pace(self.layout.page_bytes() as u64, f64::from(group.0) / f64::from(groups)).await;
            match self.read_allocation(group).await {
                Ok(allocation) => heap.note(group, &allocation),
                Err(error) if error.group_is_damaged() => {
                    if heap.damaged.len() < DAMAGED_MAX {
                        heap.damaged.push((group, error));
                    } else {
                        heap.damaged_more += 1;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(heap)
    }

    /// Walks over all table pages and notes what they refer to, against `heap`, which was read before (`None`: the
    /// references alone are wanted). `pace` as for [`Table::heap`].
    pub(crate) async fn mark(&self, heap: Option<Heap>, pace: impl AsyncFn(u64, f64)) -> Result<Marks, TableError> {
        let geometry = self.layout.geometry;
        let mut marks = Marks::new(geometry.heap_groups, heap.unwrap_or_default());
        let mut next = 0;
        while next < geometry.table_pages {
            let done = f64::from(next) / f64::from(geometry.table_pages);
            let pace = async |bytes: usize| pace(bytes as u64, done).await;
            pace(self.pages_per_read().min(geometry.table_pages - next) as usize * self.layout.page_bytes()).await;
            let images = self.read_pages(TablePage(next)).await?;
            for (page, image) in (next..).map(TablePage).zip(&images) {
                match image {
                    Ok(image) => self.mark_page(image.clone(), &mut marks, &pace).await?,
                    Err(_) => {
                        marks.unread += 1;
                        if self.read_raw(page).await.is_ok_and(|bytes| self.is_cleared(page, &bytes)) {
                            marks.cleared.push(page);
                        }
                    }
                }
            }
            next += images.len() as u32;
        }
        Ok(marks)
    }

    /// Sees to it that the pages that were found cleared refer to nothing, and never will to what was claimed before (`cleared`):
    /// then they need not have been read.
    pub(crate) async fn settle_cleared(&self, marks: &mut Marks) -> Result<(), TableError> {
        for page in std::mem::take(&mut marks.cleared) {
            // One that was put right meanwhile has not been read.
            marks.unread -= u64::from(self.bump_home(page).await?);
        }
        Ok(())
    }

    async fn mark_page(
        &self,
        mut image: PageImage,
        marks: &mut Marks,
        pace: &impl AsyncFn(usize),
    ) -> Result<(), TableError> {
        for _ in 0..LOOKS_MAX {
            let view = self.decode_again(&image)?;
            let home = image.page();
            let guests = view.guests().count() as u64;
            let (mut owners, mut referred, mut vanished) = (Vec::new(), 0, false);
            for (reference, op) in self.references(&image)? {
                match reference.kind {
                    PlaceKind::Guest => referred += 1,
                    PlaceKind::Extent | PlaceKind::Index => {
                        if reference.kind == PlaceKind::Index {
                            pace(reference.length as usize).await;
                        }
                        vanished |= !self.owners(home, &reference, op, &mut owners).await?;
                    }
                }
            }
            if !vanished {
                for owner in owners {
                    marks.add(owner);
                    if !marks.seemed_free(&owner) {
                        continue;
                    }
                    pace(self.layout.page_bytes()).await;
                    if self.is_missing(&owner, marks).await? {
                        if marks.missing.len() < MISSING_MAX {
                            marks.missing.push(owner);
                        } else {
                            marks.missing_more += 1;
                        }
                    }
                }
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

    /// Whether an extent that a page was seen to refer to is not claimed, and the page still refers to it.
    async fn is_missing(&self, owner: &Owner, marks: &mut Marks) -> Result<bool, TableError> {
        let group = owner.place.group();
        let allocation = match self.read_allocation(group).await {
            Ok(allocation) => allocation,
            // Damaged since the walk began: the next one sees to it.
            Err(error) if error.group_is_damaged() => return Ok(false),
            Err(error) => return Err(error),
        };
        marks.heap.note(group, &allocation);
        let first = owner.place.slot() as usize;
        let some_free = allocation.slots().iter().skip(first).take(owner.pages).any(|claim| claim.tag == 0);
        Ok(some_free && self.still_refers(owner).await?)
    }

    /// Whether the home page of an extent refers to it; not if that can't be known, which a walk counts elsewhere.
    async fn still_refers(&self, owner: &Owner) -> Result<bool, TableError> {
        match self.refers(owner.home, owner.tag).await {
            Err(
                TableError::Page { .. }
                | TableError::CopyDamaged { .. }
                | TableError::Device(device::Error::ReadFault(_)),
            ) => Ok(false),
            result => result,
        }
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

    /// Makes a damaged allocation page known from its next loss: where its bytes are none that were ever written there, they may
    /// come again, and others that are damaged, too, take their place. Returns what is there then, unless somebody else was faster.
    pub(crate) async fn clear_allocation(&self, group: HeapGroup, damaged: View) -> Result<View, TableError> {
        let identity = Identity { kind: Kind::Allocation, page: group.0, incarnation: self.incarnation };
        let decoded = AllocationPage::decode(&damaged, group.0, self.incarnation);
        if is_left_of(&damaged, identity) || matches!(decoded, Err(PageError::Incarnation { .. })) {
            return Ok(damaged);
        }
        let cleared = AllocationPage::rebuild(group.0, self.incarnation, engine::task::random_u64());
        let mut cleared = cleared.encode_next(self.layout.page_bytes());
        cleared[CHECKSUM_BYTE] ^= 0xff;
        let (cleared, lock) = (cleared.freeze(), self.group_locks.lock(u64::from(group.0)).await);
        lock.set_image(None);
        match self.replace(self.layout.allocation(group), damaged.clone(), cleared.clone()).await {
            Ok(()) => Ok(cleared),
            Err(device::Error::CompareFailure) => Ok(damaged),
            Err(error) => Err(error.into()),
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
        debug_assert!(marks.unread == 0 && marks.damaged.contains(&group.0));
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

    /// Claims again what `owners` of `group` refer to though it is free. Returns the extents claimed.
    pub(crate) async fn claim_missing(&self, group: HeapGroup, owners: &[Owner]) -> Result<usize, TableError> {
        let change =
            |allocation: &mut AllocationPage| owners.iter().filter(|owner| claim_back(allocation, owner)).count();
        let mut claimed = self.correct(group, change).await?;
        for owner in owners {
            // Replaced meanwhile: whoever did that had nothing to free.
            if matches!(self.refers(owner.home, owner.tag).await, Ok(false)) {
                let freed = self.change_group(group, Change::Release { tag: owner.tag, doubted: false }).await?
                    != Answer::Nothing;
                claimed -= usize::from(freed && claimed > 0);
            }
        }
        Ok(claimed)
    }

    /// Tags of the pages of a group that a rebuild has set aside, and that were first seen at least `age_min` ago.
    pub(crate) async fn set_aside(
        &self,
        group: HeapGroup,
        orphans: &Orphans,
        age_min: Duration,
    ) -> Result<Vec<u64>, TableError> {
        let allocation = self.read_allocation(group).await?;
        let set_aside = allocation.slots().iter().filter(|claim| claim.home == LOST);
        let old = set_aside.filter(|claim| orphans.note(group, claim.tag) >= age_min);
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
            let unused =
                slots.filter(|(slot, claim)| tags.contains(&claim.tag) && !has(&marks.bits[group.0 as usize], *slot));
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

impl Heap {
    /// What a group is now.
    fn note(&mut self, group: HeapGroup, allocation: &AllocationPage) {
        let Some(claimed) = self.claimed.get_mut(group.0 as usize) else { return };
        for (slot, claim) in allocation.slots().iter().enumerate().filter(|(_, claim)| claim.tag != 0) {
            set(claimed, slot);
            if claim.home == LOST {
                set(self.set_aside.entry(group.0).or_default(), slot);
            }
        }
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
