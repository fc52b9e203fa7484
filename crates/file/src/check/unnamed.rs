//! [`Unnamed`]: since when rows of chunks are named by no map, as far as this process has seen.
//!
//! **It is not enough that a chunk is as it was for an hour**: a map that does not name rows any more changes no chunk, and whoever
//! took them out of it clears their marks up to half an hour later, whosever they are by then. So rows are let go that no map has
//! named in a look, nor in any that came an hour later, while their chunk was at one version. And that first look counts only where
//! that version was known for a quarter of an hour: whoever marked rows while the chunk was its own may name them for ten minutes
//! after that, in a map that the look has read before.
//!
//! Memory: a set of marks a chunk.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::{self, Instant};

use super::HOUR;
use crate::data::{Marks, RENEWED_WITHIN};
use crate::meta::Version;

/// How long a chunk is at one version before rows of it are taken for named by no map. Derived: longer than marked rows may wait
/// for their name ([`RENEWED_WITHIN`]).
const KNOWN_FOR: Duration = Duration::from_secs(15 * 60);
const _: () = assert!(KNOWN_FOR.as_secs() > RENEWED_WITHIN.as_secs());

struct Since {
    version: Version,
    /// When it was read for the first time at that version.
    known: Instant,
    /// Rows that no map has named since then; `None`: that begins with a look [`KNOWN_FOR`] later.
    unnamed: Option<(Marks, Instant)>,
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
        let anew = || Since { version, known: time::now(), unnamed: None, turn };
        let since = self.chunks.entry(number).or_insert_with(anew);
        if since.version != version {
            *since = anew();
        }
        since.turn = turn;
        let begin = || (rows.clone(), time::now());
        let Some((kept, at)) = &mut since.unnamed else {
            since.unnamed = (sent.duration_since(since.known) >= KNOWN_FOR).then(begin);
            return None;
        };
        // Named meanwhile, they may have been freed after that.
        kept.keep_all(rows);
        let ripe = (sent.duration_since(*at) >= HOUR).then(|| kept.clone());
        if kept.marked() == 0 && rows.marked() > 0 {
            (*kept, *at) = begin();
        }
        ripe
    }

    /// How long until the next look can say more of all that is known.
    pub(crate) fn left(&self) -> Duration {
        let now = time::now();
        let left = |since: &Since| match &since.unnamed {
            Some((_, at)) => HOUR.saturating_sub(now.duration_since(*at)),
            None => KNOWN_FOR.saturating_sub(now.duration_since(since.known)),
        };
        self.chunks.values().map(left).max().unwrap_or_default()
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
            let mut note =
                |number, counter, row, rows| unnamed.note(number, version(counter), &marks(row, rows), time::now());
            assert_eq!(note(1, 1, 0, 2), None);
            time::sleep(KNOWN_FOR).await;
            assert_eq!(note(1, 1, 0, 2), None);
            time::sleep(HOUR).await;
            assert_eq!(note(1, 1, 0, 4), Some(marks(0, 2)), "two were named until a moment ago");
            assert_eq!(note(1, 2, 2, 2), None, "two were cleared");
            time::sleep(KNOWN_FOR).await;
            assert_eq!(note(1, 2, 2, 2), None);
            time::sleep(HOUR).await;
            assert_eq!(note(1, 2, 2, 2), Some(marks(2, 2)));
            // Those of a map that was there an hour ago, and nothing else.
            assert_eq!(note(2, 1, 0, 0), None);
            time::sleep(KNOWN_FOR).await;
            assert_eq!(note(2, 1, 0, 0), None);
            time::sleep(HOUR).await;
            assert_eq!(note(2, 1, 4, 1), Some(marks(0, 0)));
            time::sleep(HOUR).await;
            assert_eq!(note(2, 1, 4, 1), Some(marks(4, 1)));
            // Not named, named, and not named.
            assert_eq!(note(3, 1, 0, 2), None);
            time::sleep(KNOWN_FOR).await;
            assert_eq!(note(3, 1, 0, 2), None);
            note(3, 1, 1, 1);
            time::sleep(HOUR).await;
            assert_eq!(note(3, 1, 0, 2), Some(marks(1, 1)));
        });
        ended.expect("it ends");
    }

    /// A writer marks rows, its chunk becomes nobody's, and a map names them ten minutes later; others take them out of it soon,
    /// and clear their marks up to half an hour after that. Two looks an hour apart see none of that.
    #[test]
    fn rows_that_may_be_named_yet_are_not_taken_for_unnamed() {
        let config = SimConfig { virtual_time_max: HOUR * 20, ..SimConfig::default() };
        let ended = World::new(1, config).run_until(async {
            let version = Version::new(Timestamp { counter: 1, ..Timestamp::ZERO }, &[]);
            let mut unnamed = Unnamed::default();
            let mut note = |row, rows| unnamed.note(1, version, &marks(row, rows), time::now());
            assert_eq!(note(0, 4), None);
            time::sleep(HOUR).await;
            assert_eq!(note(0, 4), None, "rows of which nobody knows what they were when they could be named");
            time::sleep(HOUR).await;
            assert_eq!(note(0, 4), Some(marks(0, 4)));
        });
        ended.expect("it ends");
    }
}
