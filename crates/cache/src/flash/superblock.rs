//! The first page of the namespace: what the log is. Pure bytes, no I/O.
//!
//! ```text
//!    0  magic           "YAGURAFC"     with format and checksum the head of a sealed page (`device::sealed`)
//!    8  format          u32   an older one is begun anew by name
//!   12  segment pages   u32
//!   16  checksum        u64
//!   24  secret          u64, u64   under which keys are hashed: the index could not be rebuilt under another
//!   40  incarnation     u64   random at format; the journal of another one is not this log's
//!   48  pages           u64   of the namespace when it was formatted
//!   56  created         u64   seconds since 1970
//!   64  zeroes
//! ```
//!
//! It is written when the log begins, and anew whenever all that is in it is given up: never while there is something
//! to lose.

use device::sealed;

use super::place::{PAGE_BYTES, SEGMENT_PAGES_MAX};

/// The format this code writes, and the only one it reads. 1 had a checksum for each item; in 2 that of an
/// item alone did not know its page.
pub const FORMAT: u32 = 3;
const MAGIC: [u8; 8] = *b"YAGURAFC";

/// What a superblock says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    pub(crate) segment_pages: u32,
    pub(crate) secret: [u64; 2],
    pub(crate) incarnation: u64,
    pub(crate) pages: u64,
    pub(crate) created: u64,
}

/// What is in the place of a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Superblock(Superblock),
    /// All zeroes.
    Blank,
    /// Something else, which begins with these bytes.
    Foreign([u8; 8]),
    /// Ours, of a later version.
    Newer(u32),
    /// Ours, of an earlier version.
    Older(u32),
    /// Ours once: its writing was cut short, or the medium has lost it.
    Damaged,
}

impl Superblock {
    pub(crate) fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        page[12..16].copy_from_slice(&self.segment_pages.to_le_bytes());
        let words = [self.secret[0], self.secret[1], self.incarnation, self.pages, self.created];
        for (field, word) in page[24..64].chunks_exact_mut(8).zip(words) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        sealed::seal(&mut page, MAGIC, FORMAT);
        page
    }

    pub(crate) fn find(page: &[u8; PAGE_BYTES]) -> Found {
        let word = |at: usize| page[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if page.iter().all(|&byte| byte == 0) {
            return Found::Blank;
        }
        if page[..8] != MAGIC {
            return Found::Foreign(word(0).to_le_bytes());
        }
        let (format, segment_pages) = (sealed::format(page), (word(8) >> 32) as u32);
        // Before the checksum: a later version may take another one, and what it wrote is not to be written over.
        if format > FORMAT {
            return Found::Newer(format);
        }
        if !sealed::is_whole(page) {
            return Found::Damaged;
        }
        if (1..FORMAT).contains(&format) {
            return Found::Older(format);
        }
        let superblock = Superblock {
            segment_pages,
            secret: [word(24), word(32)],
            incarnation: word(40),
            pages: word(48),
            created: word(56),
        };
        let possible = segment_pages.is_power_of_two() && segment_pages <= SEGMENT_PAGES_MAX && format == FORMAT;
        if possible { Found::Superblock(superblock) } else { Found::Damaged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Superblock =
        Superblock { segment_pages: 1024, secret: [1, 2], incarnation: 3, pages: 1 << 20, created: 1_795_000_000 };

    #[test]
    fn round_trip_and_every_damaged_byte_is_noticed() {
        let page = SAMPLE.encode();
        assert_eq!(Superblock::find(&page), Found::Superblock(SAMPLE));
        for at in 0..PAGE_BYTES {
            let mut damaged = page;
            damaged[at] ^= 0x20;
            let found = Superblock::find(&damaged);
            let noticed = match at {
                0..8 => matches!(found, Found::Foreign(_)),
                8..12 => matches!(found, Found::Newer(_)),
                _ => found == Found::Damaged,
            };
            assert!(noticed, "byte {at}: {found:?}");
        }
    }

    #[test]
    fn refused_by_name() {
        assert_eq!(Superblock::find(&[0; PAGE_BYTES]), Found::Blank);
        assert_eq!(Superblock::find(&[7; PAGE_BYTES]), Found::Foreign([7; 8]));
        let of_format = |format: u32| {
            let mut page = SAMPLE.encode();
            sealed::seal(&mut page, MAGIC, format);
            Superblock::find(&page)
        };
        assert_eq!(of_format(FORMAT + 1), Found::Newer(FORMAT + 1));
        assert_eq!(of_format(FORMAT), Found::Superblock(SAMPLE));
        assert_eq!(of_format(1), Found::Older(1));
        assert_eq!(of_format(0), Found::Damaged, "there never was such a one");
    }
}
