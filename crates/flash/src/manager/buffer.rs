//! [`Buffer`]: what waits to be programmed and what is being programmed.
//!
//! Invariants:
//! - Of each logical sector at most one program is under way; what comes meanwhile waits for its end. So programs of one logical
//!   sector end in the order in which their content came, whatever the parallel units and streams.
//! - A ticket is a place in the order of entering. What replaces content that waits takes over its ticket: who waits for all
//!   tickets up to one waits for the newer content then, and nothing that was to be flushed is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use engine::View;

use super::tag::Logical;

/// Ranges of the record that waits and of the one that is being programmed. Derived: they fit one sector, since a program that
/// fails makes one record of both.
pub(super) const RANGES_MAX: usize = 510;

/// What is written together, because it stays about equally long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    /// From hosts, replaced soon.
    Hot,
    /// From hosts, replaced late.
    Cold,
    /// What collection moves.
    Moved,
    /// Pages of the map.
    Map,
}

/// Streams.
pub(super) const STREAMS: usize = 4;

impl Stream {
    pub const ALL: [Stream; STREAMS] = [Stream::Map, Stream::Moved, Stream::Hot, Stream::Cold];

    pub fn index(self) -> usize {
        self as usize
    }

    pub fn is_of_hosts(self) -> bool {
        matches!(self, Stream::Hot | Stream::Cold)
    }
}

/// Sectors of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub first: u32,
    pub count: u32,
    /// They can't be read; otherwise they are deallocated.
    pub is_spoilt: bool,
}

impl Range {
    pub fn overlaps(&self, first: u32, count: u32) -> bool {
        u64::from(self.first) < u64::from(first) + u64::from(count)
            && u64::from(first) < u64::from(self.first) + u64::from(self.count)
    }
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Data(View),
    /// As the page is when it is programmed.
    Page,
    Record(Vec<Range>),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub ticket: u64,
    pub stream: Stream,
    /// A flush waits for it.
    pub is_owed: bool,
    pub content: Content,
}

#[derive(Debug, Default)]
pub(super) struct Cell {
    pub waiting: Option<Entry>,
    pub programming: Option<Entry>,
}

#[derive(Debug, Default)]
pub(super) struct Buffer {
    cells: BTreeMap<Logical, Cell>,
    /// What waits and may be programmed, by ticket.
    queues: [BTreeMap<u64, Logical>; STREAMS],
    owed: BTreeSet<u64>,
    ticket: u64,
    /// Entries of hosts, of collection, and pages.
    counts: [usize; 3],
}

fn class(entry: &Entry) -> usize {
    match entry.content {
        Content::Page => 2,
        Content::Data(_) | Content::Record(_) => usize::from(!entry.is_owed),
    }
}

impl Buffer {
    pub fn cell(&self, logical: Logical) -> Option<&Cell> {
        self.cells.get(&logical)
    }

    /// The newest content of a sector of the namespace.
    pub fn newest(&self, logical: u32) -> Option<&View> {
        let cell = self.cells.get(&Logical::Data(logical))?;
        match &cell.waiting.as_ref().or(cell.programming.as_ref())?.content {
            Content::Data(data) => Some(data),
            Content::Page | Content::Record(_) => None,
        }
    }

    /// Whether anything of these sectors of the namespace is here.
    pub fn holds_any(&self, first: u32, count: u32) -> bool {
        let end = first.saturating_add(count - 1);
        self.cells.range(Logical::Data(first)..=Logical::Data(end)).next().is_some()
    }

    /// Ranges of records, the newest first.
    fn records(&self) -> impl Iterator<Item = &Range> {
        let cell = self.cells.get(&Logical::Record);
        let both = cell.into_iter().flat_map(|cell| [&cell.waiting, &cell.programming]).flatten();
        let ranges = both.map(|entry| match &entry.content {
            Content::Record(ranges) => &ranges[..],
            Content::Data(_) | Content::Page => &[],
        });
        ranges.flat_map(|ranges| ranges.iter().rev())
    }

    /// What records that are not stable yet say of a sector last.
    pub fn recorded(&self, first: u32, count: u32) -> Option<Range> {
        self.records().find(|range| range.overlaps(first, count)).copied()
    }

