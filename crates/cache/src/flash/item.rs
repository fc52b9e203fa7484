//! An item's bytes on flash where it has its pages alone, and what all items have in common. Pure bytes, no I/O.
//!
//! ```text
//!  0  checksum       u32   the number of its first page, XOR CRC-32C of all that follows, to the value's end, but for the life
//!  4  key length      u8   1 to 250
//!  5  bits            u8   1 fetched, 2 stale, 4 won, 8 binary key; 16 flags follow, 32 expiry follows, 64 long value
//!  6  accessed       u32   seconds since 1970
//! 10  cas            u64
//! 18  value length   u16, or u32 for a long value
//!     life           u64   of its segment
//!     [flags         u32]  where not 0
//!     [expiry        u32   seconds since 1970] where it ends at all
//!     key
//!     value
//! ```
//!
//! The order: what every item has comes first, at fixed places; what few have costs nothing where it is absent. Beside a
//! page of value none of it counts: where items share a page it does ([`super::shared`]). Times have 32 bits, until 2106.
//! Life and page are known only when a place is: left out of what the checksum goes over, it need not be taken over a long
//! value while others wait. The life is a check by itself; with the page, what was written elsewhere is none of ours.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use crate::KEY_BYTES_MAX;
use crate::item::{Cas, Meta, NEVER, Seconds};

/// The most bytes before a key. Derived from the picture; a head in a shared page is shorter.
pub(super) const HEAD_BYTES_MAX: usize = 18 + 4 + 8 + 4 + 4;

const LIFE_BYTES: usize = 8;

const FETCHED: u8 = 1;
const STALE: u8 = 2;
const WON: u8 = 4;
const BINARY_KEY: u8 = 8;
pub(super) const FLAGS: u8 = 16;
pub(super) const EXPIRES: u8 = 32;
const LONG: u8 = 64;
/// The bits that items of all kinds may have.
pub(super) const COMMON: u8 = LONG - 1;

/// Where the server's clock began, in seconds since 1970: [`Seconds`] are told on flash by the calendar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin(pub u64);

impl Origin {
    pub(super) fn to_unix(self, at: Seconds) -> u32 {
        self.0.saturating_add(u64::from(at.0)).min(u64::from(u32::MAX)) as u32
    }

    /// What was before the clock began was at its first second: past, and never [`NEVER`].
    pub(super) fn of_unix(self, unix: u32) -> Seconds {
        Seconds(u64::from(unix).saturating_sub(self.0).clamp(1, u64::from(u32::MAX)) as u32)
    }
}

/// The common bits of an item with this `meta`.
pub(super) fn bits_of(meta: &Meta) -> u8 {
    let bit = |is: bool, bit: u8| if is { bit } else { 0 };
    bit(meta.fetched, FETCHED)
        | bit(meta.stale, STALE)
        | bit(meta.won, WON)
        | bit(meta.binary_key, BINARY_KEY)
        | bit(meta.flags != 0, FLAGS)
        | bit(meta.expires != NEVER, EXPIRES)
}

/// What `bits` say, for an item of which the rest is known.
pub(super) fn with_bits(bits: u8, rest: Meta) -> Meta {
    let [fetched, stale, won, binary_key] = [FETCHED, STALE, WON, BINARY_KEY].map(|bit| bits & bit != 0);
    Meta { fetched, stale, won, binary_key, ..rest }
}

/// The bytes before a key, as they are made.
#[derive(Clone, Copy)]
pub(crate) struct HeadBytes {
    bytes: [u8; HEAD_BYTES_MAX],
    len: usize,
}

