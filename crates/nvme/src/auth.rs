//! In-band authentication: Authentication Send and Receive, and the DH-HMAC-CHAP messages they carry
//! (NVMe Base 2.0 §6.1, §6.2 and §8.13).
//!
//! A message is one of the fixed parts below, followed by the values whose lengths it states. Every fixed part begins the
//! same way:
//!
//! ```text
//!  0 AUTH_TYPE | 1 AUTH_ID | 2 reserved | 4 T_ID
//! ```

use crate::words::{codes, size};
use crate::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// SECP of in-band authentication: the protocol identifier of NVMe (NVMe Base 2.0 §8.13.1).
pub const SECURITY_PROTOCOL: u8 = 0xE9;
/// SPSP0 and SPSP1 of in-band authentication.
pub const SECURITY_PROTOCOL_SPECIFIC: u8 = 0x01;
/// AUTHID of a DH-HMAC-CHAP protocol descriptor.
pub const PROTOCOL_DH_HMAC_CHAP: u8 = 0x01;
/// RCODE of both failure messages: authentication failed.
pub const REASON_FAILED: u8 = 0x01;
/// Identifiers that one list of a protocol descriptor holds.
pub const IDENTIFIERS_MAX: usize = 30;
/// The most protocol descriptors that AUTH_Negotiate is read with. Chosen: one protocol exists; room for new ones.
pub const DESCRIPTORS_MAX: usize = 8;
/// Bytes of the longest DH value: that of the 8192-bit group.
pub const DH_BYTES_MAX: usize = 1024;
/// Bytes of the longest hash, SHA-512.
pub const HASH_BYTES_MAX: usize = 64;
/// Bytes of the longest message. Derived: a reply with two hashes and the longest DH value; AUTH_Negotiate is shorter.
pub const MESSAGE_BYTES_MAX: usize = size_of::<Reply>() + 2 * HASH_BYTES_MAX + DH_BYTES_MAX;
const _: () = assert!(size_of::<Negotiate>() + DESCRIPTORS_MAX * size_of::<Descriptor>() <= MESSAGE_BYTES_MAX);

/// AUTHREQ of a Connect completion (NVMe Base 2.0 §6.3), where both bits are clear no authentication is asked for.
pub mod required {
    /// ATR: the host shall authenticate.
    pub const AUTHENTICATION: u16 = 1 << 1;
    /// ASCR: the host shall authenticate and set up a secure channel.
    pub const SECURE_CHANNEL: u16 = 1 << 2;
}

/// The last 24 bytes of Authentication Send and Receive, CDW10 to CDW15 (NVMe Base 2.0 §6.1, §6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Fields {
    /// Reserved.
    pub reserved1: u8,
    /// Security protocol specific, low.
    pub spsp0: u8,
    /// Security protocol specific, high.
    pub spsp1: u8,
    /// Security protocol.
    pub secp: u8,
    /// Send: transfer length. Receive: allocation length. Bytes.
    pub length: U32,
    /// Reserved.
    pub reserved2: [u8; 16],
}

impl Fields {
    /// The fields of a command that carries `length` bytes of in-band authentication.
    pub fn new(length: u32) -> Fields {
        Fields {
            spsp0: SECURITY_PROTOCOL_SPECIFIC,
            spsp1: SECURITY_PROTOCOL_SPECIFIC,
            secp: SECURITY_PROTOCOL,
            length: length.into(),
            ..Fields::default()
        }
    }

    /// Whether the command is one of in-band authentication.
    pub fn is_authentication(&self) -> bool {
        let specific = (self.spsp0, self.spsp1);
        self.secp == SECURITY_PROTOCOL && specific == (SECURITY_PROTOCOL_SPECIFIC, SECURITY_PROTOCOL_SPECIFIC)
    }
}

