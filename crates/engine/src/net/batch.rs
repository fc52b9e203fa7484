//! [`SendBatch`]: what one send gathers: small bytes copied into an arena, payloads as they are.
//!
//! Invariants:
//! - The arena never moves and its bytes before `used` never change until [`SendBatch::clear`]: the kernel may be reading them.
//! - The segments in order are the bytes to send; `len` is their sum.

use crate::{Buf, View};

/// Segments that one batch gathers before it is full. Chosen: three per PDU (head, payload, digest) for 40 PDUs.
pub const SEGMENTS_MAX: usize = 128;
/// Small bytes that one batch gathers before it is full. Chosen: 128 response capsules, with room for longer heads.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// What [`SendBatch::is_full`] being false leaves room for: the head of one PDU...
const HEAD_ROOM: usize = 512;
/// ... with its payload and digests.
const SEGMENT_ROOM: usize = 4;

#[derive(Debug)]
enum Segment {
    Head { start: u32, end: u32 },
    View(View),
}

/// Bytes to send in one go, gathered from many places. Made once and reused: it allocates only while it grows.
#[derive(Debug)]
pub struct SendBatch {
    arena: Buf,
    segments: Vec<Segment>,
    len: usize,
}

impl Default for SendBatch {
    fn default() -> SendBatch {
        SendBatch::new()
    }
}

impl SendBatch {
    /// An empty batch.
    pub fn new() -> SendBatch {
        SendBatch { arena: Buf::default(), segments: Vec::with_capacity(SEGMENTS_MAX), len: 0 }
    }

    /// Appends a copy of `bytes`, which should be few. What no longer fits the arena goes into buffers of its own.
    pub fn head(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.arena.capacity() == 0 {
            // Not before: a batch of payloads alone needs none.
            self.arena = Buf::with_capacity(HEAD_BYTES_MAX);
        }
        let start = self.arena.len();
        if bytes.len() > self.arena.capacity() - start {
            for part in bytes.chunks(crate::buf::BUF_BYTES_MAX) {
                self.view(Buf::copy_from(part).freeze());
            }
            return;
        }
        self.arena.extend_from_slice(bytes);
        self.len += bytes.len();
        let end = self.arena.len() as u32;
        match self.segments.last_mut() {
            // What stands side by side in the arena is one segment: a row of response capsules costs one.
            Some(Segment::Head { end: last, .. }) if *last as usize == start => *last = end,
            _ => self.segments.push(Segment::Head { start: start as u32, end }),
        }
    }

    /// Appends a payload without copying it.
    #[inline]
    pub fn view(&mut self, view: View) {
        if !view.is_empty() {
            self.len += view.len();
            self.segments.push(Segment::View(view));
        }
    }

    /// Bytes to send.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Separate pieces of memory.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Whether the batch should be sent before more is added. A batch that is not full has room for one more PDU.
    pub fn is_full(&self) -> bool {
        self.segments.len() + SEGMENT_ROOM > SEGMENTS_MAX || self.arena.len() + HEAD_ROOM > HEAD_BYTES_MAX
    }

    /// Drops everything, keeping the memory for reuse.
    #[inline]
    pub fn clear(&mut self) {
        self.segments.clear();
        self.arena.set_len(0);
        self.len = 0;
    }

    /// The bytes, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.segments.iter().map(|segment| match segment {
            Segment::Head { start, end } => &self.arena[*start as usize..*end as usize],
            Segment::View(view) => view,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_in_order_and_joins_heads() {
        let mut batch = SendBatch::new();
        batch.head(b"ab");
        batch.head(b"c");
        batch.view(Buf::copy_from(b"payload").freeze());
        batch.view(View::default());
        batch.head(b"d");
        assert_eq!((batch.segments(), batch.len()), (3, 11));
        assert_eq!(batch.slices().collect::<Vec<_>>().concat(), b"abcpayloadd");
        batch.clear();
        assert!(batch.is_empty() && batch.slices().next().is_none());
    }

    #[test]
    fn is_full_before_either_bound_and_takes_more_all_the_same() {
        let mut batch = SendBatch::new();
        let mut expected = vec![];
        while !batch.is_full() {
            batch.head(&[1; 400]);
            expected.extend([1; 400]);
        }
        assert!(batch.len() <= HEAD_BYTES_MAX);
        batch.head(&[2; 20_000]);
        expected.extend([2; 20_000]);
        assert_eq!(batch.slices().collect::<Vec<_>>().concat(), expected);
        batch.clear();
        while !batch.is_full() {
            batch.view(Buf::copy_from(b"x").freeze());
        }
        assert!(batch.segments() <= SEGMENTS_MAX);
    }
}
