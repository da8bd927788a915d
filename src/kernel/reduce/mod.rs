//! Reductions over the middle axis of `[outer, n, inner]`.

pub(crate) mod cpu;
pub(crate) mod wgsl;

use core::ops::RangeInclusive;

use smallvec::SmallVec;

use crate::error::RunError;
use crate::ir::{Class, Node, ReduceKind, Shape};
use crate::kernel::host::{CpuCall, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names, product};
use crate::kernel::split::{InParts, Levels, Part, Pass, PassInput, PassInputs, by_rows};
use crate::kernel::{Caps, Launch, Step, Variants};

/// Maximum number of elements of a row that is reduced in one launch. Longer rows are split over several workers,
/// however many there are.
pub(crate) const LONGEST_ROW: usize = 1 << 17;

/// Input `[outer, n, inner]`, output `[outer, inner]`. `n` is at least 1. The output dtype is the 32-bit type of the
/// input, or `i32` for positions. `Mean` is only for floats.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReduceKernel {
    pub kind: ReduceKind,
    pub class: Class,
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

impl ReduceKernel {
    pub(crate) fn describe(
        _node: &Node,
        inputs: &mut Inputs,
        &kind: &ReduceKind,
        &axis: &usize,
        &count: &usize,
    ) -> Self {
        let (x, shape) = (&inputs[0], &inputs[0].layout.shape);
        Self {
            kind,
            class: x.dtype.class(),
            outer: product(&shape[..axis]),
            n: product(&shape[axis..axis + count]),
            inner: product(&shape[axis + count..]),
        }
    }
}

impl KernelSpec for ReduceKernel {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn input_names(&self) -> InputNames {
        names(&["x"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        Fusing::both(1, self.outer * self.inner)
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        self.outer * self.n * self.inner
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        by_rows(step, self.outer, self.n * self.inner, self.inner, |outer| Self { outer, ..self.clone() })
    }

    fn in_parts(&self, _step: &Step, fits: bool) -> InParts {
        let long = self.n > LONGEST_ROW && self.inner < LONGEST_ROW;
        if self.outer == 1 && (long || !fits) { InParts::LongRow(self.clone()) } else { InParts::Whole }
    }

    fn levels(&self) -> Option<Levels> {
        // A few rows that are long enough for several workers each are split into equal parts, whose results are then
        // reduced. This excludes positions and lengths without a suitable divisor.
        const FEW: usize = 64;
        const LONG: usize = 1 << 16;
        const PARTS: RangeInclusive<usize> = 16..=1024;
        let then = match self.kind {
            // The mean of the means of equal parts is the mean.
            ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Prod | ReduceKind::Max | ReduceKind::Min => self.kind,
            ReduceKind::SumSquares => ReduceKind::Sum,
            ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => return None,
        };
        if self.outer * self.inner > FEW || self.n < LONG {
            return None;
        }
        let parts = PARTS.rev().find(|&parts| self.n.is_multiple_of(parts))?;
        let first = Self { outer: self.outer * parts, n: self.n / parts, ..self.clone() };
        let second = Self { kind: then, n: parts, ..self.clone() };
        let shape = Shape::from([second.outer, second.n, second.inner]);
        let inputs = PassInputs::from_slice(&[PassInput::Input(0)]);
        Some(Levels {
            passes: vec![Pass { kernel: first.into(), inputs, shape, dtype: self.class.dtype() }],
            last: second.into(),
            inputs: PassInputs::from_slice(&[PassInput::Result(0)]),
            start: None,
            device_only: false,
        })
    }

    fn sizes(&self) -> Sizes {
        SmallVec::from_slice(&[("outer", self.outer), ("n", self.n), ("inner", self.inner)])
    }

    fn forms(&self, caps: &Caps) -> Variants {
        wgsl::variants(self, caps)
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        wgsl::lower(step, self, caps)
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        cpu::reduce(self, inputs, out, pool);
        Ok(0)
    }
}