impl HeadBytes {
    pub(super) fn new() -> HeadBytes {
        HeadBytes { bytes: [0; HEAD_BYTES_MAX], len: 0 }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The head of an item that has its pages alone, made ready to be written: all but life and checksum.
pub(crate) struct Head {
    head: HeadBytes,
    life_at: usize,
    /// Of what does not depend on the place.
    sum: u32,
}

impl Head {
    /// The head of an item with a key and a value of these lengths.
    pub(crate) fn new(key_len: usize, meta: &Meta, value_len: usize, origin: Origin) -> Head {
        let mut head = HeadBytes::new();
        let long = value_len > usize::from(u16::MAX);
        head.add(&[0; 4]);
        head.add(&[key_len as u8, bits_of(meta) | if long { LONG } else { 0 }]);
        head.add(&origin.to_unix(meta.accessed).to_le_bytes());
        head.add(&meta.cas.0.to_le_bytes());
        if long {
            head.add(&(value_len as u32).to_le_bytes());
        } else {
            head.add(&(value_len as u16).to_le_bytes());
        }
        let life_at = head.len();
        head.add(&[0; LIFE_BYTES]);
        if meta.flags != 0 {
            head.add(&meta.flags.to_le_bytes());
        }
        if meta.expires != NEVER {
            head.add(&origin.to_unix(meta.expires).to_le_bytes());
        }
        Head { head, life_at, sum: 0 }
    }

    /// Its length.
    pub(crate) fn len(&self) -> usize {
        self.head.len()
    }

    /// Takes the checksum, with this key and these pieces of value.
    pub(crate) fn seal(&mut self, key: &[u8], value: &[&[u8]]) {
        let mut sum = crc_fast::Digest::new(Crc32Iscsi);
        sum.update(&self.head.bytes()[4..self.life_at]);
        sum.update(&self.head.bytes()[self.life_at + LIFE_BYTES..]);
        sum.update(key);
        value.iter().for_each(|piece| sum.update(piece));
        self.sum = sum.finalize() as u32;
    }

    /// It is in a segment of this `life`, from page number `page` on. After [`Head::seal`].
    pub(crate) fn set_place(&mut self, page: u32, life: u64) {
        self.head.bytes[..4].copy_from_slice(&(self.sum ^ page).to_le_bytes());
        self.head.bytes[self.life_at..self.life_at + LIFE_BYTES].copy_from_slice(&life.to_le_bytes());
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.head.bytes()
    }
}

/// What an item's head and key say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Decoded<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) meta: Meta,
    /// Where the value begins, right behind the key.
    pub(crate) value_at: usize,
    pub(crate) value_len: usize,
}

impl Decoded<'_> {
    /// Bytes of the whole item.
    pub(crate) fn len(&self) -> usize {
        self.value_at.saturating_add(self.value_len)
    }
}

/// Takes little-endian numbers off the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    /// The length of the key and the bits, of which there are only those `known`.
    pub(super) fn begin(&mut self, known: u8) -> Option<(usize, u8)> {
        let [key_len, bits] = self.array()?;
        let key_len = usize::from(key_len);
        ((1..=KEY_BYTES_MAX).contains(&key_len) && bits & !known == 0).then_some((key_len, bits))
    }
}

/// What an item that has its pages alone says. The checksum is not checked yet: the value may be elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Alone<'a> {
    pub(crate) item: Decoded<'a>,
    pub(crate) life: u64,
    life_at: usize,
    checksum: u32,
}

/// Reads head and key at the beginning of `bytes`, the first of its pages. `None`: no item begins there.
pub(crate) fn decode(bytes: &[u8], origin: Origin) -> Option<Alone<'_>> {
    let mut reader = Reader(bytes);
    let checksum = u32::from_le_bytes(reader.array()?);
    let (key_len, bits) = reader.begin(COMMON | LONG)?;
    let accessed = origin.of_unix(u32::from_le_bytes(reader.array()?));
    let cas = Cas(u64::from_le_bytes(reader.array()?));
    let value_len = match bits & LONG {
        0 => usize::from(u16::from_le_bytes(reader.array()?)),
        _ => u32::from_le_bytes(reader.array()?) as usize,
    };
    let life_at = bytes.len() - reader.0.len();
    let life = u64::from_le_bytes(reader.array()?);
    let flags = if bits & FLAGS != 0 { u32::from_le_bytes(reader.array()?) } else { 0 };
    let expires = if bits & EXPIRES != 0 { origin.of_unix(u32::from_le_bytes(reader.array()?)) } else { NEVER };
    let key = reader.take(key_len)?;
    let meta = with_bits(bits, Meta { flags, expires, accessed, cas, ..Meta::default() });
    let item = Decoded { key, meta, value_at: bytes.len() - reader.0.len(), value_len };
    Some(Alone { item, life, life_at, checksum })
}

