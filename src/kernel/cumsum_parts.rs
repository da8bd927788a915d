//! Running sums of long lines, in parts: the sums of the parts, the running sums of these, and the running sums of each
//! part from there on.

use bytemuck::cast_slice_mut;

use crate::error::RunError;
use crate::ir::{Class, Shape};
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::{Number, with_class};
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::spec::{Fusing, InputNames, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part, PartOutput, Pass, PassInput, PassInputs, part, two_ranges};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, CumSumKernel, Launch, Step, Variants, wgsl_type};

/// Elements of a part.
const LENGTH: usize = 512;
/// Lines of at most this many elements are done by one thread or workgroup each.
const SHORT: usize = 1 << 12;
/// The same, if there are so many lines that a thread for each keeps a device busy.
const SHORT_OF_MANY: usize = 1 << 15;
const MANY: usize = 1 << 10;

/// A launch for parts of the lines `[outer, n, inner]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CumSumPartsKernel {
    pub pass: CumSumPass,
    pub class: Class,
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

/// What a launch does with the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CumSumPass {
    /// Their sums: `[outer, parts, inner]`.
    Sums,
    /// Their running sums, which start with `carry [outer, parts, inner]`.
    Carried { exclusive: bool },
}

/// The launches of running sums of long lines.
pub(crate) fn levels(kernel: &CumSumKernel) -> Option<Levels> {
    let CumSumKernel { class, exclusive, outer, n, inner } = *kernel;
    let short = if outer.saturating_mul(inner) >= MANY { SHORT_OF_MANY } else { SHORT };
    if n <= short {
        return None;
    }
    let pass = |pass: CumSumPass| CumSumPartsKernel { pass, class, outer, n, inner };
    let sums = pass(CumSumPass::Sums);
    let parts = sums.parts();
    let shape = Shape::from([outer, parts, inner]);
    let before = CumSumKernel { class, exclusive: true, outer, n: parts, inner };
    let input = |input: PassInput| PassInputs::from_slice(&[input]);
    let dtype = class.dtype();
    Some(Levels {
        passes: vec![
            Pass { kernel: sums.into(), inputs: input(PassInput::Input(0)), shape: shape.clone(), dtype },
            Pass { kernel: before.into(), inputs: input(PassInput::Result(0)), shape, dtype },
        ],
        last: pass(CumSumPass::Carried { exclusive }).into(),
        inputs: PassInputs::from_slice(&[PassInput::Input(0), PassInput::Result(1)]),
        start: None,
        device_only: true,
    })
}

impl CumSumPartsKernel {
    fn parts(&self) -> usize {
        self.n.div_ceil(LENGTH)
    }
}

impl KernelSpec for CumSumPartsKernel {
    fn name(&self) -> &'static str {
        "cumsum_parts"
    }

    fn input_names(&self) -> InputNames {
        names(&["x"], &[(matches!(self.pass, CumSumPass::Carried { .. }), "carry")])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        Fusing::both(1, self.outer * self.parts() * self.inner)
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
        // Lines, or the parts of a single line.
        let (count, lines) = if self.outer > 1 { (self.outer, true) } else { (self.parts(), false) };
        let part_of = |range: core::ops::Range<usize>| {
            let (rows, kernel) = if lines {
                let rows = range.start * self.n..range.end * self.n;
                (rows, Self { outer: range.len(), ..self.clone() })
            } else {
                let rows = range.start * LENGTH..(range.end * LENGTH).min(self.n);
                (rows.clone(), Self { n: rows.len(), ..self.clone() })
            };
            let parts = if lines { range.start * self.parts()..range.end * self.parts() } else { range };
            let cut = |operand, range: &core::ops::Range<usize>| {
                part(operand, range.start * self.inner, range.len() * self.inner)
            };
            let mut inputs = step.inputs.clone();
            inputs[0] = cut(&step.inputs[0], &rows);
            let output = match self.pass {
                CumSumPass::Sums => cut(&step.outputs[0], &parts),
                CumSumPass::Carried { .. } => {
                    inputs[1] = cut(&step.inputs[1], &parts);
                    cut(&step.outputs[0], &rows)
                }
            };
            Part { kernel: kernel.into(), inputs, output: PartOutput::Place(output) }
        };
        two_ranges(count).map(|ranges| ranges.map(part_of)).into_iter().collect()
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
        let mut builder = Builder::new(step);
        builder.alias("T", wgsl_type(self.class));
        let params = &mut builder.params;
        params.size("n", self.n).size("inner", self.inner).size("parts", self.parts()).size("length", LENGTH);
        let body = match self.pass {
            CumSumPass::Sums => include_str!("../../assets/kernels/cumsum_sums.wgsl"),
            CumSumPass::Carried { exclusive } => {
                builder.constant("EXCLUSIVE", u32::from(exclusive));
                include_str!("../../assets/kernels/cumsum_carried.wgsl")
            }
        };
        Some(builder.finish_threads(body, self.outer * self.parts() * self.inner, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        run(self, inputs, out, pool);
        Ok(0)
    }
}

/// The CPU twin. Inputs: x, and the carry of carried sums.
fn run(kernel: &CumSumPartsKernel, inputs: &[Input], out: &mut [u32], pool: &CpuPool) {
    let Some(x) = inputs.first() else { return };
    let CumSumPartsKernel { n, inner, .. } = *kernel;
    let parts = kernel.parts();
    with_class!(kernel.class, T => {
        let x = x.contiguous::<T>(pool);
        let out: &mut [T] = cast_slice_mut(out);
        let carry = inputs.get(1).map(|carry| carry.contiguous::<T>(pool));
        for thread in 0..kernel.outer * parts * inner {
            let (column, part, line) = (thread % inner, thread / inner % parts, thread / (inner * parts));
            let range = part * LENGTH..((part + 1) * LENGTH).min(n);
            let mut sum = carry.as_ref().map_or(T::ZERO, |carry| carry[thread]);
            for i in range {
                let at = (line * n + i) * inner + column;
                let next = sum.add(x[at]);
                if let CumSumPass::Carried { exclusive } = kernel.pass {
                    out[at] = if exclusive { sum } else { next };
                }
                sum = next;
            }
            if kernel.pass == CumSumPass::Sums {
                out[thread] = sum;
            }
        }
    });
}
