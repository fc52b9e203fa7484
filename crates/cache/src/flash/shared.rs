//! An item's bytes in a page that items share. Pure bytes, no I/O.
//!
//! ```text
//! key length       u8   1 to 250
//! bits             u8   1 fetched, 2 stale, 4 won, 8 binary key; 16 flags follow, 32 expiry follows
//! value length      n
//! [flags            n]  where not 0
//! [expiry           d   from the last access] where it ends at all
//! accessed          d   from the page's: seconds
//! cas               d   from the page's
//! key
//! value
//!
//! n  a number: LEB128, seven bits in a byte, the lowest first; the highest bit says that more follow
//! d  a difference: twice as much, as a number; where it is negative, less one and without its sign
//! ```
//!
//! Most items of a cache are short: each byte beside 36 of key and 195 of value (ETC's means) is 0.4 % of what is written.
//! What leaves memory together came at about the same time: differences from the page's first item have 5 bytes where
//! cas is within a million and the access within two hours, and may be any. The checksum is the page's ([`super::page`]).
//!
//! The order: what is the same in any page comes first, and is made before the page is known.

use super::item::{self, COMMON, Decoded, EXPIRES, FLAGS, HEAD_BYTES_MAX, HeadBytes, Origin, Reader};
use crate::item::{Cas, Meta, NEVER};

/// Bytes of the longest number of 32 and of 64 bits. Derived: seven bits in a byte.
const LONGEST: [usize; 2] = [5, 10];

// Flags and times have 32 bits, cas and the length of a value that may be too long 64.
const _: () = assert!(2 + 3 * LONGEST[0] + 2 * LONGEST[1] <= HEAD_BYTES_MAX);

/// What the differences of a page's items are from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Base {
    /// Seconds since 1970.
    pub(crate) accessed: u32,
    pub(crate) cas: u64,
}

/// Bytes that `number` takes.
fn number_len(number: u64) -> usize {
    (u64::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize
}

fn add_number(head: &mut HeadBytes, mut number: u64) {
    while number > 0x7f {
        head.add(&[number as u8 | 0x80]);
        number >>= 7;
    }
    head.add(&[number as u8]);
}

/// How far it is to `to`: round the end of the numbers where that is nearer.
fn difference(from: u64, to: u64) -> u64 {
    let difference = to.wrapping_sub(from) as i64;
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// What is so far from `from`.
fn apply(from: u64, difference: u64) -> u64 {
    let amount = difference >> 1;
    from.wrapping_add(if difference & 1 == 0 { amount } else { !amount })
}

impl Reader<'_> {
    /// A number. `None`: it does not end, or has more than 64 bits.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return ((bits << shift) >> shift == bits).then_some(number);
            }
        }
        None
    }
}

/// The time that is so far from `from`, if there is one.
fn time(from: u32, difference: u64) -> Option<u32> {
    u32::try_from(apply(u64::from(from), difference)).ok()
}

/// An item's head, as far as it is the same in any page, and what the rest is made of.
pub(crate) struct Head {
    common: HeadBytes,
    own: Base,
}

impl Head {
    /// The head of an item with a key and a value of these lengths.
    pub(crate) fn new(key_len: usize, meta: &Meta, value_len: usize, origin: Origin) -> Head {
        let own = Base { accessed: origin.to_unix(meta.accessed), cas: meta.cas.0 };
        let mut common = HeadBytes::new();
        common.add(&[key_len as u8, item::bits_of(meta)]);
        add_number(&mut common, value_len as u64);
        if meta.flags != 0 {
            add_number(&mut common, u64::from(meta.flags));
        }
        if meta.expires != NEVER {
            let expires = origin.to_unix(meta.expires);
            add_number(&mut common, difference(u64::from(own.accessed), u64::from(expires)));
        }
        Head { common, own }
    }

    /// The base of a page in which the item is the first: its head is shortest there.
    pub(crate) fn base(&self) -> Base {
        self.own
    }

    fn differences(&self, base: &Base) -> [u64; 2] {
        let accessed = difference(u64::from(base.accessed), u64::from(self.own.accessed));
        [accessed, difference(base.cas, self.own.cas)]
    }

    /// Its length in a page of this `base`.
    pub(crate) fn len(&self, base: &Base) -> usize {
        let [accessed, cas] = self.differences(base);
        self.common.len() + number_len(accessed) + number_len(cas)
    }

    /// Its bytes there.
    pub(crate) fn to_bytes(&self, base: &Base) -> HeadBytes {
        let mut head = self.common;
        self.differences(base).into_iter().for_each(|difference| add_number(&mut head, difference));
        head
    }
}

