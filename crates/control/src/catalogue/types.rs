//! What a catalogue holds and is asked: keys, values, revisions, transactions, pages, changes, leases. A value of these types that
//! exists is within the limits.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::limits::{
    KEY_BYTES_MAX, LEASE_TTL_MAX, LEASE_TTL_MIN, LimitError, PAGE_ENTRIES_MAX, TRANSACTION_BYTES_MAX,
    TRANSACTION_PARTS_MAX, VALUE_BYTES_MAX,
};

/// First byte of the keys that the catalogue keeps for itself: no prefix covers them, so that no reader and no watcher meets them.
const RESERVED: u8 = 0;

/// The name of an entry; keys are in the order of their bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Vec<u8>);

impl Key {
    /// A key of these bytes: 1 to [`KEY_BYTES_MAX`], the first of them not 0.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Key, LimitError> {
        let bytes = bytes.into();
        match bytes.first() {
            None => Err(LimitError::KeyLength { bytes: 0 }),
            _ if bytes.len() > KEY_BYTES_MAX => Err(LimitError::KeyLength { bytes: bytes.len() }),
            Some(&RESERVED) => Err(LimitError::KeyReserved),
            Some(_) => Ok(Key(bytes)),
        }
    }

    /// A key of the catalogue's own.
    pub(crate) fn reserved(name: &str) -> Key {
        Key([&[RESERVED], name.as_bytes()].concat())
    }

    /// What an engine has stored under a key that was one when it came in.
    pub(crate) fn stored(bytes: &[u8]) -> Key {
        Key(bytes.to_vec())
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What an entry says: up to [`VALUE_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Value(Vec<u8>);

impl Value {
    /// A value of these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Value, LimitError> {
        let bytes = bytes.into();
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(LimitError::ValueLength { bytes: bytes.len() });
        }
        Ok(Value(bytes))
    }

    /// What an engine has stored as a value.
    pub(crate) fn stored(bytes: &[u8]) -> Value {
        Value(bytes.to_vec())
    }

    /// The value's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// All keys that begin alike; the empty prefix is all keys but the catalogue's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prefix(Vec<u8>);

impl Prefix {
    /// The keys that begin with these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Prefix, LimitError> {
        let bytes = bytes.into();
        if bytes.is_empty() { Ok(Prefix::all()) } else { Key::new(bytes).map(|key| Prefix(key.0)) }
    }

    /// All keys.
    pub fn all() -> Prefix {
        Prefix(Vec::new())
    }

    /// Whether `key` is one of them.
    pub fn covers(&self, key: &[u8]) -> bool {
        key.starts_with(&self.0) && key.first() != Some(&RESERVED)
    }

    /// The least key, and the least one above all of them (none: they reach to the end).
    pub(crate) fn bounds(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        if self.0.is_empty() { (vec![RESERVED + 1], None) } else { (self.0.clone(), successor(&self.0)) }
    }
}

/// The least bytes that are above everything that begins with `prefix`.
pub(crate) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=kept].to_vec();
    end[kept] += 1;
    Some(end)
}

/// The number of a committed transaction. Revisions rise strictly; they are not without gaps, for others may use an etcd, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u64);

impl Revision {
    /// Before everything: the modification revision of a key that is not there.
    pub const NONE: Revision = Revision(0);
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lease's number, given by the engine; never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A time that somebody keeps on prolonging; when it ends, the keys bound to it go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Its number.
    pub id: LeaseId,
    /// How long it lasts from when it was granted or kept alive: what was asked for, or longer.
    pub ttl: Duration,
}

/// A lease's time as a caller asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ttl(Duration);

impl Ttl {
    /// Between [`LEASE_TTL_MIN`] and [`LEASE_TTL_MAX`]; parts of a second are rounded up.
    pub fn new(ttl: Duration) -> Result<Ttl, LimitError> {
        if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
            return Err(LimitError::Ttl { ttl });
        }
        Ok(Ttl(Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0))))
    }

    /// In whole seconds.
    pub fn as_duration(self) -> Duration {
        self.0
    }
}

/// A key with what it says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// What it says.
    pub value: Value,
    /// The transaction that wrote it last.
    pub modified: Revision,
    /// The lease it is bound to.
    pub lease: Option<LeaseId>,
}

/// What must be true of a key for a transaction to be applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    pub(crate) key: Key,
    pub(crate) test: Test,
}

/// What of a key is compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Test {
    Modified(Revision),
    Holds(Value),
}

impl Condition {
    /// The key is not there.
    pub fn absent(key: Key) -> Condition {
        Condition::modified(key, Revision::NONE)
    }

    /// The key was written last by that transaction ([`Revision::NONE`]: it is not there).
    pub fn modified(key: Key, revision: Revision) -> Condition {
        Condition { key, test: Test::Modified(revision) }
    }

    /// The entry is as it was read.
    pub fn unchanged(entry: &Entry) -> Condition {
        Condition::modified(entry.key.clone(), entry.modified)
    }

    /// The key is there and says that.
    pub fn holds(key: Key, value: Value) -> Condition {
        Condition { key, test: Test::Holds(value) }
    }

    fn bytes(&self) -> usize {
        let value = if let Test::Holds(value) = &self.test { value.0.len() } else { 0 };
        self.key.0.len() + value
    }
}

/// What a transaction does to a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The key says `value` from now on, and is bound to `lease` or to none.
    Put {
        /// Which key.
        key: Key,
        /// What it says.
        value: Value,
        /// What it is bound to.
        lease: Option<LeaseId>,
    },
    /// The key goes. Where it is not there nothing happens.
    Delete {
        /// Which key.
        key: Key,
    },
}

impl Change {
    /// A key that stays.
    pub fn put(key: Key, value: Value) -> Change {
        Change::Put { key, value, lease: None }
    }

    /// A key that goes with its lease.
    pub fn put_leased(key: Key, value: Value, lease: LeaseId) -> Change {
        Change::Put { key, value, lease: Some(lease) }
    }

    /// A key that goes.
    pub fn delete(key: Key) -> Change {
        Change::Delete { key }
    }

    /// Which key is changed.
    pub fn key(&self) -> &Key {
        match self {
            Change::Put { key, .. } | Change::Delete { key } => key,
        }
    }

    /// Which lease the key is bound to.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        if let Change::Put { lease, .. } = self { *lease } else { None }
    }

    fn bytes(&self) -> usize {
        let value = if let Change::Put { value, .. } = self { value.0.len() } else { 0 };
        self.key().0.len() + value
    }
}

/// Changes that are applied together or not at all, where all conditions hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transaction {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) changes: Vec<Change>,
}

impl Transaction {
    /// The leases that keys are bound to.
    pub(crate) fn leases(&self) -> BTreeSet<LeaseId> {
        self.changes.iter().filter_map(Change::lease).collect()
    }

    /// A transaction within the limits, which changes no key twice.
    pub fn new(conditions: Vec<Condition>, changes: Vec<Change>) -> Result<Transaction, LimitError> {
        if conditions.len().max(changes.len()) > TRANSACTION_PARTS_MAX {
            return Err(LimitError::Parts { conditions: conditions.len(), changes: changes.len() });
        }
        let conditioned: usize = conditions.iter().map(Condition::bytes).sum();
        let bytes = conditioned + changes.iter().map(Change::bytes).sum::<usize>();
        if bytes > TRANSACTION_BYTES_MAX {
            return Err(LimitError::TransactionBytes { bytes });
        }
        let mut keys = BTreeSet::new();
        if let Some(twice) = changes.iter().find(|change| !keys.insert(change.key())) {
            return Err(LimitError::KeyTwice { key: twice.key().to_string() });
        }
        Ok(Transaction { conditions, changes })
    }
}

/// What became of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a transaction whose conditions do not hold changes nothing"]
pub enum Outcome {
    /// All changes are applied, as the transaction of this revision. A transaction that changes nothing (no changes, or only
    /// deletes of what is not there) takes no revision: this is the present one then.
    Committed(Revision),
    /// A condition does not hold, and nothing was changed.
    Missed(Missed),
}

/// What a transaction saw whose conditions do not all hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missed {
    /// As of when.
    pub revision: Revision,
    /// The entry of each condition's key, in the order of the conditions.
    pub seen: Vec<Option<Entry>>,
}

/// One key as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// As of when.
    pub revision: Revision,
    /// What was there.
    pub entry: Option<Entry>,
}

/// Which entries are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    pub(crate) prefix: Prefix,
    pub(crate) after: Option<Key>,
    pub(crate) at: Option<Revision>,
    pub(crate) entries: usize,
}

impl Range {
    /// The first page of what `prefix` covers, as it is now.
    pub fn of(prefix: Prefix) -> Range {
        Range { prefix, after: None, at: None, entries: PAGE_ENTRIES_MAX }
    }

    /// As it was at `revision`, as far as history goes back.
    pub fn at(self, revision: Revision) -> Range {
        Range { at: Some(revision), ..self }
    }

    /// Pages of at most so many entries.
    pub fn entries(self, entries: usize) -> Result<Range, LimitError> {
        if !(1..=PAGE_ENTRIES_MAX).contains(&entries) {
            return Err(LimitError::Page { entries });
        }
        Ok(Range { entries, ..self })
    }

    /// The page that begins behind `page`, of the same moment.
    pub(crate) fn behind(&self, last: &Key, revision: Revision) -> Range {
        Range { after: Some(last.clone()), at: Some(revision), ..self.clone() }
    }
}

/// Entries in the order of their keys, all of one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Of which moment: a watch after this revision goes on where the page stands.
    pub revision: Revision,
    /// What was there.
    pub entries: Vec<Entry>,
    /// How to ask for the next page of the same moment, if there is one.
    pub next: Option<Range>,
}

/// What became of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changed {
    /// It was written.
    Put(Entry),
    /// It went: deleted, or with its lease.
    Deleted(Key),
}

impl Changed {
    /// Which key.
    pub fn key(&self) -> &Key {
        match self {
            Changed::Put(entry) => &entry.key,
            Changed::Deleted(key) => key,
        }
    }
}

/// All that one transaction did to the keys that are watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Which transaction.
    pub revision: Revision,
    /// Its changes, in the order of keys.
    pub changes: Vec<Changed>,
}
