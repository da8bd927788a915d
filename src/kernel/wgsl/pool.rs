//! Pooling.

use super::Builder;
use super::conv::window_params;
use super::reduce::beats_code;
use crate::ir::{Class, PoolKind};
use crate::kernel::{Caps, Launch, PoolKernel, Step, wgsl_type};

/// The position of the maximum of a window wholly outside the input is 0. A NaN is above every number, so it wins, as in `max`.
pub(super) fn lower(step: &Step, kernel: &PoolKernel, caps: &Caps) -> Launch {
    let count = kernel.planes * kernel.output.iter().product::<usize>();
    let mut builder = Builder::new(step, "pool");
    builder.alias("T", wgsl_type(kernel.class));
    beats_code(&mut builder, ">", kernel.class);
    builder.code(match kernel.kind {
        PoolKind::Max => "fn result(state: State) -> T { return state.best; }",
        PoolKind::ArgMax => "fn result(state: State) -> i32 { return i32(state.place); }",
        PoolKind::Average { include_pad: true } => {
            "fn result(state: State) -> T { return state.sum / T(max(state.padded, 1u)); }"
        }
        PoolKind::Average { include_pad: false } => {
            "fn result(state: State) -> T { return state.sum / T(max(state.inside, 1u)); }"
        }
    });
    let params = &mut builder.params;
    // As a parameter, since WGSL has no way to write an infinity.
    match kernel.class {
        Class::Float => params.float("lowest", f32::NEG_INFINITY),
        Class::Int => params.signed("lowest", i32::MIN as isize),
        Class::Uint => params.size("lowest", 0),
    };
    window_params(params, &kernel.window, kernel.input, kernel.output);
    for (axis, name) in ["padded_d", "padded_h", "padded_w"].into_iter().enumerate() {
        params.size(name, kernel.window.before[axis] + kernel.input[axis] + kernel.window.after[axis]);
    }
    builder.finish_threads(include_str!("../../../assets/kernels/pool.wgsl"), count, caps)
}
