//! Attention: tiles of queries or single queries in workgroup memory for GPUs; tiles in registers for software adapters, or threads of their own
//! where these have no subgroups.

mod registers;

use self::registers::Tile;
use super::{Builder, grid};
use crate::ir::{Class, Operand};
use crate::kernel::{AttentionKernel, Caps, Launch, Params, Step};

/// From so many queries on, tiles of 32 pay.
const TILED_QUERIES: usize = 12;

pub(super) fn lower(step: &Step, kernel: &AttentionKernel, caps: &Caps) -> Launch {
    let tile = caps.software_lanes().map(|lanes| Tile::new(step, kernel, lanes, caps));
    let quads = tile.as_ref().map_or(Vec::new(), Tile::quads);
    let mut builder = Builder::with_quads(step, "attention", &quads, caps);
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
    for (name, operand) in step.kernel.input_names().into_iter().zip(&step.inputs) {
        stride_params(params, name, operand);
    }

    if let Some(tile) = tile {
        return registers::lower(builder, kernel, &tile, caps);
    }
    let heads = kernel.batch * kernel.heads;
    let (body, columns, blocks) = if caps.software {
        let columns = kernel.value.next_power_of_two().clamp(32, 256);
        builder.constant("COLUMNS", columns as u32);
        (include_str!("../../../../assets/kernels/attention_thread.wgsl"), columns, kernel.queries)
    } else if kernel.queries >= TILED_QUERIES {
        (include_str!("../../../../assets/kernels/attention.wgsl"), 64, kernel.queries.div_ceil(32))
    } else {
        let columns = kernel.value.div_ceil(64).clamp(1, 4);
        builder.constant("COLUMNS", columns as u32);
        builder.constant("LANES", if caps.invocations >= 256 && kernel.keys > 64 { 256 } else { 64 });
        (include_str!("../../../../assets/kernels/attention_row.wgsl"), columns * 64, kernel.queries)
    };
    // Values too wide for one go are cut into chunks of columns, each with its own scores.
    let chunks = kernel.value.div_ceil(columns);
    let work = heads * blocks * chunks;
    builder.params.size("chunks", chunks).size("blocks", blocks).size("work", work);
    if caps.software { builder.finish_threads(body, work, caps) } else { builder.finish(body, grid(work, caps)) }
}

/// Steps along the four axes of a strided operand.
fn stride_params(params: &mut Params, name: &str, operand: &Operand) {
    for (axis, &stride) in ["batch", "head", "row", "column"].into_iter().zip(&operand.layout.strides) {
        params.signed(&format!("{name}_{axis}"), stride);
    }
}

/// What every form does alike: `visible(query)`, how many keys it sees; `adjust(…)`, a dot product as a score; `weigh(…)`, a score as a weight
/// (0 where the exponential is no number worth adding, as drivers differ there). A mask of −∞ hides a key.
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
    builder.code(include_str!("../../../../assets/kernels/lib/is_nan.wgsl"));
    builder.code(include_str!("../../../../assets/kernels/lib/tanh_f32.wgsl"));
    builder.code(
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
