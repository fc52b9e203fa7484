//! Pages: the bytes of the table and of the heap's allocation pages. Pure: no I/O, no clock.
//!
//! Invariants:
//! - A blank page (`pool::blank`) of the member's life is an empty page of version 0: what every member begins with. A page of
//!   zeroes is none: nobody writes zeroes there, so that they are what a medium shows that has lost the page.
//! - No two images of one page are ever equal, in any life of the member: the version grows with every replacement, the
//!   incarnation with every format, the salt with every rebuild after damage (when the version is lost). So a delayed
//!   compare-and-write can succeed only where nothing has changed since it was issued.
//! - A decoded page has been checked as a whole: checksum, place, incarnation, every length. Walking it cannot fail.
//! - Keys ascend strictly: a page cannot hold a key twice.
//!
//! ```text
//!  header, 64 bytes, little endian
//!   0  magic "YGPG"      4 B
//!   4  format            u16    a newer one is refused by name
//!   6  kind              u8     1 table, 2 allocation
//!   7  zero              u8
//!   8  checksum          u64    CRC-64/NVME of bytes 16 to the end (0 to 8 are compared outright)
//!  16  version           u64
//!  24  incarnation       u64    of the member
//!  32  salt              u64    0; random once the page was rebuilt after damage
//!  40  seal              u64    epoch that closed the page to older hosts; 0: open
//!  48  page              u32    its own number: a misdirected write is noticed
//!  52  used              u32    bytes of records behind the header
//!  56  entries           u16
//!  58  guests            u16
//!  60  forwards          u16
//!  62  zero              u16
//!  64  table page: entries, ascending by key; then forward records, ascending by copy; then guests, ascending by copy; then zeroes
//!      allocation page: 240 slots of 16 bytes
//! ```

mod allocation;
mod draft;
mod forward;
mod record;
mod table;

pub use allocation::{AllocationPage, Claim, EXTENT_PAGES_MAX, LOST, SLOTS, UNBOUND};
pub use draft::{Draft, Full};
pub use forward::{DELETION_BYTES, FORWARD_FIXED_BYTES, Forward, decode_bundle, encode_bundle};
pub use record::{
    AppliedOps, ENTRY_FIXED_BYTES, Entry, GUEST_FIXED_BYTES, Guest, OPS_MAX, PlaceKind, REFERENCE_BYTES, Reference,
    Stored,
};
pub use table::TablePageView;

use pool::superblock::crc64;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// The format this code writes and the newest it reads.
pub const FORMAT: u16 = 1;
/// A byte of the checksum.
pub(crate) const CHECKSUM_BYTE: usize = 8;
const MAGIC: [u8; 4] = *b"YGPG";

/// What a page is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A page of the table.
    Table = 1,
    /// The allocation page of a heap group.
    Allocation = 2,
}

/// Where a page belongs; what it must say of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// What it is for.
    pub kind: Kind,
    /// Its number among its kind.
    pub page: u32,
    /// The member's life.
    pub incarnation: u64,
}

/// What the header says beside the page's identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Counts replacements.
    pub version: u64,
    /// Zero, or random since a rebuild.
    pub salt: u64,
    /// Epoch of the seal, 0: open.
    pub seal: u64,
    /// Bytes of records.
    pub used: u32,
    /// Entries, or claimed slots.
    pub entries: u16,
    /// Guests.
    pub guests: u16,
    /// Forward records.
    pub forwards: u16,
}

/// Why bytes are not the page looked for. Such a page has no vote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PageError {
    /// The bytes do not match their checksum.
    #[error("checksum {found:016x}, its bytes have {expected:016x}")]
    Checksum {
        /// In the header.
        found: u64,
        /// Of the bytes.
        expected: u64,
    },
    /// Nothing but zeroes, which nobody writes there.
    #[error("all zeroes: the medium has lost it, or something else has emptied it")]
    Zeroes,
    /// No page of ours.
    #[error("not a page (it starts with {0:02x?})")]
    Foreign([u8; 8]),
    /// Written by a later version.
    #[error("page format {0}, this version reads up to {newest}: use a newer version", newest = FORMAT)]
    Newer(u16),
    /// A page of another place.
    #[error("it says it is {found_kind} page {found}: a write went astray")]
    Misplaced {
        /// Kind found (1 table, 2 allocation).
        found_kind: u8,
        /// Number found.
        found: u32,
    },
    /// A page of an earlier life of the member.
    #[error("it belongs to incarnation {found:016x} of the member, which is now {expected:016x}")]
    Incarnation {
        /// Found.
        found: u64,
        /// The member's.
        expected: u64,
    },
    /// A good checksum over contradictory bytes: written by broken code.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

