//! The tables of a catalogue's file, and what a transaction does to them. No clock, no tasks: one redb transaction in, its work
//! out.
//!
//! ```text
//! entries      key                 -> (revision of the last change, lease or 0, value)
//! history      (revision, key)     -> (entry after the change or none, entry before the change or none)
//! leases       lease               -> time in seconds
//! lease_keys   (lease, key)        -> ()
//! state        name                -> number: format, revision, compacted, lease_next, history_changes, history_bytes
//! identity     ()                  -> the catalogue's own id
//! ```
//!
//! Invariants, each kept by writing all tables in one redb transaction:
//! - `history` holds every change of the revisions in `compacted+1 ..= revision`, whole, and nothing of the others: a watcher that
//!   stands at `compacted` or later misses nothing, and one that stands earlier is told.
//! - Undoing the changes after R, newest first, gives the entries at R: this is why the entry before a change is kept.
//! - `lease_keys` has exactly the entries that name a lease: a lease that ends finds all of its keys, and no key that was written
//!   anew.

use std::collections::BTreeMap;

use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, Table, TableDefinition, TableHandle, WriteTransaction,
};

use crate::catalogue::error::Error;
use crate::catalogue::limits::LEASE_KEYS_MAX;
use crate::catalogue::types::{
    Change, Changed, Commit, Condition, Entry, Key, LeaseId, Missed, Page, Prefix, Range, Reading, Revision, Test,
    Value,
};

/// (revision of the last change, lease or 0, value).
type Stored<'a> = (u64, u64, &'a [u8]);
type Row = (Option<Stored<'static>>, Option<Stored<'static>>);

const ENTRIES: TableDefinition<&[u8], Stored<'static>> = TableDefinition::new("entries");
const HISTORY: TableDefinition<(u64, &[u8]), Row> = TableDefinition::new("history");
const LEASES: TableDefinition<u64, u64> = TableDefinition::new("leases");
const LEASE_KEYS: TableDefinition<(u64, &[u8]), ()> = TableDefinition::new("lease_keys");
const STATE: TableDefinition<&str, u64> = TableDefinition::new("state");
const IDENTITY: TableDefinition<(), u128> = TableDefinition::new("identity");

/// The layout above. A file of another number is refused.
const FORMAT: u64 = 1;
/// The revision of an empty catalogue, as in etcd.
const REVISION_FIRST: u64 = 1;
/// What a watcher is given at once. Chosen: enough that a transaction of redb costs little per commit.
const BATCH_COMMITS_MAX: usize = 64;
/// Rows of history looked at for one batch, whether the prefix covers them or not. Chosen: some milliseconds.
const BATCH_ROWS_MAX: usize = 1024;
/// Bytes of a batch after which no further commit is added. Derived: one transaction of the largest size.
const BATCH_BYTES_MAX: usize = crate::catalogue::limits::TRANSACTION_BYTES_MAX;

/// What the engine said.
pub type Fault = redb::Error;

/// How much history is kept.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub changes: u64,
    pub bytes: u64,
}

/// What a file says of itself when it is opened.
pub struct Opened {
    pub identity: u128,
    pub revision: u64,
    /// Leases with their seconds.
    pub leases: Vec<(u64, u64)>,
}

/// Commits after a revision, and up to where there are no others.
pub struct Batch {
    pub commits: Vec<Commit>,
    pub through: u64,
}

/// Makes the tables of a new file, or reads what those of an old one say; the error is the format of a file that is not ours.
pub fn open(database: &Database, identity_new: u128) -> Result<Result<Opened, String>, Fault> {
    let transaction = database.begin_write()?;
    let tables = transaction.list_tables()?.map(|table| table.name().to_owned()).collect::<Vec<_>>();
    let is_new = tables.is_empty();
    if !is_new && !tables.iter().any(|name| name == STATE.name()) {
        transaction.abort()?;
        return Ok(Err(format!("tables {}", tables.join(", "))));
    }
    let format = {
        let mut write = Write::open(&transaction)?;
        if is_new {
            transaction.open_table(IDENTITY)?.insert((), identity_new)?;
            write.state.insert("format", FORMAT)?;
            write.state.insert("revision", REVISION_FIRST)?;
            write.state.insert("compacted", 0)?;
        }
        number(&write.state, "format")?
    };
    if format != FORMAT {
        transaction.abort()?;
        return Ok(Err(format!("format {format}, this version has {FORMAT}")));
    }
    transaction.commit()?;
    look(database).map(Ok)
}