    /// The last ticket that was given.
    pub fn last_ticket(&self) -> u64 {
        self.ticket
    }

    /// The oldest ticket that a flush waits for.
    pub fn oldest_owed(&self) -> Option<u64> {
        self.owed.first().copied()
    }

    pub fn host_entries(&self) -> usize {
        self.counts[0]
    }

    pub fn moved_entries(&self) -> usize {
        self.counts[1]
    }

    pub fn pages(&self) -> usize {
        self.counts[2]
    }

    pub fn queued(&self, stream: Stream) -> usize {
        self.queues[stream.index()].len()
    }

    pub fn first_queued(&self, stream: Stream) -> Option<u64> {
        self.queues[stream.index()].first_key_value().map(|(&ticket, _)| ticket)
    }

    /// Whether something that a flush waits for is in the stream.
    pub fn owes(&self, stream: Stream) -> bool {
        self.queues[stream.index()].keys().any(|ticket| self.owed.contains(ticket))
    }

    /// Content comes, in place of what waits of the same sector.
    pub fn enter(&mut self, logical: Logical, stream: Stream, is_owed: bool, content: Content) -> u64 {
        self.ticket += 1;
        let mut entry = Entry { ticket: self.ticket, stream, is_owed, content };
        let cell = self.cells.entry(logical).or_default();
        if let Some(before) = cell.waiting.take() {
            self.queues[before.stream.index()].remove(&before.ticket);
            self.owed.remove(&before.ticket);
            self.counts[class(&before)] -= 1;
            entry.ticket = before.ticket;
            // What is moved goes on its way as what is newer: with hosts it would wait for the room that is to come of this.
            if before.stream == Stream::Moved {
                entry.stream = Stream::Moved;
            }
        }
        let stream = entry.stream;
        let (ticket, is_free) = (entry.ticket, cell.programming.is_none());
        if is_owed {
            self.owed.insert(ticket);
        }
        self.counts[class(&entry)] += 1;
        cell.waiting = Some(entry);
        if is_free {
            self.queues[stream.index()].insert(ticket, logical);
        }
        self.ticket
    }

    /// One more range for the record that waits. `Err`: it is full.
    pub fn enter_range(&mut self, range: Range, stream: Stream) -> Result<u64, Range> {
        if self.records().count() >= RANGES_MAX {
            return Err(range);
        }
        let waiting = self.cells.get_mut(&Logical::Record).and_then(|cell| cell.waiting.as_mut());
        let mut ranges = match waiting {
            Some(Entry { content: Content::Record(ranges), .. }) => std::mem::take(ranges),
            _ => Vec::new(),
        };
        ranges.push(range);
        Ok(self.enter(Logical::Record, stream, true, Content::Record(ranges)))
    }

    /// What waits of a sector goes to another stream, unless it waits for the end of a program: that brings the same.
    pub fn move_to(&mut self, logical: Logical, stream: Stream) {
        let Some(cell) = self.cells.get_mut(&logical).filter(|cell| cell.programming.is_none()) else { return };
        if let Some(entry) = &mut cell.waiting {
            let before = std::mem::replace(&mut entry.stream, stream);
            self.queues[before.index()].remove(&entry.ticket);
            self.queues[stream.index()].insert(entry.ticket, logical);
        }
    }

