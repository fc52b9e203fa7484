//! What a namespace on flash may hold after a crash: sector by sector what is stable for certain, and what came since.

use std::collections::BTreeMap;

use device::{Durability, Error, Lba, Namespace};
use engine::{Buf, View};
use flash::nand::Nand;
use flash::{FlashNamespace, Manager, SECTOR_BYTES, Sector as Place};

/// A version of a sector: 0 reads as zeroes.
type Version = u64;
/// The version that can't be read.
const SPOILT: Version = u64::MAX;

#[derive(Clone, Default)]
struct Sector {
    stable: Version,
    since: Vec<Version>,
}

/// See the module.
#[derive(Default)]
pub struct Model {
    sectors: BTreeMap<u64, Sector>,
    next: Version,
}

pub fn content(lba: u64, version: Version) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR_BYTES];
    if version != 0 {
        let words = [lba, version, lba ^ version.rotate_left(17)];
        for (part, word) in bytes.chunks_exact_mut(8).zip(words.iter().cycle()) {
            part.copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

impl Model {
    /// A write is handed over: its bytes. From now on the new version may be there.
    pub fn write(&mut self, lba: u64, count: u64) -> View {
        self.next += 1;
        let mut bytes = Vec::new();
        for lba in lba..lba + count {
            self.sectors.entry(lba).or_default().since.push(self.next);
            bytes.extend(content(lba, self.next));
        }
        Buf::copy_from(&bytes).freeze()
    }

    pub fn deallocate(&mut self, lba: u64, count: u64) {
        (lba..lba + count).for_each(|lba| self.sectors.entry(lba).or_default().since.push(0));
    }

    pub fn spoil(&mut self, lba: u64, count: u64) {
        (lba..lba + count).for_each(|lba| self.sectors.entry(lba).or_default().since.push(SPOILT));
    }

    /// A command on these sectors was acknowledged as stable.
    pub fn stable(&mut self, lba: u64, count: u64) {
        for (_, sector) in self.sectors.range_mut(lba..lba + count) {
            if let Some(last) = sector.since.last() {
                sector.stable = *last;
                sector.since.clear();
            }
        }
    }

    /// Everything that was acknowledged is stable. Nothing is under way.
    pub fn flushed(&mut self) {
        self.stable(0, u64::MAX);
    }

    /// The namespace was opened anew: each sector is one of what it may be, and is so from now on.
    pub async fn verify(&mut self, namespace: &FlashNamespace, story: &str) {
        for lba in 0..namespace.info().blocks {
            let (result, buf) = namespace.read(Lba(lba), Buf::with_len(SECTOR_BYTES)).await;
            let sector = self.sectors.entry(lba).or_default();
            let allowed: Vec<Version> = sector.since.iter().copied().chain([sector.stable]).collect();
            let found = match result {
                Ok(()) => allowed.iter().copied().find(|&version| version != SPOILT && content(lba, version) == *buf),
                Err(Error::ReadFault(_)) => allowed.contains(&SPOILT).then_some(SPOILT),
                Err(error) => panic!("{story}: sector {lba}: {error}"),
            };
            let shown = u64::from_le_bytes(*buf[8..].first_chunk().expect("a sector has more bytes"));
            let Some(found) = found else {
                panic!("{story}: sector {lba} has version {shown}, and should have one of {allowed:?}")
            };
            *sector = Sector { stable: found, since: Vec::new() };
        }
    }

    /// The map of a namespace that was opened anew and verified: a sector that nothing is in has no place, and every other one a
    /// place of its own, in which the medium has the version that was found. The medium is asked past the media manager.
    pub async fn check_map(&self, manager: &Manager, nand: &Nand, on_nand: impl Fn(Place) -> Place, story: &str) {
        let mut taken = BTreeMap::new();
        for lba in 0..u64::from(manager.capacity()) {
            let version = self.sectors.get(&lba).map_or(0, |sector| sector.stable);
            let Some(place) = manager.place_of(lba as u32) else {
                assert!(matches!(version, 0 | SPOILT), "{story}: sector {lba} has no place, and version {version}");
                continue;
            };
            assert!(!matches!(version, 0 | SPOILT), "{story}: sector {lba} is at {place}, and nothing should be there");
            if let Some(other) = taken.insert(place, lba) {
                panic!("{story}: sectors {other} and {lba} are both at {place}");
            }
            let found = nand.peek(on_nand(place)).await;
            let is_there = found.is_some_and(|(bytes, _)| *bytes == *content(lba, version));
            assert!(is_there, "{story}: sector {lba} should be at {place} in version {version}");
        }
    }

    /// A read of what nobody writes: the newest version, or the error of what can't be read.
    pub async fn read(&self, namespace: &FlashNamespace, lba: u64, count: u64) {
        let (result, buf) = namespace.read(Lba(lba), Buf::with_len(count as usize * SECTOR_BYTES)).await;
        let newest =
            |lba: u64| self.sectors.get(&lba).map_or(0, |sector| *sector.since.last().unwrap_or(&sector.stable));
        let is_spoilt = (lba..lba + count).any(|lba| newest(lba) == SPOILT);
        match result {
            Ok(()) => {
                assert!(!is_spoilt, "sectors {lba}+{count} can be read");
                for (lba, bytes) in (lba..).zip(buf.chunks_exact(SECTOR_BYTES)) {
                    assert!(content(lba, newest(lba)) == *bytes, "sector {lba} is not what was written last");
                }
            }
            Err(Error::ReadFault(_)) if is_spoilt => {}
            Err(Error::ReadFault(why)) if why.contains("power") => {}
            Err(error) => panic!("sectors {lba}+{count}: {error}"),
        }
    }
}

/// How a write is to be acknowledged.
pub fn durability(is_stable: bool) -> Durability {
    if is_stable { Durability::Stable } else { Durability::Cached }
}
