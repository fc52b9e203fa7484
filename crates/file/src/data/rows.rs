//! Rows that a client has marked and not yet used, and what waits until it may be marked free.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use engine::time::Instant;

use super::chunk::{Region, Run};
use super::rest::{CLOCKS_APART, Rest};

/// Until whatever was sent to a member has taken effect, or never will. As the store assumes.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(30 * 60);
/// What was not marked free for so long is left to `fsck`, which clears it after an hour: to clear marks later than that could
/// clear those of somebody else.
const CLEARED_WITHIN: Duration = Duration::from_secs(10 * 60);

/// Where a chunk's columns are. It never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkPlace {
    /// The chunk.
    pub number: u32,
    /// A region for each column.
    pub columns: Vec<Region>,
}

/// A chunk of ours.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) place: Rc<ChunkPlace>,
    /// Marked and not used; sorted, no two of them side by side.
    pub(crate) pool: Vec<Run>,
    /// The longest run of it without marks, as far as is known.
    pub(crate) longest_free: u32,
}

impl Owned {
    /// Rows become usable.
    pub(crate) fn put(&mut self, run: Run) {
        let at = self.pool.partition_point(|other| other.row < run.row);
        self.pool.insert(at, run);
        for left in [at, at.wrapping_sub(1)] {
            if let [first, second] = self.pool.get(left..left.saturating_add(2)).unwrap_or_default()
                && first.row + first.rows == second.row
            {
                let rows = first.rows + second.rows;
                self.pool[left].rows = rows;
                self.pool.remove(left + 1);
            }
        }
    }

    /// Takes rows of the shortest run that is long enough.
    pub(crate) fn take(&mut self, rows: u32) -> Option<Run> {
        let fits = self.pool.iter().enumerate().filter(|(_, run)| run.rows >= rows);
        let (at, _) = fits.min_by_key(|(_, run)| run.rows)?;
        let run = &mut self.pool[at];
        let taken = Run { row: run.row, rows };
        (run.row, run.rows) = (run.row + rows, run.rows - rows);
        if run.rows == 0 {
            self.pool.remove(at);
        }
        Some(taken)
    }
}

/// What became of an attempt to mark rows.
pub(crate) enum Marked {
    /// These, and how long the longest run is that is left.
    Rows(Vec<Run>, Rc<ChunkPlace>, u32),
    /// No run is long enough; how long the longest one is.
    Short(u32),
    /// It is another's, or gone.
    NotOurs,
    /// It is giving its regions back.
    Dying,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) owned: BTreeMap<u32, Owned>,
    /// What may still be written late by a command that was given up: since when, and of which columns.
    aside: VecDeque<(Instant, u32, Run, u32)>,
    /// Marks to clear, of chunks that are not ours; since when.
    clears: VecDeque<(Instant, u32, Run)>,
    /// Chunks that may be ours by their records, and of which we use nothing: a change of unknown outcome.
    pub(crate) doubtful: BTreeSet<u32>,
    /// Chunks that are closed before that: late commands may write these rows, in regions that nobody gets any more.
    closing: BTreeSet<u32>,
}

impl Rows {
    /// Rows that hold nothing any more, and that nobody writes any more.
    pub(crate) fn put(&mut self, chunk: u32, run: Run, now: Instant) {
        match self.owned.get_mut(&chunk) {
            Some(owned) => owned.put(run),
            None => self.clears.push_back((now, chunk, run)),
        }
    }

    /// Rows that hold nothing any more, and of which a late command may still write these columns.
    pub(crate) fn put_aside(&mut self, chunk: u32, run: Run, columns: u32, now: Instant) {
        self.aside.push_back((now, chunk, run, columns));
    }

    /// Rows that hold nothing any more, of a chunk of which nobody is to get any from now on, this client neither.
    pub(crate) fn put_closing(&mut self, chunk: u32, run: Run, now: Instant) {
        self.closing.insert(chunk);
        self.clears.push_back((now, chunk, run));
    }

    /// Whether a chunk is closed before marks of it are cleared.
    pub(crate) fn is_closing(&self, chunk: u32) -> bool {
        self.closing.contains(&chunk)
    }

    /// It is closed.
    pub(crate) fn closed(&mut self, chunk: u32) {
        self.closing.remove(&chunk);
    }

    /// Stretches of rows that are aside.
    pub(crate) fn count_aside(&self) -> usize {
        self.aside.len()
    }

    /// Chunks with rows that are aside.
    pub(crate) fn chunks_aside(&self) -> BTreeSet<u32> {
        self.aside.iter().map(|(_, chunk, ..)| *chunk).collect()
    }