impl Alone<'_> {
    /// Whether the checksum is that of the item from page number `page` on that goes over `first`, which this was decoded
    /// from, and then over `rest`.
    pub(crate) fn is_sound<'p>(&self, page: u32, first: &'p [u8], rest: impl Iterator<Item = &'p [u8]>) -> bool {
        let mut sum = crc_fast::Digest::new(Crc32Iscsi);
        sum.update(&first[4..self.life_at]);
        let begin = self.life_at + LIFE_BYTES;
        let mut left = self.item.len() - begin;
        for piece in std::iter::once(&first[begin..]).chain(rest) {
            let piece = &piece[..piece.len().min(left)];
            sum.update(piece);
            left -= piece.len();
        }
        left == 0 && sum.finalize() as u32 ^ page == self.checksum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ORIGIN: Origin = Origin(1_795_000_000);

    proptest! {
        #[test]
        fn round_trip(
            key in proptest::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX),
            value in proptest::collection::vec(any::<u8>(), 0..300),
            flags in prop_oneof![Just(0), any::<u32>()],
            expires in prop_oneof![Just(0), 1..1_000_000_u32],
            bits in 0..16_u8,
        ) {
            let meta = Meta {
                flags,
                expires: Seconds(expires),
                accessed: Seconds(9),
                cas: Cas(u64::from(flags) << 20),
                fetched: bits & 1 != 0,
                stale: bits & 2 != 0,
                won: bits & 4 != 0,
                binary_key: bits & 8 != 0,
            };
            let mut head = Head::new(key.len(), &meta, value.len(), ORIGIN);
            let (first, second) = value.split_at(value.len() / 3);
            head.seal(&key, &[first, second]);
            head.set_place(5, 77);
            let bytes = [head.bytes(), &key, &value, b"behind"].concat();
            let decoded = decode(&bytes, ORIGIN).expect("an item");
            let item = decoded.item;
            prop_assert_eq!((item.key, item.meta, decoded.life), (&*key, meta, 77));
            prop_assert_eq!(&bytes[item.value_at..item.len()], &*value);
            let (head, tail) = bytes.split_at(item.value_at + value.len() / 2);
            prop_assert!(decoded.is_sound(5, &bytes, [].into_iter()) && decoded.is_sound(5, head, [tail].into_iter()));
            prop_assert!(!decoded.is_sound(5, &bytes[..item.len() - 1], [].into_iter()));
            prop_assert!(!decoded.is_sound(6, &bytes, [].into_iter()), "what was written elsewhere");
            for at in 0..item.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x40;
                let is_taken = |item: Alone<'_>| item.is_sound(5, &damaged, [].into_iter()) && item.life == decoded.life;
                let taken = decode(&damaged, ORIGIN).is_some_and(is_taken);
                prop_assert!(!taken, "byte {}", at);
            }
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Some(item) = decode(&bytes, ORIGIN) {
                let _ = item.is_sound(5, &bytes, [].into_iter()); // either way is right
            }
        }
    }

    #[test]
    fn times_before_the_clock_began_are_past_and_never_never() {
        let head = |origin| {
            let meta = Meta { expires: Seconds(5), accessed: Seconds(3), ..Meta::default() };
            let mut head = Head::new(1, &meta, 70_000, origin);
            head.seal(b"k", &[]);
            [head.bytes(), b"k"].concat()
        };
        let (bytes, later) = (head(ORIGIN), Origin(ORIGIN.0 + 1000));
        let decoded = decode(&bytes, later).expect("an item").item;
        assert_eq!((decoded.meta.expires, decoded.meta.accessed, decoded.value_len), (Seconds(1), Seconds(1), 70_000));
    }
}