    /// The oldest of a stream, to be programmed.
    pub fn take(&mut self, stream: Stream, count: usize) -> Vec<(Logical, Entry)> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let Some((_, logical)) = self.queues[stream.index()].pop_first() else { break };
            taken.extend(self.begin(logical));
        }
        taken
    }

    /// Of the oldest, which are dealt out to `units` in parts of so many sectors, those of the first one, to be programmed.
    pub fn take_parts(&mut self, stream: Stream, count: usize, part: usize, units: usize) -> Vec<(Logical, Entry)> {
        let queue = &mut self.queues[stream.index()];
        let is_own = |(index, _): &(usize, (&u64, &Logical))| (index / part).is_multiple_of(units);
        let own = queue.iter().enumerate().filter(is_own).take(count);
        let chosen: Vec<(u64, Logical)> = own.map(|(_, (&ticket, &logical))| (ticket, logical)).collect();
        for (ticket, _) in &chosen {
            queue.remove(ticket);
        }
        chosen.into_iter().filter_map(|(_, logical)| self.begin(logical)).collect()
    }

    /// What waits of a sector is programmed from now on.
    fn begin(&mut self, logical: Logical) -> Option<(Logical, Entry)> {
        let cell = self.cells.entry(logical).or_default();
        let entry = cell.waiting.take()?;
        cell.programming = Some(entry.clone());
        Some((logical, entry))
    }

    /// The program of a sector has ended well.
    pub fn stable(&mut self, logical: Logical) -> Option<Entry> {
        let cell = self.cells.get_mut(&logical)?;
        let entry = cell.programming.take()?;
        self.owed.remove(&entry.ticket);
        self.counts[class(&entry)] -= 1;
        match &cell.waiting {
            Some(next) => {
                self.queues[next.stream.index()].insert(next.ticket, logical);
            }
            None => {
                self.cells.remove(&logical);
            }
        }
        Some(entry)
    }

    /// The program of a sector has failed: it waits again, or what is newer does in its place.
    pub fn failed(&mut self, logical: Logical) {
        let Some(cell) = self.cells.get_mut(&logical) else { return };
        let Some(mut entry) = cell.programming.take() else { return };
        if let Some(mut newer) = cell.waiting.take() {
            // Both are there: their tickets go, and the newer content answers for the older one, ranges included.
            for gone in [&entry, &newer] {
                self.owed.remove(&gone.ticket);
                self.counts[class(gone)] -= 1;
            }
            // The older ranges first: of those that overlap the last one takes effect.
            if let (Content::Record(ranges), Content::Record(older)) = (&mut newer.content, &entry.content) {
                ranges.splice(..0, older.iter().copied());
            }
            newer.ticket = entry.ticket;
            newer.is_owed |= entry.is_owed;
            entry = newer;
            self.counts[class(&entry)] += 1;
            if entry.is_owed {
                self.owed.insert(entry.ticket);
            }
        }
        self.queues[entry.stream.index()].insert(entry.ticket, logical);
        cell.waiting = Some(entry);
    }
}

#[cfg(test)]
mod tests {
    use engine::Buf;

    use super::*;

    const FIRST: Logical = Logical::Data(5);

    fn data(byte: u8) -> Content {
        Content::Data(Buf::copy_from(&[byte]).freeze())
    }

    fn newest(buffer: &Buffer) -> Option<u8> {
        buffer.newest(5).map(|data| data[0])
    }

    #[test]
    fn what_comes_while_a_sector_is_programmed_waits_for_its_end() {
        let mut buffer = Buffer::default();
        let first = buffer.enter(FIRST, Stream::Hot, true, data(1));
        assert_eq!(buffer.take(Stream::Hot, 9).len(), 1);
        let second = buffer.enter(FIRST, Stream::Cold, true, data(2));
        assert_eq!((buffer.queued(Stream::Cold), newest(&buffer)), (0, Some(2)), "one program at a time");
        assert_eq!((buffer.host_entries(), buffer.oldest_owed()), (2, Some(first)));
        buffer.stable(FIRST);
        assert_eq!((buffer.queued(Stream::Cold), buffer.oldest_owed()), (1, Some(second)));
        assert_eq!(buffer.take(Stream::Cold, 9).len(), 1);
        buffer.stable(FIRST);
        assert_eq!((buffer.host_entries(), buffer.oldest_owed(), newest(&buffer)), (0, None, None));
    }

    #[test]
    fn a_flush_that_waits_for_what_was_replaced_waits_for_what_replaced_it() {
        let mut buffer = Buffer::default();
        let first = buffer.enter(FIRST, Stream::Hot, true, data(1));
        buffer.enter(FIRST, Stream::Cold, true, data(2));
        assert_eq!((buffer.queued(Stream::Hot), buffer.queued(Stream::Cold)), (0, 1));
        assert_eq!((buffer.host_entries(), buffer.oldest_owed()), (1, Some(first)));
        buffer.enter(FIRST, Stream::Cold, true, data(3));
        assert_eq!((buffer.oldest_owed(), buffer.first_queued(Stream::Cold)), (Some(first), Some(first)));
    }

