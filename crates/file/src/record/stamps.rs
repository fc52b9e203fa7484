//! [`Stamps`]: how whoever was told "unknown" finds its own change in a record, so that nothing is applied twice.
//!
//! Every record begins with its format and these:
//! ```text
//!  0  format    u8
//!  1  changes   u64       counts the record's changes; its first value is 0
//!  9  stamps    3 × u64   random numbers of the last changes, the newest first; 0: none
//! ```

use crate::bytes::{Reader, Writer};
use crate::error::Error;

/// The only format there is.
const FORMAT: u8 = 1;
/// Stamps that a record keeps. Chosen: two others that come between a change and its author's second look are rare.
const KEPT: usize = 3;

/// Which changes a record has had last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stamps {
    changes: u64,
    last: [u64; KEPT],
}

/// Whether a change is in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mine {
    /// It is.
    Yes,
    /// It is not, nor can it come: the record has changed otherwise since.
    No,
    /// The record is as it was: it may come yet.
    NotYet,
    /// So many others came since that nobody can tell.
    Forgotten,
}

impl Stamps {
    /// Of a record's first value, by the change `stamp`.
    pub(crate) fn first(stamp: u64) -> Stamps {
        Stamps { changes: 0, last: [stamp, 0, 0] }
    }

    /// After one more change, `stamp`.
    pub(crate) fn next(&self, stamp: u64) -> Stamps {
        let [a, b, _] = self.last;
        Stamps { changes: self.changes.wrapping_add(1), last: [stamp, a, b] }
    }

    /// Whether the change `stamp` of the record that had the stamps `before` is in the one that has these.
    pub(crate) fn tell(&self, stamp: u64, before: &Stamps) -> Mine {
        if self.last.contains(&stamp) {
            Mine::Yes
        } else if self == before {
            Mine::NotYet
        } else if self.changes.wrapping_sub(before.changes) <= KEPT as u64 {
            Mine::No
        } else {
            Mine::Forgotten
        }
    }

    /// Whether the record's first value came by the change `stamp`.
    pub(crate) fn tell_first(&self, stamp: u64) -> Mine {
        match self.last.contains(&stamp) {
            true => Mine::Yes,
            false if self.changes < KEPT as u64 => Mine::No,
            false => Mine::Forgotten,
        }
    }

    /// How many changes the record has had.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether these are of an earlier value of the record than `other`.
    pub(crate) fn is_before(&self, other: &Stamps) -> bool {
        self.changes < other.changes
    }

    pub(crate) fn write(&self, to: &mut Writer) {
        to.u8(FORMAT).u64(self.changes);
        self.last.iter().for_each(|&stamp| {
            to.u64(stamp);
        });
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Stamps, Error> {
        let format = from.u8()?;
        from.check(format == FORMAT, "a format of another version")?;
        Ok(Stamps { changes: from.u64()?, last: [from.u64()?, from.u64()?, from.u64()?] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_as_long_as_three_others_have_not_come() {
        let before = Stamps::first(1);
        assert_eq!(before.tell(2, &before), Mine::NotYet);
        let mut mine = before.next(2);
        let mut other = before.next(9);
        for stamp in [10, 11] {
            assert_eq!((mine.tell(2, &before), other.tell(2, &before)), (Mine::Yes, Mine::No));
            (mine, other) = (mine.next(stamp), other.next(stamp));
        }
        assert_eq!((mine.tell(2, &before), other.tell(2, &before)), (Mine::Yes, Mine::No));
        assert_eq!(mine.next(12).tell(2, &before), Mine::Forgotten);
        assert_eq!(other.next(12).tell(2, &before), Mine::Forgotten);
    }
}
