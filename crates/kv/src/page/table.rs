//! A table page, decoded in place: nothing is copied, nothing allocated.

use super::{Entry, Forward, Guest, HEADER_BYTES, Header, Identity, Kind, PageError, Trust, decode_header};

/// A checked table page. Walking it cannot fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TablePageView<'a> {
    header: Header,
    identity: Identity,
    entries: &'a [u8],
    forwards: &'a [u8],
    guests: &'a [u8],
    size: usize,
}

impl<'a> TablePageView<'a> {
    /// Checks all of `bytes`, read from table page `page` of a member of this incarnation.
    pub fn decode(bytes: &'a [u8], page: u32, incarnation: u64) -> Result<TablePageView<'a>, PageError> {
        TablePageView::decode_as(bytes, page, incarnation, Trust::Nothing)
    }

    /// Like [`TablePageView::decode`], for bytes that have passed it before: the checksum, which is most of the work, is
    /// not compared again.
    pub fn decode_again(bytes: &'a [u8], page: u32, incarnation: u64) -> Result<TablePageView<'a>, PageError> {
        TablePageView::decode_as(bytes, page, incarnation, Trust::Checked)
    }

    fn decode_as(bytes: &'a [u8], page: u32, incarnation: u64, trust: Trust) -> Result<TablePageView<'a>, PageError> {
        let identity = Identity { kind: Kind::Table, page, incarnation };
        let header = decode_header(bytes, identity, trust)?.unwrap_or_default();
        let records = &bytes[HEADER_BYTES..HEADER_BYTES + header.used as usize];
        let mut at = 0;
        let mut last_key: &[u8] = &[];
        for _ in 0..header.entries {
            let (entry, length) = Entry::decode(&records[at..])?;
            // A key is never empty, so the first one passes.
            if entry.key <= last_key {
                return Err(PageError::Malformed("keys do not ascend"));
            }
            last_key = entry.key;
            at += length;
        }
        let (entries, rest) = records.split_at(at);
        let (mut at, mut last_copy, mut reserved) = (0, 0, 0);
        for _ in 0..header.forwards {
            let (forward, length) = Forward::decode(&rest[at..])?;
            reserved += forward.reserved();
            if forward.reference.copy <= last_copy {
                return Err(PageError::Malformed("forward records do not ascend"));
            }
            last_copy = forward.reference.copy;
            at += length;
        }
        if HEADER_BYTES + header.used as usize + reserved > bytes.len() {
            return Err(PageError::Malformed("no room is left for deletions"));
        }
        let (forwards, guests) = rest.split_at(at);
        let (mut at, mut last_copy) = (0, 0);
        for _ in 0..header.guests {
            let (guest, length) = Guest::decode(&guests[at..])?;
            if guest.copy <= last_copy {
                return Err(PageError::Malformed("guests do not ascend"));
            }
            last_copy = guest.copy;
            at += length;
        }
        if at != guests.len() {
            return Err(PageError::Malformed("used bytes that belong to no record"));
        }
        Ok(TablePageView { header, identity, entries, forwards, guests, size: bytes.len() })
    }

    /// What the header says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Which page it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Bytes of the whole page.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes left for records.
    pub fn free(&self) -> usize {
        self.size - HEADER_BYTES - self.header.used as usize
    }

    /// Its entries, ascending by key.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let mut rest = self.entries;
        std::iter::from_fn(move || {
            // Checked by `decode`: an error here is the end.
            let (entry, length) = Entry::decode(rest).ok()?;
            rest = &rest[length..];
            Some(entry)
        })
    }

    /// Its forward records, ascending by copy.
    pub fn forwards(&self) -> impl Iterator<Item = Forward<'a>> + use<'a> {
        let mut rest = self.forwards;
        std::iter::from_fn(move || {
            // Checked by `decode`: an error here is the end.
            let (forward, length) = Forward::decode(rest).ok()?;
            rest = &rest[length..];
            Some(forward)
        })
    }

    /// Its guests, ascending by copy.
    pub fn guests(&self) -> impl Iterator<Item = Guest<'a>> + use<'a> {
        let mut rest = self.guests;
        std::iter::from_fn(move || {
            // Checked by `decode`: an error here is the end.
            let (guest, length) = Guest::decode(rest).ok()?;
            rest = &rest[length..];
            Some(guest)
        })
    }

    /// The entry of `key`.
    pub fn entry(&self, key: &[u8]) -> Option<Entry<'a>> {
        self.entries().take_while(|entry| entry.key <= key).find(|entry| entry.key == key)
    }

    /// The guest of this copy id.
    pub fn guest(&self, copy: u64) -> Option<Guest<'a>> {
        self.guests().find(|guest| guest.copy == copy)
    }
}
