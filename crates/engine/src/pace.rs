//! How fast something may go: so much a second, and what was not used is saved up for as long as its user says.

use std::cell::Cell;
use std::time::Duration;

use crate::time::{self, Instant};

/// The turns of what is paced, one behind the other: each begins when what was before it is paid for by time. So the rate holds
/// over any span, but for one turn and for what was saved up.
#[derive(Debug)]
pub struct Pace {
    /// When the next turn is paid for.
    next: Cell<Instant>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { next: Cell::new(time::now()) }
    }
}

impl Pace {
    /// Nothing is saved up, and nothing owed.
    pub fn begin(&self) {
        self.next.set(time::now());
    }

    /// When the turn of so much is, at that rate a second; at most what `saved` brings goes at once.
    pub fn turn(&self, amount: u64, rate: u64, saved: Duration) -> Instant {
        let turn = self.next.get().max(time::now() - saved);
        self.next.set(turn + Duration::from_secs_f64(amount as f64 / rate.max(1) as f64));
        turn
    }

    /// When all turns that there were are paid for.
    pub fn paid(&self) -> Instant {
        self.next.get()
    }
}
