//! Positions of the best elements.

use super::{Builder, grid};
use crate::ir::Class;
use crate::kernel::{Caps, Launch, Step, TopKKernel};

/// `next_best`: what a round finds.
const NEXT: &str = include_str!("../../../assets/kernels/top_k_next.wgsl");

pub(super) fn lower(step: &Step, kernel: &TopKKernel, caps: &Caps) -> Launch {
    let TopKKernel { rows, n, k, .. } = *kernel;
    let mut builder = Builder::new(step, "top_k");
    key_code(&mut builder, kernel);
    builder.params.size("rows", rows).size("n", n).size("k", k);
    // Rounds cost `k · n` a row, counting ranks costs `n · n` but is wholly parallel and needs no barriers.
    if k * 4 >= n || n <= 64 {
        builder.finish_threads(include_str!("../../../assets/kernels/top_k_rank.wgsl"), rows * n, caps)
    } else if caps.software && rows >= 16 {
        builder.code(NEXT);
        builder.finish_threads(include_str!("../../../assets/kernels/top_k_row.wgsl"), rows, caps)
    } else {
        let lanes = if n >= 1024 && caps.invocations >= 256 { 256 } else { 64 };
        builder.constant("LANES", lanes).code(NEXT);
        builder.finish(include_str!("../../../assets/kernels/top_k.wgsl"), grid(rows, caps))
    }
}

/// `key(i)`: element `i` as an unsigned number; the better the element, the higher. −0 equals 0, and NaN is above infinity.
fn key_code(builder: &mut Builder, kernel: &TopKKernel) {
    builder.code("fn key(i: u32) -> u32 {");
    builder.code(match kernel.class {
        Class::Float => {
            "    let bits = bitcast<u32>(load_x(i));
    let magnitude = bits & 0x7fffffffu;
    var order = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    if magnitude > 0x7f800000u {
        order = 0xffffffffu;
    }"
        }
        Class::Int => "    let order = bitcast<u32>(load_x(i)) ^ 0x80000000u;",
        Class::Uint => "    let order = load_x(i);",
    });
    builder.code(if kernel.largest { "    return order;\n}" } else { "    return ~order;\n}" });
}
