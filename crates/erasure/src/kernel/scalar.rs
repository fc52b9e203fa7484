//! The sums byte by byte: where there is nothing better, and what all other kernels are compared with.

use crate::field::multiply;
use crate::matrix::Factors;

/// Bytes of each unit before the next unit's turn. Chosen: with 32 units in the first or second cache, so that memory is read once.
const BLOCK: usize = 4096;

/// See [`super::Chosen::sum`].
pub(super) fn sum(factors: &Factors, sources: &[&[u8]], outs: &mut [&mut [u8]], accumulate: bool) {
    let lengths = sources.iter().map(|source| source.len()).chain(outs.iter().map(|out| out.len()));
    let length = lengths.min().unwrap_or(0);
    for from in (0..length).step_by(BLOCK) {
        let block = from..length.min(from + BLOCK);
        for (number, out) in outs.iter_mut().enumerate() {
            let out = &mut out[block.clone()];
            if !accumulate {
                out.fill(0);
            }
            for (source, row) in sources.iter().zip(factors) {
                for (sum, &byte) in out.iter_mut().zip(&source[block.clone()]) {
                    *sum ^= multiply(row[number], byte);
                }
            }
        }
    }
}