/// What a file with tables says of itself.
pub fn look(database: &Database) -> Result<Opened, Fault> {
    let read = read(database)?;
    let identity = read.open_table(IDENTITY)?.get(())?.map_or(0, |id| id.value());
    let revision = number(&read.open_table(STATE)?, "revision")?;
    let leases = read.open_table(LEASES)?;
    let leases = leases.iter()?.map(|row| row.map(|(id, ttl)| (id.value(), ttl.value()))).collect::<Result<_, _>>()?;
    Ok(Opened { identity, revision, leases })
}

fn number(state: &impl ReadableTable<&'static str, u64>, name: &str) -> Result<u64, Fault> {
    Ok(state.get(name)?.map_or(0, |number| number.value()))
}

fn entry_of(key: &[u8], (modified, lease, value): Stored) -> Entry {
    let lease = (lease != 0).then_some(LeaseId(lease));
    Entry { key: Key::stored(key), value: Value::stored(value), modified: Revision(modified), lease }
}

fn entry(entries: &impl ReadableTable<&'static [u8], Stored<'static>>, key: &Key) -> Result<Option<Entry>, Fault> {
    Ok(entries.get(key.as_bytes())?.map(|stored| entry_of(key.as_bytes(), stored.value())))
}

fn holds(condition: &Condition, seen: Option<&Entry>) -> bool {
    match &condition.test {
        Test::Modified(revision) => seen.map_or(Revision::NONE, |entry| entry.modified) == *revision,
        Test::Holds(value) => seen.is_some_and(|entry| entry.value == *value),
    }
}

/// All tables, open in a transaction that writes.
pub struct Write<'t> {
    entries: Table<'t, &'static [u8], Stored<'static>>,
    history: Table<'t, (u64, &'static [u8]), Row>,
    leases: Table<'t, u64, u64>,
    lease_keys: Table<'t, (u64, &'static [u8]), ()>,
    state: Table<'t, &'static str, u64>,
}

