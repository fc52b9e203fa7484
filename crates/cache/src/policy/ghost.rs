//! What has left memory a while ago, by fingerprints of 16 bits: as many as fit, oldest forgotten first.
//!
//! Set-associative: a hash has a cache line of 32 fingerprints, in the order in which they came. One in two thousand is taken for
//! another's.

/// Fingerprints of one line.
const WAYS: usize = 32;

/// The memory of what has left.
#[derive(Debug)]
pub(super) struct Ghost {
    lines: Box<[[u16; WAYS]]>,
}

impl Ghost {
    /// In `bytes` of memory.
    pub(super) fn new(bytes: usize) -> Ghost {
        Ghost { lines: vec![[0; WAYS]; (bytes / size_of::<[u16; WAYS]>()).max(1)].into_boxed_slice() }
    }

    pub(super) fn add(&mut self, hash: u64) {
        let (line, print) = self.place(hash);
        line.copy_within(..WAYS - 1, 1);
        line[0] = print;
    }

    /// Whether it is remembered; it is so no longer.
    pub(super) fn take(&mut self, hash: u64) -> bool {
        let (line, print) = self.place(hash);
        let Some(way) = line.iter().position(|&way| way == print) else { return false };
        line.copy_within(way + 1.., way);
        line[WAYS - 1] = 0;
        true
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// The line by the middle bits of the hash: the top ones are the same for a whole shard. 0 stands for no fingerprint.
    fn place(&mut self, hash: u64) -> (&mut [u16; WAYS], u16) {
        let line = (u64::from((hash >> 16) as u32) * self.lines.len() as u64) >> 32;
        (&mut self.lines[line as usize], (hash as u16).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_first() {
        let mut ghost = Ghost::new(1);
        (1..=WAYS as u64 + 2).for_each(|hash| ghost.add(hash));
        assert!(!ghost.take(1) && !ghost.take(2) && ghost.take(3) && ghost.take(20));
        assert!(!ghost.take(20), "taken once");
        (100..102).for_each(|hash| ghost.add(hash));
        assert!(ghost.take(4) && ghost.take(34), "the places of what was taken are used first");
    }
}
