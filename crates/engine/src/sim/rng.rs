//! The world's only source of chance.
//!
//! Invariant: every draw comes from one of the streams of [`Rngs`], each derived from the seed alone, so one seed is one
//! run. The streams are separate so that a change in one concern (say, one more disk read) does not reshuffle the
//! faults of another: a failing seed stays recognisable while the code around it is being mended.

use std::ops::Range;
use std::time::Duration;

use crate::rng::SplitMix;

/// One million: faults are given in parts per million.
const PPM: u64 = 1_000_000;

/// A stream of pseudo-random numbers: xoshiro256** (Blackman, Vigna 2018), seeded through SplitMix64 as they advise.
#[derive(Clone, Debug)]
pub(super) struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream number `stream` of `seed`.
    pub(super) fn new(seed: u64, stream: u64) -> Rng {
        let mut mix = SplitMix(seed ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03));
        Rng { state: std::array::from_fn(|_| mix.draw()) }
    }

    /// 64 uniform bits.
    pub(super) fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`; 0 where `bound` is 0. The bias of the multiplication is below 2^-32 for the bounds used here.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// An index below `len`.
    pub(super) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A fair coin.
    pub(super) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// True `ppm` times in a million. Draws nothing for 0: a world without a fault does not depend on its dice.
    pub(super) fn happens(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(PPM) < u64::from(ppm)
    }

    /// Nanoseconds from `range`; its start where the range is empty.
    pub(super) fn nanos(&mut self, range: &Range<Duration>) -> u64 {
        let (start, end) = (nanos(range.start), nanos(range.end));
        start + self.below(end.saturating_sub(start))
    }
}

/// A duration in whole nanoseconds; virtual time ends after 584 years.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// One stream for each concern.
#[derive(Debug)]
pub(super) struct Rngs {
    /// Which runnable task comes next.
    pub(super) schedule: Rng,
    /// Delays, chunk boundaries and faults of connections.
    pub(super) links: Rng,
    /// Delays, errors and crash outcomes of disks.
    pub(super) disks: Rng,
    /// What the code under test asks for.
    pub(super) tasks: Rng,
    /// Offsets and drifts of the nodes' wall clocks.
    pub(super) clocks: Rng,
}

impl Rngs {
    pub(super) fn new(seed: u64) -> Rngs {
        Rngs {
            schedule: Rng::new(seed, 1),
            links: Rng::new(seed, 2),
            disks: Rng::new(seed, 3),
            tasks: Rng::new(seed, 4),
            clocks: Rng::new(seed, 5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ() {
        let draw = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [rng.next(), rng.next(), rng.next()]
        };
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
        assert_ne!(draw(7, 1), draw(8, 1));
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        let mut rng = Rng::new(1, 1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[rng.index(5)] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.below(0), 0);
        let range = Duration::from_nanos(10)..Duration::from_nanos(12);
        assert!((0..50).map(|_| rng.nanos(&range)).all(|ns| ns == 10 || ns == 11));
        assert_eq!(rng.nanos(&(Duration::from_nanos(3)..Duration::from_nanos(3))), 3);
        let hits = (0..100_000).filter(|_| rng.happens(250_000)).count();
        assert!((23_000..27_000).contains(&hits), "{hits} of 100000 at 25 %");
    }
}
