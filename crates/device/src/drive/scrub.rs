//! `scrub`: reads every block that was written and verifies it.
//!
//! It goes at the rate of its job, and waits for its turn with no lock in hand: a host that writes never waits for a pace. So an
//! extent may have left the map in which it was found when its turn comes: a host wrote, and snapshots alone have it now.
//!
//! Invariant: an extent that is mapped when the scrub begins, and still is when it ends, was verified. It is taken for seen when
//! all of it was read while it was where it had been found; until then it stands, in other maps, behind the scrub's place: an
//! extent gets into a second map only as that is made, at the same index, and maps are walked from the oldest to the youngest.
//! What is moved out of an extent that was not seen yet is not seen where it is then either: see `seen`.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::Buf;
use engine::job::Job;
use engine::task::LocalFuture;

use super::Drive;
use super::bytes::value;
use super::core::Inner;
use super::pages::{CHECKSUM_MIN, UNCORRECTABLE};
use super::registry::Shared;
use super::span::Span;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::range_lock::Mode;
use crate::{Error, Lba};

/// Damage listed; behind it only the count goes on. Guessed.
const DAMAGE_MAX: usize = 1000;
/// How often a place is looked at again whose extent was replaced while it was read: a host that replaces it for ever must not hold
/// the scrub up for ever. What is there then is younger than the scrub, or was moved there, out of an extent that a snapshot kept,
/// for the fourth time. Guessed.
const AGAIN_MAX: u32 = 3;
/// Extents passed over, as they were seen in other namespaces, before others of the thread have their turn. Chosen: well below a
/// millisecond; a drive of many snapshots has millions of them.
const PASSED_AT_ONCE: u64 = 1024;

/// A block that can't be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The namespace through which it was found; others may share it.
    pub namespace: String,
    /// The block.
    pub lba: Lba,
    /// What is wrong.
    pub what: String,
}

/// What a scrub has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrub {
    /// Bytes read and verified.
    pub bytes: u64,
    /// Blocks that do not match their checksum, or could not be read: the first thousand.
    pub damage: Vec<Damage>,
    /// How many there are.
    pub damaged: u64,
    /// Those that are marked uncorrectable, as somebody asked for or a copy found.
    pub uncorrectable: u64,
}

impl Scrub {
    fn damage(&mut self, shared: &Shared, lba: Lba, what: String, blocks: u64) {
        self.damaged += blocks;
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(Damage { namespace: shared.name.clone(), lba, what });
        }
    }

    /// All figures, to be gone back to.
    fn figures(&self) -> (u64, usize, u64, u64) {
        (self.bytes, self.damage.len(), self.damaged, self.uncorrectable)
    }

    /// Forgets what was found since: it will be found again, or is nobody's any more.
    fn back_to(&mut self, (bytes, listed, damaged, uncorrectable): (u64, usize, u64, u64)) {
        self.damage.truncate(listed);
        (self.bytes, self.damaged, self.uncorrectable) = (bytes, damaged, uncorrectable);
    }
}

/// The marks of a scrub, which end with it: see `seen`.
struct Marks<'a> {
    inner: &'a Inner,
    scrub: u64,
}

impl Drop for Marks<'_> {
    fn drop(&mut self) {
        self.inner.with(|core| core.state.seen.end(self.scrub));
    }
}

