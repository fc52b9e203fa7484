//! Records of space: chunks, regions of members, and the list of chunks that nobody owns.

use erasure::UNITS_MAX;

pub(crate) use super::rest::Run;
use super::rest::{self, Rest};
use super::stripe::REGION_ROWS_MAX;
use crate::bytes::{Reader, put_varint};
use crate::error::Error;

/// Regions of a page of a member's record. Derived: 2 KiB of chunks' numbers, so that it stays within a page of the store.
pub(crate) const REGIONS_PER_PAGE: u32 = 512;
/// Chunks in the list of those without an owner. Derived: 3,200 bytes.
pub(crate) const UNOWNED_MAX: usize = 800;
/// An unowned chunk is in the list from so much of it free on: an eighth.
const LISTED_SHARE: u32 = 8;
/// The owner of a chunk that gives its regions back: nobody takes rows of it any more.
pub(crate) const DYING: u64 = u64::MAX;
/// No owner.
pub(crate) const NOBODY: u64 = 0;
/// The end of a page of regions that nobody gets any more; no chunk has this number.
pub(crate) const CLOSED: u32 = u32::MAX;

/// Which rows are taken, and which of these rest.
///
/// Invariant: of closed marks no more are made, whatever the owner believes of the chunk's members; nothing opens them again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Marks {
    rows: u32,
    words: Vec<u64>,
    rests: Vec<Rest>,
    is_closed: bool,
}

impl Marks {
    pub(crate) fn new(rows: u32) -> Marks {
        Marks { rows, words: vec![0; rows.div_ceil(64) as usize], rests: Vec::new(), is_closed: false }
    }

    /// Of how many rows.
    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    fn is_marked(&self, row: u32) -> bool {
        self.words[row as usize / 64] >> (row % 64) & 1 == 1
    }

    /// Whether all rows of a run are marked.
    pub(crate) fn holds(&self, run: Run) -> bool {
        run.row.checked_add(run.rows).is_some_and(|end| end <= self.rows) && run.range().all(|row| self.is_marked(row))
    }

    /// Whether a row of a run, which must not go behind the last one, is marked.
    pub(crate) fn touches(&self, run: Run) -> bool {
        run.range().any(|row| self.is_marked(row))
    }

    /// Whether all rows of a run are marked, and none of them rests.
    pub(crate) fn keeps(&self, run: Run) -> bool {
        self.holds(run) && self.rests.iter().all(|rest| !rest.touches(run))
    }

    /// The marks alone: none rests, and none is closed.
    pub(crate) fn bare(&self) -> Marks {
        Marks { rests: Vec::new(), is_closed: false, ..self.clone() }
    }

