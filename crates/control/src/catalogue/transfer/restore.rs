//! A stream into a catalogue, part by part.
//!
//! Nothing is applied before the check behind it has been seen to be right. A part and the note of how far the restore has come
//! are one transaction, on the condition that the note is as it was left: two restores can't mix, and a transaction whose answer
//! was lost is settled by reading the note.

use super::format::{Bytes, Check, End, Header, LINE_BYTES_MAX, Line, PART_ENTRIES_MAX, Sum, TransferError, VERSION};
use super::note::{self, Note, Noted, State};
use crate::catalogue::contract::Catalogue;
use crate::catalogue::error::Error;
use crate::catalogue::limits::PAGE_ENTRIES_MAX;
use crate::catalogue::serving::served_by;
use crate::catalogue::types::{Change, Key, Outcome, Prefix, Range, Transaction, Value};

/// Whether a restore of the dump may go on where the note was left.
fn is_continued(note: &Note, dump: &Header) -> bool {
    note.dump == *dump || (note.state != State::Done && note.dump.origin == dump.origin)
}

/// What is there is of another dump than the one that the next note would be of.
fn other_dump(noted: &Noted, next: &Note) -> TransferError {
    let Header { origin, revision, .. } = noted.note.as_ref().unwrap_or(next).dump.clone();
    TransferError::OtherDump { origin, revision }
}

/// Tries of one transaction whose outcome stays unknown. Chosen: an election or two; each try has waited for the time limit.
const TRIES_MAX: usize = 5;

/// What becomes of an entry before it is restored.
type Changing = fn(&Key, Value) -> Value;

/// What came of a restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored {
    /// Entries of the dump.
    pub entries: u64,
    /// Of them, those that an earlier restore of the same dump had brought.
    pub found: u64,
    /// Entries that are not in the dump, since they were bound to leases.
    pub leased: u64,
}

/// A restore under way. Give it every line with [`Restore::line`], then call [`Restore::finish`].
pub struct Restore<'c> {
    catalogue: &'c dyn Catalogue,
    is_forced: bool,
    change: Changing,
    sum: Sum,
    /// Of the lines of entries alone: what tells a part of one dump from that of another.
    content: Sum,
    lines: u64,
    /// Entries of the stream, up to the last check.
    entries: u64,
    part: Vec<Change>,
    noted: Option<(Note, Noted)>,
    found: u64,
    ended: Option<Restored>,
    has_begun: bool,
}

impl<'c> Restore<'c> {
    /// Into an empty catalogue, or one that holds a part of the same dump, which is left out; or by force into any: then all that
    /// is there is deleted first, when the dump's first line has come. A part of the same dump is also one that a dump of the same
    /// catalogue at another revision begins with.
    pub fn into(catalogue: &'c dyn Catalogue, is_forced: bool) -> Restore<'c> {
        let (sum, content, part) = (Sum::new(), Sum::new(), Vec::new());
        let change: Changing = |_, value| value;
        Restore {
            catalogue,
            is_forced,
            change,
            sum,
            content,
            lines: 0,
            entries: 0,
            part,
            noted: None,
            found: 0,
            ended: None,
            has_begun: false,
        }
    }

    /// Every entry is restored as `change` makes it, the same each time.
    pub fn changing(self, change: fn(&Key, Value) -> Value) -> Restore<'c> {
        Restore { change, ..self }
    }

    /// The next line, without its line feed.
    pub async fn line(&mut self, line: &str) -> Result<(), TransferError> {
        self.lines += 1;
        if line.len() > LINE_BYTES_MAX {
            return Err(self.damaged("it is too long"));
        }
        let parsed: Line = serde_json::from_str(line).map_err(|fault| self.damaged(&fault.to_string()))?;
        match (parsed, self.noted.is_some(), self.ended.is_some()) {
            (Line::Header(header), false, false) => {
                self.sum.add(line);
                self.begin(header).await
            }
            (Line::Entry { key, value }, true, false) => {
                self.sum.add(line);
                self.content.add(line);
                self.entry(key, value)
            }
            (Line::Check(check), true, false) => self.check(&check).await,
            (Line::End(end), true, false) => self.end(&end).await,
            _ => Err(self.damaged("it stands where it must not")),
        }
    }

