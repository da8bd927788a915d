//! Softmax over the middle of `[outer, n, inner]`.

use super::Builder;
use super::rows::Rows;
use crate::kernel::{Caps, Launch, SoftmaxKernel, Step, Variants, choose};

fn rows(kernel: &SoftmaxKernel) -> Rows {
    Rows { rows: kernel.outer * kernel.inner, n: kernel.n, inner: kernel.inner, fields: &["top", "sum"] }
}

/// Who may work on a softmax on this device, the default first.
pub(in crate::kernel) fn variants(kernel: &SoftmaxKernel, caps: &Caps) -> Variants {
    rows(kernel).variants(caps)
}

/// The launch of a softmax.
pub(super) fn lower(step: &Step, kernel: &SoftmaxKernel, caps: &Caps) -> Option<Launch> {
    let SoftmaxKernel { log, outer, n, inner } = *kernel;
    if outer * inner == 0 || n == 0 {
        return None;
    }
    let rows = rows(kernel);
    let quads = [("x", rows.aligned(&step.inputs[0])), ("y", rows.aligned(&step.outputs[0]))];
    let mut builder = Builder::with_quads(step, "softmax", &quads, caps);
    builder.alias("T", "f32").constant("LOG", u32::from(log));
    rows.loads(&mut builder);
    rows.stores(&mut builder);
    for file in ["min_max", "exp_f32", "log_f32", "is_inf", "from_bits"] {
        builder.need(file);
    }
    let variant = choose(&rows.variants(caps), caps)?;
    Some(rows.finish(builder, variant, include_str!("../../../assets/kernels/softmax.wgsl"), caps))
}
