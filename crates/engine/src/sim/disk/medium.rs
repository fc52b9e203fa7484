//! What a disk holds: the medium, and the cache before it.
//!
//! Invariants:
//! - `pending[sector]` lists the versions of a sector that a crash may lose, oldest first; a read sees the last of them, else
//!   the medium. No sector has an empty list.
//! - A version that becomes stable takes every older version of its sector with it: a crash never brings back bytes that
//!   were overwritten by stable ones, the one thing no cache does.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use crate::View;

/// What is written as a whole or not at all. The smallest a device offers (NVMe: LBA data size 512).
pub(crate) const SECTOR: usize = 512;
/// Granularity of the sparse medium. Chosen: the page most writes here have.
const CHUNK: usize = 4096;
const SECTORS_PER_CHUNK: u64 = (CHUNK / SECTOR) as u64;
/// Versions a cache holds before it writes everything back by itself, as any cache may at any time: 64 MiB of sectors.
const PENDING_MAX: usize = 128 * 1024;

/// What is being written.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Bytes(View),
    Zeroes(u64),
}

impl Source {
    pub(super) fn len(&self) -> u64 {
        match self {
            Source::Bytes(view) => view.len() as u64,
            Source::Zeroes(len) => *len,
        }
    }

    pub(super) fn slice(&self, range: Range<u64>) -> Source {
        match self {
            Source::Bytes(view) => Source::Bytes(view.slice(range.start as usize..range.end as usize)),
            Source::Zeroes(_) => Source::Zeroes(range.end - range.start),
        }
    }
}

#[derive(Debug)]
enum Content {
    Shared { view: View, at: usize },
    Own(Box<[u8; SECTOR]>),
    Zeroes,
}

#[derive(Debug)]
struct Version {
    write: u64,
    content: Content,
}

impl Version {
    fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Shared { view, at } => &view[*at..*at + SECTOR],
            Content::Own(bytes) => &bytes[..],
            Content::Zeroes => &[0; SECTOR],
        }
    }
}

/// The content of one disk.
#[derive(Debug, Default)]
pub(super) struct Medium {
    chunks: BTreeMap<u64, Box<[u8; CHUNK]>>,
    pending: BTreeMap<u64, Vec<Version>>,
    versions: usize,
}

/// The sectors that `len` bytes at `offset` touch.
fn sectors(offset: u64, len: u64) -> Range<u64> {
    offset / SECTOR as u64..(offset + len).div_ceil(SECTOR as u64)
}

