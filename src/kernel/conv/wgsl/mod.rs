//! Convolution on the GPU, in four forms: strips of a plane for depthwise filters; implicit matrix products, tiled in
//! workgroup memory on GPUs or in registers on software adapters; and a direct form for everything else.

use crate::ir::Window;
use crate::kernel::wgsl::Builder;
use crate::kernel::wgsl::tile::{PRODUCT, RegisterTile};
use crate::kernel::{Caps, ConvKernel, Launch, Params, Step, Variant, Variants, choose};

mod depthwise;
mod registers;

/// Output positions per thread of the direct form. Must match the shader.
const POSITIONS: usize = 4;

/// Number of threads that keeps any device busy. With fewer, more channels per thread would leave part of it idle.
const BUSY: usize = 1 << 14;

/// Positions of a workgroup's tile in [`tiled`]. A tile has as many channels, or half as many.
const TILE: usize = 64;
/// Threads of a workgroup in [`tiled`].
const TILE_THREADS: u32 = 64;
/// Bytes of workgroup memory that [`tiled`] uses.
const TILE_BYTES: u32 = (2 * 16 * 17 + 16) * 16;
/// Minimum number of channels of a group, and of positions, for which a tile pays despite its unused part.
const TILE_PAYS: usize = 16;

pub(crate) fn lower(step: &Step, kernel: &ConvKernel, caps: &Caps) -> Launch {
    let mut builder = Builder::new(step);
    start_code(&mut builder, kernel);
    let positions = kernel.batch * kernel.output.iter().product::<usize>();
    builder.params.size("positions", positions);
    channel_params(&mut builder.params, kernel);
    window_params(&mut builder.params, &kernel.window, kernel.input, kernel.output);

    // The direct form always fits.
    let variant = choose(&variants(kernel, caps), caps).unwrap_or(Variant::ConvDirect(1));
    builder.variant(variant);
    match (variant, caps.software_lanes()) {
        (Variant::Depthwise, _) => depthwise::lower(builder, kernel, caps),
        (Variant::ConvRegisters, Some(lanes)) => registers::lower(builder, kernel, positions, lanes, caps),
        (Variant::ConvTiled, _) => tiled(builder, kernel, positions, caps),
        (Variant::ConvDirect(channels), _) => direct(builder, kernel, positions, channels.into(), caps),
        // All other variants are not forms of convolutions.
        _ => direct(builder, kernel, positions, 1, caps),
    }
}

/// The forms that can run a convolution on this device, the default first.
pub(crate) fn variants(kernel: &ConvKernel, caps: &Caps) -> Variants {
    let group_out = kernel.channels_out / kernel.groups.max(1);
    let positions = kernel.batch * kernel.output.iter().product::<usize>();
    let tiles_fit = caps.invocations >= TILE_THREADS && caps.workgroup_memory >= TILE_BYTES;
    let tiles_pay = group_out >= TILE_PAYS && positions >= TILE_PAYS;
    // Tiles in registers read some input element at every step, even where the window is out of range.
    let registers = kernel.input.iter().all(|&n| n > 0) && caps.software_lanes().is_some();
    let span = positions.div_ceil(POSITIONS);
    // With one filter per group, channels have nothing to share.
    let channels = match group_out {
        1 => 1,
        8.. if span * kernel.channels_out / 8 >= BUSY || caps.software => 8,
        _ => 4,
    };
    // In order of preference.
    let fit = [
        (depthwise::fits(kernel), Variant::Depthwise),
        (registers, Variant::ConvRegisters),
        (!caps.software && tiles_fit && tiles_pay, Variant::ConvTiled),
        (true, Variant::ConvDirect(channels)),
        (caps.software && tiles_fit && tiles_pay, Variant::ConvTiled),
        (channels != 4 && group_out >= 4, Variant::ConvDirect(4)),
        (channels != 8 && group_out >= 8, Variant::ConvDirect(8)),
        (channels != 1, Variant::ConvDirect(1)),
    ];
    fit.into_iter().filter(|(fits, _)| *fits).map(|(_, variant)| variant).collect()
}

/// Tiles in workgroup memory.
fn tiled(mut builder: Builder, kernel: &ConvKernel, positions: usize, caps: &Caps) -> Launch {
    let groups = kernel.groups.max(1);
    let group_out = kernel.channels_out / groups;
    let rows = if group_out <= TILE / 2 { TILE / 2 } else { TILE };
    let (tiles, blocks) = (positions.div_ceil(TILE), group_out.div_ceil(rows));
    builder.alias("T", "f32").code(PRODUCT).constant("ROWS", rows as u32);
    builder.params.size("tiles", tiles).size("blocks", blocks);
    let body = RegisterTile { rows, slices: 1 }.expand(include_str!("../../../../assets/kernels/conv_tiled.wgsl"));
    builder.finish_workgroups(&body, TILE_THREADS, tiles * blocks * groups, caps)
}

/// One thread computes a few channels at a few positions.
fn direct(mut builder: Builder, kernel: &ConvKernel, positions: usize, channels: usize, caps: &Caps) -> Launch {
    let group_out = kernel.channels_out / kernel.groups.max(1);
    let span = positions.div_ceil(POSITIONS);
    let blocks = group_out.div_ceil(channels);
    builder.constant("CHANNELS", channels as u32);
    builder.params.size("span", span).size("blocks", blocks);
    let threads = span * blocks * kernel.groups;
    builder.finish_threads(include_str!("../../../../assets/kernels/conv.wgsl"), threads, caps)
}

/// `start(channel)`: the initial value of a sum, which is the bias if there is one.
pub(crate) fn start_code(builder: &mut Builder, kernel: &ConvKernel) {
    let bias = if kernel.bias { "load_bias(params.bias_offset + channel)" } else { "0.0" };
    builder.code(&format!("fn start(channel: u32) -> f32 {{ return {bias}; }}"));
}

/// Numbers of channels, in total and per group.
pub(crate) fn channel_params(params: &mut Params, kernel: &ConvKernel) {
    let groups = kernel.groups.max(1);
    params
        .size("channels_in", kernel.channels_in)
        .size("channels_out", kernel.channels_out)
        .size("group_in", kernel.channels_in / groups)
        .size("group_out", kernel.channels_out / groups);
}

/// The parameters of a window and the sizes it slides over, by axis: `size_d`, `size_h`, `size_w`, `stride_d`, ….
pub(crate) fn window_params(params: &mut Params, window: &Window, input: [usize; 3], output: [usize; 3]) {
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
