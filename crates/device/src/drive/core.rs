//! What an open drive is: the state that all its users share, and how they wait for one another.
//!
//! Invariants:
//! - The mutex is held for steps in memory, never across an await, and no waker is woken under it.
//! - A record is applied to the state in the step that enters it into the journal's pending bytes: the order of the journal is
//!   the order in which things happened. Only an intent changes nothing until its data was written.
//! - A command that may enter records is *admitted* from before its first record until its data is written and its checksums
//!   are in their pages. A checkpoint takes the state when nobody is admitted: it never meets a write that is half done.
//! - An admission has room in the journal for all that its command can record: nobody who is admitted waits for room, so a
//!   checkpoint, which waits for them, always comes.
//! - After a write or flush failed nothing is written any more: what the medium holds instead is unknown.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use engine::file::File;

use super::bytes::{Writer, value};
use super::frame::{self, FRAME_BYTES_MAX, FRAME_CONTENT_MAX};
use super::layout::{EXTENT_BYTES_MAX, Layout, PAGE, PAGE_VALUES};
use super::pages::{Pages, UNWRITTEN};
use super::record::{Record, TRANSACTION_HEAD};
use super::registry::Registry;
use super::state::State;
use crate::Error;

/// What every namespace of a drive shares.
pub(super) struct Inner {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) layout: Layout,
    /// The drive's id as the seed of its checksums.
    pub(super) seed: u64,
    pub(super) registry: Registry,
    /// Blocks found damaged since the drive was opened: see [`super::Usage::mismatches`].
    pub(super) mismatches: AtomicU64,
    core: Mutex<Core>,
}

/// The part that changes; see the top.
pub(super) struct Core {
    pub(super) state: State,
    pub(super) pages: Pages,
    pub(super) journal: Journal,
    pub(super) admitted: Admitted,
    pub(super) data: DataStable,
    /// The checkpoint in force.
    pub(super) generation: u64,
    /// Why nothing is written any more.
    pub(super) failed: Option<String>,
    pub(super) read_only: bool,
    extent_units: u32,
    waiters: Vec<Waker>,
    /// Something happened that somebody may wait for.
    wake: bool,
}

/// Where the journal stands.
pub(super) struct Journal {
    /// Transactions that are in no frame yet.
    pub(super) pending: Vec<u8>,
    /// The last sequence given to a transaction.
    pub(super) sequence: u64,
    /// All up to this one are stable.
    pub(super) durable: u64,
    /// The last one whose caller went away before it was.
    pub(super) left: u64,
    /// A frame is being written.
    pub(super) writing: bool,
    /// Number of the next frame.
    pub(super) frame: u64,
    /// Where in the ring it will be.
    pub(super) head: u64,
    /// Bytes of the ring that a crash would need.
    pub(super) used: u64,
    /// Those of them behind the state that the running checkpoint has taken.
    pub(super) since_freeze: u64,
    open: Option<usize>,
}

/// Who may enter records at the moment.
#[derive(Default)]
pub(super) struct Admitted {
    pub(super) commands: usize,
    /// Bytes of the journal they may still need.
    pub(super) reserved: u64,
    /// Somebody found no room and waits for it.
    pub(super) turned_away: bool,
    /// A checkpoint waits for them to end, and nobody new is let in.
    pub(super) freezing: bool,
    /// A checkpoint is under way.
    pub(super) checkpointing: bool,
}

/// Which intents have their data on the medium for good: what flushes have proved. A crash leaves fewer candidates to those.
#[derive(Default)]
pub(super) struct DataStable {
    /// Sequences of intents whose data is not written yet, or never will be.
    pub(super) open: Vec<u64>,
    /// Of the latter: the sequence of each, and that of the intent which takes it back.
    reversed: Vec<(u64, u64)>,
    /// The data of every intent up to this one is stable.
    pub(super) stable: u64,
}

impl DataStable {
    /// The data of every intent up to this one has been written, stable or not.
    pub(super) fn written(&self, sequence: u64) -> u64 {
        self.open.iter().min().map_or(sequence, |first| first - 1)
    }

    pub(super) fn close(&mut self, sequence: u64) {
        if let Some(at) = self.open.iter().position(|&open| open == sequence) {
            self.open.swap_remove(at);
        }
    }

    /// The data of intent `sequence` will never be; `by` takes it back. Until that is stable the intent stays open: a flush that
    /// counted it as written could have its proof in a frame before the one with `by`. Were the power to fail between the two,
    /// recovery would expect what was never written, and give up what is there.
    pub(super) fn reverse(&mut self, sequence: u64, by: u64) {
        self.reversed.push((sequence, by));
    }

    /// Intents taken back by what is stable by now count as written.
    fn settle(&mut self, durable: u64) {
        let (settled, open) = std::mem::take(&mut self.reversed).into_iter().partition(|(_, by)| *by <= durable);
        self.reversed = open;
        let settled: Vec<(u64, u64)> = settled;
        settled.into_iter().for_each(|(sequence, _)| self.close(sequence));
    }
}

