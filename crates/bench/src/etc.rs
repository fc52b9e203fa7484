//! The ETC model: sizes, popularity and arrivals of Facebook's general cache pool, from Atikoglu et al., "Workload Analysis of a
//! Large-Scale Key-Value Store", SIGMETRICS 2012, with the parameters that the load generator mutilate
//! (Leverich and Kozyrakis, EuroSys 2014) takes from it:
//!
//! | what | distribution |
//! |---|---|
//! | bytes of a key | generalized extreme value: location 30.7984, scale 8.20449, shape 0.078688; here at least 16, at most 250 |
//! | bytes of a value | 0 to 14 with the paper's shares ([`SHORT_VALUES`], 44 % in all), else the next row's, up to a given limit |
//! | bytes of a longer value | generalized Pareto: location 15, scale 214.476, shape 0.348238 |
//! | time between requests | generalized Pareto: location 0, scale 16.0292, shape 0.154971, scaled to the rate that is asked for |
//! | popularity | Zipfian, exponent 0.99 (the paper gives none; YCSB's) |
//! | sets | one request in 31 (GET to SET is 30 to 1) |
//!
//! Sizes and bytes of an item follow from its number alone, so that every hit can be verified by whoever sees it.

use engine::rng::SplitMix;

/// GETs per SET.
pub const GETS_PER_SET: u64 = 30;
/// The shortest key: it has to tell 2^44 items apart.
const KEY_BYTES_MIN: usize = 16;
/// The longest key that memcached takes.
const KEY_BYTES_MAX: usize = 250;
/// Digits of the number at the beginning of a key.
const NUMBER_DIGITS: usize = 11;
/// Shares of the values of 0, 1, ... bytes.
pub const SHORT_VALUES: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837, 0.08989,
    0.00092, 0.00326, 0.01980,
];

/// Items by their number.
#[derive(Clone, Debug)]
pub struct Items {
    /// How many there are.
    pub count: u64,
    values: Values,
    /// Numbers that come before theirs: other items'.
    before: u64,
}

/// How long values are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Values {
    /// As in the ETC pool, but at most so many bytes.
    Etc {
        /// The most.
        bytes_max: usize,
    },
    /// All alike.
    Fixed(usize),
}

impl Items {
    /// `count` items, at most 2^44.
    pub fn new(count: u64, values: Values) -> Items {
        assert!(count <= 1 << (4 * NUMBER_DIGITS), "keys tell 2^44 items apart, not {count}");
        Items { count, values, before: 0 }
    }

    /// The same number of items with other keys and values than the first `before`.
    pub fn after(self, before: u64) -> Items {
        Items { before, ..self }
    }

    /// Writes the key of item `number` into `key`.
    pub fn key(&self, number: u64, key: &mut Vec<u8>) {
        let number = self.before + number;
        key.clear();
        key.extend((0..NUMBER_DIGITS).map(|digit| b"0123456789abcdef"[(number >> (4 * digit)) as usize & 15]));
        key.resize(key_bytes(number), b'k');
    }

    /// Bytes of the value of item `number`.
    pub fn value_bytes(&self, number: u64) -> usize {
        match self.values {
            Values::Fixed(bytes) => bytes,
            Values::Etc { bytes_max } => etc_value_bytes(draw(number, 2)).min(bytes_max),
        }
    }

    /// Writes the value of item `number` into `value`.
    pub fn value(&self, number: u64, value: &mut Vec<u8>) {
        value.clear();
        let mut random = SplitMix(self.before + number);
        let bytes = self.value_bytes(number);
        while value.len() < bytes {
            let word = random.draw().to_le_bytes();
            value.extend_from_slice(&word[..word.len().min(bytes - value.len())]);
        }
    }

    /// Whether these are the bytes of item `number`.
    pub fn is_value(&self, number: u64, value: &[u8]) -> bool {
        let mut random = SplitMix(self.before + number);
        value.len() == self.value_bytes(number)
            && value.chunks(8).all(|chunk| chunk == &random.draw().to_le_bytes()[..chunk.len()])
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        (0..self.count).map(|number| (key_bytes(number) + self.value_bytes(number)) as u64).sum()
    }
}

/// The time to the next request, as a multiple of the mean.
pub fn gap(random: &mut SplitMix) -> f64 {
    const SCALE: f64 = 16.0292;
    const SHAPE: f64 = 0.154971;
    // The mean of the distribution is scale / (1 - shape).
    generalized_pareto(open_unit(random), 0.0, SCALE, SHAPE) * (1.0 - SHAPE) / SCALE
}

