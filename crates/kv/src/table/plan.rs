//! What the next image of a page looks like, and which values have to move out before it fits. Pure: no I/O.
//!
//! A record never leaves its home page; values do. A value that is too long for any page goes out first; when the page is
//! full, the new value goes if that suffices, else the longest in the page: one long value out makes room for many records.

use engine::View;

use super::TableError;
use crate::page::{AppliedOps, Draft, ENTRY_FIXED_BYTES, Entry, REFERENCE_BYTES, Reference, Stored};
use crate::types::{Ballot, Timestamp};
use crate::value::Value;

/// A key and what it is to hold.
pub(super) struct Put<'a> {
    pub(super) key: &'a [u8],
    pub(super) timestamp: Timestamp,
    pub(super) value: Option<&'a Value>,
    /// The value in one piece, if an empty page could hold it.
    inline: Option<View>,
}

/// A copy of a value that was placed outside its home page, for an image that is to refer to it.
pub(super) struct Placed {
    pub(super) key: Vec<u8>,
    pub(super) timestamp: Timestamp,
    pub(super) reference: Reference,
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
    pub(super) fn new(key: &'a [u8], timestamp: Timestamp, value: Option<&'a Value>, room: usize) -> Put<'a> {
        let short = value.filter(|value| ENTRY_FIXED_BYTES + key.len() + value.len() <= room);
        Put { key, timestamp, value, inline: short.map(Value::contiguous) }
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
        let stored = match (put.value, copy_of(put.key, put.timestamp), &put.inline) {
            (None, _, _) => Stored::Tombstone,
            (Some(value), Some(reference), _) => Stored::Reference(value.len() as u32, reference),
            (Some(_), None, Some(bytes)) => Stored::Inline(bytes),
            (Some(_), None, None) => return Ok(put.place()),
        };
        // A put neither meets a promise nor undoes it.
        let promise = draft.entry(put.key).map_or(Ballot::NONE, |old| old.promise);
        let (key, timestamp, ops) = (put.key, put.timestamp, AppliedOps::default());
        draft.put(Entry { key, timestamp, promise, ops, expiry: 0, stored });
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
        match (copy_of(key, entry.timestamp), puts.iter().find(|put| put.key == key)) {
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
