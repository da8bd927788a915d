//! Gathers: read elements at positions given by an index tensor.

pub(crate) mod cpu;
pub(crate) mod wgsl;

use core::ops::Range;

use crate::error::RunError;
use crate::ir::{Class, Node, Shape};
use crate::kernel::host::{CpuCall, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, around, chosen_inputs, names, product};
use crate::kernel::split::{InParts, Levels, Part, PartOutput, by_rows, part, two_ranges};
use crate::kernel::{Caps, Launch, Step, Variants};

/// `out[o, j, i] = data[o, index[j], i]` for `data [outer, n, inner]` and `indices` indices. As in all gathers and
/// scatters, a negative index counts from the end, and an out-of-range index is clamped and counted as a fault. `n` is
/// at least 1.
///
/// For a large table, a launch may only see the `rows` from `first` on. Then `outer` is 1, `data` holds those rows, and
/// outputs that belong to other rows are left unchanged. The launch that sees the first row counts the faults.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GatherKernel {
    pub class: Class,
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
    pub indices: usize,
    pub first: usize,
    pub rows: usize,
}

impl GatherKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &axis: &usize) -> Self {
        let data = &inputs[0];
        let (outer, n, inner) = around(&data.layout.shape, axis);
        let indices = inputs[1].layout.elements();
        Self { class: data.dtype.class(), outer, n, inner, indices, first: 0, rows: n }
    }
}

impl KernelSpec for GatherKernel {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn input_names(&self) -> InputNames {
        names(&["data", "index"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        // A launch that sees a part of the table skips outputs that belong to other parts.
        Fusing { before: None, after: self.rows == self.n }
    }

    fn counts_faults(&self) -> bool {
        // Out-of-range positions are clamped and counted.
        true
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        0
    }

    fn bytes_read(&self, step: &Step) -> usize {
        chosen_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        let mut ways = by_rows(step, self.outer, self.n * self.inner, self.indices * self.inner, |outer| Self {
            outer,
            ..self.clone()
        });
        if self.outer == 1 {
            let some_indices = |range: Range<usize>| {
                let mut inputs = step.inputs.clone();
                inputs[1] = part(&step.inputs[1], range.start, range.len());
                let output = part(&step.outputs[0], range.start * self.inner, range.len() * self.inner);
                let kernel = Self { indices: range.len(), ..self.clone() };
                Part { kernel: kernel.into(), inputs, output: PartOutput::Place(output) }
            };
            let some_rows = |range: Range<usize>| {
                let mut inputs = step.inputs.clone();
                inputs[0] = part(&step.inputs[0], range.start * self.inner, range.len() * self.inner);
                let kernel = Self { first: self.first + range.start, rows: range.len(), ..self.clone() };
                Part { kernel: kernel.into(), inputs, output: PartOutput::Place(step.outputs[0].clone()) }
            };
            ways.extend(two_ranges(self.indices).map(|ranges| ranges.map(some_indices)));
            ways.extend(two_ranges(self.rows).map(|ranges| ranges.map(some_rows)));
        }
        ways
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        Sizes::new()
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        Some(wgsl::gather(step, self, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        Ok(cpu::gather(self, inputs, out, pool))
    }
}

/// `out[p] = data[p with axis := index[p]]` for every position `p` of `indices`, which has the shape of the output.
/// `data` has the same rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GatherElementsKernel {
    pub class: Class,
    pub axis: usize,
    pub data: Shape,
    pub indices: Shape,
}

impl GatherElementsKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &axis: &usize) -> Self {
        let shape = |input: usize| inputs[input].layout.shape.clone();
        Self { class: inputs[0].dtype.class(), axis, data: shape(0), indices: shape(1) }
    }
}

impl KernelSpec for GatherElementsKernel {
    fn name(&self) -> &'static str {
        "gather_elements"
    }

    fn input_names(&self) -> InputNames {
        names(&["data", "index"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        Fusing::AFTER
    }

    fn counts_faults(&self) -> bool {
        true
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        0
    }

    fn bytes_read(&self, step: &Step) -> usize {
        chosen_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        Vec::new()
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        Sizes::new()
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        Some(wgsl::gather_elements(step, self, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        Ok(cpu::gather_elements(self, inputs, out, pool))
    }
}

/// Copies `inner` elements for each of `batch · tuples` index tuples. A tuple has `depth` indices into `data [batch,
/// dims…, inner]`, where `dims` has `depth` axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GatherNdKernel {
    pub class: Class,
    pub batch: usize,
    pub tuples: usize,
    pub dims: Shape,
    pub inner: usize,
}

impl GatherNdKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &batch: &usize) -> Self {
        let (data, indices) = (&inputs[0].layout.shape, &inputs[1].layout.shape);
        let depth = indices.last().copied().unwrap_or(1);
        let batches = product(&data[..batch]);
        Self {
            class: inputs[0].dtype.class(),
            batch: batches,
            tuples: indices.elements() / (depth * batches).max(1),
            dims: Shape::from(&data[batch..batch + depth]),
            inner: product(&data[batch + depth..]),
        }
    }
}

impl KernelSpec for GatherNdKernel {
    fn name(&self) -> &'static str {
        "gather_nd"
    }

    fn input_names(&self) -> InputNames {
        names(&["data", "index"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        Fusing::AFTER
    }

    fn counts_faults(&self) -> bool {
        true
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        0
    }

    fn bytes_read(&self, step: &Step) -> usize {
        chosen_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        Vec::new()
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        Sizes::new()
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        Some(wgsl::gather_nd(step, self, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        Ok(cpu::gather_nd(self, inputs, out, pool))
    }
}
