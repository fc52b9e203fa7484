//! The store: all items, shared by all threads.
//!
//! Shards by the hash's top bits, each behind a mutex of its own that is held for one command's step on one key, or a piece of
//! reclaiming, and never while anything is waited for.
//!
//! Invariants:
//! - What one visit of a key has done, every later visit sees: a key is in one shard, and a visit holds it.
//! - With a shard held no memory is taken from the system or given back to it; `make_room` does that.
//! - No item that was there at a flush is seen by a visit that begins after it.

mod cas;
mod held;
mod restoring;
mod room;
#[cfg(test)]
mod tests;
mod tiered;

use std::convert::Infallible;
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
};
use std::time::Duration;

use engine::Buf;

use crate::hash::Hasher;
use crate::index::Index;
use crate::item::{Item, Key, NEVER, Seconds};
use crate::memory::{Budget, Kind, Pool, SEGMENT_BYTES};
use crate::policy::PolicyKind;
use crate::shard::{Changes, Mark, Progress, Shard, Surroundings, Target};
pub use crate::shard::{Counters, Dropped, Evicted, FlashExit, Lower};
use crate::slot::{Look, NoRoom, Slots};
use cas::CasValues;
pub use held::Held;
pub use restoring::Restoring;
pub use tiered::{OnFlash, Read};

/// The least memory of a shard; a server with little has fewer shards. Chosen: some thirty segments, so that a tenth of them is
/// a queue of several.
const SHARD_BYTES_MIN: usize = 8 << 20;
/// The most shards. Chosen: four times the threads of the largest machines.
const SHARDS_MAX: usize = 1024;
/// Shards per thread: with two threads one in eight visits finds its shard held at most.
const SHARDS_PER_THREAD: usize = 4;

/// The part of the memory that the threads' pools of buffers may keep, as a divisor. Chosen: a chunk of a long value for each of
/// two threads in a small server.
const POOLS_PART: usize = 32;

/// How a store is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreOptions {
    /// Threads that will use it.
    pub threads: usize,
    /// What stays in memory.
    pub policy: PolicyKind,
    /// Items leave to make room; otherwise there is none when memory is full (memcached's `-M`).
    pub evict: bool,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { threads: 1, policy: PolicyKind::default(), evict: true }
    }
}

/// A shard, and what is told of it without holding it.
#[derive(Debug)]
struct Cell {
    shard: Mutex<Shard>,
    weight: AtomicUsize,
    beside: AtomicUsize,
}

/// A value on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// All items.
pub struct Store<L: Lower = ()> {
    cells: Box<[Apart<Cell>]>,
    /// Bits of the hash below those that choose the shard.
    shift: u32,
    hasher: Hasher,
    pool: Pool,
    budget: Arc<Budget>,
    lower: L,
    /// What has a smaller cas, on flash, was flushed.
    cas_floor: u64,
    evict: AtomicBool,
    evicted: OnceLock<Box<Evicted>>,
    /// When a flush that was asked for is due; 0 for none.
    flush_at: AtomicU32,
    flushing: Mutex<()>,
    /// Before this second nobody waits for flash, which does not get on.
    flash_hangs_until: AtomicU32,
    /// The latest time that a visit came with.
    clock: Apart<AtomicU32>,
    cas: Apart<CasValues>,
}

/// How far a scan has come. It begins with the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scan {
    shard: usize,
    mark: Mark,
}

/// What a store holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The limit.
    pub limit: usize,
    /// All that counts against it.
    pub used: usize,
    /// Segments of items.
    pub item_segments: usize,
    /// Segments of the index.
    pub index_segments: usize,
    /// Segments that are free.
    pub free_segments: usize,
    /// What all have done.
    pub counters: Counters,
}