    /// Clears all marks that are also in `other`, of as many rows; of bare ones.
    pub(crate) fn clear_all(&mut self, other: &Marks) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
    }

    pub(crate) fn set(&mut self, run: Run) {
        run.range().for_each(|row| self.words[row as usize / 64] |= 1 << (row % 64));
    }

    /// The same of those rows that there are.
    pub(crate) fn set_within(&mut self, run: Run) {
        let end = run.row.saturating_add(run.rows).min(self.rows);
        self.set(Run { row: run.row, rows: end.saturating_sub(run.row) });
    }

    /// Clears all marks that are not in `other`, of as many rows; of bare ones.
    pub(crate) fn keep_all(&mut self, other: &Marks) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
    }

    pub(crate) fn clear(&mut self, run: Run) {
        rest::cut(&mut self.rests, run);
        run.range().filter(|row| *row < self.rows).for_each(|row| self.words[row as usize / 64] &= !(1 << (row % 64)));
    }

    pub(crate) fn marked(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Rows that can be had.
    pub(crate) fn free(&self) -> u32 {
        if self.is_closed { 0 } else { self.rows - self.marked() }
    }

    /// Rows that can be had, also those that rest yet.
    fn free_later(&self) -> u32 {
        if self.is_closed { 0 } else { self.free() + self.rests.iter().map(|rest| rest.run.rows).sum::<u32>() }
    }

    /// All runs of rows that can be had.
    pub(crate) fn free_runs(&self) -> Vec<Run> {
        if self.is_closed { Vec::new() } else { self.runs(false) }
    }

    /// From now on no row of it is marked, by nobody.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Rows that are marked rest. False: too many do.
    pub(crate) fn rest(&mut self, rest: Rest) -> bool {
        self.holds(rest.run) && rest::add(&mut self.rests, rest)
    }

    /// Clears what has rested; with it what waits for late commands to columns alone that do no harm, for which it closes. Whether
    /// there was something.
    pub(crate) fn wake(&mut self, now: u64, harmless: u32) -> bool {
        let over: Vec<Rest> = self.rests.iter().filter(|rest| rest.is_over(now, harmless)).copied().collect();
        self.is_closed |= over.iter().any(|rest| rest.until > now);
        over.iter().for_each(|rest| self.clear(rest.run));
        !over.is_empty()
    }

    /// All runs of rows that are marked.
    pub(crate) fn marked_runs(&self) -> Vec<Run> {
        self.runs(true)
    }

    fn runs(&self, marked: bool) -> Vec<Run> {
        let (mut runs, mut row) = (Vec::<Run>::new(), 0);
        while row < self.rows {
            let start = row;
            while row < self.rows && self.is_marked(row) == marked {
                row += 1;
            }
            if row > start {
                runs.push(Run { row: start, rows: row - start });
            }
            row += 1;
        }
        runs
    }

    /// Marks about `goal` rows, at least one run of `least` among them, and says which; none where no free run is so long.
    pub(crate) fn take(&mut self, least: u32, goal: u32) -> Vec<Run> {
        let mut runs = self.free_runs();
        // The first that is long enough, then whatever follows it: what is written together lies together.
        let Some(first) = runs.iter().position(|run| run.rows >= least) else { return Vec::new() };
        runs.rotate_left(first);
        let mut taken = Vec::new();
        let mut left = goal.max(least);
        for run in runs {
            let run = Run { rows: run.rows.min(left), ..run };
            if run.rows == 0 {
                break;
            }
            self.set(run);
            left -= run.rows;
            taken.push(run);
        }
        taken
    }
}

/// A region of a chunk: on which member, and which one there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Region {
    /// The member's index.
    pub member: u16,
    /// The region's.
    pub region: u32,
}

/// A chunk's record: regions on members of different failure domains, one for each column, and which rows of them are taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub(crate) owner: u64,
    pub(crate) columns: Vec<Region>,
    pub(crate) marks: Marks,
}

/// What is to be done with a chunk after its marks were changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum After {
    Nothing,
    /// It is nobody's, and has room.
    List,
    /// It has given up its rows, and is to give back its regions.
    Bury,
}

impl Chunk {
    /// Has rows rest, where they are marked, and not too many do.
    pub(crate) fn rest(&mut self, number: u32, rests: &[Rest]) -> After {
        let free = self.marks.free_later();
        for rest in rests {
            if !self.marks.rest(*rest) {
                tracing::warn!(chunk = number, row = rest.run.row, rows = rest.run.rows, "rows are left to fsck");
            }
        }
        self.after(free)
    }

    /// Whether it gives its regions back.
    pub(crate) fn is_dying(&self) -> bool {
        self.owner == DYING
    }

    /// Whether whoever looks for room should find it in the list of those without an owner.
    pub(crate) fn is_listed(&self) -> bool {
        self.owner == NOBODY && self.marks.free_later() >= self.listed_from()
    }

    /// Free rows from which on it is listed.
    fn listed_from(&self) -> u32 {
        (self.marks.rows / LISTED_SHARE).max(1)
    }

