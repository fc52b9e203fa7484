//! What is told of commands on the log, with `-vv` and by `verbosity 2`: the line of each, and the first line of its answer.
//!
//! Invariant: no value and no password is told. Of an answer that is its first line, without the number that `incr` and `decr`
//! answer; of what is no command its length alone, for it may be the rest of a value whose length was wrong; before somebody has
//! said who he is nothing but lengths, and of SASL its opcode.

use super::output::HEARD_BYTES_MAX;
use super::{Context, Flow, Server, Session, Speaks};
use crate::protocol::binary::{HEADER_BYTES, Opcode, Request};
use crate::protocol::tokens::word_at;
use crate::slot::Slots;

/// Bytes of a line that are told. Chosen: a key of the longest, and all that stands beside it.
const LINE_SHOWN_MAX: usize = 320;

/// The commands of more than two letters.
const NAMES: [&[u8]; 30] = [
    b"get",
    b"bget",
    b"gets",
    b"gat",
    b"gats",
    b"set",
    b"add",
    b"replace",
    b"append",
    b"prepend",
    b"cas",
    b"incr",
    b"decr",
    b"touch",
    b"delete",
    b"flush_all",
    b"version",
    b"quit",
    b"stats",
    b"watch",
    b"shutdown",
    b"lru_crawler",
    b"verbosity",
    b"cache_memlimit",
    b"lru",
    b"slabs",
    b"extstore",
    b"refresh_certs",
    b"misbehave",
    b"debugtime",
];

/// Who gave a command whose answer is heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Heard {
    is_known: bool,
}

impl<P> Flow<P> {
    /// The command does not go on.
    fn is_over(&self) -> bool {
        !matches!(self, Flow::More(_) | Flow::Long(_) | Flow::Fetch(_) | Flow::Room(_) | Flow::Full)
    }
}

impl<S: Slots> Session<S> {
    /// Before a command runs: hears what it answers, if that is to be told.
    #[inline]
    pub(super) fn listen<V: Server>(&mut self, server: &V) -> Option<Heard> {
        let tells = server.tells_commands();
        self.output.hear(tells);
        tells.then_some(Heard { is_known: self.authenticated })
    }

    /// After it ran: tells of it if it is over. Its line is told then too, beside its answer, for one that waits is read again.
    pub(super) fn tell_command<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        heard: Heard,
        head: &[u8],
        flow: &Flow<S::Place>,
    ) {
        if !flow.is_over() {
            return;
        }
        let answer = self.output.heard();
        let (line, answer) = match self.speaks {
            Speaks::Binary => (request(head, heard), status(&answer)),
            _ => (text(head.trim_ascii_end(), heard), first_line(&answer)),
        };
        context.server.tell_command(context.connection, &line, answer.as_deref());
    }
}

fn text(line: &[u8], heard: Heard) -> String {
    let name = word_at(line, 0).map_or(&b""[..], |(_, name)| name);
    let is_command = NAMES.contains(&name) || matches!(name, [b'm', b'g' | b's' | b'd' | b'a' | b'n' | b'e']);
    match heard.is_known {
        false => format!("({} bytes, before authentication)", line.len()),
        true if !is_command => format!("({} bytes that are no command)", line.len()),
        true => shown(line, LINE_SHOWN_MAX),
    }
}

/// The beginning of these bytes, fit for a log.
fn shown(bytes: &[u8], bytes_max: usize) -> String {
    let (start, rest) = bytes.split_at(bytes.len().min(bytes_max));
    let text = start.escape_ascii().to_string();
    if rest.is_empty() { text } else { format!("{text}... ({} bytes)", bytes.len()) }
}

fn first_line(answer: &[u8]) -> Option<String> {
    let line = answer.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let is_number = line.iter().all(u8::is_ascii_digit);
    let text = || if is_number { "(a number)".to_owned() } else { shown(line, HEARD_BYTES_MAX) };
    (!line.is_empty()).then(text)
}

