//! Attributes: small named records that go with a namespace, and their place in the sidecar of a file.
//!
//! ```text
//!  bytes of a copy
//!      0  magic "YAGURA-A"
//!      8  sequence      u64, counts the writes; the higher valid copy is in force
//!     16  length        u64, bytes of the records
//!     24  checksum      u64, CRC-64/NVME of bytes 0 to 24 and of the records
//!     32  records       key length u8, value length u16 (little endian), key, value; ascending by key
//! ```
//! There are two copies, and each write goes to the older one, whole and durably: whatever a power loss leaves of it, the
//! other copy is untouched. So there is always one that is valid; where there is none, the medium has lost it, and that is
//! told and never taken for "no attributes": reservations and marks of bad blocks would silently be gone.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::{Buf, View};

use crate::namespace::{ATTRIBUTE_BYTES_MAX, ATTRIBUTE_KEY_BYTES_MAX, ATTRIBUTES_MAX};
use crate::{Error, Lba};

const MAGIC: [u8; 8] = *b"YAGURA-A";
const HEADER_BYTES: usize = 32;
/// Bytes of one copy: a multiple of every medium's block. Derived: all attributes at their largest.
pub const COPY_BYTES: usize = 16 << 10;

const _: () = assert!(
    HEADER_BYTES + ATTRIBUTES_MAX * (3 + ATTRIBUTE_KEY_BYTES_MAX + ATTRIBUTE_BYTES_MAX) <= COPY_BYTES,
    "a copy holds every attribute there can be"
);

/// The attributes of a namespace by key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attributes(BTreeMap<String, Vec<u8>>);

impl Attributes {
    /// The value of one of them.
    pub fn get(&self, key: &str) -> Option<&Vec<u8>> {
        self.0.get(key)
    }

    /// The attributes with one of them changed; an empty value removes it.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`] beyond the bounds of [`Namespace::set_attribute`](crate::Namespace::set_attribute).
    pub fn with(&self, key: &'static str, value: &[u8]) -> Result<Attributes, Error> {
        let mut changed = self.clone();
        if value.is_empty() {
            changed.0.remove(key);
            return Ok(changed);
        }
        if value.len() > ATTRIBUTE_BYTES_MAX || key.is_empty() || key.len() > ATTRIBUTE_KEY_BYTES_MAX {
            return Err(Error::OutOfSpace);
        }
        changed.0.insert(key.to_owned(), value.to_vec());
        if changed.0.len() > ATTRIBUTES_MAX { Err(Error::OutOfSpace) } else { Ok(changed) }
    }

    /// One copy on the medium.
    pub fn encode(&self, sequence: u64) -> View {
        let mut records = Vec::new();
        for (key, value) in &self.0 {
            records.push(key.len() as u8);
            records.extend((value.len() as u16).to_le_bytes());
            records.extend(key.as_bytes());
            records.extend(value);
        }
        let mut copy = Buf::zeroed(COPY_BYTES);
        copy[..8].copy_from_slice(&MAGIC);
        copy[8..16].copy_from_slice(&sequence.to_le_bytes());
        copy[16..24].copy_from_slice(&(records.len() as u64).to_le_bytes());
        copy[HEADER_BYTES..HEADER_BYTES + records.len()].copy_from_slice(&records);
        let checksum = checksum_of(&copy, records.len());
        copy[24..32].copy_from_slice(&checksum.to_le_bytes());
        copy.freeze()
    }

    /// Bytes of a copy that say something: the rest is padding, which need not be kept.
    pub fn encoded_bytes(copy: &[u8]) -> usize {
        let records =
            copy.get(16..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        copy.len().min(HEADER_BYTES + records as usize)
    }

    /// Sequence and attributes of a copy; `None` where it is not valid.
    pub fn decode(copy: &[u8]) -> Option<(u64, Attributes)> {
        let word = |at: usize| Some(u64::from_le_bytes(copy.get(at..at + 8)?.try_into().ok()?));
        let bytes = usize::try_from(word(16)?).ok().filter(|&bytes| bytes <= COPY_BYTES - HEADER_BYTES)?;
        let mut records = copy.get(HEADER_BYTES..HEADER_BYTES + bytes)?;
        if copy[..8] != MAGIC || word(24)? != checksum_of(copy, bytes) {
            return None;
        }
        let mut found = BTreeMap::new();
        while let [key_bytes, low, high, rest @ ..] = records {
            let (key, rest) = rest.split_at_checked(usize::from(*key_bytes))?;
            let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
            found.insert(String::from_utf8(key.to_vec()).ok()?, value.to_vec());
            records = rest;
        }
        records.is_empty().then_some((word(8)?, Attributes(found)))
    }
}

fn checksum_of(copy: &[u8], record_bytes: usize) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&copy[..24]);
    digest.update(&copy[HEADER_BYTES..HEADER_BYTES + record_bytes]);
    digest.finalize()
}

/// Attributes that live as long as the object that holds them.
#[derive(Debug, Default)]
pub(crate) struct Volatile(Mutex<Attributes>);

impl Volatile {
    fn lock(&self) -> MutexGuard<'_, Attributes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // replaced whole, so always sound
    }

    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.lock().get(key).cloned()
    }

    pub fn set(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
        let mut attributes = self.lock();
        *attributes = attributes.with(key, value)?;
        Ok(())
    }
}

/// The error of a range that is marked unreadable.
pub(crate) fn marked(lba: Lba, blocks: u64) -> Error {
    Error::ReadFault(format!("blocks {lba}+{blocks} contain blocks that were marked by Write Uncorrectable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_decoded_and_damage_is_seen() {
        let attributes = Attributes::default().with("one", &[1; ATTRIBUTE_BYTES_MAX]).expect("it fits");
        let attributes = attributes.with("two", b"2").expect("it fits");
        let copy = attributes.encode(7);
        assert_eq!(Attributes::decode(&copy), Some((7, attributes.clone())));
        for at in [0, 8, 16, 24, 32, 40, 2000] {
            let mut damaged = copy.to_vec();
            damaged[at] ^= 1;
            assert_eq!(Attributes::decode(&damaged), None, "a flipped bit in byte {at}");
        }
        assert_eq!(Attributes::decode(&[0; COPY_BYTES]), None);
        assert_eq!(Attributes::decode(&copy[..100]), None, "cut short");
        assert_eq!(attributes.with("two", b"").map(|less| less.get("two").cloned()), Ok(None), "empty removes");
    }

    #[test]
    fn bounds_hold_and_the_fullest_store_fits_its_copy() {
        const KEYS: [&str; ATTRIBUTES_MAX] = ["a", "b", "c", "d", "e", "f", "0123456789abcdef0123456789abcdef"];
        let largest = [9; ATTRIBUTE_BYTES_MAX];
        let full = KEYS.iter().try_fold(Attributes::default(), |all, key| all.with(key, &largest)).expect("they fit");
        assert_eq!(Attributes::decode(&full.encode(1)), Some((1, full.clone())));
        assert_eq!(full.with("h", b"x"), Err(Error::OutOfSpace));
        assert_eq!(full.with("a", &[0; ATTRIBUTE_BYTES_MAX + 1]), Err(Error::OutOfSpace));
    }
}
