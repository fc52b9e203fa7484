//! Blocks of ours on a replica: fields in little endian, zeroes, and an XXH3-64 of all that at the block's end.
//!
//! A block is whole or it is not: what does not verify is told from what is all zeroes, which nobody has written.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the checksum.
const CHECKSUM_BYTES: usize = 8;

/// Bytes before the entries of a log block.
pub(crate) const LOG_HEAD_BYTES: usize = 32;

/// Entries of a log block of so many bytes.
pub(crate) const fn log_entries(block_bytes: usize) -> usize {
    block_bytes.saturating_sub(LOG_HEAD_BYTES + CHECKSUM_BYTES)
}

/// What a block looks like before its fields are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found<'a> {
    /// All zeroes.
    Blank,
    /// The checksum is right: what stands before it.
    Sealed(&'a [u8]),
    /// Neither.
    Other,
}

/// Looks at a block.
pub(crate) fn look(block: &[u8]) -> Found<'_> {
    let Some((body, sum)) = block.split_last_chunk::<CHECKSUM_BYTES>() else { return Found::Other };
    if xxh3_64(body) == u64::from_le_bytes(*sum) && body.iter().any(|&byte| byte != 0) {
        return Found::Sealed(body);
    }
    if block.iter().all(|&byte| byte == 0) { Found::Blank } else { Found::Other }
}

/// Puts the checksum at the block's end.
pub(crate) fn seal(block: &mut [u8]) {
    let Some((body, sum)) = block.split_last_chunk_mut::<CHECKSUM_BYTES>() else { return };
    *sum = xxh3_64(body).to_le_bytes();
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
    /// Begins with a block of zeroes.
    pub(crate) fn new(block: &'a mut [u8]) -> Writer<'a> {
        block.fill(0);
        Writer { block, at: 0 }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.block[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    /// The checksum is put in place.
    pub(crate) fn seal(&mut self) {
        seal(self.block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_sealed_blank_or_other() {
        let mut block = [0; 512];
        assert_eq!(look(&block), Found::Blank);
        Writer::new(&mut block).bytes(b"word").seal();
        assert!(matches!(look(&block), Found::Sealed(body) if body.starts_with(b"word")));
        for at in 0..block.len() {
            let mut damaged = block;
            damaged[at] ^= 1;
            assert_eq!(look(&damaged), Found::Other, "a flipped bit in byte {at}");
        }
        let mut sealed_zeroes = [0; 512];
        seal(&mut sealed_zeroes);
        assert_eq!(look(&sealed_zeroes), Found::Other, "nobody writes a block that says nothing");
    }
}
