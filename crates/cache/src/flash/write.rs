//! Items leave memory for the device: one task writes what is full, in large sequential writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::{Durability, Error, Lba};
use engine::task::LocalFuture;
use engine::{Buf, View, task};

use super::FlashLog;
use super::buffer::{Part, SegmentBuffer};
use super::counters::count;
use super::place::PAGE_BYTES;
use super::state::State;
use super::summary;

/// Writes under way. Guessed: enough to keep a device busy with writes of 1 MiB, few enough for reads to come through.
const WRITES_MAX: usize = 4;
/// Failed writes, one right after another, before the log is given up. Guessed: a path that is lost for a moment costs
/// a segment or two.
const FAILED_WRITES_MAX: u64 = 4;

/// Something to be written.
enum Job {
    Part(Part),
    /// All else of the segment is on the medium.
    Summary {
        page: u64,
        records: Vec<u64>,
    },
}

impl Job {
    /// Bytes to be written.
    fn bytes(&self) -> usize {
        match self {
            Job::Part(part) => part.bytes.len(),
            Job::Summary { records, .. } => summary::pages(records.len()) as usize * PAGE_BYTES,
        }
    }
}

/// A job, and for whom.
struct Write {
    segment: u32,
    life: u64,
    job: Job,
}

impl State {
    fn next_write(&mut self) -> Option<Write> {
        self.buffers.iter_mut().find_map(|buffer| {
            let job = match buffer.next_part() {
                Some(part) => Job::Part(part),
                None => Job::Summary { records: buffer.take_records()?, page: buffer.summary_page() },
            };
            Some(Write { segment: buffer.segment, life: buffer.life, job })
        })
    }

    /// Keeps a chunk's memory, if what is in use may become so much; whether it did.
    fn add_spare(&mut self, buf: Buf, chunks_max: usize, chunks_per_segment: usize) -> bool {
        let is_wanted =
            self.spare.len() + self.buffers.len() * chunks_per_segment < chunks_max && self.failed.is_none();
        if is_wanted {
            self.spare.push(buf);
        }
        is_wanted
    }

    fn buffer_of(&self, segment: u32, life: u64) -> Option<usize> {
        self.buffers.iter().position(|buffer| buffer.segment == segment && buffer.life == life)
    }
}

