//! Group commit: one durable write carries every transaction that waits.
//!
//! Whoever finds no frame being written takes all that is pending and writes it; the others wait for it, and one of them
//! leads the next frame. So there is at most one frame in the kernel, frames become stable in their order, and at depth
//! 32 one write serves the whole batch.

use std::io;
use std::sync::Arc;

use engine::{Buf, View};

use super::core::{Core, Inner, RING_SLACK};
use super::frame::{FRAME_CONTENT_MAX, FrameHead, frame_bytes, seal};
use super::record::TRANSACTION_HEAD;
use crate::Error;

/// A frame that is ready to be written.
struct Frame {
    at: u64,
    bytes: View,
    /// The last transaction in it.
    last: u64,
}

/// Who writes a frame. Whatever becomes of the future, the end of the write is noted.
struct Leader {
    inner: Arc<Inner>,
    last: u64,
    ended: bool,
}

impl Leader {
    fn end(mut self, result: &io::Result<()>) {
        self.ended = true;
        self.inner.with(|core| {
            core.journal.writing = false;
            match result {
                Ok(()) => core.journaled(self.last),
                Err(error) => {
                    core.fail(format!("journal write on {}: {error}", self.inner.path.display()));
                }
            }
            core.changed();
        });
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if !self.ended {
            // Only the end of its world ends a write without a result.
            self.inner.with(|core| {
                core.journal.writing = false;
                core.fail(format!("journal write on {}: cut off", self.inner.path.display()))
            });
        }
    }
}

enum Turn {
    Done(Result<(), Error>),
    Lead(Frame),
}

/// Who waits for a transaction to be stable. What it says holds in memory, so a flush has to write it if nobody waits.
struct Waiting<'a> {
    inner: &'a Inner,
    sequence: u64,
    ended: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.inner.with(|core| core.journal.left = core.journal.left.max(self.sequence));
        }
    }
}

impl Inner {
    /// Waits until all transactions up to `sequence` are stable.
    pub(super) async fn commit(self: &Arc<Self>, sequence: u64) -> Result<(), Error> {
        let mut waiting = Waiting { inner: self, sequence, ended: false };
        let result = self.write_frames(sequence).await;
        waiting.ended = true;
        result
    }

    async fn write_frames(self: &Arc<Self>, sequence: u64) -> Result<(), Error> {
        loop {
            let turn = self.wait(|core| {
                if core.journal.durable >= sequence {
                    return Some(Turn::Done(Ok(())));
                }
                if let Some(reason) = &core.failed {
                    return Some(Turn::Done(Err(Error::WriteFault(reason.clone()))));
                }
                if core.journal.writing { None } else { Some(Turn::Lead(core.take_frame(self.layout.journal_bytes))) }
            });
            match turn.await {
                Turn::Done(result) => return result,
                Turn::Lead(Frame { at, bytes, last }) => {
                    let leader = Leader { inner: Arc::clone(self), last, ended: false };
                    let offset = self.layout.journal_at + at;
                    let late = |leader: Leader, result: io::Result<()>| leader.end(&result);
                    let (result, leader) = self.file.write_at_holding(offset, bytes, true, leader, late).await;
                    leader.end(&result);
                }
            }
        }
    }

    /// Waits to be let in with `need` bytes of journal: see the invariants of [`super::core`].
    pub(super) async fn admit(self: &Arc<Self>, need: u64) -> Result<Admission, Error> {
        let ring = self.layout.journal_bytes;
        loop {
            let step = self.wait(|core| {
                if let Err(error) = core.writable() {
                    return Some(Some(Err(error)));
                }
                if core.admitted.freezing {
                    return None;
                }
                let room = core.journal.used + core.admitted.reserved + core.journal.left_behind() + need + RING_SLACK;
                let room = room <= ring;
                if room && core.pages.dirty() < core.dirty_max() {
                    core.admitted.commands += 1;
                    core.admitted.reserved += need;
                    let early = core.journal.used > ring / 2 || core.pages.dirty() > core.dirty_max() / 2;
                    return Some(Some(Ok(early && !core.admitted.checkpointing)));
                }
                // Those who are admitted give room back when they end; a checkpoint gives back more.
                core.admitted.turned_away = true;
                if core.admitted.checkpointing { None } else { Some(None) }
            });
            match step.await {
                None => self.checkpoint_soon(),
                Some(Err(error)) => return Err(error),
                Some(Ok(early)) => {
                    let admission = Admission { inner: Arc::clone(self), need };
                    if early {
                        self.checkpoint_soon();
                    }
                    return Ok(admission);
                }
            }
        }
    }
}

