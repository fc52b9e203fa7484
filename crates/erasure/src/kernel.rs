//! The loops over the bytes: sums of sources times factors, in one pass.
//!
//! All kernels but the scalar one are one loop (`wide`) over vectors of the processor, which `x86` and `arm` say. What is `unsafe`
//! is in these three files.

#[cfg(target_arch = "aarch64")]
mod arm;
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod wide;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::matrix::Factors;

/// A set of instructions to compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Tables of half bytes, looked up byte by byte: any processor.
    Scalar,
    /// The same tables, looked up by a vector's shuffle of 16 bytes (x86).
    Ssse3,
    /// The same by 32 bytes (x86).
    Avx2,
    /// Multiplication by matrices of bits, of 32 bytes (x86).
    GfniAvx2,
    /// The same of 64 bytes (x86).
    GfniAvx512,
    /// Shuffles of 16 bytes (ARM).
    Neon,
}

impl Kernel {
    /// All of them, the one to be preferred last.
    pub const ALL: [Kernel; 6] =
        [Kernel::Scalar, Kernel::Ssse3, Kernel::Avx2, Kernel::GfniAvx2, Kernel::Neon, Kernel::GfniAvx512];

    /// Whether this processor has what the kernel is made of.
    pub fn is_available(self) -> bool {
        match self {
            Kernel::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Kernel::Ssse3 => is_x86_feature_detected!("ssse3"),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Kernel::GfniAvx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni"),
            #[cfg(target_arch = "x86_64")]
            Kernel::GfniAvx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("gfni"),
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            _ => false,
        }
    }
}

/// A kernel that this processor has: there is no other way to one than [`Chosen::new`], so that no instruction is met that is
/// unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen(Kernel);

impl Chosen {
    /// `kernel`, if the processor has it.
    pub(crate) fn new(kernel: Kernel) -> Option<Chosen> {
        kernel.is_available().then_some(Chosen(kernel))
    }

    /// The one to be preferred of those that the processor has.
    pub(crate) fn best() -> Chosen {
        Kernel::ALL.into_iter().filter_map(Chosen::new).next_back().unwrap_or(Chosen(Kernel::Scalar))
    }

    pub(crate) fn kernel(self) -> Kernel {
        self.0
    }

    /// Each of `outs` becomes the sum of all `sources`, each times its factor for the output; with `accumulate` that sum is added
    /// to what the output holds. The caller sees to it that all are of one length; the shortest one is the length else.
    pub(crate) fn sum(self, factors: &Factors, sources: &[&[u8]], outs: &mut [&mut [u8]], accumulate: bool) {
        match self.0 {
            // SAFETY: a `Chosen` of this kernel exists only where the processor has its instructions.
            #[cfg(target_arch = "x86_64")]
            Kernel::Ssse3 => unsafe { x86::ssse3(factors, sources, outs, accumulate) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => unsafe { x86::avx2(factors, sources, outs, accumulate) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kernel::GfniAvx2 => unsafe { x86::gfni_avx2(factors, sources, outs, accumulate) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kernel::GfniAvx512 => unsafe { x86::gfni_avx512(factors, sources, outs, accumulate) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => unsafe { arm::neon(factors, sources, outs, accumulate) },
            _ => scalar::sum(factors, sources, outs, accumulate),
        }
    }
}