impl FlashLog {
    /// Writes what is to be written, until the log has ended and nothing is left. One task runs it, on any thread; a
    /// second one ends at once.
    pub fn run(self: Arc<Self>) -> LocalFuture<'static, ()> {
        Box::pin(async move {
            let receiver = self.writer_woken.lock().map(|mut receiver| receiver.take()).unwrap_or(None);
            let Some(receiver) = receiver else { return };
            self.prepare_memory().await;
            // The log has a sender: the mailbox never ends by itself.
            while !self.start_writes() && receiver.recv().await.is_some() {}
        })
    }

    /// Starts the writes there are; whether there are none any more, for ever.
    fn start_writes(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        while state.writing < WRITES_MAX
            && let Some(write) = state.next_write()
        {
            state.writing += 1;
            // Under the lock that also says what is still to be written: no byte is in neither.
            count(&self.counters.device_written_bytes, write.job.bytes());
            task::spawn(Arc::clone(self).carry_out(write)).detach();
        }
        let is_ended = state.failed.is_some() || self.is_closed.load(Ordering::Acquire);
        is_ended && state.writing == 0 && state.buffers.is_empty()
    }

    async fn carry_out(self: Arc<Self>, write: Write) {
        let Write { segment, life, job } = write;
        let is_summary = matches!(job, Job::Summary { .. });
        let result = match job {
            Job::Part(part) => self.write_pages(part.page, part.bytes).await,
            Job::Summary { page, records } => self.write_summary(segment, life, page, &records).await,
        };
        match &result {
            Ok(()) => self.failed_writes.store(0, Ordering::Relaxed),
            Err(error) => {
                count(&self.counters.write_errors, 1);
                tracing::warn!(segment, %error, "flash: a segment could not be written");
            }
        }
        let settled = self.settle(segment, life, is_summary, result);
        if let Some(Err(error)) = &settled {
            self.note_failed_write(error);
        }
        // Before anything is waited for: with the last write the reactor may end, and this with it.
        self.wake_writer();
        self.wake_waiters();
        if let Some(Ok(done)) = settled {
            tracing::trace!(segment, life, "flash: a segment is written");
            self.take_memory(done).await;
        }
    }

    /// A write has ended: what is done with, of a segment that is complete, or could not be written.
    fn settle(
        &self,
        segment: u32,
        life: u64,
        is_summary: bool,
        result: Result<(), Error>,
    ) -> Option<Result<SegmentBuffer, Error>> {
        let mut state = self.lock();
        state.writing -= 1;
        // It may have been given up meanwhile, with all its writes.
        let index = state.buffer_of(segment, life)?;
        match result {
            Ok(()) if is_summary => {
                state.sealed.push_back(segment);
                self.buffered[segment as usize].store(false, Ordering::Release);
                state.buffers.remove(index).map(Ok)
            }
            Ok(()) => {
                state.buffers[index].note_written();
                None
            }
            Err(error) => {
                self.abandon(&mut state, index);
                Some(Err(error))
            }
        }
    }

    /// A segment that could not be written: its items are gone.
    fn abandon(&self, state: &mut State, index: usize) {
        let Some(buffer) = state.buffers.remove(index) else { return };
        self.change_journal(|journal| journal.strike(buffer.segment));
        self.lives[buffer.segment as usize].store(0, Ordering::Release);
        count(&self.counters.abandoned_segments, 1);
        state.abandoned.push_back((buffer.segment, buffer.into_records()));
    }

    fn note_failed_write(&self, error: &Error) {
        let failed = self.failed_writes.fetch_add(1, Ordering::Relaxed) + 1;
        // These say that no other write will do better.
        let is_final = matches!(error, Error::OutOfSpace | Error::ReadOnly(_) | Error::OutOfRange { .. });
        if is_final || failed >= FAILED_WRITES_MAX {
            self.fail(format!("the device takes no writes: {error}"));
        }
    }

    /// All memory that may be used is had before it is: to zero it takes its time, which an append has not.
    async fn prepare_memory(&self) {
        while self.add_spare(Buf::zeroed(self.geometry.chunk_bytes())) {
            task::yield_now().await; // others wait for this thread
        }
    }

    /// Chunks whose content is on the medium are zeroed and used again: what is left of a page is written with it.
    async fn take_memory(&self, buffer: SegmentBuffer) {
        for mut buf in buffer.into_memory() {
            buf.set_len(self.geometry.chunk_bytes());
            buf.fill(0);
            self.add_spare(buf);
            task::yield_now().await;
        }
    }

    fn add_spare(&self, buf: Buf) -> bool {
        let per_segment = (self.geometry.segment_pages / self.geometry.chunk_pages) as usize;
        self.lock().add_spare(buf, self.geometry.buffered_segments_max * per_segment, per_segment)
    }

    async fn write_summary(&self, segment: u32, life: u64, page: u64, records: &[u64]) -> Result<(), Error> {
        let bytes = summary::encode(life, segment, records);
        let mut page = page;
        for piece in bytes.chunks(self.geometry.chunk_bytes()) {
            self.write_pages(page, Buf::copy_from(piece).freeze()).await?;
            page += (piece.len() / PAGE_BYTES) as u64;
        }
        Ok(())
    }

    async fn write_pages(&self, page: u64, bytes: View) -> Result<(), Error> {
        count(&self.counters.device_writes, 1);
        let lba = Lba(page * self.geometry.blocks_per_page);
        self.namespace.write(lba, bytes, Durability::Cached).await
    }

    /// Ends the log in good order: what is in memory is written and made stable, and the journal says so.
    /// [`FlashLog::run`] must be running, and ends. Nothing is taken any more; reads go on.
    ///
    /// # Errors
    /// It could not all be made stable: a restart takes what the journal, as after a kill, allows.
    pub fn close(&self) -> LocalFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.is_closed.store(true, Ordering::Release);
            self.lock().seal();
            self.wake_writer();
            self.wake_waiters();
            let is_done = |state: &mut State| match &state.failed {
                Some(reason) => Some(Err(reason.clone())),
                None => (state.buffers.is_empty() && state.writing == 0).then_some(Ok(())),
            };
            self.until(is_done).await?;
            self.namespace.flush().await.map_err(|error| error.to_string())?;
            self.close_journal().map_err(|error| format!("its journal: {error}"))
        })
    }
}