fn key_bytes(number: u64) -> usize {
    let bytes = generalized_extreme_value(draw(number, 1), 30.7984, 8.20449, 0.078688);
    (bytes as usize).clamp(KEY_BYTES_MIN, KEY_BYTES_MAX)
}

fn etc_value_bytes(unit: f64) -> usize {
    let mut below = 0.0;
    for (bytes, share) in SHORT_VALUES.iter().enumerate() {
        if unit < below + share {
            return bytes;
        }
        below += share;
    }
    let rest = (unit - below) / (1.0 - below);
    generalized_pareto(1.0 - rest, 15.0, 214.476, 0.348238) as usize
}

/// A number in `(0, 1)` that belongs to item `number`.
fn draw(number: u64, of: u64) -> f64 {
    open_unit(&mut SplitMix(number ^ (of << 56)))
}

fn open_unit(random: &mut SplitMix) -> f64 {
    // Half a step up: neither end is ever drawn, where the distributions' inverses are infinite.
    random.unit() + 0.5 / (1u64 << 53) as f64
}

/// The inverse of 1 - F.
fn generalized_pareto(upper: f64, location: f64, scale: f64, shape: f64) -> f64 {
    location + scale * (upper.powf(-shape) - 1.0) / shape
}

/// The inverse of F.
fn generalized_extreme_value(lower: f64, location: f64, scale: f64, shape: f64) -> f64 {
    location + scale * ((-lower.ln()).powf(-shape) - 1.0) / shape
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    fn mean(figures: impl Iterator<Item = f64>) -> f64 {
        figures.sum::<f64>() / DRAWS as f64
    }

    #[test]
    fn sizes_have_the_means_of_their_distributions() {
        let items = Items::new(DRAWS, Values::Etc { bytes_max: 1 << 20 });
        // Location + scale * (gamma(1 - shape) - 1) / shape; of a whole number half a byte is lost.
        let keys = mean((0..DRAWS).map(|number| key_bytes(number) as f64));
        assert!((keys - 35.8).abs() < 0.3, "keys of {keys} bytes");
        let long = 1.0 - SHORT_VALUES.iter().sum::<f64>();
        let short: f64 = SHORT_VALUES.iter().enumerate().map(|(bytes, share)| bytes as f64 * share).sum();
        let expected = short + long * (15.0 + 214.476 / (1.0 - 0.348238) - 0.5);
        let values = mean((0..DRAWS).map(|number| items.value_bytes(number) as f64));
        assert!((values / expected - 1.0).abs() < 0.03, "values of {values} bytes, expected {expected}");
        let mut random = SplitMix(3);
        let gaps = mean((0..DRAWS).map(|_| gap(&mut random)));
        assert!((gaps - 1.0).abs() < 0.02, "gaps of {gaps}");
    }

    #[test]
    fn short_values_have_their_shares() {
        let items = Items::new(DRAWS, Values::Etc { bytes_max: 1 << 20 });
        let mut counts = [0u64; SHORT_VALUES.len()];
        for number in 0..DRAWS {
            if let Some(count) = counts.get_mut(items.value_bytes(number)) {
                *count += 1;
            }
        }
        for (bytes, (count, share)) in counts.iter().zip(SHORT_VALUES).enumerate() {
            let got = *count as f64 / DRAWS as f64;
            assert!((got - share).abs() < 0.003, "{bytes} bytes: {got}, expected {share}");
        }
    }

    #[test]
    fn an_item_is_known_by_its_bytes() {
        let items = Items::new(1000, Values::Etc { bytes_max: 4096 });
        let (mut value, mut key, mut keys) = (Vec::new(), Vec::new(), std::collections::BTreeSet::new());
        for number in 0..1000 {
            items.key(number, &mut key);
            assert!((KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len()), "a key of {} bytes", key.len());
            keys.insert(key.clone());
            items.value(number, &mut value);
            assert!(items.is_value(number, &value), "item {number}");
            if let Some(last) = value.last_mut() {
                *last ^= 1;
                assert!(!items.is_value(number, &value), "item {number} with a flipped bit");
            }
            value.push(0);
            assert!(!items.is_value(number, &value), "item {number} with a byte more");
        }
        assert_eq!(keys.len(), 1000);
        assert_eq!(Items::new(3, Values::Fixed(3900)).value_bytes(2), 3900);
    }

    #[test]
    fn the_whole_is_the_sum() {
        let items = Items::new(3, Values::Fixed(100));
        let (mut key, mut sum) = (Vec::new(), 0);
        for number in 0..3 {
            items.key(number, &mut key);
            sum += key.len() as u64 + 100;
        }
        assert_eq!(items.bytes(), sum);
    }
}
