//! The value of a hash: all its fields in one value, so that a change of some of them is one conditional operation.
//!
//! ```text
//!  0  version      u8    1
//!  1  zero         3 B
//!  4  count        u32
//!  8  fields, strictly ascending by their bytes:
//!       field length u32, value length u32, field, value
//! ```
//! Integers are little endian. Strictly ascending: one set of fields has one encoding, and a damaged or foreign value is told
//! from a hash before anything of it is answered.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Fields and their values.
pub type Fields<'a> = BTreeMap<Cow<'a, [u8]>, Cow<'a, [u8]>>;

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 8;
/// What stands before each field.
pub const FIELD_HEAD_BYTES: usize = 8;
/// Fields of one hash. Chosen, as keys of one `KEYS`: each costs many times its bytes while it is looked at.
pub const FIELDS_MAX: usize = 1 << 20;

/// The fields of an encoded hash, in order; `None` if it is none.
pub fn decode(bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let (head, mut rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let count = u32::from_le_bytes(head[4..8].try_into().ok()?) as usize;
    // Each field takes its head at least: a count that was made up reserves no more than what came.
    if head[..4] != [VERSION, 0, 0, 0] || count > (rest.len() / FIELD_HEAD_BYTES).min(FIELDS_MAX) {
        return None;
    }
    let mut fields: Vec<(&[u8], &[u8])> = Vec::with_capacity(count);
    for _ in 0..count {
        let (lengths, data) = rest.split_first_chunk::<FIELD_HEAD_BYTES>()?;
        let length = |at: usize| Some(u32::from_le_bytes(lengths[at..at + 4].try_into().ok()?) as usize);
        let (field, data) = data.split_at_checked(length(0)?)?;
        let (value, data) = data.split_at_checked(length(4)?)?;
        if fields.last().is_some_and(|(last, _)| *last >= field) {
            return None;
        }
        fields.push((field, value));
        rest = data;
    }
    rest.is_empty().then_some(fields)
}

/// How long [`encode`]'s result is.
pub fn encoded_len(fields: &Fields<'_>) -> usize {
    HEAD_BYTES + fields.iter().map(|(field, value)| FIELD_HEAD_BYTES + field.len() + value.len()).sum::<usize>()
}

/// Encodes fields, which together must be less than 4 GiB.
pub fn encode(fields: &Fields<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(encoded_len(fields));
    bytes.extend_from_slice(&[VERSION, 0, 0, 0]);
    bytes.extend_from_slice(&(fields.len() as u32).to_le_bytes());
    for (field, value) in fields {
        bytes.extend_from_slice(&(field.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(field);
        bytes.extend_from_slice(value);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_picture() {
        let fields = Fields::from([(b"b"[..].into(), b""[..].into()), (b"a"[..].into(), b"xy"[..].into())]);
        let bytes = b"\x01\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\0\0axy\x01\0\0\0\0\0\0\0b";
        assert_eq!(encode(&fields), bytes);
        assert_eq!(decode(bytes), Some(vec![(&b"a"[..], &b"xy"[..]), (b"b", b"")]));
    }

    #[test]
    fn what_is_no_hash_is_told() {
        let good = encode(&Fields::from([(b"a"[..].into(), b"1"[..].into()), (b"b"[..].into(), b"2"[..].into())]));
        for length in 0..good.len() {
            assert_eq!(decode(&good[..length]), None, "cut at {length}");
        }
        assert_eq!(decode(&[&good[..], b"x"].concat()), None);
        let mut swapped = good.clone();
        swapped[16] = b'c';
        assert_eq!(decode(&swapped), None, "fields out of order");
        let mut newer = good;
        newer[0] = 2;
        assert_eq!(decode(&newer), None, "a newer version");
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_the_same(
            fields in {
                let bytes = || prop::collection::vec(any::<u8>(), 0..9);
                prop::collection::btree_map(bytes(), bytes(), 0..9)
            },
        ) {
            let map: Fields<'_> = fields.iter().map(|(f, v)| (f.into(), v.into())).collect();
            let bytes = encode(&map);
            prop_assert_eq!(bytes.len(), encoded_len(&map));
            let decoded: Vec<_> = fields.iter().map(|(f, v)| (&f[..], &v[..])).collect();
            prop_assert_eq!(decode(&bytes), Some(decoded));
        }

        #[test]
        fn any_bytes_are_harmless(bytes in prop::collection::vec(0u8..4, 0..60)) {
            if let Some(fields) = decode(&bytes) {
                let map: Fields<'_> = fields.into_iter().map(|(f, v)| (f.into(), v.into())).collect();
                prop_assert_eq!(encode(&map), bytes, "one set of fields has one encoding");
            }
        }
    }
}
