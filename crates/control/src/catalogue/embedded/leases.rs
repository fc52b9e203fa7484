//! When the leases of this process end: time comes in, and nothing is done here but telling.
//!
//! A lease's end is judged by this process's monotonic clock alone, so that no change of the calendar ends one. How long the
//! process was not there is not known to that clock: each lease that is found at opening lasts its whole time anew, as after a
//! change of leader in etcd. A lease may therefore last longer than asked for, and never shorter.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The leases that have not ended.
#[derive(Default)]
pub struct Leases {
    /// Number to time and end.
    alive: BTreeMap<u64, (Duration, Instant)>,
}

impl Leases {
    pub fn count(&self) -> usize {
        self.alive.len()
    }

    pub fn begin(&mut self, id: u64, ttl: Duration, now: Instant) {
        self.alive.insert(id, (ttl, now + ttl));
    }

    /// Begins the time of a lease that is not known yet.
    pub fn find(&mut self, id: u64, ttl: Duration, now: Instant) {
        self.alive.entry(id).or_insert((ttl, now + ttl));
    }

    /// The lease's time, which begins anew; none if it has ended, were it only just now: whoever looks at its keys next may see
    /// them gone.
    pub fn keep_alive(&mut self, id: u64, now: Instant) -> Option<Duration> {
        let (ttl, end) = self.alive.get_mut(&id).filter(|(_, end)| *end > now)?;
        *end = now + *ttl;
        Some(*ttl)
    }

    pub fn is_alive(&self, id: u64, now: Instant) -> bool {
        self.alive.get(&id).is_some_and(|(_, end)| *end > now)
    }

    pub fn end(&mut self, id: u64) {
        self.alive.remove(&id);
    }

    /// Takes out what has ended by `now`: from here on nobody can keep it alive, and its keys may be deleted.
    pub fn take_ended(&mut self, now: Instant) -> Vec<u64> {
        let ended: Vec<u64> = self.alive.iter().filter(|(_, (_, end))| *end <= now).map(|(id, _)| *id).collect();
        self.alive.retain(|_, (_, end)| *end > now);
        ended
    }

    /// When the next one ends.
    pub fn next_end(&self) -> Option<Instant> {
        self.alive.values().map(|(_, end)| *end).min()
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
        assert!(leases.take_ended(start + 2 * second).is_empty());
        assert!(leases.is_alive(1, start + 2 * second));
        // The end has come, though nobody has taken the lease out yet.
        assert!(!leases.is_alive(1, start + 3 * second));
        assert_eq!(leases.keep_alive(1, start + 3 * second), None);
        assert_eq!(leases.take_ended(start + 3 * second), [1, 2]);
        assert_eq!((leases.next_end(), leases.count()), (None, 0));
    }
}
