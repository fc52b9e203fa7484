//! How long operations take.

use std::cell::RefCell;
use std::time::Duration;

use hdrhistogram::Histogram;
use kv::resp::{Operation, Watch, Watched};
use serde::Serialize;

/// A store that takes the time of its operations.
pub type Timed<B> = Watched<B, Times>;

/// One in front of `inner`.
pub fn timed<B>(inner: B) -> Timed<B> {
    Watched { inner, watch: Times::default() }
}

/// Longest time that is told apart: an hour, in microseconds.
const LATENCY_US_MAX: u64 = 3_600_000_000;

/// See the module.
#[derive(Debug)]
pub struct Times {
    gets: RefCell<Histogram<u64>>,
    puts: RefCell<Histogram<u64>>,
}

/// Percentiles of one kind of operation, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Latency {
    /// Operations.
    pub count: u64,
    /// Half were this fast or faster.
    pub p50_us: u64,
    /// 99 of 100.
    pub p99_us: u64,
    /// 999 of 1000.
    pub p999_us: u64,
    /// The slowest.
    pub max_us: u64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Latency {
        Latency {
            count: histogram.len(),
            p50_us: histogram.value_at_quantile(0.5),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        let Latency { count, p50_us, p99_us, p999_us, max_us } = self;
        format!("{count} operations, p50 {p50_us} us, p99 {p99_us} us, p99.9 {p999_us} us, slowest {max_us} us")
    }
}

impl Default for Times {
    fn default() -> Times {
        let histogram = || {
            let empty = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
            RefCell::new(empty.expect("invariant: the bounds and 3 digits are what the library takes"))
        };
        Times { gets: histogram(), puts: histogram() }
    }
}

impl Times {
    /// Times of gets so far.
    pub fn gets(&self) -> Latency {
        Latency::of(&self.gets.borrow())
    }

    /// Times of puts so far.
    pub fn puts(&self) -> Latency {
        Latency::of(&self.puts.borrow())
    }
}

impl Watch for Times {
    fn ended(&self, operation: Operation, took: Duration) {
        let histogram = match operation {
            Operation::Get => &self.gets,
            Operation::Put => &self.puts,
            Operation::Delete | Operation::Update => return,
        };
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        histogram.borrow_mut().saturating_record(us.max(1));
    }
}
