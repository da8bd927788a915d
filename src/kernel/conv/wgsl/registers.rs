//! Convolution on a software adapter: a matrix product tiled in registers whose right-hand side is read directly from
//! the input.
//!
//! On such adapters a load costs as much as a hundred multiplications, even if all lanes read the same element. A
//! workgroup is therefore one subgroup with a tile as large as the driver can handle. Lanes own different positions,
//! load the weights of different channels and broadcast these to each other.

use core::fmt::Write;

use crate::kernel::wgsl::{Builder, grid};
use crate::kernel::{Caps, ConvKernel, Launch};

/// Number of channels stored at a time.
const STORED: usize = 4;

pub(crate) fn lower(mut builder: Builder, kernel: &ConvKernel, positions: usize, lanes: usize, caps: &Caps) -> Launch {
    let groups = kernel.groups.max(1);
    let group_out = kernel.channels_out / groups;
    // Tiles larger than the output waste work. With narrow subgroups, larger tiles take seconds to compile.
    let rows: usize = match group_out {
        33.. => 64,
        17.. => 32,
        9.. => 16,
        _ => 8,
    };
    let rows = rows.min(lanes * lanes);
    let quads: usize = if positions > 4 * lanes { 2 } else { 1 };
    let tiles = positions.div_ceil(4 * lanes * quads);
    let blocks = group_out.div_ceil(rows);
    let work = tiles * blocks * groups;
    builder.params.size("tiles", tiles).size("blocks", blocks).size("work", work);
    builder.finish(&text(rows, quads, lanes), grid(work, caps))
}

/// The shader body. It is fully unrolled because drivers only keep variables in registers that are never indexed:
/// `sum3_1` holds the tile's fourth channel at the lane's second group of four positions.
fn text(rows: usize, quads: usize, lanes: usize) -> String {
    let columns = 4 * lanes * quads;
    let shares = rows.div_ceil(lanes);
    let each = |r: usize| (0..quads).map(move |q| (r, q));
    let mut text = format!(
        "@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {{
    let work = workgroup_index(wid, nwg);
    if (work >= params.work) {{
        return;
    }}
    let tile = work % params.tiles;
    let group = work / params.tiles / params.blocks;
    let top = work / params.tiles % params.blocks * {rows}u;
    let taps = params.size_d * params.size_h * params.size_w;
    let size = params.group_in * taps;
    let plane = params.input_d * params.input_h * params.input_w;
    // Channels and positions past the end repeat the last one and are not stored.
    let last = params.group_out - 1u;
"
    );
    // Writing to a string cannot fail.
    for s in 0..shares {
        let _ = writeln!(
            text,
            "    let channel{s} = group * params.group_out + min(top + {}u + lane, last);
    let filter{s} = params.weight_offset + channel{s} * size;
    let start{s} = start(channel{s});",
            s * lanes
        );
    }
    for q in 0..quads {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| (q * 4 + i) * lanes);
        // A coordinate before the input wraps to a large number, so one comparison detects both ends.
        let _ = writeln!(
            text,
            "    let own{q} = tile * {columns}u + lane + vec4<u32>({a}u, {b}u, {c}u, {d}u);
    let place{q} = min(own{q}, vec4<u32>(params.positions - 1u));
    let corner_w{q} = place{q} % params.output_w * params.stride_w - params.before_w;
    let line{q} = place{q} / params.output_w;
    let corner_h{q} = line{q} % params.output_h * params.stride_h - params.before_h;
    let slice{q} = line{q} / params.output_h;
    let corner_d{q} = slice{q} % params.output_d * params.stride_d - params.before_d;
    let image{q} = params.x_offset + (slice{q} / params.output_d * params.channels_in + group * params.group_in) * plane;"
        );
    }
    for (r, q) in (0..rows).flat_map(each) {
        let start = format!("subgroupBroadcast(start{}, {}u)", r / lanes, r % lanes);
        let _ = writeln!(text, "    var sum{r}_{q} = vec4<f32>({start});");
    }
    text.push_str(
        "    var tap = 0u;
    for (var kd = 0u; kd < params.size_d; kd++) {
        for (var kh = 0u; kh < params.size_h; kh++) {
            for (var kw = 0u; kw < params.size_w; kw++) {
",
    );
    for q in 0..quads {
        let _ = writeln!(
            text,
            "                let d{q} = corner_d{q} + kd * params.dilation_d;
                let h{q} = corner_h{q} + kh * params.dilation_h;
                let w{q} = corner_w{q} + kw * params.dilation_w;
                let inside{q} = (d{q} < vec4<u32>(params.input_d)) & (h{q} < vec4<u32>(params.input_h)) & (w{q} < vec4<u32>(params.input_w));
                var at{q} = image{q} + select(vec4<u32>(), (d{q} * params.input_h + h{q}) * params.input_w + w{q}, inside{q});"
        );
    }
    text.push_str(
        "                var weight_at = tap;
                for (var c = 0u; c < params.group_in; c++) {
",
    );
    for q in 0..quads {
        let read = format!("load_x(at{q}.x), load_x(at{q}.y), load_x(at{q}.z), load_x(at{q}.w)");
        let _ = writeln!(
            text,
            "                    let x{q} = select(vec4<f32>(), vec4<f32>({read}), inside{q});
                    at{q} += plane;"
        );
    }
    for s in 0..shares {
        let _ = writeln!(text, "                    let weight{s} = load_weight(filter{s} + weight_at);");
    }
    for r in 0..rows {
        let weight = format!("subgroupBroadcast(weight{}, {}u)", r / lanes, r % lanes);
        let _ = writeln!(text, "                    let w{r} = {weight};");
        for (r, q) in each(r) {
            let _ = writeln!(text, "                    sum{r}_{q} += w{r} * x{q};");
        }
    }
    text.push_str(
        "                    weight_at += taps;
                }
                tap += 1u;
            }
        }
    }
    let out_plane = params.output_d * params.output_h * params.output_w;
",
    );
    for q in 0..quads {
        let _ = writeln!(
            text,
            "    let out{q} = (place{q} / out_plane * params.channels_out + group * params.group_out + top) * out_plane + place{q} % out_plane;"
        );
    }
    // Channels are stored in a loop that shifts them up, because the driver would take seconds to compile a separate
    // store for each.
    let _ = writeln!(text, "    for (var r = 0u; r < {rows}u; r += {STORED}u) {{");
    for (r, q) in (0..STORED).flat_map(each) {
        let _ = writeln!(
            text,
            "        if (top + r + {r}u < params.group_out) {{ store(own{q}, out{q} + (r + {r}u) * out_plane, sum{r}_{q}); }}"
        );
    }
    for (r, q) in (0..rows - STORED).flat_map(each) {
        let _ = writeln!(text, "        sum{r}_{q} = sum{}_{q};", r + STORED);
    }
    text.push_str(
        "    }
}
fn store(own: vec4<u32>, at: vec4<u32>, v: vec4<f32>) {
    if (own.x < params.positions) { store_y(at.x, v.x); }
    if (own.y < params.positions) { store_y(at.y, v.y); }
    if (own.z < params.positions) { store_y(at.z, v.z); }
    if (own.w < params.positions) { store_y(at.w, v.w); }
}
",
    );
    text
}
