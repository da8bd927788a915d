//! Stable sorts of rows by 32-bit keys, 8 bits at a time. Each row is cut into runs, and a thread counts or places the
//! elements of a run, so that no thread has long loops and the result does not depend on timing.

use bytemuck::cast_slice_mut;

use crate::error::RunError;
use crate::ir::{Class, DType, Shape};
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::{Number, with_class};
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::spec::{Fusing, InputNames, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part, PartOutput, Pass, PassInput, PassInputs, part, two_ranges};
use crate::kernel::top_k::key_code;
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, CumSumKernel, Kernel, Launch, Step, Variants};

/// Bits of a digit.
const BITS: u32 = 8;
const BINS: usize = 1 << BITS;

/// One launch of a sort of `[rows, n]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SortKernel {
    pub pass: SortPass,
    pub rows: usize,
    pub n: usize,
}

/// What a launch of a sort does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SortPass {
    /// Values to keys of type `u32`. Ascending keys are descending values if `largest`. Equal values have equal keys, and
    /// NaN counts as the largest.
    Keys { class: Class, largest: bool },
    /// Keys, and the order so far unless this is the `first` digit, to `u32 [rows, digits, runs]`.
    Count { first: bool, shift: u32 },
    /// Keys, the order so far unless this is the `first` digit, and the first places of the counted elements, to the
    /// first `keep` of the order: `i32 [rows, keep]`.
    Place { first: bool, shift: u32, keep: usize },
}

impl SortKernel {
    /// Elements that a thread counts or places. Many more than digits, since a thread also writes or reads these.
    fn length(&self) -> usize {
        if self.n > 1 << 16 { 1024 } else { 256 }
    }

    fn runs(&self) -> usize {
        self.n.div_ceil(self.length())
    }

    /// Elements of an input, and of the output, in a row.
    fn of_row(&self, input: usize) -> [usize; 2] {
        let counts = BINS * self.runs();
        match self.pass {
            SortPass::Keys { .. } => [self.n, self.n],
            SortPass::Count { .. } => [self.n, counts],
            SortPass::Place { first, keep, .. } => {
                let is_offsets = input == if first { 1 } else { 2 };
                [if is_offsets { counts } else { self.n }, keep]
            }
        }
    }
}

/// A sort in several launches, by keys of so many bits that are the last result of `passes`. Gives all launches but the
/// last, and the last with its inputs: the first `keep` of each row's order.
pub(crate) fn sorted(
    mut passes: Vec<Pass>,
    (rows, n): (usize, usize),
    bits: u32,
    keep: usize,
) -> (Vec<Pass>, Kernel, PassInputs) {
    let keys = PassInput::Result(passes.len() - 1);
    // Counts a digit, and finds the places of its elements.
    let place = |passes: &mut Vec<Pass>, shift: u32, order: Option<PassInput>, keep: usize| {
        let first = order.is_none();
        let given: PassInputs = core::iter::once(keys).chain(order).collect();
        let count = SortKernel { pass: SortPass::Count { first, shift }, rows, n };
        let counts = BINS * count.runs();
        let shape = Shape::from([rows, counts]);
        passes.push(Pass { kernel: count.into(), inputs: given.clone(), shape: shape.clone(), dtype: DType::U32 });
        let sums = CumSumKernel { class: Class::Uint, exclusive: true, outer: rows, n: counts, inner: 1 };
        let inputs = PassInputs::from_slice(&[PassInput::Result(passes.len() - 1)]);
        passes.push(Pass { kernel: sums.into(), inputs, shape, dtype: DType::U32 });
        let inputs: PassInputs = given.into_iter().chain([PassInput::Result(passes.len() - 1)]).collect();
        (Kernel::from(SortKernel { pass: SortPass::Place { first, shift, keep }, rows, n }), inputs)
    };
    let last = bits.div_ceil(BITS).max(1) - 1;
    let mut order = None;
    for digit in 0..last {
        let (kernel, inputs) = place(&mut passes, digit * BITS, order, n);
        passes.push(Pass { kernel, inputs, shape: Shape::from([rows, n]), dtype: DType::I32 });
        order = Some(PassInput::Result(passes.len() - 1));
    }
    let (kernel, inputs) = place(&mut passes, last * BITS, order, keep);
    (passes, kernel, inputs)
}

