//! The store over flash.
//!
//! Invariants:
//! - What was fetched counts only if the index, looked at with the slot held, has the same place, and the segment there still
//!   lives.
//! - An item that is replaced or removed unseen, by the remainder of its hash alone, may be another key's: it is gone then, which
//!   is a cache's right; it is never taken for the item of this key.

use device::Namespace;
use engine::Buf;

use super::cas::CasValues;
use super::{Apart, Held, Progress, Store};
use crate::flash::{Collection, Lookup, Place, Reason, Recovery, Tier};
use crate::hash::Hasher;
use crate::index::FlashPlace;
use crate::item::{Item, Key, NEVER, Seconds};
use crate::shard::{Located, Shard, Target};
use crate::slot::{Look, NoRoom, Slots};

/// Pieces that are reclaimed with one read of flash, at most, so that what is read may stay. Chosen: half a segment of short items.
const PIECES_MAX: usize = 16;

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

/// What a visit begins with.
enum Begin<'a> {
    Slot(Target, Option<Item<'a>>),
    Fetch(FlashPlace),
}

impl Store<()> {
    /// Takes items into the index that were found on flash after a restart, in the order of their age, before the store is used:
    /// what [`crate::flash::FlashLog::open`] asks of whom it tells. What there is no memory for is displaced like what is older.
    pub fn restore(&self, items: &[(u64, Place)], displaced: &mut Vec<Place>) {
        for &(hash, place) in items {
            // An insert may need a segment; without one the item goes.
            let _had = self.has_room(1);
            let restore = |shard: &mut Shard| shard.restore(hash, place.into(), &self.pool);
            displaced.extend(self.with_shard(self.cell(hash), restore).map(Place::from));
        }
    }

    /// The same store over flash, with what was restored from there.
    pub fn over<N: Send + Sync>(self, tier: Tier<N>, recovery: &Recovery) -> Store<Tier<N>> {
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
            flush_at: flush_at.0.into(),
            flushing: self.flushing,
            clock: self.clock,
            cas: Apart(CasValues::new(recovery.cas_reserved, &tier)),
            lower: tier,
        }
    }
}

impl<N: Namespace + Send + Sync> Store<Tier<N>> {
    /// Begins a collected segment's end: its items stay if they are popular, else they go; then it is given back.
    pub async fn collect(&self, collection: Collection<'_, N>) {
        for &listed in collection.items() {
            let (hash, place) = (listed.hash, FlashPlace::from(listed.place));
            let cell = self.cell(hash);
            if !self.with_shard(cell, |shard| shard.is_wanted(hash, place)) {
                continue;
            }
            let fetched = collection.fetch(listed).await;
            if fetched.is_some() {
                // Without room it is not taken, and goes.
                let _ = self.lower.log().room(Reason::Kept).await;
            }
            self.with_shard(cell, |shard| {
                shard.rehome(hash, place, || {
                    let fetched = fetched.as_ref().filter(|fetched| {
                        let expires = fetched.meta().expires;
                        expires == NEVER || expires > self.now()
                    })?;
                    let pieces: Vec<&[u8]> = fetched.value().iter().map(|piece| &**piece).collect();
                    let appended = self.lower.log().append(hash, fetched.key(), &fetched.meta(), &pieces, Reason::Kept);
                    appended.ok().map(FlashPlace::from)
                });
            });
        }
        collection.finish();
    }

    /// The flash tier.
    pub fn tier(&self) -> &Tier<N> {
        &self.lower
    }
}

impl<N: Namespace + Send + Sync> Slots for Store<Tier<N>> {
    type Place = OnFlash;
    type Fetched = Read;
    type Slot<'a>
        = Held<'a>
    where
        N: 'a;

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
                        if is_over || meta.cas.0 < self.cas_floor {
                            shard.drop_on_flash(at);
                            Begin::Slot(Target::Nothing, None)
                        } else {
                            Begin::Slot(Target::Flash(at), Some(Item { meta, value }))
                        }
                    }
                    // Another key's item stays where it is.
                    Lookup::Other => Begin::Slot(Target::Nothing, None),
                    Lookup::Found(_) | Lookup::Lost => {
                        shard.forget(at);
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
            if self.has_room(1) || !self.evicts() || self.reclaim() != Progress::Partly {
                break;
            }
            engine::task::yield_now().await;
        }
        let lookup = self.lower.log().read(place.place.into(), &place.key).await;
        Read { place: place.place, lookup }
    }

    async fn make_room(&self, no_room: NoRoom) -> Result<(), NoRoom> {
        self.room(no_room).await
    }

    fn chunks(&self, bytes: usize) -> Result<Vec<Buf>, NoRoom> {
        self.buffers(bytes)
    }

    fn flush(&self, at: Seconds, now: Seconds) {
        self.flush_all(at, now);
    }
}

#[cfg(test)]
#[path = "tiered_tests.rs"]
mod tests;