/// Reads head and key at the beginning of `bytes`, in a page of this `base`. `None`: no item begins there.
pub(crate) fn decode<'a>(bytes: &'a [u8], base: &Base, origin: Origin) -> Option<Decoded<'a>> {
    let mut reader = Reader(bytes);
    let (key_len, bits) = reader.begin(COMMON)?;
    let value_len = usize::try_from(reader.number()?).ok()?;
    let flags = if bits & FLAGS != 0 { u32::try_from(reader.number()?).ok()? } else { 0 };
    let expires = if bits & EXPIRES != 0 { Some(reader.number()?) } else { None };
    let accessed = time(base.accessed, reader.number()?)?;
    let cas = Cas(apply(base.cas, reader.number()?));
    let expires = match expires {
        Some(difference) => origin.of_unix(time(accessed, difference)?),
        None => NEVER,
    };
    let key = reader.take(key_len)?;
    let meta = Meta { flags, expires, accessed: origin.of_unix(accessed), cas, ..Meta::default() };
    Some(Decoded { key, meta: item::with_bits(bits, meta), value_at: bytes.len() - reader.0.len(), value_len })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::KEY_BYTES_MAX;
    use crate::item::Seconds;

    const ORIGIN: Origin = Origin(1_795_000_000);

    /// Any number, those at which something changes more often.
    fn numbers() -> impl Strategy<Value = u64> {
        let near = (0..=u64::BITS, -2..=2_i64)
            .prop_map(|(bits, more)| 1_u64.checked_shl(bits).unwrap_or(0).wrapping_add_signed(more));
        prop_oneof![near, any::<u64>()]
    }

    fn words() -> impl Strategy<Value = u32> {
        numbers().prop_map(|number| number as u32)
    }

    proptest! {
        /// Times since the clock began that the calendar can tell in 32 bits come back, whatever they are told from.
        #[test]
        fn round_trip(
            key in proptest::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX),
            value in proptest::collection::vec(any::<u8>(), 0..300),
            (flags, expires, accessed, cas) in (words(), words(), words(), numbers()),
            (base_accessed, base_cas) in (words(), numbers()),
            begun in words(),
            bits in 0..16_u8,
        ) {
            let origin = Origin(u64::from(begun));
            let told = |time: u32| Seconds(time.min(u32::MAX - begun));
            let meta = Meta {
                flags,
                expires: told(expires),
                accessed: told(accessed.max(1)),
                cas: Cas(cas),
                fetched: bits & 1 != 0,
                stale: bits & 2 != 0,
                won: bits & 4 != 0,
                binary_key: bits & 8 != 0,
            };
            let head = Head::new(key.len(), &meta, value.len(), origin);
            let bases = [Base { accessed: base_accessed, cas: base_cas }, head.base(), Base::default()];
            for base in bases {
                let made = head.to_bytes(&base);
                prop_assert_eq!(made.len(), head.len(&base));
                prop_assert!(head.len(&head.base()) <= head.len(&base), "it is shortest where it is the first");
                let bytes = [made.bytes(), &key, &value, b"behind"].concat();
                let decoded = decode(&bytes, &base, origin).expect("an item");
                // Where the clock began in the last second of all, nothing is after it.
                let meta = Meta { accessed: Seconds(meta.accessed.0.max(1)), ..meta };
                prop_assert_eq!((decoded.key, decoded.meta), (&*key, meta));
                prop_assert_eq!(&bytes[decoded.value_at..decoded.len()], &*value);
                for len in 0..made.len() + key.len() {
                    prop_assert_eq!(decode(&bytes[..len], &base, origin), None);
                }
            }
        }

        #[test]
        fn differences_are_told_both_ways_and_the_short_way(from in numbers(), to in numbers()) {
            prop_assert_eq!(apply(from, difference(from, to)), to);
            let far = from.wrapping_sub(to).min(to.wrapping_sub(from));
            prop_assert!(difference(from, to).div_ceil(2) == far);
            let mut head = HeadBytes::new();
            add_number(&mut head, from);
            prop_assert_eq!((head.len(), Reader(head.bytes()).number()), (number_len(from), Some(from)));
        }

        #[test]
        fn hostile_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            (accessed, cas) in (words(), numbers()),
        ) {
            if let Some(item) = decode(&bytes, &Base { accessed, cas }, ORIGIN) {
                prop_assert!(!item.key.is_empty() && item.value_at <= bytes.len() && item.len() >= item.value_at);
            }
        }
    }

    /// What the head of the file promises.
    #[test]
    fn what_came_together_takes_little() {
        let base = Base { accessed: 1_795_000_000, cas: 7_000_000 };
        for (accessed, cas) in [(5000, 6_000_001), (2000, 7_999_999), (1, 7_000_000)] {
            let meta = Meta { accessed: Seconds(accessed), cas: Cas(cas), ..Meta::default() };
            let len = Head::new(36, &meta, 195, Origin(base.accessed.into())).len(&base);
            assert!(len <= 2 + 2 + 5, "{len} bytes");
        }
    }

    #[test]
    fn what_no_item_says_is_none() {
        let decode = |bytes: &[u8]| decode(bytes, &Base { accessed: 5, cas: 0 }, Origin(0)).is_some();
        assert!(decode(&[1, 0, 0, 0, 0, b'k']), "an item");
        assert!(!decode(&[0, 0, 0, 0, 0, b'k']), "no key");
        assert!(!decode(&[251, 0, 0, 0, 0].into_iter().chain([b'k'; 251]).collect::<Vec<_>>()), "a key too long");
        assert!(!decode(&[1, 64, 0, 0, 0, b'k']) && !decode(&[1, 128, 0, 0, 0, b'k']), "unknown bits");
        assert!(decode(&[1, 0, 0, 9, 0, b'k']) && !decode(&[1, 0, 0, 11, 0, b'k']), "before 1970");
        assert!(!decode(&[1, 16, 0, 0xff, 0xff, 0xff, 0xff, 0x1f, 0, 0, b'k']), "flags of 33 bits");
        let cas = |last: u8| [&[1, 0, 0, 0][..], &[0xff; 9], &[last, b'k']].concat();
        assert!(
            decode(&cas(1)) && !decode(&cas(2)) && !decode(&cas(0x81)),
            "a number of 65 bits, and one that goes on"
        );
    }
}
