//! Weighted sums of a few elements along an axis (interpolation).

use super::Builder;
use crate::kernel::{Caps, Launch, Step, TapsKernel};

pub(super) fn lower(step: &Step, kernel: &TapsKernel, caps: &Caps) -> Launch {
    let count = kernel.outer * kernel.out * kernel.inner;
    let mut builder = Builder::new(step, "taps");
    builder.params.size("n", kernel.n).size("inner", kernel.inner).size("out", kernel.out).size("taps", kernel.taps);
    builder.finish_threads(include_str!("../../../assets/kernels/taps.wgsl"), count, caps)
}
