//! Compiling loops for the instruction set of the machine, chosen when the program runs.

use pulp::{Arch, Simd, WithSimd};

/// Runs `work` compiled for the widest vectors there are. What it calls must be inlined into it, so closures carry `#[inline(always)]`,
/// as the functions they call do. Multiplications and additions are never joined, so results do not depend on the machine.
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnMut() -> R) -> R {
    with_vectors(Loop(work))
}

/// Runs work that names its vectors.
#[inline(always)]
pub(crate) fn with_vectors<W: WithSimd>(work: W) -> W::Output {
    Arch::new().dispatch(work)
}

/// A closure. `FnMut`, because a closure called as `FnOnce` is called through a function of its own, which would not be inlined.
struct Loop<F>(F);

impl<R, F: FnMut() -> R> WithSimd for Loop<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) -> R {
        (self.0)()
    }
}
