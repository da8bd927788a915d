//! Counts non-finite elements for debug mode: NaNs in the first word of the counter, infinities in the second.

use super::{access, declare, grid, load};
use crate::ir::Operand;
use crate::kernel::{Binding, Caps, Launch, Params, buffer_type};

/// The launch that checks every element of a float operand in memory. `None` for other operands.
pub(crate) fn non_finite(operand: &Operand, written: bool, caps: &Caps) -> Option<Launch> {
    let (layout, dtype) = (&operand.layout, operand.dtype);
    let count = layout.elements();
    if !dtype.is_float() || !operand.source.has_memory() || count == 0 {
        return None;
    }
    let mut params = Params::default();
    params.size("count", count).size("offset", layout.offset);
    let mut position = "params.offset".to_owned();
    let mut steps = String::new();
    for (axis, (&n, &stride)) in layout.shape.iter().zip(&layout.strides).enumerate().rev() {
        // Strides are wrapping words, so negative ones work too.
        params.size(&format!("n{axis}"), n).size(&format!("s{axis}"), stride as usize);
        steps.push_str(&format!("    let c{axis} = rest % params.n{axis};\n    rest = rest / params.n{axis};\n"));
        position.push_str(&format!(" + c{axis} * params.s{axis}"));
    }
    let access = access(operand.source, written);
    let ty = buffer_type(dtype);
    let mut text = params.wgsl();
    declare(&mut text, 1, access, "x", &format!("array<{ty}>"));
    declare(&mut text, 2, crate::kernel::Access::ReadWrite, "faults", "array<atomic<u32>>");
    text.push_str(super::WORKGROUP_INDEX);
    let value = load("x", ty, dtype, "at");
    text.push_str(&format!(
        "@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {{
    let i = workgroup_index(wid, nwg) * 64u + lid;
    if (i >= params.count) {{
        return;
    }}
    var rest = i;
{steps}    let at = {position};
    // Compares bits, because compilers may assume that no number is NaN.
    let bits = bitcast<u32>({value}) & 0x7fffffffu;
    if (bits > 0x7f800000u) {{
        atomicAdd(&faults[0], 1u);
    }} else if (bits == 0x7f800000u) {{
        atomicAdd(&faults[1], 1u);
    }}
}}
"
    ));
    let (params, patches) = params.finish();
    Some(Launch {
        name: "non_finite",
        variant: None,
        wgsl: text,
        entry: "main",
        checked: false,
        params_in_storage: false,
        bindings: [Binding { source: operand.source, access, part: None }].into_iter().collect(),
        params,
        patches,
        workgroups: grid(count.div_ceil(64), caps),
        counts_faults: true,
        loops: None,
    })
}