impl<'t> Write<'t> {
    pub fn open(transaction: &'t WriteTransaction) -> Result<Write<'t>, Fault> {
        Ok(Write {
            entries: transaction.open_table(ENTRIES)?,
            history: transaction.open_table(HISTORY)?,
            leases: transaction.open_table(LEASES)?,
            lease_keys: transaction.open_table(LEASE_KEYS)?,
            state: transaction.open_table(STATE)?,
        })
    }

    pub fn revision(&self) -> Result<u64, Fault> {
        number(&self.state, "revision")
    }

    /// What was seen, if not all conditions hold.
    pub fn missed(&self, conditions: &[Condition]) -> Result<Option<Missed>, Fault> {
        let mut seen = Vec::with_capacity(conditions.len());
        for condition in conditions {
            seen.push(entry(&self.entries, &condition.key)?);
        }
        if conditions.iter().zip(&seen).all(|(condition, seen)| holds(condition, seen.as_ref())) {
            return Ok(None);
        }
        Ok(Some(Missed { revision: Revision(self.revision()?), seen }))
    }

    /// Applies the changes as the next revision, if they change anything.
    pub fn apply(&mut self, changes: &[Change], bounds: Bounds) -> Result<Revision, Fault> {
        let (present, next) = (self.revision()?, self.revision()? + 1);
        let (mut rows, mut bytes) = (0, 0);
        for change in changes {
            if let Some(size) = self.change(change, next)? {
                rows += 1;
                bytes += size;
            }
        }
        if rows == 0 {
            return Ok(Revision(present));
        }
        self.state.insert("revision", next)?;
        let rows = number(&self.state, "history_changes")? + rows;
        let bytes = number(&self.state, "history_bytes")? + bytes;
        self.trim(next, bounds, rows, bytes)?;
        Ok(Revision(next))
    }

    /// The bytes that the change takes in history; none if nothing changes.
    fn change(&mut self, change: &Change, revision: u64) -> Result<Option<u64>, Fault> {
        let key = change.key().as_bytes();
        let before = entry(&self.entries, change.key())?;
        let after = match change {
            Change::Put { value, lease, .. } => Some((revision, lease.map_or(0, |id| id.0), value.as_bytes())),
            Change::Delete { .. } => None,
        };
        if before.is_none() && after.is_none() {
            return Ok(None);
        }
        if let Some(lease) = before.as_ref().and_then(|before| before.lease) {
            self.lease_keys.remove((lease.0, key))?;
        }
        match after {
            Some(after) => {
                self.entries.insert(key, after)?;
                if after.1 != 0 {
                    self.lease_keys.insert((after.1, key), ())?;
                }
            }
            None => drop(self.entries.remove(key)?),
        }
        let before = before.as_ref().map(stored);
        self.history.insert((revision, key), (after, before))?;
        Ok(Some(row_bytes(key, after, before)))
    }

    /// Takes the oldest revisions out of history, whole, until it is within its bounds; the newest one stays.
    fn trim(&mut self, newest: u64, bounds: Bounds, mut rows: u64, mut bytes: u64) -> Result<(), Fault> {
        let mut compacted = None;
        while rows > bounds.changes || bytes > bounds.bytes {
            let oldest = self.oldest()?.unwrap_or(newest);
            if oldest >= newest {
                break;
            }
            let (fewer, less) = self.forget(oldest)?;
            (rows, bytes) = (rows - fewer, bytes - less);
            compacted = Some(oldest);
        }
        self.keep_account(compacted, rows, bytes)
    }

    /// Takes what is up to and including `through` out of history; false if there has been no such revision.
    pub fn compact(&mut self, through: u64) -> Result<bool, Fault> {
        if through > self.revision()? {
            return Ok(false);
        }
        if through <= number(&self.state, "compacted")? {
            return Ok(true);
        }
        let (mut rows, mut bytes) = (number(&self.state, "history_changes")?, number(&self.state, "history_bytes")?);
        while let Some(oldest) = self.oldest()?.filter(|oldest| *oldest <= through) {
            let (fewer, less) = self.forget(oldest)?;
            (rows, bytes) = (rows - fewer, bytes - less);
        }
        self.keep_account(Some(through), rows, bytes)?;
        Ok(true)
    }

    /// The first revision in history.
    fn oldest(&self) -> Result<Option<u64>, Fault> {
        Ok(self.history.first()?.map(|(key, _)| key.value().0))
    }

    /// Rows and bytes of one revision that are gone.
    fn forget(&mut self, revision: u64) -> Result<(u64, u64), Fault> {
        let (mut rows, mut bytes) = (0, 0);
        let bounds = (revision, &[][..])..(revision + 1, &[][..]);
        for row in self.history.extract_from_if(bounds, |_, _| true)? {
            let (key, row) = row?;
            let (after, before) = row.value();
            rows += 1;
            bytes += row_bytes(key.value().1, after, before);
        }
        Ok((rows, bytes))
    }

    fn keep_account(&mut self, compacted: Option<u64>, rows: u64, bytes: u64) -> Result<(), Fault> {
        if let Some(compacted) = compacted {
            self.state.insert("compacted", compacted)?;
        }
        self.state.insert("history_changes", rows)?;
        self.state.insert("history_bytes", bytes)?;
        Ok(())
    }

    /// A new lease's number.
    pub fn grant(&mut self, seconds: u64) -> Result<u64, Fault> {
        let id = number(&self.state, "lease_next")? + 1;
        self.state.insert("lease_next", id)?;
        self.leases.insert(id, seconds)?;
        Ok(id)
    }

    /// Whether a lease has more keys than it may.
    pub fn has_full_lease(&self, id: u64) -> Result<bool, Fault> {
        Ok(self.lease_keys.range((id, &[][..])..(id + 1, &[][..]))?.nth(LEASE_KEYS_MAX).is_some())
    }

    /// Ends a lease: its keys go as one revision.
    pub fn end_lease(&mut self, id: u64, bounds: Bounds) -> Result<Revision, Fault> {
        let mut changes = Vec::new();
        for row in self.lease_keys.range((id, &[][..])..(id + 1, &[][..]))? {
            changes.push(Change::delete(Key::stored(row?.0.value().1)));
        }
        self.leases.remove(id)?;
        self.apply(&changes, bounds)
    }
}

fn stored(entry: &Entry) -> Stored<'_> {
    (entry.modified.0, entry.lease.map_or(0, |id| id.0), entry.value.as_bytes())
}

fn row_bytes(key: &[u8], after: Option<Stored>, before: Option<Stored>) -> u64 {
    let value = |stored: Option<Stored>| stored.map_or(0, |(_, _, value)| value.len());
    (key.len() + value(after) + value(before)) as u64
}

/// One key, and as of when.
pub fn get(read: &ReadTransaction, key: &Key) -> Result<Reading, Fault> {
    let revision = Revision(number(&read.open_table(STATE)?, "revision")?);
    Ok(Reading { revision, entry: entry(&read.open_table(ENTRIES)?, key)? })
}