/// A message: AUTH_TYPE in the high byte, AUTH_ID in the low one (NVMe Base 2.0 §8.13.3, §8.13.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message(pub u16);
codes! { Message(u16), "authentication message";
    NEGOTIATE = 0x0000, "AUTH_Negotiate";
    FAILURE1 = 0x00F1, "AUTH_Failure1";
    FAILURE2 = 0x00F0, "AUTH_Failure2";
    CHALLENGE = 0x0101, "DH-HMAC-CHAP_Challenge";
    REPLY = 0x0102, "DH-HMAC-CHAP_Reply";
    SUCCESS1 = 0x0103, "DH-HMAC-CHAP_Success1";
    SUCCESS2 = 0x0104, "DH-HMAC-CHAP_Success2";
}

/// RCE: why an authentication failed (NVMe Base 2.0 §8.13.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure(pub u8);
codes! { Failure(u8), "authentication failure";
    FAILED = 0x01, "authentication failed";
    PROTOCOL_NOT_USABLE = 0x02, "authentication protocol not usable";
    CONCATENATION_MISMATCH = 0x03, "secure channel concatenation mismatch";
    HASH_NOT_USABLE = 0x04, "hash not usable";
    GROUP_NOT_USABLE = 0x05, "DH group not usable";
    INCORRECT_PAYLOAD = 0x06, "incorrect payload";
    INCORRECT_MESSAGE = 0x07, "incorrect protocol message";
}

/// HashID (NVMe Base 2.0 §8.13.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashId(pub u8);
codes! { HashId(u8), "hash";
    SHA256 = 0x01, "SHA-256";
    SHA384 = 0x02, "SHA-384";
    SHA512 = 0x03, "SHA-512";
}

/// DHgID (NVMe Base 2.0 §8.13.5.1; the groups are those of RFC 7919).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupId(pub u8);
codes! { GroupId(u8), "DH group";
    NULL = 0x00, "null";
    FFDHE2048 = 0x01, "ffdhe2048";
    FFDHE3072 = 0x02, "ffdhe3072";
    FFDHE4096 = 0x03, "ffdhe4096";
    FFDHE6144 = 0x04, "ffdhe6144";
    FFDHE8192 = 0x05, "ffdhe8192";
}

/// SC_C: what the authentication is to make for a secure channel (NVMe Base 2.0 §8.13.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Concatenation(pub u8);
codes! { Concatenation(u8), "secure channel concatenation";
    NONE = 0x00, "none";
    NEW_TLS_PSK = 0x02, "new TLS PSK";
    REPLACE_TLS_PSK = 0x03, "replace TLS PSK";
}

/// How every message begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// AUTH_TYPE: 0 common, 1 DH-HMAC-CHAP.
    pub kind: u8,
    /// AUTH_ID.
    pub id: u8,
    /// Reserved.
    pub reserved: U16,
    /// T_ID: the transaction; the host chooses it, every message of the transaction repeats it.
    pub transaction: U16,
}

impl Header {
    /// The start of `message` in `transaction`.
    pub fn new(message: Message, transaction: u16) -> Header {
        let [kind, id] = message.0.to_be_bytes();
        Header { kind, id, reserved: 0.into(), transaction: transaction.into() }
    }

    /// Which message follows.
    pub fn message(&self) -> Message {
        Message(u16::from_be_bytes([self.kind, self.id]))
    }
}

/// AUTH_Negotiate; [`Negotiate::descriptors`] descriptors follow (NVMe Base 2.0 §8.13.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Negotiate {
    /// The start.
    pub header: Header,
    /// SC_C, see [`Concatenation`].
    pub concatenation: u8,
    /// NAPD: how many protocol descriptors follow.
    pub descriptors: u8,
}

/// A DH-HMAC-CHAP protocol descriptor (NVMe Base 2.0 §8.13.5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Descriptor {
    /// AUTHID.
    pub protocol: u8,
    /// Reserved.
    pub reserved: u8,
    /// HALEN: hashes listed.
    pub hash_count: u8,
    /// DHLEN: groups listed.
    pub group_count: u8,
    /// HashIDs, the preferred one first.
    pub hashes: [u8; IDENTIFIERS_MAX],
    /// DHgIDs, the preferred one first.
    pub groups: [u8; IDENTIFIERS_MAX],
}

