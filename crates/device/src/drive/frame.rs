//! Frames: how transactions stand in the journal's ring.
//!
//! A frame is written by one durable write and is a run of pages; every sector (512 bytes, what a medium writes wholly or not
//! at all) bears the frame's number and a checksum of its own:
//!
//! ```text
//!   0  frame number u64 | 8  checksum u32 of the sector's other bytes | 12  index in the frame u16 | 14  sectors u16
//!  16  496 bytes of content; that of all sectors together is:
//!        checksum u64 of what follows | checkpoint generation u64 | stable sequence u64 | length u32 | transactions
//! ```
//!
//! So three things can be told apart that a checksum over the frame alone would confuse: a frame that was never begun (its
//! sectors bear an older number, or are all zeroes), one that power loss cut short (some do), and one that was damaged later
//! (a sector is wrong in itself). The first two end the journal; the third is no crash's work, and what was acknowledged
//! would be lost with it: it is refused.

use std::ops::Range;

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use super::bytes::{Reader, Short};
use super::layout::PAGE;

const SECTOR: usize = 512;
const SECTOR_HEAD: usize = 16;
const SECTOR_CONTENT: usize = SECTOR - SECTOR_HEAD;
const CONTENT_HEAD: usize = 28;
/// The largest frame. Derived: the largest transaction (the checksums of an extent of 8,192 units) and as much again.
pub(super) const FRAME_BYTES_MAX: usize = 128 << 10;
/// Transactions of one frame together, in bytes.
pub(super) const FRAME_CONTENT_MAX: usize = FRAME_BYTES_MAX / SECTOR * SECTOR_CONTENT - CONTENT_HEAD;

/// Bytes that a frame with `content` bytes of transactions takes in the ring.
pub(super) fn frame_bytes(content: usize) -> usize {
    let sectors = (content + CONTENT_HEAD).div_ceil(SECTOR_CONTENT);
    (sectors * SECTOR).div_ceil(PAGE) * PAGE
}

/// What a frame says besides its transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FrameHead {
    /// The frame's number: each is one more than the one before it, for ever.
    pub(super) number: u64,
    /// The checkpoint that was in force.
    pub(super) generation: u64,
    /// The data behind every intent up to this sequence was stable.
    pub(super) stable: u64,
}

/// Fills `frame` (of [`frame_bytes`]) with the transactions.
pub(super) fn seal(frame: &mut [u8], head: FrameHead, transactions: &[u8]) {
    frame.fill(0);
    let mut fields = [0; CONTENT_HEAD];
    fields[8..16].copy_from_slice(&head.generation.to_le_bytes());
    fields[16..24].copy_from_slice(&head.stable.to_le_bytes());
    fields[24..28].copy_from_slice(&(transactions.len() as u32).to_le_bytes());
    let sum = content_sum(&fields[8..], transactions);
    fields[..8].copy_from_slice(&sum.to_le_bytes());
    let sectors = frame.len() / SECTOR;
    let mut place = 0;
    for part in [&fields[..], transactions] {
        let mut part = part;
        while !part.is_empty() {
            let (sector, within) = (place / SECTOR_CONTENT, place % SECTOR_CONTENT);
            let len = part.len().min(SECTOR_CONTENT - within);
            let at = sector * SECTOR + SECTOR_HEAD + within;
            frame[at..at + len].copy_from_slice(&part[..len]);
            (place, part) = (place + len, &part[len..]);
        }
    }
    for (index, sector) in frame.chunks_exact_mut(SECTOR).enumerate() {
        sector[..8].copy_from_slice(&head.number.to_le_bytes());
        sector[12..14].copy_from_slice(&(index as u16).to_le_bytes());
        sector[14..16].copy_from_slice(&(sectors as u16).to_le_bytes());
        let sum = sector_sum(sector);
        sector[8..12].copy_from_slice(&sum.to_le_bytes());
    }
}

fn content_sum(head: &[u8], transactions: &[u8]) -> u64 {
    let mut sum = xxhash_rust::xxh3::Xxh3::new();
    sum.update(head);
    sum.update(transactions);
    sum.digest()
}

fn sector_sum(sector: &[u8]) -> u32 {
    let mut sum = crc_fast::Digest::new(Crc32Iscsi);
    sum.update(&sector[..8]);
    sum.update(&sector[12..]);
    sum.finalize() as u32
}

/// What stands at a place of the ring.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// The frame that was asked for: its bytes in the ring, what it says, its transactions.
    Frame(Range<usize>, FrameHead, Vec<u8>),
    /// It was not written, or not whole.
    Nothing,
    /// A sector is wrong in itself.
    Damaged(usize),
}

