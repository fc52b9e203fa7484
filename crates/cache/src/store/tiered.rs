//! The store over flash.
//!
//! Invariants:
//! - What was fetched counts only if the index, looked at with the slot held, has the same place, and the segment there still
//!   lives.
//! - An item that is replaced or removed unseen, by the remainder of its hash alone, may be another key's: it is gone then, which
//!   is a cache's right; it is never taken for the item of this key.

use std::time::Duration;

use engine::Buf;
use engine::task::LocalFuture;

use super::cas::CasValues;
use super::{Apart, Cell, Held, Lower as _, Progress, Store};
use crate::flash::{Collection, Lookup, Reason, Recovery, TakingAll, Tier};
use crate::hash::Hasher;
use crate::index::FlashPlace;
use crate::item::{Item, Key, NEVER, Seconds};
use crate::memory::{Budget, Kind};
use crate::shard::{Effort, Fate, FlashExit, Located, Target};
use crate::slot::{Look, NoRoom, Slots};

/// Pieces that are reclaimed with one read of flash, at most, so that what is read may stay. Chosen: half a segment of short items.
const PIECES_MAX: usize = 16;
/// Pieces that are reclaimed for a read of flash at most, before it is not made. Chosen: four segments of short items.
const HOLD_ROUNDS_MAX: usize = 128;
/// Items of a collected segment that are looked at before others on the thread have their turn.
const LOOKED_AT_ONCE: usize = 128;

/// Where on flash a key's item may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnFlash {
    place: FlashPlace,
    key: Box<[u8]>,
}

/// What was read there.
#[derive(Debug)]
pub struct Read {
    place: FlashPlace,
    lookup: Lookup,
}

/// Memory for what is being read.
struct Pending<'a> {
    budget: &'a Budget,
    bytes: usize,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.budget.give(Kind::Pending, self.bytes);
    }
}

/// What a visit begins with.
enum Begin<'a> {
    Slot(Target, Option<Item<'a>>),
    Fetch(FlashPlace),
}

impl Store<()> {
    /// The same store over flash, with what was restored from there.
    pub fn over(self, tier: Tier, recovery: &Recovery) -> Store<Tier> {
        let flush_at = match recovery.flush_at {
            0 => NEVER,
            unix => Seconds(unix.saturating_sub(tier.log().origin().0).clamp(1, u64::from(u32::MAX)) as u32),
        };
        Store {
            cells: self.cells,
            shift: self.shift,
            hasher: Hasher::new(tier.log().secret()),
            pool: self.pool,
            budget: self.budget,
            cas_floor: recovery.cas_floor,
            evict: self.evict,
            evicted: self.evicted,
            flush_at: flush_at.0.into(),
            flushing: self.flushing,
            flash_hangs_until: self.flash_hangs_until,
            clock: self.clock,
            cas: Apart(CasValues::new(recovery.cas_reserved, &tier)),
            lower: tier,
        }
    }
}

impl Store<Tier> {
    /// Forgets what was on flash, whose log has ended, so that its entries take no memory: shard by shard, each held while its
    /// index is made anew.
    pub fn forget_flash(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            for cell in &self.cells {
                self.with_shard(&cell.0, |shard| shard.forget_flash(&self.hasher, &self.pool));
                engine::task::yield_now().await;
            }
        })
    }

    /// Has all items leave memory for flash, before the log is closed. Somebody writes and collects meanwhile; where flash has
    /// ended they are gone. The oldest come first: of what is more than flash holds the newest stay.
    pub fn lower_all(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            let taking = TakingAll(&self.lower);
            let around = self.surroundings(&taking, true);
            let mut left: Vec<&Cell> = self.cells.iter().map(|cell| &cell.0).collect();
            while !left.is_empty() {
                // By turns: a restart then finds items of all shards, however many it finds.
                let mut busy = false;
                left.retain(|cell| match self.with_shard(cell, |shard| shard.reclaim(Effort::Empty, &around)) {
                    Progress::Freed | Progress::Partly => true,
                    Progress::Busy => {
                        busy = true;
                        true
                    }
                    Progress::Nothing => false,
                });
                if busy {
                    self.lower.room().await;
                }
                engine::task::yield_now().await;
            }
        })
    }

    /// Memory for `bytes` that are about to be read. It is not waited for: who has it may wait for others of the same command.
    async fn hold(&self, bytes: usize) -> Option<Pending<'_>> {
        let mut waited = Duration::ZERO;
        for _ in 0..HOLD_ROUNDS_MAX {
            self.pool.make_room(bytes);
            if self.budget.try_take(Kind::Pending, bytes).is_ok() {
                return Some(Pending { budget: &self.budget, bytes });
            }
            if self.reclaim(&mut waited).await == Progress::Nothing {
                break;
            }
            engine::task::yield_now().await;
        }
        None
    }

    /// Begins a collected segment's end: its items stay if they are popular, else they go; then it is given back.
    pub fn collect<'a>(&'a self, collection: Collection<'a>) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            for (number, &listed) in collection.items().iter().enumerate() {
                if number % LOOKED_AT_ONCE == 0 {
                    engine::task::yield_now().await;
                }
                let (hash, place) = (listed.hash, FlashPlace::from(listed.place));
                let cell = self.cell(hash);
                match self.with_shard(cell, |shard| shard.is_wanted(hash, place)) {
                    Fate::Stays => {}
                    Fate::Elsewhere => continue,
                    Fate::Gone => {
                        self.lower.admission().note_displaced(hash);
                        continue;
                    }
                }
                let fetched = collection.fetch(listed).await;
                if fetched.is_some() {
                    // Without room it is not taken, and goes.
                    let _ = self.lower.log().room(Reason::Kept).await;
                }
                let is_gone = self.with_shard(cell, |shard| {
                    shard.rehome(hash, place, || {
                        let fetched = fetched.as_ref().ok_or(FlashExit::Unreadable)?;
                        let expires = fetched.meta().expires;
                        if expires != NEVER && expires <= self.now() {
                            return Err(FlashExit::CollectedExpired);
                        }
                        let pieces: Vec<&[u8]> = fetched.value().iter().map(|piece| &**piece).collect();
                        let appended =
                            self.lower.log().append(hash, fetched.key(), &fetched.meta(), &pieces, Reason::Kept);
                        appended.map(FlashPlace::from).map_err(FlashExit::from)
                    })
                });
                if is_gone {
                    self.lower.admission().note_displaced(hash);
                }
            }
            collection.finish();
        })
    }
}

