//! What goes wrong in a model: by chance, as armed by a test, and by a loss of power at the n-th program or erase.

use std::collections::BTreeSet;

use engine::rng::SplitMix;

use crate::address::{Chunk, Sector};

/// Chances of failures, in parts per million of commands. The default has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chances {
    /// A program fails, and its chunk takes no more of them.
    pub program_ppm: u32,
    /// An erase fails, and its chunk is bad.
    pub erase_ppm: u32,
    /// A read fails, once.
    pub read_ppm: u32,
}

/// A failure that is armed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// The next program in the chunk fails.
    Program(Chunk),
    /// The next erase of the chunk fails.
    Erase(Chunk),
    /// The sector can't be read until its chunk is erased.
    Read(Sector),
    /// The next read of the sector fails.
    ReadOnce(Sector),
}

/// What becomes of a sector that was being programmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Torn {
    /// What was to be written.
    New,
    /// As erased.
    Blank,
    /// Bytes that nobody wrote.
    Garbage,
    /// It can't be read.
    Unreadable,
}

/// What becomes of a command that was under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// It did not begin.
    Nothing,
    /// It was over, and nobody was told.
    Complete,
    /// Each sector has its own fate.
    Mixed,
}

#[derive(Debug)]
pub(super) struct Faults {
    rng: SplitMix,
    chances: Chances,
    armed: BTreeSet<Fault>,
    /// Programs and erases left until power is lost in one.
    cut: Option<u64>,
}

impl Faults {
    pub(super) fn new(seed: u64, chances: Chances) -> Faults {
        Faults { rng: SplitMix(seed), chances, armed: BTreeSet::new(), cut: None }
    }

    pub(super) fn arm(&mut self, fault: Fault) {
        self.armed.insert(fault);
    }

    pub(super) fn cut_at(&mut self, operation: Option<u64>) {
        self.cut = operation;
    }

    /// A program or an erase begins: whether power is lost in it.
    pub(super) fn cuts(&mut self) -> bool {
        match &mut self.cut {
            Some(0 | 1) => {
                self.cut = None;
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.below(1_000_000) < u64::from(ppm)
    }

    pub(super) fn program_fails(&mut self, chunk: Chunk) -> bool {
        self.armed.remove(&Fault::Program(chunk)) || self.chance(self.chances.program_ppm)
    }

    pub(super) fn erase_fails(&mut self, chunk: Chunk) -> bool {
        self.armed.remove(&Fault::Erase(chunk)) || self.chance(self.chances.erase_ppm)
    }

    /// The sector of the range that can't be read, if there is one.
    pub(super) fn read_fails(&mut self, first: Sector, count: u32) -> Option<Sector> {
        let range = Fault::Read(first)..=Fault::Read(Sector(first.0 + count - 1));
        let armed = self.armed.range(range).next().and_then(|fault| match fault {
            Fault::Read(sector) => Some(*sector),
            Fault::Program(_) | Fault::Erase(_) | Fault::ReadOnce(_) => None,
        });
        let mut once =
            self.armed.extract_if(Fault::ReadOnce(first)..=Fault::ReadOnce(Sector(first.0 + count - 1)), |_| true);
        let is_hit = once.by_ref().count() > 0;
        armed.or_else(|| is_hit.then_some(first)).or_else(|| self.chance(self.chances.read_ppm).then_some(first))
    }

    /// The sectors of an erased chunk can be read when they are written again.
    pub(super) fn erased(&mut self, first: Sector, count: u32) {
        let gone =
            |fault: &Fault| matches!(fault, Fault::Read(sector) if (first.0..first.0 + count).contains(&sector.0));
        self.armed.retain(|fault| !gone(fault));
    }

    pub(super) fn outcome(&mut self) -> Outcome {
        match self.rng.below(4) {
            0 => Outcome::Nothing,
            1 => Outcome::Complete,
            _ => Outcome::Mixed,
        }
    }

    pub(super) fn torn(&mut self) -> Torn {
        match self.rng.below(5) {
            0 | 1 => Torn::New,
            2 => Torn::Blank,
            3 => Torn::Garbage,
            _ => Torn::Unreadable,
        }
    }

    pub(super) fn is_hit(&mut self) -> bool {
        self.rng.below(2) == 0
    }

    pub(super) fn garbage(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.rng.draw().to_le_bytes()[..part.len()]);
        }
    }
}
