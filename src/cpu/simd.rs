//! Compiling loops for the instruction set of the machine, chosen when the program runs.

use pulp::{Arch, WithSimd};

/// Runs `work` compiled for the widest vectors there are. What it calls must be inlined into it, so closures carry `#[inline(always)]`,
/// as the functions they call do. Multiplications and additions are never joined, so results do not depend on the machine.
#[inline(always)]
pub(super) fn vectorised<W: WithSimd>(work: W) -> W::Output {
    Arch::new().dispatch(work)
}