    /// Clears marks; with `releases` it is nobody's then.
    pub(crate) fn clear(&mut self, number: u32, runs: &[Run], releases: bool) -> After {
        let free = if releases { 0 } else { self.marks.free_later() };
        for run in runs {
            if !self.marks.holds(*run) {
                tracing::warn!(chunk = number, row = run.row, rows = run.rows, "rows were not marked as taken");
            }
            self.marks.clear(*run);
        }
        self.marks.wake(rest::unix_now(), 0);
        if releases {
            self.owner = NOBODY;
        }
        self.after(free)
    }

    /// What is to be done, where so many rows could be had before.
    fn after(&mut self, free: u32) -> After {
        if self.owner == NOBODY && self.marks.marked() == 0 {
            self.owner = DYING;
            return After::Bury;
        }
        let is_new = free < self.listed_from() && self.is_listed();
        if is_new { After::List } else { After::Nothing }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.owner.to_le_bytes().to_vec();
        out.push(self.columns.len() as u8);
        for column in &self.columns {
            out.extend(column.member.to_le_bytes());
            out.extend(column.region.to_le_bytes());
        }
        out.extend(self.marks.rows.to_le_bytes());
        out.extend(self.marks.words.iter().flat_map(|word| word.to_le_bytes()));
        if self.marks.is_closed || !self.marks.rests.is_empty() {
            out.push(self.marks.is_closed.into());
            rest::encode(&self.marks.rests, &mut out);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Chunk, Error> {
        let mut reader = Reader::new("the record of a chunk", bytes);
        let owner = reader.u64()?;
        let count = usize::from(reader.u8()?);
        reader.check((2..=UNITS_MAX).contains(&count), "the number of columns")?;
        let mut columns = Vec::with_capacity(count);
        for _ in 0..count {
            columns.push(Region { member: reader.u16()?, region: reader.u32()? });
        }
        let rows = reader.u32()?;
        reader.check((1..=REGION_ROWS_MAX).contains(&rows), "the number of rows")?;
        let mut marks = Marks::new(rows);
        for word in &mut marks.words {
            *word = reader.u64()?;
        }
        let behind = (rows % 64 != 0).then(|| marks.words.last().map_or(0, |word| word >> (rows % 64)));
        reader.check(behind.unwrap_or(0) == 0, "marks behind the last row")?;
        if reader.has_more() {
            let is_closed = reader.u8()?;
            (marks.is_closed, marks.rests) = (is_closed == 1, rest::decode(&mut reader)?);
            reader.check(is_closed == 1 || (is_closed == 0 && !marks.rests.is_empty()), "whether it is closed")?;
            let is_marked = |rest: &Rest| marks.holds(rest.run);
            reader.check(marks.rests.iter().all(is_marked), "rows that rest and are not marked")?;
        }
        reader.end()?;
        Ok(Chunk { owner, columns, marks })
    }
}

/// A page of a member's record: of each region the chunk that has it, 0 for none. Regions behind the last one that is taken are
/// not there. Behind them stands [`CLOSED`], once the member is to be emptied.
///
/// Invariant: of a closed page nobody gets a region, whatever that client believes of the member, and no page opens again: so a
/// member all of whose pages are closed and empty has nothing, and gets nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RegionPage {
    chunks: Vec<u32>,
    is_closed: bool,
}

impl RegionPage {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let closed = self.is_closed.then_some(CLOSED);
        self.chunks.iter().copied().chain(closed).flat_map(u32::to_le_bytes).collect()
    }

    pub(crate) fn decode(bytes: Option<&[u8]>) -> Result<RegionPage, Error> {
        let (chunks, rest) = bytes.unwrap_or_default().as_chunks::<4>();
        let mut chunks: Vec<u32> = chunks.iter().map(|chunk| u32::from_le_bytes(*chunk)).collect();
        let is_closed = chunks.pop_if(|chunk| *chunk == CLOSED).is_some();
        let is_one = rest.is_empty() && chunks.len() <= REGIONS_PER_PAGE as usize && chunks.last() != Some(&0);
        let is_one = is_one && !chunks.contains(&CLOSED);
        if is_one {
            Ok(RegionPage { chunks, is_closed })
        } else {
            Err(Error::Damaged("the regions of a member".into()))
        }
    }

