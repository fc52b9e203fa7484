//! Reclaiming: a segment's items are looked at one after another, in pieces, and stay, leave, or were dead before.

use engine::task::LocalFuture;

use crate::hash::Hasher;
use crate::index::{FlashPlace, Location, Position};
use crate::item::{Key, Meta, Seconds, Value};
use crate::memory::{Pool, SEGMENT_BYTES};
use crate::policy::{Queue, Verdict};

use super::{Dropped, FlashExit, Found, Shard, header::Header, is_expired, log::Log};

/// Items that are looked at while the shard is held, at most. Chosen: some twenty microseconds.
const PIECE_ITEMS_MAX: usize = 128;
/// Bytes that are copied meanwhile, but for the last item. Chosen likewise.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// Segments that are looked at to find one that is nearly empty.
const LOOKED_AT: usize = 64;

/// The part of a shard's memory that its index may have before items leave for good rather than for flash. Chosen: what is left
/// has room for both queues in the smallest shard.
pub(crate) const INDEX_PART: (usize, usize) = (3, 4);

/// What takes the items that leave memory: the flash tier.
pub trait Lower: Send + Sync {
    /// Takes an item. It is called with a shard held: it waits for nothing.
    ///
    /// # Errors
    /// It does not, and why.
    fn offer(&self, key: &Key<'_>, meta: &Meta, value: Value<'_>) -> Result<FlashPlace, Dropped>;

    /// Waits until it may take an item that it was too busy for, or takes none any more.
    fn room(&self) -> LocalFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Bytes that it has passed on so far: where they stay the same it does not get on.
    fn written_bytes(&self) -> u64 {
        0
    }

    /// The item at `place` counts no more, whatever happens to this process: called before that is told to anybody.
    fn invalidate(&self, place: FlashPlace);

    /// Nothing that was taken so far counts any more, nor what has a smaller cas: called before that is told to anybody.
    fn flush(&self, cas_floor: u64);

    /// All that is there will be flushed at a time to come, which takes the place of another; [`crate::item::NEVER`] takes it back.
    fn flush_at(&self, at: Seconds);

    /// Cas values up to this one may be given: after a restart others follow.
    fn reserve_cas(&self, up_to: u64);
}

/// Without flash what leaves memory is gone.
impl Lower for () {
    fn offer(&self, _key: &Key<'_>, _meta: &Meta, _value: Value<'_>) -> Result<FlashPlace, Dropped> {
        Err(Dropped::NoFlash)
    }

    fn invalidate(&self, _place: FlashPlace) {}

    fn flush(&self, _cas_floor: u64) {}

    fn flush_at(&self, _at: Seconds) {}

    fn reserve_cas(&self, _up_to: u64) {}
}

/// Is told of an item that leaves for want of room: its key, what is kept with it, and the bytes of its value. It is called with a
/// shard held: it waits for nothing.
pub type Evicted = dyn Fn(&[u8], &Meta, usize) + Send + Sync;

/// How far reclaiming may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// What the policy lets go goes.
    Evict,
    /// Only room that holds nothing is won: no item leaves but expired ones.
    Compact,
    /// All items leave.
    Empty,
}

/// What a piece of reclaiming has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// A segment is free.
    Freed,
    /// There is more of it to be looked at.
    Partly,
    /// There is more of it, and the next item has to wait until flash has room for it.
    Busy,
    /// There is nothing to be had.
    Nothing,
}

/// What reclaiming needs to know.
pub(crate) struct Surroundings<'a> {
    pub(crate) now: Seconds,
    pub(crate) hasher: &'a Hasher,
    pub(crate) pool: &'a Pool,
    pub(crate) lower: &'a dyn Lower,
    pub(crate) evicted: Option<&'a Evicted>,
    /// What flash is too busy for stays until it is not, rather than be given up.
    pub(crate) waits: bool,
}

/// A segment that is being looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    place: u32,
    offset: usize,
    /// It is moved rather than judged: it was chosen because it is nearly empty.
    move_all: bool,
}

impl Shard {
    /// Reclaims a piece.
    pub(crate) fn reclaim(&mut self, effort: Effort, around: &Surroundings<'_>) -> Progress {
        let Some(mut walk) = self.walk.take().or_else(|| self.choose(effort, around.now)) else {
            return Progress::Nothing;
        };
        self.changed = true;
        let mut copied = self.counters.copied;
        let (queue, tail) = {
            let segment = self.log.segment(walk.place as usize);
            (segment.queue, segment.tail)
        };
        let (mut items, mut bytes) = (0, 0);
        // What only wins holes is done with a segment at once: it takes one of the reserve at most, and gives one back.
        let (items_max, bytes_max) =
            if effort == Effort::Compact { (usize::MAX, usize::MAX) } else { (PIECE_ITEMS_MAX, PIECE_BYTES_MAX) };
        while walk.offset < tail && items < items_max && bytes < bytes_max {
            let position = Log::position(walk.place, walk.offset);
            let header = self.log.header(position);
            if header.dead {
                items += 1;
                walk.offset += header.extent;
                continue;
            }
            if !self.judge(position, &header, queue, walk.move_all, effort, around) {
                if effort == Effort::Compact {
                    // Another segment may do better.
                    self.log.close_again(walk.place);
                    return Progress::Nothing;
                }
                self.walk = Some(walk);
                return Progress::Busy;
            }
            walk.offset += header.extent;
            items += 1;
            // One long value that leaves may be all the room that is needed.
            if header.long || self.counters.copied > copied {
                bytes += if header.long { PIECE_BYTES_MAX } else { header.extent };
            }
            copied = self.counters.copied;
        }
        if walk.offset < tail {
            self.walk = Some(walk);
            return Progress::Partly;
        }
        self.log.free(walk.place, around.pool);
        self.counters.reclaimed += 1;
        Progress::Freed
    }

