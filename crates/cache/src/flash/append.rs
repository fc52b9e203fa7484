//! Items come into the log.

use std::sync::atomic::Ordering;

use engine::Buf;

use super::FlashLog;
use super::buffer::{NewItem, SegmentBuffer};
use super::counters::{FlashStats, count};
use super::place::{PAGE_BYTES, Place};
use super::state::{FREE_FOR_KEPT, State};
use super::summary;
use crate::KEY_BYTES_MAX;
use crate::item::Meta;

/// Bytes written to the device per hundred of what was admitted: beyond that nothing is kept of collected segments.
/// From the requirement, 110, less one for the pages and the summary that are begun meanwhile. Writing what is admitted takes
/// up to 108 by itself where items are as short as in ETC (docs/cache.md, "Figures"): what is left is little, and where it
/// takes more than 109, nothing. What is admitted then brings the whole to its own share at most, never above it.
const WRITTEN_PERCENT_MAX: u64 = 109;

/// Why an item is appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// It has left memory.
    Admitted,
    /// It is kept although its segment is collected.
    Kept,
}

/// Why an item was not taken. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// All memory for writing is under way, or no segment is free: [`FlashLog::room`] waits for that.
    #[error("flash cannot keep up: all memory for writing is under way, or no segment is free")]
    Full,
    /// It is longer than a segment can hold.
    #[error("an item of {0} bytes is longer than a segment of the flash log holds")]
    TooLong(usize),
    /// Writing it again would write more than the device should bear.
    #[error("the device has borne its share of rewriting")]
    Worn,
    /// The log has failed or was closed.
    #[error("the flash log has ended")]
    Ended,
}

/// Free segments that are not for such an item.
fn kept_back(reason: Reason) -> usize {
    if reason == Reason::Kept { 0 } else { FREE_FOR_KEPT }
}

impl FlashLog {
    /// Puts an item into the log: a copy into memory that is written later. Its place is known, and it can be read
    /// there, at once.
    ///
    /// Of `hash` the upper [`super::HASH_BITS`] count. `key` has 1 to 250 bytes.
    ///
    /// # Errors
    /// It was not taken; see [`Refused`].
    pub fn append(
        &self,
        hash: u64,
        key: &[u8],
        meta: &Meta,
        value: &[&[u8]],
        reason: Reason,
    ) -> Result<Place, Refused> {
        debug_assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "the protocol's limit");
        let mut item = NewItem::new(hash, key, meta, value, self.origin);
        let pages_max = self.geometry.segment_pages - summary::pages(1);
        if item.len > pages_max as usize * PAGE_BYTES {
            return Err(Refused::TooLong(item.len));
        }
        item.seal();
        let mut state = self.lock();
        let put = self.put(&mut state, &mut item, reason);
        // One whole chunk more may be written, or a segment that was sealed.
        let is_work = state.buffers.iter_mut().any(|buffer| buffer.has_work());
        drop(state);
        self.check_journal();
        if is_work {
            self.wake_writer();
        }
        match (&put, reason) {
            (Ok(_), Reason::Admitted) => {
                count(&self.counters.admitted_items, 1);
                count(&self.counters.admitted_bytes, item.content_len());
            }
            (Ok(_), Reason::Kept) => {
                count(&self.counters.kept_items, 1);
                count(&self.counters.kept_bytes, item.content_len());
            }
            (Err(_), _) => count(&self.counters.refused_items, 1),
        }
        put
    }

    fn put(&self, state: &mut State, item: &mut NewItem<'_>, reason: Reason) -> Result<Place, Refused> {
        if state.failed.is_some() || self.is_closed.load(Ordering::Acquire) {
            return Err(Refused::Ended);
        }
        if reason == Reason::Kept && !self.may_write_again(state, item.len) {
            return Err(Refused::Worn);
        }
        let chunk_bytes = self.geometry.chunk_bytes();
        loop {
            let State { buffers, spare, .. } = &mut *state;
            if let Some(buffer) = buffers.back_mut().filter(|buffer| !buffer.is_sealed()) {
                let memory = || spare.pop().unwrap_or_else(|| Buf::zeroed(chunk_bytes));
                match buffer.put(item, memory) {
                    Some(place) => return Ok(place),
                    // An empty segment holds whatever is not too long.
                    None if buffer.is_empty() => return Err(Refused::TooLong(item.len)),
                    None => buffer.seal(),
                }
            }
            self.begin(state, reason)?;
        }
    }

    /// Begins another segment.
    fn begin(&self, state: &mut State, reason: Reason) -> Result<(), Refused> {
        if state.buffers.len() >= self.geometry.buffered_segments_max || state.free.len() <= kept_back(reason) {
            return Err(Refused::Full);
        }
        let segment = state.free.pop_front().ok_or(Refused::Full)?;
        let life = self.change_journal(|journal| journal.begin(segment));
        // First this: who sees the life looks for its items in memory.
        self.buffered[segment as usize].store(true, Ordering::Release);
        self.lives[segment as usize].store(life, Ordering::Release);
        let buffer = SegmentBuffer::new(segment, life, self.geometry.segment_pages, self.geometry.chunk_pages);
        state.buffers.push_back(buffer);
        Ok(())
    }

    /// Whether `bytes` more may be written for what was admitted long ago.
    fn may_write_again(&self, state: &State, bytes: usize) -> bool {
        let stats = self.counters.stats();
        let under_way = state.buffers.iter().map(SegmentBuffer::unwritten_bytes).sum::<usize>() + bytes;
        (stats.device_written_bytes + under_way as u64) * 100 <= stats.admitted_bytes * WRITTEN_PERCENT_MAX
    }

    /// Waits until there may be room for another item that was refused as [`Refused::Full`], or the log has ended; whether
    /// there may be any. Where no segment is free, what was admitted waits until somebody collects one. What is kept does
    /// not: who keeps it has a segment in hand that nobody else gives back.
    pub async fn room(&self, reason: Reason) -> bool {
        let (max, kept_back) = (self.geometry.buffered_segments_max, kept_back(reason));
        self.until(|state| {
            let is_ended = state.failed.is_some() || self.is_closed.load(Ordering::Acquire);
            let is_free = state.free.len() > kept_back;
            if is_ended || state.open_buffer().is_some() || (is_free && state.buffers.len() < max) {
                return Some(true);
            }
            (reason == Reason::Kept && !is_free).then_some(false)
        })
        .await
    }

    /// What it has done.
    pub fn stats(&self) -> FlashStats {
        let free_segments = self.lock().free.len() as u64;
        let segments = u64::from(self.geometry.segments - 1);
        FlashStats { free_segments, segments, ..self.counters.stats() }
    }
}
