//! Items: a key, a value, and what memcached's protocols tell of them.
//!
//! Invariants:
//! - A [`Key`] that exists is 1 to 250 bytes long; its hash is of these bytes, under the server's secret.
//! - [`Seconds`] is never [`NEVER`] but where it says so: the clock starts above it.

use engine::View;

use crate::KEY_BYTES_MAX;

/// Seconds since the server's clock began (shortly before the server did, so that no moment is 0).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seconds(pub u32);

/// As an expiry: not at all.
pub const NEVER: Seconds = Seconds(0);

/// The compare-and-swap value of an item: another one at every change, growing over the whole server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cas(pub u64);

/// A key and its hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key<'a> {
    bytes: &'a [u8],
    hash: u64,
}

/// The key has no byte, or more than [`KEY_BYTES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a key has 1 to {KEY_BYTES_MAX} bytes, this one {0}")]
pub struct KeyLength(pub usize);

impl<'a> Key<'a> {
    /// The key of these bytes, whose hash under the server's secret is `hash`.
    ///
    /// # Errors
    /// The length is 0, or over the limit.
    pub fn new(bytes: &'a [u8], hash: u64) -> Result<Key<'a>, KeyLength> {
        match bytes.len() {
            1..=KEY_BYTES_MAX => Ok(Key { bytes, hash }),
            length => Err(KeyLength(length)),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Their hash.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// What is kept with a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta {
    /// The client's own flags.
    pub flags: u32,
    /// When the item ends to exist, or [`NEVER`].
    pub expires: Seconds,
    /// When it was last stored, read or touched.
    pub accessed: Seconds,
    /// Its compare-and-swap value.
    pub cas: Cas,
    /// It was read or touched since it was stored.
    pub fetched: bool,
    /// It was marked stale by a client (meta commands `md I`, `ms I`).
    pub stale: bool,
    /// Some client was told that it may recache the item; others are not (meta commands' W and Z).
    pub won: bool,
    /// The key was given in base64, and is told so.
    pub binary_key: bool,
}

/// A value, as an item has it.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Up to [`crate::WHOLE_BYTES_MAX`].
    Whole(&'a [u8]),
    /// What is longer: chunks that may be kept and sent after the slot was let go, without a copy.
    Chunks(&'a [View]),
}

impl Value<'_> {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Value::Whole(bytes) => bytes.len(),
            Value::Chunks(chunks) => chunks.iter().map(|chunk| chunk.len()).sum(),
        }
    }

    /// It has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An item, as it is in its slot.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// What is kept with the value.
    pub meta: Meta,
    /// The value.
    pub value: Value<'a>,
}

/// A value to be stored.
#[derive(Debug)]
pub enum NewValue<'a> {
    /// The pieces one after another, together at most [`crate::WHOLE_BYTES_MAX`].
    Pieces(&'a [&'a [u8]]),
    /// What is longer, in chunks of the lengths that [`crate::slot::chunk_lengths`] says.
    Chunks(Vec<View>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_one_to_250_bytes() {
        let long = [b'k'; KEY_BYTES_MAX + 1];
        assert_eq!(Key::new(b"", 0), Err(KeyLength(0)));
        assert_eq!(Key::new(&long, 0), Err(KeyLength(251)));
        assert_eq!(Key::new(&long[..250], 7).map(|key| (key.bytes().len(), key.hash())), Ok((250, 7)));
    }
}
