//! The vectors of ARM.

use std::arch::aarch64::*;

use super::wide::{self, Vector};
use crate::field::NIBBLES;
use crate::matrix::Factors;

#[derive(Clone, Copy)]
struct Shuffled16(uint8x16_t);

// SAFETY: the instructions load and store one register, which is so long.
unsafe impl Vector for Shuffled16 {
    const BYTES: usize = 16;
    const ARE_32: bool = true;
    type Factor = (uint8x16_t, uint8x16_t);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise; so it is below, where nothing else is said.
        Self(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the bytes can be read, and need not be aligned.
        Self(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the bytes can be written, and need not be aligned.
        unsafe { vst1q_u8(to, self.0) }
    }

    /// There is no such store: caches of ARM notice by themselves that whole lines are written.
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    unsafe fn streamed() {}

    /// Rust has no such instruction yet.
    #[inline(always)]
    unsafe fn fetch(_: *const u8) {}

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { veorq_u8(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn factor(of: u8) -> Self::Factor {
        let (low, high) = NIBBLES[usize::from(of)].split_at(16);
        // SAFETY: both halves of the table have 16 bytes.
        unsafe { (vld1q_u8(low.as_ptr()), vld1q_u8(high.as_ptr())) }
    }

    #[inline(always)]
    unsafe fn times(self, by: Self::Factor) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let low = vqtbl1q_u8(by.0, vandq_u8(self.0, vdupq_n_u8(15)));
            Self(veorq_u8(low, vqtbl1q_u8(by.1, vshrq_n_u8::<4>(self.0))))
        }
    }
}

/// See [`super::Chosen::sum`].
///
/// # Safety
///
/// The processor has NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn neon(f: &Factors, sources: &[&[u8]], outs: &mut [&mut [u8]], accumulate: bool) {
    // SAFETY: the instructions of the vector are NEON's.
    unsafe { wide::sum::<Shuffled16>(f, sources, outs, accumulate) }
}
