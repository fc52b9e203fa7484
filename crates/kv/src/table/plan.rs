//! What the next image of a page looks like, and which values have to move out before it fits. Pure: no I/O.
//!
//! A record never leaves its home page; values do. A value that is too long for any page goes out first; when the page is
//! full, the new value goes if that suffices, else the longest in the page: one long value out makes room for many records.

use engine::View;
use engine::time::Instant;

use super::{Record, TableError};
use crate::page::{AppliedOps, Draft, ENTRY_FIXED_BYTES, Entry, REFERENCE_BYTES, Reference, Stored};
use crate::types::{Ballot, Timestamp};
use crate::value::Value;

/// What becomes of the entry that the page has for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// The record takes its place.
    Replace,
    /// Its value is the record's already, wherever it lies, and stays; the rest becomes the record's.
    Confirm,
    /// All stays but the promise.
    Promise,
}

/// A key and what it is to hold.
pub(super) struct Put<'a> {
    pub(super) key: &'a [u8],
    pub(super) timestamp: Timestamp,
    pub(super) change: Change,
    /// The promise is raised to this; a put neither meets a promise nor undoes it.
    pub(super) promise: Ballot,
    pub(super) value: Option<&'a Value>,
    expiry: u64,
    tag: u32,
    ops: Vec<u8>,
    /// The value in one piece, if an empty page could hold it.
    inline: Option<View>,
    /// Bytes of a value that has been placed already, and is no longer at hand.
    elsewhere: Option<u32>,
}

/// A copy of a value that was placed outside its home page, for an image that is to refer to it.
pub(super) struct Placed {
    pub(super) key: Vec<u8>,
    pub(super) timestamp: Timestamp,
    pub(super) reference: Reference,
    pub(super) since: Instant,
    /// Placed while the page was being read: which came first is not known.
    pub(super) early: bool,
}

/// What to do next.
pub(super) enum Plan {
    /// Write this image.
    Write(View),
    /// Place this value of this key elsewhere, then plan again.
    Place { key: Vec<u8>, timestamp: Timestamp, value: Value },
}

impl<'a> Put<'a> {
    /// `room`: bytes for records in an empty page.
    pub(super) fn new(key: &'a [u8], record: &'a Record, room: usize) -> Put<'a> {
        let short = record.value.as_ref().filter(|value| ENTRY_FIXED_BYTES + key.len() + value.len() <= room);
        Put {
            key,
            timestamp: record.timestamp,
            change: Change::Replace,
            promise: Ballot::NONE,
            value: record.value.as_ref(),
            expiry: record.expiry,
            tag: record.tag,
            ops: AppliedOps::encode(&record.ops),
            inline: short.map(Value::contiguous),
            elsewhere: None,
        }
    }

    /// Its value, which `record` is without, has so many bytes and was placed.
    pub(super) fn placed(mut self, length: Option<u32>) -> Put<'a> {
        self.elsewhere = length;
        self
    }

    /// No more than a promise.
    pub(super) fn promise(key: &'a [u8]) -> Put<'a> {
        Put {
            key,
            timestamp: Timestamp::ZERO,
            change: Change::Promise,
            promise: Ballot::NONE,
            value: None,
            expiry: 0,
            tag: 0,
            ops: Vec::new(),
            inline: None,
            elsewhere: None,
        }
    }

    /// The entry that `old` becomes; `copy`: where its value was placed. `None`: the value must be placed first.
    fn entry<'b>(&'b self, old: Option<&Entry<'b>>, copy: Option<Reference>) -> Option<Entry<'b>> {
        let promise = old.map_or(Ballot::NONE, |old| old.promise).max(self.promise);
        let absent = Entry {
            key: self.key,
            timestamp: Timestamp::ZERO,
            promise,
            ops: AppliedOps::default(),
            expiry: 0,
            tag: 0,
            stored: Stored::Tombstone,
        };
        let old = old.copied().unwrap_or(absent);
        if self.change == Change::Promise {
            return Some(Entry { promise, ..old });
        }
        let stored = match (self.change, self.value, copy, &self.inline) {
            (Change::Confirm, ..) => old.stored,
            (_, None, Some(reference), _) if let Some(length) = self.elsewhere => Stored::Reference(length, reference),
            (_, None, _, _) => Stored::Tombstone,
            (_, Some(value), Some(reference), _) => Stored::Reference(value.len() as u32, reference),
            (_, Some(_), None, Some(bytes)) => Stored::Inline(bytes),
            (_, Some(_), None, None) => return None,
        };
        let (timestamp, ops) = (self.timestamp, AppliedOps::new(&self.ops));
        Some(Entry { key: self.key, timestamp, promise, ops, expiry: self.expiry, tag: self.tag, stored })
    }

    /// Whether the value in the page is this record's own, not the page's before it.
    fn brings_value(&self) -> bool {
        self.change == Change::Replace
    }

    fn place(&self) -> Plan {
        let value = self.value.cloned().unwrap_or_default();
        Plan::Place { key: self.key.to_vec(), timestamp: self.timestamp, value }
    }
}