impl<'a> Marks<'a> {
    /// A scrub begins, and has seen nothing.
    fn new(inner: &'a Inner) -> Marks<'a> {
        let scrub = inner.with(|core| core.state.seen.begin(core.state.references.len()));
        Marks { inner, scrub }
    }

    /// The next extent in a namespace's map from index `next` on: where it is, its number, and whether it has been seen. It is
    /// marked: what takes its number while it is looked at takes the mark with it.
    fn next(&self, namespace: u32, next: u32) -> Option<(u32, u32, bool)> {
        self.inner.with(|core| {
            let (index, extent) = core.state.space(namespace).ok()?.map.range(next, u32::MAX).next()?;
            let seen = std::mem::replace(core.state.seen.mark(self.scrub, extent), true);
            Some((index, extent, seen))
        })
    }

    /// Whether it holds still what it held when it was marked. It may be where it was found and hold something else, freed and
    /// taken again between two pieces: of that a part alone was read, and whoever shares it since would find it without a mark, and
    /// tell of it a second time.
    fn holds(&self, extent: u32) -> bool {
        self.inner.with(|core| *core.state.seen.mark(self.scrub, extent))
    }

    /// It has not been seen after all.
    fn forget(&self, extent: u32) {
        self.inner.with(|core| *core.state.seen.mark(self.scrub, extent) = false);
    }
}

/// How a part of an extent was found.
enum Look {
    Verified,
    /// It is no longer in that extent.
    Moved,
    /// Some sector of it can't be read, and nothing of it is known: its blocks are to be read one by one.
    Unreadable,
}

/// A scrub that goes on.
struct Walk<'a> {
    job: &'a Job,
    found: &'a RefCell<Scrub>,
    /// Which extents it has verified.
    seen: Marks<'a>,
    /// How many it has verified; a number that was taken for something else since counts again.
    done: u64,
    /// How many there are to verify, as far as is known.
    total: u64,
    /// How often it has passed over one of them.
    passed: u64,
    /// Damaged blocks that whoever watches the drive was told of.
    told: u64,
}

impl Walk<'_> {
    /// Tells whoever watches the drive of what was found: what can't be read is no less lost than what does not match.
    fn tell(&mut self) {
        let damaged = self.found.borrow().damaged;
        self.seen.inner.mismatches.fetch_add(damaged - self.told, Ordering::Relaxed);
        self.told = damaged;
    }
}

/// Who ends it half-way is told of what it has found, too.
impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.tell();
    }
}

impl Drive {
    /// Reads and verifies every block that was written, each extent once, beside whatever else goes on.
    pub fn scrub<'a>(&'a self, job: &'a Job) -> LocalFuture<'a, Result<Scrub, Error>> {
        Box::pin(async move {
            let found = RefCell::default();
            self.scrub_into(job, &found).await?;
            Ok(found.into_inner())
        })
    }