impl Store<()> {
    /// A store whose items are in memory alone, counted against `budget`. For one over flash see [`Store::restoring`] and
    /// [`Store::over`].
    pub fn new(hasher: Hasher, budget: Arc<Budget>, options: StoreOptions) -> Store<()> {
        let wanted = (options.threads.max(1) * SHARDS_PER_THREAD).next_power_of_two();
        let affordable = (budget.limit() / SHARD_BYTES_MIN).max(1);
        let shards = wanted.min(1 << affordable.ilog2()).min(SHARDS_MAX);
        let bytes_each = budget.limit() / shards;
        // What buffers keep for reuse counts as memory, and is nobody's.
        engine::buf::limit_pools(budget.limit() / POOLS_PART / options.threads.max(1));
        let cell = |_| {
            let shard = Shard::new(empty_index(shards, &budget), options.policy.build(bytes_each));
            let beside = shard.bytes_beside();
            budget.take(Kind::Tables, beside);
            Apart(Cell { shard: Mutex::new(shard), weight: AtomicUsize::new(0), beside: AtomicUsize::new(beside) })
        };
        Store {
            cells: (0..shards).map(cell).collect(),
            shift: 63 - shards.ilog2(),
            hasher,
            // One for each of the threads that may move items at the same time.
            pool: Pool::new(budget.clone(), options.threads.clamp(1, shards)),
            budget,
            evict: AtomicBool::new(options.evict),
            evicted: OnceLock::new(),
            lower: (),
            cas_floor: 0,
            flush_at: AtomicU32::new(NEVER.0),
            flushing: Mutex::new(()),
            flash_hangs_until: AtomicU32::new(0),
            clock: Apart::default(),
            cas: Apart(CasValues::default()),
        }
    }
}

impl<L: Lower> Store<L> {
    /// The hash of keys: what is visited has to be hashed by it.
    pub fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// What memory is counted against.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// What takes the items that leave memory.
    pub fn lower(&self) -> &L {
        &self.lower
    }

    /// Whether items leave to make room.
    pub fn evicts(&self) -> bool {
        self.evict.load(Ordering::Relaxed)
    }

    /// Has `tell` told of items that leave memory for want of room, and do not go to flash.
    pub fn tell_evicted(&self, tell: Box<Evicted>) {
        // Who asked first is told.
        let _ = self.evicted.set(tell);
    }

