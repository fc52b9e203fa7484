//! One shard: the items of a part of all hashes, in a log, and the index that leads to them.
//!
//! A shard does what its caller tells while it is held; nothing here waits, and nothing takes memory from the system.
//!
//! Invariants:
//! - An item is in the index exactly if it is not dead in the log.
//! - What is put is all there before the index leads to it; what it replaces goes only then.

mod header;
mod log;
mod longs;
mod lower;
mod reasons;
mod reclaim;
mod scan;

use engine::View;

use crate::index::{FlashPlace, Index, Location, Position, Spot};
use crate::item::{Cas, Item, Key, Meta, NEVER, NewValue, Seconds, Value};
use crate::memory::Pool;
use crate::policy::{Policy, Queue};
use crate::slot::NoRoom;
use header::{HANDLE_BYTES, HEADER_BYTES, Header, extent};
use log::Log;
use longs::{Long, Longs};
pub(crate) use lower::{Fate, Located, OnFlash, Restored};
pub use reasons::{Dropped, FlashExit};
use reclaim::Walk;
pub(crate) use reclaim::{Effort, INDEX_PART, Progress, Surroundings};
pub use reclaim::{Evicted, Lower};
pub(crate) use scan::Mark;

/// Where an item is, until the shard is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    spot: Spot,
    position: Position,
}

/// What a shard has and has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Items that are there.
    pub items: u64,
    /// Their bytes: headers, keys and values.
    pub bytes: u64,
    /// Items that were ever stored.
    pub stored: u64,
    /// Items that left memory for want of room.
    pub evicted: u64,
    /// Of these, those that nobody had read.
    pub evicted_unfetched: u64,
    /// Of these, those that went to flash.
    pub lowered: u64,
    /// Items found expired, and taken away.
    pub expired: u64,
    /// Of these, those that nobody had read.
    pub expired_unfetched: u64,
    /// Items that were copied to free a segment, or because they were hit.
    pub copied: u64,
    /// Segments that were reclaimed.
    pub reclaimed: u64,
    /// Items that were found on flash.
    pub flash_hits: u64,
    /// Items that came from flash to memory again.
    pub promoted: u64,
    /// Items that left flash because their segment was collected.
    pub collected: u64,
    /// Items that a flush took away.
    pub flushed: u64,
    /// Of those that left memory, those that are gone, for each [`Dropped`].
    pub dropped: [u64; Dropped::NAMES.len()],
    /// Items that left flash, for each [`FlashExit`].
    pub left_flash: [u64; FlashExit::NAMES.len()],
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.stored += other.stored;
        self.evicted += other.evicted;
        self.evicted_unfetched += other.evicted_unfetched;
        self.lowered += other.lowered;
        self.expired += other.expired;
        self.expired_unfetched += other.expired_unfetched;
        self.copied += other.copied;
        self.reclaimed += other.reclaimed;
        self.flash_hits += other.flash_hits;
        self.promoted += other.promoted;
        self.collected += other.collected;
        self.flushed += other.flushed;
        self.dropped.iter_mut().zip(other.dropped).for_each(|(sum, count)| *sum += count);
        self.left_flash.iter_mut().zip(other.left_flash).for_each(|(sum, count)| *sum += count);
    }
}

/// A part of all items.
#[derive(Debug)]
pub(crate) struct Shard {
    index: Index,
    log: Log,
    longs: Longs,
    policy: Box<dyn Policy>,
    /// What the policy says of hits: asked at each.
    moves_older: bool,
    walk: Option<Walk>,
    counters: Counters,
    /// Long values that are gone: to be dropped when the shard is let go, for to give their memory back takes its time.
    garbage: Vec<Vec<View>>,
    /// Places on flash to be invalidated before the shard is let go.
    stale: Vec<FlashPlace>,
    /// What was looked for last was there, and had expired.
    had_expired: bool,
    /// What is told of the shard may be out of date: see [`Shard::take_changes`].
    changed: bool,
}

/// What is told of a shard to those who do not hold it.
#[derive(Debug)]
pub(crate) struct Changes {
    /// Bytes of its items, those outside of segments too.
    pub(crate) weight: usize,
    /// Bytes beside segments and buffers.
    pub(crate) beside: usize,
    /// Values to be dropped once the shard is let go.
    pub(crate) garbage: Vec<Vec<View>>,
    /// Places on flash to be invalidated before.
    pub(crate) stale: Vec<FlashPlace>,
}