impl KernelSpec for SortKernel {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn input_names(&self) -> InputNames {
        match self.pass {
            SortPass::Keys { .. } => names(&["x"], &[]),
            SortPass::Count { first, .. } => names(&["keys"], &[(!first, "order")]),
            SortPass::Place { first, .. } => names(&["keys"], &[(!first, "order"), (true, "offsets")]),
        }
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        match self.pass {
            SortPass::Keys { .. } => Fusing::both(1, self.rows * self.n),
            SortPass::Count { .. } | SortPass::Place { .. } => Fusing::AFTER,
        }
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        0
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        let part_of = |range: core::ops::Range<usize>| {
            let cut = |(i, operand): (usize, &crate::ir::Operand)| {
                let [of_input, _] = self.of_row(i);
                part(operand, range.start * of_input, range.len() * of_input)
            };
            let inputs = step.inputs.iter().enumerate().map(cut).collect();
            let [_, of_output] = self.of_row(0);
            let output = part(&step.outputs[0], range.start * of_output, range.len() * of_output);
            let kernel = Self { rows: range.len(), ..self.clone() };
            Part { kernel: kernel.into(), inputs, output: PartOutput::Place(output) }
        };
        two_ranges(self.rows).map(|ranges| ranges.map(part_of)).into_iter().collect()
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
        Some(lower(step, self, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        sort(self, inputs, out, pool);
        Ok(0)
    }
}

fn lower(step: &Step, kernel: &SortKernel, caps: &Caps) -> Launch {
    let SortKernel { pass, rows, n } = *kernel;
    let mut builder = Builder::new(step);
    let (first, shift, keep, body) = match pass {
        SortPass::Keys { class, largest } => {
            key_code(&mut builder, class, largest);
            return builder.finish_threads(include_str!("../../assets/kernels/sort_keys.wgsl"), rows * n, caps);
        }
        SortPass::Count { first, shift } => (first, shift, n, include_str!("../../assets/kernels/sort_count.wgsl")),
        SortPass::Place { first, shift, keep } => {
            (first, shift, keep, include_str!("../../assets/kernels/sort_place.wgsl"))
        }
    };
    let params = &mut builder.params;
    params.size("n", n).size("runs", kernel.runs()).size("length", kernel.length());
    params.size("shift", shift as usize).size("keep", keep);
    builder.constant("BINS", BINS as u32);
    builder.code(if first {
        "fn element_at(row: u32, i: u32) -> u32 { return i; }"
    } else {
        "fn element_at(row: u32, i: u32) -> u32 { return u32(load_order(params.order_offset + row * params.n + i)); }"
    });
    builder.code(
        "fn digit_of(row: u32, element: u32) -> u32 {
    return (load_keys(params.keys_offset + row * params.n + element) >> params.shift) % BINS;
}",
    );
    builder.finish_threads(body, rows * kernel.runs(), caps)
}

/// The CPU twin. Inputs as the pass says.
fn sort(kernel: &SortKernel, inputs: &[Input], out: &mut [u32], pool: &CpuPool) {
    let (n, length, runs) = (kernel.n, kernel.length(), kernel.runs());
    let (first, shift, keep) = match kernel.pass {
        SortPass::Keys { class, largest } => {
            let [x] = inputs else { return };
            with_class!(class, T => {
                let x = x.contiguous::<T>(pool);
                let key = |v: &T| if largest { !v.key() } else { v.key() };
                out.iter_mut().zip(x.iter()).for_each(|(o, v)| *o = key(v));
            });
            return;
        }
        SortPass::Count { first, shift } => (first, shift, None),
        SortPass::Place { first, shift, keep } => (first, shift, Some(keep)),
    };
    let Some(keys) = inputs.first().map(|keys| keys.contiguous::<u32>(pool)) else { return };
    let order = inputs.get(1).filter(|_| !first).map(|order| order.contiguous::<i32>(pool));
    let element = |row: usize, i: usize| order.as_ref().map_or(i, |order| order[row * n + i] as usize);
    let digit = |row: usize, element: usize| (keys[row * n + element] >> shift) as usize % BINS;
    let run_of = |run: usize| run * length..((run + 1) * length).min(n);
    let Some(keep) = keep else {
        out.fill(0);
        for row in 0..kernel.rows {
            for run in 0..runs {
                for i in run_of(run) {
                    out[(row * BINS + digit(row, element(row, i))) * runs + run] += 1;
                }
            }
        }
        return;
    };
    let Some(offsets) = inputs.last().map(|offsets| offsets.contiguous::<u32>(pool)) else { return };
    let out: &mut [i32] = cast_slice_mut(out);
    let mut places = vec![0; BINS];
    for row in 0..kernel.rows {
        for run in 0..runs {
            for (digit, place) in places.iter_mut().enumerate() {
                *place = offsets[(row * BINS + digit) * runs + run] as usize;
            }
            for i in run_of(run) {
                let element = element(row, i);
                let place = &mut places[digit(row, element)];
                if *place < keep {
                    out[row * keep + *place] = element as i32;
                }
                *place += 1;
            }
        }
    }
}
