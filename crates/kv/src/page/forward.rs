//! Forward records: where entries are that had to leave their home page.

use std::borrow::Cow;

use engine::Buf;
use xxhash_rust::xxh3::xxh3_64;

use super::record::{Reader, Writer, op_at};
use super::{AppliedOps, Entry, PageError, PlaceKind, REFERENCE_BYTES, Reference, Stored, u16_at, u32_at, u64_at};
use crate::types::{Ballot, Timestamp};

/// Bytes of a forward record beside its filter and deletions.
pub const FORWARD_FIXED_BYTES: usize = REFERENCE_BYTES + 4;
/// Bytes of a deletion. A page keeps so much free for each entry in a bundle of its, so that every key can be deleted.
pub const DELETION_BYTES: usize = 26;

/// Where entries lie that had to leave their home page: a *bundle*, an immutable copy of them, one behind the other.
///
/// ```text
///   0  reference         32 B   a guest or an extent; its checksum is under the zero operation
///  32  entries           u16
///  34  deletions         u16
///  36  filter            one byte per entry: of the hash of its key; 0: it is in the page again, or gone
///      deletions         26 B each, ascending by entry: one that is a tombstone by now
///        0  entry        u16
///        2  counter      u64
///       10  operation    16 B   host, number
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forward<'a> {
    /// Where the bundle lies.
    pub reference: Reference,
    filter: Cow<'a, [u8]>,
    deletions: Cow<'a, [u8]>,
}

impl<'a> Forward<'a> {
    /// The record of a bundle of `entries`.
    pub fn new(reference: Reference, entries: &[Entry<'_>]) -> Forward<'a> {
        let filter: Vec<u8> = entries.iter().map(|entry| Forward::byte_of(entry.key)).collect();
        Forward { reference, filter: filter.into(), deletions: Cow::default() }
    }

    /// The byte of a key; never 0.
    fn byte_of(key: &[u8]) -> u8 {
        (xxh3_64(key) as u8).max(1)
    }

    /// Whether the bundle may hold `key`.
    pub fn may_hold(&self, key: &[u8]) -> bool {
        self.filter.contains(&Forward::byte_of(key))
    }

    /// Entries of the bundle, whether they count or not.
    pub fn len(&self) -> usize {
        self.filter.len()
    }

    /// Whether none of its entries counts.
    pub fn is_empty(&self) -> bool {
        self.filter.iter().all(|&byte| byte == 0)
    }

    /// Entries that count.
    pub fn counting(&self) -> usize {
        self.filter.iter().filter(|&&byte| byte != 0).count()
    }

    /// What the page says of entry `index` of the bundle, which the bundle has as `entry`; `None`: it does not count.
    pub fn entry<'b>(&self, index: usize, entry: Entry<'b>) -> Option<Entry<'b>> {
        if self.filter.get(index).is_none_or(|&byte| byte == 0) {
            return None;
        }
        let deletion = self.deletion(index).ok().and_then(|at| self.deletions.get(at..at + DELETION_BYTES));
        Some(match deletion {
            Some(bytes) => {
                let timestamp = Timestamp { counter: u64_at(bytes, 2), op: op_at(bytes, 10), ballot: Ballot::NONE };
                Entry { timestamp, ops: AppliedOps::default(), expiry: 0, tag: 0, stored: Stored::Tombstone, ..entry }
            }
            None => entry,
        })
    }

    /// By what its deletions are known again.
    pub fn deletions_mark(&self) -> u64 {
        xxh3_64(&self.deletions)
    }

    /// Where the deletion of an entry stands, or belongs.
    fn deletion(&self, index: usize) -> Result<usize, usize> {
        let at = |position| position * DELETION_BYTES;
        let mut deletions = self.deletions.chunks_exact(DELETION_BYTES);
        match deletions.position(|bytes| usize::from(u16_at(bytes, 0)) >= index) {
            Some(position) if usize::from(u16_at(&self.deletions, at(position))) == index => Ok(at(position)),
            Some(position) => Err(at(position)),
            None => Err(self.deletions.len()),
        }
    }

