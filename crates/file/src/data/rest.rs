//! Rows of a chunk that rest: nobody uses them, and a command of before may still write them.
//!
//! They stay marked. When their time is over, whoever changes the chunk's record clears them with that change.

use std::ops::Range;

use crate::bytes::{Reader, Writer};
use crate::error::Error;

/// Rests in the record of a chunk. Derived: 1,280 bytes, so that the record of the largest chunk stays within a page of the store.
pub(crate) const RESTS_MAX: usize = 64;
/// By how much the clocks of hosts may differ. Chosen: many times what they do where anybody sees to them. Where they differ by
/// more, a late command spoils a column of what came there next, which does not verify then, and is made good.
pub(crate) const CLOCKS_APART: u64 = 10 * 60;

/// Rows of a chunk, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Run {
    pub(crate) row: u32,
    pub(crate) rows: u32,
}

impl Run {
    pub(crate) fn range(self) -> Range<u32> {
        self.row..self.row + self.rows
    }
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rest {
    pub(crate) run: Run,
    /// Columns that may be written still, as bits.
    pub(crate) columns: u32,
    /// Until when, in seconds since 1970.
    pub(crate) until: u64,
}

/// The time of this host's clock, in seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    engine::time::unix_time().as_secs()
}

impl Rest {
    fn end(&self) -> u32 {
        self.run.row + self.run.rows
    }

    /// Whether one of these rows rests.
    pub(crate) fn touches(self, run: Run) -> bool {
        self.run.row < run.row.saturating_add(run.rows) && run.row < self.end()
    }

    /// What is left of it without these rows.
    fn without(self, run: Run) -> impl Iterator<Item = Rest> {
        let part =
            move |from: u32, to: u32| (from < to).then(|| Rest { run: Run { row: from, rows: to - from }, ..self });
        let before = part(self.run.row, self.end().min(run.row));
        let behind = part(self.run.row.max(run.row.saturating_add(run.rows)), self.end());
        before.into_iter().chain(behind)
    }

    /// Whether it is over; or, where late commands to some columns do no harm, waits for nothing else.
    pub(crate) fn is_over(&self, now: u64, harmless: u32) -> bool {
        self.until <= now || self.columns & !harmless == 0
    }
}

/// Takes rows out of rests.
pub(crate) fn cut(rests: &mut Vec<Rest>, run: Run) {
    if !rests.is_empty() {
        *rests = std::mem::take(rests).into_iter().flat_map(|rest| rest.without(run)).collect();
    }
}

/// Adds a rest, in the order of rows; what lies side by side rests together, as long as the longest. False: they are too many,
/// and are as they were.
pub(crate) fn add(rests: &mut Vec<Rest>, rest: Rest) -> bool {
    let mut all = rests.clone();
    cut(&mut all, rest.run);
    let at = all.partition_point(|other| other.run.row < rest.run.row);
    all.insert(at, rest);
    let mut joined: Vec<Rest> = Vec::with_capacity(all.len());
    for rest in all {
        match joined.last_mut().filter(|last| last.end() == rest.run.row) {
            Some(last) => {
                last.run.rows += rest.run.rows;
                (last.columns, last.until) = (last.columns | rest.columns, last.until.max(rest.until));
            }
            None => joined.push(rest),
        }
    }
    let fits = joined.len() <= RESTS_MAX;
    if fits {
        *rests = joined;
    }
    fits
}

pub(crate) fn encode(rests: &[Rest], to: &mut Vec<u8>) {
    let mut out = Writer::default();
    out.u16(rests.len() as u16);
    for Rest { run, columns, until } in rests {
        out.u32(run.row).u32(run.rows).u32(*columns).u64(*until);
    }
    to.extend(out.0);
}

pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Vec<Rest>, Error> {
    let count = usize::from(from.u16()?);
    from.check(count <= RESTS_MAX, "too many rows that rest")?;
    let mut rests = Vec::with_capacity(count);
    for _ in 0..count {
        let run = Run { row: from.u32()?, rows: from.u32()? };
        rests.push(Rest { run, columns: from.u32()?, until: from.u64()? });
    }
    from.check(rests.iter().all(|rest| rest.run.rows > 0), "no rows that rest")?;
    let apart = |pair: &[Rest]| pair[0].run.row.saturating_add(pair[0].run.rows) <= pair[1].run.row;
    from.check(rests.windows(2).all(apart), "rows that rest twice")?;
    Ok(rests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(row: u32, rows: u32, columns: u32, until: u64) -> Rest {
        Rest { run: Run { row, rows }, columns, until }
    }

    #[test]
    fn rests_are_joined_cut_and_bounded() {
        let mut rests = Vec::new();
        assert!(add(&mut rests, rest(10, 5, 1, 100)) && add(&mut rests, rest(20, 5, 2, 90)));
        assert!(add(&mut rests, rest(15, 5, 4, 50)));
        assert_eq!(rests, [rest(10, 15, 7, 100)]);
        cut(&mut rests, Run { row: 12, rows: 3 });
        assert_eq!(rests, [rest(10, 2, 7, 100), rest(15, 10, 7, 100)]);
        assert!(!rests[0].is_over(99, 3) && rests[0].is_over(99, 15) && rests[0].is_over(100, 0));
        cut(&mut rests, Run { row: 0, rows: 100 });
        assert!((0..RESTS_MAX as u32).all(|row| add(&mut rests, rest(row * 2, 1, 1, 1))));
        assert!(!add(&mut rests, rest(1000, 1, 1, 1)), "no record outgrows its page");
        assert!(add(&mut rests, rest(1, 1, 1, 1)));
    }
}
