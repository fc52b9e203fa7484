//! Commands out of a byte stream: RESP arrays of bulk strings, and inline commands.
//!
//! Invariants:
//! - [`Decoder::decode`] consumes input as it goes: what is cut anywhere decodes to the same commands (a property test).
//! - Memory grows with bytes that came, never with a length that was announced.
//! - After a [`ProtocolError`] the stream has no boundary to resume at: the connection ends.

use super::command::{Command, parse_i64};
use super::{
    ARGS_MAX, BULK_BYTES_MAX, COMMAND_BYTES_MAX, LINE_BYTES_MAX, UNTRUSTED_ARGS_MAX, UNTRUSTED_BULK_BYTES_MAX,
    UNTRUSTED_COMMAND_BYTES_MAX,
};

/// Why a stream cannot be decoded further; the sentences are Redis's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The number after `*` is none or over [`ARGS_MAX`].
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    /// The number after `$` is none, negative or over [`BULK_BYTES_MAX`].
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// A bulk string does not end where it said.
    #[error("Protocol error: bulk string is not followed by CRLF")]
    BulkEnd,
    /// An array element that is no bulk string.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    NotBulk(u8),
    /// Too many arguments for a peer that has given no password.
    #[error("Protocol error: unauthenticated multibulk length")]
    UntrustedArrayLength,
    /// Too long an argument for a peer that has given no password.
    #[error("Protocol error: unauthenticated bulk length")]
    UntrustedBulkLength,
    /// A line without end.
    #[error("Protocol error: too big {0}")]
    LineTooLong(&'static str),
    /// An inline command's quotes do not close.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// At a boundary between commands.
    Start,
    /// `left` bulk strings are to come.
    Array { left: usize },
    /// Within a bulk string of which `bytes` are to come, then CRLF; `keep` unless the command is too long already.
    Bulk { left: usize, bytes: u64, keep: bool },
    /// The CRLF behind a bulk string; `seen` bytes of it came.
    BulkEnd { left: usize, seen: u8 },
}

/// The decoder of one connection.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// The part of a line that came so far.
    line: Vec<u8>,
    command: Command,
    /// Memory of commands that are done, for those to come.
    spare: Vec<Command>,
    /// The peer may send more than it takes to authenticate.
    trusted: bool,
}

/// Commands whose memory one connection keeps. Derived: more than run at once are rare.
const SPARE_MAX: usize = super::RUNNING_MAX;
/// A command that took more memory than this gives it back. Guessed: usual commands fit many times over.
const SPARE_BYTES_MAX: usize = 16 << 10;

impl Default for Decoder {
    fn default() -> Self {
        let (line, command, spare) = (Vec::new(), Command::default(), Vec::new());
        Decoder { state: State::Start, line, command, spare, trusted: true }
    }
}

impl Decoder {
    /// Bytes of the current bulk string that are still to come and will be kept: how large a receive buffer pays.
    pub fn expected_bytes(&self) -> u64 {
        match self.state {
            State::Bulk { bytes, keep: true, .. } => bytes,
            _ => 0,
        }
    }

    /// Whether no command has come in part.
    pub fn is_at_boundary(&self) -> bool {
        self.state == State::Start && self.line.is_empty()
    }

    /// Bytes of the current command, and of its argument that is on its way.
    pub fn held_bytes(&self) -> usize {
        self.line.len() + self.command.bytes_held() + self.expected_bytes() as usize
    }

    /// Keeps nothing of the current command: it is read on to its end, and may only be refused. A line is kept, whose end tells
    /// what it is.
    pub fn refuse(&mut self) {
        if self.state == State::Start {
            return;
        }
        self.command = Command { dropped: 1, refused: true, ..Command::default() };
        if let State::Bulk { keep, .. } = &mut self.state {
            *keep = false;
        }
    }

    /// Whether the peer may send more than it takes to authenticate.
    pub fn set_trusted(&mut self, trusted: bool) {
        self.trusted = trusted;
    }

