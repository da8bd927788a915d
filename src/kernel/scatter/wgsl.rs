//! Scatters on the GPU. A thread owns an output element, so updates are applied in memory order on every device.

use core::fmt::Write;

use crate::ir::{Class, ScatterReduce};
use crate::kernel::gather::wgsl::{Lines, resolve_code, slice_code};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, Launch, ScatterElementsKernel, ScatterNdKernel, Step, wgsl_type};

/// Number of elements that keeps any device busy even with several per thread.
const BUSY: usize = 1 << 16;

pub(crate) fn scatter_elements(step: &Step, kernel: &ScatterElementsKernel, caps: &Caps) -> Launch {
    let count = kernel.data.elements();
    let lines = Lines::new(&kernel.data, &kernel.indices, kernel.axis);
    let mut builder = Builder::new(step);
    resolve_code(&mut builder, &step.inputs[1]);
    combine_code(&mut builder, kernel.class, kernel.reduce);

    builder.code("struct Line {\n    at: u32,\n    exists: bool,\n}");
    let mut body =
        String::from("fn line_of(element: u32) -> Line {\n    var rest = element;\n    var line = Line(0u, true);\n");
    for i in (0..lines.rank()).rev() {
        // Writing to a string cannot fail.
        let _ = writeln!(body, "    let index{i} = rest % params.size{i};\n    rest /= params.size{i};");
        let _ = writeln!(body, "    line.at += index{i} * params.step{i};");
        let _ = writeln!(body, "    line.exists = line.exists && index{i} < params.limit{i};");
    }
    builder.code(&(body + "    return line;\n}"));

    let axis = lines.axis;
    let params = &mut builder.params;
    params
        .size("n", lines.data[axis])
        .size("inner", Lines::inner(&lines.data, axis))
        .size("updates", lines.indices[axis])
        .size("updates_inner", Lines::inner(&lines.indices, axis));
    for i in 0..lines.rank() {
        // Along the indexed axis, every element is on the line.
        let (limit, step) =
            if i == axis { (lines.data[i], 0) } else { (lines.indices[i], Lines::inner(&lines.indices, i)) };
        params.size(&format!("size{i}"), lines.data[i]);
        params.size(&format!("limit{i}"), limit).size(&format!("step{i}"), step);
    }
    builder.finish_threads(include_str!("../../../assets/kernels/scatter_elements.wgsl"), count, caps)
}

pub(crate) fn scatter_nd(step: &Step, kernel: &ScatterNdKernel, caps: &Caps) -> Launch {
    let slices = kernel.dims.elements();
    // Every thread visits all tuples. With enough threads, each processes several elements.
    let span = if slices * kernel.inner >= BUSY { kernel.inner.div_ceil(8) } else { kernel.inner };
    let threads = slices * span;
    let mut builder = Builder::new(step);
    resolve_code(&mut builder, &step.inputs[1]);
    slice_code(&mut builder, &kernel.dims);
    combine_code(&mut builder, kernel.class, kernel.reduce);
    let params = &mut builder.params;
    params.size("span", span).size("tuples", kernel.tuples).size("inner", kernel.inner);
    builder.finish_threads(include_str!("../../../assets/kernels/scatter_nd.wgsl"), threads, caps)
}

/// `combine(a, b)`: the result of applying update `b` to element `a`. NaN wins in minima and maxima.
pub(super) fn combine_code(builder: &mut Builder, class: Class, reduce: ScatterReduce) {
    let result = match (reduce, class) {
        (ScatterReduce::Replace, _) => "b",
        (ScatterReduce::Add, _) => "a + b",
        (ScatterReduce::Mul, _) => "a * b",
        (ScatterReduce::Min, Class::Float) => "min_f32(a, b)",
        (ScatterReduce::Max, Class::Float) => "max_f32(a, b)",
        (ScatterReduce::Min, _) => "min(a, b)",
        (ScatterReduce::Max, _) => "max(a, b)",
    };
    builder.alias("T", wgsl_type(class));
    if class == Class::Float {
        builder.need("min_max");
    }
    builder.code(&format!("fn combine(a: T, b: T) -> T {{ return {result}; }}"));
}
