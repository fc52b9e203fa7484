//! Free segments.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use engine::{Pages, pages::LARGE_PAGE};

use super::{Budget, Kind};

/// Bytes of a segment, the unit in which memory goes from items to index and back. Chosen: some ten thousand for the memory of a
/// small server, and to reclaim one takes less than a millisecond.
pub const SEGMENT_BYTES: usize = 256 << 10;

/// From this limit on segments are taken by large pages. Chosen: the last of them is then a thirtieth of the limit at most.
const LARGE_FROM_BYTES: usize = 32 * LARGE_PAGE;

/// Segments that nobody uses, shared by all shards.
#[derive(Debug)]
pub struct Pool {
    budget: Arc<Budget>,
    free: Mutex<Vec<Pages>>,
    /// How many are free: to be asked without the lock.
    count: AtomicUsize,
    /// The last free ones are for who moves items together to free more.
    reserve: usize,
    /// Somebody was told that there is no memory, and none was freed since.
    is_full: AtomicBool,
}

impl Pool {
    /// Without a segment; see [`Pool::grow`].
    pub fn new(budget: Arc<Budget>, reserve: usize) -> Pool {
        Pool { budget, free: Mutex::default(), count: AtomicUsize::new(0), reserve, is_full: AtomicBool::new(false) }
    }

    /// What the segments are counted against.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Nothing more is to be stored until something is freed: what one shard has left at the end of a segment is as much memory as
    /// what another was refused.
    pub fn note_full(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// Something was freed.
    pub fn note_freed(&self) {
        // Without a need nothing is written: all shards share the line.
        if self.is_full() {
            self.is_full.store(false, Ordering::Relaxed);
        }
    }

    /// Whether nothing more is to be stored.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// How many are free beside the reserve.
    pub fn free(&self) -> usize {
        self.count.load(Ordering::Relaxed).saturating_sub(self.reserve)
    }

    /// A free segment, whose content is anything. Nothing is asked of the system: this is called with a shard held.
    pub fn take(&self) -> Option<Pages> {
        if self.free() == 0 { None } else { self.pop(self.reserve) }
    }

    /// As [`Pool::take`], also from the reserve: for who gives back as much soon.
    pub fn take_reserved(&self) -> Option<Pages> {
        self.pop(0)
    }

    fn pop(&self, left: usize) -> Option<Pages> {
        let mut free = self.lock();
        let taken = if free.len() > left { free.pop() } else { None };
        self.count.store(free.len(), Ordering::Relaxed);
        taken
    }

    /// Gives a segment back: to the pool, or to the system if more is held than the limit allows.
    pub fn give(&self, segment: Pages) {
        let is_over = self.budget.used() > self.budget.limit();
        let mut free = self.lock();
        // Without its reserve nothing more could be freed.
        if is_over && free.len() >= self.reserve {
            drop(free);
            return self.release(segment);
        }
        free.push(segment);
        self.count.store(free.len(), Ordering::Relaxed);
    }

    /// Takes more from the system if the limit allows it, and tells whether it did.
    pub fn grow(&self) -> bool {
        // Looked at before: what is taken only to be given back would make all others believe for a moment that memory is short.
        let may_be_large = self.budget.limit() >= LARGE_FROM_BYTES && self.budget.room() >= LARGE_PAGE;
        let large = may_be_large && self.budget.try_take(Kind::Segments, LARGE_PAGE).is_ok();
        if !large && self.budget.try_take(Kind::Segments, SEGMENT_BYTES).is_err() {
            return false;
        }
        let asked = if large { LARGE_PAGE } else { SEGMENT_BYTES };
        let got =
            if large { Pages::large(SEGMENT_BYTES) } else { Pages::zeroed(SEGMENT_BYTES).map(|segment| vec![segment]) };
        match got {
            Ok(segments) => {
                let mut free = self.lock();
                free.extend(segments);
                self.count.store(free.len(), Ordering::Relaxed);
                true
            }
            Err(error) => {
                self.budget.give(Kind::Segments, asked);
                tracing::warn!(%error, "the system gives no more memory, below the limit of {}", self.budget.limit());
                false
            }
        }
    }

    /// Gives free segments back to the system, the reserve excepted, until `bytes` more may be taken or none is left.
    pub fn make_room(&self, bytes: usize) {
        while self.budget.used() + bytes > self.budget.limit() {
            let Some(segment) = self.pop(self.reserve) else { return };
            self.release(segment);
        }
    }

    fn release(&self, segment: Pages) {
        drop(segment);
        self.budget.give(Kind::Segments, SEGMENT_BYTES);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pages>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(segments: usize, reserve: usize) -> Pool {
        Pool::new(Arc::new(Budget::without_buffers(segments * SEGMENT_BYTES + SEGMENT_BYTES / 2)), reserve)
    }

    #[test]
    fn the_last_segments_are_for_who_frees_more() {
        let pool = pool(3, 1);
        while pool.grow() {}
        assert_eq!(pool.free(), 2);
        let taken = [pool.take(), pool.take(), pool.take()];
        assert_eq!(taken.iter().flatten().count(), 2);
        let reserved = pool.take_reserved().unwrap();
        assert!(pool.take_reserved().is_none());
        pool.give(reserved);
        assert!(pool.take().is_none());
        taken.into_iter().flatten().for_each(|segment| pool.give(segment));
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn what_is_free_goes_first_when_the_limit_is_lowered() {
        let pool = pool(8, 1);
        while pool.grow() {}
        pool.budget().set_limit(pool.budget().limit() - 5 * SEGMENT_BYTES);
        pool.make_room(0);
        assert_eq!((pool.free(), pool.budget().held(Kind::Segments)), (2, 3 * SEGMENT_BYTES));
        // The reserve stays, and is filled first, whatever the limit is.
        pool.budget().set_limit(0);
        pool.make_room(0);
        let reserved = pool.take_reserved().unwrap();
        assert!(pool.take_reserved().is_none());
        pool.give(reserved);
        assert!(pool.take_reserved().is_some());
    }

    #[test]
    fn a_lower_limit_sends_segments_back_to_the_system() {
        let pool = pool(8, 0);
        while pool.grow() {}
        let segments: Vec<Pages> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(segments.len(), 8);
        pool.budget().set_limit(pool.budget().limit() - 5 * SEGMENT_BYTES);
        segments.into_iter().for_each(|segment| pool.give(segment));
        assert_eq!((pool.free(), pool.budget().held(Kind::Segments)), (3, 3 * SEGMENT_BYTES));
        pool.make_room(2 * SEGMENT_BYTES);
        assert_eq!(pool.free(), 1);
    }
}
