//! Records of a table page: the entries of keys at home here, and guests: values whose home is another page.
//!
//! ```text
//!  entry                                        guest
//!   0  flags             u16                     0  copy              u64
//!   2  key length        u16    1 to 512         8  home page         u32
//!   4  value length      u32                    12  length            u32   2^31 more: condemned
//!   8  counter           u64                    16  bytes
//!  16  operation host    u64
//!  24  operation number  u64                    reference
//!  32  ballot           24 B    if flagged       0  kind              u8    1 guest, 2 extent, 3 index of extents
//!      promise          24 B    if flagged       1  zero              u8
//!      applied ops    2+24n B   if flagged       2  parts             u16   extents of the value; 1 unless an index
//!      expiry            u64    if flagged       4  length            u32   bytes stored at the place
//!      tag               u32    if flagged       8  place             u64   table page, or first heap page
//!      key                                      16  checksum          u64   of the value, under its operation
//!      value, or reference 32 B, or nothing     24  copy              u64   the guest's copy, the extent's owner tag
//! ```
//!
//! The common entry (no ballot, no promise, no expiry, no tag) takes 32 bytes beside its key and value, so that a value of 3,968
//! bytes with a key of 32 fits a page of 4 KiB. Nothing is padded: pages are read whole and decoded byte by byte.

use super::{PageError, u16_at, u32_at, u64_at};
use crate::types::{Applied, Ballot, KEY_BYTES_MAX, OpId, Timestamp, VALUE_BYTES_MAX, VALUE_PART_BYTES};

/// Bytes of an entry beside key, value and what is flagged.
pub const ENTRY_FIXED_BYTES: usize = 32;
/// Bytes of a guest beside its value.
pub const GUEST_FIXED_BYTES: usize = 16;
/// Bytes of a reference.
pub const REFERENCE_BYTES: usize = 32;
/// Most applied operations an entry remembers. Guessed: a host takes its own back when it applies the next, so that this is
/// the number of hosts at one key; with more of them at once some operations end in "outcome unknown".
pub const OPS_MAX: usize = 16;

const FLAG_KIND: u16 = 0b11;
const KIND_INLINE: u16 = 0;
const KIND_REFERENCE: u16 = 1;
const KIND_TOMBSTONE: u16 = 2;
const FLAG_BALLOT: u16 = 1 << 2;
const FLAG_PROMISE: u16 = 1 << 3;
const FLAG_OPS: u16 = 1 << 4;
const FLAG_EXPIRY: u16 = 1 << 5;
const FLAG_TAG: u16 = 1 << 6;
const FLAGS: u16 = FLAG_KIND | FLAG_BALLOT | FLAG_PROMISE | FLAG_OPS | FLAG_EXPIRY | FLAG_TAG;
const CONDEMNED: u32 = 1 << 31;
const BALLOT_BYTES: usize = 24;
const APPLIED_BYTES: usize = 24;

/// Where a value lies that does not stand in its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PlaceKind {
    /// In another table page.
    Guest = 1,
    /// In one extent of the heap.
    Extent = 2,
    /// In several extents, listed in an index extent.
    Index = 3,
}

/// Names an immutable copy of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// What kind of place.
    pub kind: PlaceKind,
    /// Extents the value is cut into; 1 unless an index.
    pub parts: u16,
    /// Bytes stored at the place: the value's, or the index's.
    pub length: u32,
    /// Table page, or first heap page.
    pub place: u64,
    /// Checksum of the whole value under its operation.
    pub checksum: u64,
    /// The guest's copy id or the extent's owner tag.
    pub copy: u64,
}

/// What an entry holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored<'a> {
    /// The value itself.
    Inline(&'a [u8]),
    /// A value of this many bytes, elsewhere.
    Reference(u32, Reference),
    /// The key was deleted, or was never written.
    Tombstone,
}

/// Operations applied since the last put, as stored: `n` times operation id (16) and round of the ballot (8), ascending by
/// round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AppliedOps<'a>(&'a [u8]);

