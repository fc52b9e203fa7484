use engine::rng::SplitMix;

use super::*;
use crate::matrix::{PARITY_MAX, UNITS_MAX};

/// Bytes around an output that must stay what they are.
const GUARD: usize = 64;

fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix(seed);
    (0..length).map(|_| random.draw() as u8).collect()
}

fn others() -> impl Iterator<Item = Chosen> {
    Kernel::ALL.into_iter().filter(|&kernel| kernel != Kernel::Scalar).filter_map(Chosen::new)
}

/// Sums with `outs` outputs of `length` bytes that begin `offset` bytes after what memory was allocated; guards and all.
fn sum(
    kernel: Chosen,
    factors: &Factors,
    sources: &[&[u8]],
    outs: usize,
    length: usize,
    offset: usize,
) -> Vec<Vec<u8>> {
    let mut made: Vec<Vec<u8>> = (0..outs).map(|out| bytes(offset + length + 2 * GUARD, 1000 + out as u64)).collect();
    for accumulate in [false, true] {
        let mut parts: Vec<&mut [u8]> = made.iter_mut().map(|out| &mut out[GUARD + offset..][..length]).collect();
        kernel.sum(factors, sources, &mut parts, accumulate);
        // What is added to is another sum than the one before.
        parts.iter_mut().filter_map(|part| part.first_mut()).for_each(|byte| *byte ^= 0x5a);
    }
    made
}

fn is_as_scalar(factors: &Factors, sources: &[&[u8]], outs: usize, length: usize, offset: usize) {
    let expected = sum(Chosen(Kernel::Scalar), factors, sources, outs, length, offset);
    for kernel in others() {
        let found = sum(kernel, factors, sources, outs, length, offset);
        assert!(found == expected, "{kernel:?}: {} sources, {outs} outputs, {length} bytes at {offset}", sources.len());
    }
}

/// Each of the 256 factors once.
fn all_factors() -> Factors {
    std::array::from_fn(|source| std::array::from_fn(|out| (source * PARITY_MAX + out) as u8))
}

#[test]
fn the_scalar_kernel_sums_products() {
    let factors = all_factors();
    let owned: Vec<Vec<u8>> = (0..UNITS_MAX).map(|source| bytes(9000, source as u64)).collect();
    let sources: Vec<&[u8]> = owned.iter().map(Vec::as_slice).collect();
    let mut made = vec![vec![0xee; 9000]; PARITY_MAX];
    let mut outs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
    Chosen(Kernel::Scalar).sum(&factors, &sources, &mut outs, false);
    for (out, made) in made.iter().enumerate() {
        for at in 0..9000 {
            let products = owned.iter().zip(&factors).map(|(source, row)| crate::field::multiply(row[out], source[at]));
            assert_eq!(made[at], products.fold(0, |sum, product| sum ^ product), "output {out}, byte {at}");
        }
    }
}

/// Every factor alone, on every byte.
#[test]
fn kernels_multiply_as_the_scalar_one() {
    let all: Vec<u8> = (0..=255).chain(0..=44).collect();
    for factor in 0..=255 {
        let mut factors = Factors::default();
        factors[0] = [factor; PARITY_MAX];
        for outs in [1, 2] {
            is_as_scalar(&factors, &[&all], outs, all.len(), 0);
        }
    }
}

/// All factors at once, over all lengths around the vectors', at all kinds of places; and all numbers of outputs.
#[test]
fn kernels_sum_as_the_scalar_one() {
    let owned: Vec<Vec<u8>> = (0..UNITS_MAX).map(|source| bytes(400, source as u64)).collect();
    let mut ones = all_factors();
    ones.iter_mut().for_each(|row| row[0] = 1);
    for length in 0..=300 {
        for offset in [0, 1, 8, 31, 63] {
            let sources: Vec<&[u8]> =
                owned.iter().enumerate().map(|(n, source)| &source[(offset + n) % 64..][..length]).collect();
            is_as_scalar(&all_factors(), &sources, PARITY_MAX, length, offset);
            for count in [1, 2, 3] {
                is_as_scalar(&ones, &sources[..count], 1, length, offset);
            }
        }
        for outs in 0..=PARITY_MAX {
            let sources: Vec<&[u8]> = owned.iter().map(|source| &source[..length]).collect();
            is_as_scalar(&all_factors(), &sources[..5], outs, length, 0);
        }
    }
}

/// Long outputs are written past the caches, where they are aligned.
#[test]
fn kernels_sum_long_outputs_as_the_scalar_one() {
    let length = (3 << 20) + 70;
    let owned: Vec<Vec<u8>> = (0..3).map(|source| bytes(length, source)).collect();
    let sources: Vec<&[u8]> = owned.iter().map(Vec::as_slice).collect();
    for offset in [0, 1] {
        let run = |kernel: Chosen| {
            let mut made = [7, 8].map(|seed| bytes(length + GUARD, seed));
            let mut outs: Vec<&mut [u8]> = made
                .iter_mut()
                .map(|out| {
                    let first = out.as_ptr().align_offset(GUARD) + offset;
                    &mut out[first..][..length]
                })
                .collect();
            kernel.sum(&all_factors(), &sources, &mut outs, false);
            outs.iter().map(|out| out.to_vec()).collect::<Vec<_>>()
        };
        let expected = run(Chosen(Kernel::Scalar));
        for kernel in others() {
            assert!(run(kernel) == expected, "{kernel:?} at {offset}");
        }
    }
}

#[test]
fn the_best_kernel_is_one_that_is_there() {
    let best = Chosen::best().kernel();
    assert!(best.is_available());
    let later = Kernel::ALL.into_iter().skip_while(|&kernel| kernel != best).skip(1);
    assert!(later.into_iter().all(|kernel| !kernel.is_available()));
}