/// Whether `asked` is a moment that history reaches back to; its present one otherwise.
fn reach(read: &ReadTransaction, asked: Option<u64>) -> Result<Result<(u64, u64), Error>, Fault> {
    let state = read.open_table(STATE)?;
    let (present, compacted) = (number(&state, "revision")?, number(&state, "compacted")?);
    let asked = asked.unwrap_or(present);
    Ok(if asked > present {
        Err(Error::NotYet { asked: Revision(asked), present: Revision(present) })
    } else if asked < compacted {
        Err(Error::Compacted { asked: Revision(asked), oldest: Revision(compacted) })
    } else {
        Ok((asked, present))
    })
}

/// A page: the entries of now, with the changes after the asked revision undone.
pub fn page(read: &ReadTransaction, range: &Range) -> Result<Result<Page, Error>, Fault> {
    let (at, present) = match reach(read, range.at.map(|at| at.0))? {
        Ok(reached) => reached,
        Err(error) => return Ok(Err(error)),
    };
    let (mut start, end) = range.prefix.bounds();
    if let Some(after) = &range.after {
        // The least key above it.
        start = [after.as_bytes(), &[0]].concat();
    }
    let is_inside = |key: &[u8]| key >= &start[..] && end.as_ref().is_none_or(|end| key < &end[..]);
    let mut undone: BTreeMap<Vec<u8>, Option<Entry>> = BTreeMap::new();
    if at < present {
        for row in read.open_table(HISTORY)?.range((at + 1, &[][..])..)? {
            let (key, row) = row?;
            let key = key.value().1;
            if is_inside(key) {
                // The oldest change after the moment knows what was there before.
                undone.entry(key.to_vec()).or_insert_with(|| row.value().1.map(|before| entry_of(key, before)));
            }
        }
    }
    let table = read.open_table(ENTRIES)?;
    let mut found: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
    for row in table.range(&start[..]..)? {
        let (key, stored) = row?;
        if found.len() > range.entries || !is_inside(key.value()) {
            break;
        }
        if !undone.contains_key(key.value()) {
            found.insert(key.value().to_vec(), entry_of(key.value(), stored.value()));
        }
    }
    found.extend(undone.into_iter().filter_map(|(key, before)| Some((key, before?))));
    let has_more = found.len() > range.entries;
    let entries: Vec<Entry> = found.into_values().take(range.entries).collect();
    let next = entries.last().filter(|_| has_more).map(|last| range.behind(&last.key, Revision(at)));
    Ok(Ok(Page { revision: Revision(at), entries, next }))
}

/// What was committed after `after` to what `prefix` covers.
pub fn commits(read: &ReadTransaction, prefix: &Prefix, after: u64) -> Result<Result<Batch, Error>, Fault> {
    let present = match reach(read, Some(after))? {
        Ok((_, present)) => present,
        Err(error) => return Ok(Err(error)),
    };
    let mut batch = Batch { commits: Vec::new(), through: present };
    let (mut rows, mut bytes, mut last) = (0, 0, after);
    for row in read.open_table(HISTORY)?.range((after + 1, &[][..])..)? {
        let (key, row) = row?;
        let (revision, key) = key.value();
        let is_full = batch.commits.len() >= BATCH_COMMITS_MAX || rows >= BATCH_ROWS_MAX || bytes >= BATCH_BYTES_MAX;
        if revision != last && is_full {
            // A commit is never cut in two.
            batch.through = last;
            break;
        }
        (last, rows) = (revision, rows + 1);
        if !prefix.covers(key) {
            continue;
        }
        let changed =
            row.value().0.map_or_else(|| Changed::Deleted(Key::stored(key)), |new| Changed::Put(entry_of(key, new)));
        bytes += if let Changed::Put(entry) = &changed { key.len() + entry.value.as_bytes().len() } else { key.len() };
        match batch.commits.last_mut().filter(|commit| commit.revision.0 == revision) {
            Some(commit) => commit.changes.push(changed),
            None => batch.commits.push(Commit { revision: Revision(revision), changes: vec![changed] }),
        }
    }
    Ok(Ok(batch))
}

/// Whether the file has a lease.
pub fn has_lease(read: &ReadTransaction, id: u64) -> Result<bool, Fault> {
    Ok(read.open_table(LEASES)?.get(id)?.is_some())
}

/// A transaction that reads.
pub fn read(database: &Database) -> Result<ReadTransaction, Fault> {
    Ok(database.begin_read()?)
}
