//! The head of a sealed page: by what a page that says what a medium is, or a part of it, is known from anything else.
//!
//! ```text
//!   0  magic      8 B    these three never move, in any version of the page:
//!   8  format     u32    a newer one is refused by name, not called damage
//!  12  the page's own    u32
//!  16  checksum   u64    CRC-64/NVME of the whole page with this field zero
//!  24  the page's own
//! ```
//! All numbers are little endian. Where there are two copies, and which of them counts, is for each page to say: what is written
//! once, what is replaced whole and what hosts agree on have different answers.

use crc_fast::{CrcAlgorithm::Crc64Nvme, Digest};

/// Bytes before the page's own.
pub const HEAD_BYTES: usize = 24;
const CHECKSUM: std::ops::Range<usize> = 16..HEAD_BYTES;

/// The checksum that a page has to have.
pub fn checksum(page: &[u8]) -> u64 {
    let mut digest = Digest::new(Crc64Nvme);
    digest.update(&page[..CHECKSUM.start]);
    digest.update(&[0; CHECKSUM.end - CHECKSUM.start]);
    digest.update(&page[CHECKSUM.end..]);
    digest.finalize()
}

/// Writes magic, format and checksum; everything else is there already.
pub fn seal(page: &mut [u8], magic: [u8; 8], format: u32) {
    page[..8].copy_from_slice(&magic);
    page[8..12].copy_from_slice(&format.to_le_bytes());
    let sum = checksum(page);
    page[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

/// Whether the checksum is right.
pub fn is_whole(page: &[u8]) -> bool {
    page[CHECKSUM] == checksum(page).to_le_bytes()
}

/// The format that a page says it has.
pub fn format(page: &[u8]) -> u32 {
    page[8..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_breaks_the_seal() {
        let mut page: Vec<u8> = (0..512).map(|byte| byte as u8).collect();
        assert!(!is_whole(&page));
        seal(&mut page, *b"A MAGIC.", 7);
        assert!(is_whole(&page));
        assert_eq!((&page[..8], format(&page)), (&b"A MAGIC."[..], 7));
        for at in 0..page.len() * 8 {
            page[at / 8] ^= 1 << (at % 8);
            assert!(!is_whole(&page), "bit {at}");
            page[at / 8] ^= 1 << (at % 8);
        }
    }
}
