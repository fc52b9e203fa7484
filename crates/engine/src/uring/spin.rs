//! How long to spin before sleeping. Pure: durations go in, a budget comes out.
//!
//! Spinning saves the sleep and the wake (some 3 us each way, and the core's idle state) when the awaited event is near and
//! its cause runs elsewhere. It is a pure loss when the cause needs this very core, and when nothing is near. Both can be
//! told apart from outside:
//!
//! - the event came while spinning: spinning pays. The budget follows how long the wait was: [`MARGIN`] times its average.
//! - it did not come, and then came within `spin_max` of sleeping: either the budget was too short, then it is doubled; or, at
//!   the full budget, somebody was waiting for our core. Then the next probe is put off, each time twice as far.
//! - it did not come for long after: nobody is in a hurry. No spinning until waits are short again.
//!
//! Probes are counted in short waits, not in time: an idle reactor never probes. On a shared core the cost is one `spin_max`
//! in [`PROBE_MAX`] round trips, below 1 % of them.

use std::time::Duration;

/// A budget is this many times the average of successful waits. Guessed; covers the usual spread of a round trip.
const MARGIN: u64 = 4;
/// The smallest budget: shorter than the cheapest round trip over loopback it could never succeed.
const BUDGET_MIN: u64 = 10_000;
/// Full budgets spun in vain in a row before spinning stops: one may be an outlier, a third costs more than it tells.
const VAIN_MAX: u32 = 2;
/// The most short waits between probes.
const PROBE_MAX: u32 = 1024;

pub(super) struct Spin {
    max: u64,
    /// Average of waits that ended while spinning, in ns.
    average: u64,
    vain: u32,
    /// Short waits to sleep through before the next probe; `None`: spinning.
    probe_in: Option<u32>,
    /// What `probe_in` starts from when a probe was in vain.
    distance: u32,
    /// The spin before this sleep used up the full budget.
    spun_in_vain: bool,
}

impl Spin {
    pub(super) fn new(max: Duration) -> Spin {
        let max = max.as_nanos().min(u64::MAX.into()) as u64;
        Spin { max, average: max, vain: 0, probe_in: None, distance: 1, spun_in_vain: false }
    }

    /// How long to spin now, in ns; 0: sleep at once.
    pub(super) fn budget(&self) -> u64 {
        match self.probe_in {
            Some(waits) if waits > 0 => 0,
            _ => (self.average * MARGIN).max(BUDGET_MIN).min(self.max),
        }
    }

    /// The event came `elapsed` ns into a spin of `budget`.
    pub(super) fn succeeded(&mut self, budget: u64, elapsed: u64) {
        if elapsed > 2 * budget {
            // It came while this thread had lost its core: that was no success of spinning.
            self.failed(self.max);
            self.slept(0);
            return;
        }
        self.average = (self.average * 7 + elapsed) / 8;
        self.vain = 0;
        if self.probe_in.take().is_some() {
            self.distance = (self.distance / 2).max(1);
        }
    }

    /// A spin of `budget` ns saw nothing; the sleep that follows tells why.
    pub(super) fn failed(&mut self, budget: u64) {
        self.spun_in_vain = true;
        if budget < self.max {
            self.average = (self.average * 2).max(BUDGET_MIN / MARGIN);
            self.spun_in_vain = self.probe_in.is_some();
        }
    }

    /// A sleep of `elapsed` ns was ended by an event.
    pub(super) fn slept(&mut self, elapsed: u64) {
        let short = elapsed <= self.max;
        let vain = std::mem::take(&mut self.spun_in_vain);
        if !short {
            // Nobody is in a hurry; the next short wait is worth a probe.
            self.vain = 0;
            self.probe_in = Some(self.probe_in.unwrap_or(1));
            return;
        }
        if vain {
            self.vain += 1;
            if self.vain >= VAIN_MAX || self.probe_in.is_some() {
                self.probe_in = Some(self.distance);
                self.distance = (self.distance * 2).min(PROBE_MAX);
            }
        } else if let Some(waits) = &mut self.probe_in {
            *waits = waits.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 50_000;

    fn spin() -> Spin {
        Spin::new(Duration::from_nanos(MAX))
    }

    /// One wait whose event comes after `latency` if the core is given up at once, or (`shared`) only once it was given up.
    /// Returns the time spent spinning.
    fn wait(spin: &mut Spin, latency: u64, shared: bool) -> u64 {
        let budget = spin.budget();
        if budget == 0 {
            spin.slept(latency);
            return 0;
        }
        if !shared && latency <= budget {
            spin.succeeded(budget, latency);
            return latency;
        }
        spin.failed(budget);
        spin.slept(if shared { latency } else { latency - budget });
        budget
    }

    #[test]
    fn keeps_spinning_while_it_pays_and_no_longer_than_it_should() {
        let mut spin = spin();
        for _ in 0..100 {
            wait(&mut spin, 7_000, false);
        }
        assert!((BUDGET_MIN..=40_000).contains(&spin.budget()), "{}", spin.budget());
        // A slower phase is followed, not given up.
        for _ in 0..20 {
            wait(&mut spin, 45_000, false);
        }
        assert_eq!(wait(&mut spin, 45_000, false), 45_000);
    }

    #[test]
    fn stops_on_a_shared_core_and_probes_rarely() {
        let mut spin = spin();
        for _ in 0..4_000 {
            wait(&mut spin, 8_000, true);
        }
        let spun: u64 = (0..10_000).map(|_| wait(&mut spin, 8_000, true)).sum();
        assert!(spun <= 10 * MAX, "{spun} ns spun in 10,000 waits");
        // The peer moves to a core of its own: found out within one distance of probes, for good.
        for _ in 0..=PROBE_MAX {
            wait(&mut spin, 8_000, false);
        }
        assert_eq!(wait(&mut spin, 8_000, false), 8_000);
    }

    #[test]
    fn an_idle_reactor_does_not_spin_and_wakes_up_quickly() {
        let mut spin = spin();
        for _ in 0..10 {
            wait(&mut spin, 1_000_000_000, false);
        }
        assert_eq!((0..1_000).map(|_| wait(&mut spin, 10_000_000, false)).sum::<u64>(), 0);
        wait(&mut spin, 7_000, false);
        assert_eq!(wait(&mut spin, 7_000, false), 7_000, "the second short wait spins");
    }

    #[test]
    fn zero_never_spins() {
        let mut spin = Spin::new(Duration::ZERO);
        assert_eq!((0..100).map(|_| wait(&mut spin, 100, false)).sum::<u64>(), 0);
    }

    #[test]
    fn losing_the_core_while_spinning_is_no_success() {
        let mut spin = spin();
        for _ in 0..10 {
            let budget = spin.budget();
            if budget > 0 {
                spin.succeeded(budget, 4_000_000);
            } else {
                spin.slept(8_000);
            }
        }
        assert!(spin.distance > 1);
    }
}