    /// Whether nothing gets a region of it any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Nothing gets a region of it any more. False: so it was.
    pub(crate) fn close(&mut self) -> bool {
        !std::mem::replace(&mut self.is_closed, true)
    }

    /// Regions of the first `count` that nothing has, and that can be had.
    pub(crate) fn free(&self, count: u32) -> u32 {
        if self.is_closed {
            return 0;
        }
        count - self.chunks.iter().take(count as usize).filter(|chunk| **chunk != 0).count() as u32
    }

    /// Gives the chunk a region of the first `count`, from one of them on and round.
    pub(crate) fn take(&mut self, chunk: u32, count: u32, from: u32) -> Option<u32> {
        // By the page alone: this client may not have heard yet that the member is to be emptied.
        if self.is_closed {
            return None;
        }
        let at = |region: u32| self.chunks.get(region as usize).copied().unwrap_or(0);
        let region = (0..count).map(|step| (from + step) % count).find(|region| at(*region) == 0)?;
        if self.chunks.len() <= region as usize {
            self.chunks.resize(region as usize + 1, 0);
        }
        self.chunks[region as usize] = chunk;
        Some(region)
    }

    /// Takes a region from the chunk, if that has it.
    pub(crate) fn give_back(&mut self, chunk: u32, region: u32) -> bool {
        let Some(place) = self.chunks.get_mut(region as usize).filter(|place| **place == chunk) else { return false };
        *place = 0;
        let used = self.chunks.iter().rposition(|chunk| *chunk != 0).map_or(0, |last| last + 1);
        self.chunks.truncate(used);
        true
    }

    /// Whether it says nothing: no region is taken, and it is not closed.
    pub(crate) fn is_blank(&self) -> bool {
        self.chunks.is_empty() && !self.is_closed
    }

    /// The regions that chunks have, and the chunks.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..).zip(self.chunks.iter().copied()).filter(|(_, chunk)| *chunk != 0)
    }
}

/// The chunks without an owner that have free rows, as far as is known: hints, each looked at before it is used.
pub(crate) fn encode_list(list: &[u32]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, list.len() as u64);
    out.extend(list.iter().flat_map(|chunk| chunk.to_le_bytes()));
    out
}

