//! An item in a segment, byte by byte. Items start at multiples of eight bytes; numbers are little-endian.
//!
//! ```text
//!  0  cas                     8
//!  8  flags                   4
//! 12  expires                 4
//! 16  accessed                4
//! 20  bits 0-16 length of the value, 17-21 slot of the copy on flash, 22 there is a copy on flash      4
//! 24  extent: all the item takes, in 8 bytes                                                           2
//! 26  length of the key       1
//! 27  bits 0 fetched, 1 stale, 2 won, 3 binary key, 4 long, 5 dead, 6-7 popularity                     1
//! 28  page of the copy on flash                                                                        4
//! 32  key, value; of a long value, which lies outside, the number under which it is kept (8)
//! ```
//!
//! The order keeps what a get reads in the item's first cache line, and each number aligned.

use crate::index::FlashPlace;
use crate::item::{Cas, Meta, Seconds};

/// Bytes before the key.
pub(crate) const HEADER_BYTES: usize = 32;
/// What is kept in place of a long value.
pub(crate) const HANDLE_BYTES: usize = 8;
/// The granule of items.
pub(crate) const UNIT_BYTES: usize = 8;

const LENGTH_BITS: u32 = 17;
const SLOT_SHIFT: u32 = LENGTH_BITS;
const HAS_COPY: u32 = 1 << 22;

const FETCHED: u8 = 1;
const STALE: u8 = 1 << 1;
const WON: u8 = 1 << 2;
const BINARY_KEY: u8 = 1 << 3;
const LONG: u8 = 1 << 4;
const DEAD: u8 = 1 << 5;
const POPULARITY_SHIFT: u32 = 6;

const EXPIRES_AT: usize = 12;
const ACCESSED_AT: usize = 16;
pub(crate) const KEY_LENGTH_AT: usize = 26;
const BITS_AT: usize = 27;

const _: () = assert!(crate::WHOLE_BYTES_MAX < 1 << LENGTH_BITS && crate::KEY_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(extent(crate::KEY_BYTES_MAX, crate::WHOLE_BYTES_MAX) / UNIT_BYTES <= u16::MAX as usize);

/// What an item takes, in bytes.
pub(crate) const fn extent(key: usize, value: usize) -> usize {
    (HEADER_BYTES + key + value).next_multiple_of(UNIT_BYTES)
}

/// What stands before key and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) meta: Meta,
    /// Bytes behind the key: the value's, or [`HANDLE_BYTES`].
    pub(crate) length: usize,
    /// Bytes that the item takes; the last ones may be unused.
    pub(crate) extent: usize,
    pub(crate) key_length: usize,
    /// The value lies outside.
    pub(crate) long: bool,
    /// Nothing leads here any more.
    pub(crate) dead: bool,
    pub(crate) popularity: u8,
    /// Where the same item is on flash.
    pub(crate) copy: Option<FlashPlace>,
}

