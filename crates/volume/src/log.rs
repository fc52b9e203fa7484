//! The write-intent log of one replica: a byte for each region, in blocks that are written whole. Pure, no I/O.
//!
//! ```text
//!   0  magic "YAGURAVI"     8 B
//!   8  format               u32
//!  12  zero                 u32
//!  16  checksum             u64   of the block: `device::sealed`
//!  24  life                16 B   of the replica
//!  40  index                u64   of the block in the log
//!  48  entries              1 B each: 0 clean, 1 intent, 2 behind
//! ```
//! - A block of zeroes, or one that another life has left, was never written in this life: it says what the label says.
//! - A block that is anything else says intent everywhere: that is safe, and costs copies.
//!
//! Invariants:
//! - One write of a block is under way at a time: two could change places on their way, and the older one undo a mark.
//! - An entry is known only while no write that changes it is under way. Data goes out for regions whose intent is known.
//!
//! How a driver calls it: [`Log::want`], then [`Log::next_write`] for that block; when that is stable [`Log::written`], and
//! `next_write` once more.

use std::ops::Range;

use engine::Buf;

use crate::block::{self, Instead, LOG_HEAD_BYTES, Writer, log_entries};
use crate::label::{Born, Label};

const LOG: block::Kind = block::Kind { magic: *b"YAGURAVI", format: 1 };

/// No replica differs in the region.
pub const CLEAN: u8 = 0;
/// Replicas in sync may differ.
pub const INTENT: u8 = 1;
/// Only replicas that are not in sync may lack something.
pub const BEHIND: u8 = 2;
/// In memory alone: a write that changes the entry is under way.
const UNDER_WAY: u8 = 3;

/// What one replica's log says, and what it is to say.
#[derive(Debug)]
pub(crate) struct Log {
    label: Label,
    block_bytes: usize,
    /// What lies behind these has no meaning, whatever an entry says; more may be known.
    regions: u64,
    /// Of whole blocks.
    known: Vec<u8>,
    wanted: Vec<u8>,
    /// Of each block: whether a write of it is under way.
    writing: Vec<bool>,
}

impl Log {
    /// The log of a replica with this label, of so many regions; `bytes`: its log blocks, as many as have entries of those.
    pub(crate) fn decode(label: &Label, regions: u64, bytes: &[u8]) -> Log {
        let (block_bytes, known) = (label.shape.block_size as usize, Vec::new());
        let mut log = Log { label: *label, block_bytes, regions: 0, wanted: known.clone(), known, writing: Vec::new() };
        log.cover(regions, bytes);
        log
    }

    /// Log blocks that have entries of so many regions.
    pub(crate) fn blocks(label: &Label, regions: u64) -> u64 {
        regions.div_ceil(log_entries(label.shape.block_size as usize) as u64)
    }

    /// Blocks of the log that are known.
    pub(crate) fn blocks_known(&self) -> u64 {
        self.writing.len() as u64
    }

    /// So many regions count from now on. `bytes`: the log blocks behind those that are known already, if more are needed.
    pub(crate) fn cover(&mut self, regions: u64, bytes: &[u8]) {
        let first = self.blocks_known();
        for (index, block) in bytes.chunks_exact(self.block_bytes).enumerate() {
            read_block(&self.label, first + index as u64, block, &mut self.known);
        }
        let all = self.blocks_known().max(Log::blocks(&self.label, regions)) as usize;
        self.known.resize(all * log_entries(self.block_bytes), INTENT);
        self.wanted.extend_from_slice(&self.known[self.wanted.len()..]);
        self.writing.resize(all, false);
        self.regions = regions;
    }

    /// Whether the region's intent is stable, and no write that takes it away is under way or asked for.
    pub(crate) fn is_marked(&self, region: u64) -> bool {
        self.entry(region) == Some(INTENT)
    }

    /// The entry, if it is known and nothing else is wanted.
    pub(crate) fn entry(&self, region: u64) -> Option<u8> {
        let at = region as usize;
        let known = *self.known.get(at)?;
        (known == self.wanted[at]).then_some(known)
    }

    /// Whether the region is known to be clean, and to stay so.
    pub(crate) fn is_clean(&self, region: u64) -> bool {
        self.entry(region) == Some(CLEAN)
    }

    /// Whether it says of every region that it may differ: as of what was formatted as a replacement, and had no place yet.
    pub(crate) fn is_intent_everywhere(&self) -> bool {
        self.known.iter().take(self.regions as usize).all(|&entry| entry == INTENT)
    }

    /// The first region from `from` on that is not clean for sure.
    pub(crate) fn next_unclean(&self, from: u64) -> Option<u64> {
        let from = from as usize;
        let is_other = |at: &usize| self.known[*at] != CLEAN || self.wanted[*at] != CLEAN;
        (from..self.regions as usize).find(is_other).map(|at| at as u64)
    }

    /// The entry is to be that; returns the block that has to be written for it.
    pub(crate) fn want(&mut self, region: u64, entry: u8) -> usize {
        self.wanted[region as usize] = entry;
        region as usize / log_entries(self.block_bytes)
    }

    fn range(&self, block: usize) -> Range<usize> {
        let count = log_entries(self.block_bytes);
        block * count..(block + 1) * count
    }

    /// The bytes that the block is to be written with now, if there is anything new in it and no write of it is under way.
    pub(crate) fn next_write(&mut self, block: usize) -> Option<Buf> {
        let range = self.range(block);
        if self.writing[block] || self.known[range.clone()] == self.wanted[range.clone()] {
            return None;
        }
        self.writing[block] = true;
        let mut buf = Buf::with_len(self.block_bytes);
        Writer::new(&mut buf, [0; 4])
            .bytes(&self.label.life.to_le_bytes())
            .bytes(&(block as u64).to_le_bytes())
            .bytes(&self.wanted[range.clone()])
            .seal(LOG);
        for (known, wanted) in self.known[range.clone()].iter_mut().zip(&self.wanted[range]) {
            *known = if known == wanted { *known } else { UNDER_WAY };
        }
        Some(buf)
    }