    /// Takes back a command that is done, for the sake of its memory.
    pub fn recycle(&mut self, mut command: Command) {
        if self.spare.len() < SPARE_MAX && command.bytes.capacity() + command.ends.capacity() * 4 <= SPARE_BYTES_MAX {
            command.clear();
            self.spare.push(command);
        }
    }

    /// Takes bytes off `input` until a command is complete (`Some`) or the input is used up (`None`).
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Command>, ProtocolError> {
        while !input.is_empty() {
            let complete = match self.state {
                State::Start => self.start(input)?,
                State::Array { left } => self.bulk_header(input, left)?,
                State::Bulk { left, bytes, keep } => {
                    self.bulk(input, left, bytes, keep);
                    false
                }
                State::BulkEnd { left, seen } => self.bulk_end(input, left, seen)?,
            };
            if complete {
                self.state = State::Start;
                let next = self.spare.pop().unwrap_or_default();
                return Ok(Some(std::mem::replace(&mut self.command, next)));
            }
        }
        Ok(None)
    }

    /// A command's first line: `*<count>` or an inline command. True when the command is complete.
    fn start(&mut self, input: &mut &[u8]) -> Result<bool, ProtocolError> {
        let array = self.line.first().or(input.first()) == Some(&b'*');
        let what = if array { "mbulk count string" } else { "inline request" };
        let max = if self.trusted { LINE_BYTES_MAX } else { UNTRUSTED_COMMAND_BYTES_MAX };
        if !take_line(&mut self.line, input, what, max)? {
            return Ok(false);
        }
        if !array {
            split_inline(&self.line, &mut self.command)?;
            self.line.clear();
            return Ok(!self.command.is_empty());
        }
        let count = parse_i64(&self.line[1..]);
        self.line.clear();
        match count {
            Some(count) if count > ARGS_MAX as i64 => Err(ProtocolError::ArrayLength),
            Some(count) if count > UNTRUSTED_ARGS_MAX as i64 && !self.trusted => {
                Err(ProtocolError::UntrustedArrayLength)
            }
            // An empty or null array is no command, and no error either (Redis answers nothing).
            Some(count) if count <= 0 => Ok(false),
            Some(count) => {
                self.state = State::Array { left: count as usize };
                Ok(false)
            }
            None => Err(ProtocolError::ArrayLength),
        }
    }

    fn bulk_header(&mut self, input: &mut &[u8], left: usize) -> Result<bool, ProtocolError> {
        let first = *self.line.first().or(input.first()).expect("invariant: decode calls with input left");
        if first != b'$' {
            return Err(ProtocolError::NotBulk(first));
        }
        if !take_line(&mut self.line, input, "bulk count string", LINE_BYTES_MAX)? {
            return Ok(false);
        }
        let bytes = parse_i64(&self.line[1..]).and_then(|n| u64::try_from(n).ok()).filter(|n| *n <= BULK_BYTES_MAX);
        self.line.clear();
        let bytes = bytes.ok_or(ProtocolError::BulkLength)?;
        if bytes > UNTRUSTED_BULK_BYTES_MAX && !self.trusted {
            return Err(ProtocolError::UntrustedBulkLength);
        }
        let max = if self.trusted { COMMAND_BYTES_MAX } else { UNTRUSTED_COMMAND_BYTES_MAX };
        let keep = self.command.dropped == 0 && self.command.bytes.len() as u64 + bytes <= max as u64;
        if !keep {
            self.command.dropped += bytes;
        }
        self.state = State::Bulk { left, bytes, keep };
        Ok(false)
    }

    fn bulk(&mut self, input: &mut &[u8], left: usize, bytes: u64, keep: bool) {
        let now = usize::try_from(bytes).unwrap_or(usize::MAX).min(input.len());
        let (part, rest) = input.split_at(now);
        if keep {
            self.command.bytes.extend_from_slice(part);
        }
        *input = rest;
        let bytes = bytes - now as u64;
        self.state = if bytes == 0 { State::BulkEnd { left, seen: 0 } } else { State::Bulk { left, bytes, keep } };
    }

