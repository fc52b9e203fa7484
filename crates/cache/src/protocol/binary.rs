//! Headers of the binary protocol.
//!
//! ```text
//!  0      1       2           4       5     6               8           12      16
//!  | magic | opcode | key bytes | extras | 0 | reserved/status | body bytes | opaque | cas (8) |  extras, key, value
//! ```
//! Numbers are big-endian; body bytes are those of extras, key and value together.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;
/// The first byte of a request.
pub const REQUEST: u8 = 0x80;
/// The first byte of a response.
pub const RESPONSE: u8 = 0x81;

/// What a request asks for, quiet or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the protocol's own names")]
pub enum Opcode {
    Get,
    GetKey,
    Set,
    Add,
    Replace,
    Delete,
    Increment,
    Decrement,
    Quit,
    Flush,
    Noop,
    Version,
    Append,
    Prepend,
    Stat,
    Touch,
    GetAndTouch,
    GetKeyAndTouch,
    SaslList,
    SaslAuth,
    SaslStep,
}

impl Opcode {
    /// The opcode of a byte, and whether it is the quiet one.
    pub fn parse(byte: u8) -> Option<(Opcode, bool)> {
        use Opcode::*;
        Some(match byte {
            0x00 => (Get, false),
            0x01 => (Set, false),
            0x02 => (Add, false),
            0x03 => (Replace, false),
            0x04 => (Delete, false),
            0x05 => (Increment, false),
            0x06 => (Decrement, false),
            0x07 => (Quit, false),
            0x08 => (Flush, false),
            0x09 => (Get, true),
            0x0a => (Noop, false),
            0x0b => (Version, false),
            0x0c => (GetKey, false),
            0x0d => (GetKey, true),
            0x0e => (Append, false),
            0x0f => (Prepend, false),
            0x10 => (Stat, false),
            0x11 => (Set, true),
            0x12 => (Add, true),
            0x13 => (Replace, true),
            0x14 => (Delete, true),
            0x15 => (Increment, true),
            0x16 => (Decrement, true),
            0x17 => (Quit, true),
            0x18 => (Flush, true),
            0x19 => (Append, true),
            0x1a => (Prepend, true),
            0x1c => (Touch, false),
            0x1d => (GetAndTouch, false),
            0x1e => (GetAndTouch, true),
            0x20 => (SaslList, false),
            0x21 => (SaslAuth, false),
            0x22 => (SaslStep, false),
            0x23 => (GetKeyAndTouch, false),
            0x24 => (GetKeyAndTouch, true),
            _ => return None,
        })
    }
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
#[expect(missing_docs, reason = "the protocol's own names")]
pub enum Status {
    Success = 0x00,
    KeyMissing = 0x01,
    KeyExists = 0x02,
    TooLarge = 0x03,
    InvalidArguments = 0x04,
    NotStored = 0x05,
    NonNumeric = 0x06,
    AuthenticationError = 0x20,
    AuthenticationContinue = 0x21,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
}

impl Status {
    /// What memcached sends with it.
    pub fn text(self) -> &'static str {
        match self {
            Status::Success | Status::AuthenticationContinue => "",
            Status::KeyMissing => "Not found",
            Status::KeyExists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::InvalidArguments => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NonNumeric => "Non-numeric server-side value for incr or decr",
            Status::AuthenticationError => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
        }
    }
}

/// The header of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What is asked for.
    pub opcode: u8,
    /// Bytes of the key.
    pub key_bytes: usize,
    /// Bytes in front of the key.
    pub extras_bytes: usize,
    /// Bytes of extras, key and value.
    pub body_bytes: usize,
    /// To be sent back.
    pub opaque: u32,
    /// The cas that the item has to have; 0: any.
    pub cas: u64,
}

impl Request {
    /// Reads a header; `None` where the first byte is not that of a request.
    pub fn parse(header: &[u8; HEADER_BYTES]) -> Option<Request> {
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        (header[0] == REQUEST).then(|| Request {
            opcode: header[1],
            key_bytes: usize::from(u16::from_be_bytes([header[2], header[3]])),
            extras_bytes: usize::from(header[4]),
            body_bytes: word(8) as usize,
            opaque: word(12),
            cas: u64::from(word(16)) << 32 | u64::from(word(20)),
        })
    }

    /// The header of its response.
    pub fn response(&self, status: Status, lengths: Lengths, cas: u64) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = RESPONSE;
        header[1] = self.opcode;
        header[2..4].copy_from_slice(&(lengths.key as u16).to_be_bytes());
        header[4] = lengths.extras as u8;
        header[6..8].copy_from_slice(&(status as u16).to_be_bytes());
        header[8..12].copy_from_slice(&(lengths.body as u32).to_be_bytes());
        header[12..16].copy_from_slice(&self.opaque.to_be_bytes());
        header[16..24].copy_from_slice(&cas.to_be_bytes());
        header
    }
}

/// The lengths in a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lengths {
    /// Of what stands in front of the key.
    pub extras: usize,
    /// Of the key.
    pub key: usize,
    /// Of all three.
    pub body: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_goes_both_ways() {
        let mut header = [0; HEADER_BYTES];
        header[..12].copy_from_slice(&[REQUEST, 0x0c, 0, 3, 4, 0, 0, 0, 0, 0, 1, 7]);
        header[12..].copy_from_slice(&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 9]);
        let request = Request::parse(&header).expect("the magic is right");
        assert_eq!((request.key_bytes, request.extras_bytes, request.body_bytes), (3, 4, 263));
        assert_eq!((request.opaque, request.cas), (0x0102_0304, 9));
        let lengths = Lengths { extras: 4, key: 3, body: 263 };
        let mut expected = header;
        (expected[0], expected[7]) = (RESPONSE, 2);
        assert_eq!(request.response(Status::KeyExists, lengths, 9), expected);
        header[0] = RESPONSE;
        assert_eq!(Request::parse(&header), None);
    }

    #[test]
    fn a_quiet_opcode_is_its_loud_ones() {
        assert_eq!(Opcode::parse(0x24), Some((Opcode::GetKeyAndTouch, true)));
        assert_eq!(Opcode::parse(0x1b), None);
        assert_eq!(Opcode::parse(0x1f), None);
    }
}
