//! Transposed convolution.

use super::conv::{channel_params, start_code, window_params};
use super::{Builder, grid};
use crate::kernel::{Caps, ConvKernel, Launch};
use crate::plan::Step;

pub(super) fn lower(step: &Step, kernel: &ConvKernel, caps: &Caps) -> Launch {
    let count = kernel.batch * kernel.channels_out * kernel.output.iter().product::<usize>();
    let mut builder = Builder::new(step, "conv_transpose");
    start_code(&mut builder, kernel);
    builder.params.size("count", count);
    channel_params(&mut builder.params, kernel);
    window_params(&mut builder.params, &kernel.window, kernel.input, kernel.output);
    builder.finish(include_str!("../../../assets/kernels/conv_transpose.wgsl"), grid(count.div_ceil(64), caps))
}
