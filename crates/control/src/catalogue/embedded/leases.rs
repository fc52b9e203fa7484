//! When the leases of this process end: time comes in, and nothing is done here but telling.
//!
//! A lease's end is judged by this process's monotonic clock alone, so that no change of the calendar ends one. How long the
//! process was not there is not known to that clock: each lease that is found at opening lasts its whole time anew, as after a
//! change of leader in etcd. A lease may therefore last longer than asked for, and never shorter.
//!
//! **That a lease has ended is said only when the file has it no more**: a crash would undo an end that the clock alone knows, and
//! whoever was told of it would see the lease alive again. A lease whose time is over stays here until then, and can't be revived.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The leases that the file has.
#[derive(Default)]
pub struct Leases {
    /// Number to time and end.
    known: BTreeMap<u64, (Duration, Instant)>,
}

impl Leases {
    pub fn count(&self) -> usize {
        self.known.len()
    }

    pub fn begin(&mut self, id: u64, ttl: Duration, now: Instant) {
        self.known.insert(id, (ttl, now + ttl));
    }

    /// Begins the time of a lease that is not known yet.
    pub fn find(&mut self, id: u64, ttl: Duration, now: Instant) {
        self.known.entry(id).or_insert((ttl, now + ttl));
    }

    /// The lease's time, which begins anew; none if it has ended, were it only just now: whoever looks at its keys next may see
    /// them gone.
    pub fn keep_alive(&mut self, id: u64, now: Instant) -> Option<Duration> {
        let (ttl, end) = self.known.get_mut(&id).filter(|(_, end)| *end > now)?;
        *end = now + *ttl;
        Some(*ttl)
    }

    pub fn is_alive(&self, id: u64, now: Instant) -> bool {
        self.known.get(&id).is_some_and(|(_, end)| *end > now)
    }

    /// The file has it no more.
    pub fn forget(&mut self, id: u64) {
        self.known.remove(&id);
    }

    /// Those whose time is over by `now`: nobody can keep them alive, and their keys may be deleted.
    pub fn ended(&self, now: Instant) -> Vec<u64> {
        self.known.iter().filter(|(_, (_, end))| *end <= now).map(|(id, _)| *id).collect()
    }

    /// When the next one ends.
    pub fn next_end(&self) -> Option<Instant> {
        self.known.values().map(|(_, end)| *end).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_when_nobody_keeps_it_alive_and_cannot_be_revived() {
        let (mut leases, start, second) = (Leases::default(), Instant::now(), Duration::from_secs(1));
        leases.begin(1, 2 * second, start);
        leases.begin(2, 3 * second, start);
        assert_eq!(leases.next_end(), Some(start + 2 * second));
        assert_eq!(leases.keep_alive(1, start + second), Some(2 * second));
        assert!(leases.ended(start + 2 * second).is_empty());
        assert!(leases.is_alive(1, start + 2 * second));
        // The end has come, though the file has the lease yet.
        assert!(!leases.is_alive(1, start + 3 * second));
        assert_eq!(leases.keep_alive(1, start + 3 * second), None);
        leases.find(1, 2 * second, start + 3 * second);
        assert_eq!(leases.ended(start + 3 * second), [1, 2]);
        leases.forget(1);
        leases.forget(2);
        assert_eq!((leases.next_end(), leases.count()), (None, 0));
    }
}