    /// Makes entry `index` a tombstone that a put without a ballot wrote, if it counts.
    pub(super) fn delete(&mut self, index: usize, timestamp: &Timestamp) {
        debug_assert!(timestamp.ballot == Ballot::NONE);
        if self.filter.get(index).is_none_or(|&byte| byte == 0) {
            return;
        }
        let mut bytes = [0; DELETION_BYTES];
        bytes[..2].copy_from_slice(&(index as u16).to_le_bytes());
        bytes[2..10].copy_from_slice(&timestamp.counter.to_le_bytes());
        bytes[10..18].copy_from_slice(&timestamp.op.host.to_le_bytes());
        bytes[18..].copy_from_slice(&timestamp.op.sequence.to_le_bytes());
        let place = match self.deletion(index) {
            Ok(at) => at..at + DELETION_BYTES,
            Err(at) => at..at,
        };
        self.deletions.to_mut().splice(place, bytes);
    }

    /// Says that entry `index` does not count any more.
    pub(super) fn take_back(&mut self, index: usize) {
        if let Some(byte) = self.filter.to_mut().get_mut(index) {
            *byte = 0;
        }
        if let Ok(at) = self.deletion(index) {
            self.deletions.to_mut().drain(at..at + DELETION_BYTES);
        }
    }

    /// Bytes it takes in a page.
    pub fn encoded_len(&self) -> usize {
        FORWARD_FIXED_BYTES + self.filter.len() + self.deletions.len()
    }

    /// Bytes that are kept free for deletions of its entries.
    pub fn reserved(&self) -> usize {
        self.counting() * DELETION_BYTES - self.deletions.len()
    }

    pub(super) fn encode(&self, out: &mut Writer<'_>) {
        self.reference.encode(out);
        out.put(&(self.filter.len() as u16).to_le_bytes());
        out.put(&((self.deletions.len() / DELETION_BYTES) as u16).to_le_bytes());
        out.put(&self.filter);
        out.put(&self.deletions);
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<(Forward<'a>, usize), PageError> {
        let mut reader = Reader(bytes);
        let head = reader.take(REFERENCE_BYTES)?;
        let reference = Reference::decode(head, u32_at(head, 4))?;
        let counts = reader.take(4)?;
        let filter = reader.take(usize::from(u16_at(counts, 0)))?;
        let deletions = reader.take(usize::from(u16_at(counts, 2)) * DELETION_BYTES)?;
        let mut next = 0;
        for deletion in deletions.chunks_exact(DELETION_BYTES) {
            let index = usize::from(u16_at(deletion, 0));
            if index < next || filter.get(index).is_none_or(|&byte| byte == 0) {
                return Err(PageError::Malformed("a deletion of a forward record"));
            }
            next = index + 1;
        }
        let forward = Forward { reference, filter: Cow::Borrowed(filter), deletions: Cow::Borrowed(deletions) };
        if reference.kind == PlaceKind::Index || forward.is_empty() {
            return Err(PageError::Malformed("a forward record"));
        }
        let length = forward.encoded_len();
        Ok((forward, length))
    }
}

/// The bytes of a bundle of `entries`.
pub fn encode_bundle(entries: &[Entry<'_>]) -> Buf {
    let mut bytes = Buf::with_len(entries.iter().map(Entry::encoded_len).sum());
    let mut writer = Writer { bytes: &mut bytes, at: 0 };
    entries.iter().for_each(|entry| entry.encode(&mut writer));
    bytes
}

/// The entries of a bundle.
pub fn decode_bundle(bytes: &[u8]) -> Result<Vec<Entry<'_>>, PageError> {
    let (mut entries, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let (entry, length) = Entry::decode(&bytes[at..])?;
        entries.push(entry);
        at += length;
    }
    Ok(entries)
}
