//! A `get` or `gets` whose line is longer than what is held of one: it is answered in parts of whole keys.
//!
//! Invariants:
//! - Each part is a command of its own at the front of the input: it is held to [`GET_BYTES_MAX`] like any other line, and what it
//!   waits for ends with it. Only what stands here outlives it.
//! - Until the line's end came nothing that was received is taken for a command.

use super::retrieval::Retrieval;
use super::text::BAD_FORMAT;
use super::{Context, Flow, Server, Session};
use crate::KEY_BYTES_MAX;
use crate::protocol::tokens::{self, word_at};
use crate::protocol::{GET_BYTES_MAX, LINE_BYTES_MAX};
use crate::slot::Slots;

/// What the rest of such a line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LongGet {
    /// More keys.
    Keys { with_cas: bool },
    /// Nothing: it was answered to the end.
    Over,
}

impl<S: Slots> Session<S> {
    /// What is received of a line without its end may go on.
    pub(super) fn may_be_long(&self, bytes: &[u8]) -> bool {
        if bytes.len() <= LINE_BYTES_MAX || self.long_get.is_some() {
            return true;
        }
        let blanks = bytes.iter().take_while(|&&byte| byte == b' ').count();
        let line = &bytes[blanks..];
        self.authenticated && blanks <= 100 && (line.starts_with(b"get ") || line.starts_with(b"gets "))
    }

    /// Runs a part of such a line, its last one if that ends it.
    pub(super) fn part_of_get<V: Server>(&mut self, context: Context<'_, S, V>, part: &[u8]) -> Flow<S::Place> {
        let ended = part.strip_suffix(b"\n").map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let is_last = ended.is_some();
        let line = tokens::text(ended.unwrap_or(part));
        let (with_cas, first) = match self.long_get {
            Some(LongGet::Keys { with_cas }) => (with_cas, 0),
            Some(LongGet::Over) => return self.end_part(is_last, LongGet::Over),
            None => {
                let behind = word_at(line, 0).map_or(0, |(at, name)| at + name.len());
                if word_at(line, behind).is_none() {
                    self.reply(false, "ERROR");
                    return self.end_part(is_last, LongGet::Over);
                }
                (line[..behind].ends_with(b"gets"), behind)
            }
        };
        match self.tell_items(context, line, first, Retrieval { with_cas, expires: None }) {
            Err(flow) => return flow,
            Ok(false) => self.reply(false, BAD_FORMAT),
            // As in memcached nothing behind a zero byte counts.
            Ok(true) if is_last || line.len() < part.len() => self.output.bytes(b"END\r\n"),
            Ok(true) => return self.end_part(false, LongGet::Keys { with_cas }),
        }
        self.end_part(is_last, LongGet::Over)
    }

    fn end_part(&mut self, is_last: bool, rest: LongGet) -> Flow<S::Place> {
        self.long_get = (!is_last).then_some(rest);
        Flow::Next(0)
    }
}

/// Bytes of the part that so much of a line without its end has: up to its last blank, so that no key is cut, or all where what
/// stands behind that is too long for a key and the first byte of the line's end.
pub(super) fn part_bytes(bytes: &[u8]) -> Option<usize> {
    if bytes.len() < GET_BYTES_MAX {
        return None;
    }
    let cut = bytes.iter().rev().take(KEY_BYTES_MAX + 2).position(|&byte| byte == b' ');
    Some(bytes.len() - cut.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::item::Seconds;
    use crate::protocol::Now;
    use crate::session::{RECEIVE_BYTES, Rules};
    use crate::testing::{PlainServer, PlainSlots, Wire};

    const NOW: Now = Now { at: Seconds(1000), began: 1_700_000_000 };

    /// What is answered where an item of key `k` is there, and whether the connection survives.
    fn answers(slots: PlainSlots, bytes: &[u8]) -> (String, bool) {
        let mut wire = Wire::new(Arc::new(Rules::default()));
        wire.pieces = vec![RECEIVE_BYTES];
        wire.feed(&slots, &PlainServer::default(), NOW, b"set k 0 0 1 noreply\r\nv\r\n");
        let answer = wire.feed(&slots, &PlainServer::default(), NOW, bytes);
        (String::from_utf8_lossy(&answer).into_owned(), !wire.is_closed)
    }

    /// So many bytes of a line, of `get` and then of this again and again.
    fn line(bytes: usize, keys: &str) -> Vec<u8> {
        let mut line = b"get ".to_vec();
        line.extend(keys.bytes().cycle().take(bytes - 4));
        line
    }

    #[test]
    fn no_key_is_cut_wherever_a_part_ends() {
        // Wherever it is cut, one of three lines is cut between the two letters, each of which would be found.
        for pad in ["", " ", "  "] {
            let line = ["get ", pad, &"kk ".repeat(GET_BYTES_MAX / 3 + 1000), "k\r\nversion\r\n"].concat().into_bytes();
            let expected = "VALUE k 0 1\r\nv\r\nEND\r\nVERSION 1.6.18\r\n".to_owned();
            assert_eq!(answers(PlainSlots::default(), &line), (expected, true), "{pad:?}");
        }
    }

    #[test]
    fn a_part_holds_whole_keys_or_one_that_is_too_long() {
        assert_eq!(part_bytes(&line(GET_BYTES_MAX - 1, "key ")), None);
        for (tail, left) in [(0, 0), (1, 1), (250, 250), (251, 251), (252, 0), (5000, 0)] {
            let mut bytes = vec![b' '; GET_BYTES_MAX - tail];
            bytes.extend(vec![b'x'; tail]);
            assert_eq!(part_bytes(&bytes), Some(GET_BYTES_MAX - left), "{tail}");
        }
    }

    #[test]
    fn every_part_is_answered_from_memory_and_flash() {
        for slots in [PlainSlots::default(), PlainSlots::with_flash()] {
            let line = [line(4 * GET_BYTES_MAX, &format!("k {}", "gone ".repeat(999))), b"\r\n".to_vec()].concat();
            let count = line.split(|&byte| byte == b' ').filter(|key| key == b"k").count();
            assert!(count > 800);
            assert_eq!(answers(slots, &line), ("VALUE k 0 1\r\nv\r\n".repeat(count) + "END\r\n", true));
        }
    }

    /// What it sends behind a key that is too long, or a zero byte, may be what somebody else gave it for a key.
    #[test]
    fn what_is_left_of_a_line_that_was_answered_is_no_command() {
        let item = "VALUE k 0 1\r\nv\r\n";
        let long = "x".repeat(2 * GET_BYTES_MAX);
        for (rest, told) in [
            (format!(" k {long} flush_all"), "CLIENT_ERROR bad command line format\r\n".to_owned()),
            (format!(" k\0 {long} flush_all"), format!("{item}END\r\n")),
            (format!(" k {} flush_all", "gone ".repeat(300_000)), format!("{item}END\r\n")),
        ] {
            // In the first part, and in a later one: only then was something told before.
            for bytes in [GET_BYTES_MAX - 2000, 3 * GET_BYTES_MAX] {
                let line = [line(bytes, "gone "), rest.clone().into_bytes(), b"\nget k\r\n".to_vec()].concat();
                assert_eq!(answers(PlainSlots::default(), &line), (format!("{told}{item}END\r\n"), true), "{bytes}");
            }
        }
        let blanks = [line(3 * GET_BYTES_MAX, " "), b"k\r\nget k\r\n".to_vec()].concat();
        assert_eq!(answers(PlainSlots::default(), &blanks), (format!("ERROR\r\n{item}END\r\n"), true));
    }
}
