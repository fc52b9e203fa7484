//! What happened, one line per event, and a running hash of all of it.
//!
//! Invariant: nothing enters the trace that is not a function of the seed and of the code under test: no address of
//! memory, no wall clock, no thread id, no count that outlives a world. Two runs of one seed are the same run exactly if
//! their hashes are equal; the kept text is for the reader.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::path::Path;
use std::rc::Rc;

/// Bytes of text kept unless the complete trace is asked for. Chosen to fill a few screens of a failing test.
pub(super) const TAIL_BYTES_MAX: usize = 16 * 1024;

/// Bytes that an event counts for in the tail. Guessed: what its line has.
const EVENT_BYTES: usize = 60;

/// What happens all the time: kept as it is, and made a line only for whoever reads it.
#[derive(Debug)]
pub(super) enum Frequent {
    /// So many bytes are sent on a connection.
    Sends { conn: u64, bytes: usize },
    /// A segment arrives.
    Arrives { conn: u64, bytes: usize, hash: u64 },
    /// A program takes bytes.
    Takes { conn: u64, bytes: usize },
    /// A disk's command begins.
    Begins { op: u64, path: Rc<Path>, what: &'static str, offset: u64, len: u64, stable: bool },
    /// It ends; of a read that is the hash of what was read.
    Ends { op: u64, outcome: &'static str, hash: Option<u64> },
}

impl Frequent {
    /// All that tells it from others, as numbers.
    fn words(&self) -> [u64; 4] {
        match self {
            Frequent::Sends { conn, bytes } => [1, *conn, *bytes as u64, 0],
            Frequent::Arrives { conn, bytes, hash } => [2, *conn, *bytes as u64, *hash],
            Frequent::Takes { conn, bytes } => [3, *conn, *bytes as u64, 0],
            Frequent::Begins { op, path, what, offset, len, stable } => {
                let text = hash_bytes(hash_bytes(0, path.as_os_str().as_encoded_bytes()), what.as_bytes());
                [4 + u64::from(*stable), *op, *offset, mix(text, *len)]
            }
            Frequent::Ends { op, outcome, hash } => {
                [6 + u64::from(hash.is_some()), *op, hash_bytes(0, outcome.as_bytes()), hash.unwrap_or(0)]
            }
        }
    }
}

impl fmt::Display for Frequent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Frequent::Sends { conn, bytes } => write!(f, "c{conn} > {bytes} bytes"),
            Frequent::Arrives { conn, bytes, hash } => write!(f, "c{conn} < {bytes} bytes {hash:016x}"),
            Frequent::Takes { conn, bytes } => write!(f, "c{conn} takes {bytes}"),
            Frequent::Begins { op, path, what: "sync", .. } => write!(f, "d{op} {} sync", path.display()),
            Frequent::Begins { op, path, what, offset, len, stable } => {
                let stable = if *stable { " durable" } else { "" };
                write!(f, "d{op} {} {what} {offset}+{len}{stable}", path.display())
            }
            Frequent::Ends { op, outcome, hash: Some(hash) } => write!(f, "d{op} {outcome} {hash:016x}"),
            Frequent::Ends { op, outcome, hash: None } => write!(f, "d{op} {outcome}"),
        }
    }
}

#[derive(Debug)]
enum Line {
    Text(String),
    Event { at: u64, node: Rc<str>, what: Frequent },
}

impl Line {
    fn bytes(&self) -> usize {
        match self {
            Line::Text(text) => text.len(),
            Line::Event { .. } => EVENT_BYTES,
        }
    }
}

fn begin(line: &mut String, at: u64, node: &str) {
    let _infallible = write!(line, "{:>5}.{:09} {node:<8} ", at / 1_000_000_000, at % 1_000_000_000);
}

/// The trace of one world.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    lines: VecDeque<Line>,
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
        let mut line = String::new();
        begin(&mut line, now, node);
        let _infallible = line.write_fmt(what);
        self.hash = hash_bytes(self.hash, line.as_bytes());
        self.keep(Line::Text(line));
    }

    /// The same of what happens all the time, at no cost of text.
    pub(super) fn frequent(&mut self, now: u64, node: &Rc<str>, what: Frequent) {
        let node_hash = hash_bytes(self.hash, node.as_bytes());
        self.hash = what.words().into_iter().fold(mix(node_hash, now), mix);
        self.keep(Line::Event { at: now, node: node.clone(), what });
    }

    fn keep(&mut self, line: Line) {
        while !self.complete && self.bytes > TAIL_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.bytes();
        }
        self.bytes += line.bytes();
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
            match line {
                Line::Text(line) => text.push_str(line),
                Line::Event { at, node, what } => {
                    begin(&mut text, *at, node);
                    let _infallible = write!(text, "{what}");
                }
            }
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
    fn what_happens_all_the_time_is_told_apart_and_read_as_lines() {
        let path: Rc<Path> = Path::new("/disk").into();
        let begins =
            |what, len, stable| Frequent::Begins { op: 1, path: path.clone(), what, offset: 4096, len, stable };
        let events = || {
            let ends = [("ok", None), ("EIO", None), ("ok", Some(7))];
            let ends = ends.map(|(outcome, hash)| Frequent::Ends { op: 1, outcome, hash });
            let begun = [begins("read", 512, false), begins("read", 1024, false), begins("write", 512, false)];
            let begun = begun.into_iter().chain([begins("write", 512, true), begins("sync", 0, false)]);
            let sent = [Frequent::Sends { conn: 1, bytes: 9 }, Frequent::Takes { conn: 1, bytes: 9 }];
            let came = [7, 8].map(|hash| Frequent::Arrives { conn: 1, bytes: 9, hash });
            begun.chain(ends).chain(sent).chain(came)
        };
        let mut all: Vec<(u64, String)> = Vec::new();
        for (node, at) in [("a", 1), ("b", 1), ("a", 2)] {
            for event in events() {
                let mut trace = Trace::new(false);
                trace.frequent(at, &node.into(), event);
                all.push((trace.hash(), trace.text()));
            }
        }
        for (index, (hash, text)) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|(other, told)| other != hash && told != text), "{text}");
        }
        assert_eq!(all[3].1, "    0.000000001 a        d1 /disk write 4096+512 durable\n");
    }

    #[test]
    fn the_hash_tells_bytes_and_lengths_apart() {
        assert_ne!(hash_bytes(0, b"12345678"), hash_bytes(0, b"12345679"));
        assert_ne!(hash_bytes(0, b"a"), hash_bytes(0, b"a\0"));
        assert_ne!(hash_bytes(1, b""), hash_bytes(2, b""));
    }
}
