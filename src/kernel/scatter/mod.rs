//! Scatters: write elements at positions given by an index tensor.

pub(crate) mod cpu;
mod passes;
pub(crate) mod wgsl;

pub(crate) use passes::ScatterPassKernel;
use passes::Sorted;

use crate::error::RunError;
use crate::ir::{Class, Node, ScatterReduce, Shape};
use crate::kernel::host::{CpuCall, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names, product};
use crate::kernel::split::{InParts, Levels, Part};
use crate::kernel::{Caps, Launch, Step, Variants};

/// The output is `data` with `updates[p]` combined in at `p with axis := index[p]`, in order of `p`. `indices` and
/// `updates` have the same shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScatterElementsKernel {
    pub class: Class,
    pub reduce: ScatterReduce,
    pub axis: usize,
    pub data: Shape,
    pub indices: Shape,
}

impl ScatterElementsKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &axis: &usize, &reduce: &ScatterReduce) -> Self {
        let shape = |input: usize| inputs[input].layout.shape.clone();
        Self { class: inputs[0].dtype.class(), reduce, axis, data: shape(0), indices: shape(1) }
    }
}

impl KernelSpec for ScatterElementsKernel {
    fn name(&self) -> &'static str {
        "scatter_elements"
    }

    fn input_names(&self) -> InputNames {
        names(&["data", "index", "updates"], &[])
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
        // Elements that no index refers to keep the previous content.
        false
    }

    fn flops(&self) -> usize {
        0
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        Vec::new()
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        let targets =
            ScatterPassKernel::Elements { axis: self.axis, data: self.data.clone(), indices: self.indices.clone() };
        let Self { class, reduce, .. } = *self;
        let sorted = Sorted { class, reduce, updates: self.indices.elements(), inner: 1 };
        passes::levels(targets, sorted, self.data.elements(), self.indices[self.axis])
    }

    fn sizes(&self) -> Sizes {
        Sizes::new()
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        Some(wgsl::scatter_elements(step, self, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, .. } = call.values();
        Ok(cpu::scatter_elements(self, inputs, out))
    }
}

/// The output is `data [dims…, inner]` with `updates [tuples, inner]` combined in at the index tuples, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScatterNdKernel {
    pub class: Class,
    pub reduce: ScatterReduce,
    pub tuples: usize,
    pub dims: Shape,
    pub inner: usize,
}

impl ScatterNdKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &reduce: &ScatterReduce) -> Self {
        let (data, indices) = (&inputs[0].layout.shape, &inputs[1].layout.shape);
        let depth = indices.last().copied().unwrap_or(1);
        Self {
            class: inputs[0].dtype.class(),
            reduce,
            tuples: indices.elements() / depth.max(1),
            dims: Shape::from(&data[..depth]),
            inner: product(&data[depth..]),
        }
    }
}

impl KernelSpec for ScatterNdKernel {
    fn name(&self) -> &'static str {
        "scatter_nd"
    }

    fn input_names(&self) -> InputNames {
        names(&["data", "index", "updates"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        // It reads results back to combine updates with them.
        Fusing::NONE
    }

    fn counts_faults(&self) -> bool {
        true
    }

    fn writes_all(&self) -> bool {
        // Elements that no index refers to keep the previous content.
        false
    }

    fn flops(&self) -> usize {
        0
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        Vec::new()
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        let Self { class, reduce, tuples, inner, .. } = *self;
        let targets = ScatterPassKernel::Nd { dims: self.dims.clone(), tuples };
        let sorted = Sorted { class, reduce, updates: tuples, inner };
        passes::levels(targets, sorted, self.dims.elements(), tuples)
    }

    fn sizes(&self) -> Sizes {
        Sizes::new()
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        Some(wgsl::scatter_nd(step, self, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, .. } = call.values();
        Ok(cpu::scatter_nd(self, inputs, out))
    }
}