impl Shard {
    pub(crate) fn new(index: Index, policy: Box<dyn Policy>) -> Shard {
        Shard {
            index,
            log: Log::default(),
            longs: Longs::default(),
            moves_older: policy.moves_older(),
            policy,
            walk: None,
            counters: Counters::default(),
            garbage: Vec::new(),
            stale: Vec::new(),
            had_expired: false,
            changed: false,
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters { items: self.index.len() as u64, ..self.counters }
    }

    /// Segments of items, and of the index.
    pub(crate) fn segments(&self) -> (usize, usize) {
        (self.log.segments(), self.index.segments())
    }

    /// Bytes beside segments and buffers.
    pub(crate) fn bytes_beside(&self) -> usize {
        self.index.bytes_beside() + self.policy.bytes()
    }

    /// What has changed since this was asked last; a visit that only reads changes nothing.
    pub(crate) fn take_changes(&mut self) -> Option<Changes> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let weight = self.log.weight(Queue::Small) + self.log.weight(Queue::Main);
        let (garbage, stale) = (std::mem::take(&mut self.garbage), std::mem::take(&mut self.stale));
        Some(Changes { weight, beside: self.bytes_beside(), garbage, stale })
    }

    /// The item of a key. One that has expired is taken away.
    pub(crate) fn find(&mut self, key: &Key<'_>, now: Seconds, pool: &Pool) -> Option<Found> {
        self.had_expired = false;
        let log = &self.log;
        let is = |location| match location {
            Location::Memory(position) => {
                let bytes = log.bytes(position);
                usize::from(bytes[header::KEY_LENGTH_AT]) == key.bytes().len()
                    && bytes[HEADER_BYTES..].starts_with(key.bytes())
            }
            Location::Flash(..) => false,
        };
        let (spot, entry) = self.index.find(key.hash(), |entry| is(entry.location()))?;
        let Location::Memory(position) = entry.location() else { return None };
        let found = Found { spot, position };
        let expires = Header::expires(self.log.header_bytes(position));
        if expires != NEVER && expires <= now {
            self.count_expired(&self.log.header(position));
            self.had_expired = true;
            self.remove(found, pool);
            return None;
        }
        Some(found)
    }

    /// What was looked for last was there, and had expired.
    pub(crate) fn had_expired(&self) -> bool {
        self.had_expired
    }

