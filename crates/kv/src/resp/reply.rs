//! Replies, and their bytes in RESP 2 and 3.
//!
//! Invariants:
//! - An error or status never contains a line break: a key quoted in one could else forge the reply behind it.
//! - A value of [`VIEW_BYTES_MIN`] or more is passed on as the view it came in, not copied.

use std::borrow::Cow;
use std::collections::VecDeque;

use engine::{Buf, View};

use super::memory::{Hold, LISTED_COST};
use crate::value::Value;

/// Which protocol the peer has chosen by `HELLO`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Protocol {
    /// RESP2, the default.
    #[default]
    Resp2,
    /// RESP3.
    Resp3,
}

impl Protocol {
    /// The number in `HELLO`.
    pub fn number(self) -> i64 {
        match self {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        }
    }
}

/// One reply.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A status such as `OK`.
    Status(Cow<'static, str>),
    /// An error: its code first (`ERR`), then a sentence.
    Error(String),
    /// An error that quotes bytes of the peer's as they came.
    ErrorBytes(Vec<u8>),
    /// A number.
    Integer(i64),
    /// Bytes out of the store.
    Value(Value),
    /// Any other bytes.
    Bulk(Vec<u8>),
    /// Text for people; RESP3 says so (a verbatim string).
    Text(String),
    /// Nothing there.
    Null,
    /// Several replies.
    Array(Vec<Reply>),
    /// Several whose order does not count; in RESP2 an array.
    Set(Vec<Reply>),
    /// Pairs; in RESP2 a flat array.
    Map(Vec<(Reply, Reply)>),
    /// Pairs whose order or repetition counts: arrays of two; in RESP2 a flat array.
    Pairs(Vec<(Reply, Reply)>),
}

impl Reply {
    /// `+OK`.
    pub const OK: Reply = Reply::Status(Cow::Borrowed("OK"));

    /// An error with the general code `ERR`.
    pub fn error(sentence: impl std::fmt::Display) -> Reply {
        Reply::Error(format!("ERR {sentence}"))
    }

    /// The same of parts that need not be text. Redis prints C strings: callers cut what they quote
    /// ([`super::command::c_string`]). An argument may be as long as a value: of a long one the beginning does.
    pub fn error_bytes(parts: &[&[u8]]) -> Reply {
        let parts: Vec<_> = parts.iter().map(|part| &part[..part.len().min(QUOTED_BYTES_MAX)]).collect();
        Reply::ErrorBytes([b"ERR ", &parts.concat()[..]].concat())
    }

    /// Whether it tells of an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_) | Reply::ErrorBytes(_))
    }

    /// A bulk string of this text.
    pub fn bulk(text: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(text.as_ref().to_vec())
    }

    /// Bytes of memory, about: of the payload, and for each item what it takes beside that, which is more than its framing. A
    /// million items without a byte take much.
    pub fn memory_bytes(&self) -> usize {
        let of_item = |item: &Reply| LISTED_COST + item.memory_bytes();
        match self {
            Reply::Value(value) => value.len(),
            Reply::Bulk(bytes) | Reply::ErrorBytes(bytes) => bytes.len(),
            Reply::Text(text) | Reply::Error(text) => text.len(),
            Reply::Array(items) | Reply::Set(items) => items.iter().map(of_item).sum(),
            Reply::Map(pairs) | Reply::Pairs(pairs) => pairs.iter().map(|(k, v)| of_item(k) + of_item(v)).sum(),
            Reply::Status(_) | Reply::Integer(_) | Reply::Null => 0,
        }
    }
}

/// What an error quotes of one argument. Chosen: as much of one as Redis's longest line of such.
const QUOTED_BYTES_MAX: usize = 1024;
/// From this length on a value is sent from where it lies. Guessed: below it a copy costs less than one more segment.
pub const VIEW_BYTES_MIN: usize = 2048;
/// Size of the buffers that short replies are gathered in.
const CHUNK_BYTES: usize = 16 << 10;