    /// When all lines were given.
    pub fn finish(&self) -> Result<Restored, TransferError> {
        self.ended.ok_or(TransferError::Short { lines: self.lines })
    }

    /// Whether anything of the catalogue may have been changed, by this restore or by one of the same dump before it.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn damaged(&self, what: &str) -> TransferError {
        TransferError::Damaged { line: self.lines, what: what.to_owned() }
    }

    async fn begin(&mut self, dump: Header) -> Result<(), TransferError> {
        if dump.version != VERSION {
            return Err(TransferError::Version { version: dump.version });
        }
        self.unserved().await?;
        let noted = note::read(self.catalogue).await?;
        let (mut note, mut noted) = match noted.note.clone() {
            // Of the same catalogue: at another revision, too, what is there may be the beginning of this dump. It shows where that
            // part ends.
            Some(note) if is_continued(&note, &dump) && !self.is_forced => (Note { dump, ..note }, noted),
            Some(other) if other.state != State::Done && !self.is_forced => return Err(other_dump(&noted, &other)),
            // By force it begins anew, whatever is there: also where it is a part of this dump, or all of it and changed since.
            other => {
                let mut note = self.first_note(dump, other.as_ref().map_or(0, |other| other.step)).await?;
                self.has_begun = true;
                let noted = self.commit(&mut note, Vec::new(), noted).await?;
                // Who has begun to serve since the first look may not have seen the note.
                if let Err(served) = self.unserved().await {
                    self.take_back(noted, other).await?;
                    self.has_begun = false;
                    return Err(served);
                }
                (note, noted)
            }
        };
        (self.found, self.has_begun) = (note.entries, true);
        if note.state == State::Clearing {
            noted = self.clear(&mut note, noted).await?;
        }
        self.noted = Some((note, noted));
        Ok(())
    }

    /// Errors where a control plane serves the catalogue.
    async fn unserved(&self) -> Result<(), TransferError> {
        match served_by(self.catalogue).await? {
            Some(by) => Err(TransferError::Served { by }),
            None => Ok(()),
        }
    }

    /// Notes again what was noted before: nothing else was changed.
    async fn take_back(&self, noted: Noted, before: Option<Note>) -> Result<(), TransferError> {
        match before {
            Some(mut before) => self.commit(&mut before, Vec::new(), noted).await.map(drop),
            None => {
                let gone = Transaction::new(vec![noted.condition], vec![Change::delete(note::key())])?;
                match self.catalogue.commit(gone).await? {
                    // Another restore goes on from the note.
                    Outcome::Committed(_) | Outcome::Missed(_) => Ok(()),
                }
            }
        }
    }

    /// What is noted before anything is done.
    async fn first_note(&self, dump: Header, step: u64) -> Result<Note, TransferError> {
        let page = self.catalogue.range(Range::of(Prefix::all()).entries(1)?).await?;
        let state = match page.entries.first() {
            None => State::Filling,
            Some(_) if self.is_forced => State::Clearing,
            Some(entry) => return Err(TransferError::NotEmpty { key: entry.key.to_string() }),
        };
        Ok(Note { dump, state, entries: 0, xxh3: Sum::new().text(), step })
    }

    /// Deletes all that is there.
    async fn clear(&self, note: &mut Note, mut noted: Noted) -> Result<Noted, TransferError> {
        loop {
            let page = self.catalogue.range(Range::of(Prefix::all()).entries(PAGE_ENTRIES_MAX - 1)?).await?;
            if page.entries.is_empty() {
                note.state = State::Filling;
            }
            let deletes: Vec<Change> = page.entries.into_iter().map(|entry| Change::delete(entry.key)).collect();
            noted = self.commit(note, deletes, noted).await?;
            if note.state == State::Filling {
                return Ok(noted);
            }
        }
    }

    fn entry(&mut self, key: Bytes, value: Bytes) -> Result<(), TransferError> {
        let (Some(key), Some(value)) = (key.decode(), value.decode()) else {
            return Err(self.damaged("hexadecimal digits are wrong"));
        };
        let key = Key::new(key).map_err(|fault| self.damaged(&fault.to_string()))?;
        let value = Value::new(value).map_err(|fault| self.damaged(&fault.to_string()))?;
        if self.part.last().is_some_and(|last| *last.key() >= key) {
            return Err(self.damaged("its key is not behind the one before"));
        }
        if self.part.len() == PART_ENTRIES_MAX {
            return Err(self.damaged("a check is missing before it"));
        }
        let value = (self.change)(&key, value);
        self.part.push(Change::put(key, value));
        Ok(())
    }

    async fn check(&mut self, check: &Check) -> Result<(), TransferError> {
        let before = self.entries;
        self.entries += self.part.len() as u64;
        if check.entries != self.entries || check.xxh3 != self.sum.text() {
            return Err(self.damaged("what stands before it is not what was dumped"));
        }
        let part = std::mem::take(&mut self.part);
        let Some((mut note, noted)) = self.noted.take() else { return Err(self.damaged("there is no header")) };
        if note.entries >= self.entries {
            // An earlier restore has brought them; where it stopped, they must be those of this dump.
            if note.entries == self.entries && note.xxh3 != self.content.text() {
                return Err(other_dump(&noted, &note));
            }
            self.noted = Some((note, noted));
            return Ok(());
        }
        if note.entries != before {
            return Err(other_dump(&noted, &note));
        }
        note.entries = self.entries;
        note.xxh3 = self.content.text();
        let noted = self.commit(&mut note, part, noted).await?;
        self.noted = Some((note, noted));
        Ok(())
    }

    async fn end(&mut self, end: &End) -> Result<(), TransferError> {
        let is_whole = self.part.is_empty() && end.entries == self.entries && end.xxh3 == self.sum.text();
        let Some((mut note, noted)) = self.noted.take().filter(|_| is_whole) else {
            return Err(self.damaged("what stands before it is not what was dumped"));
        };
        if note.entries != self.entries {
            return Err(other_dump(&noted, &note));
        }
        if note.state != State::Done {
            note.state = State::Done;
            self.commit(&mut note, Vec::new(), noted).await?;
        }
        self.ended = Some(Restored { entries: end.entries, found: self.found, leased: end.leased });
        // Lines behind the end are refused, as before the header.
        self.noted = Some((note, note::read(self.catalogue).await?));
        Ok(())
    }

    /// One step: the changes, and the note of it.
    async fn commit(&self, note: &mut Note, mut changes: Vec<Change>, noted: Noted) -> Result<Noted, TransferError> {
        note.step += 1;
        let value = serde_json::to_vec(note).expect("a note has text and numbers: it can always be written");
        changes.push(Change::put(note::key(), Value::new(value)?));
        let transaction = Transaction::new(vec![noted.condition], changes)?;
        let mut unknown = None;
        for _ in 0..TRIES_MAX {
            match self.catalogue.commit(transaction.clone()).await {
                Ok(Outcome::Committed(_)) => {}
                Ok(Outcome::Missed(_)) if unknown.is_none() => return Err(TransferError::Raced),
                // Its first copy may be what it met: the note tells.
                Ok(Outcome::Missed(_)) => {}
                Err(Error::OutcomeUnknown { why }) => unknown = Some(why),
                Err(error) => return Err(error.into()),
            }
            let now = note::read(self.catalogue).await?;
            if now.note.as_ref() == Some(note) {
                return Ok(now);
            }
            if now.condition != transaction.conditions[0] {
                return Err(TransferError::Raced);
            }
        }
        Err(TransferError::Catalogue(Error::OutcomeUnknown { why: unknown.unwrap_or_default() }))
    }
}