impl PageError {
    /// Whether the page is lost. One of a newer format is not: whoever wrote it can read it.
    pub fn is_damage(&self) -> bool {
        !matches!(self, PageError::Newer(_))
    }
}

/// Whether the checksum is still to be compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// These very bytes have been checked already, and have not left this process since.
    Checked,
    /// They come from a medium.
    Nothing,
}

/// Checks a page as far as its header goes. `None`: blank, the empty page of version 0.
fn decode_header(bytes: &[u8], identity: Identity, trust: Trust) -> Result<Option<Header>, PageError> {
    let Some((head, records)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(PageError::Malformed("shorter than its header"));
    };
    if head.iter().all(|&byte| byte == 0) && records.iter().all(|&byte| byte == 0) {
        return Err(PageError::Zeroes);
    }
    match pool::blank::incarnation_of(bytes) {
        Some(found) if found == identity.incarnation => return Ok(None),
        Some(found) => return Err(PageError::Incarnation { found, expected: identity.incarnation }),
        None => {}
    }
    let start = *head.first_chunk().expect("invariant: a header has more than 8 bytes");
    if !start.starts_with(&MAGIC) || start[7] != 0 {
        return Err(PageError::Foreign(start));
    }
    if trust == Trust::Nothing {
        let (found, expected) = (u64_at(head, 8), crc64(&bytes[16..]));
        if found != expected {
            return Err(PageError::Checksum { found, expected });
        }
    }
    match u16_at(head, 4) {
        FORMAT => {}
        newer if newer > FORMAT => return Err(PageError::Newer(newer)),
        _ => return Err(PageError::Malformed("format 0")),
    }
    if start[6] != identity.kind as u8 || u32_at(head, 48) != identity.page {
        return Err(PageError::Misplaced { found_kind: start[6], found: u32_at(head, 48) });
    }
    if u64_at(head, 24) != identity.incarnation {
        return Err(PageError::Incarnation { found: u64_at(head, 24), expected: identity.incarnation });
    }
    let header = Header {
        version: u64_at(head, 16),
        salt: u64_at(head, 32),
        seal: u64_at(head, 40),
        used: u32_at(head, 52),
        entries: u16_at(head, 56),
        guests: u16_at(head, 58),
        forwards: u16_at(head, 60),
    };
    if header.used as usize > records.len() {
        return Err(PageError::Malformed("more used than there is"));
    }
    Ok(Some(header))
}

/// Whether bytes may be what is left of one image of this very page, whatever else is wrong with them: they bear the number that
/// its life has drawn, or all else of its head that is always the same.
pub(crate) fn is_left_of(bytes: &[u8], identity: Identity) -> bool {
    let is_of = |head: &[u8; HEADER_BYTES]| {
        let has_place = head.starts_with(&MAGIC) && head[6] == identity.kind as u8 && u32_at(head, 48) == identity.page;
        has_place || u64_at(head, 24) == identity.incarnation
    };
    bytes.first_chunk().is_some_and(is_of)
}

/// Writes the header of a page whose records stand in place already, and its checksum.
fn encode_header(bytes: &mut [u8], identity: Identity, header: &Header) {
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[6] = identity.kind as u8;
    bytes[7] = 0;
    bytes[16..24].copy_from_slice(&header.version.to_le_bytes());
    bytes[24..32].copy_from_slice(&identity.incarnation.to_le_bytes());
    bytes[32..40].copy_from_slice(&header.salt.to_le_bytes());
    bytes[40..48].copy_from_slice(&header.seal.to_le_bytes());
    bytes[48..52].copy_from_slice(&identity.page.to_le_bytes());
    bytes[52..56].copy_from_slice(&header.used.to_le_bytes());
    bytes[56..58].copy_from_slice(&header.entries.to_le_bytes());
    bytes[58..60].copy_from_slice(&header.guests.to_le_bytes());
    bytes[60..62].copy_from_slice(&header.forwards.to_le_bytes());
    bytes[62..64].fill(0);
    let checksum = crc64(&bytes[16..]);
    bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
}

/// The seal of a page that was decoded before.
pub(crate) fn seal_of(page: &[u8]) -> u64 {
    u64_at(page, 40)
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests;
