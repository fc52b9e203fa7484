//! The flash log: items that have left memory, on any namespace.
//!
//! A log of segments, each written once from its beginning to its end and then given up as a whole. It knows nothing of
//! the index: who calls keeps for every item a [`Place`] beside some bits of its key's hash, and nothing else.
//!
//! What the caller must do, so that a get gives the latest acknowledged value or a miss:
//! - Under whatever makes changes of one key follow one another (its slot): [`FlashLog::append`] and the change of the
//!   index are one step.
//! - A place that leaves the index for another reason than that its segment was collected is told to
//!   [`FlashLog::invalidate`] before the command that caused it is acknowledged. From then on nobody could.
//! - What was read counts only if the index, looked at again, still has that place, and [`FlashLog::is_current`]. A
//!   place means one item of a key within one life of its segment (see [`buffer`]), and lives are never repeated.
//!
//! What the log does:
//! - What is read is checked: its segment's life, its checksum or its page's, its whole key. Anything else is a miss.
//! - Memory is bounded ([`Options::buffer_bytes`]); who comes when it is used up is refused, at once.
//! - A restart reads the segments' summaries, and takes what the journal does not contradict: the argument is in
//!   [`journal`].
//! - A device that fails ends the log ([`FlashLog::failure`]), not the cache.

pub mod admission;
mod append;
pub(crate) mod buffer;
mod collect;
mod counters;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub(crate) mod item;
pub(crate) mod journal;
mod medium;
mod open;
mod options;
pub(crate) mod page;
mod place;
mod read;
mod recover;
pub(crate) mod shared;
mod state;
pub(crate) mod summary;
pub(crate) mod superblock;
mod tier;
mod write;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use engine::sync::{MailReceiver, MailSender};

pub use append::{Reason, Refused};
pub use collect::{Collection, Listed, Wanted};
pub use counters::FlashStats;
pub use item::Origin;
pub use journal::Boot;
pub use medium::Medium;
pub use open::{Fresh, OpenError, Recovery};
pub use options::{
    BUFFERED_SEGMENTS_MIN, Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MIN, SEGMENTS_WANTED,
};
pub use place::{KIND_BITS, PAGE_BYTES, Place};
pub use read::{Fetched, Lookup};
pub use recover::Restore;
pub use summary::{HASH_BITS, Records};
pub use superblock::FORMAT;
pub(crate) use tier::TakingAll;
pub use tier::Tier;

use counters::Counters;
use journal::Journal;
use options::Geometry;
use state::State;

/// Errors of reads, and bytes that are not what was written, before the log gives up: each counts [`TROUBLE_OF_ONE`],
/// each read that went well takes one off. Guessed: a device of which one read in sixteen fails is no help; a few bad
/// blocks are.
const TROUBLE_MAX: u32 = 1024;
const TROUBLE_OF_ONE: u32 = 16;

/// The log. Shared by all threads as `Arc`; one of them runs [`FlashLog::run`].
pub struct FlashLog {
    namespace: Medium,
    journal: Journal,
    geometry: Geometry,
    origin: Origin,
    secret: [u64; 2],
    state: Mutex<State>,
    /// Of each segment; 0: nothing in it can be read. Changed under the state's lock.
    lives: Box<[AtomicU64]>,
    /// Of each segment: whether it may still be in the state's buffers. Where it is not, readers pass the lock by.
    buffered: Box<[AtomicBool]>,
    trouble: AtomicU32,
    /// Writes that have failed since one went well.
    failed_writes: AtomicU64,
    is_closed: AtomicBool,
    /// It is closed, or being closed.
    is_journal_closed: AtomicBool,
    /// Held by who closes the journal, or has it in use again.
    closing: Mutex<()>,
    counters: Counters,
    writer: MailSender<()>,
    writer_woken: Mutex<Option<MailReceiver<()>>>,
}

impl FlashLog {
    /// The secret of the keys' hashes: what was given when the log began. Hashes under another one find nothing.
    pub fn secret(&self) -> [u64; 2] {
        self.secret
    }

    /// Where the server's clock began.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The item at `place` counts no more, also after the process was killed: to be called before that is acknowledged.
    pub fn invalidate(&self, place: Place) {
        self.change_journal(|journal| journal.mark(place));
        self.check_journal();
    }

    /// Nothing that is in the log counts any more, nor does an item with a smaller cas than `cas_floor`, which may be
    /// on its way into it: to be called before that is acknowledged. The index forgets all places.
    pub fn flush(&self, cas_floor: u64) {
        let mut state = self.lock();
        // What comes from now on is in segments that begin after this.
        state.seal();
        self.change_journal(|journal| journal.flush(cas_floor));
        drop(state);
        self.check_journal();
        self.wake_writer();
    }

    /// Notes that all there is will be flushed at a time to come, in seconds since 1970; 0 takes it back. The caller
    /// flushes when it has come; a restart after it finds nothing.
    pub fn flush_at(&self, unix: u64) {
        self.change_journal(|journal| journal.set_flush_at(unix));
        self.check_journal();
    }