    /// Where there are no items in memory, what is left is the index, of what is on flash or of nothing any more. Where even that
    /// is too much, since the limit was lowered, it goes, and what it led to. Whether it did.
    pub(crate) fn give_up_index(&mut self, lower: &dyn Lower, pool: &Pool) -> bool {
        if self.index.segments() == 0 || self.log.segments() > 0 {
            return false;
        }
        self.changed = true;
        let mut left = 0;
        self.index.each(|entry| {
            if let Location::Flash(place, _) = entry.location() {
                lower.invalidate(place);
                left += 1;
            }
        });
        self.counters.left_flash[FlashExit::IndexGivenUp as usize] += left;
        self.index.clear(pool);
        true
    }

    /// The next segment to be reclaimed.
    fn choose(&mut self, effort: Effort, now: Seconds) -> Option<Walk> {
        let looked_at = match effort {
            Effort::Evict => LOOKED_AT,
            Effort::Compact => usize::MAX,
            Effort::Empty => 0,
        };
        let nearly_empty = self.log.emptiest(looked_at, now);
        let nearly_empty = nearly_empty.filter(|&(place, live)| match effort {
            // What has no room at the end of this segment has none at the end of another.
            Effort::Compact => live * 8 <= self.log.segment(place as usize).tail * 7,
            Effort::Evict | Effort::Empty => live <= SEGMENT_BYTES / 2,
        });
        if let Some((place, _)) = nearly_empty {
            return Some(Walk { place: self.log.walk(place), offset: 0, move_all: true });
        }
        if effort == Effort::Compact {
            return None;
        }
        let first = self.policy.victim(self.log.weight(Queue::Small), self.log.weight(Queue::Main));
        let other = if first == Queue::Small { Queue::Main } else { Queue::Small };
        let place = self.log.oldest(first).or_else(|| self.log.oldest(other))?;
        Some(Walk { place, offset: 0, move_all: false })
    }

    /// Says what becomes of an item, and does it. False: it has to be moved, but there is no room, or flash has none yet.
    fn judge(
        &mut self,
        position: Position,
        header: &Header,
        queue: Queue,
        move_all: bool,
        effort: Effort,
        around: &Surroundings<'_>,
    ) -> bool {
        let key = &self.log.bytes(position)[super::HEADER_BYTES..][..header.key_length];
        let hash = around.hasher.hash(key);
        let Some((spot, _)) = self.index.find(hash, |entry| entry.location() == Location::Memory(position)) else {
            debug_assert!(false, "an item that is not dead is in the index");
            return true;
        };
        let found = Found { spot, position };
        if is_expired(header, around.now) {
            self.count_expired(header);
            self.remove(found, around.pool);
            return true;
        }
        let (stays, to, popularity) = if effort == Effort::Empty {
            (false, queue, header.popularity)
        } else if move_all {
            (true, queue, header.popularity)
        } else {
            match self.policy.verdict(hash, queue, header.popularity) {
                Verdict::Keep(popularity) => (true, Queue::Main, popularity),
                Verdict::Leave => (false, queue, 0),
            }
        };
        if stays {
            if popularity != header.popularity {
                let lowered = Header { popularity, ..*header };
                lowered.write(self.log.header_bytes_mut(position));
            }
            if self.relocate(found, to, || around.pool.take_reserved(), around.pool).is_some() {
                return true;
            }
            if effort == Effort::Compact {
                return false;
            }
        }
        let place = self.place_below(found, hash, header, effort, around);
        if place == Err(Dropped::FlashBusy) && around.waits {
            return false;
        }
        self.leave(found, hash, header, place, around);
        true
    }

    /// The index has so much of the memory that more items on flash would leave none for others.
    fn is_crowded(&self) -> bool {
        let items = self.log.weight(Queue::Small) + self.log.weight(Queue::Main);
        let index = self.index.segments() * SEGMENT_BYTES;
        index * INDEX_PART.1 > (items + index) * INDEX_PART.0
    }

    /// Where an item that leaves memory is from then on: what is there already unchanged is not written again.
    fn place_below(
        &self,
        found: Found,
        hash: u64,
        header: &Header,
        effort: Effort,
        around: &Surroundings<'_>,
    ) -> Result<FlashPlace, Dropped> {
        // Where all leave nothing comes that would need the room.
        if effort != Effort::Empty && self.is_crowded() {
            return Err(Dropped::IndexFull);
        }
        let bytes = &self.log.bytes(found.position)[super::HEADER_BYTES..][..header.key_length];
        let value = self.value(found.position, header);
        if let Some(copy) = header.copy {
            return Ok(copy);
        }
        let key = Key::new(bytes, hash).map_err(|_| Dropped::TooLong)?;
        around.lower.offer(&key, &header.meta, value)
    }

    /// An item leaves memory: for flash, or for good.
    fn leave(
        &mut self,
        found: Found,
        hash: u64,
        header: &Header,
        place: Result<FlashPlace, Dropped>,
        around: &Surroundings<'_>,
    ) {
        self.counters.evicted += 1;
        self.counters.evicted_unfetched += u64::from(!header.meta.fetched);
        if let (Err(_), Some(copy)) = (place, header.copy) {
            self.note_stale(copy);
        }
        if let (Err(_), Some(tell)) = (place, around.evicted) {
            let key = &self.log.bytes(found.position)[super::HEADER_BYTES..][..header.key_length];
            tell(key, &header.meta, self.value(found.position, header).len());
        }
        match place {
            Ok(place) => self.lower(hash, found, place, header.popularity),
            Err(why) => {
                self.counters.dropped[why as usize] += 1;
                self.index.remove(found.spot);
            }
        }
        self.release(found.position, header, around.pool);
    }
}