impl Medium {
    /// Fills `into` from `offset`; what was never written is zero.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let within = (at % CHUNK as u64) as usize;
            let len = (CHUNK - within).min(into.len() - done);
            let target = &mut into[done..done + len];
            match self.chunks.get(&(at / CHUNK as u64)) {
                Some(chunk) => target.copy_from_slice(&chunk[within..within + len]),
                None => target.fill(0),
            }
            done += len;
        }
        for (&sector, versions) in self.pending.range(sectors(offset, into.len() as u64)) {
            let Some(last) = versions.last() else { continue };
            let start = sector * SECTOR as u64;
            let from = start.max(offset);
            let to = (start + SECTOR as u64).min(offset + into.len() as u64);
            let bytes = &last.bytes()[(from - start) as usize..(to - start) as usize];
            into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(bytes);
        }
    }

    /// Puts `source` into the cache as part of write number `write`.
    pub(super) fn write(&mut self, write: u64, offset: u64, source: &Source) {
        let end = offset + source.len();
        for sector in self.touched(sectors(offset, source.len()), source) {
            let start = sector * SECTOR as u64;
            let whole = start >= offset && start + SECTOR as u64 <= end;
            let content = match source {
                Source::Zeroes(_) if whole => Content::Zeroes,
                Source::Bytes(view) if whole => Content::Shared { view: view.clone(), at: (start - offset) as usize },
                _ => Content::Own(self.merge(sector, offset, source)),
            };
            self.pending.entry(sector).or_default().push(Version { write, content });
            self.versions += 1;
        }
        if self.versions > PENDING_MAX {
            self.settle(0..u64::MAX, |_| true);
        }
    }

    /// Zeroing what is zero and unwritten changes nothing: a disk of terabytes is zeroed at the cost of what it holds.
    fn touched(&self, range: Range<u64>, source: &Source) -> Vec<u64> {
        if matches!(source, Source::Bytes(_)) {
            return range.collect();
        }
        let chunks = range.start / SECTORS_PER_CHUNK..range.end.div_ceil(SECTORS_PER_CHUNK);
        let held = self.chunks.range(chunks).flat_map(|(chunk, _)| {
            let first = chunk * SECTORS_PER_CHUNK;
            first..first + SECTORS_PER_CHUNK
        });
        let mut touched: Vec<u64> = held.filter(|sector| range.contains(sector)).collect();
        touched.extend(self.pending.range(range).map(|(sector, _)| *sector));
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// The sector with the bytes of `source` that fall into it laid over it.
    fn merge(&self, sector: u64, offset: u64, source: &Source) -> Box<[u8; SECTOR]> {
        let start = sector * SECTOR as u64;
        let mut bytes = Box::new([0; SECTOR]);
        self.read(start, &mut bytes[..]);
        let from = start.max(offset);
        let to = (start + SECTOR as u64).min(offset + source.len());
        let target = &mut bytes[(from - start) as usize..(to - start) as usize];
        match source {
            Source::Bytes(view) => target.copy_from_slice(&view[(from - offset) as usize..(to - offset) as usize]),
            Source::Zeroes(_) => target.fill(0),
        }
        bytes
    }

    /// Makes stable, in the sectors of the byte range, the last version whose write `covers` names, and all before it.
    pub(super) fn settle_bytes(&mut self, offset: u64, len: u64, covers: impl Fn(u64) -> bool) {
        self.settle(sectors(offset, len), covers);
    }

    /// As [`Medium::settle_bytes`] for the whole disk.
    pub(super) fn settle_all(&mut self, covers: impl Fn(u64) -> bool) {
        self.settle(0..u64::MAX, covers);
    }

    fn settle(&mut self, range: Range<u64>, covers: impl Fn(u64) -> bool) {
        let sectors: Vec<u64> = self.pending.range(range).map(|(sector, _)| *sector).collect();
        for sector in sectors {
            let Entry::Occupied(mut entry) = self.pending.entry(sector) else { continue };
            let versions = entry.get_mut();
            let Some(last) = versions.iter().rposition(|version| covers(version.write)) else { continue };
            store(&mut self.chunks, sector, versions[last].bytes());
            versions.drain(..=last);
            self.versions -= last + 1;
            if versions.is_empty() {
                entry.remove();
            }
        }
    }

    /// Power is lost: of each sector's pending versions the last that `survives(write, sector)` stays, the others are gone.
    pub(super) fn crash(&mut self, mut survives: impl FnMut(u64, u64) -> bool) {
        for (sector, versions) in std::mem::take(&mut self.pending) {
            let mut last = None;
            for version in &versions {
                if survives(version.write, sector) {
                    last = Some(version);
                }
            }
            if let Some(version) = last {
                store(&mut self.chunks, sector, version.bytes());
            }
        }
        self.versions = 0;
    }

    /// Passes the bytes of the range through `damage`, on the medium and in the cache.
    pub(super) fn corrupt(&mut self, offset: u64, len: u64, mut damage: impl FnMut(&mut u8)) {
        self.settle_bytes(offset, len, |_| true);
        for sector in sectors(offset, len) {
            let start = sector * SECTOR as u64;
            let mut bytes = [0; SECTOR];
            self.read(start, &mut bytes);
            for (at, byte) in (start..).zip(&mut bytes) {
                if (offset..offset + len).contains(&at) {
                    damage(byte);
                }
            }
            store(&mut self.chunks, sector, &bytes);
        }
    }

    /// A medium with what a reader of this one sees now, all of it stable.
    pub(super) fn image(&self) -> Medium {
        let mut image = Medium { chunks: self.chunks.clone(), ..Medium::default() };
        for (&sector, versions) in &self.pending {
            if let Some(last) = versions.last() {
                store(&mut image.chunks, sector, last.bytes());
            }
        }
        image
    }

    /// Sectors with versions that a crash may lose.
    pub(super) fn pending_sectors(&self) -> usize {
        self.pending.len()
    }
}