/// Encoded replies that wait to be sent, in order.
#[derive(Default, Debug)]
pub struct Output {
    chunks: VecDeque<View>,
    /// Gathers short pieces; owns no memory while there is none.
    tail: Buf,
    bytes: usize,
    /// Bytes that were taken, ever.
    taken: u64,
    /// The room of replies that wait, and where each ends, counted like `taken`.
    holds: VecDeque<(u64, Hold)>,
    held: usize,
    /// The room of replies of which the last piece was taken, until that has been sent.
    on_their_way: Vec<Hold>,
}

impl Output {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes of room that is held for what waits.
    pub fn held(&self) -> usize {
        self.held
    }

    /// The next piece to send.
    pub fn pop(&mut self) -> Option<View> {
        if self.chunks.is_empty() {
            self.seal_tail();
        }
        let chunk = self.chunks.pop_front()?;
        self.bytes -= chunk.len();
        self.taken += chunk.len() as u64;
        while let Some((_, hold)) = self.holds.pop_front_if(|(end, _)| *end <= self.taken) {
            self.held -= hold.bytes();
            self.on_their_way.push(hold);
        }
        Some(chunk)
    }

    /// Gives back the room of what was taken and has been sent.
    pub fn sent(&mut self) {
        self.on_their_way.clear();
    }

    /// Encodes `reply` behind what waits, with the room that it holds.
    pub fn push_holding(&mut self, reply: &Reply, protocol: Protocol, hold: Hold) {
        self.push(reply, protocol);
        if hold.bytes() > 0 {
            self.held += hold.bytes();
            self.holds.push_back((self.taken + self.bytes as u64, hold));
        }
    }

    /// Encodes `reply` behind what waits.
    pub fn push(&mut self, reply: &Reply, protocol: Protocol) {
        match reply {
            Reply::Status(text) => self.line(b'+', text.as_bytes()),
            Reply::Error(text) => self.line(b'-', text.as_bytes()),
            Reply::ErrorBytes(text) => self.line(b'-', text),
            Reply::Integer(number) => self.header(b':', *number),
            Reply::Value(value) => {
                self.header(b'$', length(value.len()));
                value.segments().iter().for_each(|segment| self.view(segment));
                self.bytes(b"\r\n");
            }
            Reply::Bulk(bytes) => self.bulk(bytes),
            Reply::Text(text) if protocol == Protocol::Resp3 => {
                self.header(b'=', length(text.len() + 4));
                self.bytes(b"txt:");
                self.bytes(text.as_bytes());
                self.bytes(b"\r\n");
            }
            Reply::Text(text) => self.bulk(text.as_bytes()),
            Reply::Null if protocol == Protocol::Resp3 => self.bytes(b"_\r\n"),
            Reply::Null => self.bytes(b"$-1\r\n"),
            Reply::Array(items) | Reply::Set(items) => {
                let is_set = matches!(reply, Reply::Set(_)) && protocol == Protocol::Resp3;
                self.header(if is_set { b'~' } else { b'*' }, length(items.len()));
                items.iter().for_each(|item| self.push(item, protocol));
            }
            Reply::Map(pairs) => {
                match protocol {
                    Protocol::Resp2 => self.header(b'*', length(pairs.len() * 2)),
                    Protocol::Resp3 => self.header(b'%', length(pairs.len())),
                }
                for (key, value) in pairs {
                    self.push(key, protocol);
                    self.push(value, protocol);
                }
            }
            Reply::Pairs(pairs) => {
                let flat = protocol == Protocol::Resp2;
                self.header(b'*', length(if flat { pairs.len() * 2 } else { pairs.len() }));
                for (key, value) in pairs {
                    if !flat {
                        self.header(b'*', 2);
                    }
                    self.push(key, protocol);
                    self.push(value, protocol);
                }
            }
        }
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', length(bytes.len()));
        self.bytes(bytes);
        self.bytes(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes(&[kind]);
        if text.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
            let blank = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
            self.bytes(&text.iter().map(blank).collect::<Vec<u8>>());
        } else {
            self.bytes(text);
        }
        self.bytes(b"\r\n");
    }

