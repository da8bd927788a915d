//! Compiles loops for the instruction set of the machine, selected at run time.

use pulp::{Simd, WithSimd};

/// Whether multiplications and additions can be contracted at no cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contraction(bool);

impl Contraction {
    /// Two roundings, as on machines that cannot contract.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self(false);
    /// One rounding, on every machine.
    #[cfg(test)]
    pub(crate) const FULL: Self = Self(true);

    /// What an instruction set can do. Vectors of eight imply fused multiply-adds on x86; NEON always has them.
    #[inline(always)]
    pub(crate) fn of<S: Simd>() -> Self {
        Self(const { S::F32_LANES >= 8 || cfg!(target_arch = "aarch64") })
    }

    /// `a · b + c`, rounded once if the machine does so in one instruction.
    #[inline(always)]
    pub(crate) fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        if self.0 { a.mul_add(b, c) } else { a * b + c }
    }
}

/// Like [`vectorised`], for functions that gain from contracted multiplications and additions. Their results differ
/// between machines in the last bits.
#[inline(always)]
pub(crate) fn contracted<R>(work: impl FnMut(Contraction) -> R) -> R {
    with_vectors(Contracted(work))
}

/// Runs `work` compiled for the widest available vectors. Everything it calls must be inlined into it, so closures and
/// the functions they call have `#[inline(always)]`. Multiplications and additions are never contracted, so results do
/// not depend on the machine.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnMut() -> R) -> R {
    with_vectors(Loop(work))
}

/// Runs work that uses SIMD types explicitly.
#[inline(always)]
pub(crate) fn with_vectors<W: WithSimd>(work: W) -> W::Output {
    #[cfg(test)]
    return forced::dispatch(work);
    #[cfg(not(test))]
    pulp::Arch::new().dispatch(work)
}

/// A closure. It is `FnMut` because a closure called as `FnOnce` goes through a separate function that would not be
/// inlined.
struct Loop<F>(F);

impl<R, F: FnMut() -> R> WithSimd for Loop<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) -> R {
        (self.0)()
    }
}

/// A closure that may contract.
struct Contracted<F>(F);

impl<R, F: FnMut(Contraction) -> R> WithSimd for Contracted<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) -> R {
        (self.0)(Contraction::of::<S>())
    }
}

/// Instruction sets that tests choose instead of the machine.
#[cfg(test)]
pub(crate) mod forced {
    use core::sync::atomic::{AtomicU8, Ordering};

    use pulp::{Arch, Scalar, Simd, WithSimd};

    /// All threads use it, so that those of a pool do.
    static CHOICE: AtomicU8 = AtomicU8::new(0);
    const PLAIN: u8 = 1;
    const AVX2: u8 = 2;

    #[inline(always)]
    pub(super) fn dispatch<W: WithSimd>(work: W) -> W::Output {
        match CHOICE.load(Ordering::Relaxed) {
            PLAIN => return Simd::vectorize(Scalar::new(), work),
            #[cfg(target_arch = "x86_64")]
            AVX2 => {
                if let Some(simd) = pulp::x86::V3::try_new() {
                    return Simd::vectorize(simd, work);
                }
            }
            _ => {}
        }
        Arch::new().dispatch(work)
    }

    /// Runs a test with plain loops, with AVX2 where it exists, and with what the machine has.
    pub(crate) fn each(mut test: impl FnMut()) {
        for choice in [PLAIN, AVX2, 0] {
            CHOICE.store(choice, Ordering::Relaxed);
            test();
        }
    }
}