    /// All that is aside, by chunk, with the time by this host's clock until which it rests.
    pub(crate) fn take_aside(&mut self, now: Instant, unix: u64) -> BTreeMap<u32, Vec<(Instant, Rest)>> {
        let mut by_chunk: BTreeMap<u32, Vec<(Instant, Rest)>> = BTreeMap::new();
        for (since, chunk, run, columns) in std::mem::take(&mut self.aside) {
            let left = SETTLED_AFTER.saturating_sub(now.duration_since(since)).as_secs() + 1;
            let rest = Rest { run, columns, until: unix + left + CLOCKS_APART };
            by_chunk.entry(chunk).or_default().push((since, rest));
        }
        by_chunk
    }

    /// Late commands to these columns, by chunk, do no harm any more: rows that were aside for them alone are put back.
    pub(crate) fn put_back(&mut self, columns: &BTreeMap<u32, u32>, now: Instant) {
        let of = |chunk: u32| columns.get(&chunk).copied().unwrap_or(0);
        let is_back = |aside: &(Instant, u32, Run, u32)| aside.3 & !of(aside.1) == 0;
        let (back, aside): (Vec<_>, _) = std::mem::take(&mut self.aside).into_iter().partition(is_back);
        self.aside = aside.into();
        back.into_iter().for_each(|(_, chunk, run, _)| self.put_closing(chunk, run, now));
    }

    /// What has waited long enough is put back.
    pub(crate) fn ripen(&mut self, now: Instant) {
        while let Some((since, chunk, run, _)) = self.aside.front().copied()
            && now.duration_since(since) >= SETTLED_AFTER
        {
            self.aside.pop_front();
            // Not since now: this may come late, and others have taken them for lost by then.
            self.put(chunk, run, since + SETTLED_AFTER);
        }
    }

    /// Marks that wait to be cleared, and since when the first one does.
    pub(crate) fn waiting(&self) -> (usize, Option<Instant>) {
        (self.clears.len(), self.clears.front().map(|(since, ..)| *since))
    }

    /// All marks to clear that may still be cleared, by chunk.
    pub(crate) fn take_clears(&mut self, now: Instant) -> BTreeMap<u32, Vec<(Instant, Run)>> {
        let mut by_chunk: BTreeMap<u32, Vec<(Instant, Run)>> = BTreeMap::new();
        for (since, chunk, run) in std::mem::take(&mut self.clears) {
            if may_clear(since, now) {
                by_chunk.entry(chunk).or_default().push((since, run));
            }
        }
        by_chunk
    }

    /// They were not cleared.
    pub(crate) fn put_clears(&mut self, chunk: u32, runs: Vec<(Instant, Run)>) {
        self.clears.extend(runs.into_iter().map(|(since, run)| (since, chunk, run)));
    }
}

/// Whether marks may be cleared that have waited since then.
pub(crate) fn may_clear(since: Instant, now: Instant) -> bool {
    now.duration_since(since) < CLEARED_WITHIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_side_by_side_become_one_and_the_shortest_that_fits_is_taken() {
        let place = Rc::new(ChunkPlace { number: 1, columns: Vec::new() });
        let mut owned = Owned { place, pool: Vec::new(), longest_free: 0 };
        for (row, rows) in [(10, 5), (20, 2), (15, 5), (0, 4), (8, 2)] {
            owned.put(Run { row, rows });
        }
        assert_eq!(owned.pool, [Run { row: 0, rows: 4 }, Run { row: 8, rows: 14 }]);
        assert_eq!(owned.take(3), Some(Run { row: 0, rows: 3 }));
        assert_eq!(owned.take(2), Some(Run { row: 8, rows: 2 }));
        assert_eq!(owned.take(13), None);
        assert_eq!(owned.take(1), Some(Run { row: 3, rows: 1 }));
        assert_eq!(owned.pool, [Run { row: 10, rows: 12 }]);
    }

    #[test]
    fn what_may_be_written_late_waits_and_what_waited_too_long_is_not_cleared() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let mut rows = Rows::default();
        rows.put_aside(7, Run { row: 1, rows: 1 }, 2, at(0));
        rows.ripen(at(1799));
        assert_eq!(rows.waiting(), (0, None), "a command of half an hour ago may still come");
        rows.ripen(at(1800));
        assert_eq!(rows.waiting(), (1, Some(at(1800))));
        assert!(
            rows.take_clears(at(2400)).is_empty(),
            "by then fsck may have cleared them, and another has taken them"
        );
        rows.put_aside(7, Run { row: 1, rows: 1 }, 2, at(0));
        rows.ripen(at(5000));
        assert_eq!(rows.waiting(), (1, Some(at(1800))), "whoever looks late has no more time for it");
        assert!(rows.take_clears(at(5000)).is_empty());
        rows.put_aside(7, Run { row: 1, rows: 1 }, 6, at(5000));
        rows.put_back(&[(7, 5)].into(), at(5001));
        assert_eq!(rows.waiting(), (0, None), "the other column may be written still");
        rows.put_back(&[(7, 14)].into(), at(5001));
        assert_eq!((rows.waiting(), rows.is_closing(7)), ((1, Some(at(5001))), true));
    }
}
