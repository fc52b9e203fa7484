//! The code: what is offered to its users, and what is asked of them.

use crate::error::Error;
use crate::kernel::{Chosen, Kernel};
use crate::matrix::{Factors, PARITY_MAX, Plan, UNITS_MAX, cauchy};

/// Bytes of each unit that are checked at a time. Chosen: the parity of so many is on the stack.
const CHECK_BYTES: usize = 1024;

/// An erasure code of so many units of data and of parity: any `data` units of a stripe determine all others.
///
/// Units are numbered: data from 0, parity from `data` on. They have any length, and all of a stripe the same. Each byte of a unit
/// belongs to the bytes at the same place of the others alone: a part of the units is encoded, decoded, updated and checked like
/// whole ones. Nothing allocates.
#[derive(Clone, Debug)]
pub struct Code {
    data: usize,
    parity: usize,
    /// Of parity, by data.
    factors: Factors,
    kernel: Chosen,
}

impl Code {
    /// A code of so many units, by the best kernel that the processor has.
    pub fn new(data: usize, parity: usize) -> Result<Code, Error> {
        Code::of(data, parity, Chosen::best())
    }

    /// The same by a kernel of the caller's choice: for tests and measurements. All kernels make the same bytes.
    pub fn with_kernel(data: usize, parity: usize, kernel: Kernel) -> Result<Code, Error> {
        Code::of(data, parity, Chosen::new(kernel).ok_or(Error::Kernel(kernel))?)
    }

    fn of(data: usize, parity: usize, kernel: Chosen) -> Result<Code, Error> {
        if data == 0 || parity == 0 || parity > PARITY_MAX || data > UNITS_MAX - parity {
            return Err(Error::Shape { data, parity });
        }
        Ok(Code { data, parity, factors: cauchy(data, parity), kernel })
    }

    /// Units of data.
    pub fn data(&self) -> usize {
        self.data
    }

    /// Units of parity: so many of all units may be lost.
    pub fn parity(&self) -> usize {
        self.parity
    }

    /// The kernel that is computed with.
    pub fn kernel(&self) -> Kernel {
        self.kernel.kernel()
    }