    /// A write of the block was refused. What it was to change stays unknown, and goes out with the next write.
    pub(crate) fn failed(&mut self, block: usize) {
        self.writing[block] = false;
    }

    /// The block was written with these bytes, and that is stable.
    pub(crate) fn written(&mut self, block: usize, bytes: &[u8]) {
        self.writing[block] = false;
        let range = self.range(block);
        let count = range.len();
        self.known[range].copy_from_slice(&bytes[LOG_HEAD_BYTES..LOG_HEAD_BYTES + count]);
    }
}

fn read_block(label: &Label, index: u64, block: &[u8], known: &mut Vec<u8>) {
    let count = log_entries(block.len());
    let born = if label.born == Born::Clean { CLEAN } else { INTENT };
    let unknown = match block::open(block, LOG) {
        Err(Instead::Blank) => born,
        Ok((_, mut reader)) => {
            let (life, at) = (reader.u128(), reader.u64());
            if life == Some(label.life) && at == Some(index) && reader.0.iter().all(|&entry| entry <= BEHIND) {
                known.extend_from_slice(reader.0);
                return;
            }
            if life.is_some_and(|life| life != label.life) { born } else { INTENT }
        }
        Err(Instead::Newer(_) | Instead::Other) => INTENT,
    };
    known.resize(known.len() + count, unknown);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::tests::sample;

    const BLOCK: usize = 512;
    const REGIONS: u64 = 32;

    fn log(bytes: &[u8]) -> Log {
        Log::decode(&Label { born: Born::Clean, ..sample() }, REGIONS, bytes)
    }

    #[test]
    fn a_mark_is_known_when_it_is_stable() {
        let mut log = log(&[0; BLOCK]);
        assert!(log.is_clean(3) && !log.is_marked(3));
        let block = log.want(3, INTENT);
        assert!(!log.is_clean(3) && !log.is_marked(3));
        let first = log.next_write(block).expect("there is something to write");
        assert_eq!((log.entry(3), log.is_marked(3)), (None, false), "it is on its way");
        log.want(4, INTENT);
        assert!(log.next_write(block).is_none(), "one write of a block at a time");
        log.written(block, &first);
        assert!(log.is_marked(3) && !log.is_marked(4));
        let second = log.next_write(block).expect("what came meanwhile");
        log.written(block, &second);
        assert!(log.is_marked(3) && log.is_marked(4) && log.next_write(block).is_none());
        assert_eq!((log.next_unclean(0), log.next_unclean(4), log.next_unclean(5)), (Some(3), Some(4), None));
    }

    #[test]
    fn a_mark_beside_a_clear_is_not_known_before_its_own_write() {
        let mut log = log(&[0; BLOCK]);
        let block = log.want(1, INTENT);
        let bytes = log.next_write(block).unwrap();
        log.written(block, &bytes);
        log.want(1, CLEAN);
        let clear = log.next_write(block).unwrap();
        log.want(1, INTENT);
        assert!(!log.is_marked(1), "the clear is under way");
        log.written(block, &clear);
        assert!(!log.is_marked(1), "and has taken it away");
        let mark = log.next_write(block).unwrap();
        log.written(block, &mark);
        assert!(log.is_marked(1));
    }

    #[test]
    fn what_was_never_written_says_what_the_label_says() {
        let mut written = log(&[0; BLOCK]);
        let block = written.want(2, BEHIND);
        let bytes = written.next_write(block).unwrap().to_vec();
        assert_eq!(log(&bytes).entry(2), Some(BEHIND));
        assert_eq!(log(&bytes).entry(1), Some(CLEAN));
        let other_life = Label { life: 77, ..sample() };
        assert_eq!(Log::decode(&other_life, REGIONS, &bytes).entry(1), Some(INTENT), "born with intent");
        assert_eq!(Log::decode(&Label { born: Born::Clean, ..other_life }, REGIONS, &bytes).entry(2), Some(CLEAN));
        let mut damaged = bytes.clone();
        damaged[100] ^= 1;
        assert_eq!(log(&damaged).entry(1), Some(INTENT));
        let mut unknown = bytes.clone();
        unknown[48] = 9;
        crate::block::tests::reseal(&mut unknown);
        assert_eq!(log(&unknown).entry(1), Some(INTENT));
        assert_eq!(log(&[]).next_unclean(REGIONS - 1), Some(REGIONS - 1), "what was not read");
        assert_eq!(sample().shape.regions(), REGIONS);
    }

    #[test]
    fn it_has_entries_of_what_the_volume_has_grown_by() {
        let mut log = log(&[0; BLOCK]);
        let block = log.want(REGIONS + 1, INTENT);
        let bytes = log.next_write(block).expect("it is of the same block");
        log.written(block, &bytes);
        assert_eq!(log.next_unclean(0), None, "behind the end nothing counts");
        log.cover(1000, &[0; 2 * BLOCK]);
        assert_eq!((log.blocks_known(), log.next_unclean(0), log.entry(999)), (3, Some(REGIONS + 1), Some(CLEAN)));
        let block = log.want(900, INTENT);
        assert!(log.next_write(block).is_some_and(|bytes| bytes[40] == 1), "the second block");
        log.cover(REGIONS, &[]);
        assert_eq!((log.next_unclean(0), log.entry(5000)), (None, None));
    }
}
