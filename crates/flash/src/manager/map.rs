//! [`Map`]: where each logical sector is, for what is stable; and the directory, where the pages of the map are.

use std::collections::BTreeSet;

use crate::address::{ADDRESSES_MAX, Sector};
use crate::geometry::SECTOR_BYTES;

/// Entries of a page.
pub(super) const PAGE_ENTRIES: u32 = (SECTOR_BYTES / 4) as u32;
/// There is nothing: it reads as zeroes.
const NOTHING: u32 = u32::MAX;
/// It can't be read: it was lost, or made unreadable.
const SPOILT: u32 = u32::MAX - 1;

const _: () = assert!(ADDRESSES_MAX <= SPOILT, "an address says nothing but a place");

/// Where a logical sector is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Nothing,
    Spoilt,
    At(Sector),
}

impl Place {
    fn encode(self) -> u32 {
        match self {
            Place::Nothing => NOTHING,
            Place::Spoilt => SPOILT,
            Place::At(sector) => sector.0,
        }
    }

    pub fn decode(bits: u32) -> Place {
        match bits {
            NOTHING => Place::Nothing,
            SPOILT => Place::Spoilt,
            at => Place::At(Sector(at)),
        }
    }

    pub fn sector(self) -> Option<Sector> {
        match self {
            Place::At(sector) => Some(sector),
            Place::Nothing | Place::Spoilt => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Map {
    entries: Vec<u32>,
    directory: Vec<u32>,
    /// Pages that have changed since they were last written.
    dirty: BTreeSet<u32>,
    /// Entries that name a place.
    used: u64,
}

/// Pages of a map of so many sectors.
pub(super) fn pages_of(capacity: u32) -> u32 {
    capacity.div_ceil(PAGE_ENTRIES)
}

impl Map {
    /// A map in which nothing is.
    pub fn new(capacity: u32) -> Map {
        let pages = pages_of(capacity) as usize;
        Map {
            entries: vec![NOTHING; capacity as usize],
            directory: vec![NOTHING; pages],
            dirty: BTreeSet::new(),
            used: 0,
        }
    }

    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    pub fn get(&self, logical: u32) -> Place {
        self.entries.get(logical as usize).map_or(Place::Nothing, |&bits| Place::decode(bits))
    }

    /// Changes an entry, and returns where the sector was.
    pub fn set(&mut self, logical: u32, place: Place) -> Place {
        let entry = &mut self.entries[logical as usize];
        let before = Place::decode(std::mem::replace(entry, place.encode()));
        self.used += u64::from(place.sector().is_some());
        self.used -= u64::from(before.sector().is_some());
        if before != place {
            self.dirty.insert(logical / PAGE_ENTRIES);
        }
        before
    }

    pub fn page_place(&self, page: u32) -> Place {
        self.directory.get(page as usize).map_or(Place::Nothing, |&bits| Place::decode(bits))
    }

    pub fn set_page_place(&mut self, page: u32, place: Place) -> Place {
        Place::decode(std::mem::replace(&mut self.directory[page as usize], place.encode()))
    }

    pub fn directory(&self) -> &[u32] {
        &self.directory
    }

    pub fn set_directory(&mut self, directory: Vec<u32>) {
        self.directory = directory;
    }

    pub fn dirty(&self) -> Vec<u32> {
        self.dirty.iter().copied().collect()
    }

    pub fn mark_dirty(&mut self, page: u32) {
        self.dirty.insert(page);
    }

    /// A page as it is written; it is clean from now on.
    pub fn take_page(&mut self, page: u32) -> Vec<u8> {
        self.dirty.remove(&page);
        let first = (page * PAGE_ENTRIES) as usize;
        let entries = &self.entries[first..self.entries.len().min(first + PAGE_ENTRIES as usize)];
        let mut bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        bytes.resize(SECTOR_BYTES, 0xff);
        bytes
    }

    /// A page as it was read. False: it names a sector that there is not, of `sectors`.
    pub fn load_page(&mut self, page: u32, bytes: &[u8], sectors: u32) -> bool {
        let first = page * PAGE_ENTRIES;
        for (logical, word) in (first..self.capacity()).zip(bytes.chunks_exact(4)) {
            let place = Place::decode(word.first_chunk().map_or(NOTHING, |bytes| u32::from_le_bytes(*bytes)));
            if place.sector().is_some_and(|sector| sector.0 >= sectors) {
                return false;
            }
            self.set(logical, place);
        }
        self.dirty.remove(&page);
        true
    }

    /// A page can't be read: neither can what it says where it is, until it is written again.
    pub fn lose_page(&mut self, page: u32) {
        let first = page * PAGE_ENTRIES;
        for logical in first..first.saturating_add(PAGE_ENTRIES).min(self.capacity()) {
            self.set(logical, Place::Spoilt);
        }
        self.directory[page as usize] = NOTHING;
        self.dirty.insert(page);
    }

    /// All logical sectors that are somewhere.
    pub fn places(&self) -> impl Iterator<Item = (u32, Sector)> {
        let all = self.entries.iter().enumerate();
        all.filter_map(|(logical, &bits)| Some((logical as u32, Place::decode(bits).sector()?)))
    }

    /// All pages that are somewhere.
    pub fn page_places(&self) -> impl Iterator<Item = (u32, Sector)> {
        let all = self.directory.iter().enumerate();
        all.filter_map(|(page, &bits)| Some((page as u32, Place::decode(bits).sector()?)))
    }
}
