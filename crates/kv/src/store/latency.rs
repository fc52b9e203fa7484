//! How long operations take: a histogram that any thread may read while one writes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets per doubling; a value is known to about 9 %.
const STEPS: usize = 8;
/// Doublings from a microsecond on: up to more than an operation may take.
const DOUBLINGS: usize = 25;
const BUCKETS: usize = STEPS * DOUBLINGS;

/// Counts by duration.
#[derive(Debug)]
pub struct Latencies {
    buckets: Vec<AtomicU64>,
    sum_us: AtomicU64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), sum_us: AtomicU64::new(0) }
    }
}

impl Latencies {
    /// Counts one.
    pub fn record(&self, duration: Duration) {
        let micros = (duration.as_nanos() as f64 / 1000.0).max(1.0);
        let bucket = (micros.log2() * STEPS as f64) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(micros as u64, Ordering::Relaxed);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// Sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us.load(Ordering::Relaxed))
    }

    /// Upper bounds of the buckets and the count in each, ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.buckets.iter().enumerate().map(|(index, count)| (upper_bound(index), count.load(Ordering::Relaxed)))
    }

    /// The duration that a share `quantile` (0 to 1) of the operations did not exceed; zero if there were none.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let rank = (self.count() as f64 * quantile.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bound, count) in self.buckets() {
            seen += count;
            if seen >= rank {
                return bound;
            }
        }
        Duration::ZERO
    }
}

fn upper_bound(index: usize) -> Duration {
    Duration::from_nanos((1000.0 * 2f64.powf((index + 1) as f64 / STEPS as f64)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_step() {
        let latencies = Latencies::default();
        assert_eq!(latencies.quantile(0.5), Duration::ZERO);
        (1..=1000).for_each(|micros| latencies.record(Duration::from_micros(micros)));
        for (quantile, micros) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = latencies.quantile(quantile).as_nanos() as f64 / 1000.0;
            assert!((1.0..1.1).contains(&(found / micros)), "{quantile}: {found}");
        }
        latencies.record(Duration::from_secs(1000));
        latencies.record(Duration::ZERO);
        assert_eq!(latencies.count(), 1002);
    }
}
