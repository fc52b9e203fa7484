//! Numbers that are the same for the same seed: for tests, injected faults, loads and patterns. Never for secrets, and never for
//! code that runs in a world, which asks [`crate::task::random_u64`].

/// SplitMix64 (Steele, Lea, Flood 2014): every seed is good, and one draw costs a few instructions.
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end` (not zero); the bias of the remainder doesn't matter here.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// An index below `end` (not zero).
    pub fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}