    /// True when this was the last argument.
    fn bulk_end(&mut self, input: &mut &[u8], left: usize, seen: u8) -> Result<bool, ProtocolError> {
        let (byte, rest) = input.split_first().expect("invariant: decode calls with input left");
        *input = rest;
        if *byte != b"\r\n"[usize::from(seen)] {
            return Err(ProtocolError::BulkEnd);
        }
        if seen == 0 {
            self.state = State::BulkEnd { left, seen: 1 };
            return Ok(false);
        }
        self.command.end_argument();
        self.state = State::Array { left: left - 1 };
        Ok(left == 1)
    }
}

/// Moves the next line of `input`, without its end, behind the `part` of it that came earlier. True when it is whole.
fn take_line(part: &mut Vec<u8>, input: &mut &[u8], what: &'static str, max: usize) -> Result<bool, ProtocolError> {
    let end = input.iter().position(|byte| *byte == b'\n');
    let now = end.unwrap_or(input.len());
    if part.len() + now > max {
        return Err(ProtocolError::LineTooLong(what));
    }
    part.extend_from_slice(&input[..now]);
    let Some(end) = end else {
        *input = &[];
        return Ok(false);
    };
    *input = &input[end + 1..];
    if part.last() == Some(&b'\r') {
        part.pop();
    }
    Ok(true)
}

/// Splits an inline command at blanks; `"…"` with escapes and `'…'` group, as in Redis's `sdssplitargs`.
fn split_inline(line: &[u8], command: &mut Command) -> Result<(), ProtocolError> {
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest
            && is_blank(*first)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Ok(());
        }
        while let [first, tail @ ..] = rest
            && !is_blank(*first)
        {
            rest = match first {
                b'"' => double_quoted(tail, &mut command.bytes)?,
                b'\'' => single_quoted(tail, &mut command.bytes)?,
                other => {
                    command.bytes.push(*other);
                    tail
                }
            };
        }
        command.end_argument();
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\0')
}

