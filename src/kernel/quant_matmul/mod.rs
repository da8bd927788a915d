//! Products with quantised weights.

pub(crate) mod cpu;
pub(crate) mod wgsl;
#[cfg(target_arch = "x86_64")]
mod wide;

use core::ops::Range;

use bytemuck::cast_slice_mut;
use smallvec::smallvec;

use crate::error::RunError;
use crate::ir::{DType, Node, Shape};
use crate::kernel::host::{CpuCall, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part, columns, part, sliced, two_ranges};
use crate::kernel::{Caps, Launch, Step, Variants};

/// `out[i, j] = Σₖ x[i, k] · weight[j, k]` in `f32`. `x [m, k]` is float. `weight [n, k]` has a quantised type, or is
/// `i8` without a scale, starting at a word boundary, with `k` a multiple of 4.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuantMatMulKernel {
    pub weight: DType,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl QuantMatMulKernel {
    pub(crate) fn describe(node: &Node, inputs: &mut Inputs) -> Self {
        let (x, weight) = (&inputs[0], &inputs[1]);
        Self { weight: weight.dtype, m: node.shape[0], n: node.shape[1], k: x.layout.shape[1] }
    }
}

impl QuantMatMulKernel {
    /// Two products with half the columns each. Columns are rows of the weight.
    fn half_columns(&self, step: &Step) -> Option<[Part; 2]> {
        Some(two_ranges(self.n)?.map(|range| {
            let mut inputs = step.inputs.clone();
            inputs[1] = part(&step.inputs[1], range.start * self.k, range.len() * self.k);
            inputs[1].layout.shape = Shape::from([range.len(), self.k]);
            inputs[1].layout.strides = smallvec![self.k as isize, 1];
            let output = columns(&step.outputs[0], self.m, self.n, &range);
            Part { kernel: Self { n: range.len(), ..self.clone() }.into(), inputs, output }
        }))
    }
}

impl KernelSpec for QuantMatMulKernel {
    fn name(&self) -> &'static str {
        "quant_matmul"
    }

    fn input_names(&self) -> InputNames {
        names(&["x", "weight"], &[])
    }

    fn need(input: usize) -> Need {
        match input {
            0 => Need::Contiguous,
            _ => Need::ContiguousAtWord,
        }
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
        2 * self.m * self.n * self.k
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        let half_rows = |range: Range<usize>| {
            let kernel = Self { m: range.len(), ..self.clone() };
            sliced(step, kernel, &[(0, 0)], &range, self.n)
        };
        let rows = two_ranges(self.m).map(|ranges| ranges.map(half_rows));
        rows.into_iter().chain(self.half_columns(step)).collect()
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
        wgsl::lower(step, self, caps)
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        cpu::quant_matmul(self, inputs, cast_slice_mut(out), pool);
        Ok(0)
    }
}