    fn header(&mut self, kind: u8, number: i64) {
        // 1 kind, 20 digits and sign, 2 line end.
        let (mut text, mut at) = ([0; 23], 21);
        text[21..].copy_from_slice(b"\r\n");
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            text[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            at -= 1;
            text[at] = b'-';
        }
        self.bytes(&[kind]);
        self.bytes(&text[at..]);
    }

    fn bytes(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            if self.tail.capacity() == self.tail.len() {
                self.seal_tail();
                self.tail = Buf::with_capacity(CHUNK_BYTES);
            }
            let now = bytes.len().min(self.tail.capacity() - self.tail.len());
            self.tail.extend_from_slice(&bytes[..now]);
            bytes = &bytes[now..];
        }
    }

    fn view(&mut self, view: &View) {
        if view.len() < VIEW_BYTES_MIN {
            return self.bytes(view);
        }
        self.seal_tail();
        self.bytes += view.len();
        self.chunks.push_back(view.clone());
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.tail).freeze());
        }
    }
}

fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).expect("invariant: no allocation exceeds isize::MAX")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(reply: &Reply, protocol: Protocol) -> Vec<u8> {
        let mut output = Output::default();
        output.push(reply, protocol);
        let announced = output.len();
        let bytes: Vec<u8> = std::iter::from_fn(|| output.pop()).flat_map(|chunk| chunk.to_vec()).collect();
        assert_eq!((announced, output.len()), (bytes.len(), 0));
        bytes
    }

    #[test]
    fn both_protocols() {
        let map = Reply::Map(vec![(Reply::bulk("a"), Reply::Null), (Reply::bulk("b"), Reply::Integer(-7))]);
        assert_eq!(encoded(&map, Protocol::Resp2), b"*4\r\n$1\r\na\r\n$-1\r\n$1\r\nb\r\n:-7\r\n");
        assert_eq!(encoded(&map, Protocol::Resp3), b"%2\r\n$1\r\na\r\n_\r\n$1\r\nb\r\n:-7\r\n");
        let pairs = Reply::Pairs(vec![(Reply::Integer(1), Reply::Integer(2)), (Reply::Integer(1), Reply::Integer(2))]);
        assert_eq!(encoded(&pairs, Protocol::Resp2), b"*4\r\n:1\r\n:2\r\n:1\r\n:2\r\n");
        assert_eq!(encoded(&pairs, Protocol::Resp3), b"*2\r\n*2\r\n:1\r\n:2\r\n*2\r\n:1\r\n:2\r\n");
        let set = Reply::Set(vec![Reply::Integer(1)]);
        assert_eq!(encoded(&set, Protocol::Resp2), b"*1\r\n:1\r\n");
        assert_eq!(encoded(&set, Protocol::Resp3), b"~1\r\n:1\r\n");
        assert_eq!(encoded(&Reply::Text("x".into()), Protocol::Resp2), b"$1\r\nx\r\n");
        assert_eq!(encoded(&Reply::Text("x".into()), Protocol::Resp3), b"=5\r\ntxt:x\r\n");
        assert_eq!(encoded(&Reply::Integer(i64::MIN), Protocol::Resp2), b":-9223372036854775808\r\n");
        assert_eq!(encoded(&Reply::Integer(0), Protocol::Resp2), b":0\r\n");
    }

    #[test]
    fn an_error_cannot_forge_a_second_reply() {
        assert_eq!(encoded(&Reply::error("x\r\n+OK"), Protocol::Resp2), b"-ERR x  +OK\r\n");
    }

    #[test]
    fn long_values_are_passed_on_and_short_pieces_gathered() {
        let mut output = Output::default();
        let value = View::from(Buf::copy_from(&vec![7; CHUNK_BYTES * 3]));
        output.push(&Reply::OK, Protocol::Resp2);
        output.push(&Reply::Value(value.clone().into()), Protocol::Resp2);
        output.push(&Reply::OK, Protocol::Resp2);
        let chunks: Vec<View> = std::iter::from_fn(|| output.pop()).collect();
        assert_eq!(chunks.len(), 3);
        assert_eq!(chunks[1].as_ptr(), value.as_ptr(), "the value was copied");
    }
}
