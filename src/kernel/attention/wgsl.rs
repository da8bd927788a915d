//! Attention on the GPU: tiles of queries or single queries in workgroup memory. Software adapters use tiles in
//! registers, or one thread per query if they lack subgroups.

use super::registers::{self, Tile};
use crate::ir::{Class, Operand};
use crate::kernel::wgsl::Builder;
use crate::kernel::{AttentionKernel, Caps, Launch, Params, Step};

/// Minimum number of queries for which tiles of 32 pay.
const TILED_QUERIES: usize = 12;

pub(crate) fn lower(step: &Step, kernel: &AttentionKernel, caps: &Caps) -> Launch {
    let tile = caps.software_lanes().map(|lanes| Tile::new(step, kernel, lanes, caps));
    let quads = tile.as_ref().map_or(Vec::new(), Tile::quads);
    let mut builder = Builder::with_quads(step, &quads, caps);
    score_code(&mut builder, kernel);
    let params = &mut builder.params;
    params
        .size("heads", kernel.heads)
        .size("groups", kernel.groups)
        .size("queries", kernel.queries)
        .size("keys", kernel.keys)
        .size("qk", kernel.qk)
        .size("value", kernel.value)
        .float("hidden", f32::NEG_INFINITY);
    let scalars =
        [("scale", Class::Float), ("softcap", Class::Float), ("valid", Class::Uint), ("position", Class::Int)];
    for ((name, class), &scalar) in scalars.into_iter().zip(&step.scalars) {
        params.scalar(name, class, scalar);
    }
    for (name, operand) in step.kernel.spec().input_names().into_iter().zip(&step.inputs) {
        stride_params(params, name, operand);
    }

    if let Some(tile) = tile {
        return registers::lower(builder, kernel, &tile, caps);
    }
    if caps.software {
        let work = place_code(&mut builder, kernel, 1, kernel.value.next_power_of_two().clamp(32, 256));
        builder.finish_threads(include_str!("../../../assets/kernels/attention_thread.wgsl"), work, caps)
    } else if kernel.queries >= TILED_QUERIES {
        let work = place_code(&mut builder, kernel, 32, 64);
        builder.finish_workgroups(include_str!("../../../assets/kernels/attention.wgsl"), 64, work, caps)
    } else {
        let work = place_code(&mut builder, kernel, 1, kernel.value.div_ceil(64).clamp(1, 4) * 64);
        let lanes = if caps.invocations >= 256 && kernel.keys > 64 { 256 } else { 64 };
        builder.finish_workgroups(include_str!("../../../assets/kernels/attention_row.wgsl"), lanes, work, caps)
    }
}

/// Generates `place_of(work)` for work items of the given numbers of queries and columns. Returns the number of work
/// items. Values too wide for one item are split into chunks of columns, each of which computes its own scores.
pub(crate) fn place_code(builder: &mut Builder, kernel: &AttentionKernel, queries: usize, columns: usize) -> usize {
    let (blocks, chunks) = (kernel.queries.div_ceil(queries), kernel.value.div_ceil(columns));
    builder.params.size("chunks", chunks).size("blocks", blocks);
    builder.constant("QUERIES", queries as u32).constant("COLUMNS", columns as u32);
    builder.code(include_str!("../../../assets/kernels/attention_place.wgsl"));
    kernel.batch * kernel.heads * blocks * chunks
}

/// Strides along the four axes of an operand.
fn stride_params(params: &mut Params, name: &str, operand: &Operand) {
    for (axis, &stride) in ["batch", "head", "row", "column"].into_iter().zip(&operand.layout.strides) {
        params.signed(&format!("{name}_{axis}"), stride);
    }
}

/// Code shared by all forms: `visible(query)` is the number of keys that a query sees, `adjust(…)` turns a dot product
/// into a score, and `weigh(…)` turns a score into a weight. Weights that underflow are set to 0, because drivers
/// differ there. A mask of −∞ hides a key.
fn score_code(builder: &mut Builder, kernel: &AttentionKernel) {
    builder.code(
        "const LOWEST: f32 = -0x1.fffffep+127f;
fn weigh(score: f32, largest: f32) -> f32 {
    let difference = score - largest;
    return select(exp(difference), 0.0, difference < -103.0);
}
fn visible(query: u32) -> u32 {
    let seen = min(params.valid, params.keys);",
    );
    builder.code(if kernel.causal {
        "    return u32(clamp(i32(query) + 1 + min(params.position, i32(seen)), 0, i32(seen)));\n}"
    } else {
        "    return seen;\n}"
    });
    builder.need("tanh_f32").code(
        "fn adjust(product: f32, batch: u32, head: u32, query: u32, key: u32) -> f32 {
    var score = product * params.scale;
    if params.softcap > 0.0 {
        score = params.softcap * tanh_f32(score / params.softcap);
    }",
    );
    if kernel.mask {
        builder.code(
            "    let place = batch * u32(params.mask_batch) + head * u32(params.mask_head)
        + query * u32(params.mask_row) + key * u32(params.mask_column);
    score += load_mask(params.mask_offset + place);",
        );
    }
    builder.code("    return score;\n}");
}
