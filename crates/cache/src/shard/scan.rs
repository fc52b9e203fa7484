//! Looking at all items of a shard, in pieces: for who lists them, and to take away what has expired.

use crate::item::{Item, Seconds};
use crate::memory::Pool;

use super::{Found, HEADER_BYTES, Shard, is_expired, log::Log};
use crate::hash::Hasher;
use crate::index::Location;

/// Items that are looked at while the shard is held, at most. Chosen: some twenty microseconds.
const PIECE_ITEMS_MAX: usize = 128;

/// How far a scan has come in its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Mark {
    place: u32,
    /// The number of the segment there: another one is begun at its start.
    number: u64,
    offset: usize,
}

impl Shard {
    /// Tells the next items, and takes away those that have expired. `None`: that was all. Items that are moved meanwhile may be
    /// told twice, or not.
    pub(crate) fn scan(
        &mut self,
        mut mark: Mark,
        now: Seconds,
        hasher: &Hasher,
        pool: &Pool,
        tell: &mut dyn FnMut(&[u8], Item<'_>),
    ) -> Option<Mark> {
        for _ in 0..PIECE_ITEMS_MAX {
            mark = self.log.next(mark.place, mark.number, mark.offset).map(|(place, number, offset)| Mark {
                place,
                number,
                offset,
            })?;
            let position = Log::position(mark.place, mark.offset);
            let header = self.log.header(position);
            mark.offset += header.extent;
            if header.dead {
                continue;
            }
            let key = &self.log.bytes(position)[HEADER_BYTES..][..header.key_length];
            if !is_expired(&header, now) {
                tell(key, Item { meta: header.meta, value: self.value(position, &header) });
                continue;
            }
            let entry = self.index.find(hasher.hash(key), |entry| entry.location() == Location::Memory(position));
            if let Some((spot, _)) = entry {
                self.count_expired(&header);
                self.remove(Found { spot, position }, pool);
            }
        }
        Some(mark)
    }
}