/// One sector: its frame's number, its index in it and the frame's sectors. `None`: damaged. All zeroes: frame 0.
fn sector_at(ring: &[u8], at: usize) -> Option<(u64, usize, usize)> {
    let sector = ring.get(at..at + SECTOR)?;
    if sector.iter().all(|&byte| byte == 0) {
        return Some((0, 0, 0));
    }
    if sector_sum(sector).to_le_bytes() != sector[8..12] {
        return None;
    }
    let small = |at: usize| usize::from(u16::from_le_bytes([sector[at], sector[at + 1]]));
    Some((super::bytes::value(sector, 0), small(12), small(14)))
}

/// Whatever frame begins at `at`.
pub(super) fn any(ring: &[u8], at: usize) -> Found {
    match sector_at(ring, at) {
        Some((number, 0, _)) if number > 0 => find(ring, at, number),
        Some(_) => Found::Nothing,
        None => Found::Damaged(at),
    }
}

/// Looks for frame `number` at `at`.
pub(super) fn find(ring: &[u8], at: usize, number: u64) -> Found {
    if at + SECTOR > ring.len() {
        return Found::Nothing;
    }
    let sectors = match sector_at(ring, at) {
        None => return Found::Damaged(at),
        Some((found, 0, sectors)) if found == number => sectors,
        Some(_) => return Found::Nothing,
    };
    let end = at + sectors * SECTOR;
    if sectors == 0 || sectors * SECTOR > FRAME_BYTES_MAX || end > ring.len() {
        return Found::Damaged(at);
    }
    let mut content = Vec::with_capacity(sectors * SECTOR_CONTENT);
    for (index, place) in (at..end).step_by(SECTOR).enumerate() {
        match sector_at(ring, place) {
            None => return Found::Damaged(place),
            Some(sector) if sector != (number, index, sectors) => return Found::Nothing,
            Some(_) => content.extend_from_slice(&ring[place + SECTOR_HEAD..place + SECTOR]),
        }
    }
    match content_of(&content) {
        // Sectors of two attempts at one number, each good in itself: neither attempt was acknowledged.
        None => Found::Nothing,
        Some((generation, stable, records)) => {
            Found::Frame(at..end, FrameHead { number, generation, stable }, records.to_vec())
        }
    }
}

fn content_of(content: &[u8]) -> Option<(u64, u64, &[u8])> {
    let read = || {
        let mut from = Reader(content);
        let (sum, generation, stable, length) = (from.u64()?, from.u64()?, from.u64()?, from.u32()?);
        Ok::<_, Short>((sum, generation, stable, from.raw(length as usize)?))
    };
    let (sum, generation, stable, records) = read().ok()?;
    (content_sum(&content[8..CONTENT_HEAD], records) == sum).then_some((generation, stable, records))
}

/// The largest checkpoint generation that any frame in the ring names, whole or not, and the largest frame number.
pub(super) fn newest(ring: &[u8]) -> (u64, u64) {
    let mut newest = (0, 0);
    for at in (0..ring.len()).step_by(PAGE) {
        if let Some((number, index, _)) = sector_at(ring, at) {
            newest.1 = newest.1.max(number);
            if index == 0 && number > 0 {
                newest.0 = newest.0.max(super::bytes::value(&ring[at + SECTOR_HEAD..], 1));
            }
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: FrameHead = FrameHead { number: 7, generation: 3, stable: 5 };

    fn sealed(len: usize) -> (Vec<u8>, Vec<u8>) {
        let content: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        let mut ring = vec![0; frame_bytes(len) + PAGE];
        let end = ring.len() - PAGE;
        seal(&mut ring[..end], HEAD, &content);
        (ring, content)
    }

    #[test]
    fn frames_read_back() {
        for len in [0, 1, 400, 468, 469, 5000, FRAME_CONTENT_MAX] {
            let (ring, content) = sealed(len);
            assert_eq!(find(&ring, 0, 7), Found::Frame(0..ring.len() - PAGE, HEAD, content));
            assert_eq!(find(&ring, 0, 8), Found::Nothing);
            assert_eq!(find(&ring, ring.len() - PAGE, 8), Found::Nothing);
            assert_eq!(newest(&ring), (3, 7));
        }
        assert_eq!(frame_bytes(FRAME_CONTENT_MAX), FRAME_BYTES_MAX);
    }

    /// A sector that was never written is a crash; one that is wrong in itself is damage, and is never taken for the former.
    #[test]
    fn torn_is_told_from_damaged() {
        let (ring, _) = sealed(5000);
        for sector in 0..(ring.len() - PAGE) / SECTOR {
            let at = sector * SECTOR;
            let mut torn = ring.clone();
            torn[at..at + SECTOR].fill(0);
            assert_eq!(find(&torn, 0, 7), Found::Nothing, "sector {sector}");
            for bit in (0..SECTOR * 8).step_by(61) {
                let mut flipped = ring.clone();
                flipped[at + bit / 8] ^= 1 << (bit % 8);
                assert_eq!(find(&flipped, 0, 7), Found::Damaged(at), "bit {bit} of sector {sector}");
            }
        }
    }
}