/// What follows a closing quote must be a blank or the end.
fn after_quote(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest.first() {
        Some(byte) if !is_blank(*byte) => Err(ProtocolError::Quotes),
        _ => Ok(rest),
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [b'\\', b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                out.push(hex(*high) << 4 | hex(*low));
                tail
            }
            [b'\\', escaped, tail @ ..] => {
                out.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                tail
            }
            [b'"', tail @ ..] => return after_quote(tail),
            [other, tail @ ..] => {
                out.push(*other);
                tail
            }
            [] => return Err(ProtocolError::Quotes),
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [b'\\', b'\'', tail @ ..] => {
                out.push(b'\'');
                tail
            }
            [b'\'', tail @ ..] => return after_quote(tail),
            [other, tail @ ..] => {
                out.push(*other);
                tail
            }
            [] => return Err(ProtocolError::Quotes),
        }
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All commands of `bytes`, fed in pieces of `cuts` bytes, and the error that ended it, if any.
    fn decode_all(bytes: &[u8], cuts: &[usize]) -> (Vec<Command>, Option<ProtocolError>) {
        let (mut decoder, mut commands) = (Decoder::default(), Vec::new());
        let (mut rest, mut cuts) = (bytes, cuts.iter().copied().cycle());
        while !rest.is_empty() {
            let (mut piece, tail) = rest.split_at(cuts.next().unwrap_or(rest.len()).clamp(1, rest.len()));
            rest = tail;
            while !piece.is_empty() {
                match decoder.decode(&mut piece) {
                    Ok(Some(command)) => commands.push(command),
                    Ok(None) => assert!(piece.is_empty(), "no command although input is left"),
                    Err(error) => return (commands, Some(error)),
                }
            }
        }
        (commands, None)
    }

    fn one(bytes: &[u8]) -> Result<Command, ProtocolError> {
        let (mut commands, error) = decode_all(bytes, &[]);
        error.map_or_else(|| Ok(commands.remove(0)), Err)
    }

    #[test]
    fn arrays_and_inline_commands() {
        assert_eq!(one(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"), Ok(Command::new(&[b"GET", b"k"])));
        assert_eq!(one(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n"), Ok(Command::new(&[b"GET", b""])));
        assert_eq!(one(b"  set  k 'a b'\r\n"), Ok(Command::new(&[b"set", b"k", b"a b"])));
        assert_eq!(one(b"set k \"\\x41\\n\\\"\"\n"), Ok(Command::new(&[b"set", b"k", b"A\n\""])));
        assert_eq!(decode_all(b"\r\n*0\r\n*-1\r\nPING\r\n", &[]).0, [Command::new(&[b"PING"])]);
    }

    #[test]
    fn hostile_lengths_are_refused_in_redis_words() {
        let text = |bytes: &[u8]| one(bytes).expect_err("hostile").to_string();
        assert_eq!(text(b"*1048577\r\n"), "Protocol error: invalid multibulk length");
        assert_eq!(text(b"*99999999999999999999\r\n"), "Protocol error: invalid multibulk length");
        assert_eq!(text(b"*1\r\n$-1\r\n"), "Protocol error: invalid bulk length");
        assert_eq!(text(b"*1\r\n$536870913\r\n"), "Protocol error: invalid bulk length");
        assert_eq!(text(b"*1\r\n:1\r\n"), "Protocol error: expected '$', got ':'");
        assert_eq!(text(b"*1\r\n$1\r\nabc"), "Protocol error: bulk string is not followed by CRLF");
        assert_eq!(text(b"get \"k\r\n"), "Protocol error: unbalanced quotes in request");
        assert_eq!(text(b"get \"k\"x\r\n"), "Protocol error: unbalanced quotes in request");
        assert_eq!(text(&[b'a'; LINE_BYTES_MAX + 1]), "Protocol error: too big inline request");
        assert_eq!(text(&[b'*'; LINE_BYTES_MAX + 1]), "Protocol error: too big mbulk count string");
    }

    #[test]
    fn announced_lengths_cost_no_memory() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(&mut &b"*1048576\r\n$16777216\r\nab"[..]), Ok(None));
        assert!(decoder.command.bytes.capacity() < 1024 && decoder.command.ends.capacity() < 1024);
    }

    #[test]
    fn too_long_command_is_dropped_and_the_next_one_decodes() {
        let mut bytes = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", COMMAND_BYTES_MAX).into_bytes();
        bytes.resize(bytes.len() + COMMAND_BYTES_MAX, b'v');
        bytes.extend_from_slice(b"\r\nPING\r\n");
        let (commands, error) = decode_all(&bytes, &[1 << 16]);
        assert_eq!((commands.len(), error), (2, None));
        assert_eq!(commands[0].dropped(), COMMAND_BYTES_MAX as u64);
        assert_eq!((commands[0].len(), commands[0].arg(1)), (3, &b"k"[..]));
        assert_eq!(commands[1], Command::new(&[b"PING"]));
    }

    proptest! {
        #[test]
        fn what_is_cut_anywhere_decodes_to_the_same(
            args in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..5), 1..5),
            cuts in prop::collection::vec(1usize..9, 1..9),
        ) {
            let mut bytes = Vec::new();
            for command in &args {
                bytes.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
                for arg in command {
                    bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
                    bytes.extend_from_slice(arg);
                    bytes.extend_from_slice(b"\r\n");
                }
            }
            let (commands, error) = decode_all(&bytes, &cuts);
            prop_assert_eq!(error, None);
            let decoded: Vec<Vec<Vec<u8>>> =
                commands.iter().map(|c| c.args_from(0).map(<[u8]>::to_vec).collect()).collect();
            prop_assert_eq!(decoded, args);
        }

        #[test]
        fn any_bytes_end_the_same_however_they_are_cut(
            bytes in prop::collection::vec(prop::sample::select(&b"*$-0123\r\n\"'\\x a"[..]), 0..60),
            cuts in prop::collection::vec(1usize..9, 1..9),
        ) {
            prop_assert_eq!(decode_all(&bytes, &cuts), decode_all(&bytes, &[]));
        }
    }
}
