//! Compiles loops for the instruction set of the machine, selected at run time.

use pulp::{Arch, Simd, WithSimd};

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
    Arch::new().dispatch(work)
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
