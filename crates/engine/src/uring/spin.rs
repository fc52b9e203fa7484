//! How long to spin before sleeping. Pure, but for [`Waited`]: times go in, a budget comes out.
//!
//! Spinning saves the sleep and the wake when the awaited event is near and its cause runs elsewhere. It is a pure loss when
//! the cause needs this very core, and when nothing is near. The controller keeps an account of it, in time:
//!
//! - An event that came while spinning earns [`GAIN`]; a spin in vain costs what it took. While the account is not overdrawn
//!   waits begin with a spin of [`MARGIN`] times the average of successful waits, so that one outlier does not cost much.
//! - Overdrawn by an event that came within `spin_max` of sleeping: somebody was waiting for our core (or the device is just
//!   too slow). No more spinning, but for a probe after some short waits, each time after twice as many.
//! - Nothing came for longer than `spin_max`: nobody is in a hurry. No spinning until a wait was short again.
//!
//! None of this tells of somebody who could run on our core and does not: then events come while spinning all the same, from
//! clients on other cores, and those on ours wait for the end of our slice. What tells is how long others have the core while this
//! thread would run ([`Waited`]). Measured with eight connections of two clients to a cache of two threads, all on two cores:
//! while they spun, 0.97 of memcached's rate at 5 times its p99, since 1.0 and 0.8. How often the core is taken away does not
//! tell: a thread of the kernel that looks around for 20 us every 5 ms kept a reactor from spinning, for nobody's good, and a get
//! at depth 1 took 28 us in place of 15.
//!
//! Measured by `examples/echo.rs` (72 B out, 4120 B back, one at a time, two reactors over loopback, 2 virtual cores): on two
//! cores p50 10.0 us, 1.15 to 1.2 times two bare sockets polled in a loop, and 25 us without spinning; on one core 5.0 us and
//! 142,000 round trips/s, where an earlier rule, which lengthened spins after every failure, came to 47,000.
//!
//! `spin_max` is 200 us: four times the round trip of two cores that are far apart (20 us at times) is more than the 50 us that
//! it was, and a wait that ends in sleep makes the peer sleep too. There a compare-and-write at depth 1 took
//! 173 us at the median with 50 us and 22 with 200, against 13 of bare sockets that poll.
//!
//! Probes are counted in short waits, not in time: an idle reactor never probes. On a shared core the price is one credit of
//! `spin_max` in [`PROBE_MAX`] round trips, below 1 % of them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

/// A budget is this many times the average of successful waits. Guessed; covers the usual spread of a round trip.
const MARGIN: u64 = 4;
/// The smallest budget: shorter than the cheapest round trip over loopback it could never succeed.
const BUDGET_MIN: u64 = 10_000;
/// What a successful spin saves, in ns: a sleep and a wake-up. Measured between two cores of a virtual machine: 3 to 5 us.
const GAIN: i64 = 3_000;
/// The most short waits between probes.
const PROBE_MAX: u32 = 4096;
/// How often a reactor that spins looks whether its core was taken away, in ns. Chosen: about a slice of the scheduler's, which is
/// when it takes a core from whoever never sleeps.
const LOOK: u64 = 4_000_000;
/// How long there is no spinning then, in ns: at first, and at most, where every look finds the same. Chosen: at most a fiftieth
/// of the time is spent on finding out that the others have gone.
const REST_MIN: u64 = LOOK;
const REST_MAX: u64 = 50 * LOOK;
/// One of so many parts of a rest is forgotten by a look that finds the core ours: some do where it is shared, too.
const REST_PARTS: u64 = 8;

/// Of the time between two looks the part that others may have had of a core that is ours. Chosen: above what the kernel's own
/// threads take, and far below what anybody takes who shares it (a half, or a third).
const OTHERS_PART: u64 = 16;

/// How long this thread has waited for a core in all, by the kernel's count.
pub(super) struct Waited(Option<File>);

impl Waited {
    /// Of the calling thread, which alone may ask.
    pub(super) fn new() -> Waited {
        // A kernel that does not count is one on which nobody is seen to wait.
        Waited(File::open("/proc/thread-self/schedstat").ok())
    }

    /// In ns.
    pub(super) fn time(&self) -> u64 {
        let mut text = [0; 64];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        second_number(&text[..read])
    }
}

