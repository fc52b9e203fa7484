//! What is held, by kind, against the limit.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::slot::NoRoom;

/// What memory is held for. Buffers are not among them: the engine counts them (`engine::buf::system_bytes`), and with them
/// values that are stored as chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Segments of items and index, also free ones.
    Segments,
    /// What stands beside the segments: directories of the index, the memory of what was evicted.
    Tables,
    /// Connections, but for their buffers.
    Connections,
    /// Promised to somebody who allocates it right now.
    Pending,
    /// The process itself: what was resident before there was anything to count.
    Base,
    /// What turned out to be resident beyond all that was counted: see [`Budget::note_resident`].
    Uncounted,
}

const KINDS: usize = 6;
/// The part of the limit by which buffers of connections may pass it for a moment, until items have made room for them.
const SLACK_PART: usize = 64;

/// What is held, and the limit that it is never over.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicUsize,
    limit_min: AtomicUsize,
    held: [AtomicUsize; KINDS],
    /// What buffers hold at the moment.
    buffers: fn() -> usize,
}

impl Budget {
    /// Nothing is held but by the engine's buffers, of the whole process.
    pub fn new(limit: usize) -> Budget {
        Budget {
            limit: AtomicUsize::new(limit),
            limit_min: AtomicUsize::new(0),
            held: Default::default(),
            buffers: engine::buf::system_bytes,
        }
    }

    /// As [`Budget::new`], for a test in whose process others use buffers too: they are not counted.
    pub fn without_buffers(limit: usize) -> Budget {
        Budget { buffers: || 0, ..Budget::new(limit) }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// A lower limit leaves no room for items and connections beside what the process needs in any case.
    pub fn limit_min(&self) -> usize {
        self.limit_min.load(Ordering::Relaxed)
    }

    /// Notes that so much is needed.
    pub fn require(&self, limit: usize) {
        self.limit_min.fetch_max(limit, Ordering::Relaxed);
    }

    /// Sets the limit. Where more is held already nothing more is given; to give back is the holders' part.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Bytes held of a kind.
    pub fn held(&self, kind: Kind) -> usize {
        self.held[kind as usize].load(Ordering::Relaxed)
    }

    /// Bytes that buffers hold.
    pub fn buffers(&self) -> usize {
        (self.buffers)()
    }

    /// What is held for what, under the names that operators see.
    pub fn held_by(&self) -> [(&'static str, usize); KINDS + 1] {
        let held = |kind| self.held(kind);
        [
            ("segments", held(Kind::Segments)),
            ("tables", held(Kind::Tables)),
            ("connections", held(Kind::Connections)),
            ("pending", held(Kind::Pending)),
            ("process", held(Kind::Base)),
            ("uncounted", held(Kind::Uncounted)),
            ("buffers", self.buffers()),
        ]
    }

    /// Bytes held of all kinds, and by buffers.
    pub fn used(&self) -> usize {
        let counted: usize = self.held.iter().map(|held| held.load(Ordering::Relaxed)).sum();
        counted + self.buffers()
    }

    /// Bytes that may still be taken.
    pub fn room(&self) -> usize {
        self.limit().saturating_sub(self.used())
    }

    /// Whether a connection may hold so many bytes more. It may pass the limit a little: memory full of items is always at it.
    pub fn may_hold(&self, bytes: usize) -> bool {
        self.used() + bytes <= self.limit() + self.slack()
    }

    /// How far from the limit what is resident may be before something is done about it.
    pub fn slack(&self) -> usize {
        self.limit() / SLACK_PART
    }

    /// Where more is resident than the limit, counts what of it was not counted yet; else gives back what was counted so before, as
    /// far as there is room: half of it at a time, since what leaves because of it does so with a delay.
    pub fn note_resident(&self, resident: usize) {
        let (limit, before) = (self.limit(), self.held(Kind::Uncounted));
        if resident > limit {
            self.take(Kind::Uncounted, resident.saturating_sub(self.used()));
        } else {
            self.give(Kind::Uncounted, before.min((limit - resident).div_ceil(2)));
        }
    }

    /// Takes `bytes`, to be given back with [`Budget::give`].
    ///
    /// # Errors
    /// They would be over the limit.
    pub fn try_take(&self, kind: Kind, bytes: usize) -> Result<(), NoRoom> {
        // Counted first: of two that take at once, both are seen by both, so that never both go over the limit.
        self.take(kind, bytes);
        if self.used() > self.limit() {
            self.give(kind, bytes);
            return Err(NoRoom { bytes });
        }
        Ok(())
    }

    /// Counts `bytes` that are held whatever the limit is.
    pub fn take(&self, kind: Kind, bytes: usize) {
        self.held[kind as usize].fetch_add(bytes, Ordering::SeqCst);
    }

    /// Gives `bytes` back.
    pub fn give(&self, kind: Kind, bytes: usize) {
        let before = self.held[kind as usize].fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(before >= bytes, "{bytes} bytes given back of {before} ({kind:?})");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_the_limit_is_refused_and_not_counted() {
        const LIMIT: usize = 1 << 20;
        let budget = Budget::without_buffers(LIMIT);
        budget.take(Kind::Base, LIMIT / 2);
        assert_eq!(budget.try_take(Kind::Segments, LIMIT / 2 + 1), Err(NoRoom { bytes: LIMIT / 2 + 1 }));
        assert_eq!(budget.try_take(Kind::Segments, LIMIT / 4), Ok(()));
        assert_eq!((budget.held(Kind::Base), budget.held(Kind::Segments)), (LIMIT / 2, LIMIT / 4));
        budget.set_limit(LIMIT / 2);
        assert_eq!((budget.room(), budget.try_take(Kind::Pending, 1)), (0, Err(NoRoom { bytes: 1 })));
        budget.give(Kind::Base, LIMIT / 2);
        assert_eq!(budget.room(), LIMIT / 4);
    }

    #[test]
    fn what_is_resident_beyond_all_that_was_counted_is_counted_until_it_is_gone() {
        const LIMIT: usize = 64 << 20;
        let budget = Budget::without_buffers(LIMIT);
        budget.take(Kind::Segments, LIMIT - 100);
        budget.note_resident(LIMIT + 5000);
        assert_eq!(budget.used(), LIMIT + 5000, "all that is resident is counted, so that items leave");
        budget.note_resident(LIMIT + 5000);
        assert_eq!(budget.held(Kind::Uncounted), 5100, "once");
        budget.give(Kind::Segments, 5000);
        budget.note_resident(LIMIT);
        assert_eq!(budget.held(Kind::Uncounted), 5100, "at the limit nothing changes");
        budget.note_resident(LIMIT - 200);
        assert_eq!(budget.held(Kind::Uncounted), 5000);
        (0..20).for_each(|_| budget.note_resident(LIMIT / 2));
        assert_eq!(budget.held(Kind::Uncounted), 0);
        assert!(budget.may_hold(5100 + LIMIT / SLACK_PART) && !budget.may_hold(5101 + LIMIT / SLACK_PART));
    }
}
