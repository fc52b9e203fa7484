//! [`RangeLocks`]: shared and exclusive locks on ranges of blocks, first come first served, from any thread.
//!
//! Invariants:
//! - Two granted locks overlap only if both are shared. This alone is what makes a compare-and-write atomic over a medium
//!   that can only read and write.
//! - Order: a request waits for exactly those earlier requests, granted or not, that it conflicts with. So nobody starves,
//!   and a stream of readers can't keep a writer out.
//! - A request is entered into all of its shards in one step (all their mutexes held, taken in ascending order). Were
//!   it entered shard by shard, two requests could each be first in one of two shards and wait for each other for ever.
//! - A granted request stays granted: only earlier requests block it, and those only ever leave.
//! - No waker is woken and no waker dropped under a mutex: waking may run the drop of a cancelled task, and so of a guard,
//!   which takes the same mutex.
//! - A task holds at most one lock at a time. Two would make a cycle of waiters possible.
//!
//! Mutexes are held for a scan of one shard's requests, never across an await. A shard's vector grows to the largest
//! number of requests ever at once in it and is then reused: nothing is allocated in steady state. How many there can be is
//! bounded by the callers' command slots.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Number of shards: the bits of the mask in which a request remembers where it is entered.
const SHARDS: usize = u64::BITS as usize;
/// Wakers taken out of a shard at a time, to be woken after its mutex is released. Guessed; more are taken in further rounds.
const WAKE_BATCH: usize = 8;

/// How a range is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Together with other shared locks: reads and compares.
    Shared,
    /// Alone: everything that writes.
    Exclusive,
}

/// The locks of one namespace.
#[derive(Debug)]
pub struct RangeLocks {
    shards: Box<[Mutex<Shard>; SHARDS]>,
    /// Blocks of 2^shift neighbours share a shard.
    region_shift: u32,
    /// Source of tickets. Drawn with all mutexes of the request held, so that ticket order is queue order in every shard.
    tickets: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    /// In no particular order: the tickets say who came first.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    range: Range,
    mode: Mode,
    /// Earlier conflicting requests still in this shard. Zero: granted, as far as this shard is concerned.
    blockers: usize,
    waker: Option<Waker>,
}

/// Blocks `first..end`, never empty.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: u64,
    end: u64,
}

impl Range {
    fn overlaps(self, other: Range) -> bool {
        self.first < other.end && other.first < self.end
    }
}

impl Entry {
    fn conflicts_with(&self, range: Range, mode: Mode) -> bool {
        (self.mode == Mode::Exclusive || mode == Mode::Exclusive) && self.range.overlaps(range)
    }
}

impl RangeLocks {
    /// Locks over any number of blocks; ranges within one region of 2^`region_shift` blocks meet in one shard.
    /// A region about as long as the usual transfer keeps most requests in one shard and strangers in different ones.
    pub fn new(region_shift: u32) -> RangeLocks {
        assert!(region_shift < u64::BITS, "a region is at most all blocks");
        RangeLocks {
            shards: Box::new(std::array::from_fn(|_| Mutex::default())),
            region_shift,
            tickets: AtomicU64::new(0),
        }
    }

    /// Waits for the lock on `blocks` blocks (at least one) from `first`. Takes its place in the queue at the first poll;
    /// dropping the future gives the place up.
    pub fn lock(self: &Arc<Self>, first: u64, blocks: u64, mode: Mode) -> Lock {
        assert!(blocks > 0, "an empty range can't be locked");
        let range = Range { first, end: first.saturating_add(blocks) };
        Lock { guard: Some(RangeGuard { locks: Arc::clone(self), range, shards: 0, ticket: 0 }), mode, waiting: 0 }
    }

    /// One bit for each shard in which some block of `range` lives.
    fn shards_of(&self, range: Range) -> u64 {
        let (first, last) = (range.first >> self.region_shift, (range.end - 1) >> self.region_shift);
        let regions = last - first + 1;
        if regions >= SHARDS as u64 {
            return u64::MAX;
        }
        ((1u64 << regions) - 1).rotate_left((first % SHARDS as u64) as u32)
    }