pub(crate) fn decode_list(bytes: Option<&[u8]>) -> Result<Vec<u32>, Error> {
    let Some(bytes) = bytes else { return Ok(Vec::new()) };
    let mut reader = Reader::new("the list of chunks without an owner", bytes);
    let count = reader.varint_to(UNOWNED_MAX as u64, "its length")?;
    let list = (0..count).map(|_| reader.u32()).collect::<Result<Vec<u32>, Error>>()?;
    reader.end()?;
    Ok(list)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn marks_are_a_set_of_rows(steps in proptest::collection::vec((0..3u8, 0..200u32, 1..90u32), 1..50)) {
            let mut marks = Marks::new(200);
            let mut model = std::collections::BTreeSet::new();
            for (kind, row, rows) in steps {
                let run = Run { row, rows: rows.min(200 - row) };
                match kind {
                    0 => {
                        marks.set(run);
                        model.extend(run.range());
                    }
                    1 => {
                        marks.clear(run);
                        model.retain(|row| !run.range().contains(row));
                    }
                    _ => {
                        let taken = marks.take(rows, 64);
                        prop_assert!(taken.is_empty() || taken[0].rows >= rows);
                        for row in taken.into_iter().flat_map(Run::range) {
                            prop_assert!(model.insert(row), "row {} was taken", row);
                        }
                    }
                }
                prop_assert_eq!(marks.holds(run), run.range().all(|row| model.contains(&row)));
                prop_assert_eq!(marks.free() as usize, 200 - model.len());
                let free: Vec<u32> = marks.free_runs().into_iter().flat_map(Run::range).collect();
                prop_assert_eq!(free, (0..200).filter(|row| !model.contains(row)).collect::<Vec<u32>>());
                let columns = vec![Region { member: 1, region: 2 }; 3];
                let chunk = Chunk { owner: 7, columns, marks: marks.clone() };
                prop_assert_eq!(Chunk::decode(&chunk.encode()), Ok(chunk));
            }
        }

        #[test]
        fn foreign_bytes_are_records_or_damage(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(chunk) = Chunk::decode(&bytes) {
                prop_assert_eq!(chunk.encode(), bytes.clone());
            }
            if let Ok(page) = RegionPage::decode(Some(&bytes)) {
                prop_assert_eq!(page.encode(), bytes.clone());
            }
            if let Ok(list) = decode_list(Some(&bytes)) {
                prop_assert_eq!(encode_list(&list), bytes.clone());
            }
        }
    }

    #[test]
    fn regions_are_given_once_and_back() {
        let mut page = RegionPage::default();
        let taken: Vec<Option<u32>> = (1..=5).map(|chunk| page.take(chunk, 4, 2)).collect();
        assert_eq!(taken, [Some(2), Some(3), Some(0), Some(1), None]);
        assert!(!page.give_back(9, 2), "of another chunk");
        assert!(page.give_back(1, 2) && !page.give_back(1, 2));
        assert_eq!((page.free(4), RegionPage::decode(Some(&page.encode()))), (1, Ok(page.clone())));
        [(2, 3), (3, 0), (4, 1)].into_iter().for_each(|(chunk, region)| assert!(page.give_back(chunk, region)));
        assert!(page.is_blank());
    }

    #[test]
    fn what_rests_is_cleared_in_its_time_or_with_the_chunk_closed() {
        let rest = Rest { run: Run { row: 10, rows: 10 }, columns: 2, until: 1000 };
        let mut chunk = Chunk { owner: 7, columns: vec![Region { member: 1, region: 2 }; 3], marks: Marks::new(100) };
        chunk.marks.set(Run { row: 0, rows: 50 });
        assert!(chunk.marks.rest(rest));
        assert!(!chunk.marks.rest(Rest { run: Run { row: 60, rows: 1 }, ..rest }), "nobody has marked it");
        assert_eq!(Chunk::decode(&chunk.encode()), Ok(chunk.clone()));
        let mut timely = chunk.clone();
        assert!(!timely.marks.wake(999, 5), "a command may still come");
        assert!(timely == chunk && timely.marks.wake(1000, 5));
        assert_eq!((timely.marks.marked(), timely.marks.take(1, 1).len()), (40, 1));
        assert!(chunk.marks.wake(999, 2));
        let had = (chunk.marks.marked(), chunk.marks.free(), chunk.marks.take(1, 64));
        assert_eq!(had, (40, 0, vec![]), "whoever has not heard that its member leaves would write there");
        assert_eq!(Chunk::decode(&chunk.encode()), Ok(chunk));
    }

    #[test]
    fn of_a_closed_page_nothing_is_given_and_it_stays_closed() {
        let mut page = RegionPage::default();
        assert_eq!(page.take(7, 4, 1), Some(1));
        assert!(page.close() && !page.close());
        assert_eq!((page.free(4), page.take(8, 4, 0)), (0, None), "whoever has not heard of it");
        assert!(page.give_back(7, 1));
        let again = RegionPage::decode(Some(&page.encode())).unwrap();
        assert!(again.is_closed && again.taken().next().is_none() && !again.is_blank(), "{again:?}");
        let whole: Vec<u8> = (1..=REGIONS_PER_PAGE).chain([CLOSED]).flat_map(u32::to_le_bytes).collect();
        let whole = RegionPage::decode(Some(&whole)).unwrap();
        assert_eq!((whole.is_closed, whole.taken().count()), (true, 512), "a page without a free region closes, too");
    }
}