    pub(crate) fn item(&self, found: Found) -> Item<'_> {
        let header = self.log.header(found.position);
        Item { meta: header.meta, value: self.value(found.position, &header) }
    }

    fn value(&self, position: Position, header: &Header) -> Value<'_> {
        let start = HEADER_BYTES + header.key_length;
        let bytes = &self.log.bytes(position)[start..start + header.length];
        if header.long { Value::Chunks(&self.longs.get(handle(bytes)).chunks) } else { Value::Whole(bytes) }
    }

    /// Notes a hit. The item may move, which the answer tells.
    pub(crate) fn note_access(&mut self, found: Found, now: Seconds, pool: &Pool) -> Found {
        Header::note_access(self.log.header_bytes_mut(found.position), now);
        if !self.moves_older {
            return found;
        }
        let (queue, older) = self.log.standing(found.position);
        if !older {
            return found;
        }
        let moved = self.relocate(found, queue, || pool.take(), pool);
        moved.unwrap_or(found)
    }

    pub(crate) fn set_meta(&mut self, found: Found, change: impl FnOnce(&mut Meta)) {
        let mut header = self.changing(found);
        let Meta { cas, accessed, .. } = header.meta;
        change(&mut header.meta);
        (header.meta.cas, header.meta.accessed) = (cas, accessed);
        header.write(self.log.header_bytes_mut(found.position));
        self.log.note_expiry(found.position, header.meta.expires);
    }

    pub(crate) fn set_cas(&mut self, found: Found, cas: Cas) {
        let mut header = self.changing(found);
        header.meta.cas = cas;
        header.write(self.log.header_bytes_mut(found.position));
    }

    pub(crate) fn remove(&mut self, found: Found, pool: &Pool) {
        self.index.remove(found.spot);
        self.discard(found.position, pool);
    }

    /// Ends an item that the index does not lead to any more.
    fn discard(&mut self, position: Position, pool: &Pool) {
        self.changed = true;
        let mut header = self.log.header(position);
        self.spoil_copy(&mut header);
        self.release(position, &header, pool);
    }

    /// Gives back what an item has that is not needed any more.
    fn release(&mut self, position: Position, header: &Header, pool: &Pool) {
        self.changed = true;
        pool.note_freed();
        let mut outside = 0;
        if let Some(number) = self.long_number(position, header) {
            let long = self.longs.take(number);
            outside = long.weight();
            self.counters.bytes -= long.bytes as u64;
            self.garbage.push(long.chunks);
        }
        self.counters.bytes -= bytes_inside(header);
        self.log.kill(position, outside, pool);
    }

    fn long_number(&self, position: Position, header: &Header) -> Option<u32> {
        let start = HEADER_BYTES + header.key_length;
        header.long.then(|| handle(&self.log.bytes(position)[start..start + HANDLE_BYTES]))
    }

    /// Stores an item in place of what is there. `cas` is called when there is room.
    pub(crate) fn put(
        &mut self,
        key: &Key<'_>,
        target: Target,
        new: New<'_>,
        pool: &Pool,
        cas: impl FnOnce() -> Cas,
    ) -> Result<(Found, Cas), NoRoom> {
        let (length, outside) = match &new.value {
            NewValue::Pieces(pieces) => (pieces.iter().map(|piece| piece.len()).sum(), 0),
            NewValue::Chunks(chunks) => (HANDLE_BYTES, Long::weight_of(chunks)),
        };
        debug_assert!(length <= crate::WHOLE_BYTES_MAX);
        let needed = extent(key.bytes().len(), length);
        let place = match target {
            Target::Memory(found) => {
                let mut header = self.log.header(found.position);
                let popularity = raised(header.popularity);
                if self.fits_in_place(found, &header, needed) {
                    self.spoil_copy(&mut header);
                    self.empty(found.position, &header);
                    self.log.change_outside(found.position, 0, outside);
                    self.changed |= outside > 0;
                    Placed { found, extent: header.extent, popularity }
                } else {
                    let (queue, _) = self.log.standing(found.position);
                    let position = self.append(queue, needed, outside, pool)?;
                    self.index.replace(found.spot, Location::Memory(position));
                    self.discard(found.position, pool);
                    Placed { found: Found { spot: found.spot, position }, extent: needed, popularity }
                }
            }
            Target::Flash(at) => {
                let position = self.append(Queue::Main, needed, outside, pool)?;
                self.index.replace(at.spot, Location::Memory(position));
                if new.copy.is_none() {
                    self.note_stale(at.place);
                }
                Placed { found: Found { spot: at.spot, position }, extent: needed, popularity: 0 }
            }
            Target::Nothing => {
                let queue = self.policy.admit(key.hash(), needed + outside);
                let found = self.add(key, queue, needed, outside, pool)?;
                Placed { found, extent: needed, popularity: 0 }
            }
        };
        let meta = Meta { cas: cas(), ..new.meta };
        self.write(key, &place, New { meta, ..new }, length);
        Ok((place.found, meta.cas))
    }

    /// An item may be overwritten where it is if it loses little room by it, and if a hit would leave it there.
    fn fits_in_place(&self, found: Found, header: &Header, needed: usize) -> bool {
        let moves = self.moves_older && self.log.standing(found.position).1;
        let lost = header.extent.checked_sub(needed);
        !moves && lost.is_some_and(|lost| lost <= (header.extent / 4).max(2 * HEADER_BYTES))
    }

    /// Lets go of the value of an item that is to be overwritten in place.
    fn empty(&mut self, position: Position, header: &Header) {
        self.changed |= header.long;
        if let Some(number) = self.long_number(position, header) {
            let long = self.longs.take(number);
            self.log.change_outside(position, long.weight(), 0);
            self.counters.bytes -= long.bytes as u64;
            self.garbage.push(long.chunks);
        }
        self.counters.bytes -= bytes_inside(header);
    }

    fn append(&mut self, queue: Queue, extent: usize, outside: usize, pool: &Pool) -> Result<Position, NoRoom> {
        self.changed = true;
        let position = if pool.is_full() { None } else { self.log.append(queue, extent, outside, || pool.take()) };
        position.ok_or(NoRoom { bytes: extent })
    }

    /// Room for a key's first item, and the entry that leads there.
    fn add(
        &mut self,
        key: &Key<'_>,
        queue: Queue,
        extent: usize,
        outside: usize,
        pool: &Pool,
    ) -> Result<Found, NoRoom> {
        let position = self.append(queue, extent, outside, pool)?;
        let inserted = self.index.insert(key.hash(), Location::Memory(position), pool);
        let entry = inserted
            .ok()
            .and_then(|()| self.index.find(key.hash(), |entry| entry.location() == Location::Memory(position)));
        let Some((spot, _)) = entry else {
            self.log.take_back(position, extent, outside);
            return Err(NoRoom { bytes: extent });
        };
        Ok(Found { spot, position })
    }

    fn write(&mut self, key: &Key<'_>, place: &Placed, new: New<'_>, length: usize) {
        let New { meta, value, copy } = new;
        let long = matches!(value, NewValue::Chunks(_));
        let header = Header {
            meta,
            length,
            extent: place.extent,
            key_length: key.bytes().len(),
            long,
            dead: false,
            popularity: place.popularity,
            copy,
        };
        let position = place.found.position;
        header.write(self.log.header_bytes_mut(position));
        let (key_bytes, rest) = self.log.bytes_mut(position)[HEADER_BYTES..].split_at_mut(header.key_length);
        key_bytes.copy_from_slice(key.bytes());
        match value {
            NewValue::Pieces(pieces) => {
                let mut at = 0;
                for piece in pieces {
                    rest[at..at + piece.len()].copy_from_slice(piece);
                    at += piece.len();
                }
            }
            NewValue::Chunks(chunks) => {
                let long = Long::new(chunks);
                self.counters.bytes += long.bytes as u64;
                rest[..HANDLE_BYTES].copy_from_slice(&u64::from(self.longs.add(long)).to_le_bytes());
            }
        }
        self.log.note_expiry(position, meta.expires);
        self.counters.bytes += bytes_inside(&header);
        self.counters.stored += 1;
    }

    /// Copies an item to the head of a queue, if there is room.
    fn relocate(
        &mut self,
        found: Found,
        queue: Queue,
        take: impl FnOnce() -> Option<engine::Pages>,
        pool: &Pool,
    ) -> Option<Found> {
        let header = self.log.header(found.position);
        let outside = self.long_number(found.position, &header).map_or(0, |number| self.longs.get(number).weight());
        let position = self.log.append(queue, header.extent, outside, take)?;
        self.log.copy(found.position, position, header.extent);
        self.log.note_expiry(position, header.meta.expires);
        self.index.replace(found.spot, Location::Memory(position));
        self.log.kill(found.position, outside, pool);
        self.counters.copied += 1;
        Some(Found { spot: found.spot, position })
    }

    /// Takes all items away.
    pub(crate) fn clear(&mut self, pool: &Pool) {
        self.changed = true;
        pool.note_freed();
        self.counters.flushed += self.index.len() as u64;
        self.index.clear(pool);
        self.log.clear(pool);
        self.walk = None;
        self.garbage.extend(self.longs.take_all().map(|long| long.chunks));
        self.counters.bytes = 0;
    }

    fn count_expired(&mut self, header: &Header) {
        self.counters.expired += 1;
        self.counters.expired_unfetched += u64::from(!header.meta.fetched);
    }
}

/// What is to be stored.
pub(crate) struct New<'a> {
    /// All but the cas.
    pub(crate) meta: Meta,
    pub(crate) value: NewValue<'a>,
    /// Where the same item is on flash.
    pub(crate) copy: Option<FlashPlace>,
}

/// What is in the place of an item that is to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Nothing,
    Memory(Found),
    Flash(OnFlash),
}

/// Where it is to be written.
struct Placed {
    found: Found,
    extent: usize,
    popularity: u8,
}

fn raised(popularity: u8) -> u8 {
    (popularity + 1).min(crate::policy::POPULARITY_MAX)
}

fn is_expired(header: &Header, now: Seconds) -> bool {
    header.meta.expires != NEVER && header.meta.expires <= now
}

/// An item's bytes in the log, without what it may have to spare.
fn bytes_inside(header: &Header) -> u64 {
    (HEADER_BYTES + header.key_length + header.length) as u64
}

/// The number of a long value, from what stands in its place.
fn handle(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes: &[u8; 4]| u32::from_le_bytes(*bytes))
}
