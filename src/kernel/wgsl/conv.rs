//! Convolution.

use super::Builder;
use crate::kernel::{Caps, ConvKernel, Launch, Params};
use crate::plan::Step;
use crate::record::Window;

/// Output positions of a thread, as the text has them.
const POSITIONS: usize = 4;

/// Threads that keep any device busy; below, more channels to a thread would leave some of it idle.
const BUSY: usize = 1 << 14;

pub(super) fn lower(step: &Step, kernel: &ConvKernel, caps: &Caps) -> Launch {
    let group_out = kernel.channels_out / kernel.groups.max(1);
    // One filter a group (depthwise) leaves nothing to share between channels.
    let positions = kernel.batch * kernel.output.iter().product::<usize>();
    let span = positions.div_ceil(POSITIONS);
    let channels = match group_out {
        1 => 1,
        8.. if span * kernel.channels_out / 8 >= BUSY || caps.software => 8,
        _ => 4,
    };
    let blocks = group_out.div_ceil(channels);
    let threads = span * blocks * kernel.groups;

    let mut builder = Builder::new(step, "conv");
    builder.constant("CHANNELS", channels as u32);
    start_code(&mut builder, kernel);
    let params = &mut builder.params;
    params.size("positions", positions).size("span", span).size("blocks", blocks);
    channel_params(params, kernel);
    window_params(params, &kernel.window, kernel.input, kernel.output);
    builder.finish_threads(include_str!("../../../assets/kernels/conv.wgsl"), threads, caps)
}

/// `start(channel)`: what a sum starts from, the bias if there is one.
pub(super) fn start_code(builder: &mut Builder, kernel: &ConvKernel) {
    let bias = if kernel.bias { "load_bias(params.bias_offset + channel)" } else { "0.0" };
    builder.code(&format!("fn start(channel: u32) -> f32 {{ return {bias}; }}"));
}

/// Channels, whole and by group.
pub(super) fn channel_params(params: &mut Params, kernel: &ConvKernel) {
    let groups = kernel.groups.max(1);
    params
        .size("channels_in", kernel.channels_in)
        .size("channels_out", kernel.channels_out)
        .size("group_in", kernel.channels_in / groups)
        .size("group_out", kernel.channels_out / groups);
}

/// A window's numbers and the extents it slides over, by axis: `size_d`, `size_h`, `size_w`, `stride_d`, ….
pub(super) fn window_params(params: &mut Params, window: &Window, input: [usize; 3], output: [usize; 3]) {
    let fields = [
        ("size", window.size),
        ("stride", window.stride),
        ("dilation", window.dilation),
        ("before", window.before),
        ("input", input),
        ("output", output),
    ];
    for (name, values) in fields {
        for (axis, value) in ["d", "h", "w"].into_iter().zip(values) {
            params.size(&format!("{name}_{axis}"), value);
        }
    }
}
