//! [`Path`]: a node's place in a directory's trie, by the first bits of names' hashes.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bits of a level.
const LEVEL_BITS: u32 = 4;
/// Levels below the root, derived: then a hash has no more bits.
pub const DEPTH_MAX: u8 = (u64::BITS / LEVEL_BITS) as u8;
/// Children of a node.
pub const CHILDREN: u64 = 1 << LEVEL_BITS;

/// Where a name stands in directory `dir` of the file system that has this seed. Whoever may look up a name needs nothing of the
/// directory for it.
pub fn hash(seed: u64, dir: u64, name: &[u8]) -> u64 {
    xxh3_64_with_seed(name, xxh3_64_with_seed(&dir.to_le_bytes(), seed))
}

/// A node's place: the first `depth` nibbles of hashes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Path {
    /// Their first bits; zero behind them.
    bits: u64,
    depth: u8,
}

impl Path {
    /// The root.
    pub const ROOT: Path = Path { bits: 0, depth: 0 };

    /// The place of `depth` levels (at most [`DEPTH_MAX`]) on the way to `hash`.
    pub fn towards(hash: u64, depth: u8) -> Path {
        Path { bits: hash & mask(depth), depth }
    }

    /// How many levels are above it.
    pub fn depth(self) -> u8 {
        self.depth
    }

    /// The least hash that belongs here.
    pub fn first(self) -> u64 {
        self.bits
    }

    /// The greatest hash that belongs here.
    pub fn last(self) -> u64 {
        self.bits | !mask(self.depth)
    }

    /// The children, in the order of hashes; none at the last level.
    pub fn children(self) -> impl Iterator<Item = Path> {
        let depth = self.depth + 1;
        let count = if self.depth < DEPTH_MAX { CHILDREN } else { 0 };
        (0..count).map(move |nibble| {
            let shift = u64::BITS - LEVEL_BITS * u32::from(depth);
            Path { bits: self.bits | nibble << shift, depth }
        })
    }

    /// The place that a key's last bytes say.
    pub(crate) fn of_nibbles(nibbles: &[u8]) -> Option<Path> {
        if nibbles.len() > usize::from(DEPTH_MAX) || nibbles.iter().any(|nibble| u64::from(*nibble) >= CHILDREN) {
            return None;
        }
        let add = |(bits, shift): (u64, u32), nibble: &u8| {
            (bits | u64::from(*nibble) << (shift - LEVEL_BITS), shift - LEVEL_BITS)
        };
        let (bits, _) = nibbles.iter().fold((0, u64::BITS), add);
        Some(Path { bits, depth: nibbles.len() as u8 })
    }

    /// The node that it is a child of; none of the root.
    pub(crate) fn parent(self) -> Option<Path> {
        Some(Path::towards(self.bits, self.depth.checked_sub(1)?))
    }

    /// One byte for each level, as keys have it.
    pub(crate) fn nibbles(self) -> Vec<u8> {
        let nibble = |level: u8| (self.bits >> (u64::BITS - LEVEL_BITS * (u32::from(level) + 1))) as u8 & 15;
        (0..self.depth).map(nibble).collect()
    }
}

/// The first bits that `depth` levels have.
fn mask(depth: u8) -> u64 {
    u64::MAX.checked_shl(u64::BITS - LEVEL_BITS * u32::from(depth.min(DEPTH_MAX))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_divide_hashes_among_them() {
        assert_eq!((Path::ROOT.first(), Path::ROOT.last()), (0, u64::MAX));
        let path = Path::towards(0xabcd_ef01_2345_6789, 3);
        assert_eq!(path.nibbles(), [0xa, 0xb, 0xc]);
        assert_eq!(Path::of_nibbles(&[0xa, 0xb, 0xc]), Some(path));
        assert_eq!((path.parent().map(Path::nibbles), Path::ROOT.parent()), (Some(vec![0xa, 0xb]), None));
        assert_eq!((Path::of_nibbles(&[16]), Path::of_nibbles(&[0; 17])), (None, None));
        assert_eq!((path.first(), path.last()), (0xabc0_0000_0000_0000, 0xabcf_ffff_ffff_ffff));
        let children: Vec<Path> = path.children().collect();
        assert_eq!(children.len(), 16);
        assert_eq!((children[0].first(), children[15].last()), (path.first(), path.last()));
        assert!(children.windows(2).all(|pair| pair[0].last() + 1 == pair[1].first()));
        assert_eq!(children[0xd], Path::towards(0xabcd_ef01_2345_6789, 4));
        let deepest = Path::towards(0xabcd_ef01_2345_6789, DEPTH_MAX);
        assert_eq!((deepest.first(), deepest.children().count()), (deepest.last(), 0));
    }
}
