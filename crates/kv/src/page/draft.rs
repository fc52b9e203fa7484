//! The next image of a table page: the records of the old one with changes, encoded under the next version.

use engine::Buf;

use super::record::Writer;
use super::{Entry, Forward, Guest, HEADER_BYTES, Header, Identity, Reference, TablePageView, encode_header};
use crate::types::Timestamp;

/// The records do not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the page is full: {needed} bytes of records, {room} fit")]
pub struct Full {
    /// Bytes of all records.
    pub needed: usize,
    /// Bytes there are.
    pub room: usize,
}

/// Records to be written as one page. Borrows the old image and the values that are new.
#[derive(Clone, Debug)]
pub struct Draft<'a> {
    identity: Identity,
    header: Header,
    size: usize,
    entries: Vec<Entry<'a>>,
    forwards: Vec<Forward<'a>>,
    guests: Vec<Guest<'a>>,
}

impl<'a> Draft<'a> {
    /// The records of `page`, to become its next version.
    pub fn new(page: &TablePageView<'a>) -> Draft<'a> {
        let mut header = *page.header();
        header.version = header.version.wrapping_add(1);
        Draft {
            identity: page.identity(),
            header,
            size: page.size(),
            entries: page.entries().collect(),
            forwards: page.forwards().collect(),
            guests: page.guests().collect(),
        }
    }

    /// An empty page of `size` bytes in place of one whose bytes are lost. `salt`, random, keeps its images from ever
    /// being equal to those of the lost one, whose version is not known.
    pub fn rebuild(identity: Identity, size: usize, salt: u64) -> Draft<'a> {
        let header = Header { version: 1, salt: salt.max(1), ..Header::default() };
        Draft { identity, header, size, entries: Vec::new(), forwards: Vec::new(), guests: Vec::new() }
    }

    /// Adds an entry, or puts it in the place of the one of the same key.
    pub fn put(&mut self, entry: Entry<'a>) {
        match self.entries.binary_search_by(|other| other.key.cmp(entry.key)) {
            Ok(index) => self.entries[index] = entry,
            Err(index) => self.entries.insert(index, entry),
        }
    }

    /// Removes the entry of `key`, if there is one.
    pub fn remove(&mut self, key: &[u8]) {
        self.entries.retain(|entry| entry.key != key);
    }

    /// Adds a forward record.
    pub fn put_forward(&mut self, forward: Forward<'a>) {
        let at = self.forwards.partition_point(|other| other.reference.copy < forward.reference.copy);
        self.forwards.insert(at, forward);
    }

    /// Removes the forward record of bundle `copy`.
    pub fn remove_forward(&mut self, copy: u64) {
        self.forwards.retain(|forward| forward.reference.copy != copy);
    }

    /// Says that entry `index` of bundle `copy` no longer counts. Returns the bundle if none of its entries does any more:
    /// its record is gone then.
    pub fn take_back(&mut self, copy: u64, index: usize) -> Option<Reference> {
        let at = self.forwards.iter().position(|forward| forward.reference.copy == copy)?;
        self.forwards[at].take_back(index);
        self.forwards[at].is_empty().then(|| self.forwards.remove(at).reference)
    }

    /// Makes entry `index` of bundle `copy` a tombstone.
    pub fn delete_bundled(&mut self, copy: u64, index: usize, timestamp: &Timestamp) {
        if let Some(forward) = self.forwards.iter_mut().find(|forward| forward.reference.copy == copy) {
            forward.delete(index, timestamp);
        }
    }

    /// Closes the page to hosts of epochs before this one.
    pub fn seal(&mut self, epoch: u64) {
        self.header.seal = epoch;
    }

    /// Adds a guest; one of the same copy id is left as it is (copies are immutable). Whether it was added.
    pub fn put_guest(&mut self, guest: Guest<'a>) -> bool {
        match self.guests.binary_search_by(|other| other.copy.cmp(&guest.copy)) {
            Ok(_) => false,
            Err(index) => {
                self.guests.insert(index, guest);
                true
            }
        }
    }

    /// Removes the guest of this copy id and home; whether there was one.
    pub fn remove_guest(&mut self, copy: u64, home: u32) -> bool {
        let before = self.guests.len();
        self.guests.retain(|guest| (guest.copy, guest.home) != (copy, home));
        self.guests.len() != before
    }

    /// Marks the guest of this copy id and home, or takes the mark off; whether that changed it. `None`: it is not there.
    pub fn condemn_guest(&mut self, copy: u64, home: u32, condemned: bool) -> Option<bool> {
        let guest = self.guests.iter_mut().find(|guest| (guest.copy, guest.home) == (copy, home))?;
        Some(std::mem::replace(&mut guest.condemned, condemned) != condemned)
    }

    /// The entry of `key`.
    pub fn entry(&self, key: &[u8]) -> Option<&Entry<'a>> {
        self.entries.binary_search_by(|other| other.key.cmp(key)).ok().map(|index| &self.entries[index])
    }

    /// The entries, ascending by key.
    pub fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// The forward records, ascending by copy.
    pub fn forwards(&self) -> &[Forward<'a>] {
        &self.forwards
    }

    /// Bytes of all records.
    pub fn used(&self) -> usize {
        let entries: usize = self.entries.iter().map(Entry::encoded_len).sum();
        let forwards: usize = self.forwards.iter().map(Forward::encoded_len).sum();
        entries + forwards + self.guests.iter().map(Guest::encoded_len).sum::<usize>()
    }

    /// Bytes of all records, and those kept free so that each key in a bundle can be deleted. Whatever is added to a page
    /// goes by this; then a delete always finds room, also on a member that is full.
    pub fn committed(&self) -> usize {
        self.used() + self.forwards.iter().map(Forward::reserved).sum::<usize>()
    }

    /// Bytes for records in a page of this size.
    pub fn room(&self) -> usize {
        self.size - HEADER_BYTES
    }

    /// The page's bytes.
    pub fn encode(&self) -> Result<Buf, Full> {
        let (needed, room) = (self.used(), self.room());
        if needed > room {
            return Err(Full { needed, room });
        }
        let mut page = Buf::with_len(self.size);
        let mut writer = Writer { bytes: &mut page, at: HEADER_BYTES };
        self.entries.iter().for_each(|entry| entry.encode(&mut writer));
        self.forwards.iter().for_each(|forward| forward.encode(&mut writer));
        self.guests.iter().for_each(|guest| guest.encode(&mut writer));
        let end = writer.at;
        // A recycled buffer holds old bytes: none of them may reach the medium.
        page[end..].fill(0);
        let header = Header {
            used: needed as u32,
            entries: self.entries.len() as u16,
            guests: self.guests.len() as u16,
            forwards: self.forwards.len() as u16,
            ..self.header
        };
        encode_header(&mut page, self.identity, &header);
        Ok(page)
    }
}
