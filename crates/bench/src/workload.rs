//! Key popularity and operation mixes.
//!
//! Mixes and the scrambled Zipfian popularity are those of YCSB (Cooper et al., "Benchmarking Cloud Serving Systems with
//! YCSB", SoCC 2010); the generator is Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994,
//! which needs one random number and one power a sample.

use engine::rng::SplitMix;

/// YCSB's skew.
const ZIPFIAN_THETA: f64 = 0.99;

/// Zipfian ranks over `0..items`, scattered over the key space so that popular keys are not neighbours.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    /// Over `items` keys, at least 2. Takes a time linear in `items` once.
    pub fn new(items: u64) -> Zipfian {
        assert!(items >= 2, "a Zipfian popularity needs at least two items, got {items}");
        let zeta_of = |n: u64| (1..=n).map(|i| (i as f64).powf(-ZIPFIAN_THETA)).sum::<f64>();
        let zeta = zeta_of(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - ZIPFIAN_THETA)) / (1.0 - zeta_of(2) / zeta);
        Zipfian { items, zeta, alpha: 1.0 / (1.0 - ZIPFIAN_THETA), eta }
    }

    /// The rank of the next key: 0 is the most popular.
    pub fn rank(&self, random: &mut SplitMix) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(ZIPFIAN_THETA) {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }

    /// The next key's number, scattered.
    pub fn key(&self, random: &mut SplitMix) -> u64 {
        self.key_of(self.rank(random))
    }

    /// The number of the key of this rank; a few ranks share theirs.
    pub fn key_of(&self, rank: u64) -> u64 {
        SplitMix(rank).draw() % self.items
    }
}

/// What to do with a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Get.
    Read,
    /// Put over an existing key.
    Update,
    /// Get, then put.
    ReadModifyWrite,
    /// Put of a new key.
    Insert,
}

/// YCSB's core workloads that need no scans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads, mostly of the newest keys, 5 % inserts.
    D,
    /// Half reads, half read-modify-writes.
    F,
}

impl Mix {
    /// All of them, in order.
    pub const ALL: [Mix; 5] = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::F];

    /// The next operation.
    pub fn pick(self, random: &mut SplitMix) -> Operation {
        let percent = random.below(100);
        match self {
            Mix::A if percent < 50 => Operation::Update,
            Mix::B if percent < 5 => Operation::Update,
            Mix::D if percent < 5 => Operation::Insert,
            Mix::F if percent < 50 => Operation::ReadModifyWrite,
            _ => Operation::Read,
        }
    }
}

/// A 16-byte key for a number.
pub fn key_bytes(number: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    for (place, digit) in key[4..].iter_mut().rev().zip(std::iter::successors(Some(number), |n| Some(n / 10))) {
        *place = b'0' + (digit % 10) as u8;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipfian_is_as_skewed_as_its_formula_says() {
        let (items, draws) = (1000u64, 200_000);
        let zipfian = Zipfian::new(items);
        let mut random = SplitMix(7);
        let mut counts = vec![0u64; items as usize];
        for _ in 0..draws {
            counts[zipfian.rank(&mut random) as usize] += 1;
        }
        let expected = draws as f64 / zipfian.zeta;
        assert!((counts[0] as f64 / expected - 1.0).abs() < 0.05, "rank 0: {} against {expected}", counts[0]);
        assert!(counts[0] > counts[10] && counts[10] > counts[500], "{} {} {}", counts[0], counts[10], counts[500]);
    }

    #[test]
    fn mixes_have_their_shares() {
        let mut random = SplitMix(1);
        for (mix, reads) in [(Mix::A, 50.0), (Mix::B, 95.0), (Mix::C, 100.0), (Mix::D, 95.0), (Mix::F, 50.0)] {
            let n = 20_000;
            let got = (0..n).filter(|_| mix.pick(&mut random) == Operation::Read).count() as f64 * 100.0 / f64::from(n);
            assert!((got - reads).abs() < 2.0, "{mix:?}: {got} % reads, expected {reads} %");
        }
    }

    #[test]
    fn keys_are_distinct_and_sorted_by_number() {
        assert_eq!(&key_bytes(0), b"user000000000000");
        assert_eq!(&key_bytes(123_456), b"user000000123456");
        assert!(key_bytes(9) < key_bytes(10));
    }
}