fn word(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Header {
    pub(crate) fn read(bytes: &[u8; HEADER_BYTES]) -> Header {
        let bits = bytes[BITS_AT];
        let lengths = word(bytes, 20);
        let copy = FlashPlace { page: word(bytes, 28), slot: (lengths >> SLOT_SHIFT) as u8 & 31 };
        Header {
            meta: Meta {
                cas: Cas(u64::from(word(bytes, 0)) | u64::from(word(bytes, 4)) << 32),
                flags: word(bytes, 8),
                expires: Seconds(word(bytes, EXPIRES_AT)),
                accessed: Seconds(word(bytes, ACCESSED_AT)),
                fetched: bits & FETCHED != 0,
                stale: bits & STALE != 0,
                won: bits & WON != 0,
                binary_key: bits & BINARY_KEY != 0,
            },
            length: (lengths & ((1 << LENGTH_BITS) - 1)) as usize,
            extent: usize::from(u16::from_le_bytes([bytes[24], bytes[25]])) * UNIT_BYTES,
            key_length: usize::from(bytes[KEY_LENGTH_AT]),
            long: bits & LONG != 0,
            dead: bits & DEAD != 0,
            popularity: bits >> POPULARITY_SHIFT,
            copy: (lengths & HAS_COPY != 0).then_some(copy),
        }
    }

    pub(crate) fn write(&self, bytes: &mut [u8; HEADER_BYTES]) {
        let meta = &self.meta;
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let (page, slot) = self.copy.map_or((0, 0), |copy| (copy.page, HAS_COPY | u32::from(copy.slot) << SLOT_SHIFT));
        bytes[0..8].copy_from_slice(&meta.cas.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&meta.flags.to_le_bytes());
        bytes[EXPIRES_AT..16].copy_from_slice(&meta.expires.0.to_le_bytes());
        bytes[ACCESSED_AT..20].copy_from_slice(&meta.accessed.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&(self.length as u32 | slot).to_le_bytes());
        bytes[24..26].copy_from_slice(&((self.extent / UNIT_BYTES) as u16).to_le_bytes());
        bytes[KEY_LENGTH_AT] = self.key_length as u8;
        bytes[BITS_AT] = flag(meta.fetched, FETCHED)
            | flag(meta.stale, STALE)
            | flag(meta.won, WON)
            | flag(meta.binary_key, BINARY_KEY)
            | flag(self.long, LONG)
            | flag(self.dead, DEAD)
            | self.popularity << POPULARITY_SHIFT;
        bytes[28..32].copy_from_slice(&page.to_le_bytes());
    }

    /// When the item expires: all that a look-up asks of a header.
    pub(crate) fn expires(bytes: &[u8; HEADER_BYTES]) -> Seconds {
        Seconds(word(bytes, EXPIRES_AT))
    }

    /// Notes an access in place, and writes nothing where nothing changes: a line that is only read stays shared by the cores.
    pub(crate) fn note_access(bytes: &mut [u8; HEADER_BYTES], now: Seconds) {
        if word(bytes, ACCESSED_AT) != now.0 {
            bytes[ACCESSED_AT..20].copy_from_slice(&now.0.to_le_bytes());
        }
        let bits = bytes[BITS_AT];
        let popularity = (bits >> POPULARITY_SHIFT).saturating_add(1).min(crate::policy::POPULARITY_MAX);
        let noted = bits & ((1 << POPULARITY_SHIFT) - 1) | FETCHED | popularity << POPULARITY_SHIFT;
        if bits != noted {
            bytes[BITS_AT] = noted;
        }
    }

    pub(crate) fn mark_dead(bytes: &mut [u8; HEADER_BYTES]) {
        bytes[BITS_AT] |= DEAD;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_it_was_told() {
        let meta = Meta {
            flags: 0xdead_beef,
            expires: Seconds(7),
            accessed: Seconds(0x0102_0304),
            cas: Cas(0x1122_3344_5566_7788),
            fetched: false,
            stale: true,
            won: false,
            binary_key: true,
        };
        let copy = Some(FlashPlace { page: 0xfedc_ba98, slot: 31 });
        let mut header = Header {
            meta,
            length: 65_536,
            extent: 65_824,
            key_length: 250,
            long: true,
            dead: false,
            popularity: 2,
            copy,
        };
        let mut bytes = [0xff; HEADER_BYTES];
        header.write(&mut bytes);
        assert_eq!(Header::read(&bytes), header);
        assert_eq!(bytes[..8], 0x1122_3344_5566_7788_u64.to_le_bytes());

        for _ in 0..2 {
            Header::note_access(&mut bytes, Seconds(9));
            header.popularity = 3;
            header.meta.accessed = Seconds(9);
            header.meta.fetched = true;
            assert_eq!(Header::read(&bytes), header);
        }
        Header::mark_dead(&mut bytes);
        header.dead = true;
        assert_eq!(Header::read(&bytes), header);
        header.copy = None;
        header.write(&mut bytes);
        assert_eq!(Header::read(&bytes), header);
    }

    #[test]
    fn an_item_takes_whole_units() {
        assert_eq!((extent(1, 0), extent(8, 0), extent(5, 3), extent(250, 65_536)), (40, 40, 40, 65_824));
    }
}