    fn shard(&self, index: u32) -> MutexGuard<'_, Shard> {
        // A panic elsewhere can't leave a shard half changed: no code of others runs under the mutex.
        self.shards[index as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a request into all its shards in one step; returns its ticket and the shards in which it must wait.
    fn enter(&self, range: Range, mode: Mode, shards: u64) -> (u64, u64) {
        let mut held: [Option<MutexGuard<'_, Shard>>; SHARDS] = [const { None }; SHARDS];
        for index in bits(shards) {
            held[index as usize] = Some(self.shard(index));
        }
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let mut waiting = 0;
        for index in bits(shards) {
            if let Some(shard) = &mut held[index as usize]
                && shard.enter(ticket, range, mode)
            {
                waiting |= 1 << index;
            }
        }
        (ticket, waiting)
    }

    /// The same for the usual case, without the array of guards.
    fn enter_one(&self, range: Range, mode: Mode, shards: u64) -> (u64, u64) {
        let mut shard = self.shard(shards.trailing_zeros());
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let waits = shard.enter(ticket, range, mode);
        (ticket, if waits { shards } else { 0 })
    }

    fn leave(&self, ticket: u64, shards: u64) {
        for index in bits(shards) {
            // The leaver's own waker goes out with the first batch: it may be the last reference to a dead task.
            let (mut wakers, own) = {
                let mut shard = self.shard(index);
                let own = shard.leave(ticket);
                (shard.take_ready(), own)
            };
            drop(own);
            loop {
                let full = wakers.iter().all(Option::is_some);
                wakers.into_iter().flatten().for_each(Waker::wake);
                if !full {
                    break;
                }
                wakers = self.shard(index).take_ready();
            }
        }
    }
}

impl Shard {
    /// Returns whether the request has to wait here.
    fn enter(&mut self, ticket: u64, range: Range, mode: Mode) -> bool {
        let blockers = self.entries.iter().filter(|earlier| earlier.conflicts_with(range, mode)).count();
        self.entries.push(Entry { ticket, range, mode, blockers, waker: None });
        blockers > 0
    }

    fn leave(&mut self, ticket: u64) -> Option<Waker> {
        let index = self.entries.iter().position(|entry| entry.ticket == ticket)?;
        let left = self.entries.swap_remove(index);
        for later in self.entries.iter_mut().filter(|entry| entry.ticket > ticket) {
            if later.conflicts_with(left.range, left.mode) {
                later.blockers -= 1;
            }
        }
        left.waker
    }

    fn take_ready(&mut self) -> [Option<Waker>; WAKE_BATCH] {
        let mut wakers = [const { None }; WAKE_BATCH];
        let ready = self.entries.iter_mut().filter(|entry| entry.blockers == 0 && entry.waker.is_some());
        for (place, entry) in wakers.iter_mut().zip(ready) {
            *place = entry.waker.take();
        }
        wakers
    }

    /// Whether the request must still wait here; if so `waker` is told of the change.
    /// The waker it replaces is handed back to be dropped outside.
    fn poll(&mut self, ticket: u64, waker: &Waker) -> (bool, Option<Waker>) {
        match self.entries.iter_mut().find(|entry| entry.ticket == ticket) {
            Some(entry) if entry.blockers > 0 => match &entry.waker {
                Some(known) if known.will_wake(waker) => (true, None),
                _ => (true, entry.waker.replace(waker.clone())),
            },
            Some(entry) => (false, entry.waker.take()),
            None => (false, None),
        }
    }
}

/// A wait for a lock; see [`RangeLocks::lock`].
#[derive(Debug)]
#[must_use = "a lock is taken by awaiting it"]
pub struct Lock {
    /// The guard to be handed out. It leaves the queue when dropped, granted or not; taken once granted.
    guard: Option<RangeGuard>,
    mode: Mode,
    /// Shards that have not granted yet. They are waited for one after the other: what is granted stays granted.
    waiting: u64,
}

impl Future for Lock {
    type Output = RangeGuard;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeGuard> {
        let this = &mut *self;
        let guard = this.guard.as_mut().expect("a finished future is not polled again");
        if guard.shards == 0 {
            let shards = guard.locks.shards_of(guard.range);
            let (ticket, waiting) = if shards.is_power_of_two() {
                guard.locks.enter_one(guard.range, this.mode, shards)
            } else {
                guard.locks.enter(guard.range, this.mode, shards)
            };
            (guard.ticket, guard.shards, this.waiting) = (ticket, shards, waiting);
        }
        for index in bits(this.waiting) {
            let (waits, _replaced) = guard.locks.shard(index).poll(guard.ticket, cx.waker());
            if waits {
                return Poll::Pending;
            }
            this.waiting &= !(1 << index);
        }
        Poll::Ready(this.guard.take().expect("taken only here"))
    }
}

/// A granted lock; released when dropped.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct RangeGuard {
    locks: Arc<RangeLocks>,
    range: Range,
    /// Where it is entered; 0: not yet.
    shards: u64,
    ticket: u64,
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.locks.leave(self.ticket, self.shards);
    }
}

/// The indices of the bits set, ascending.
fn bits(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let index = (mask != 0).then(|| mask.trailing_zeros());
        mask &= mask.wrapping_sub(1);
        index
    })
}

#[cfg(test)]
#[path = "range_lock_tests.rs"]
mod tests;