/// Plans the image that `draft` becomes with `puts`. `image`: the bytes that `draft` was decoded from.
pub(super) fn plan<'a>(
    mut draft: Draft<'a>,
    image: &View,
    puts: &'a [Put<'a>],
    placed: &[Placed],
) -> Result<Plan, TableError> {
    let copy_of = |key: &[u8], timestamp: Timestamp| {
        placed.iter().find(|copy| copy.key == key && copy.timestamp == timestamp).map(|copy| copy.reference)
    };
    for put in puts {
        match put.entry(draft.entry(put.key), copy_of(put.key, put.timestamp)) {
            Some(entry) => draft.put(entry),
            None => return Ok(put.place()),
        }
    }
    loop {
        let excess = draft.used().saturating_sub(draft.room());
        if excess == 0 {
            let new = draft.encode().expect("invariant: what is used is no more than there is room");
            return Ok(Plan::Write(new.freeze()));
        }
        let own = puts.iter().find(|put| saving(&draft, put.key) >= excess);
        let key = match own {
            Some(put) => put.key,
            None => longest(&draft).ok_or(TableError::OutOfSpace("a page of the table is full of keys"))?,
        };
        let entry = *draft.entry(key).expect("invariant: the key was found in this draft");
        let Stored::Inline(bytes) = entry.stored else {
            // Only inline values save anything; should that ever change, the page is as full as it was.
            return Err(TableError::OutOfSpace("a page of the table is full"));
        };
        match (copy_of(key, entry.timestamp), puts.iter().find(|put| put.key == key && put.brings_value())) {
            (Some(reference), _) => {
                draft.put(Entry { stored: Stored::Reference(bytes.len() as u32, reference), ..entry });
            }
            (None, Some(put)) => return Ok(put.place()),
            (None, None) => {
                // The value is a part of `image`: its view shares the page's buffer.
                let at = bytes.as_ptr() as usize - image.as_ptr() as usize;
                let value = Value::from(image.slice(at..at + bytes.len()));
                return Ok(Plan::Place { key: key.to_vec(), timestamp: entry.timestamp, value });
            }
        }
    }
}

/// Bytes the page gains when the value of `key` moves out.
fn saving(draft: &Draft<'_>, key: &[u8]) -> usize {
    draft.entry(key).map_or(0, entry_saving)
}

fn entry_saving(entry: &Entry<'_>) -> usize {
    match entry.stored {
        Stored::Inline(value) => value.len().saturating_sub(REFERENCE_BYTES),
        Stored::Reference(..) | Stored::Tombstone => 0,
    }
}

fn longest<'a>(draft: &Draft<'a>) -> Option<&'a [u8]> {
    let longest = draft.entries().iter().max_by_key(|entry| entry_saving(entry))?;
    (entry_saving(longest) > 0).then_some(longest.key)
}
