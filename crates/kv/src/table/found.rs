//! What a home page says of a key, and what it is to say.

use engine::View;

use super::bundle::Bundles;
use crate::page::{Entry, Reference, Stored, TablePageView};
use crate::types::{Applied, Ballot, ChecksumSeed, Timestamp, Version, value_checksum};
use crate::value::Value;

/// What a home page says of a key.
#[derive(Clone, Debug)]
pub struct Found {
    /// When it was written; [`Timestamp::ZERO`]: never.
    pub timestamp: Timestamp,
    /// The highest ballot promised.
    pub promise: Ballot,
    /// Conditional operations applied since the last put.
    pub ops: Vec<Applied>,
    /// When it ends, in Unix milliseconds; 0: never.
    pub expiry: u64,
    /// What the value is, for whoever stores it.
    pub tag: u32,
    /// What it holds.
    pub content: Content,
}

impl Found {
    /// A key of which the page knows nothing.
    pub const NOTHING: Found = Found {
        timestamp: Timestamp::ZERO,
        promise: Ballot::NONE,
        ops: Vec::new(),
        expiry: 0,
        tag: 0,
        content: Content::Nothing,
    };

    pub(super) fn of(entry: &Entry<'_>, bytes: &View) -> Found {
        Found {
            timestamp: entry.timestamp,
            promise: entry.promise,
            ops: entry.ops.iter().collect(),
            expiry: entry.expiry,
            tag: entry.tag,
            content: content_of(&entry.stored, bytes),
        }
    }

    /// As what a conditional operation builds on where numbers below `floor` are of epochs whose tombstones may be dropped:
    /// there a key that was never written and one with such a tombstone are the same, so that dropping it from one member
    /// after the other changes nothing.
    ///
    /// Only to build on: which of several entries is the newest, their own timestamps tell, and one that was never written is
    /// older than all. (A member that has merely missed a value of an earlier epoch would outvote it otherwise.)
    pub(crate) fn base(&self, floor: u64) -> Found {
        // A conditional delete keeps the counter of the put that it deletes: its ballot tells its age.
        let age = self.timestamp.counter.max(self.timestamp.ballot.round);
        match self.content {
            Content::Nothing if age < floor => {
                let timestamp = Timestamp { counter: floor, ..Timestamp::ZERO };
                Found { timestamp, promise: self.promise, ..Found::NOTHING }
            }
            _ => self.clone(),
        }
    }

    /// Whether it is a deleted key that need not be remembered any more.
    pub(crate) fn is_forgotten(&self, forgets: Forgets) -> bool {
        matches!(self.content, Content::Nothing) && forgets.covers(self.timestamp, self.promise)
    }

    /// Whether readers take the key for one that is not there: it was never written, or was deleted before the floor. On one
    /// member a live promise may keep such a tombstone that others have dropped.
    pub(crate) fn is_absent(&self, forgets: Forgets) -> bool {
        let is_old = self.timestamp == Timestamp::ZERO || forgets.covers(self.timestamp, Ballot::NONE);
        matches!(self.content, Content::Nothing) && is_old
    }

    /// Whether it has ended by a clock that shows `now`, in Unix milliseconds.
    pub(crate) fn is_expired(&self, now: u64) -> bool {
        self.expiry != 0 && self.expiry <= now && !matches!(self.content, Content::Nothing)
    }

    /// Which change of the key it came by.
    pub fn version(&self) -> Version {
        Version::new(self.timestamp, &self.ops)
    }

    /// The record that this is on another member, with the value it speaks of.
    pub fn record(&self, value: Option<Value>) -> Record {
        Record { timestamp: self.timestamp, value, expiry: self.expiry, tag: self.tag, ops: self.ops.clone() }
    }
}

/// What a key is to hold from an operation on.
#[derive(Clone, Default, Debug)]
pub struct Record {
    /// The operation's timestamp.
    pub timestamp: Timestamp,
    /// The value; `None`: a tombstone.
    pub value: Option<Value>,
    /// When it ends, in Unix milliseconds; 0: never.
    pub expiry: u64,
    /// What the value is, for whoever stores it; 0: plain bytes.
    pub tag: u32,
    /// Conditional operations applied since the last put.
    pub ops: Vec<Applied>,
}

/// Which deleted keys a map lets be forgotten: tombstones from before its floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forgets {
    /// Numbers below this are of epochs before the floor.
    pub below: u64,
    /// A promise below this is of an epoch that the page's seal shuts out: it will never be accepted. Any other is of a
    /// conditional operation that may be under way, and keeps the tombstone.
    pub promised_below: u64,
}

impl Forgets {
    /// Whether a tombstone of this timestamp and promise is among them. A conditional delete keeps the counter of the put
    /// that it deletes: its ballot tells its age.
    pub(crate) fn covers(self, timestamp: Timestamp, promise: Ballot) -> bool {
        timestamp.counter.max(timestamp.ballot.round) < self.below && promise.round < self.promised_below
    }
}

/// What a home page holds for a key.
#[derive(Clone, Debug)]
pub enum Content {
    /// Nothing: deleted or never written.
    Nothing,
    /// The value.
    Inline(View),
    /// A value of so many bytes elsewhere on the member.
    Elsewhere(u32, Reference),
}

impl Content {
    /// Bytes of the value; `None`: there is none.
    pub fn value_len(&self) -> Option<usize> {
        match self {
            Content::Nothing => None,
            Content::Inline(view) => Some(view.len()),
            Content::Elsewhere(length, _) => Some(*length as usize),
        }
    }

    /// Checksum of the value for the operation that wrote it, as stored or worked out; `None`: there is no value.
    pub fn checksum(&self, seed: ChecksumSeed) -> Option<u64> {
        match self {
            Content::Nothing => None,
            Content::Inline(view) => Some(value_checksum(seed, view)),
            Content::Elsewhere(_, reference) => Some(reference.checksum),
        }
    }
}

/// What a page, with its bundles, says of `key`.
pub(super) fn find(view: &TablePageView<'_>, bytes: &View, bundles: &Bundles, key: &[u8]) -> Found {
    if let Some(entry) = view.entry(key) {
        return Found::of(&entry, bytes);
    }
    bundles.entry(view, key).map_or(Found::NOTHING, |bundled| Found::of(&bundled.entry, bundled.bytes))
}

fn content_of(stored: &Stored<'_>, bytes: &View) -> Content {
    match stored {
        Stored::Tombstone => Content::Nothing,
        Stored::Reference(length, reference) => Content::Elsewhere(*length, *reference),
        Stored::Inline(value) => {
            // The value is a part of `bytes`: its view shares the page's buffer.
            let at = value.as_ptr() as usize - bytes.as_ptr() as usize;
            Content::Inline(bytes.slice(at..at + value.len()))
        }
    }
}
