//! Numbers, requests and replies as bytes (NBD protocol, `doc/proto.md` of the NetworkBlockDevice project). All are big-endian.
//!
//! ```text
//!  request            0x25609513 u32 · flags u16 · command u16 · cookie u64 · offset u64 · length u32 [· data of a write]
//!  simple reply       0x67446698 u32 · error u32 · cookie u64 [· data of a read]
//!  structured reply   0x668e33ef u32 · flags u16 · kind u16 · cookie u64 · length u32 · content
//!  option             "IHAVEOPT" u64 · option u32 · length u32 · data
//!  option's reply     0x0003e889045565a9 u64 · option u32 · kind u32 · length u32 · data
//! ```

/// Bytes of a read or a write, at most: what every client may take for granted.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Bytes of an export's name, at most, and of every other text.
pub const NAME_BYTES_MAX: usize = 4096;
/// Bytes of an option's data, at most: a name, and more kinds of information than there are.
pub(crate) const OPTION_BYTES_MAX: u32 = 4096 + 1024;

/// How a server begins.
pub(crate) const NBDMAGIC: u64 = 0x4E42_444D_4147_4943;
/// "IHAVEOPT".
pub(crate) const IHAVEOPT: u64 = 0x4948_4156_454F_5054;
const OPTION_REPLY: u64 = 0x0003_E889_0455_65A9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668E_33EF;

/// Flags of the handshake, of both sides.
pub(crate) mod handshake {
    pub const FIXED_NEWSTYLE: u16 = 1;
    pub const NO_ZEROES: u16 = 2;
}

/// Options.
pub(crate) mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of an option's reply.
pub(crate) mod answer {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    const ERROR: u32 = 1 << 31;
    pub const UNSUPPORTED: u32 = ERROR + 1;
    pub const POLICY: u32 = ERROR + 2;
    pub const INVALID: u32 = ERROR + 3;
    pub const TLS_REQUIRED: u32 = ERROR + 5;
    pub const UNKNOWN: u32 = ERROR + 6;
    pub const TOO_BIG: u32 = ERROR + 9;
}

/// Kinds of information on an export.
pub(crate) mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do.
pub(crate) mod transmission {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Commands.
pub(crate) mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
}

/// Flags of a command.
pub(crate) mod command_flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
}

/// Why a command failed, as the protocol numbers it (after Linux's numbers, on every system).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Errno {
    NotPermitted = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    NotSupported = 95,
}

/// Bytes of a request without its data.
pub(crate) const REQUEST_BYTES: usize = 28;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

fn two(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

/// The first four bytes as a number.
pub(crate) fn four(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The first eight bytes as a number.
pub(crate) fn eight(bytes: &[u8]) -> u64 {
    u64::from(four(bytes)) << 32 | u64::from(four(&bytes[4..]))
}

impl Request {
    /// Reads a request; `None` where its magic number is wrong, after which nothing more can be understood.
    pub fn read(bytes: &[u8; REQUEST_BYTES]) -> Option<Request> {
        (four(bytes) == REQUEST).then(|| Request {
            flags: two(&bytes[4..]),
            command: two(&bytes[6..]),
            cookie: eight(&bytes[8..]),
            offset: eight(&bytes[16..]),
            length: four(&bytes[24..]),
        })
    }

    /// The request as bytes.
    #[cfg(test)]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend(self.flags.to_be_bytes());
        bytes.extend(self.command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.offset.to_be_bytes());
        bytes.extend(self.length.to_be_bytes());
        bytes
    }
}

/// What stands before the data of a reply that succeeds: `bytes` of data from `offset`, or none at all.
pub(crate) fn success(structured: bool, cookie: u64, data: Option<(u64, u32)>) -> Vec<u8> {
    match (structured, data) {
        (false, _) => simple(0, cookie),
        (true, None) => chunk(0, cookie, 0, &[]),
        (true, Some((offset, bytes))) => chunk(1, cookie, bytes, &offset.to_be_bytes()),
    }
}

/// A reply that fails, with its reason where the client takes one.
pub(crate) fn failure(structured: bool, cookie: u64, errno: Errno, reason: &str) -> Vec<u8> {
    if !structured {
        return simple(errno as u32, cookie);
    }
    let reason = &reason.as_bytes()[..reason.floor_char_boundary(NAME_BYTES_MAX)];
    let mut content = (errno as u32).to_be_bytes().to_vec();
    content.extend((reason.len() as u16).to_be_bytes());
    content.extend(reason);
    chunk(1 << 15 | 1, cookie, 0, &content)
}

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    [&SIMPLE_REPLY.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

/// The only chunk of a structured reply: `content`, with `more` bytes to follow.
fn chunk(kind: u16, cookie: u64, more: u32, content: &[u8]) -> Vec<u8> {
    const DONE: u16 = 1;
    let length = content.len() as u32 + more;
    let (magic, flags, kind) = (STRUCTURED_REPLY.to_be_bytes(), DONE.to_be_bytes(), kind.to_be_bytes());
    [&magic[..], &flags, &kind, &cookie.to_be_bytes(), &length.to_be_bytes(), content].concat()
}

/// A reply to an option.
pub(crate) fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [&OPTION_REPLY.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes(), &length, data].concat()
}
