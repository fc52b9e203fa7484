//! Items on flash, as the index of a shard knows them.
//!
//! Invariants:
//! - Of equal remainder there is one entry of an item on flash at most: whoever asks has one place to read.
//! - A place that leaves index and header for another reason than that its segment is collected is in `stale` before the
//!   shard is let go, and is invalidated then: before anybody is told of what caused it.
//! - What has a copy on flash is unchanged since it was read there.

use crate::hash::Hasher;
use crate::index::{Entry, FlashPlace, Index, Location, Position, Spot};
use crate::item::{Item, Key, NewValue, Seconds, Value};
use crate::memory::Pool;
use crate::slot::NoRoom;

use super::{Dropped, FlashExit, Found, HEADER_BYTES, New, Shard, Target, header::Header, log::Log};

/// An entry of an item on flash, which may be another key's, until the shard is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnFlash {
    pub(super) spot: Spot,
    pub(crate) place: FlashPlace,
    pub(super) popularity: u8,
}

/// What the index says of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Located {
    Nowhere,
    Memory(Found),
    Flash(OnFlash),
}

/// What is to become of an item whose segment is collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It is popular.
    Stays,
    /// It was not there any more, or is in memory too.
    Elsewhere,
    /// It is gone now.
    Gone,
}

/// What came of an item that was found on flash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Restored {
    /// The index leads there.
    There,
    /// It does, and no longer to an older one.
    Instead(FlashPlace),
    /// It does not: there is no memory for the entry.
    NoRoom,
}

fn is_on_flash(entry: Entry) -> bool {
    matches!(entry.location(), Location::Flash(..))
}

impl Shard {
    /// Where the item of a key is, or may be.
    pub(crate) fn locate(&mut self, key: &Key<'_>, now: Seconds, pool: &Pool) -> Located {
        if let Some(found) = self.find(key, now, pool) {
            return Located::Memory(found);
        }
        match self.index.find(key.hash(), is_on_flash).map(|(spot, entry)| (spot, entry.location())) {
            Some((spot, Location::Flash(place, popularity))) => Located::Flash(OnFlash { spot, place, popularity }),
            _ => Located::Nowhere,
        }
    }

    /// An item on flash was hit; the answer is whether it was so before.
    pub(crate) fn raise(&mut self, at: &mut OnFlash) -> bool {
        let before = at.popularity;
        self.counters.flash_hits += 1;
        at.popularity = super::raised(before);
        self.index.replace(at.spot, Location::Flash(at.place, at.popularity));
        before > 0
    }

    /// Copies an item from flash to memory, where it is from now on; flash keeps its copy.
    pub(crate) fn promote(&mut self, key: &Key<'_>, at: OnFlash, item: Item<'_>, pool: &Pool) -> Result<Found, NoRoom> {
        let Item { meta, value } = item;
        let copy = Some(at.place);
        let put = |shard: &mut Shard, value| {
            let new = New { meta, value, copy };
            shard.put(key, Target::Flash(at), new, pool, || meta.cas).map(|(found, _)| found)
        };
        let found = match value {
            Value::Whole(bytes) => put(self, NewValue::Pieces(&[bytes])),
            Value::Chunks(chunks) => put(self, NewValue::Chunks(chunks.to_vec())),
        }?;
        self.counters.stored -= 1;
        self.counters.promoted += 1;
        Ok(found)
    }

    /// An entry of an item on flash goes, and the item with it.
    pub(crate) fn drop_on_flash(&mut self, at: OnFlash) {
        self.index.remove(at.spot);
        self.note_stale(at.place);
    }

    /// The same where nobody has asked for that.
    pub(crate) fn lose_on_flash(&mut self, at: OnFlash, why: FlashExit) {
        self.counters.left_flash[why as usize] += 1;
        self.drop_on_flash(at);
    }

    /// It was found there, and had expired.
    pub(crate) fn expire_on_flash(&mut self, at: OnFlash) {
        self.had_expired = true;
        self.lose_on_flash(at, FlashExit::Expired);
    }

    pub(super) fn note_stale(&mut self, place: FlashPlace) {
        self.changed = true;
        self.stale.push(place);
    }

    /// An item is about to be changed, or goes: its copy on flash is not it any more.
    pub(super) fn spoil_copy(&mut self, header: &mut Header) {
        if let Some(place) = header.copy.take() {
            self.note_stale(place);
        }
    }

    /// An item in memory leaves for `place`. Another one on flash whose remainder is the same goes.
    pub(super) fn lower(&mut self, hash: u64, found: Found, place: FlashPlace, popularity: u8) {
        let mut spot = found.spot;
        if let Some((other, entry)) = self.index.find(hash, is_on_flash) {
            if let Location::Flash(place, _) = entry.location() {
                self.note_stale(place);
            }
            self.index.remove(other);
            self.counters.left_flash[FlashExit::SameHash as usize] += 1;
            let in_memory = |entry: Entry| entry.location() == Location::Memory(found.position);
            let Some((moved, _)) = self.index.find(hash, in_memory) else {
                debug_assert!(false, "what was in the index still is");
                return self.note_stale(place);
            };
            spot = moved;
        }
        self.index.replace(spot, Location::Flash(place, popularity));
        self.counters.lowered += 1;
    }

