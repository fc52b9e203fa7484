//! The stream of a dump, version 1: lines of JSON, each ended by a line feed.
//!
//! ```text
//! {"header":{"version":1,"origin":"redb 0d1c…","revision":57}}
//! {"entry":{"key":"volumes/a","value":"…"}}         in the order of keys; up to 90 of them and 960 KiB of keys and values
//! {"entry":{"key":{"hex":"ff00"},"value":{"hex":""}}}   bytes that are no printable text, in hexadecimal
//! {"check":{"entries":2,"xxh3":"9f0c…"}}            all entries up to here; the sum of all bytes up to here but for checks
//! …
//! {"end":{"entries":2,"leased":1,"xxh3":"9f0c…"}}   the same of all, and how many entries were left out for their leases
//! ```
//!
//! A dump of the same catalogue at the same revision is the same to the byte (no date, no chance), so that a transfer which was
//! interrupted is known again by its content. Entries bound to a lease are left out: who holds the lease is there with the
//! catalogue that was dumped, and writes them anew where that one is.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::catalogue::error::Error;
use crate::catalogue::limits::{
    KEY_BYTES_MAX, LimitError, TRANSACTION_BYTES_MAX, TRANSACTION_PARTS_MAX, VALUE_BYTES_MAX,
};

/// The version of the stream.
pub const VERSION: u32 = 1;
/// Entries between two checks. Derived: with the note of how far a restore has come they make one transaction.
pub const PART_ENTRIES_MAX: usize = 90;
/// Bytes of keys and values between two checks. Derived: as above.
pub const PART_BYTES_MAX: usize = 960 * 1024;
/// Bytes of a line. Derived: hexadecimal, and text with every character escaped, is twice as long as its bytes.
pub const LINE_BYTES_MAX: usize = 2 * (KEY_BYTES_MAX + VALUE_BYTES_MAX) + 1024;

const _: () = assert!(PART_ENTRIES_MAX < TRANSACTION_PARTS_MAX && PART_BYTES_MAX + 2048 < TRANSACTION_BYTES_MAX);

/// Why a catalogue could not be dumped or restored.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The catalogue said so.
    #[error(transparent)]
    Catalogue(#[from] Error),
    /// A line is not one of a dump.
    #[error(
        "line {line} of the dump is damaged ({what}): nothing from there on was restored, take another copy of the dump"
    )]
    Damaged {
        /// Which line, from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The dump ends before its end.
    #[error(
        "the dump ends after {lines} lines without its last line: what is there was restored, begin anew with the whole dump"
    )]
    Short {
        /// How many lines there are.
        lines: u64,
    },
    /// The dump is of a later version.
    #[error(
        "the dump is of version {version}, this program reads version {VERSION}: use the program that wrote it, or a newer one"
    )]
    Version {
        /// Its version.
        version: u32,
    },
    /// The catalogue has entries.
    #[error(
        "the catalogue holds entries already ({key} is the first): restore into an empty one, or by force, which deletes all of them"
    )]
    NotEmpty {
        /// Its first key.
        key: String,
    },
    /// Another dump was being restored.
    #[error(
        "the catalogue holds a part of another dump ({origin}, revision {revision}): go on with that dump, or restore by force, which \
         deletes what is there"
    )]
    OtherDump {
        /// Of which catalogue.
        origin: String,
        /// As of when.
        revision: u64,
    },
    /// The catalogue to be dumped or served was not restored whole.
    #[error(
        "the catalogue holds only a part of a dump ({origin}, revision {revision}): go on with its restore before it is dumped or served"
    )]
    Unfinished {
        /// Of which catalogue.
        origin: String,
        /// As of when.
        revision: u64,
    },
    /// Somebody serves the catalogue.
    #[error(
        "the catalogue is served by {by}, which would go on with what was there before: end that first; one that has died counts for \
         another 15 seconds"
    )]
    Served {
        /// Who.
        by: String,
    },
    /// The catalogue to be served was moved.
    #[error(
        "the catalogue was moved to {to}, or that was begun: serve that one, and where the move did not end, move it again; to serve \
         this one all the same, and nobody the other, say --although-moved"
    )]
    Moved {
        /// Where to.
        to: String,
    },
    /// Two restores at once.
    #[error("another restore into the same catalogue is under way: let one of them end")]
    Raced,
}

impl From<LimitError> for TransferError {
    fn from(limit: LimitError) -> TransferError {
        TransferError::Catalogue(limit.into())
    }
}

/// A line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Line {
    Header(Header),
    Entry { key: Bytes, value: Bytes },
    Check(Check),
    End(End),
}

/// Which catalogue, and as of when.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub version: u32,
    pub origin: String,
    pub revision: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    pub entries: u64,
    pub xxh3: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    pub entries: u64,
    pub leased: u64,
    pub xxh3: String,
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Text as it is, other bytes in hexadecimal.
#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Bytes {
    Text(String),
    Hex { hex: String },
}

impl Bytes {
    pub fn of(bytes: &[u8]) -> Bytes {
        match std::str::from_utf8(bytes) {
            // Of the escapes of JSON those of control characters are the long ones.
            Ok(text) if !text.chars().any(char::is_control) => Bytes::Text(text.to_owned()),
            _ => {
                let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                Bytes::Hex { hex: digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect() }
            }
        }
    }

    pub fn decode(self) -> Option<Vec<u8>> {
        match self {
            Bytes::Text(text) => Some(text.into_bytes()),
            Bytes::Hex { hex } => {
                let digit = |digit: u8| char::from(digit).to_digit(16);
                let byte = |pair: &[u8]| Some((digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?) as u8);
                hex.as_bytes().chunks(2).map(byte).collect()
            }
        }
    }
}

/// A sum over lines: over all of a stream but its checks, or over its entries alone.
pub struct Sum(Xxh3);

impl Sum {
    pub fn new() -> Sum {
        Sum(Xxh3::new())
    }

    pub fn add(&mut self, line: &str) {
        self.0.update(line.as_bytes());
        self.0.update(b"\n");
    }

    pub fn text(&self) -> String {
        format!("{:016x}", self.0.digest())
    }
}