    /// Makes all parity of all data.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), Error> {
        is_count(data.len(), self.data)?;
        is_count(parity.len(), self.parity)?;
        have_one_length(lengths(0, data).chain(lengths(self.data, parity)))?;
        self.kernel.sum(&self.factors, data, parity, false);
        Ok(())
    }

    /// Makes the `wanted` units, each given by its number, of the `units` that are left: `units` has a place for each unit of the
    /// code, and none of those that are lost. Of what is left no more is read than there is data.
    pub fn decode(&self, units: &[Option<&[u8]>], wanted: &mut [(usize, &mut [u8])]) -> Result<(), Error> {
        let count = self.data + self.parity;
        is_count(units.len(), count)?;
        let lost = units.iter().filter(|unit| unit.is_none()).count();
        if lost > self.parity {
            return Err(Error::TooManyLost { lost, parity: self.parity });
        }
        let numbers = self.numbers(wanted, 0)?;
        let numbers = &numbers[..wanted.len()];
        if let Some(&given) = numbers.iter().find(|&&unit| units[unit].is_some()) {
            return Err(Error::NotLost(given));
        }
        let left = units.iter().enumerate().filter_map(|(number, unit)| Some((number, unit.as_ref()?.len())));
        have_one_length(left.chain(wanted.iter().map(|(number, unit)| (*number, unit.len()))))?;
        let mut sources = [&[][..]; UNITS_MAX];
        if self.parity == 1 {
            // The exclusive or of all others, whichever is lost: nothing to plan.
            sources.iter_mut().zip(units.iter().flatten()).for_each(|(source, unit)| *source = unit);
            self.sum(&self.factors, &sources[..self.data], wanted, false);
            return Ok(());
        }
        let plan = Plan::new(&self.factors, self.data, |unit| units.get(unit).is_some_and(Option::is_some), numbers);
        for (source, &unit) in sources.iter_mut().zip(&plan.sources[..self.data]) {
            *source = units[unit].unwrap_or_default();
        }
        self.sum(&plan.factors, &sources[..self.data], wanted, false);
        Ok(())
    }

    /// Changes `parity`, each unit given by its number, for a unit of data that was `old` and becomes `new`. The other data is not
    /// needed. Parity that is not named stays as it was.
    pub fn update(&self, unit: usize, old: &[u8], new: &[u8], parity: &mut [(usize, &mut [u8])]) -> Result<(), Error> {
        if unit >= self.data {
            return Err(Error::NoSuchUnit(unit));
        }
        let numbers = self.numbers(parity, self.data)?;
        let changed = [(unit, old.len()), (unit, new.len())];
        have_one_length(changed.into_iter().chain(parity.iter().map(|(number, unit)| (*number, unit.len()))))?;
        let mut factors = Factors::default();
        for (out, number) in numbers[..parity.len()].iter().enumerate() {
            let factor = self.factors[unit][number - self.data];
            // The difference is the sum, here as everywhere: the new unit is added as the old one is taken away.
            (factors[0][out], factors[1][out]) = (factor, factor);
        }
        self.sum(&factors, &[old, new], parity, true);
        Ok(())
    }

    /// Whether the parity is that of the data.
    pub fn check(&self, data: &[&[u8]], parity: &[&[u8]]) -> Result<bool, Error> {
        is_count(data.len(), self.data)?;
        is_count(parity.len(), self.parity)?;
        let length = have_one_length(lengths(0, data).chain(lengths(self.data, parity)))?;
        let mut made = [[0; CHECK_BYTES]; PARITY_MAX];
        for from in (0..length).step_by(CHECK_BYTES) {
            let part = from..length.min(from + CHECK_BYTES);
            let mut sources = [&[][..]; UNITS_MAX];
            for (source, unit) in sources.iter_mut().zip(data) {
                *source = &unit[part.clone()];
            }
            let mut outs: [&mut [u8]; PARITY_MAX] = Default::default();
            for (out, made) in outs.iter_mut().zip(&mut made) {
                *out = &mut made[..part.len()];
            }
            let outs = &mut outs[..self.parity];
            self.kernel.sum(&self.factors, &sources[..self.data], outs, false);
            if outs.iter().zip(parity).any(|(made, unit)| **made != unit[part.clone()]) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The sums, for outputs that are given with their numbers.
    fn sum(&self, factors: &Factors, sources: &[&[u8]], outs: &mut [(usize, &mut [u8])], accumulate: bool) {
        let count = outs.len();
        let mut plain: [&mut [u8]; PARITY_MAX] = Default::default();
        for (plain, (_, out)) in plain.iter_mut().zip(outs) {
            *plain = out;
        }
        self.kernel.sum(factors, sources, &mut plain[..count], accumulate);
    }

    /// The numbers of outputs, if all are units from `first` on and differ, and are no more than there is parity.
    fn numbers(&self, outs: &[(usize, &mut [u8])], first: usize) -> Result<[usize; PARITY_MAX], Error> {
        let mut numbers = [0; PARITY_MAX];
        for (index, &(unit, _)) in outs.iter().enumerate() {
            if unit < first || unit >= self.data + self.parity {
                return Err(Error::NoSuchUnit(unit));
            }
            if outs[..index].iter().any(|&(other, _)| other == unit) {
                return Err(Error::Repeated(unit));
            }
            // Later ones than there is room for are a fault, too: of those that differ, too many are not lost.
            *numbers.get_mut(index).ok_or(Error::Count { found: outs.len(), expected: self.parity })? = unit;
        }
        Ok(numbers)
    }
}

/// The numbers of units, from `first` on, with their lengths.
fn lengths<T: AsRef<[u8]>>(first: usize, units: &[T]) -> impl Iterator<Item = (usize, usize)> {
    (first..).zip(units.iter().map(|unit| unit.as_ref().len()))
}

/// The length of all units, which are given as numbers and lengths.
fn have_one_length(units: impl Iterator<Item = (usize, usize)>) -> Result<usize, Error> {
    let mut first = None;
    for (unit, found) in units {
        let expected = *first.get_or_insert(found);
        if found != expected {
            return Err(Error::Length { unit, found, expected });
        }
    }
    Ok(first.unwrap_or(0))
}

fn is_count(found: usize, expected: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Count { found, expected }) }
}
