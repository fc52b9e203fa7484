//! Bytes that were received and not yet used.

use std::io::BufRead;

use engine::Buf;

/// Bytes that are received at once from a peer that sends much. Chosen: memcached's read buffer.
pub const RECEIVE_BYTES: usize = 16 << 10;
/// Bytes that are received at once from one that sends little: what each of many connections at rest holds.
const LITTLE_BYTES: usize = engine::buf::ALIGN;
/// How many times as much as has come of a command its buffer may hold. What was announced alone takes nothing: many peers that
/// send a head each would push all items out. Chosen: a value of 60 KiB is received in three pieces.
const GROWTH: usize = 4;

/// So much of a command is kept without a buffer while the rest is waited for: a peer that sends one byte and no more would cost
/// eight thousand times as much. Chosen: with more than that a buffer costs little beside what was sent.
const CONDENSED_BYTES_MAX: usize = LITTLE_BYTES * 3 / 4;

/// What was received: `used` bytes of the buffer are done with.
#[derive(Debug, Default)]
pub struct Input {
    buf: Buf,
    used: usize,
    /// What is not yet used, where there is no buffer.
    condensed: Vec<u8>,
    /// Bytes behind `used` that hold no newline, as far as was looked.
    pub scanned: usize,
    /// The last buffer was filled: more may have come already.
    is_filled: bool,
    /// One was filled lately: the peer sends much.
    is_busy: bool,
}

impl Input {
    /// Takes the buffer out, to look at while the session changes; [`Input::put`] puts it back.
    pub fn take(&mut self) -> (Buf, usize) {
        (std::mem::take(&mut self.buf), self.used)
    }

    /// Puts the buffer back of which the first `used` bytes are done with.
    pub fn put(&mut self, buf: Buf, used: usize) {
        self.buf = buf;
        if used != self.used {
            self.scanned = 0;
        }
        self.used = used;
        if self.used == self.buf.len() {
            self.buf.set_len(0);
            self.used = 0;
        }
    }

    /// What is not yet used.
    pub fn bytes(&self) -> &[u8] {
        if self.condensed.is_empty() { &self.buf[self.used..] } else { &self.condensed }
    }

    /// Whether what is not yet used is little enough for [`Input::condense`].
    pub fn is_little(&self) -> bool {
        self.bytes().len() <= CONDENSED_BYTES_MAX
    }

    /// Keeps what is not yet used without a buffer; tells its bytes. Until [`Input::lend`], which comes before anything is used.
    pub fn condense(&mut self) -> usize {
        self.condensed = self.bytes().to_vec();
        (self.buf, self.used) = (Buf::default(), 0);
        self.condensed.len()
    }

    /// Uses the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.used += count;
        self.scanned = 0;
        if self.used >= self.buf.len() {
            self.buf.set_len(0);
            self.used = 0;
        }
    }

    /// The place of the next newline. Slow senders are not looked at from the beginning again.
    pub fn newline(&mut self) -> Option<usize> {
        let bytes = &self.buf[self.used..];
        // A reader over a slice never fails, and looks with the system's fastest search.
        let passed = (&bytes[self.scanned..]).skip_until(b'\n').unwrap_or(0);
        let end = self.scanned + passed;
        if passed > 0 && bytes[end - 1] == b'\n' {
            return Some(end - 1);
        }
        self.scanned = bytes.len();
        None
    }

    /// Bytes of the buffer that [`Input::lend`] has to take for `wanted`; 0 where the one that there is will do, or a little one.
    pub fn lacks(&self, wanted: usize) -> usize {
        let capacity = self.capacity(wanted, LITTLE_BYTES);
        if capacity <= self.buf.capacity().max(LITTLE_BYTES) { 0 } else { capacity }
    }

    /// Bytes of the buffer for what is not yet used and for one more at least, on the way to `wanted` bytes together.
    fn capacity(&self, wanted: usize, usual: usize) -> usize {
        let left = self.bytes().len();
        wanted.min(GROWTH * left).max(left + 1).max(usual).next_power_of_two()
    }

    /// The buffer, with what is not yet used at its beginning and room for more: for all of the `wanted` bytes only when a part of
    /// them has come. `is_roomy`: for a busy peer it may be a longer one.
    pub fn lend(&mut self, wanted: usize, is_roomy: bool) -> Buf {
        let left = self.bytes().len();
        let usual = if self.is_busy && is_roomy { RECEIVE_BYTES } else { LITTLE_BYTES };
        let capacity = self.capacity(wanted, usual);
        let mut buf = std::mem::take(&mut self.buf);
        let condensed = std::mem::take(&mut self.condensed);
        if !condensed.is_empty() {
            buf = Buf::with_capacity(capacity);
            buf.extend_from_slice(&condensed);
            return buf;
        }
        // A longer one, for a long line or value that is over, need not stay.
        if buf.capacity() < capacity || buf.capacity() > 2 * capacity {
            let mut other = Buf::with_capacity(capacity);
            other.extend_from_slice(&buf[self.used..]);
            buf = other;
        } else if self.used > 0 {
            buf.copy_within(self.used.., 0);
            buf.set_len(left);
        }
        self.used = 0;
        buf
    }

    /// Takes the buffer back, with what was received behind what it held.
    pub fn give_back(&mut self, buf: Buf) {
        self.is_filled = buf.len() == buf.capacity();
        self.is_busy = self.is_filled || (self.is_busy && buf.len() > LITTLE_BYTES);
        self.buf = buf;
        self.used = 0;
    }

    /// The buffer ended before what had come did, perhaps: nothing is said yet of a line whose end is missing.
    pub fn may_go_on(&self) -> bool {
        self.is_filled && self.bytes().len() < RECEIVE_BYTES
    }

    /// Whether nothing waits, and then drops the buffer: a connection that rests has none.
    pub fn shrink(&mut self) -> bool {
        let is_empty = self.bytes().is_empty();
        if is_empty {
            *self = Input { is_busy: self.is_busy, ..Input::default() };
        }
        is_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_without_a_buffer_goes_on_in_the_next_one() {
        let mut input = Input::default();
        let come = |input: &mut Input, bytes: &[u8]| {
            let mut buf = input.lend(0, true);
            buf.extend_from_slice(bytes);
            input.give_back(buf);
        };
        come(&mut input, b"get a\r\nge");
        input.consume(7);
        assert_eq!((input.newline(), input.is_little()), (None, true));
        assert_eq!((input.condense(), input.buf.capacity()), (2, 0));
        assert_eq!(input.bytes(), b"ge");
        assert!(!input.shrink(), "something waits");
        come(&mut input, b"t b\r\n");
        assert_eq!((input.newline(), input.bytes()), (Some(6), &b"get b\r\n"[..]));
        input.consume(7);
        assert_eq!(input.condense(), 0);
        come(&mut input, &[b'k'; LITTLE_BYTES]);
        assert!(!input.is_little());
    }
}
