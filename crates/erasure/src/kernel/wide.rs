//! The sums by vectors. Of each unit the same few vectors have their turn together: the sums of all outputs stay in registers while
//! each source is read once, and each output is written once.
//!
//! All here is inlined into one function for each kernel, which is compiled for the kernel's instructions (`x86`, `arm`): a vector
//! never crosses a call.

use crate::matrix::{Factors, PARITY_MAX, UNITS_MAX};

/// Bytes of one output from which the output is written past the caches. Measured: a tenth faster then, as the caches do not first
/// read what is overwritten; shorter ones had better be found in a cache by whoever sends them. Several outputs at a time are
/// slower so at any length.
const STREAM_BYTES: usize = 1 << 20;
/// How far ahead sources are fetched into the cache. Measured: with ten sources half as much again out of memory, as the processor
/// itself follows fewer of them; 512 to 2048 bytes are alike.
const AHEAD_BYTES: usize = 1024;
/// Bytes of a line of the cache.
const LINE_BYTES: usize = 64;
/// Bytes of the widest vector.
const VECTOR_BYTES_MAX: usize = 64;

/// A vector register of bytes.
///
/// # Safety
///
/// `load`, `store` and `stream` touch exactly the `BYTES` bytes that the pointer names.
pub(super) unsafe trait Vector: Copy {
    /// Its length.
    const BYTES: usize;
    /// Whether the processor has 32 of them, or 16.
    const ARE_32: bool;
    /// A factor, as multiplication takes it.
    type Factor: Copy;

    /// # Safety
    ///
    /// The processor has the instructions; the same for all functions here.
    unsafe fn zero() -> Self;
    /// # Safety
    ///
    /// Bytes can be read there.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    ///
    /// Bytes can be written there.
    unsafe fn store(self, to: *mut u8);
    /// Past the caches; another thread may see it late before `streamed`.
    ///
    /// # Safety
    ///
    /// Bytes can be written there, and `to` is a multiple of `BYTES`.
    unsafe fn stream(self, to: *mut u8);
    /// # Safety
    ///
    /// As said for all.
    unsafe fn streamed();
    /// Begins to fetch a line, if there is one.
    ///
    /// # Safety
    ///
    /// As said for all.
    unsafe fn fetch(from: *const u8);
    /// # Safety
    ///
    /// As said for all.
    unsafe fn plus(self, other: Self) -> Self;
    /// # Safety
    ///
    /// As said for all.
    unsafe fn factor(of: u8) -> Self::Factor;
    /// # Safety
    ///
    /// As said for all.
    unsafe fn times(self, factor: Self::Factor) -> Self;
}

/// What is summed: sources with a row of factors each, and how outputs are written.
#[derive(Clone, Copy)]
struct Sum<'a> {
    factors: &'a Factors,
    sources: &'a [&'a [u8]],
    accumulate: bool,
    stream: bool,
    length: usize,
}

/// See [`super::Chosen::sum`].
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn sum<V: Vector>(factors: &Factors, sources: &[&[u8]], outs: &mut [&mut [u8]], accumulate: bool) {
    let lengths = sources.iter().map(|source| source.len()).chain(outs.iter().map(|out| out.len()));
    let length = lengths.min().unwrap_or(0);
    let stream = match &outs {
        // What is added to has been read.
        [out] if !accumulate => length >= STREAM_BYTES && out.as_ptr().addr().is_multiple_of(V::BYTES),
        _ => false,
    };
    let sum = Sum { factors, sources, accumulate, stream, length };
    let are_ones = outs.len() == 1 && sources.iter().zip(factors).all(|(_, row)| row[0] == 1);
    // As many vectors of each unit at a time as sums fit into half of the registers.
    macro_rules! columns {
        ($outs:literal, $of_16:literal, $of_32:literal, $multiply:literal) => {
            // SAFETY: the caller's promise.
            unsafe {
                if V::ARE_32 {
                    columns::<V, $outs, $of_32, $multiply>(sum, outs);
                } else {
                    columns::<V, $outs, $of_16, $multiply>(sum, outs);
                }
            }
        };
    }
    match outs.len() {
        1 if are_ones => columns!(1, 4, 8, false),
        1 => columns!(1, 4, 8, true),
        2 => columns!(2, 4, 8, true),
        3 => columns!(3, 2, 4, true),
        4 => columns!(4, 2, 4, true),
        5 => columns!(5, 1, 2, true),
        6 => columns!(6, 1, 2, true),
        7 => columns!(7, 1, 2, true),
        8 => columns!(8, 1, 2, true),
        // No code has more, and of none there is nothing to do.
        _ => {}
    }
}

