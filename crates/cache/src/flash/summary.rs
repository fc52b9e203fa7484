//! What lies where in a segment: the last pages of it, all that a restart reads. Pure bytes, no I/O.
//!
//! ```text
//! pages before the last, as many as are needed, right up to it:
//!    0  record      u64 …  the 509th and all that follow; zeroes behind them
//! last page of the segment:
//!    0  magic       "YAGSUMRY"
//!    8  life        u64   of the segment
//!   16  segment     u32   its number
//!   20  records     u32
//!   24  sum         u32   CRC-32C of the records, in order
//!   28  check       u32   CRC-32C of bytes 0 to 27
//!   32  record      u64 …  the first 508; zeroes behind them
//! a record:
//!   bits 16 to 63   the upper 48 bits of the key's hash: what the index keeps, and what chose the place in it
//!   bits  5 to 15   page within the segment
//!   bits  0 to  4   kind, as in a place
//! ```
//!
//! The last page is at a place that is known, and says how many others there are. Records stand in the order in which
//! items came: those of one page in the order of its slots.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use super::place::{KIND_BITS, PAGE_BYTES, Place, SEGMENT_PAGES_MAX};

/// Bits of a hash that outlive a restart, the upper ones.
pub const HASH_BITS: u32 = 48;
/// The bits of a hash that outlive a restart.
pub(crate) const HASH_MASK: u64 = !((1 << (64 - HASH_BITS)) - 1);
const MAGIC: [u8; 8] = *b"YAGSUMRY";
const HEAD_BYTES: usize = 32;
const IN_LAST: usize = (PAGE_BYTES - HEAD_BYTES) / 8;
const IN_OTHER: usize = PAGE_BYTES / 8;

const _: () = assert!(HASH_BITS + SEGMENT_PAGES_MAX.trailing_zeros() + KIND_BITS == 64);

/// Pages that a summary of `records` takes.
pub(crate) fn pages(records: usize) -> u32 {
    1 + records.saturating_sub(IN_LAST).div_ceil(IN_OTHER) as u32
}

/// The record of an item with this hash, at `place` in the segment that begins at page `first`.
pub(crate) fn record(hash: u64, place: Place, first: u32) -> u64 {
    (hash & HASH_MASK) | u64::from(place.page() - first) << KIND_BITS | u64::from(place.kind())
}

/// Hash and place of a record.
pub(crate) fn parts(record: u64, first: u32) -> (u64, Place) {
    let page = (record & !HASH_MASK) >> KIND_BITS;
    (record & HASH_MASK, Place::from_parts(first.saturating_add(page as u32), (record % (1 << KIND_BITS)) as u8))
}

/// Items of a segment, as its summary lists them: to read them out is a part of the work that whoever keeps the index shares out.
#[derive(Clone, Debug)]
pub struct Records {
    words: Vec<u64>,
    first: u32,
}

impl Records {
    /// Records of the segment that begins at page `first`.
    pub(crate) fn new(words: Vec<u64>, first: u32) -> Records {
        Records { words, first }
    }

    /// How many items.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// None.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The bits of their hashes that outlive a restart, and their places, in the order in which they came.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, Place)> {
        self.words.iter().map(|&word| parts(word, self.first))
    }

    /// Keeps those for whose places this says so.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(Place) -> bool) {
        let first = self.first;
        self.words.retain(|&word| keep(parts(word, first).1));
        self.words.shrink_to_fit();
    }
}

/// What the last page of a segment says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Last {
    pub(crate) life: u64,
    pub(crate) segment: u32,
    pub(crate) records: u32,
    sum: u32,
}

fn sum(records: &[u64]) -> u32 {
    let mut sum = crc_fast::Digest::new(Crc32Iscsi);
    let mut bytes = [0; PAGE_BYTES];
    for block in records.chunks(IN_OTHER) {
        bytes.chunks_exact_mut(8).zip(block).for_each(|(bytes, record)| bytes.copy_from_slice(&record.to_le_bytes()));
        sum.update(&bytes[..block.len() * 8]);
    }
    sum.finalize() as u32
}

