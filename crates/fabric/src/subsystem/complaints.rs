//! A bound on what peers can make the target write to its log: so many lines a second, and a count of the rest.
//!
//! A peer that connects and misbehaves a thousand times a second would otherwise fill the disk of whoever keeps the log.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use engine::time::Instant;

/// Lines in each second. Guessed: more than anybody reads, and 100 MB of log in a day at the most.
const LINES_MAX: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// See the module. Shared by all connections of a target; asked only when one is refused or has ended badly.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when lines are counted.
    since: Instant,
    lines: u32,
    /// Complaints that were not said since the last line.
    unsaid: u64,
}

impl Complaints {
    /// Tells the operator of a peer's fault, or notes that there was one more.
    pub fn tell(&self, now: Instant, peer: &dyn Display, what: &str, reason: &dyn Display) {
        match self.line(now) {
            Some(0) => tracing::warn!(%peer, %reason, "{what}"),
            Some(unsaid) => tracing::warn!(%peer, %reason, "{what}; {unsaid} more faults of peers before it"),
            None => tracing::debug!(%peer, %reason, "{what}"),
        }
    }

    /// Whether there may be a line now: how many were left out since the last.
    fn line(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.lines == 0 || now.duration_since(state.since) >= SECOND {
            (state.since, state.lines) = (now, 0);
        }
        if state.lines == LINES_MAX {
            state.unsaid += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_a_second_and_the_rest_is_counted() {
        let complaints = Complaints::default();
        let at = |ms: u64| Instant::from_nanos(5_000_000_000 + ms * 1_000_000);
        let said = (0..100).filter(|&ms| complaints.line(at(ms)).is_some()).count();
        assert_eq!(said, LINES_MAX as usize);
        assert_eq!(complaints.line(at(999)), None);
        assert_eq!(complaints.line(at(1000)), Some(91));
        assert_eq!(complaints.line(at(1001)), Some(0));
    }
}
