//! Transposed convolution.

use super::Builder;
use super::conv::{channel_params, start_code, window_params};
use crate::kernel::{Caps, ConvKernel, Launch, Step};

pub(super) fn lower(step: &Step, kernel: &ConvKernel, caps: &Caps) -> Launch {
    let count = kernel.batch * kernel.channels_out * kernel.output.iter().product::<usize>();
    let mut builder = Builder::new(step, "conv_transpose");
    start_code(&mut builder, kernel);
    channel_params(&mut builder.params, kernel);
    window_params(&mut builder.params, &kernel.window, kernel.input, kernel.output);
    builder.finish_threads(include_str!("../../../assets/kernels/conv_transpose.wgsl"), count, caps)
}