impl<'a> AppliedOps<'a> {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = Applied> + use<'a> {
        self.0.chunks_exact(APPLIED_BYTES).map(|op| Applied { op: op_at(op, 0), round: u64_at(op, 16) })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len() / APPLIED_BYTES
    }

    /// Whether there are none: always so right after a put.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The stored form of `ops`, to borrow from. Of more than [`OPS_MAX`] the oldest give way to a mark of the cut.
    pub fn encode(ops: &[Applied]) -> Vec<u8> {
        let cut = if ops.len() > OPS_MAX { ops.len() - OPS_MAX + 1 } else { 0 };
        let mark = cut.checked_sub(1).map(|last| Applied { op: OpId::default(), round: ops[last].round });
        let mut bytes = Vec::with_capacity(ops.len().min(OPS_MAX) * APPLIED_BYTES);
        for applied in mark.iter().chain(&ops[cut..]) {
            bytes.extend_from_slice(&applied.op.host.to_le_bytes());
            bytes.extend_from_slice(&applied.op.sequence.to_le_bytes());
            bytes.extend_from_slice(&applied.round.to_le_bytes());
        }
        bytes
    }

    /// Borrows what [`AppliedOps::encode`] made.
    pub fn new(bytes: &'a [u8]) -> AppliedOps<'a> {
        debug_assert!(bytes.len().is_multiple_of(APPLIED_BYTES));
        AppliedOps(bytes)
    }
}

/// One key of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// When it was written.
    pub timestamp: Timestamp,
    /// Highest ballot promised; a put ignores and keeps it.
    pub promise: Ballot,
    /// Conditional operations applied since the last put.
    pub ops: AppliedOps<'a>,
    /// When it ends, in Unix milliseconds; 0: never.
    pub expiry: u64,
    /// What the value is, for whoever stores it; 0: plain bytes.
    pub tag: u32,
    /// What it holds.
    pub stored: Stored<'a>,
}

