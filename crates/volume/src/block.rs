//! Blocks of ours on a replica: sealed pages ([`device::sealed`]) of little-endian fields, filled up with zeroes.
//!
//! A block is whole or it is not: what does not verify is told from what is all zeroes, which nobody has written.

use device::sealed::{self, HEAD_BYTES};

/// Bytes before the entries of a log block.
pub(crate) const LOG_HEAD_BYTES: usize = 48;

/// Entries of a log block of so many bytes.
pub(crate) const fn log_entries(block_bytes: usize) -> usize {
    block_bytes.saturating_sub(LOG_HEAD_BYTES)
}

/// A kind of blocks.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) magic: [u8; 8],
    /// The format this code writes, and the only one it reads.
    pub(crate) format: u32,
}

/// What stands where a block of a kind was looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Instead {
    /// All zeroes.
    Blank,
    /// A block of the kind, in a format of a later version.
    Newer(u32),
    /// Anything else.
    Other,
}

fn is_blank(block: &[u8]) -> bool {
    block.iter().all(|&byte| byte == 0)
}

/// Whether the block was never written, or is whole.
pub(crate) fn is_sound(block: &[u8]) -> bool {
    is_blank(block) || (block.len() >= HEAD_BYTES && sealed::is_whole(block))
}

/// Opens a block of a kind: its own word of the head, and what follows the head.
pub(crate) fn open(block: &[u8], kind: Kind) -> Result<([u8; 4], Reader<'_>), Instead> {
    if is_blank(block) {
        return Err(Instead::Blank);
    }
    if !is_sound(block) || !block.starts_with(&kind.magic) {
        return Err(Instead::Other);
    }
    let mut word = Reader(&block[12..16]);
    match sealed::format(block) {
        format if format > kind.format => Err(Instead::Newer(format)),
        format if format < kind.format => Err(Instead::Other),
        _ => Ok((word.bytes().ok_or(Instead::Other)?, Reader(&block[HEAD_BYTES..]))),
    }
}

/// Reads fields one after the other; what is too short gives `None`.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Option<u128> {
        self.bytes().map(u128::from_le_bytes)
    }

    /// Whether nothing but zeroes is left.
    pub(crate) fn is_rest_zero(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }
}

/// Writes fields one after the other into a block, which has room for them: the callers' fields fit the smallest block.
pub(crate) struct Writer<'a> {
    block: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// Begins with a block of zeroes, and its own word of the head.
    pub(crate) fn new(block: &'a mut [u8], word: [u8; 4]) -> Writer<'a> {
        block.fill(0);
        block[12..16].copy_from_slice(&word);
        Writer { block, at: HEAD_BYTES }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.block[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    /// Magic, format and checksum are put in place.
    pub(crate) fn seal(&mut self, kind: Kind) {
        sealed::seal(self.block, kind.magic, kind.format);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const KIND: Kind = Kind { magic: *b"A MAGIC.", format: 3 };

    /// A changed block verifies again.
    pub(crate) fn reseal(block: &mut [u8]) {
        let (magic, format) = (*block.first_chunk().expect("a block"), sealed::format(block));
        sealed::seal(block, magic, format);
    }

    #[test]
    fn a_block_is_sealed_blank_or_other() {
        let mut block = [0; 512];
        assert_eq!((open(&block, KIND).err(), is_sound(&block)), (Some(Instead::Blank), true));
        Writer::new(&mut block, [1, 2, 3, 4]).bytes(b"word").seal(KIND);
        let (own, rest) = open(&block, KIND).expect("it was sealed");
        assert_eq!((own, &rest.0[..5]), ([1, 2, 3, 4], &b"word\0"[..]));
        for at in 0..block.len() {
            let mut damaged = block;
            damaged[at] ^= 1;
            assert_eq!(open(&damaged, KIND).err(), Some(Instead::Other), "a flipped bit in byte {at}");
            assert!(!is_sound(&damaged));
        }
        assert_eq!(open(&block, Kind { magic: *b"ANOTHER.", ..KIND }).err(), Some(Instead::Other));
        assert_eq!(open(&block, Kind { format: 2, ..KIND }).err(), Some(Instead::Newer(3)));
        assert_eq!(open(&block, Kind { format: 4, ..KIND }).err(), Some(Instead::Other));
    }
}
