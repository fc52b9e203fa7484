//! The same in the binary protocol, with SASL PLAIN.

use std::io::Read;

use cache::protocol::binary::{HEADER_BYTES, REQUEST, RESPONSE, Status};

use super::{Asker, LINES_MAX, Lines};
use crate::exit::Failure;

const STAT: u8 = 0x10;
const SASL_LIST: u8 = 0x20;
const SASL_AUTH: u8 = 0x21;
const MECHANISM: &[u8] = b"PLAIN";
/// Bytes of a response's body. Chosen: many times those of a statistic; `detail dump` is one of them.
const BODY_BYTES_MAX: usize = 4 << 20;

/// What a server answered to one request, or a part of it.
struct Response {
    status: u16,
    key: String,
    value: String,
}

impl Response {
    fn is(&self, status: Status) -> bool {
        self.status == status as u16
    }
}

impl Asker {
    /// `None`: it wants to know first who asks.
    pub(super) fn try_ask_binary(&mut self, name: &str) -> Result<Option<Lines>, Failure> {
        self.send(&request(STAT, name.as_bytes(), b""))?;
        let mut lines = Vec::new();
        while lines.len() < LINES_MAX {
            let response = self.response(STAT)?;
            if response.is(Status::AuthenticationError) {
                return Ok(None);
            }
            if !response.is(Status::Success) {
                return Err(self.refused_status(&response));
            }
            if response.key.is_empty() {
                return Ok(Some(lines));
            }
            // `detail dump` is one statistic, of the text protocol's lines.
            let prefixes = response.value.lines().filter_map(|line| line.strip_prefix("PREFIX ")?.split_once(' '));
            match &response.key[..] {
                "detailed" => lines.extend(prefixes.map(|(name, value)| (name.to_owned(), value.to_owned()))),
                _ => lines.push((response.key, response.value)),
            }
        }
        Err(self.wrong("tells statistics without an end"))
    }

    /// Whether it knows SASL, as who wants it does.
    pub(super) fn wants_sasl(&mut self) -> Result<bool, Failure> {
        self.send(&request(SASL_LIST, b"", b""))?;
        let response = self.response(SASL_LIST)?;
        match response.is(Status::UnknownCommand) {
            _ if response.is(Status::Success) => Ok(true),
            true => Ok(false),
            false => Err(self.refused_status(&response)),
        }
    }

    /// Says who asks; false: it knows nobody of that name and password.
    pub(super) fn log_in_binary(&mut self, name: &[u8], password: &[u8]) -> Result<bool, Failure> {
        let message = [b"\0", name, b"\0", password].concat();
        self.send_secret(request(SASL_AUTH, MECHANISM, &message))?;
        let response = self.response(SASL_AUTH)?;
        match response.is(Status::AuthenticationError) {
            _ if response.is(Status::Success) => Ok(true),
            true => Ok(false),
            false => Err(self.refused_status(&response)),
        }
    }

    fn response(&mut self, opcode: u8) -> Result<Response, Failure> {
        let mut header = [0; HEADER_BYTES];
        self.reader.read_exact(&mut header).map_err(|error| self.failed(&error))?;
        let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let body_bytes = usize::from(half(8)) << 16 | usize::from(half(10));
        let (key_bytes, extras_bytes) = (usize::from(half(2)), usize::from(header[4]));
        let is_sound = header[0] == RESPONSE && header[1] == opcode && key_bytes + extras_bytes <= body_bytes;
        if !is_sound || body_bytes > BODY_BYTES_MAX {
            return Err(self.wrong("does not answer in the binary protocol: ask without --binary"));
        }
        let mut body = vec![0; body_bytes];
        self.reader.read_exact(&mut body).map_err(|error| self.failed(&error))?;
        let (key, value) = body[extras_bytes..].split_at(key_bytes);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Ok(Response { status: half(6), key: text(key), value: text(value) })
    }

    fn refused_status(&self, response: &Response) -> Failure {
        let is_unknown = response.is(Status::KeyMissing) || response.is(Status::InvalidArguments);
        let why = if is_unknown { ": there are no statistics of that name in the binary protocol" } else { "" };
        self.wrong(&format!("answered `{}` (status {:#04x}){why}", response.value.trim_end(), response.status))
    }
}

/// What servers send back with an answer. To one that speaks text alone these are ends of lines: it answers at once.
const OPAQUE: &[u8; 4] = b"\n\n\n\n";

/// A request without extras.
fn request(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut request = vec![0; HEADER_BYTES];
    (request[0], request[1]) = (REQUEST, opcode);
    request[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    request[8..12].copy_from_slice(&((key.len() + value.len()) as u32).to_be_bytes());
    request[12..16].copy_from_slice(OPAQUE);
    request.extend_from_slice(key);
    request.extend_from_slice(value);
    request
}