impl<'a> Entry<'a> {
    /// The value, if it stands in the entry.
    pub fn inline(&self) -> Option<&'a [u8]> {
        match self.stored {
            Stored::Inline(value) => Some(value),
            Stored::Reference(..) | Stored::Tombstone => None,
        }
    }

    /// Bytes the entry takes in a page.
    pub fn encoded_len(&self) -> usize {
        let stored = match self.stored {
            Stored::Inline(value) => value.len(),
            Stored::Reference(..) => REFERENCE_BYTES,
            Stored::Tombstone => 0,
        };
        let flagged = |flag, bytes| if self.flags() & flag != 0 { bytes } else { 0 };
        ENTRY_FIXED_BYTES
            + flagged(FLAG_BALLOT, BALLOT_BYTES)
            + flagged(FLAG_PROMISE, BALLOT_BYTES)
            + flagged(FLAG_OPS, 2 + self.ops.0.len())
            + flagged(FLAG_EXPIRY, 8)
            + flagged(FLAG_TAG, 4)
            + self.key.len()
            + stored
    }

    /// Length of the value, wherever it lies.
    pub fn value_len(&self) -> usize {
        match self.stored {
            Stored::Inline(value) => value.len(),
            Stored::Reference(length, _) => length as usize,
            Stored::Tombstone => 0,
        }
    }

    fn flags(&self) -> u16 {
        let kind = match self.stored {
            Stored::Inline(_) => KIND_INLINE,
            Stored::Reference(..) => KIND_REFERENCE,
            Stored::Tombstone => KIND_TOMBSTONE,
        };
        let flag = |set, flag| if set { flag } else { 0 };
        kind | flag(self.timestamp.ballot != Ballot::NONE, FLAG_BALLOT)
            | flag(self.promise != Ballot::NONE, FLAG_PROMISE)
            | flag(!self.ops.is_empty(), FLAG_OPS)
            | flag(self.expiry != 0, FLAG_EXPIRY)
            | flag(self.tag != 0, FLAG_TAG)
    }

    /// Appends the entry; `out` has room for [`Entry::encoded_len`].
    pub(super) fn encode(&self, out: &mut Writer<'_>) {
        out.put(&self.flags().to_le_bytes());
        out.put(&(self.key.len() as u16).to_le_bytes());
        out.put(&(self.value_len() as u32).to_le_bytes());
        out.put(&self.timestamp.counter.to_le_bytes());
        out.put_op(self.timestamp.op);
        if self.timestamp.ballot != Ballot::NONE {
            out.put_ballot(self.timestamp.ballot);
        }
        if self.promise != Ballot::NONE {
            out.put_ballot(self.promise);
        }
        if !self.ops.is_empty() {
            out.put(&(self.ops.len() as u16).to_le_bytes());
            out.put(self.ops.0);
        }
        if self.expiry != 0 {
            out.put(&self.expiry.to_le_bytes());
        }
        if self.tag != 0 {
            out.put(&self.tag.to_le_bytes());
        }
        out.put(self.key);
        match self.stored {
            Stored::Inline(value) => out.put(value),
            Stored::Reference(_, reference) => reference.encode(out),
            Stored::Tombstone => {}
        }
    }

    /// Reads the entry at the start of `bytes`; returns it and its length.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<(Entry<'a>, usize), PageError> {
        let mut reader = Reader(bytes);
        let flags = u16_at(reader.take(2)?, 0);
        let key_len = usize::from(u16_at(reader.take(2)?, 0));
        let value_len = u32_at(reader.take(4)?, 0);
        if flags & !FLAGS != 0 || flags & FLAG_KIND == FLAG_KIND {
            return Err(PageError::Malformed("unknown flags of an entry"));
        }
        if key_len == 0 || key_len > KEY_BYTES_MAX || value_len as usize > VALUE_BYTES_MAX {
            return Err(PageError::Malformed("length of a key or value"));
        }
        let counter = u64_at(reader.take(8)?, 0);
        let op = op_at(reader.take(16)?, 0);
        let mut ballot = |flag| -> Result<Ballot, PageError> {
            if flags & flag == 0 {
                return Ok(Ballot::NONE);
            }
            match ballot_at(reader.take(BALLOT_BYTES)?, 0) {
                Ballot::NONE => Err(PageError::Malformed("a flagged ballot is zero")),
                ballot => Ok(ballot),
            }
        };
        let timestamp = Timestamp { counter, op, ballot: ballot(FLAG_BALLOT)? };
        let promise = ballot(FLAG_PROMISE)?;
        let mut ops = AppliedOps::default();
        if flags & FLAG_OPS != 0 {
            let count = usize::from(u16_at(reader.take(2)?, 0));
            if count == 0 || count > OPS_MAX {
                return Err(PageError::Malformed("count of applied operations"));
            }
            ops = AppliedOps(reader.take(count * APPLIED_BYTES)?);
        }
        let expiry = if flags & FLAG_EXPIRY != 0 { u64_at(reader.take(8)?, 0) } else { 0 };
        if flags & FLAG_EXPIRY != 0 && expiry == 0 {
            return Err(PageError::Malformed("a flagged expiry is zero"));
        }
        let tag = if flags & FLAG_TAG != 0 { u32_at(reader.take(4)?, 0) } else { 0 };
        if flags & FLAG_TAG != 0 && tag == 0 {
            return Err(PageError::Malformed("a flagged tag is zero"));
        }
        let key = reader.take(key_len)?;
        let stored = match flags & FLAG_KIND {
            KIND_INLINE => Stored::Inline(reader.take(value_len as usize)?),
            KIND_REFERENCE => {
                Stored::Reference(value_len, Reference::decode(reader.take(REFERENCE_BYTES)?, value_len)?)
            }
            _ if value_len != 0 => return Err(PageError::Malformed("a tombstone with a value")),
            _ => Stored::Tombstone,
        };
        let length = bytes.len() - reader.0.len();
        Ok((Entry { key, timestamp, promise, ops, expiry, tag, stored }, length))
    }
}