/// Of numbers with spaces between them: running, waiting, slices.
fn second_number(text: &[u8]) -> u64 {
    let second = std::str::from_utf8(text).ok().and_then(|text| text.split_ascii_whitespace().nth(1));
    second.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Whether the core is shared with somebody who would run on it.
#[derive(Default)]
struct Sharing {
    /// When the last look was, and how long this thread had waited by then, in ns; `None`: there was none since the rest.
    seen: Option<(u64, u64)>,
    /// When to look, or to spin, again.
    next: u64,
    /// How long the last rest was; less after every look that finds the core ours.
    rest: u64,
}

impl Sharing {
    /// At `now`; `waited` is asked for when it is time.
    fn is_shared(&mut self, now: u64, waited: impl FnOnce() -> u64) -> bool {
        if now < self.next {
            return self.seen.is_none();
        }
        // What was seen long ago, before a time without spins, tells of those times.
        let (waited, before) = (waited(), self.seen.take().filter(|_| now < self.next + LOOK));
        if before.is_some_and(|(then, before)| waited.saturating_sub(before) > (now - then) / OTHERS_PART) {
            self.rest = (2 * self.rest).clamp(REST_MIN, REST_MAX);
            self.next = now + self.rest;
            return true;
        }
        if before.is_some() {
            // Not at once to nothing: a slice may be longer than it is between two looks.
            self.rest -= self.rest / REST_PARTS;
        }
        (self.seen, self.next) = (Some((now, waited)), now + LOOK);
        false
    }
}

pub(super) struct Spin {
    max: u64,
    sharing: Sharing,
    /// Average of waits that ended while spinning, in ns.
    average: u64,
    /// What spinning has earned lately, in ns; at most two full budgets, so that a change is noticed soon.
    credit: i64,
    /// Short waits to sleep through before the next probe; `None`: spinning.
    probe_in: Option<u32>,
    /// Where `probe_in` starts when the account is next overdrawn.
    distance: u32,
    /// Spun in vain before the sleep that is under way, in ns.
    wasted: u64,
}

impl Spin {
    pub(super) fn new(max: Duration) -> Spin {
        let max = max.as_nanos().min(1_000_000_000) as u64;
        Spin {
            max,
            sharing: Sharing::default(),
            average: max,
            credit: 2 * max as i64,
            probe_in: None,
            distance: 1,
            wasted: 0,
        }
    }

    /// How long to spin at `now`, in ns; 0: sleep at once. `waited`: see [`Waited::time`].
    pub(super) fn budget(&mut self, now: u64, waited: impl FnOnce() -> u64) -> u64 {
        match self.probe_in {
            _ if self.max == 0 => 0,
            Some(waits) if waits > 0 => 0,
            _ if self.sharing.is_shared(now, waited) => 0,
            _ => (self.average * MARGIN).max(BUDGET_MIN).min(self.max),
        }
    }

    /// The event came `elapsed` ns into a spin of `budget`.
    pub(super) fn succeeded(&mut self, budget: u64, elapsed: u64) {
        if elapsed > 2 * budget {
            // It came while this thread had lost its core: that was no success of spinning.
            self.failed(budget);
            self.slept(0);
            return;
        }
        self.average = (self.average * 7 + elapsed) / 8;
        let full = 2 * self.max as i64;
        if self.probe_in.take().is_some() {
            self.credit = self.max as i64;
        }
        self.credit = (self.credit + GAIN).min(full);
        if self.credit == full {
            self.distance = 1; // it has paid for long enough to forget that it once did not
        }
    }

    /// A spin of `budget` ns saw nothing; the sleep that follows tells why.
    pub(super) fn failed(&mut self, budget: u64) {
        self.wasted = budget;
        self.average = (self.average * 2).clamp(BUDGET_MIN / MARGIN, self.max);
    }

    /// A timer ended a spin after `elapsed` ns: in vain as well, and nothing follows that would tell why. Were it not charged, a
    /// reactor whose timers come sooner than its budget is used up would spin for ever without an event.
    pub(super) fn cut_short(&mut self, elapsed: u64) {
        self.credit -= elapsed as i64;
        if self.credit < 0 || self.probe_in.is_some() {
            self.give_up();
        }
    }

    /// A sleep of `elapsed` ns was ended by an event.
    pub(super) fn slept(&mut self, elapsed: u64) {
        let wasted = std::mem::take(&mut self.wasted);
        self.credit -= wasted as i64;
        let probed = wasted > 0 && self.probe_in.is_some();
        let overdrawn = wasted > 0 && self.credit < 0 && elapsed <= self.max;
        if probed || overdrawn {
            // A probe in vain counts whatever follows: a peer on our core that probes too makes our sleep a long one.
            self.give_up();
        } else if elapsed > self.max {
            self.credit = self.credit.max(0);
            self.probe_in = Some(self.probe_in.unwrap_or(1).max(1));
        } else if wasted == 0 {
            self.probe_in = self.probe_in.map(|waits| waits.saturating_sub(1));
        }
    }

    /// No more spinning but for probes, each after twice as many short waits as the one before.
    fn give_up(&mut self) {
        self.credit = 0;
        self.probe_in = Some(self.distance);
        self.distance = (self.distance * 2).min(PROBE_MAX);
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
        let budget = spin.budget(0, || 0);
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

    /// Spins for a millisecond at a time, for so many; `waited` tells how many microseconds the thread has waited until then.
    /// Returns for how many.
    fn spun(millis: std::ops::Range<u64>, sharing: &mut Sharing, waited: impl Fn(u64) -> u64) -> usize {
        millis.filter(|now| !sharing.is_shared(now * 1_000_000, || waited(*now) * 1_000)).count()
    }

    /// Events came while spinning, so it seemed to pay; a client on the same core waited for slices meanwhile.
    #[test]
    fn a_core_that_others_wait_for_is_left_to_them_until_they_are_gone() {
        let mut sharing = Sharing::default();
        assert_eq!(spun(0..1_000, &mut sharing, |_| 7), 1_000, "it is ours");
        // A look that comes late, after a time without spins, begins anew.
        let long_ago = &mut Sharing { seen: Some((0, 1)), next: 50, rest: 0 };
        assert_eq!(spun(60_000..60_100, long_ago, |_| 60_000_000), 100);
        // Every other slice of 3 ms is somebody else's.
        let while_shared = spun(1_000..11_000, &mut sharing, |now| now / 6 * 3_000);
        assert!((50..300).contains(&while_shared), "{while_shared} ms of 10 s");
        let after = spun(11_000..12_000, &mut sharing, |_| 6_000_000);
        assert!(after >= 790, "{after} ms of the second after");
        // Whoever runs once and goes costs next to nothing.
        let now_and_then = spun(12_000..22_000, &mut sharing, |now| now / 100 * 3_000);
        assert!(now_and_then > 9_500, "{now_and_then} ms of 10 s");
    }

    /// A thread of the kernel that looks around every 5 ms took the core away as often as a client would, and the reactor did not
    /// spin.
    #[test]
    fn somebody_who_runs_often_and_briefly_shares_no_core() {
        assert_eq!(spun(0..10_000, &mut Sharing::default(), |now| now / 5 * 20), 10_000);
    }

    #[test]
    fn the_kernel_says_how_long_this_thread_has_waited() {
        assert_eq!(second_number(b"591221 106890 2\n"), 106_890);
        assert_eq!(second_number(b""), 0);
        let waited = Waited::new();
        assert!(waited.0.is_some() && waited.time() <= waited.time());
    }

    #[test]
    fn keeps_spinning_while_it_pays_and_no_longer_than_it_should() {
        let mut spin = spin();
        for _ in 0..100 {
            wait(&mut spin, 7_000, false);
        }
        assert!((BUDGET_MIN..=40_000).contains(&spin.budget(0, || 0)), "{}", spin.budget(0, || 0));
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

    /// The kernel may give the peer our core right when it is woken: then its answer is there at once, now and then.
    #[test]
    fn luck_on_a_shared_core_is_no_reason_to_go_on() {
        let mut spin = spin();
        let mut spun = 0;
        for index in 0..100_000 {
            let lucky = index % 3 == 0;
            spun += if lucky && spin.budget(0, || 0) > 0 {
                wait(&mut spin, 1_000, false)
            } else {
                wait(&mut spin, 5_000, true)
            };
        }
        assert!(spun < 100_000 * 500, "{} ns spun per wait of 5,000", spun / 100_000);
    }

    #[test]
    fn an_odd_short_wait_does_not_make_long_ones_spin() {
        let mut spin = spin();
        let mut spun = 0;
        for index in 0..1_000 {
            let latency = if index % 10 == 0 { 7_000 } else { 10_000_000 };
            spun += wait(&mut spin, latency, false);
        }
        assert!(spun <= 200 * MAX, "{spun} ns spun in 900 waits of 10 ms");
    }

    /// A spin that a timer ended cost nothing: with timers that come sooner than its budget is used up a reactor to which nothing
    /// was ever said spun for good.
    #[test]
    fn timers_do_not_make_spinning_free() {
        let mut spin = spin();
        let mut spun = 0;
        for _ in 0..10_000 {
            match spin.budget(0, || 0) {
                0 => spin.slept(20_000),
                budget => {
                    spun += 20_000.min(budget);
                    spin.cut_short(20_000.min(budget));
                }
            }
        }
        assert!(spun <= 20 * MAX, "{spun} ns spun in 10,000 waits of 20 us");
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
            let budget = spin.budget(0, || 0);
            if budget > 0 {
                spin.succeeded(budget, 4_000_000);
            } else {
                spin.slept(8_000);
            }
        }
        assert!(spin.distance > 1);
    }
}