/// DH-HMAC-CHAP_Challenge; the challenge C1 and the controller's DH value follow (NVMe Base 2.0 §8.13.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Challenge {
    /// The start.
    pub header: Header,
    /// HL: bytes of the hash, and so of the challenge.
    pub hash_bytes: u8,
    /// Reserved.
    pub reserved: u8,
    /// The hash chosen.
    pub hash: u8,
    /// The group chosen.
    pub group: u8,
    /// DHVLEN: bytes of the DH value; 0 with the null group.
    pub dh_bytes: U16,
    /// S1; not zero.
    pub sequence: U32,
}

/// DH-HMAC-CHAP_Reply; the response R1, the challenge C2 and the host's DH value follow (NVMe Base 2.0 §8.13.5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Reply {
    /// The start.
    pub header: Header,
    /// HL: bytes of the response, and of the challenge.
    pub hash_bytes: u8,
    /// Reserved.
    pub reserved1: u8,
    /// CVALID: 1 if C2 is a challenge, 0 if those bytes are zeroes.
    pub challenge_valid: u8,
    /// Reserved.
    pub reserved2: u8,
    /// DHVLEN: bytes of the DH value.
    pub dh_bytes: U16,
    /// S2; 0 where the controller need not authenticate itself, whether or not there is a C2.
    pub sequence: U32,
}

/// DH-HMAC-CHAP_Success1; the response R2 follows (NVMe Base 2.0 §8.13.5.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Success1 {
    /// The start.
    pub header: Header,
    /// HL: bytes of the response.
    pub hash_bytes: u8,
    /// Reserved.
    pub reserved1: u8,
    /// RVALID: 1 if R2 is a response, 0 if those bytes are zeroes.
    pub response_valid: u8,
    /// Reserved.
    pub reserved2: [u8; 7],
}

/// DH-HMAC-CHAP_Success2 (NVMe Base 2.0 §8.13.5.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Success2 {
    /// The start.
    pub header: Header,
    /// Reserved.
    pub reserved: [u8; 10],
}

/// AUTH_Failure1 (from the controller) and AUTH_Failure2 (from the host) (NVMe Base 2.0 §8.13.3.2, §8.13.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FailureMessage {
    /// The start.
    pub header: Header,
    /// RCODE, [`REASON_FAILED`].
    pub reason: u8,
    /// RCE, see [`Failure`].
    pub explanation: u8,
}

size!(
    Fields = 24,
    Header = 6,
    Negotiate = 8,
    Descriptor = 64,
    Challenge = 16,
    Reply = 16,
    Success1 = 16,
    Success2 = 16,
    FailureMessage = 8,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_known_by_its_type_and_identifier() {
        let header = Header::new(Message::SUCCESS1, 0x1234);
        assert_eq!(header.as_bytes(), [1, 3, 0, 0, 0x34, 0x12]);
        assert_eq!(header.message(), Message::SUCCESS1);
        // The controller's failure is called 1 and has the higher number (NVMe Base 2.0 §8.13.3).
        assert_eq!(Header::new(Message::FAILURE1, 0).as_bytes()[..2], [0, 0xF1]);
        assert_eq!(Header::new(Message::FAILURE2, 0).as_bytes()[..2], [0, 0xF0]);
        assert_eq!(Message(0x0207).to_string(), "authentication message 0x207");
    }

    #[test]
    fn the_fields_of_the_commands() {
        let fields = Fields::new(0x0102);
        assert_eq!(fields.as_bytes()[..8], [0, 1, 1, 0xE9, 2, 1, 0, 0]);
        assert!(fields.is_authentication() && !Fields::default().is_authentication());
    }
}
