//! Stripes to lose units of.

use engine::rng::SplitMix;
use erasure::{Code, Kernel};

/// A unit of any bytes.
pub fn drawn(random: &mut SplitMix, length: usize) -> Vec<u8> {
    (0..length).map(|_| random.draw() as u8).collect()
}

/// All units of one stripe, encoded.
#[derive(Clone, Debug)]
pub struct Stripe {
    pub code: Code,
    pub units: Vec<Vec<u8>>,
}

impl Stripe {
    pub fn new(code: &Code, length: usize, random: &mut SplitMix) -> Stripe {
        let units = (0..code.data()).map(|_| drawn(random, length)).collect();
        let mut stripe = Stripe { code: code.clone(), units };
        stripe.encode();
        stripe
    }

    /// Makes the parity of the data anew.
    pub fn encode(&mut self) {
        let data = self.code.data();
        self.units.truncate(data);
        let length = self.units[0].len();
        let mut parity = vec![vec![0xee; length]; self.code.parity()];
        let mut outs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        self.code.encode(&self.data(), &mut outs).unwrap();
        self.units.extend(parity);
    }

    pub fn data(&self) -> Vec<&[u8]> {
        self.units[..self.code.data()].iter().map(Vec::as_slice).collect()
    }

    pub fn parity(&self) -> Vec<&[u8]> {
        self.units[self.code.data()..].iter().map(Vec::as_slice).collect()
    }

    /// What is left without the units of which `lost` has the bits.
    pub fn without(&self, lost: u32) -> Vec<Option<&[u8]>> {
        self.units.iter().enumerate().map(|(n, unit)| (lost >> n & 1 == 0).then_some(unit.as_slice())).collect()
    }

    /// Loses the units of which `lost` has the bits, and makes those again of which `wanted` has them.
    pub fn is_made_again(&self, lost: u32, wanted: u32) {
        let numbers = (0..self.units.len()).filter(|n| wanted >> n & 1 == 1);
        let mut made: Vec<(usize, Vec<u8>)> = numbers.map(|n| (n, vec![0xee; self.units[n].len()])).collect();
        let mut outs: Vec<(usize, &mut [u8])> = made.iter_mut().map(|(n, unit)| (*n, unit.as_mut_slice())).collect();
        self.code.decode(&self.without(lost), &mut outs).unwrap();
        for (n, unit) in made {
            let code = &self.code;
            assert!(
                unit == self.units[n],
                "{:?} {}+{}: unit {n} of lost {lost:#b}",
                code.kernel(),
                code.data(),
                code.parity()
            );
        }
    }
}

/// Every shape of a code.
pub fn shapes() -> impl Iterator<Item = (usize, usize)> {
    (1..=erasure::PARITY_MAX).flat_map(|parity| (1..=erasure::UNITS_MAX - parity).map(move |data| (data, parity)))
}

/// Every kernel that is here.
pub fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.into_iter().filter(|kernel| kernel.is_available())
}
