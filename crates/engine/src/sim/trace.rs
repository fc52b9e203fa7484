//! What happened, one line per event, and a running hash of all of it.
//!
//! Invariant: nothing enters the trace that is not a function of the seed and of the code under test: no address of
//! memory, no wall clock, no thread id, no count that outlives a world. Two runs of one seed are the same run exactly if
//! their hashes are equal; the kept text is for the reader.

use std::collections::VecDeque;
use std::fmt::{self, Write};

/// Bytes of text kept unless the complete trace is asked for. Chosen to fill a few screens of a failing test.
pub(super) const TAIL_BYTES_MAX: usize = 16 * 1024;

/// The trace of one world.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    bytes: usize,
    complete: bool,
}

impl Trace {
    /// An empty trace; with `complete` all text is kept, otherwise its last [`TAIL_BYTES_MAX`] bytes.
    pub(super) fn new(complete: bool) -> Trace {
        Trace { hash: 0, lines: VecDeque::new(), bytes: 0, complete }
    }

    /// Appends one line.
    pub(super) fn line(&mut self, now: u64, node: &str, what: fmt::Arguments<'_>) {
        // The oldest line's memory is used again where the tail is full: a busy world traces without allocating.
        let mut line = String::new();
        while !self.complete && self.bytes > TAIL_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.len();
            line = oldest;
            line.clear();
        }
        let _infallible = write!(line, "{:>5}.{:09} {node:<8} {what}", now / 1_000_000_000, now % 1_000_000_000);
        self.hash = hash_bytes(self.hash, line.as_bytes());
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    /// Task number `task` is polled: part of the hash, but too frequent for the text.
    pub(super) fn poll(&mut self, now: u64, task: u64) {
        self.hash = mix(mix(self.hash, now), task);
    }

    /// The kept text, oldest line first.
    pub(super) fn text(&self) -> String {
        let mut text = String::with_capacity(self.bytes + self.lines.len());
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    /// The hash of every line ever added.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    let x = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^ (x >> 29)
}

/// A 64-bit hash of `bytes` chained to `seed`, eight bytes a step. It finds differences between runs; it defends nothing.
pub(super) fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut hash = mix(seed, bytes.len() as u64 ^ 0xA076_1D64_78BD_642F);
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        hash = mix(hash, u64::from_le_bytes(word.try_into().expect("invariant: chunks of eight")));
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(hash, u64::from_le_bytes(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_bounded_and_the_hash_covers_all() {
        let mut tail = Trace::new(false);
        let mut complete = Trace::new(true);
        for i in 0..5_000_u64 {
            tail.line(i, "a", format_args!("event {i}"));
            complete.line(i, "a", format_args!("event {i}"));
        }
        assert!(tail.text().len() < 2 * TAIL_BYTES_MAX);
        assert!(complete.text().ends_with(&tail.text()));
        assert_eq!(complete.text().lines().count(), 5_000);
        assert_eq!(tail.hash(), complete.hash());
    }

    #[test]
    fn the_hash_tells_bytes_and_lengths_apart() {
        assert_ne!(hash_bytes(0, b"12345678"), hash_bytes(0, b"12345679"));
        assert_ne!(hash_bytes(0, b"a"), hash_bytes(0, b"a\0"));
        assert_ne!(hash_bytes(1, b""), hash_bytes(2, b""));
    }
}
