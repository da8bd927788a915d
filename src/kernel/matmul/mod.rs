//! Matrix products.

pub(crate) mod cpu;
pub(crate) mod gemm;
pub(crate) mod matvec;
pub(crate) mod registers;
pub(crate) mod wgsl;

use core::ops::Range;

use smallvec::SmallVec;

use crate::error::RunError;
use crate::ir::{Class, InnerOp, Layout, Node, Operand, Shape};
use crate::kernel::host::{CpuCall, Values};
use crate::kernel::map::merge_axes;
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names, product};
use crate::kernel::split::{InParts, Levels, Part, PartOutput, columns, sliced, two_ranges};
use crate::kernel::{Caps, Launch, Step, Variants};

/// Maximum number of terms that one worker should sum.
const LONGEST_SUM: usize = 1 << 15;

/// `out[b, i, j] = Σₖ a[b, i, k] · b[b, k, j]`. Inputs are strided, with layouts `[batch…, m, k]` and `[batch…, k, n]`
/// of equal rank. Batch axes are merged as far as possible. `class` is that of both inputs and the output.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MatMulKernel {
    pub inner: InnerOp,
    pub class: Class,
    pub batch: SmallVec<[usize; 4]>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl MatMulKernel {
    /// Merges batch axes. A batch that shares one right-hand side becomes additional rows.
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &inner: &InnerOp) -> Self {
        let (a, b) = (&inputs[0].layout, &inputs[1].layout);
        let rank = a.rank();
        let (mut m, k, n) = (a.shape[rank - 2], a.shape[rank - 1], b.shape[rank - 1]);
        let split = |layout: &Layout| {
            let batch = Layout {
                shape: Shape::from(&layout.shape[..rank - 2]),
                strides: layout.strides[..rank - 2].into(),
                offset: layout.offset,
            };
            (batch, layout.strides[rank - 2], layout.strides[rank - 1])
        };
        let ((mut batch_a, mut row_a, col_a), (mut batch_b, row_b, col_b)) = (split(a), split(b));
        let mut batch = merge_axes(&batch_a.shape.clone(), &mut [&mut batch_a, &mut batch_b]);
        let shared_right = batch_b.strides.iter().all(|&s| s == 0);
        if batch.rank() == 1 && shared_right && (m == 1 || batch_a.strides[0] == row_a * m as isize) {
            row_a = if m == 1 { batch_a.strides[0] } else { row_a };
            m *= batch[0];
            batch = Shape::default();
            (batch_a.strides, batch_b.strides) = (SmallVec::new(), SmallVec::new());
        }
        let whole = |batch_strides: &[isize], rows: (usize, isize), columns: (usize, isize), offset: usize| Layout {
            shape: Shape::new(batch.iter().copied().chain([rows.0, columns.0])),
            strides: batch_strides.iter().copied().chain([rows.1, columns.1]).collect(),
            offset,
        };
        inputs[0].layout = whole(&batch_a.strides, (m, row_a), (k, col_a), batch_a.offset);
        inputs[1].layout = whole(&batch_b.strides, (k, row_b), (n, col_b), batch_b.offset);
        Self { inner, class: inputs[0].dtype.class(), batch: SmallVec::from_slice(&batch), m, n, k }
    }

    /// Two products with half the columns each.
    fn half_columns(&self, step: &Step) -> Option<[Part; 2]> {
        Some(two_ranges(self.n)?.map(|range| {
            let mut inputs = step.inputs.clone();
            inputs[1].layout = inputs[1].layout.slice(1, range.start, range.len(), 1);
            let output = columns(&step.outputs[0], self.m, self.n, &range);
            Part { kernel: Self { n: range.len(), ..self.clone() }.into(), inputs, output }
        }))
    }

    /// The sum of two products with half the terms each. `None` for a batch of products.
    fn half_terms(&self, step: &Step) -> Option<[Part; 2]> {
        if !self.batch.is_empty() {
            return None;
        }
        Some(two_ranges(self.k)?.map(|range| {
            let mut inputs = step.inputs.clone();
            for (input, axis) in [(0, 1), (1, 0)] {
                let layout = &mut inputs[input].layout;
                *layout = layout.slice(axis, range.start, range.len(), 1);
            }
            let output = step.outputs[0].clone();
            let output = if range.start == 0 {
                PartOutput::Place(output)
            } else {
                let shape = Shape::from([self.m, self.n]);
                let layout = Layout { offset: output.layout.offset, ..Layout::contiguous(shape.clone()) };
                PartOutput::Added { shape, to: Operand { layout, ..output } }
            };
            Part { kernel: Self { k: range.len(), ..self.clone() }.into(), inputs, output }
        }))
    }
}

impl KernelSpec for MatMulKernel {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn input_names(&self) -> InputNames {
        names(&["a", "b"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Strided
    }

    fn fusing(&self) -> Fusing {
        Fusing::AFTER
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        2 * product(&self.batch) * self.m * self.n * self.k
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        if let Some(&batches) = self.batch.first() {
            let of_output = product(&self.batch[1..]) * self.m * self.n;
            let half = |range: Range<usize>| {
                let mut kernel = self.clone();
                kernel.batch[0] = range.len();
                sliced(step, kernel, &[(0, 0), (1, 0)], &range, of_output)
            };
            return two_ranges(batches).map(|ranges| ranges.map(half)).into_iter().collect();
        }
        let half_rows = |range: Range<usize>| {
            let kernel = Self { m: range.len(), ..self.clone() };
            sliced(step, kernel, &[(0, 0)], &range, self.n)
        };
        let rows = two_ranges(self.m).map(|ranges| ranges.map(half_rows));
        rows.into_iter().chain(self.half_columns(step)).chain(self.half_terms(step)).collect()
    }

    fn in_parts(&self, step: &Step, fits: bool) -> InParts {
        match self.half_terms(step) {
            Some(parts) if fits && self.k > LONGEST_SUM => InParts::Halves(parts),
            _ => InParts::Whole,
        }
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        SmallVec::from_slice(&[("b", product(&self.batch)), ("m", self.m), ("n", self.n), ("k", self.k)])
    }

    fn forms(&self, caps: &Caps) -> Variants {
        wgsl::variants(self, caps)
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        wgsl::lower(step, self, caps)
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let weights = call.storage(1);
        let Values { inputs, out, pool, .. } = call.values();
        cpu::matmul(self, inputs, weights, out, pool);
        Ok(0)
    }
}