impl Slots for Store<Tier> {
    type Place = OnFlash;
    type Fetched = Read;
    type Slot<'a> = Held<'a>;

    fn visit<R>(
        &self,
        key: &Key<'_>,
        now: Seconds,
        look: Look<Read>,
        visit: impl FnOnce(&mut Held<'_>) -> R,
    ) -> Result<R, OnFlash> {
        self.arrive(now);
        if !matches!(look, Look::Fetched(_)) {
            self.lower.admission().note(key.hash());
        }
        self.with_shard(self.cell(key.hash()), |shard| {
            let begin = match (shard.locate(key, now, &self.pool), &look) {
                (Located::Nowhere, _) => Begin::Slot(Target::Nothing, None),
                (Located::Memory(found), _) => Begin::Slot(Target::Memory(found), None),
                (Located::Flash(at), Look::Unseen) => Begin::Slot(Target::Flash(at), None),
                (Located::Flash(at), Look::Fetched(read)) if read.place == at.place => match &read.lookup {
                    Lookup::Found(fetched) if self.lower.log().is_current(fetched) => {
                        let (meta, value) = (fetched.meta(), fetched.as_value());
                        let is_over = meta.expires != NEVER && meta.expires <= now;
                        if meta.cas.0 < self.cas_floor {
                            shard.lose_on_flash(at, FlashExit::Flushed);
                            Begin::Slot(Target::Nothing, None)
                        } else if is_over {
                            shard.expire_on_flash(at);
                            Begin::Slot(Target::Nothing, None)
                        } else {
                            Begin::Slot(Target::Flash(at), Some(Item { meta, value }))
                        }
                    }
                    // Another key's item stays where it is until one of this key takes its entry: that no item of this key was
                    // found there is what a medium says that may lie this once. So does one that was not read.
                    Lookup::Other | Lookup::Unread => Begin::Slot(Target::Flash(at), None),
                    // The same place may have been given anew since it was read: whatever is there now is invalidated too.
                    Lookup::Found(_) | Lookup::Lost => {
                        shard.lose_on_flash(at, FlashExit::Lost);
                        Begin::Slot(Target::Nothing, None)
                    }
                },
                (Located::Flash(at), _) => Begin::Fetch(at.place),
            };
            match begin {
                Begin::Slot(target, fetched) => Ok(visit(&mut Held::new(self, shard, *key, now, target, fetched))),
                Begin::Fetch(place) => Err(OnFlash { place, key: key.bytes().into() }),
            }
        })
    }

    async fn fetch(&self, place: OnFlash) -> Read {
        // Room in memory for what is read, if it is to come there: a visit makes none.
        for _ in 0..PIECES_MAX {
            if self.has_room(1) || !self.evicts() || self.reclaim_piece(true) != Progress::Partly {
                break;
            }
            engine::task::yield_now().await;
        }
        let bytes = self.lower.log().read_bytes(place.place.into());
        let Some(pending) = self.hold(bytes).await else {
            return Read { place: place.place, lookup: Lookup::Unread };
        };
        let lookup = self.lower.log().read(place.place.into(), &place.key).await;
        // What was read counts for itself, as buffers do.
        drop(pending);
        Read { place: place.place, lookup }
    }

    async fn make_room(&self, no_room: NoRoom) -> Result<(), NoRoom> {
        self.room(no_room).await
    }

    fn chunks(&self, bytes: usize) -> Result<Vec<Buf>, NoRoom> {
        self.buffers(bytes)
    }

    fn chunk(&self, bytes: usize, of: usize) -> Result<Buf, NoRoom> {
        self.buffer(bytes, of)
    }

    fn may_hold(&self, bytes: usize) -> bool {
        self.budget.may_hold(bytes)
    }

    fn flush(&self, at: Seconds, now: Seconds) {
        self.flush_all(at, now);
    }
}

#[cfg(test)]
#[path = "reasons_tests.rs"]
mod reasons_tests;
#[cfg(test)]
#[path = "tiered_tests.rs"]
mod tests;
