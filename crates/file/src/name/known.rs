//! [`Known`]: what a client remembers of tries. Nothing ever unsplits, so what it knows to be split stays so.

use std::collections::{BTreeMap, BTreeSet};

use engine::time::{self, Instant};

use crate::record::{DEPTH_MAX, Path, Time};

/// Split nodes that are remembered. Chosen: a few MiB; with more, all are forgotten and learnt again.
const SPLIT_MAX: usize = 1 << 16;
/// Directories with a time that waits to be noted. Chosen: likewise; with more, the oldest are not noted any more.
const TOUCHED_MAX: usize = 1 << 12;

/// Times of a directory whose root is split, which does not say them yet.
#[derive(Clone, Copy)]
pub(crate) struct Touched {
    /// When an entry was last changed by this client.
    pub(crate) at: Time,
    /// When the root was last told, or this began.
    pub(crate) noted: Instant,
}

/// What a client remembers of tries.
#[derive(Default)]
pub(crate) struct Known {
    split: BTreeSet<(u64, Path)>,
    pub(crate) touched: BTreeMap<u64, Touched>,
    /// Directories that this client is about to remove, and whose roots it leaves alone.
    pub(crate) closing: BTreeSet<u64>,
    /// Gone links that this client has told their inodes of.
    told: BTreeSet<(u64, u64)>,
}

impl Known {
    /// The deepest node that a search for `hash` may begin with.
    pub(crate) fn begin(&self, dir: u64, hash: u64) -> Path {
        let is_split = |depth: &u8| self.split.contains(&(dir, Path::towards(hash, *depth)));
        let depth = (0..DEPTH_MAX).take_while(is_split).count();
        Path::towards(hash, depth as u8)
    }

    /// A node is split.
    pub(crate) fn learn(&mut self, dir: u64, path: Path) {
        if self.split.len() >= SPLIT_MAX {
            self.split.clear();
        }
        self.split.insert((dir, path));
    }

    /// The directory is gone.
    pub(crate) fn forget(&mut self, dir: u64) {
        let of_dir: Vec<(u64, Path)> =
            self.split.range((dir, Path::ROOT)..).take_while(|(of, _)| *of == dir).copied().collect();
        of_dir.iter().for_each(|split| {
            self.split.remove(split);
        });
        self.touched.remove(&dir);
    }

    /// An entry of a directory was changed whose root does not say so.
    pub(crate) fn touch(&mut self, dir: u64, at: Time) {
        if self.touched.len() >= TOUCHED_MAX {
            self.touched.pop_first();
        }
        let touched = self.touched.entry(dir).or_insert(Touched { at, noted: time::now() });
        touched.at = at.max(touched.at);
    }

    /// The root of a directory says that an entry was changed then, or something later.
    pub(crate) fn note(&mut self, dir: u64, at: Time) {
        let Some(touched) = self.touched.get_mut(&dir) else { return };
        touched.noted = time::now();
        if touched.at <= at {
            self.touched.remove(&dir);
        }
    }

    /// The inode knows that the link is gone.
    pub(crate) fn tell(&mut self, ino: u64, link: u64) {
        if self.told.len() >= SPLIT_MAX {
            self.told.clear();
        }
        self.told.insert((ino, link));
    }

    /// Whether the inode knows, as far as is remembered.
    pub(crate) fn is_told(&self, ino: u64, link: u64) -> bool {
        self.told.contains(&(ino, link))
    }

    /// Nobody will ask any more.
    pub(crate) fn untell(&mut self, ino: u64, link: u64) {
        self.told.remove(&(ino, link));
    }
}