    /// Notes that cas values up to this one may be given: after a restart others follow.
    pub fn reserve_cas(&self, up_to: u64) {
        self.change_journal(|journal| journal.reserve_cas(up_to));
        self.check_journal();
    }

    /// Why the log has ended, if it has: it takes nothing and gives nothing any more. The index should forget all
    /// places.
    pub fn failure(&self) -> Option<String> {
        self.lock().failed.clone()
    }

    /// Whether what was fetched is still where it was: to be asked while the slot of its key is held.
    pub fn is_current(&self, fetched: &Fetched) -> bool {
        self.life_of(fetched.place()) == Some(fetched.life())
    }

    /// Bytes that reading the item at `place` takes at most.
    pub fn read_bytes(&self, place: Place) -> usize {
        place.pages().min(self.geometry.segment_pages) as usize * PAGE_BYTES
    }

    /// Bytes that items can take, before anything is given up.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.geometry.segments - 1) * self.geometry.segment_bytes() as u64
    }

    /// Changes the journal. Where it is closed meanwhile, or was, it no longer is when this returns: power loss would go unnoticed.
    fn change_journal<R>(&self, change: impl FnOnce(&Journal) -> R) -> R {
        let changed = change(&self.journal);
        // Looked at after the change, as whoever closes says so before it makes anything stable: what is stable has the change, or
        // it is seen here.
        if self.is_journal_closed.load(Ordering::SeqCst) {
            self.reopen_journal();
        }
        changed
    }

    fn reopen_journal(&self) {
        // Waits for whoever closes it.
        let _one = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_journal_closed.load(Ordering::SeqCst) {
            if let Err(error) = self.journal.reopen() {
                tracing::error!(%error, "the flash log's journal is in use again, and that may not outlive power loss");
            }
            // Not before: others would go on while it is not stable yet.
            self.is_journal_closed.store(false, Ordering::SeqCst);
        }
    }

    /// Makes the journal closed, unless it is changed meanwhile. Blocks.
    fn close_journal(&self) -> std::io::Result<()> {
        let _one = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_journal_closed.store(true, Ordering::SeqCst);
        let closed = self.journal.close();
        if closed.is_err() {
            self.is_journal_closed.store(false, Ordering::SeqCst);
        }
        closed
    }

    /// Ends the log where its journal was taken away: no restart would know what still counts. Not with the state locked.
    fn check_journal(&self) {
        if self.journal.is_lost() {
            self.fail("its journal was cut short by another program; a restart begins both anew".into());
        }
    }

    /// The life of the segment of `place`.
    fn life_of(&self, place: Place) -> Option<u64> {
        let segment = place.page() / self.geometry.segment_pages;
        let life = self.lives.get(segment as usize)?.load(Ordering::Acquire);
        (life != 0).then_some(life)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics half way while it is held but an allocation; what is then missing are items of a cache.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_writer(&self) {
        // A full mailbox has woken it already; without a receiver nothing is written any more.
        let _ = self.writer.try_send(());
    }

    /// Waits until `look` finds what it looks for.
    async fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        std::future::poll_fn(|context| {
            let mut state = self.lock();
            match look(&mut state) {
                Some(found) => Poll::Ready(found),
                None => {
                    state.add_waiter(context.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Lets all who wait look again.
    fn wake_waiters(&self) {
        let waiters = std::mem::take(&mut self.lock().waiters);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Ends the log: what is on the device counts no more, now or after a restart.
    fn fail(&self, reason: String) {
        let mut state = self.lock();
        if state.failed.is_some() {
            return;
        }
        tracing::error!(%reason, "flash is given up: the cache goes on in memory alone");
        state.failed = Some(reason);
        // First the journal: what cannot be read any more leaves the index, and nobody marks it.
        self.change_journal(|journal| journal.flush(0));
        state.buffers.clear();
        state.spare.clear();
        self.lives.iter().for_each(|life| life.store(0, Ordering::Release));
        drop(state);
        self.wake_writer();
        self.wake_waiters();
    }

    /// A read went well, or not.
    fn note_trouble(&self, what: Option<String>) {
        let Some(what) = what else {
            // Without trouble nothing is written: readers share the line.
            if self.trouble.load(Ordering::Relaxed) > 0 {
                let less = |trouble: u32| trouble.checked_sub(1);
                // It may have become zero meanwhile.
                let _ = self.trouble.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
            return;
        };
        let before = self.trouble.fetch_add(TROUBLE_OF_ONE, Ordering::Relaxed);
        // Once, until it is over: a bad device would fill the log of the machine too.
        if before < TROUBLE_OF_ONE {
            tracing::warn!(%what, "flash");
        }
        if before + TROUBLE_OF_ONE >= TROUBLE_MAX {
            self.fail(format!("too many reads have failed, the last one: {what}"));
        }
    }
}

impl std::fmt::Debug for FlashLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlashLog").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}
