//! Depthwise convolution: each thread processes a vertical strip of a plane that is a few columns wide. The filter
//! stays in registers, each input element is read once for all outputs of the strip that use it, and there is one row
//! of sums for each window that overlaps vertically.

use core::fmt::Write;

use super::BUSY;
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, ConvKernel, Launch};

/// Outputs side by side in a strip: many on software adapters, where loads are expensive; few on GPUs, where
/// neighbouring threads should read neighbouring elements.
const SOFTWARE_WIDTH: usize = 8;
const WIDTH: usize = 4;
/// Number of threads that keeps a software adapter busy.
const SOFTWARE_BUSY: usize = 1 << 9;
/// Maximum and minimum number of rows of a strip. Neighbouring strips read some rows twice.
const MOST_ROWS: usize = 64;
const FEWEST_ROWS: usize = 4;
/// Largest filter size whose weights are kept in registers, and largest stride, along an axis.
const LARGEST: usize = 7;
const LONGEST: usize = 2;
/// With this many filters per channel, reading the channel once for all of them is faster.
const MANY_FILTERS: usize = 8;

/// Whether this form can run the convolution. The shader unrolls the window, and it reads some input element even where
/// the window is out of range.
pub(crate) fn fits(kernel: &ConvKernel) -> bool {
    let window = &kernel.window;
    let groups = kernel.groups.max(1);
    kernel.channels_in == groups
        && kernel.input.iter().all(|&n| n > 0)
        && kernel.channels_out / groups < MANY_FILTERS
        && window.size[0] == 1
        && window.stride[0] == 1
        && window.before[0] == 0
        && kernel.output[0] == kernel.input[0]
        && (1..3).all(|axis| {
            window.size[axis] <= LARGEST
                && window.stride[axis] <= LONGEST
                && (window.dilation[axis] == 1 || window.size[axis] == 1)
        })
}

pub(crate) fn lower(mut builder: Builder, kernel: &ConvKernel, caps: &Caps) -> Launch {
    let (width, busy) = if caps.software { (SOFTWARE_WIDTH, SOFTWARE_BUSY) } else { (WIDTH, BUSY) };
    let [depth, height, _] = kernel.output;
    let across = kernel.output[2].div_ceil(width);
    let planes = kernel.batch * kernel.channels_out * depth;
    let wanted = busy.div_ceil((planes * across).max(1));
    let down = wanted.clamp(height.div_ceil(MOST_ROWS), height.div_ceil(FEWEST_ROWS)).max(1);
    let rows = height.div_ceil(down);
    // The rounded strip length may reduce the number of strips.
    let down = height.div_ceil(rows);
    builder.params.size("across", across).size("down", down).size("rows", rows);
    builder.finish_threads(&text(kernel, width), planes * across * down, caps)
}

/// The shader body. `sum1_0` is the first column of the row that began one step earlier.
fn text(kernel: &ConvKernel, width: usize) -> String {
    let ([_, size_h, size_w], [_, stride_h, stride_w]) = (kernel.window.size, kernel.window.stride);
    let under_way = size_h.div_ceil(stride_h);
    let reach = (width - 1) * stride_w + size_w;
    let mut text = format!(
        "// Without a branch: SwiftShader takes minutes and gigabytes to compile one for each of the reads below.
fn value(line: u32, h: u32, w: u32) -> f32 {{
    let inside = (h < params.input_h) & (w < params.input_w);
    return select(0.0, load_x(select(params.x_offset, line + w, inside)), inside);
}}
fn run(thread: u32) {{
    let left = thread % params.across * {width}u;
    var rest = thread / params.across;
    let top = rest % params.down * params.rows;
    rest = rest / params.down;
    let depth = rest % params.output_d;
    rest = rest / params.output_d;
    let channel = rest % params.channels_out;
    let batch = rest / params.channels_out;
    let plane = ((batch * params.channels_in + channel / params.group_out) * params.input_d + depth) * params.input_h;
    let out = (((batch * params.channels_out + channel) * params.output_d + depth) * params.output_h + top) * params.output_w + left;
    let rows = min(params.rows, params.output_h - top);
    let columns = params.output_w - left;
    let first = start(channel);
    // A coordinate before the input wraps to a large number, so one comparison detects both ends.
    let w = left * {stride_w}u - params.before_w;
    var h = top * {stride_h}u - params.before_h;
    let filter_at = params.weight_offset + channel * {}u;
",
        size_h * size_w
    );
    // Writing to a string cannot fail.
    for tap in 0..size_h * size_w {
        let _ = writeln!(text, "    let tap{tap} = load_weight(filter_at + {tap}u);");
    }
    for (a, c) in (0..under_way).flat_map(|a| (0..width).map(move |c| (a, c))) {
        let _ = writeln!(text, "    var sum{a}_{c} = first;");
    }
    let late = under_way - 1;
    let _ = writeln!(text, "    for (var i = 0u; i < rows + {late}u; i++) {{");
    for line in 0..stride_h {
        let _ = writeln!(text, "        let line{line} = params.x_offset + (plane + h) * params.input_w;");
        for p in 0..reach {
            let _ = writeln!(text, "        let v{line}_{p} = value(line{line}, h, w + {p}u);");
        }
        for (a, kh) in (0..under_way).map(|a| (a, a * stride_h + line)).filter(|(_, kh)| *kh < size_h) {
            for (c, kw) in (0..width).flat_map(|c| (0..size_w).map(move |kw| (c, kw))) {
                let (tap, p) = (kh * size_w + kw, c * stride_w + kw);
                let _ = writeln!(text, "        sum{a}_{c} += tap{tap} * v{line}_{p};");
            }
        }
        text.push_str("        h += 1u;\n");
    }
    let _ = writeln!(text, "        if (i >= {late}u) {{\n            let at = out + (i - {late}u) * params.output_w;");
    for c in 0..width {
        let _ = writeln!(text, "            if (columns > {c}u) {{ store_y(at + {c}u, sum{late}_{c}); }}");
    }
    text.push_str("        }\n");
    for (a, c) in (1..under_way).rev().flat_map(|a| (0..width).map(move |c| (a, c))) {
        let _ = writeln!(text, "        sum{a}_{c} = sum{}_{c};", a - 1);
    }
    for c in 0..width {
        let _ = writeln!(text, "        sum0_{c} = first;");
    }
    text.push_str("    }\n}\n");
    text
}
