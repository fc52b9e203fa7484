//! The items as statistics and administrators see them.

use std::sync::Arc;

use crate::flash::{FlashStats, Tier};
use crate::item::{Item, Meta, Seconds};
use crate::memory::{Budget, SEGMENT_BYTES};
use crate::slot::NoRoom;
use crate::store::{Dropped, Evicted, FlashExit, Lower, Scan, Store};

/// Figures of all items at one moment; counts are since the server started.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Items in memory and on flash.
    pub items: u64,
    /// Bytes of their keys and values, and of what is kept with them.
    pub bytes: u64,
    /// Items stored, ever.
    pub stored: u64,
    /// Memory limit of the process, in bytes.
    pub limit: u64,
    /// Bytes that are held of it.
    pub held: u64,
    /// The same by what they are held for.
    pub held_by: [(&'static str, usize); 7],
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Segments that hold items.
    pub segments: u64,
    /// Bytes of one.
    pub segment_bytes: u64,
    /// Items that were let go for others.
    pub evictions: u64,
    /// The same by where they went, or why not to flash.
    pub evicted_by: [(&'static str, u64); 1 + Dropped::NAMES.len()],
    /// Of these, such as nobody had read.
    pub evicted_unfetched: u64,
    /// Items that a flush took away, from memory and from flash.
    pub flushed: u64,
    /// Items that were over when their room was taken.
    pub reclaimed: u64,
    /// Items that were over and that nobody had read.
    pub expired_unfetched: u64,
    /// Of the flash tier, if there is one.
    pub flash: Option<FlashFigures>,
}

/// Figures of the flash tier.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct FlashFigures {
    /// Hits of items there.
    pub hits: u64,
    /// Items that left memory and came here, or had a copy here.
    pub lowered: u64,
    /// Items that came from here to memory again.
    pub promoted: u64,
    /// Items that left because their segment was collected.
    pub collected: u64,
    /// Items that left although nobody had stored or deleted anything under their key, by reason.
    pub left_by: [(&'static str, u64); FlashExit::NAMES.len()],
    /// Bytes that items can take.
    pub capacity_bytes: u64,
    /// What the log has done.
    pub stats: FlashStats,
    /// Why it has ended, if it has.
    pub failure: Option<String>,
}

impl Figures {
    /// What was counted since `earlier`, and what is there now. As in memcached, what flash has done goes on, but for what gets did
    /// there.
    pub fn since(self, earlier: &Figures) -> Figures {
        let mut flash = self.flash;
        if let (Some(flash), Some(earlier)) = (&mut flash, &earlier.flash) {
            flash.hits = flash.hits.saturating_sub(earlier.hits);
            flash.promoted = flash.promoted.saturating_sub(earlier.promoted);
            let (stats, earlier) = (&mut flash.stats, &earlier.stats);
            stats.other_key_reads = stats.other_key_reads.saturating_sub(earlier.other_key_reads);
            stats.checksum_errors = stats.checksum_errors.saturating_sub(earlier.checksum_errors);
        }
        let mut evicted_by = self.evicted_by;
        for ((_, count), (_, before)) in evicted_by.iter_mut().zip(earlier.evicted_by) {
            *count = count.saturating_sub(before);
        }
        Figures {
            evicted_by,
            flushed: self.flushed.saturating_sub(earlier.flushed),
            stored: self.stored.saturating_sub(earlier.stored),
            evictions: self.evictions.saturating_sub(earlier.evictions),
            evicted_unfetched: self.evicted_unfetched.saturating_sub(earlier.evicted_unfetched),
            reclaimed: self.reclaimed.saturating_sub(earlier.reclaimed),
            expired_unfetched: self.expired_unfetched.saturating_sub(earlier.expired_unfetched),
            flash,
            ..self
        }
    }
}

/// What lies below memory, as statistics see it.
pub trait Tiered: Lower {
    /// What is known of it alone; `None` where there is nothing.
    fn flash(&self) -> Option<FlashFigures>;
}

impl Tiered for () {
    fn flash(&self) -> Option<FlashFigures> {
        None
    }
}

impl Tiered for Tier {
    fn flash(&self) -> Option<FlashFigures> {
        let log = self.log();
        let (capacity_bytes, stats, failure) = (log.capacity_bytes(), log.stats(), log.failure());
        Some(FlashFigures { capacity_bytes, stats, failure, ..FlashFigures::default() })
    }
}

/// An item, as a dump tells it.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What is kept with the value.
    pub meta: Meta,
    /// Bytes of the value.
    pub value_bytes: usize,
}

/// The items as statistics and administrators see them.
pub trait Holdings {
    /// How far a scan over all items has come; it begins with the default.
    type Scan: Default;

    /// Figures of all items.
    fn figures(&self) -> Figures;

    /// Has `tell` told of items that are let go for others: once, before anything is stored.
    fn tell_evicted(&self, tell: Box<Evicted>);

    /// What memory is counted against.
    fn budget(&self) -> &Arc<Budget>;

    /// Lets items in memory go until what is held is within the limit.
    ///
    /// # Errors
    /// There is nothing left to let go, or none may.
    fn shrink_items(&self) -> impl Future<Output = Result<(), NoRoom>>;

    /// Another memory limit for the process, in bytes. What is over it is let go by and by.
    fn set_memory_limit(self: &Arc<Self>, bytes: usize);

    /// Tells the next items of a scan over all of them, and takes away those that are over. Where to go on, `None` at the end. One
    /// that is moved meanwhile may be told twice, or not.
    fn scan(&self, at: Self::Scan, now: Seconds, tell: &mut dyn FnMut(Listed<'_>)) -> Option<Self::Scan>;
}

impl<L: Tiered + 'static> Holdings for Store<L> {
    type Scan = Scan;

    fn figures(&self) -> Figures {
        let usage = self.usage();
        let counters = usage.counters;
        let (hits, lowered) = (counters.flash_hits, counters.lowered);
        let (promoted, collected) = (counters.promoted, counters.collected);
        let flash = self.lower().flash();
        let mut evicted_by = [("to_flash", counters.lowered); 1 + Dropped::NAMES.len()];
        for (of, named) in evicted_by[1..].iter_mut().zip(Dropped::NAMES.into_iter().zip(counters.dropped)) {
            *of = named;
        }
        let left_by = std::array::from_fn(|reason| (FlashExit::NAMES[reason], counters.left_flash[reason]));
        Figures {
            flash: flash.map(|flash| FlashFigures { hits, lowered, promoted, collected, left_by, ..flash }),
            evicted_by,
            flushed: counters.flushed,
            items: counters.items,
            bytes: counters.bytes,
            stored: counters.stored,
            limit: usage.limit as u64,
            held: usage.used as u64,
            held_by: Store::budget(self).held_by(),
            index_bytes: (usage.index_segments * SEGMENT_BYTES) as u64,
            segments: usage.item_segments as u64,
            segment_bytes: SEGMENT_BYTES as u64,
            evictions: counters.evicted,
            evicted_unfetched: counters.evicted_unfetched,
            reclaimed: counters.expired,
            expired_unfetched: counters.expired_unfetched,
        }
    }

    fn tell_evicted(&self, tell: Box<Evicted>) {
        Store::tell_evicted(self, tell);
    }

    fn budget(&self) -> &Arc<Budget> {
        Store::budget(self)
    }

    async fn shrink_items(&self) -> Result<(), NoRoom> {
        Store::shrink_items(self).await
    }

    fn set_memory_limit(self: &Arc<Self>, bytes: usize) {
        self.set_limit(bytes);
        let store = self.clone();
        let shrink = async move {
            if let Err(error) = store.shrink().await {
                tracing::warn!(bytes = error.bytes, "memory over the new limit cannot be given back now");
            }
        };
        engine::task::spawn(shrink).detach();
    }

    fn scan(&self, at: Scan, now: Seconds, tell: &mut dyn FnMut(Listed<'_>)) -> Option<Scan> {
        Store::scan(self, at, now, |key, item: Item<'_>| {
            tell(Listed { key, meta: item.meta, value_bytes: item.value.len() });
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_concerns_what_is_counted_and_not_what_is_there() {
        let flash = |hits| Some(FlashFigures { hits, lowered: hits, ..FlashFigures::default() });
        let at = |count| Figures {
            items: count,
            bytes: count,
            stored: count,
            evictions: count,
            evicted_by: [("why", count); 1 + Dropped::NAMES.len()],
            evicted_unfetched: count,
            flushed: count,
            reclaimed: count,
            expired_unfetched: count,
            flash: flash(count),
            ..Figures::default()
        };
        let since = at(9).since(&at(7));
        let flash = Some(FlashFigures { hits: 2, lowered: 9, ..FlashFigures::default() });
        assert_eq!(since, Figures { items: 9, bytes: 9, flash, ..at(2) });
        assert_eq!(at(9).since(&Figures::default()), at(9));
    }
}