    /// The same for who may drop it half-way: `found` is what it has found so far.
    pub fn scrub_into<'a>(&'a self, job: &'a Job, found: &'a RefCell<Scrub>) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let (seen, told) = (Marks::new(&self.inner), found.borrow().damaged);
            let mut walk = Walk { job, found, seen, done: 0, total: 0, passed: 0, told };
            job.begin("scrub");
            let mut after = 0;
            while let Some(number) =
                self.inner.with(|core| core.state.namespaces.range(after..).next().map(|(number, _)| *number))
            {
                if let Ok(shared) = self.shared(number) {
                    self.scrub_namespace(&shared, &mut walk).await?;
                }
                let Some(following) = number.checked_add(1) else { break };
                after = following;
            }
            Ok(())
        })
    }

    async fn scrub_namespace(&self, shared: &Arc<Shared>, walk: &mut Walk<'_>) -> Result<(), Error> {
        let (mut next, mut again) = (0, 0);
        // One at a time: the map may change between any two.
        while let Some((index, extent, seen)) = walk.seen.next(shared.number, next) {
            if seen {
                walk.passed += 1;
                if walk.passed.is_multiple_of(PASSED_AT_ONCE) {
                    engine::task::yield_now().await;
                }
            } else {
                let before = walk.found.borrow().figures();
                if self.scrub_extent(shared, (index, extent), walk).await? && walk.seen.holds(extent) {
                    walk.tell();
                    walk.done += 1;
                    walk.total = walk.total.max(self.inner.with(|core| core.state.used())).max(walk.done);
                    walk.job.reached(walk.done as f64 / walk.total as f64);
                } else {
                    walk.seen.forget(extent);
                    walk.found.borrow_mut().back_to(before);
                    again += 1;
                    if again <= AGAIN_MAX {
                        continue;
                    }
                }
            }
            again = 0;
            let Some(following) = index.checked_add(1) else { break };
            next = following;
        }
        Ok(())
    }

    /// Verifies an extent of a namespace. False: it was there no more before all of it was read.
    async fn scrub_extent(
        &self,
        shared: &Arc<Shared>,
        (index, extent): (u32, u32),
        walk: &Walk<'_>,
    ) -> Result<bool, Error> {
        let layout = &self.inner.layout;
        let extent_units = u64::from(layout.extent_units());
        let chunk = (TRANSFER_BYTES_MAX as u64 / u64::from(layout.unit)).min(extent_units);
        let block = u64::from(shared.block_size / layout.unit);
        for at in (0..extent_units).step_by(chunk as usize) {
            let first = u64::from(index) * extent_units + at;
            let mut look = self.scrub_chunk(shared, (first, chunk), extent, walk).await?;
            if matches!(look, Look::Unreadable) {
                for first in (first..first + chunk).step_by(block as usize) {
                    look = self.scrub_chunk(shared, (first, block), extent, walk).await?;
                    if matches!(look, Look::Moved) {
                        break;
                    }
                }
            }
            if matches!(look, Look::Moved) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Verifies `chunk` units of a namespace, all of them in one extent. One block is never `Unreadable`, but damaged.
    async fn scrub_chunk(
        &self,
        shared: &Arc<Shared>,
        (first, chunk): (u64, u64),
        extent: u32,
        Walk { job, found, .. }: &Walk<'_>,
    ) -> Result<Look, Error> {
        let layout = &self.inner.layout;
        let per_block = u64::from(shared.block_size / layout.unit);
        job.turn().await;
        // What was never written is looked at without waiting for anything.
        engine::task::yield_now().await;
        let _guard = shared.locks.lock(first / per_block, chunk / per_block, Mode::Shared).await;
        let mut span = Span::new(layout, first, chunk as u32);
        let mut values = Buf::with_len(chunk as usize * 8);
        let resolved = self.inner.resolve(shared.number, &mut span, &mut values).await;
        // From here on the lock keeps it there.
        let Some(piece) = span.pieces().next().filter(|piece| piece.extent == extent) else { return Ok(Look::Moved) };
        match resolved {
            Err(Error::ReadFault(what)) => {
                // Without their checksums the blocks can't be read, those that were never written among them.
                let what = format!("and those behind it have no checksums: {what}");
                found.borrow_mut().damage(shared, Lba(first / per_block), what, chunk / per_block);
                return Ok(Look::Verified);
            }
            result => result?,
        }
        // Namespaces have blocks, of one checksum or several: what is told and counted is blocks.
        let blocks = || (0..piece.units).step_by(per_block as usize).map(|at| at..at + per_block as u32);
        let state = |step: u32| value(&values, step as usize);
        let marked = blocks().filter(|block| block.clone().any(|step| state(step) == UNCORRECTABLE));
        let marked = marked.count() as u64;
        let written = (0..piece.units).filter(|&step| state(step) >= CHECKSUM_MIN).count() as u64;
        if written == 0 {
            found.borrow_mut().uncorrectable += marked;
            return Ok(Look::Verified);
        }
        let buf = Buf::with_len(piece.units as usize * layout.unit as usize);
        job.take(buf.len() as u64).await;
        let (result, content) = self.inner.file.read_at(layout.unit_at(piece.unit(layout.extent_units())), buf).await;
        if result.is_err() && chunk > per_block {
            return Ok(Look::Unreadable);
        }
        let mut found = found.borrow_mut();
        found.uncorrectable += marked;
        found.bytes += written * u64::from(layout.unit);
        let unit = |step: u32| &content[step as usize * layout.unit as usize..][..layout.unit as usize];
        let bad = |&step: &u32| {
            state(step) >= CHECKSUM_MIN
                && (result.is_err() || !self.inner.matches(&piece, step, state(step), unit(step)))
        };
        for block in blocks() {
            let Some(step) = block.clone().find(bad) else { continue };
            let what = match &result {
                Err(error) => error.to_string(),
                Ok(()) => "does not match its checksum".to_owned(),
            };
            found.damage(shared, Lba((first + u64::from(step)) / per_block), what, 1);
        }
        Ok(Look::Verified)
    }
}
