//! The vectors of x86.

use std::arch::x86_64::*;

use super::wide::{self, Vector};
use crate::field::{AFFINE, NIBBLES};
use crate::matrix::Factors;

/// A kernel: what a vector is, by what instructions, and the function that is compiled for them.
macro_rules! kernel {
    (
        $kernel:ident, $name:ident($register:ty), $bytes:literal bytes, 32 registers: $are_32:literal, features: $features:literal,
        $zero:ident, $load:ident, $store:ident, $stream:ident as $pointer:ty, $plus:ident,
        $factor_type:ty: |$of:ident| $factor:expr, |$vector:ident, $by:ident| $product:expr
    ) => {
        #[derive(Clone, Copy)]
        struct $name($register);

        // SAFETY: the instructions load and store one register, which is so long.
        unsafe impl Vector for $name {
            const BYTES: usize = $bytes;
            const ARE_32: bool = $are_32;
            type Factor = $factor_type;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller's promise; so it is below, where nothing else is said.
                Self(unsafe { $zero() })
            }

            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: the bytes can be read, and need not be aligned.
                Self(unsafe { $load(from.cast()) })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: the bytes can be written, and need not be aligned.
                unsafe { $store(to.cast(), self.0) }
            }

            #[inline(always)]
            unsafe fn stream(self, to: *mut u8) {
                // SAFETY: the bytes can be written, and are aligned; `streamed` comes before anybody else may look.
                unsafe { $stream(to.cast::<$pointer>(), self.0) }
            }

            #[inline(always)]
            unsafe fn streamed() {
                // SAFETY: every x86 of 64 bits has it.
                unsafe { _mm_sfence() }
            }

            #[inline(always)]
            unsafe fn fetch(from: *const u8) {
                // SAFETY: every x86 of 64 bits has it, and any address may be named.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
            }

            #[inline(always)]
            unsafe fn plus(self, other: Self) -> Self {
                // SAFETY: the caller's promise.
                Self(unsafe { $plus(self.0, other.0) })
            }

            #[inline(always)]
            unsafe fn factor($of: u8) -> Self::Factor {
                // SAFETY: the caller's promise, and what is loaded is a table of that length.
                unsafe { $factor }
            }

            #[inline(always)]
            unsafe fn times(self, $by: Self::Factor) -> Self {
                let $vector = self.0;
                // SAFETY: the caller's promise.
                Self(unsafe { $product })
            }
        }

        /// See [`super::Chosen::sum`].
        ///
        /// # Safety
        ///
        /// The processor has the features named here.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $kernel(f: &Factors, sources: &[&[u8]], outs: &mut [&mut [u8]], accumulate: bool) {
            // SAFETY: the instructions of the vector are those of the features.
            unsafe { wide::sum::<$name>(f, sources, outs, accumulate) }
        }
    };
}

kernel! {
    ssse3, Shuffled16(__m128i), 16 bytes, 32 registers: false, features: "ssse3",
    _mm_setzero_si128, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128 as __m128i, _mm_xor_si128,
    (__m128i, __m128i): |of| {
        let table = NIBBLES[usize::from(of)].as_ptr().cast();
        (_mm_loadu_si128(table), _mm_loadu_si128(table.add(1)))
    },
    |vector, by| {
        let half = _mm_set1_epi8(15);
        let low = _mm_shuffle_epi8(by.0, _mm_and_si128(vector, half));
        _mm_xor_si128(low, _mm_shuffle_epi8(by.1, _mm_and_si128(_mm_srli_epi64::<4>(vector), half)))
    }
}

kernel! {
    avx2, Shuffled32(__m256i), 32 bytes, 32 registers: false, features: "avx2",
    _mm256_setzero_si256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256 as __m256i, _mm256_xor_si256,
    (__m256i, __m256i): |of| {
        let table = NIBBLES[usize::from(of)].as_ptr().cast();
        let (low, high) = (_mm_loadu_si128(table), _mm_loadu_si128(table.add(1)));
        (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
    },
    |vector, by| {
        let half = _mm256_set1_epi8(15);
        let low = _mm256_shuffle_epi8(by.0, _mm256_and_si256(vector, half));
        _mm256_xor_si256(low, _mm256_shuffle_epi8(by.1, _mm256_and_si256(_mm256_srli_epi64::<4>(vector), half)))
    }
}

kernel! {
    gfni_avx2, Affine32(__m256i), 32 bytes, 32 registers: false, features: "avx2,gfni",
    _mm256_setzero_si256, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256 as __m256i, _mm256_xor_si256,
    __m256i: |of| _mm256_set1_epi64x(AFFINE[usize::from(of)].cast_signed()),
    |vector, by| _mm256_gf2p8affine_epi64_epi8::<0>(vector, by)
}

kernel! {
    gfni_avx512, Affine64(__m512i), 64 bytes, 32 registers: true, features: "avx512f,gfni",
    _mm512_setzero_si512, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512 as __m512i, _mm512_xor_si512,
    __m512i: |of| _mm512_set1_epi64(AFFINE[usize::from(of)].cast_signed()),
    |vector, by| _mm512_gf2p8affine_epi64_epi8::<0>(vector, by)
}