/// A header, with what stands behind it up to the key.
fn request(head: &[u8], heard: Heard) -> String {
    let Some(request) = head.first_chunk().and_then(Request::parse) else { return "(no request)".to_owned() };
    let Some((opcode, is_quiet)) = Opcode::parse(request.opcode) else {
        return format!("(unknown opcode {:#04x})", request.opcode);
    };
    let quiet = if is_quiet { " quiet" } else { "" };
    let is_sasl = matches!(opcode, Opcode::SaslList | Opcode::SaslAuth | Opcode::SaslStep);
    let key = head.get(HEADER_BYTES + request.extras_bytes..).filter(|_| heard.is_known && !is_sasl);
    format!("{opcode:?}{quiet} {}", shown(key.unwrap_or_default(), LINE_SHOWN_MAX)).trim_end().to_owned()
}

/// The status of the first response.
fn status(answer: &[u8]) -> Option<String> {
    let status = answer.get(6..8)?;
    Some(format!("status {:#06x}", u16::from(status[0]) << 8 | u16::from(status[1])))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::item::Seconds;
    use crate::protocol::Now;
    use crate::session::{Authentication, Protocols, Rules, Users};
    use crate::testing::{PlainServer, PlainSlots, Wire};

    const NOW: Now = Now { at: Seconds(1000), began: 1_700_000_000 };

    /// What is told of these bytes, on one connection.
    fn told(slots: &PlainSlots, rules: Rules, bytes: &[u8]) -> Vec<String> {
        let server = PlainServer::default();
        server.tells_commands.set(true);
        Wire::new(Arc::new(rules)).feed(slots, &server, NOW, bytes);
        server.commands.take()
    }

    #[test]
    fn commands_are_told_with_their_answers_first_line() {
        for slots in [PlainSlots::default(), PlainSlots::with_flash()] {
            let long = "x".repeat(100_000);
            let bytes = format!(
                "set a 0 0 3\r\nxyz\r\nget a b\r\nmg a v\r\nset n 0 0 1 noreply\r\n5\r\nincr n 2\r\nset a 0 0 1\r\nsecret\r\n\
                 get \x01\r\nset l 0 0 100000\r\n{long}\r\nget l\r\nget {}\r\nmn\r\n",
                "a ".repeat(200)
            );
            let long_line = format!("<get {}... (403 bytes) >VALUE a 0 3", "a ".repeat(158));
            let expected = [
                "<set a 0 0 3 >STORED",
                "<get a b >VALUE a 0 3",
                "<mg a v >VA 3",
                "<set n 0 0 1 noreply >",
                "<incr n 2 >(a number)",
                "<set a 0 0 1 >CLIENT_ERROR bad data chunk",
                "<(3 bytes that are no command) >ERROR",
                "<get \\x01 >END",
                "<set l 0 0 100000 >STORED",
                "<get l >VALUE l 0 100000",
                &long_line,
                "<mn >MN",
            ];
            assert_eq!(told(&slots, Rules::default(), bytes.as_bytes()), expected);
        }
    }

    #[test]
    fn passwords_are_not_told() {
        let users = || Users::parse("ann:secret").expect("a colon");
        let rules = Rules { authentication: Authentication::Text(users()), ..Rules::default() };
        let bytes = b"get a\r\nann secret\r\nset u 0 0 9\r\nann wrong\r\nset u 0 0 10\r\nann secret\r\nget a\r\n";
        let expected = [
            "<(5 bytes, before authentication) >CLIENT_ERROR unauthenticated",
            "<(10 bytes, before authentication) >CLIENT_ERROR unauthenticated",
            "<(11 bytes, before authentication) >CLIENT_ERROR authentication failure",
            "<(12 bytes, before authentication) >STORED",
            "<get a >END",
        ];
        assert_eq!(told(&PlainSlots::default(), rules, bytes), expected);
        let request = |opcode: u8, key: &[u8], value: &[u8]| {
            let mut bytes =
                vec![0x80, opcode, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, (key.len() + value.len()) as u8];
            bytes.resize(HEADER_BYTES, 0);
            [&bytes[..], key, value].concat()
        };
        let sasl = [request(0x21, b"PLAIN", b"\0ann\0secret"), request(0, b"a\n", b"")].concat();
        let rules =
            Rules { authentication: Authentication::Sasl(users()), protocols: Protocols::Binary, ..Rules::default() };
        assert_eq!(
            told(&PlainSlots::default(), rules, &sasl),
            ["<SaslAuth >status 0x0000", "<Get a\\n >status 0x0001"]
        );
    }
}
