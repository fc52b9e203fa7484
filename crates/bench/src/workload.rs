//! Key popularity and operation mixes.
//!
//! Mixes and the scrambled Zipfian popularity are those of YCSB (Cooper et al., "Benchmarking Cloud Serving Systems with
//! YCSB", SoCC 2010); the generator is Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994,
//! which needs one random number and one power a sample.

/// YCSB's skew.
const ZIPFIAN_THETA: f64 = 0.99;

/// A small, fast generator (SplitMix64): good enough to pick keys, seeded so that a run can be repeated.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same sequence.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number in `0..bound` (`bound > 0`), by multiplication; the bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

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
    pub fn rank(&self, random: &mut Random) -> u64 {
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
    pub fn key(&self, random: &mut Random) -> u64 {
        self.key_of(self.rank(random))
    }

    /// The number of the key of this rank; a few ranks share theirs.
    pub fn key_of(&self, rank: u64) -> u64 {
        mix(rank) % self.items
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
    pub fn pick(self, random: &mut Random) -> Operation {
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
        let mut random = Random::new(7);
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
        let mut random = Random::new(1);
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
