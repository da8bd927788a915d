//! Running sums.

use super::Builder;
use super::rows::THREAD_ROW;
use crate::kernel::{Caps, CumSumKernel, Launch, Step, wgsl_type};

pub(super) fn lower(step: &Step, kernel: &CumSumKernel, caps: &Caps) -> Launch {
    let lines = kernel.outer * kernel.inner;
    let mut builder = Builder::new(step, "cumsum");
    builder.alias("T", wgsl_type(kernel.class)).constant("EXCLUSIVE", u32::from(kernel.exclusive));
    builder.params.size("n", kernel.n).size("inner", kernel.inner);
    // Few long lines leave a GPU idle unless a workgroup shares each; its barriers are what a software adapter pays for, where a thread can walk
    // the whole line.
    let shared = if caps.software { kernel.n > THREAD_ROW } else { lines < 1024 && kernel.n >= 256 };
    if shared && caps.invocations >= 256 {
        builder.finish_workgroups(include_str!("../../../assets/kernels/cumsum_scan.wgsl"), 256, lines, caps)
    } else {
        builder.finish_threads(include_str!("../../../assets/kernels/cumsum.wgsl"), lines, caps)
    }
}