/// All of the units, `VECTORS` vectors of each at a time, then single ones, then what is shorter.
///
/// # Safety
///
/// The processor has the instructions of `V`; every source and output has `sum.length` bytes; streamed outputs are aligned.
#[inline(always)]
unsafe fn columns<V: Vector, const OUTS: usize, const VECTORS: usize, const MULTIPLY: bool>(
    sum: Sum<'_>,
    outs: &mut [&mut [u8]],
) {
    let length = sum.length;
    let mut pointers = [std::ptr::null_mut(); OUTS];
    for (pointer, out) in pointers.iter_mut().zip(outs.iter_mut()) {
        *pointer = out.as_mut_ptr();
    }
    let mut at = 0;
    while length - at >= VECTORS * V::BYTES {
        // SAFETY: so many bytes from `at` on lie in every source and output, all of which this function has borrowed; `at` is a
        // multiple of the vector's length, so what is aligned stays so.
        unsafe { column::<V, OUTS, VECTORS, MULTIPLY>(sum, at, &pointers) };
        at += VECTORS * V::BYTES;
    }
    while length - at >= V::BYTES {
        // SAFETY: as above.
        unsafe { column::<V, OUTS, 1, MULTIPLY>(sum, at, &pointers) };
        at += V::BYTES;
    }
    if sum.stream {
        // SAFETY: the caller's promise.
        unsafe { V::streamed() };
    }
    if at < length {
        // SAFETY: the caller's promise.
        unsafe { tail::<V, OUTS, MULTIPLY>(sum, at..length, outs) };
    }
}

/// The last bytes, fewer than a vector has, by way of whole vectors on the stack.
///
/// # Safety
///
/// The processor has the instructions of `V`, and `range` is shorter than a vector.
#[inline(always)]
unsafe fn tail<V: Vector, const OUTS: usize, const MULTIPLY: bool>(
    sum: Sum<'_>,
    range: std::ops::Range<usize>,
    outs: &mut [&mut [u8]],
) {
    let mut padded = [[0; VECTOR_BYTES_MAX]; UNITS_MAX];
    for (padded, source) in padded.iter_mut().zip(sum.sources) {
        padded[..range.len()].copy_from_slice(&source[range.clone()]);
    }
    let mut sources: [&[u8]; UNITS_MAX] = [&[]; UNITS_MAX];
    for (source, padded) in sources.iter_mut().zip(&padded) {
        *source = padded;
    }
    let mut sums = [[0; VECTOR_BYTES_MAX]; PARITY_MAX];
    let mut pointers = [std::ptr::null_mut(); OUTS];
    for ((sum, out), pointer) in sums.iter_mut().zip(outs.iter()).zip(&mut pointers) {
        sum[..range.len()].copy_from_slice(&out[range.clone()]);
        *pointer = sum.as_mut_ptr();
    }
    let padded =
        Sum { sources: &sources[..sum.sources.len().min(UNITS_MAX)], stream: false, length: range.len(), ..sum };
    // SAFETY: every source and sum has room for the widest vector.
    unsafe { column::<V, OUTS, 1, MULTIPLY>(padded, 0, &pointers) };
    for (out, sum) in outs.iter_mut().zip(&sums) {
        out[range.clone()].copy_from_slice(&sum[..range.len()]);
    }
}

/// `VECTORS` vectors of every unit from byte `at` on.
///
/// # Safety
///
/// The processor has the instructions of `V`; so many bytes from `at` on can be read of every source, and read and written at every
/// output; if outputs are streamed, they and `at` are multiples of the vector's length.
#[inline(always)]
unsafe fn column<V: Vector, const OUTS: usize, const VECTORS: usize, const MULTIPLY: bool>(
    sum: Sum<'_>,
    at: usize,
    outs: &[*mut u8; OUTS],
) {
    let Sum { factors, sources, accumulate, stream, length } = sum;
    // The sums of a few sources without factors are loads and stores alone, of which each more costs.
    let ahead = MULTIPLY && at + AHEAD_BYTES < length;
    // SAFETY: the caller's promise, for every `vector < VECTORS`.
    unsafe {
        let mut sums = [[V::zero(); VECTORS]; OUTS];
        if accumulate {
            for (sums, out) in sums.iter_mut().zip(outs) {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(out.add(at + vector * V::BYTES));
                }
            }
        }
        for (source, row) in sources.iter().zip(factors) {
            if ahead {
                for line in (0..VECTORS * V::BYTES).step_by(LINE_BYTES) {
                    V::fetch(source.as_ptr().wrapping_add(at + AHEAD_BYTES + line));
                }
            }
            let mut bytes = [V::zero(); VECTORS];
            for (vector, bytes) in bytes.iter_mut().enumerate() {
                *bytes = V::load(source.as_ptr().add(at + vector * V::BYTES));
            }
            for (sums, &factor) in sums.iter_mut().zip(row) {
                let factor = V::factor(factor);
                for (sum, bytes) in sums.iter_mut().zip(bytes) {
                    *sum = sum.plus(if MULTIPLY { bytes.times(factor) } else { bytes });
                }
            }
        }
        for (sums, out) in sums.iter().zip(outs) {
            for (vector, sum) in sums.iter().enumerate() {
                let to = out.add(at + vector * V::BYTES);
                if stream { sum.stream(to) } else { sum.store(to) }
            }
        }
    }
}
