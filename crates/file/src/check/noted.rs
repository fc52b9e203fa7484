//! [`Noted`]: since when things are as they are, as far as this process has seen.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::{self, Instant};

use super::HOUR;

/// See the module. `V` tells whether something is as it was.
pub(crate) struct Noted<K, V> {
    since: BTreeMap<K, (V, Instant, u64)>,
    turn: u64,
}

impl<K: Ord + Copy, V: PartialEq + Copy> Noted<K, V> {
    pub(crate) fn new() -> Noted<K, V> {
        Noted { since: BTreeMap::new(), turn: 0 }
    }

    /// A new look begins: what it does not find is forgotten at its end.
    pub(crate) fn begin(&mut self) {
        self.turn += 1;
    }

    /// Something was found as `value`, by a read that was sent at `sent` or later, and has ended. Whether it was so for an hour
    /// before that: from when it had been read for the first time up to when this was sent.
    pub(crate) fn note(&mut self, key: K, value: V, sent: Instant) -> bool {
        let seen = self.since.entry(key).or_insert((value, time::now(), self.turn));
        if seen.0 != value {
            *seen = (value, time::now(), self.turn);
        }
        seen.2 = self.turn;
        sent.duration_since(seen.1) >= HOUR
    }

    /// The look is over.
    pub(crate) fn end(&mut self) {
        let turn = self.turn;
        self.since.retain(|_, (.., seen)| *seen == turn);
    }

    /// How long until all that is known has been so for an hour.
    pub(crate) fn left(&self) -> Duration {
        let latest = self.since.values().map(|(_, at, _)| *at).max();
        latest.map_or(Duration::ZERO, |at| HOUR.saturating_sub(time::now().duration_since(at)))
    }
}
