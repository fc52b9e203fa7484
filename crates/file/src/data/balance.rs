//! When a member will have answered, by what it has answered so far, and which columns are read because of that.
//!
//! A member is a queue with a rate: time a byte, by the last answers, each divided by all bytes that were under way when it was
//! asked. An estimate wears off while nothing is asked, so that a member that was slow once is tried again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::time::{self, Instant};

/// What a command costs at least, in bytes. Guessed: what a medium transfers in the time of one command.
const COMMAND_BYTES: u64 = 16 << 10;
/// Picoseconds a byte of a member that nothing is known of. Guessed: a GiB a second.
const PICOS_FIRST: u64 = 1000;
/// Of an estimate this share goes with each new answer.
const SHARE: u64 = 8;
/// An estimate is halved towards the first one each time that so long nothing was learned.
const HALF_LIFE_NANOS: u64 = 1_000_000_000;
/// Another way has to be this many times as fast, and by so much, to be taken: an idle system takes the plain one.
const FACTOR: u64 = 2;
const MARGIN_NANOS: u64 = 1_000_000;
/// A read that takes so many times what was expected, and at least so long, is helped by a decode.
const HEDGE_FACTOR: u64 = 4;
const HEDGE_NANOS_MIN: u64 = 3_000_000;

/// What a read of a stripe took, beside or in place of the plain way: of several the worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Way {
    /// Nothing else.
    Plain,
    /// Others were asked in the place of members that were known to be slow.
    Balanced,
    /// Others were asked when members were late.
    Hedged,
    /// Others were asked as columns were missing, failed or did not verify.
    Degraded,
    /// It was all in vain.
    Failed,
}

impl Way {
    /// Of all, by their numbers.
    pub const LABELS: [&str; 5] = ["plain", "balanced", "hedged", "degraded", "failed"];
}

/// What is known of a member's speed.
#[derive(Debug)]
pub(crate) struct Pace {
    picos_per_byte: Cell<u64>,
    learned: Cell<Instant>,
    outstanding: Cell<u64>,
    /// What others have under way there.
    load: Cell<Duration>,
}

/// A command under way. One that is dropped before its end was slower than it has been so far: that is learned, too.
pub(crate) struct Busy {
    pace: Rc<Pace>,
    bytes: u64,
    queue: u64,
    since: Instant,
    is_read: bool,
}

impl Pace {
    pub(crate) fn new() -> Rc<Pace> {
        Rc::new(Pace {
            picos_per_byte: Cell::new(PICOS_FIRST),
            learned: Cell::new(Instant::default()),
            outstanding: Cell::new(0),
            load: Cell::new(Duration::ZERO),
        })
    }

    /// What others have under way there, as they say.
    pub(crate) fn set_load(&self, load: Duration) {
        self.load.set(load);
    }

    pub(crate) fn load(&self) -> Duration {
        self.load.get()
    }

    fn picos_at(&self, now: Instant) -> u64 {
        let halvings = now.duration_since(self.learned.get()).as_nanos() as u64 / HALF_LIFE_NANOS;
        let picos = self.picos_per_byte.get();
        if picos <= PICOS_FIRST { picos } else { PICOS_FIRST + ((picos - PICOS_FIRST) >> halvings.min(63)) }
    }

    /// Nanoseconds until an answer of so many bytes that is asked for now.
    pub(crate) fn finish_nanos(&self, bytes: u64, now: Instant) -> u64 {
        let queue = self.outstanding.get() + bytes.max(COMMAND_BYTES);
        (queue.saturating_mul(self.picos_at(now)) / 1000).saturating_add(self.load.get().as_nanos() as u64)
    }

    /// A command of so many bytes begins.
    pub(crate) fn begin(self: &Rc<Self>, bytes: u64, is_read: bool) -> Busy {
        let bytes = bytes.max(COMMAND_BYTES);
        let queue = self.outstanding.get() + bytes;
        self.outstanding.set(queue);
        Busy { pace: Rc::clone(self), bytes, queue, since: time::now(), is_read }
    }

    fn learn(&self, picos: u64, now: Instant) {
        let old = self.picos_at(now);
        self.picos_per_byte.set((old * (SHARE - 1) + picos) / SHARE);
        self.learned.set(now);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.pace.outstanding.set(self.pace.outstanding.get().saturating_sub(self.bytes));
        // Where the world has ended there is no time either. Writes wait for media as reads do not.
        if self.is_read && engine::task::in_world() {
            let now = time::now();
            let nanos = now.duration_since(self.since).as_nanos() as u64;
            self.pace.learn(nanos.saturating_mul(1000) / self.queue, now);
        }
    }
}

/// Whether a way that ends after so many nanoseconds is so much faster than the plain one that it is taken.
pub(crate) fn is_faster(plain: u64, other: u64) -> bool {
    plain > other.saturating_mul(FACTOR).saturating_add(MARGIN_NANOS)
}

/// When help is called for what was expected to take so long.
pub(crate) fn hedge_after(expected: u64) -> Duration {
    Duration::from_nanos(expected.saturating_mul(HEDGE_FACTOR).max(HEDGE_NANOS_MIN))
}

/// Of columns with the time that each would take, those that are better not asked though the plain way asks them: at most as many
/// as `others` can stand in for, the slowest ones. `others` are the times of columns that the plain way does not ask, and `more` is
/// how many of them are needed for the first one that is left out (each further one needs one more).
pub(crate) fn left_out(plain: &[(usize, u64)], others: &mut [u64], more: usize) -> Vec<usize> {
    others.sort_unstable();
    let mut slowest = plain.to_vec();
    slowest.sort_unstable_by_key(|(column, nanos)| (std::cmp::Reverse(*nanos), *column));
    let mut left_out = Vec::new();
    for (column, nanos) in slowest {
        let needed = more + left_out.len();
        let Some(other) = needed.checked_sub(1).and_then(|last| others.get(last)) else { break };
        if !is_faster(nanos, *other) {
            break;
        }
        left_out.push(column);
    }
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn an_idle_system_takes_the_plain_way_and_a_slow_member_is_left_out() {
        let plain = [(0, MS), (1, MS), (2, 2 * MS), (3, MS)];
        assert!(left_out(&plain, &mut [MS, MS], 1).is_empty(), "not for so little");
        let plain = [(0, MS), (1, 20 * MS), (2, 90 * MS), (3, MS)];
        assert_eq!(left_out(&plain, &mut [MS, 2 * MS], 1), [2, 1]);
        assert_eq!(left_out(&plain, &mut [MS, 30 * MS], 1), [2], "the second one would wait for a slow one, too");
        assert!(left_out(&[(0, 90 * MS)], &mut [MS, MS, 50 * MS], 4).is_empty(), "a decode needs four others");
        assert_eq!(left_out(&[(0, 90 * MS)], &mut [MS, MS, 5 * MS, MS, 70 * MS], 4), [0]);
    }
}
