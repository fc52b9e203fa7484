//! What the next image of a page looks like, and which values have to move out before it fits. Pure: no I/O.
//!
//! A value that is too long for any page goes out first. When the page is full, the shortest value goes that makes enough room
//! by itself: short ones find a page with room for them the longest, and little is moved. Else the longest goes; and where no
//! value is worth a move of its own, some entries go together, whole (`bundle`). All that no longer than what other pages have
//! room for (`search`). The heap, where even a short copy takes a page, is given long values, or bundles.
//!
//! A key that is in a bundle comes back into the page, and where there is room the rest of the bundle with it: the place that
//! the bundle takes is for its length, not for what of it still counts. A delete that finds no room is noted in the forward
//! record; that one always fits.

use engine::View;
use engine::time::Instant;

use super::bundle::{Bundled, Bundles};
use super::choose::{Choice, Stays, choose};
use super::search::{Search, Wanted};
use super::{Record, TableError};
use crate::page::{
    AppliedOps, Draft, ENTRY_FIXED_BYTES, Entry, Forward, Reference, Stored, TablePageView, decode_bundle,
};
use crate::types::{Ballot, Timestamp};
use crate::value::Value;

/// A bundle of which this part (one in so many) or less still counts is taken apart when one of its keys changes. Chosen: the
/// keys that have left it come back in another, and half the place at least is in use.
const SPARSE_SHARE: usize = 2;
/// Part of a page's room (one in so many) that is to stay free when something comes back: else the next write would drive it
/// out again. Measured: with four times as much, 90 % of a table of mixed lengths cannot be written over for long.
const SLACK_SHARE: usize = 64;

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
    /// Placed, over this connection, while the page was being read: which came first is not known.
    pub(super) early: Option<u64>,
    /// The bytes of a bundle; its key is empty, its timestamp zero.
    pub(super) bundle: Option<View>,
}

impl Placed {
    pub(super) fn new(
        key: Vec<u8>,
        timestamp: Timestamp,
        value: &Value,
        reference: Reference,
        since: Instant,
    ) -> Placed {
        let bundle = key.is_empty().then(|| value.contiguous());
        Placed { key, timestamp, reference, since, early: None, bundle }
    }
}

/// What to do next.
pub(super) enum Plan {
    /// Write this image.
    Write(View),
    /// Place this value of this key elsewhere, then plan again. Without a key: a bundle.
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

    /// Whether it is a delete that leaves nothing behind but its timestamp.
    fn is_plain_delete(&self) -> bool {
        let plain = self.timestamp.ballot == Ballot::NONE && self.promise == Ballot::NONE && self.ops.is_empty();
        self.change == Change::Replace
            && self.value.is_none()
            && self.elsewhere.is_none()
            && plain
            && self.expiry == 0
            && self.tag == 0
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

/// Plans the next image of a page for one put. Returns with it the bundles that the page then no longer refers to.
pub(super) fn plan_put<'a>(
    view: &TablePageView<'a>,
    bundles: &'a Bundles,
    put: &'a Put<'a>,
    placed: &[Placed],
    search: &Search,
) -> Result<(Plan, Vec<Reference>), TableError> {
    let (page, puts) = (Draft::new(view), std::slice::from_ref(put));
    let forward = bundles.entry(view, put.key).and_then(|bundled| {
        let forward = view.forwards().find(|forward| forward.reference.copy == bundled.copy)?;
        Some((bundled, forward))
    });
    let Some((bundled, forward)) = forward else { return Ok((plan(page, puts, placed, search.wanted())?, Vec::new())) };
    let rest = bundles.of(&forward);
    let (dissolved, _) = taken_back(page.clone(), &rest);
    let whole = with_puts(dissolved.clone(), puts, placed).ok().filter(|draft| draft.committed() <= roomy(draft));
    if let Some(draft) = whole {
        return Ok((write(&draft), vec![forward.reference]));
    }
    let (single, emptied) = taken_back(page.clone(), &[bundled]);
    if put.is_plain_delete() {
        let fitting = with_puts(single.clone(), puts, placed).ok().filter(|draft| draft.committed() <= draft.room());
        return Ok(match fitting {
            Some(draft) => (write(&draft), emptied),
            None => {
                let mut page = page;
                page.delete_bundled(bundled.copy, bundled.index, &put.timestamp);
                (write(&page), Vec::new())
            }
        });
    }
    let sparse = forward.counting() * SPARSE_SHARE <= forward.len();
    if !sparse || search.is_hard() {
        return Ok((plan(single, puts, placed, search.wanted())?, emptied));
    }
    Ok((plan(dissolved, puts, placed, search.wanted())?, vec![forward.reference]))
}

/// How much a page may hold when something has come back to it.
pub(super) fn roomy(draft: &Draft<'_>) -> usize {
    draft.room() - draft.room() / SLACK_SHARE
}

/// The draft with entries of one bundle in its page again, and the bundle if it is not referred to any more.
fn taken_back<'a>(mut draft: Draft<'a>, bundled: &[Bundled<'a>]) -> (Draft<'a>, Vec<Reference>) {
    let mut emptied = Vec::new();
    for bundled in bundled {
        emptied.extend(draft.take_back(bundled.copy, bundled.index));
        draft.put(bundled.entry);
    }
    (draft, emptied)
}

fn copy_of(placed: &[Placed], key: &[u8], timestamp: Timestamp) -> Option<Reference> {
    placed.iter().find(|copy| copy.key == key && copy.timestamp == timestamp).map(|copy| copy.reference)
}

/// The draft with all of `puts`, or the value that has to be placed first.
fn with_puts<'a>(mut draft: Draft<'a>, puts: &'a [Put<'a>], placed: &[Placed]) -> Result<Draft<'a>, Plan> {
    for put in puts {
        match put.entry(draft.entry(put.key), copy_of(placed, put.key, put.timestamp)) {
            Some(entry) => draft.put(entry),
            None => return Err(put.place()),
        }
    }
    Ok(draft)
}

