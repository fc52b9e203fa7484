//! The pauses of whoever tries again: each twice as long as the one before, up to a longest one.
//!
//! Many who lost the same peer, or who refuse each other, must not come back together. So chance shortens their pauses:
//! [`jittered`] leaves half of a pause, [`crate::time::within`] may leave nothing.

use std::time::Duration;

/// The pause after one of zero, which would stay zero for ever if it were doubled.
const AFTER_ZERO: Duration = Duration::from_millis(1);

/// Pauses that double.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Begins with `first`, which may be zero.
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, next: first }
    }

    /// The pause before the next try.
    pub fn pause(&mut self) -> Duration {
        let doubled = if self.next.is_zero() { AFTER_ZERO } else { self.next.saturating_mul(2) };
        std::mem::replace(&mut self.next, doubled.min(self.longest))
    }

    /// A try succeeded: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Makes the next pause `pause`, however long that is; the one after it is no longer than the longest.
    pub fn set_next(&mut self, pause: Duration) {
        self.next = pause;
    }
}

/// Between half of `pause` and all of it, so that hosts that lost a target together do not return together.
pub fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    half + crate::time::within(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let mut backoff = Backoff::new(ms(10), ms(50));
        assert_eq!([(); 5].map(|()| backoff.pause()), [10, 20, 40, 50, 50].map(ms));
        backoff.reset();
        assert_eq!([(); 2].map(|()| backoff.pause()), [10, 20].map(ms));
        backoff.set_next(ms(600));
        assert_eq!([(); 3].map(|()| backoff.pause()), [600, 50, 50].map(ms));
    }

    #[test]
    fn a_pause_of_zero_does_not_stay() {
        let mut backoff = Backoff::new(Duration::ZERO, ms(3));
        assert_eq!([(); 4].map(|()| backoff.pause()), [0, 1, 2, 3].map(ms));
    }

    #[test]
    fn chance_leaves_half_of_a_pause() {
        let drawn = [(); 200].map(|()| jittered(ms(10)));
        assert!(drawn.iter().all(|pause| (ms(5)..ms(10)).contains(pause)), "{drawn:?}");
        assert!(drawn.iter().any(|pause| *pause != drawn[0]));
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
    }
}
