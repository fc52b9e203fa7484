//! [`Amount`]: what counts for a quota.

use std::ops::{Add, Sub};

/// Bytes and files. A difference may be less than nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// Bytes of data in stripes, in whole rows.
    pub bytes: i64,
    /// Inodes of whatever kind.
    pub files: i64,
}

impl Amount {
    /// Nothing.
    pub const ZERO: Amount = Amount { bytes: 0, files: 0 };
    /// One inode.
    pub const FILE: Amount = Amount { bytes: 0, files: 1 };

    /// So many bytes.
    pub fn of_bytes(bytes: u64) -> Amount {
        Amount { bytes: i64::try_from(bytes).unwrap_or(i64::MAX), files: 0 }
    }

    fn zip(self, other: Amount, with: impl Fn(i64, i64) -> i64) -> Amount {
        Amount { bytes: with(self.bytes, other.bytes), files: with(self.files, other.files) }
    }

    /// The lesser of both, of bytes and of files.
    pub fn min(self, other: Amount) -> Amount {
        self.zip(other, i64::min)
    }

    /// The larger of both, likewise.
    pub fn max(self, other: Amount) -> Amount {
        self.zip(other, i64::max)
    }

    /// Whether it is no more than the other, neither of bytes nor of files.
    pub fn fits(self, other: Amount) -> bool {
        self.bytes <= other.bytes && self.files <= other.files
    }

    /// A part of it, downwards.
    pub fn share(self, parts: i64) -> Amount {
        Amount { bytes: self.bytes / parts, files: self.files / parts }
    }
}

/// Records of others' making may say anything.
impl Add for Amount {
    type Output = Amount;

    fn add(self, other: Amount) -> Amount {
        self.zip(other, i64::saturating_add)
    }
}

impl Sub for Amount {
    type Output = Amount;

    fn sub(self, other: Amount) -> Amount {
        self.zip(other, i64::saturating_sub)
    }
}
