//! Room in memory: free segments, or what items leave behind.

use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{Buf, time};

use super::{Apart, Cell, Lower, Store};
use crate::memory::{Kind, SEGMENT_BYTES};
use crate::shard::{Effort, Progress};
use crate::slot::{NoRoom, chunk_lengths};

/// How long one who wants room in memory waits for room in flash's buffers, before an item that flash has room for is given up.
/// Guessed: many times what a segment takes to be written, less than clients wait.
const FLASH_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long nobody waits after somebody has waited in vain, and nothing was written. Guessed: where a device hangs that costs one
/// in ten seconds.
const FLASH_HANGS_SECONDS: u32 = 10;

/// How often all segments are reclaimed for one that asks for room. Derived: once for each popularity, and as often to be sure.
const ROUNDS_MAX: usize = 2 * (crate::policy::POPULARITY_MAX as usize + 1);

impl<L: Lower> Store<L> {
    pub(super) async fn room(&self, no_room: NoRoom) -> Result<(), NoRoom> {
        // An item can stay a few rounds before it leaves; then there is room, unless others take it faster than it is made.
        let mut left = ROUNDS_MAX * (self.budget.limit() / SEGMENT_BYTES + 1);
        let mut waited = Duration::ZERO;
        // What connections give back is room too, but not what they take and give back all the time.
        if self.budget.room() >= self.budget.slack().max(2 * SEGMENT_BYTES) {
            self.pool.note_freed();
        }
        while self.pool.is_full() || !self.has_room(no_room.bytes) {
            let is_possible = no_room.bytes <= self.budget.limit();
            let progress = if is_possible { self.reclaim(&mut waited).await } else { Progress::Nothing };
            left -= usize::from(progress == Progress::Freed);
            if left == 0 || progress == Progress::Nothing {
                if !self.evicts() && no_room.bytes <= SEGMENT_BYTES {
                    self.pool.note_full();
                }
                return Err(no_room);
            }
            engine::task::yield_now().await;
        }
        Ok(())
    }

    pub(super) fn buffers(&self, bytes: usize) -> Result<Vec<Buf>, NoRoom> {
        let lengths = chunk_lengths(bytes);
        let needed = lengths.clone().map(Buf::system_size).sum();
        self.with_room(needed, || lengths.map(Buf::with_capacity).collect())
    }

    /// One of the buffers for a value of so many bytes.
    pub(super) fn buffer(&self, bytes: usize, of: usize) -> Result<Buf, NoRoom> {
        let whole = chunk_lengths(of).map(Buf::system_size).sum();
        // All items would leave for a value that cannot be stored.
        if whole > self.budget.limit() {
            return Err(NoRoom { bytes: whole });
        }
        self.with_room(Buf::system_size(bytes), || Buf::with_capacity(bytes))
    }

    /// Takes buffers that hold so many bytes.
    fn with_room<T>(&self, needed: usize, take: impl FnOnce() -> T) -> Result<T, NoRoom> {
        self.pool.make_room(needed);
        self.budget.try_take(Kind::Pending, needed)?;
        let taken = take();
        self.budget.give(Kind::Pending, needed);
        Ok(taken)
    }

    /// As [`Store::reclaim_piece`]. Where the next item has to wait for flash it does, as long as that makes `waited`
    /// [`FLASH_WAIT_MAX`] at most; then it is given up.
    pub(super) async fn reclaim(&self, waited: &mut Duration) -> Progress {
        let waits = *waited < FLASH_WAIT_MAX && self.now().0 >= self.flash_hangs_until.load(Ordering::Relaxed);
        let progress = self.reclaim_piece(waits);
        if progress != Progress::Busy {
            return progress;
        }
        let (began, written) = (time::now(), self.lower.written_bytes());
        let is_over = time::timeout(FLASH_WAIT_MAX - *waited, self.lower.room()).await.is_err();
        let this_time = began.elapsed();
        *waited += this_time;
        // Others would wait as long, one after another, while nothing is written at all.
        if is_over && this_time >= FLASH_WAIT_MAX / 2 && self.lower.written_bytes() == written {
            self.flash_hangs_until.store(self.now().0 + FLASH_HANGS_SECONDS, Ordering::Relaxed);
        }
        Progress::Partly
    }

    /// Reclaims a piece of the shard that holds most, or of another if it has nothing. `waits`: what flash is too busy for is not
    /// given up.
    pub(super) fn reclaim_piece(&self, waits: bool) -> Progress {
        let effort = if self.evicts() { Effort::Evict } else { Effort::Compact };
        let around = self.surroundings(&self.lower, waits);
        let weight = |cell: &&Apart<Cell>| cell.0.weight.load(Ordering::Relaxed);
        let Some(fullest) = self.cells.iter().max_by_key(weight) else { return Progress::Nothing };
        let step = |cell: &Cell| self.with_shard(cell, |shard| shard.reclaim(effort, &around));
        let progress = step(&fullest.0);
        if progress != Progress::Nothing {
            return progress;
        }
        let mut others = self.cells.iter().map(|cell| step(&cell.0));
        others.find(|&progress| progress != Progress::Nothing).unwrap_or(Progress::Nothing)
    }

    /// Whether what could not be had can be had now. What is free is given back to the system where that is what is missing.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        if bytes <= SEGMENT_BYTES {
            while self.pool.free() == 0 && self.pool.grow() {}
            return self.pool.free() > 0;
        }
        self.pool.make_room(bytes);
        self.budget.room() >= bytes
    }
}