impl Journal {
    pub(super) fn new(sequence: u64, frame: u64, head: u64) -> Journal {
        Journal {
            pending: Vec::new(),
            sequence,
            durable: sequence,
            left: 0,
            writing: false,
            frame,
            head,
            used: 0,
            since_freeze: 0,
            open: None,
        }
    }

    /// Bytes of the ring for what is pending, by whoever: a caller that went away has given back the room for its records, and
    /// they are written all the same. A frame that leaves some of them behind is at least a quarter full.
    pub(super) fn left_behind(&self) -> u64 {
        let frames = self.pending.len() / (FRAME_CONTENT_MAX / 4) + 1;
        (frame::frame_bytes(self.pending.len()) + frames * PAGE) as u64
    }
}

impl Inner {
    pub(super) fn new(path: PathBuf, file: File, layout: Layout, core: Core, registry: Registry) -> Arc<Inner> {
        let seed = seed_of(&layout);
        Arc::new(Inner { path, file, seed, layout, registry, mismatches: AtomicU64::new(0), core: Mutex::new(core) })
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic under the mutex is one of our own invariants: the state is no worse than before, and the test fails.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step in memory; whoever waits for what it changed is woken after it.
    pub(super) fn with<T>(&self, step: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let output = step(&mut core);
        let wakers = if std::mem::take(&mut core.wake) { std::mem::take(&mut core.waiters) } else { Vec::new() };
        drop(core);
        wakers.into_iter().for_each(Waker::wake);
        output
    }

    /// Waits until `step` has an answer; it is asked again whenever something has happened.
    pub(super) async fn wait<T>(&self, mut step: impl FnMut(&mut Core) -> Option<T>) -> T {
        poll_fn(|cx| {
            self.with(|core| match step(core) {
                Some(output) => Poll::Ready(output),
                None => {
                    if !core.waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                        core.waiters.push(cx.waker().clone());
                    }
                    Poll::Pending
                }
            })
        })
        .await
    }
}

/// The drive's id as the seed of its checksums.
pub(super) fn seed_of(layout: &Layout) -> u64 {
    value(&layout.id, 0) ^ value(&layout.id, 1).rotate_left(32)
}

impl Core {
    pub(super) fn new(layout: &Layout, state: State, pages: Pages, journal: Journal, generation: u64) -> Core {
        Core {
            state,
            pages,
            journal,
            admitted: Admitted::default(),
            data: DataStable::default(),
            generation,
            failed: None,
            read_only: false,
            extent_units: layout.extent_units(),
            waiters: Vec::new(),
            wake: false,
        }
    }

    pub(super) fn extent_units(&self) -> u32 {
        self.extent_units
    }

    /// The checksum of a unit of the drive, if its page is in memory.
    pub(super) fn value_at(&mut self, unit: u64) -> Option<u64> {
        let (page, slot) = (unit / PAGE_VALUES as u64, (unit % PAGE_VALUES as u64) as usize);
        self.pages.get(page as u32).map(|values| values[slot])
    }

    /// Pages that may be newer than the medium's before nobody more is admitted.
    pub(super) fn dirty_max(&self) -> usize {
        self.pages.clean_max().max(2 * PAGES_PER_COMMAND_MAX)
    }

    /// Those who wait are to look again.
    pub(super) fn changed(&mut self) {
        self.wake = true;
    }

    pub(super) fn writable(&self) -> Result<(), Error> {
        if self.failed.is_some() {
            return Err(Error::ReadOnly("latched after a write error on its medium; see the log of its server"));
        }
        if self.read_only {
            return Err(Error::ReadOnly("its drive was opened read-only"));
        }
        Ok(())
    }

    /// Nothing is written any more; the first reason stays.
    pub(super) fn fail(&mut self, reason: String) -> Error {
        if self.failed.is_none() {
            tracing::error!(reason, "the drive failed: it is read-only from now on");
            self.failed = Some(reason.clone());
        }
        self.changed();
        Error::WriteFault(reason)
    }

    /// Begins a transaction.
    pub(super) fn begin(&mut self) {
        debug_assert!(self.journal.open.is_none(), "a transaction is ended in the step that began it");
        self.journal.open = Some(self.journal.pending.len());
        self.journal.sequence += 1;
        self.journal.pending.extend_from_slice(&[0; TRANSACTION_HEAD]);
    }

    /// Adds a record to the transaction and applies it. The pages it touches are in memory, as the caller has made sure.
    pub(super) fn add(&mut self, record: &Record<'_>) {
        let mut out = Writer(std::mem::take(&mut self.journal.pending));
        record.encode(&mut out);
        self.journal.pending = out.0;
        let sequence = self.journal.sequence;
        if let Err(misfit) = self.state.apply(record, sequence) {
            self.fail(format!("{misfit} ({record:?}): a fault of this program"));
            return;
        }
        match *record {
            Record::Map { extent, .. } => self.fill(extent, 0, self.extent_units, UNWRITTEN),
            Record::Fill { extent, first, count, value } => self.fill(extent, first, count, value),
            Record::Set { extent, first, values } => self.store(extent, first, values),
            Record::Move { extent, values, .. } => self.store(extent, 0, values),
            _ => {}
        }
    }

