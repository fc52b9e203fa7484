//! [`Rope`]: bytes in several pieces of memory, one after the other.

use engine::buf::BUF_BYTES_MAX;
use engine::{Buf, View};

/// Bytes to be written, in pieces as the caller has them.
#[derive(Clone, Debug, Default)]
pub struct Rope {
    parts: Vec<View>,
    len: usize,
}

impl Rope {
    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces.
    pub fn parts(&self) -> &[View] {
        &self.parts
    }

    /// Adds a piece behind the others.
    pub fn push(&mut self, part: View) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }

    /// Adds zeroes.
    pub fn push_zeroes(&mut self, count: usize) {
        let mut left = count;
        let zeroes = Buf::zeroed(left.min(BUF_BYTES_MAX)).freeze();
        while left > 0 {
            let now = left.min(zeroes.len());
            self.push(zeroes.slice(..now));
            left -= now;
        }
    }

    /// A part of it, which lies inside.
    pub fn slice(&self, from: usize, to: usize) -> Rope {
        let (mut rope, mut at) = (Rope::default(), 0);
        for part in &self.parts {
            let (start, end) = (from.clamp(at, at + part.len()), to.clamp(at, at + part.len()));
            if start < end {
                rope.push(part.slice(start - at..end - at));
            }
            at += part.len();
        }
        rope
    }

    /// Copies it to the begin of `out`, which has room.
    pub fn copy_to(&self, out: &mut [u8]) {
        let mut at = 0;
        for part in &self.parts {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// One piece of it, filled up with zeroes to `filled` bytes; without a copy where it is one piece and needs no zeroes.
    pub(crate) fn whole(self, filled: usize) -> View {
        if self.len == filled
            && let [part] = &self.parts[..]
        {
            return part.clone();
        }
        let mut buf = Buf::with_len(filled);
        self.copy_to(&mut buf);
        buf[self.len..].fill(0);
        buf.freeze()
    }

    /// All bytes, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }
}

impl From<View> for Rope {
    fn from(view: View) -> Rope {
        let mut rope = Rope::default();
        rope.push(view);
        rope
    }
}