fn store(chunks: &mut BTreeMap<u64, Box<[u8; CHUNK]>>, sector: u64, bytes: &[u8]) {
    let within = (sector % SECTORS_PER_CHUNK) as usize * SECTOR;
    let chunk = chunks.entry(sector / SECTORS_PER_CHUNK).or_insert_with(|| Box::new([0; CHUNK]));
    chunk[within..within + SECTOR].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Buf;

    fn bytes(value: u8, len: usize) -> Source {
        Source::Bytes(Buf::copy_from(&vec![value; len]).freeze())
    }

    fn sector(medium: &Medium, sector: u64) -> u8 {
        let mut bytes = [0; SECTOR];
        medium.read(sector * SECTOR as u64, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a sector is never torn inside");
        bytes[0]
    }

    /// Three writes to one sector, each followed by nothing, by its own end as a durable write, or by a flush of all so far;
    /// then every one of the crash's choices.
    #[test]
    fn a_crash_keeps_some_version_not_older_than_the_last_stable_one() {
        for settled in 0..27_u64 {
            let settling = |write: u64| settled / 3_u64.pow(write as u32) % 3;
            for fates in 0..8_u64 {
                let mut medium = Medium::default();
                for write in 0..3_u64 {
                    medium.write(write, 0, &bytes(write as u8 + 1, SECTOR));
                    match settling(write) {
                        0 => {}
                        1 => medium.settle_bytes(0, SECTOR as u64, |covered| covered == write),
                        _ => medium.settle_all(|covered| covered <= write),
                    }
                    assert_eq!(sector(&medium, 0), write as u8 + 1, "a read sees the last write");
                }
                medium.crash(|write, _| fates >> write & 1 == 1);
                let stable = (0..3).rev().find(|write| settling(*write) > 0);
                let kept = (0..3).rev().find(|write| fates >> write & 1 == 1 && Some(*write) > stable);
                let expected = kept.or(stable).map_or(0, |write| write as u8 + 1);
                assert_eq!(sector(&medium, 0), expected, "settled {settled}, fates {fates:03b}");
            }
        }
    }

    #[test]
    fn zeroing_an_empty_disk_costs_nothing() {
        let mut medium = Medium::default();
        medium.write(0, 8192, &bytes(7, 4096));
        medium.settle_all(|_| true);
        medium.write(1, 0, &Source::Zeroes(1 << 50));
        assert_eq!(medium.pending_sectors(), 8);
        assert_eq!(sector(&medium, 16), 0);
        medium.crash(|_, _| false);
        assert_eq!(sector(&medium, 16), 7, "an unsynced zeroing is lost like any write");
    }

    #[test]
    fn an_image_is_what_a_reader_sees_and_stays_so() {
        let mut medium = Medium::default();
        medium.write(0, 0, &bytes(1, 1024));
        medium.settle_all(|_| true);
        medium.write(1, 512, &bytes(2, 512));
        let image = medium.image();
        medium.write(2, 0, &bytes(3, 1024));
        assert_eq!((sector(&image, 0), sector(&image, 1), image.pending_sectors()), (1, 2, 0));
        assert_eq!((sector(&medium, 0), sector(&medium, 1)), (3, 3));
    }

    #[test]
    fn damage_stays_in_its_range() {
        let mut medium = Medium::default();
        medium.write(0, 0, &bytes(1, 1024));
        medium.corrupt(510, 4, |byte| *byte ^= 0xFF);
        let mut all = [0; 1024];
        medium.read(0, &mut all);
        assert_eq!(all[..510], [1; 510]);
        assert_eq!(all[510..514], [0xFE; 4]);
        assert_eq!(all[514..], [1; 510]);
    }

    proptest! {
        /// Against the plainest disk: a vector of bytes.
        #[test]
        fn reads_as_a_vector_of_bytes(
            steps in prop::collection::vec((0..4_u8, 0..20_000_u64, 1..9_000_usize), 1..40)
        ) {
            let mut medium = Medium::default();
            let mut plain = vec![0_u8; 32 * 1024];
            for (number, (kind, offset, len)) in steps.into_iter().enumerate() {
                let range = offset as usize..offset as usize + len;
                match kind {
                    0 => {
                        let pattern: Vec<u8> = (0..len).map(|i| (i ^ number) as u8).collect();
                        medium.write(number as u64, offset, &Source::Bytes(Buf::copy_from(&pattern).freeze()));
                        plain[range.clone()].copy_from_slice(&pattern);
                    }
                    1 => {
                        medium.write(number as u64, offset, &Source::Zeroes(len as u64));
                        plain[range.clone()].fill(0);
                    }
                    2 => medium.settle_bytes(offset, len as u64, |write| write % 2 == 0),
                    _ => medium.settle_all(|write| write % 3 == 0),
                }
                let mut read = vec![0xAA; len];
                medium.read(offset, &mut read);
                prop_assert_eq!(&read[..], &plain[range]);
                prop_assert_eq!(medium.versions, medium.pending.values().map(Vec::len).sum::<usize>());
            }
            medium.crash(|_, _| true);
            let mut all = vec![0xAA; plain.len()];
            medium.read(0, &mut all);
            prop_assert_eq!(all, plain);
        }
    }
}