    /// Ends the transaction: its sequence.
    pub(super) fn end(&mut self) -> u64 {
        let (sequence, at) = (self.journal.sequence, self.journal.open.take().unwrap_or_default());
        let length = (self.journal.pending.len() - at - TRANSACTION_HEAD) as u32;
        let head = &mut self.journal.pending[at..at + TRANSACTION_HEAD];
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&sequence.to_le_bytes());
        sequence
    }

    /// A transaction of one record.
    pub(super) fn log(&mut self, record: &Record<'_>) -> u64 {
        self.begin();
        self.add(record);
        self.end()
    }

    /// Everything up to `last` is in frames that are stable.
    pub(super) fn journaled(&mut self, last: u64) {
        self.journal.durable = last;
        self.state.settle(last);
        self.data.settle(last);
    }

    /// Sets the checksums of units of an extent.
    pub(super) fn store(&mut self, extent: u32, first: u32, values: &[u8]) {
        let mut taken = 0;
        for (page, slots) in self.places(extent, first, values.len() as u32 / 8) {
            for slot in &mut self.pages.change(page)[slots] {
                *slot = value(values, taken);
                taken += 1;
            }
        }
    }

    fn fill(&mut self, extent: u32, first: u32, count: u32, value: u64) {
        for (page, slots) in self.places(extent, first, count) {
            self.pages.change(page)[slots].fill(value);
        }
    }

    /// Where the checksums of units of an extent are: pages, and places in them.
    pub(super) fn places(
        &self,
        extent: u32,
        first: u32,
        count: u32,
    ) -> impl Iterator<Item = (u32, std::ops::Range<usize>)> + use<> {
        places(u64::from(extent) * u64::from(self.extent_units) + u64::from(first), count)
    }

    /// The first page of these units that is not in memory. The caller is admitted and about to change them: those that are
    /// there are kept, or bringing in the next one could drop them.
    pub(super) fn missing(&mut self, extent: u32, first: u32, count: u32) -> Option<u32> {
        self.places(extent, first, count).map(|(page, _)| page).find(|&page| {
            let present = self.pages.is_present(page);
            if present {
                self.pages.keep(page);
            }
            !present
        })
    }
}

/// Pages and places of `count` units from `unit` of the drive.
pub(super) fn places(unit: u64, count: u32) -> impl Iterator<Item = (u32, std::ops::Range<usize>)> {
    let (mut at, end) = (unit, unit + u64::from(count));
    std::iter::from_fn(move || {
        let (page, slot) = (at / PAGE_VALUES as u64, (at % PAGE_VALUES as u64) as usize);
        let len = (end - at).min((PAGE_VALUES - slot) as u64) as usize;
        at += len as u64;
        (len > 0).then_some((page as u32, slot..slot + len))
    })
}

/// Checksum pages that one command can change. Derived: the largest extent of the smallest units, old and new place.
const PAGES_PER_COMMAND_MAX: usize = 2 * (EXTENT_BYTES_MAX as usize / 512 / PAGE_VALUES + 1);

/// Bytes of the ring that transactions of these sizes can take, each in a frame of its own.
pub(super) fn journal_need(transactions: &[usize]) -> u64 {
    transactions.iter().map(|bytes| frame::frame_bytes(bytes + TRANSACTION_HEAD) as u64).sum()
}

/// Bytes of the ring that can't be promised: what is left unused at its end, and the page after the last frame.
pub(super) const RING_SLACK: u64 = (FRAME_BYTES_MAX + PAGE) as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::layout::EXTENT_BYTES_MIN;

    fn core(table: Vec<u64>, clean_max: usize) -> Core {
        let layout = Layout::new([1; 16], 256 << 20, 512, EXTENT_BYTES_MIN, None).expect("room for some extents");
        Core::new(&layout, State::new(&layout), Pages::new(table, clean_max), Journal::new(0, 1, 0), 0)
    }

    /// An extent's first page was in memory and its second one was not: bringing that in used to drop the first, and the
    /// command that had found both panicked.
    #[test]
    fn pages_found_present_stay_until_they_are_changed() {
        let mut core = core((0..512).map(|page| u64::from(page < 64) * 9).collect(), 64);
        for page in 0..64 {
            core.pages.insert(page, std::sync::Arc::new([UNWRITTEN; PAGE_VALUES]));
        }
        for first in (0..64).rev() {
            // Units of one loaded page and of four that were never written.
            let wanted = [first, 100 + first * 4, 101 + first * 4, 102 + first * 4, 103 + first * 4];
            let missing = wanted.iter().find_map(|page| core.missing(page * 4, 0, 512));
            if missing.is_none() {
                wanted.iter().for_each(|&page| core.pages.keep(page));
            }
            core.pages.freeze();
            core.pages.thaw(Some(&[]));
        }
    }
}