impl Reference {
    pub(super) fn encode(&self, out: &mut Writer<'_>) {
        out.put(&[self.kind as u8, 0]);
        out.put(&self.parts.to_le_bytes());
        out.put(&self.length.to_le_bytes());
        out.put(&self.place.to_le_bytes());
        out.put(&self.checksum.to_le_bytes());
        out.put(&self.copy.to_le_bytes());
    }

    pub(super) fn decode(bytes: &[u8], value_len: u32) -> Result<Reference, PageError> {
        let kind = match bytes[0] {
            1 => PlaceKind::Guest,
            2 => PlaceKind::Extent,
            3 => PlaceKind::Index,
            _ => return Err(PageError::Malformed("kind of a reference")),
        };
        let (parts, length) = (u16_at(bytes, 2), u32_at(bytes, 4));
        let shaped = if kind == PlaceKind::Index { parts > 1 } else { parts == 1 && length == value_len };
        // What lies in one place, an index too. A longer run would not be claimed as one extent.
        if bytes[1] != 0 || !shaped || length as usize > VALUE_PART_BYTES {
            return Err(PageError::Malformed("shape of a reference"));
        }
        let (place, checksum, copy) = (u64_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 24));
        if copy == 0 {
            return Err(PageError::Malformed("a reference without an owner"));
        }
        Ok(Reference { kind, parts, length, place, checksum, copy })
    }
}

/// A value whose home is another page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guest<'a> {
    /// Names this copy, once and for all; never 0.
    pub copy: u64,
    /// The page whose entry refers to it.
    pub home: u32,
    /// A collector looks whether anybody refers to it: nobody may begin to.
    pub condemned: bool,
    /// The value.
    pub bytes: &'a [u8],
}

impl<'a> Guest<'a> {
    /// Bytes the guest takes in a page.
    pub fn encoded_len(&self) -> usize {
        GUEST_FIXED_BYTES + self.bytes.len()
    }

    pub(super) fn encode(&self, out: &mut Writer<'_>) {
        out.put(&self.copy.to_le_bytes());
        out.put(&self.home.to_le_bytes());
        out.put(&(self.bytes.len() as u32 | if self.condemned { CONDEMNED } else { 0 }).to_le_bytes());
        out.put(self.bytes);
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<(Guest<'a>, usize), PageError> {
        let mut reader = Reader(bytes);
        let copy = u64_at(reader.take(8)?, 0);
        let home = u32_at(reader.take(4)?, 0);
        let length = u32_at(reader.take(4)?, 0);
        let (length, condemned) = ((length & !CONDEMNED) as usize, length & CONDEMNED != 0);
        if copy == 0 || length > bytes.len() {
            return Err(PageError::Malformed("a guest's copy or length"));
        }
        Ok((Guest { copy, home, condemned, bytes: reader.take(length)? }, GUEST_FIXED_BYTES + length))
    }
}

/// Takes bytes off the front, or finds that there are too few.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], PageError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(PageError::Malformed("a record runs over the end"))?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Fills a page from a place on; whoever writes has made sure that it fits.
pub(super) struct Writer<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) at: usize,
}

impl Writer<'_> {
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn put_op(&mut self, op: OpId) {
        self.put(&op.host.to_le_bytes());
        self.put(&op.sequence.to_le_bytes());
    }

    fn put_ballot(&mut self, ballot: Ballot) {
        self.put(&ballot.round.to_le_bytes());
        self.put_op(ballot.op);
    }
}

pub(super) fn op_at(bytes: &[u8], at: usize) -> OpId {
    OpId { host: u64_at(bytes, at), sequence: u64_at(bytes, at + 8) }
}

fn ballot_at(bytes: &[u8], at: usize) -> Ballot {
    Ballot { round: u64_at(bytes, at), op: op_at(bytes, at + 8) }
}