    #[test]
    fn what_is_moved_goes_on_its_way_as_what_is_newer() {
        let mut buffer = Buffer::default();
        let first = buffer.enter(FIRST, Stream::Hot, true, data(1));
        buffer.move_to(FIRST, Stream::Moved);
        buffer.enter(FIRST, Stream::Hot, true, data(2));
        let (hot, moved) = (buffer.queued(Stream::Hot), buffer.first_queued(Stream::Moved));
        assert_eq!((hot, moved, newest(&buffer)), (0, Some(first), Some(2)));
        buffer.take(Stream::Moved, 1);
        // Its line is left by the program that is under way: what waits for its end is no more in the way.
        buffer.enter(FIRST, Stream::Hot, true, data(3));
        buffer.move_to(FIRST, Stream::Moved);
        buffer.stable(FIRST);
        assert_eq!((buffer.queued(Stream::Hot), buffer.queued(Stream::Moved)), (1, 0));
    }

    #[test]
    fn what_failed_waits_again_unless_something_newer_does() {
        let mut buffer = Buffer::default();
        let first = buffer.enter(FIRST, Stream::Moved, false, data(1));
        buffer.take(Stream::Moved, 1);
        buffer.failed(FIRST);
        assert_eq!((buffer.first_queued(Stream::Moved), newest(&buffer)), (Some(first), Some(1)));
        buffer.take(Stream::Moved, 1);
        buffer.enter(FIRST, Stream::Hot, true, data(2));
        buffer.failed(FIRST);
        assert_eq!(
            (buffer.queued(Stream::Moved), buffer.first_queued(Stream::Hot), newest(&buffer)),
            (0, Some(first), Some(2))
        );
        assert_eq!((buffer.host_entries(), buffer.moved_entries(), buffer.oldest_owed()), (1, 0, Some(first)));
        buffer.take(Stream::Hot, 1);
        buffer.stable(FIRST);
        assert_eq!((buffer.host_entries(), buffer.oldest_owed()), (0, None));
    }

    #[test]
    fn a_record_takes_ranges_until_one_sector_is_full_of_them() {
        let mut buffer = Buffer::default();
        let range = |first: u32| Range { first, count: 1, is_spoilt: first % 2 == 1 };
        let half = RANGES_MAX as u32 / 2;
        let enter = |buffer: &mut Buffer, first| buffer.enter_range(range(first), Stream::Hot).expect("there is room");
        (0..half).for_each(|first| assert!(enter(&mut buffer, first) > 0));
        buffer.take(Stream::Hot, 1);
        (half..2 * half).for_each(|first| assert!(enter(&mut buffer, first) > 0));
        assert_eq!(buffer.enter_range(range(9999), Stream::Hot), Err(range(9999)));
        assert_eq!((buffer.recorded(3, 1), buffer.recorded(2 * half, 7)), (Some(range(3)), None));
        buffer.failed(Logical::Record);
        let [(_, entry)] = &buffer.take(Stream::Hot, 2)[..] else { panic!("both are one record") };
        assert!(matches!(&entry.content, Content::Record(ranges) if ranges.len() == RANGES_MAX), "{entry:?}");
    }

    #[test]
    fn of_ranges_that_overlap_the_newest_is_in_force_also_when_a_program_failed() {
        let mut buffer = Buffer::default();
        let range = |is_spoilt: bool| Range { first: 5, count: 1, is_spoilt };
        let enter = |buffer: &mut Buffer, is_spoilt| buffer.enter_range(range(is_spoilt), Stream::Hot);
        assert!(enter(&mut buffer, false).is_ok() && enter(&mut buffer, true).is_ok());
        assert_eq!(buffer.recorded(5, 1), Some(range(true)), "in one record");
        buffer.take(Stream::Hot, 1);
        assert!(enter(&mut buffer, false).is_ok());
        assert_eq!(buffer.recorded(5, 1), Some(range(false)), "in the one that waits");
        buffer.failed(Logical::Record);
        assert_eq!(buffer.recorded(5, 1), Some(range(false)));
        let [(_, entry)] = &buffer.take(Stream::Hot, 2)[..] else { panic!("both are one record") };
        let expected = [false, true, false].map(range);
        assert!(matches!(&entry.content, Content::Record(ranges) if ranges[..] == expected), "{entry:?}");
    }
}
