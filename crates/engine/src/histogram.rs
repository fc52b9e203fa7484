//! Counts of durations by size. Written by one thread or many, read by anyone at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets per power of two of a histogram, as a power of two: a value is known to within 12.5 %.
const STEPS_LOG2: u32 = 3;
/// Powers of two: up to 2^40 units, some 18 minutes of nanoseconds; what is longer falls into the last bucket.
const OCTAVES: u32 = 41;
const BUCKETS: usize = (OCTAVES << STEPS_LOG2) as usize;

/// Counts of durations by size, in a unit of its owner's.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts one duration in nanoseconds.
    #[inline]
    pub fn record(&self, duration: Duration) {
        self.record_units(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts one duration in another unit. No search and no floating point: every command pays for it.
    #[inline]
    pub fn record_units(&self, units: u64) {
        self.buckets[bucket_of(units)].fetch_add(1, Relaxed);
        self.sum.fetch_add(units, Relaxed);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// The sum of all.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// Upper bound (exclusive) and count of every bucket that is not empty, ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        (0..BUCKETS).map(bound_of).zip(counts).filter(|(_, count)| *count > 0)
    }
}

fn bucket_of(units: u64) -> usize {
    let steps = 1 << STEPS_LOG2;
    if units < steps {
        return units as usize;
    }
    let octave = units.ilog2() - STEPS_LOG2;
    let step = (units >> octave) - steps;
    (((u64::from(octave) + 1) << STEPS_LOG2) + step).min(BUCKETS as u64 - 1) as usize
}

/// The first value above the bucket.
fn bound_of(index: usize) -> u64 {
    let steps = 1u64 << STEPS_LOG2;
    let (octave, step) = (index as u64 >> STEPS_LOG2, index as u64 & (steps - 1));
    if octave == 0 { step + 1 } else { (steps + step + 1) << (octave - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_lies_below_its_bucket_and_not_below_the_one_before() {
        for ns in (0..64).map(|shift| 1u64 << shift).flat_map(|ns| [ns - 1, ns, ns + ns / 3]) {
            let index = bucket_of(ns);
            if index == BUCKETS - 1 {
                continue;
            }
            assert!(ns < bound_of(index), "{ns} in bucket {index} below {}", bound_of(index));
            assert!(index == 0 || ns >= bound_of(index - 1), "{ns} belongs before bucket {index}");
        }
    }
}