fn write(draft: &Draft<'_>) -> Plan {
    let image = draft.encode().expect("invariant: what is used is no more than there is room").freeze();
    Plan::Write(image)
}

/// Plans the image that `draft` becomes with `puts`; what has to go is chosen as `wanted`.
pub(super) fn plan<'a>(
    draft: Draft<'a>,
    puts: &'a [Put<'a>],
    placed: &[Placed],
    wanted: Wanted,
) -> Result<Plan, TableError> {
    let mut draft = match with_puts(draft, puts, placed) {
        Ok(draft) => draft,
        Err(Plan::Place { value, .. }) if matches!(wanted, Wanted::Page(longest) if value.len() > longest) => {
            return Err(TableError::OutOfSpace("no page has room for the value"));
        }
        Err(place) => return Ok(place),
    };
    loop {
        let excess = draft.committed().saturating_sub(draft.room());
        if excess == 0 {
            return Ok(write(&draft));
        }
        if placed.iter().any(|copy| use_placed(&mut draft, copy)) {
            continue;
        }
        let put = (puts.len() == 1).then(|| puts[0].key);
        let stays = Stays { put, moves: |key: &[u8]| placed.iter().any(|copy| copy.key == key) };
        let from = puts.first().map_or(0, |put| put.timestamp.op.sequence as usize);
        return Ok(match choose(&draft, excess, wanted, from, stays) {
            None => return Err(TableError::OutOfSpace("a page of the table is full of keys")),
            Some(Choice::Bundle(value)) => Plan::Place { key: Vec::new(), timestamp: Timestamp::ZERO, value },
            Some(Choice::Value(entry)) => match puts.iter().find(|put| put.key == entry.key && put.brings_value()) {
                Some(put) => put.place(),
                None => {
                    let value = Value::copy_from(entry.inline().unwrap_or_default());
                    Plan::Place { key: entry.key.to_vec(), timestamp: entry.timestamp, value }
                }
            },
        });
    }
}

/// The copies of `placed` that the page `view` does not refer to, neither itself nor by a bundle that was placed with them.
pub(super) fn unused(view: &TablePageView<'_>, placed: Vec<Placed>) -> Vec<Placed> {
    let mut used: Vec<Reference> = view.forwards().map(|forward| forward.reference).collect();
    let bundles = placed.iter().filter(|copy| used.contains(&copy.reference));
    let bundled: Vec<_> =
        bundles.flat_map(|copy| &copy.bundle).flat_map(|bytes| decode_bundle(bytes)).flatten().collect();
    used.extend(view.entries().chain(bundled).filter_map(|entry| match entry.stored {
        Stored::Reference(_, reference) => Some(reference),
        Stored::Inline(_) | Stored::Tombstone => None,
    }));
    placed.into_iter().filter(|copy| !used.contains(&copy.reference)).collect()
}

/// Puts the reference of a copy that was placed in the stead of what it is a copy of, if the page still holds exactly that.
fn use_placed(draft: &mut Draft<'_>, copy: &Placed) -> bool {
    let Some(bytes) = &copy.bundle else {
        let Some(entry) = draft.entry(&copy.key).copied().filter(|entry| entry.timestamp == copy.timestamp) else {
            return false;
        };
        let Some(value) = entry.inline() else { return false };
        draft.put(Entry { stored: Stored::Reference(value.len() as u32, copy.reference), ..entry });
        return true;
    };
    let entries = decode_bundle(bytes).unwrap_or_default();
    let whole = !entries.is_empty() && entries.iter().all(|entry| draft.entry(entry.key) == Some(entry));
    if whole {
        entries.iter().for_each(|entry| draft.remove(entry.key));
        draft.put_forward(Forward::new(copy.reference, &entries));
    }
    whole
}
