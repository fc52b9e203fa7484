//! What stands under the key of an object in parts. Text, so that `kv get --raw` and any Redis client can show it:
//!
//! ```text
//! yagura object in parts, version 1
//! length 2500000
//! part-bytes 1048576
//! upload 00c0ffee00c0ffee
//! xxh3 0123456789abcdef
//! ```
//!
//! The part `i` of the object `key` is stored under `key`, a zero byte, the upload as 16 hexadecimal digits, a dot, and `i` as
//! 8 hexadecimal digits.

/// The first line, by which a manifest is known.
const MAGIC: &[u8] = b"yagura object in parts, version ";
/// The version written.
const VERSION: u64 = 1;
/// Largest part: what the store takes as one value.
pub const PART_BYTES_MAX: usize = 1 << 20;
/// By how much a part's key is longer than its object's.
pub const PART_SUFFIX_BYTES: usize = 1 + 16 + 1 + 8;
/// Parts are counted in 8 hexadecimal digits.
const PARTS_MAX: u64 = 1 << 32;

/// The description of an object in parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// Bytes of the object.
    pub length: u64,
    /// Bytes of every part but the last.
    pub part_bytes: u32,
    /// Which upload wrote the parts.
    pub upload: u64,
    /// XXH3 of the object's bytes.
    pub checksum: u64,
}

/// Why a value that begins like a manifest is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManifestError {
    /// Written by a newer program.
    #[error("the object's manifest has version {0}; this program knows version {VERSION}: use a newer one")]
    Version(u64),
    /// Not what a manifest looks like.
    #[error("the object's manifest is damaged: {0}")]
    Damaged(&'static str),
}

impl Manifest {
    /// Whether `value` is to be taken for a manifest.
    pub fn is_one(value: &[u8]) -> bool {
        value.starts_with(MAGIC)
    }

    /// How many parts there are.
    pub fn parts(&self) -> u64 {
        self.length.div_ceil(u64::from(self.part_bytes))
    }

    /// The value to store.
    pub fn encode(&self) -> Vec<u8> {
        let Manifest { length, part_bytes, upload, checksum } = self;
        let fields = format!("length {length}\npart-bytes {part_bytes}\nupload {upload:016x}\nxxh3 {checksum:016x}\n");
        [MAGIC, format!("{VERSION}\n{fields}").as_bytes()].concat()
    }

    /// The manifest in `value`, which is hostile until proven otherwise.
    pub fn decode(value: &[u8]) -> Result<Manifest, ManifestError> {
        let text =
            value.strip_prefix(MAGIC).ok_or(ManifestError::Damaged("its first line is not that of a manifest"))?;
        let text = std::str::from_utf8(text).map_err(|_| ManifestError::Damaged("it is no text"))?;
        let mut lines = text.lines();
        let version =
            lines.next().and_then(|line| line.parse().ok()).ok_or(ManifestError::Damaged("it has no version"))?;
        if version != VERSION {
            return Err(ManifestError::Version(version));
        }
        let mut field = |name: &'static str, radix| {
            let line = lines.next().and_then(|line| line.split_once(' ')).filter(|(found, _)| *found == name);
            line.and_then(|(_, value)| u64::from_str_radix(value, radix).ok()).ok_or(ManifestError::Damaged(name))
        };
        let (length, part_bytes) = (field("length", 10)?, field("part-bytes", 10)?);
        let (upload, checksum) = (field("upload", 16)?, field("xxh3", 16)?);
        if part_bytes == 0 || part_bytes > PART_BYTES_MAX as u64 || length.div_ceil(part_bytes) > PARTS_MAX {
            return Err(ManifestError::Damaged("its lengths are impossible"));
        }
        Ok(Manifest { length, part_bytes: part_bytes as u32, upload, checksum })
    }
}

/// The key of part `index` of the object `key`.
pub fn part_key(key: &[u8], upload: u64, index: u64) -> Vec<u8> {
    [key, format!("\0{upload:016x}.{index:08x}").as_bytes()].concat()
}

/// Whether `key` is that of a part.
pub fn is_part_key(key: &[u8]) -> bool {
    let Some(at) = key.len().checked_sub(PART_SUFFIX_BYTES) else { return false };
    let (zero, upload, dot, index) = (key[at], &key[at + 1..at + 17], key[at + 17], &key[at + 18..]);
    let digits = |digits: &[u8]| digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f'));
    zero == 0 && dot == b'.' && digits(upload) && digits(index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn damage_is_named() {
        let good = Manifest { length: 25, part_bytes: 10, upload: 3, checksum: 4 };
        let text = String::from_utf8(good.encode()).expect("text");
        assert_eq!((Manifest::decode(text.as_bytes()), good.parts()), (Ok(good), 3));
        let decode = |from, to| Manifest::decode(text.replace(from, to).as_bytes());
        assert_eq!(decode("version 1", "version 2"), Err(ManifestError::Version(2)));
        assert_eq!(decode("part-bytes 10", "part-bytes 0"), Err(ManifestError::Damaged("its lengths are impossible")));
        assert_eq!(
            decode("length 25", "length 18446744073709551615"),
            Err(ManifestError::Damaged("its lengths are impossible"))
        );
        assert_eq!(decode("upload", "uplaod"), Err(ManifestError::Damaged("upload")));
    }

    #[test]
    fn part_keys_are_known() {
        assert!(is_part_key(&part_key(b"a/b", 7, 3)) && is_part_key(&part_key(b"", u64::MAX, 3)));
        assert!(!is_part_key(b"a/b") && !is_part_key(b"a 00c0ffee00c0ffee.00000000"));
        assert_eq!(part_key(b"k", 1, 1).len(), 1 + PART_SUFFIX_BYTES);
    }

    proptest! {
        #[test]
        fn any_bytes_are_harmless(tail in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Manifest::decode(&[MAGIC, &tail].concat()); // only that it returns
            is_part_key(&tail);
        }
    }
}