/// The summary's pages, in the order in which they lie.
pub(crate) fn encode(life: u64, segment: u32, records: &[u64]) -> Vec<u8> {
    let (first, rest) = records.split_at(records.len().min(IN_LAST));
    let mut bytes = Vec::with_capacity(pages(records.len()) as usize * PAGE_BYTES);
    rest.iter().for_each(|record| bytes.extend(record.to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
    let last = bytes.len();
    bytes.extend(MAGIC);
    bytes.extend(life.to_le_bytes());
    bytes.extend(segment.to_le_bytes());
    bytes.extend((records.len() as u32).to_le_bytes());
    bytes.extend(sum(records).to_le_bytes());
    let check = crc_fast::checksum(Crc32Iscsi, &bytes[last..]) as u32;
    bytes.extend(check.to_le_bytes());
    first.iter().for_each(|record| bytes.extend(record.to_le_bytes()));
    bytes.resize(last + PAGE_BYTES, 0);
    bytes
}

impl Last {
    /// Reads the last page of a segment of `segment_pages`. `None`: it is no summary's, or was damaged.
    pub(crate) fn decode(page: &[u8], segment_pages: u32) -> Option<Last> {
        let head: &[u8; HEAD_BYTES] = page.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let sound = head[..8] == MAGIC && crc_fast::checksum(Crc32Iscsi, &head[..28]) as u32 == word(28);
        let life = u64::from(word(8)) | u64::from(word(12)) << 32;
        let last = Last { life, segment: word(16), records: word(20), sum: word(24) };
        (sound && pages(last.records as usize) < segment_pages).then_some(last)
    }

    /// Pages of the summary that lie before the last.
    pub(crate) fn pages_before(&self) -> u32 {
        pages(self.records as usize) - 1
    }

    /// The records in `page`, from which this was decoded, and in the pages `before` it. `None`: they are damaged.
    pub(crate) fn records(&self, page: &[u8], before: &[u8]) -> Option<Vec<u64>> {
        let count = self.records as usize;
        let in_last = page.get(HEAD_BYTES..)?.get(..count.min(IN_LAST) * 8)?;
        let before = before.get(..count.saturating_sub(IN_LAST) * 8)?;
        let mut sum = crc_fast::Digest::new(Crc32Iscsi);
        sum.update(in_last);
        sum.update(before);
        let words = in_last.as_chunks().0.iter().chain(before.as_chunks().0);
        (sum.finalize() as u32 == self.sum).then(|| words.map(|word| u64::from_le_bytes(*word)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_at_every_count_that_matters() {
        for count in [0, 1, IN_LAST, IN_LAST + 1, IN_LAST + IN_OTHER, IN_LAST + IN_OTHER + 1, 5000] {
            let records: Vec<u64> =
                (0..count as u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let bytes = encode(3, 9, &records);
            assert_eq!(bytes.len(), pages(count) as usize * PAGE_BYTES);
            let (before, page) = bytes.split_at(bytes.len() - PAGE_BYTES);
            let last = Last::decode(page, 1024).expect("a summary");
            assert_eq!((last.life, last.segment, last.pages_before() as usize), (3, 9, before.len() / PAGE_BYTES));
            assert_eq!(last.records(page, before), Some(records));
        }
    }

    #[test]
    fn every_damaged_byte_of_what_counts_is_noticed() {
        let records: Vec<u64> = (0..1000).collect();
        let bytes = encode(3, 9, &records);
        let read = |bytes: &[u8]| {
            let (before, page) = bytes.split_at(PAGE_BYTES);
            Last::decode(page, 1024).and_then(|last| last.records(page, before))
        };
        assert_eq!(read(&bytes).as_ref(), Some(&records));
        let unused = (1000 - IN_LAST) * 8..PAGE_BYTES;
        for at in (0..bytes.len()).filter(|at| !unused.contains(at)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert_eq!(read(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn a_record_is_hash_and_place() {
        for place in [Place::shared(2048 + 2047, 5), Place::alone(2048, 77), Place::shared(2048, 0)] {
            let record = record(0xfedc_ba98_7654_3210, place, 2048);
            assert_eq!(parts(record, 2048), (0xfedc_ba98_7654_0000, place));
        }
    }
}
