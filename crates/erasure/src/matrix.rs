//! Which factors make which unit of which others.
//!
//! Parity `p` is the sum over all data `d` of `1 / ((k + p) ^ d)` times the unit: a Cauchy matrix, since all `k + p` and all `d`
//! are distinct elements of the field. Of a Cauchy matrix every square part is one, too, and is regular. So any `k` of all units
//! determine the others: what is lost of the data has as many equations, in a square part of the matrix.
//!
//! With one unit of parity every factor is 1, and parity is the exclusive or. The row of the Cauchy matrix, each column of which is
//! divided by its one entry, is just that: dividing columns keeps square parts regular, and here these parts are single ones.

use crate::field::{inverse, multiply};

/// Units of a code, data and parity. Chosen: wider stripes gain little room and make every rebuild read more.
pub const UNITS_MAX: usize = 32;
/// Units of parity of a code. Derived: the sums for so many fit into 16 vector registers beside what they are made of.
pub const PARITY_MAX: usize = 8;

/// What each source (first index) is multiplied by for each output.
pub(crate) type Factors = [[u8; PARITY_MAX]; UNITS_MAX];

/// The factors of parity.
pub(crate) fn cauchy(data: usize, parity: usize) -> Factors {
    let mut factors = Factors::default();
    for (d, row) in factors.iter_mut().enumerate().take(data) {
        for (p, factor) in row.iter_mut().enumerate().take(parity) {
            *factor = if parity == 1 { 1 } else { inverse(((data + p) ^ d) as u8) };
        }
    }
    factors
}

/// How wanted units are made of those that are left.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Numbers of the units that are read, one for each unit of data: that unit, or in its place a unit of parity if it is lost.
    pub(crate) sources: [usize; UNITS_MAX],
    /// What each of them is multiplied by for each wanted unit.
    pub(crate) factors: Factors,
}

impl Plan {
    /// The plan for a code of `data` units whose parity has the factors `parity`. Of all units `is_left` says whether it can be
    /// read: at least `data` can, and none of the `wanted` ones.
    pub(crate) fn new(parity: &Factors, data: usize, is_left: impl Fn(usize) -> bool, wanted: &[usize]) -> Plan {
        let mut sources = [0; UNITS_MAX];
        // Lost data, and the parity that is read instead of each.
        let (mut lost, mut instead, mut count) = ([0; PARITY_MAX], [0; PARITY_MAX], 0);
        let mut spare = (0..PARITY_MAX).filter(|p| is_left(data + p));
        for (d, source) in sources.iter_mut().enumerate().take(data) {
            *source = d;
            if !is_left(d)
                && let Some(p) = spare.next()
            {
                *source = data + p;
                (lost[count], instead[count]) = (d, p);
                count += 1;
            }
        }
        let (lost, instead) = (&lost[..count], &instead[..count]);
        let solved = solve(parity, lost, instead);
        let mut factors = Factors::default();
        for (out, &unit) in wanted.iter().enumerate() {
            // What the unit is in terms of the data that is left, and of the sums that the parity read has of the lost data.
            let mut of_sums = [0; PARITY_MAX];
            if let Some(row) = lost.iter().position(|&d| d == unit) {
                of_sums = solved[row];
            } else {
                for (row, &d) in lost.iter().enumerate() {
                    for (sum, factor) in of_sums.iter_mut().zip(solved[row]) {
                        *sum ^= multiply(parity[d][unit - data], factor);
                    }
                }
            }
            for d in 0..data {
                let direct = if unit < data { 0 } else { parity[d][unit - data] };
                let sums = instead.iter().zip(of_sums);
                factors[d][out] = sums.fold(direct, |factor, (&p, of)| factor ^ multiply(of, parity[d][p]));
            }
            for (&d, of) in lost.iter().zip(of_sums) {
                factors[d][out] = of;
            }
        }
        Plan { sources, factors }
    }
}

/// The inverse of the part of the matrix that makes the parity `instead` of the data `lost`: a row for each of `lost`. It is
/// inverted in place, row by row. No pivots are looked for: the leading parts of a Cauchy matrix are regular, so that none is zero.
fn solve(parity: &Factors, lost: &[usize], instead: &[usize]) -> [[u8; PARITY_MAX]; PARITY_MAX] {
    let count = lost.len();
    let mut matrix = [[0; PARITY_MAX]; PARITY_MAX];
    for (row, &p) in matrix.iter_mut().zip(instead) {
        for (value, &d) in row.iter_mut().zip(lost) {
            *value = parity[d][p];
        }
    }
    for pivot in 0..count {
        let scale = inverse(std::mem::replace(&mut matrix[pivot][pivot], 1));
        for value in &mut matrix[pivot][..count] {
            *value = multiply(scale, *value);
        }
        let of_pivot = matrix[pivot];
        for row in (0..count).filter(|&row| row != pivot) {
            let factor = std::mem::take(&mut matrix[row][pivot]);
            for (value, of_pivot) in matrix[row][..count].iter_mut().zip(of_pivot) {
                *value ^= multiply(factor, of_pivot);
            }
        }
    }
    matrix
}