impl Core {
    /// Puts pending transactions, as many as fit, into the next frame of the ring.
    fn take_frame(&mut self, ring: u64) -> Frame {
        let journal = &mut self.journal;
        let (mut end, mut last) = (0, journal.durable);
        while let Some(&[a, b, c, d, ref sequence @ ..]) = journal.pending[end..].first_chunk::<TRANSACTION_HEAD>() {
            let next = end + TRANSACTION_HEAD + u32::from_le_bytes([a, b, c, d]) as usize;
            if next > FRAME_CONTENT_MAX {
                break;
            }
            (end, last) = (next, super::bytes::value(sequence, 0));
        }
        // Not beyond what is in the frames: the numbers behind it are given again after a crash, and must prove nothing then.
        let stable = self.data.stable.min(last);
        let head = FrameHead { number: journal.frame, generation: self.generation, stable };
        let len = frame_bytes(end) as u64;
        if journal.head + len > ring {
            let wasted = ring - journal.head;
            (journal.used, journal.since_freeze, journal.head) =
                (journal.used + wasted, journal.since_freeze + wasted, 0);
        }
        let at = journal.head;
        journal.head += len;
        (journal.used, journal.since_freeze) = (journal.used + len, journal.since_freeze + len);
        (journal.frame, journal.writing) = (journal.frame + 1, true);
        let mut frame = Buf::with_len(len as usize);
        seal(&mut frame, head, &journal.pending[..end]);
        journal.pending.drain(..end);
        Frame { at, bytes: frame.freeze(), last }
    }
}

/// The right to enter records; ends when dropped.
pub(super) struct Admission {
    inner: Arc<Inner>,
    need: u64,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.inner.with(|core| {
            core.admitted.commands -= 1;
            core.admitted.reserved -= self.need;
            // Waking everybody at the end of each command would cost the square of the depth: only a checkpoint waits for it,
            // and those whom there was no room for.
            let last = core.admitted.freezing && core.admitted.commands == 0;
            if std::mem::take(&mut core.admitted.turned_away) || last {
                core.changed();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::core::Journal;
    use crate::drive::frame::{Found, find};
    use crate::drive::layout::{EXTENT_BYTES_MIN, Layout};
    use crate::drive::pages::Pages;
    use crate::drive::record::Record;
    use crate::drive::state::State;

    /// A flush may end while records it saw are in no frame yet. Were the frame to say that data is stable beyond itself, the
    /// first intents after a crash, which are given those numbers again, would count as written before they are.
    #[test]
    fn a_frame_proves_nothing_beyond_itself() {
        let layout = Layout::new([1; 16], 64 << 20, 512, EXTENT_BYTES_MIN, None).expect("room for some extents");
        let mut core = Core::new(&layout, State::new(&layout), Pages::new(vec![], 64), Journal::new(0, 1, 0), 0);
        let values = vec![7; 60 << 10];
        for extent in 0..3 {
            core.log(&Record::Intent { extent, first: 0, values: &values });
        }
        core.data.stable = core.data.written(core.journal.sequence);
        for (number, last) in [(1, 2), (2, 3)] {
            let frame = core.take_frame(layout.journal_bytes);
            let Found::Frame(_, head, _) = find(&frame.bytes, 0, number) else { panic!("frame {number} is none") };
            assert_eq!((frame.last, head.stable), (last, last));
        }
    }

    /// A writer went away before its data was written, and its intent was taken back by one that was in no frame yet. A flush
    /// counted the first as written, and the frame in between said so: after a crash the old content, flushed and whole, was
    /// given up for content that never was.
    #[test]
    fn an_intent_is_open_until_what_takes_it_back_is_stable() {
        let layout = Layout::new([1; 16], 64 << 20, 512, EXTENT_BYTES_MIN, None).expect("room for some extents");
        let mut core = Core::new(&layout, State::new(&layout), Pages::new(vec![], 64), Journal::new(0, 1, 0), 0);
        let values = vec![7; 60 << 10];
        for extent in 0..3 {
            core.log(&Record::Intent { extent, first: 0, values: &values });
        }
        core.data.open.push(1);
        core.take_back(1, 0, &mut []);
        for (number, last, proved) in [(1, 2, 0), (2, 4, 0), (3, 4, 4)] {
            core.data.stable = core.data.written(core.journal.sequence);
            let frame = core.take_frame(layout.journal_bytes);
            let Found::Frame(_, head, _) = find(&frame.bytes, 0, number) else { panic!("frame {number} is none") };
            assert_eq!((frame.last, head.stable), (last, proved));
            core.journaled(frame.last);
        }
    }
}