    /// The item that is at `place`, or has its copy there.
    fn whose(&self, hash: u64, place: FlashPlace) -> Option<(Spot, Entry)> {
        self.index.find(hash, |entry| match entry.location() {
            Location::Memory(position) => self.log.header(position).copy == Some(place),
            Location::Flash(there, _) => there == place,
        })
    }

    /// The copy of an item in memory is not there any more.
    fn forget_copy(&mut self, position: Position) {
        let mut header = self.log.header(position);
        header.copy = None;
        header.write(self.log.header_bytes_mut(position));
    }

    /// The segment of `place` is collected. Whether the item there should be kept; if not, it is gone.
    pub(crate) fn is_wanted(&mut self, hash: u64, place: FlashPlace) -> Fate {
        let Some((spot, entry)) = self.whose(hash, place) else { return Fate::Elsewhere };
        match entry.location() {
            Location::Memory(position) => {
                self.forget_copy(position);
                Fate::Elsewhere
            }
            Location::Flash(_, 0) => {
                self.collected(spot, FlashExit::Unpopular);
                Fate::Gone
            }
            Location::Flash(..) => Fate::Stays,
        }
    }

    /// An item goes with its segment.
    fn collected(&mut self, spot: Spot, why: FlashExit) {
        self.index.remove(spot);
        self.counters.collected += 1;
        self.counters.left_flash[why as usize] += 1;
    }

    /// Moves an item that is wanted: `append` is called if the index still has it at `place`, and says where it is then. Without
    /// a place it is gone, which is the answer. One that was promoted meanwhile has no copy any more.
    pub(crate) fn rehome(
        &mut self,
        hash: u64,
        place: FlashPlace,
        append: impl FnOnce() -> Result<FlashPlace, FlashExit>,
    ) -> bool {
        let Some((spot, entry)) = self.whose(hash, place) else { return false };
        let popularity = match entry.location() {
            Location::Memory(position) => {
                self.forget_copy(position);
                return false;
            }
            Location::Flash(_, popularity) => popularity,
        };
        match append() {
            Ok(new) => self.index.replace(spot, Location::Flash(new, popularity.saturating_sub(1))),
            Err(why) => {
                self.collected(spot, why);
                return true;
            }
        }
        false
    }

    /// What is on flash is not there any more: the index leads to items in memory alone from then on. The log has ended, so that
    /// nobody has to be told.
    pub(crate) fn forget_flash(&mut self, hasher: &Hasher, pool: &Pool) {
        self.changed = true;
        let mut on_flash = self.index.len() as u64;
        self.index.clear(pool);
        let mut next = self.log.next(0, 0, 0);
        while let Some((place, number, offset)) = next {
            let position = Log::position(place, offset);
            let header = self.log.header(position);
            next = self.log.next(place, number, offset + header.extent);
            if header.dead {
                continue;
            }
            on_flash = on_flash.saturating_sub(1);
            if header.copy.is_some() {
                self.forget_copy(position);
            }
            let key = &self.log.bytes(position)[HEADER_BYTES..][..header.key_length];
            let hash = hasher.hash(key);
            // The memory was there a moment ago; without it the item goes.
            let entered = self.index.insert(hash, Location::Memory(position), pool);
            if entered.is_err() {
                self.counters.evicted += 1;
                self.counters.dropped[Dropped::IndexFull as usize] += 1;
                self.release(position, &Header { copy: None, ..header }, pool);
            }
        }
        self.counters.left_flash[FlashExit::FlashEnded as usize] += on_flash;
    }

    /// Takes the index that was made of what was found on flash; there was none before.
    pub(crate) fn adopt(&mut self, index: Index, pool: &Pool) {
        debug_assert!(self.index.is_empty());
        self.changed = true;
        std::mem::replace(&mut self.index, index).give(pool);
    }

    /// An item was found on flash after a restart; items are told in the order of their age. The index does not grow where it
    /// `is_crowded`.
    pub(crate) fn restore(&mut self, hash: u64, place: FlashPlace, is_crowded: bool, pool: &Pool) -> Restored {
        let location = Location::Flash(place, 0);
        self.changed = true;
        let there = self.index.find(hash, is_on_flash).map(|(spot, entry)| (spot, entry.location()));
        if let Some((spot, Location::Flash(older, _))) = there {
            self.index.replace(spot, location);
            return Restored::Instead(older);
        }
        let is_there = !is_crowded && self.index.insert(hash, location, pool).is_ok();
        if is_there { Restored::There } else { Restored::NoRoom }
    }

    /// The header of an item of which something else than the value is to be changed.
    pub(super) fn changing(&mut self, found: Found) -> Header {
        let mut header = self.log.header(found.position);
        self.spoil_copy(&mut header);
        header
    }
}
