//! [`Unnamed`]: since when rows of chunks are named by no map, as far as this process has seen.
//!
//! **It is not enough that a chunk is as it was for an hour**: a map that does not name rows any more changes no chunk, and whoever
//! took them out of it clears their marks up to half an hour later, whosever they are by then. So rows are let go that no map has
//! named in a look, nor in any that came an hour later, while their chunk was at one version.
//!
//! Memory: a set of marks a chunk.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::{self, Instant};

use super::HOUR;
use crate::data::Marks;
use crate::meta::Version;

struct Since {
    version: Version,
    /// Rows that no map has named since.
    rows: Marks,
    at: Instant,
    turn: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Unnamed {
    chunks: BTreeMap<u32, Since>,
    turn: u64,
}

impl Unnamed {
    /// A new look begins: chunks that it does not find are forgotten at its end.
    pub(crate) fn begin(&mut self) {
        self.turn += 1;
    }

    /// The look is over.
    pub(crate) fn end(&mut self) {
        let turn = self.turn;
        self.chunks.retain(|_, since| since.turn == turn);
    }

    /// A chunk was found at a version, and rows of it are named by nothing, by reads that were sent at `sent` or later, and have
    /// ended. The rows that were so for an hour before that; `None`: the chunk was not.
    pub(crate) fn note(&mut self, number: u32, version: Version, rows: &Marks, sent: Instant) -> Option<Marks> {
        let turn = self.turn;
        let anew = || Since { version, rows: rows.clone(), at: time::now(), turn };
        let since = self.chunks.entry(number).or_insert_with(anew);
        if since.version != version {
            *since = anew();
        }
        since.turn = turn;
        let is_ripe = sent.duration_since(since.at) >= HOUR;
        // Named meanwhile, they may have been freed after that.
        since.rows.keep_all(rows);
        let ripe = is_ripe.then(|| since.rows.clone());
        if since.rows.marked() == 0 && rows.marked() > 0 {
            *since = anew();
        }
        ripe
    }

    /// How long until all that is known has been so for an hour.
    pub(crate) fn left(&self) -> Duration {
        let latest = self.chunks.values().map(|since| since.at).max();
        latest.map_or(Duration::ZERO, |at| HOUR.saturating_sub(time::now().duration_since(at)))
    }
}

#[cfg(test)]
mod tests {
    use engine::sim::{SimConfig, World};
    use kv::Timestamp;

    use super::*;
    use crate::data::Run;

    fn marks(row: u32, rows: u32) -> Marks {
        let mut marks = Marks::new(8);
        marks.set(Run { row, rows });
        marks
    }

    #[test]
    fn rows_are_let_go_that_no_map_has_named_for_an_hour() {
        let config = SimConfig { virtual_time_max: HOUR * 20, ..SimConfig::default() };
        let ended = World::new(1, config).run_until(async {
            let version = |counter| Version::new(Timestamp { counter, ..Timestamp::ZERO }, &[]);
            let mut unnamed = Unnamed::default();
            assert_eq!(unnamed.note(1, version(1), &marks(0, 2), time::now()), None);
            time::sleep(HOUR).await;
            let ripe = unnamed.note(1, version(1), &marks(0, 4), time::now());
            assert_eq!(ripe, Some(marks(0, 2)), "two were named until a moment ago");
            assert_eq!(unnamed.note(1, version(2), &marks(2, 2), time::now()), None, "two were cleared");
            time::sleep(HOUR).await;
            assert_eq!(unnamed.note(1, version(2), &marks(2, 2), time::now()), Some(marks(2, 2)));
            // Those of a map that was there an hour ago, and nothing else.
            assert_eq!(unnamed.note(2, version(1), &marks(0, 0), time::now()), None);
            time::sleep(HOUR).await;
            assert_eq!(unnamed.note(2, version(1), &marks(4, 1), time::now()), Some(marks(0, 0)));
            time::sleep(HOUR).await;
            assert_eq!(unnamed.note(2, version(1), &marks(4, 1), time::now()), Some(marks(4, 1)));
            // Not named, named, and not named.
            assert_eq!(unnamed.note(3, version(1), &marks(0, 2), time::now()), None);
            unnamed.note(3, version(1), &marks(1, 1), time::now());
            time::sleep(HOUR).await;
            assert_eq!(unnamed.note(3, version(1), &marks(0, 2), time::now()), Some(marks(1, 1)));
        });
        ended.expect("it ends");
    }
}
