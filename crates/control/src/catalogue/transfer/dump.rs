//! A catalogue as a stream, part by part.

use std::collections::VecDeque;

use super::format::{Bytes, Check, End, Header, Line, PART_BYTES_MAX, PART_ENTRIES_MAX, Sum, TransferError, VERSION};
use super::note;
use crate::catalogue::contract::Catalogue;
use crate::catalogue::types::{Entry, Prefix, Range};

/// A dump under way. Call [`Dump::next`] until there is no more, and write the parts one behind the other.
///
/// All entries are of one revision. While the dump is under way, history must go back to that revision: where it is cut short
/// meanwhile, the dump ends with [`Error::Compacted`](crate::catalogue::Error::Compacted), and is to be begun anew.
pub struct Dump<'c> {
    catalogue: &'c dyn Catalogue,
    next: Next,
    sum: Sum,
    entries: u64,
    leased: u64,
    /// Read, and not yet in the stream: a page, and what did not fill a part.
    read: VecDeque<Entry>,
}

enum Next {
    Header,
    Page(Range),
    End,
    Nothing,
}

impl<'c> Dump<'c> {
    /// Nothing is read yet.
    pub fn of(catalogue: &'c dyn Catalogue) -> Dump<'c> {
        Dump { catalogue, next: Next::Header, sum: Sum::new(), entries: 0, leased: 0, read: VecDeque::new() }
    }

    /// The next lines of the stream; none at its end. After an error the dump is of no use.
    pub async fn next(&mut self) -> Result<Option<String>, TransferError> {
        let mut lines = String::new();
        match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::Header => self.begin(&mut lines).await?,
            Next::Page(range) => {
                self.page(range).await?;
                while let Some(count) = full_part(&self.read) {
                    self.part(&mut lines, count);
                }
            }
            Next::End => {
                if !self.read.is_empty() {
                    self.part(&mut lines, self.read.len());
                }
                let (entries, leased, xxh3) = (self.entries, self.leased, self.sum.text());
                push(&mut lines, &Line::End(End { entries, leased, xxh3 }));
            }
            Next::Nothing => return Ok(None),
        }
        Ok(Some(lines))
    }

    /// Entries in the stream so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Entries left out so far, since they are bound to leases.
    pub fn leased(&self) -> u64 {
        self.leased
    }

    async fn begin(&mut self, lines: &mut String) -> Result<(), TransferError> {
        note::check_whole(self.catalogue).await?;
        let origin = self.catalogue.identity().await?;
        // The note's revision is the moment of the dump: nothing has changed since, or the pages are of that moment all the same.
        let revision = self.catalogue.get(note::key()).await?.revision;
        let header = Line::Header(Header { version: VERSION, origin, revision: revision.0 });
        self.sum.add(&push(lines, &header));
        self.next = Next::Page(Range::of(Prefix::all()).at(revision));
        Ok(())
    }

    async fn page(&mut self, range: Range) -> Result<(), TransferError> {
        let page = self.catalogue.range(range).await?;
        for entry in page.entries {
            if entry.lease.is_some() {
                self.leased += 1;
            } else {
                self.read.push_back(entry);
            }
        }
        self.next = page.next.map_or(Next::End, Next::Page);
        Ok(())
    }

    /// Moves the first entries into the stream, with a check behind them.
    fn part(&mut self, lines: &mut String, count: usize) {
        for entry in self.read.drain(..count) {
            let (key, value) = (Bytes::of(entry.key.as_bytes()), Bytes::of(entry.value.as_bytes()));
            self.sum.add(&push(lines, &Line::Entry { key, value }));
            self.entries += 1;
        }
        push(lines, &Line::Check(Check { entries: self.entries, xxh3: self.sum.text() }));
    }
}

/// How many entries make a part to which no other can be added. It depends on the entries alone, not on how they were read.
fn full_part(read: &VecDeque<Entry>) -> Option<usize> {
    let mut bytes = 0;
    for (count, entry) in read.iter().enumerate() {
        bytes += entry.key.as_bytes().len() + entry.value.as_bytes().len();
        if count == PART_ENTRIES_MAX || bytes > PART_BYTES_MAX {
            return Some(count.max(1));
        }
    }
    None
}

fn push(lines: &mut String, line: &Line) -> String {
    let line = serde_json::to_string(line).expect("a line has text, numbers and no maps: it can always be written");
    lines.push_str(&line);
    lines.push('\n');
    line
}