    /// What is held, and what was done.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage {
            limit: self.budget.limit(),
            used: self.budget.used(),
            free_segments: self.budget.held(Kind::Segments) / SEGMENT_BYTES,
            ..Usage::default()
        };
        for cell in &self.cells {
            let shard = cell.0.lock();
            let (items, index) = shard.segments();
            usage.item_segments += items;
            usage.index_segments += index;
            usage.counters += shard.counters();
        }
        usage.free_segments = usage.free_segments.saturating_sub(usage.item_segments + usage.index_segments);
        usage
    }

    /// Tells the next items of a scan over all of them, and takes away those that have expired; `None` when that was all. An item
    /// that is moved meanwhile may be told twice, or not. One shard is held for a hundred items at a time.
    pub fn scan(&self, at: Scan, now: Seconds, mut tell: impl FnMut(&[u8], Item<'_>)) -> Option<Scan> {
        let cell = &self.cells.get(at.shard)?.0;
        let mark = self.with_shard(cell, |shard| shard.scan(at.mark, now, &self.hasher, &self.pool, &mut tell));
        match mark {
            Some(mark) => Some(Scan { shard: at.shard, mark }),
            None => (at.shard + 1 < self.cells.len()).then(|| Scan { shard: at.shard + 1, mark: Mark::default() }),
        }
    }

    /// Sets the limit of memory. Where it is lower than what is held, [`Store::shrink`] is to follow.
    pub fn set_limit(&self, limit: usize) {
        self.budget.set_limit(limit);
        self.pool.note_freed();
        self.pool.make_room(0);
    }

    /// Lets items go until what is held is within the limit.
    ///
    /// # Errors
    /// There is nothing left to let go, or none may; the bytes that are over the limit.
    pub async fn shrink(&self) -> Result<(), NoRoom> {
        while let Err(error) = self.shrink_items().await {
            if !self.give_up_indexes() {
                return Err(error);
            }
            engine::task::yield_now().await;
        }
        Ok(())
    }

    /// As [`Store::shrink`], by items in memory alone: the index of those on flash stays.
    ///
    /// # Errors
    /// As [`Store::shrink`].
    pub async fn shrink_items(&self) -> Result<(), NoRoom> {
        let mut waited = Duration::ZERO;
        loop {
            self.pool.make_room(0);
            let over = self.budget.used().saturating_sub(self.budget.limit());
            if over == 0 {
                return Ok(());
            }
            if self.reclaim(&mut waited).await == Progress::Nothing {
                return Err(NoRoom { bytes: over });
            }
            engine::task::yield_now().await;
        }
    }

    /// Gives up the indexes that lead to no item in memory; whether there were any.
    fn give_up_indexes(&self) -> bool {
        let give_up = |cell: &Apart<Cell>| {
            self.with_shard(&cell.0, |shard| self.evicts() && shard.give_up_index(&self.lower, &self.pool))
        };
        self.cells.iter().filter(|cell| give_up(cell)).count() > 0
    }

    fn cell(&self, hash: u64) -> &Cell {
        // Two steps: a shift by all 64 bits, for a single shard, would be no shift.
        &self.cells[((hash >> self.shift) >> 1) as usize].0
    }

    fn now(&self) -> Seconds {
        Seconds(self.clock.0.load(Ordering::Relaxed))
    }

    fn note_time(&self, now: Seconds) {
        if self.clock.0.load(Ordering::Relaxed) < now.0 {
            self.clock.0.fetch_max(now.0, Ordering::Relaxed);
        }
    }

    /// Runs a step with a shard held; what it leaves behind is dropped when the shard was let go.
    fn with_shard<R>(&self, cell: &Cell, step: impl FnOnce(&mut Shard) -> R) -> R {
        let mut shard = cell.lock();
        let answer = step(&mut shard);
        let changes = shard.take_changes();
        if let Some(changes) = &changes {
            cell.weight.store(changes.weight, Ordering::Relaxed);
            changes.stale.iter().for_each(|&place| self.lower.invalidate(place));
        }
        drop(shard);
        if let Some(Changes { beside, garbage, .. }) = changes {
            drop(garbage);
            if cell.beside.load(Ordering::Relaxed) != beside {
                let before = cell.beside.swap(beside, Ordering::Relaxed);
                self.budget.take(Kind::Tables, beside);
                self.budget.give(Kind::Tables, before);
            }
        }
        answer
    }

    fn surroundings<'a>(&'a self, lower: &'a dyn Lower, waits: bool) -> Surroundings<'a> {
        let evicted = self.evicted.get().map(|tell| &**tell);
        Surroundings { now: self.now(), hasher: &self.hasher, pool: &self.pool, lower, evicted, waits }
    }

    /// Flushes if it is time for a flush that was asked for. Whoever comes meanwhile waits until all is gone.
    fn flush_if_due(&self, now: Seconds) {
        let is_due = |at: u32| at != NEVER.0 && at <= now.0;
        if !is_due(self.flush_at.load(Ordering::Acquire)) {
            return;
        }
        let _one = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if is_due(self.flush_at.load(Ordering::Acquire)) {
            self.clear();
            self.flush_at.store(NEVER.0, Ordering::Release);
            self.lower.flush_at(NEVER);
        }
    }

    fn clear(&self) {
        // What is put while shards are emptied may already have left one for flash, and lost its entry: that goes too. What is put
        // into a shard that was emptied has a greater cas.
        let floor = self.cas.0.last() + 1;
        for cell in &self.cells {
            self.with_shard(&cell.0, |shard| shard.clear(&self.pool));
        }
        self.lower.flush(floor);
    }

    /// What begins every visit.
    fn arrive(&self, now: Seconds) {
        self.note_time(now);
        self.flush_if_due(now);
    }

    fn flush_all(&self, at: Seconds, now: Seconds) {
        self.arrive(now);
        let _one = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if at <= now {
            self.clear();
            self.flush_at.store(NEVER.0, Ordering::Release);
            self.lower.flush_at(NEVER);
            // memcached spends one, and clients may count on what follows.
            self.cas.0.next(&self.lower);
        } else {
            self.lower.flush_at(at);
            self.flush_at.store(at.0, Ordering::Release);
        }
    }
}

/// The index that a shard begins with, one of so many.
fn empty_index(shards: usize, budget: &Budget) -> Index {
    Index::new(shards.ilog2(), Index::first_level(budget.limit() / shards))
}

/// All threads use one store, over any tier.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Store<()>>();
    shared::<Store<crate::flash::Tier>>();
};

impl Cell {
    fn lock(&self) -> MutexGuard<'_, Shard> {
        // A panic under the lock is a bug that the server does not survive in order: `make test` shows none.
        self.shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots for Store<()> {
    /// There is no flash, so that no item is there.
    type Place = Infallible;
    type Fetched = Infallible;
    type Slot<'a> = Held<'a>;

    fn visit<R>(
        &self,
        key: &Key<'_>,
        now: Seconds,
        _look: Look<Infallible>,
        visit: impl FnOnce(&mut Held<'_>) -> R,
    ) -> Result<R, Infallible> {
        self.arrive(now);
        Ok(self.with_shard(self.cell(key.hash()), |shard| {
            let target = shard.find(key, now, &self.pool).map_or(Target::Nothing, Target::Memory);
            visit(&mut Held::new(self, shard, *key, now, target, None))
        }))
    }

    async fn fetch(&self, place: Infallible) -> Infallible {
        match place {}
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

impl<L: Lower> std::fmt::Debug for Store<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("shards", &self.cells.len()).field("budget", &self.budget).finish_non_exhaustive()
    }
}
