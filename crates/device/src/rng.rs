//! A seeded source of draws for fault injection and conformance checks; nothing here is for secrets.

/// SplitMix64 (Steele, Lea, Flood 2014): every seed is good, and one draw costs a few instructions.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    /// The next 64 bits.
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end` (not zero); the bias of the remainder doesn't matter here.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }
}
