//! Softmax over the middle of `[outer, n, inner]`.

use super::Builder;
use super::reduce::finish_rows;
use super::scalar::Library;
use crate::kernel::{Caps, Launch, SoftmaxKernel};
use crate::plan::Step;

/// The launch of a softmax.
pub(super) fn lower(step: &Step, kernel: &SoftmaxKernel, caps: &Caps) -> Option<Launch> {
    let rows = kernel.outer * kernel.inner;
    if rows == 0 || kernel.n == 0 {
        return None;
    }
    let mut builder = Builder::new(step, "softmax");
    builder.params.size("rows", rows).size("n", kernel.n).size("inner", kernel.inner);
    builder.constant("LOG", u32::from(kernel.log));
    let mut library = Library::default();
    for name in ["min_max", "exp_f32", "log_f32", "is_inf", "from_bits"] {
        library.need(name);
    }
    builder.code(&library.text());
    let body = include_str!("../../../assets/kernels/softmax.wgsl");
    Some(finish_rows(builder, body, [rows, kernel.n, kernel.inner], caps))
}
