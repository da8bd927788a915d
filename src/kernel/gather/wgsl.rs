//! Gathers on the GPU, and the code shared with scatters that turns an index into a position.

use core::fmt::Write;

use smallvec::SmallVec;

use crate::ir::{Class, Operand, Shape};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, GatherElementsKernel, GatherKernel, GatherNdKernel, Launch, Step};

pub(crate) fn gather(step: &Step, kernel: &GatherKernel, caps: &Caps) -> Launch {
    let count = kernel.outer * kernel.indices * kernel.inner;
    let mut builder = Builder::new(step);
    resolve_code(&mut builder, &step.inputs[1]);
    let params = &mut builder.params;
    params.size("n", kernel.n).size("inner", kernel.inner).size("indices", kernel.indices);
    params.size("first", kernel.first).size("rows", kernel.rows);
    builder.finish_threads(include_str!("../../../assets/kernels/gather.wgsl"), count, caps)
}

pub(crate) fn gather_elements(step: &Step, kernel: &GatherElementsKernel, caps: &Caps) -> Launch {
    let count = kernel.indices.elements();
    let lines = Lines::new(&kernel.data, &kernel.indices, kernel.axis);
    let mut builder = Builder::new(step);
    resolve_code(&mut builder, &step.inputs[1]);

    lines.start_code(&mut builder);
    builder.finish_threads(include_str!("../../../assets/kernels/gather_elements.wgsl"), count, caps)
}

pub(crate) fn gather_nd(step: &Step, kernel: &GatherNdKernel, caps: &Caps) -> Launch {
    let count = kernel.batch * kernel.tuples * kernel.inner;
    let mut builder = Builder::new(step);
    resolve_code(&mut builder, &step.inputs[1]);
    slice_code(&mut builder, &kernel.dims);
    builder.params.size("tuples", kernel.tuples).size("inner", kernel.inner);
    builder.finish_threads(include_str!("../../../assets/kernels/gather_nd.wgsl"), count, caps)
}

/// `resolve(i, n)`: the position below `n` that index number `i` refers to. Negative indices count from the end.
/// Out-of-range indices are clamped and counted as faults.
pub(crate) fn resolve_code(builder: &mut Builder, index: &Operand) {
    let unsigned = index.dtype.class() == Class::Uint;
    let text = if unsigned {
        "    let index = load_index(params.index_offset + i);
    return Place(min(index, n - 1u), u32(index >= n));"
    } else {
        "    let index = i32(load_index(params.index_offset + i));
    let position = select(index, index + i32(n), index < 0);
    return Place(u32(clamp(position, 0, i32(n) - 1)), u32(position < 0 || position >= i32(n)));"
    };
    builder.code("struct Place {\n    at: u32,\n    fault: u32,\n}");
    builder.code(&format!("fn resolve(i: u32, n: u32) -> Place {{\n{text}\n}}"));
}

/// `slice(batch, tuple)`: the slice of `[batch, dims…]` that index tuple `tuple` refers to, and how many of its indices
/// were out of range. Adds the sizes to the parameters.
pub(crate) fn slice_code(builder: &mut Builder, dims: &Shape) {
    let depth = dims.rank();
    let mut body = String::from("fn slice(batch: u32, tuple: u32) -> Place {\n    var place = Place(batch, 0u);\n");
    for (i, &n) in dims.iter().enumerate() {
        builder.params.size(&format!("size{i}"), n);
        let _ = writeln!(body, "    let index{i} = resolve(tuple * {depth}u + {i}u, params.size{i});");
        let _ = writeln!(body, "    place.at = place.at * params.size{i} + index{i}.at;");
        let _ = writeln!(body, "    place.fault += index{i}.fault;");
    }
    builder.code(&(body + "    return place;\n}"));
}

/// The axes of data and indices, merged as far as both allow: usually to those before the axis, the axis, and those
/// after it.
pub(crate) struct Lines {
    pub data: SmallVec<[usize; 6]>,
    pub indices: SmallVec<[usize; 6]>,
    /// The indexed axis among the merged ones.
    pub axis: usize,
}

impl Lines {
    pub fn new(data: &Shape, indices: &Shape, axis: usize) -> Self {
        let mut lines = Self { data: SmallVec::new(), indices: SmallVec::new(), axis: 0 };
        for (i, (&d, &n)) in data.iter().zip(indices.iter()).enumerate() {
            if i == axis {
                lines.axis = lines.data.len();
            }
            // The indexed axis and the one after it are never merged into the axis before. Neither is an axis that the
            // indices do not fill.
            let merges = i > 0 && i != axis && i != axis + 1 && d == n;
            match (lines.data.last_mut(), lines.indices.last_mut()) {
                (Some(last_d), Some(last_n)) if merges => {
                    *last_d *= d;
                    *last_n *= n;
                }
                _ => {
                    lines.data.push(d);
                    lines.indices.push(n);
                }
            }
        }
        // A scalar has one axis of size 1.
        if lines.data.is_empty() {
            lines.data.push(1);
            lines.indices.push(1);
        }
        lines
    }

    pub fn rank(&self) -> usize {
        self.data.len()
    }

    /// `start_of(element)`: the data element of an index, with its position on the axis set to 0. Adds the size of the axis
    /// and its stride to the parameters, as `n` and `inner`.
    pub fn start_code(&self, builder: &mut Builder) {
        let mut body = String::from("fn start_of(element: u32) -> u32 {\n    var rest = element;\n    var at = 0u;\n");
        for i in (0..self.rank()).rev() {
            // Writing to a string cannot fail.
            let _ = writeln!(body, "    at += rest % params.size{i} * params.step{i};\n    rest /= params.size{i};");
        }
        builder.code(&(body + "    return at;\n}"));
        let params = &mut builder.params;
        params.size("n", self.data[self.axis]).size("inner", Self::inner(&self.data, self.axis));
        for i in 0..self.rank() {
            let step = if i == self.axis { 0 } else { Self::inner(&self.data, i) };
            params.size(&format!("size{i}"), self.indices[i]).size(&format!("step{i}"), step);
        }
    }

    /// Number of elements per step along axis `i` of a contiguous tensor of these sizes.
    pub fn inner(sizes: &[usize], i: usize) -> usize {
        sizes.iter().skip(i + 1).product()
    }
}
