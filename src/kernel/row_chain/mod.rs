//! Chains of small row-wise steps in one launch: a policy network, a decoder head, a short perceptron.
//!
//! Row `r` of every value in a chain depends only on row `r` of the values before it and on weights that all rows share.
//! A workgroup runs the whole chain for a block of rows. The values between the links stay in workgroup memory on the
//! device, and in the cache on the CPU.

pub(crate) mod cpu;
pub(crate) mod link;
pub(crate) mod product;
pub(crate) mod wgsl;

use smallvec::SmallVec;

use crate::error::RunError;
use crate::ir::{Operand, Source};
use crate::kernel::host::CpuCall;
use crate::kernel::spec::{Fusing, InputNames, KernelSpec, Need, Sizes, all_inputs};
use crate::kernel::split::{InParts, Levels, Part, PartOutput, two_ranges};
use crate::kernel::{Caps, Kernel, Launch, Step, Variants};

pub(crate) use link::{lines_of, links_of, width};

/// Maximum number of inputs, which is the number of [`NAMES`].
pub(crate) const INPUTS: usize = 32;

/// Maximum number of rows that a workgroup processes at a time.
const BLOCK: usize = 16;

/// Maximum number of threads of a workgroup. Each has one word for the sums of norms and softmaxes.
const LANES: usize = 128;

/// A chain of links over `rows` rows.
///
/// A link is a step whose operands are local. [`Source::Slot`] is an input of the chain or, beyond the inputs, an output.
/// [`Source::Scratch`] is one of `values`. Scalars are indices into those of the chain's step. Operands that have rows
/// have them as their first axis; weights of products and norms have none. Inputs of the chain's step have the same
/// layouts. Outputs are contiguous rows of f32. If a link has no epilogue, all its outputs get the kernel's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowChainKernel {
    pub rows: usize,
    /// The values between links.
    pub values: Vec<Kept>,
    /// Numbers of all values per row, with memory reused by lifetime.
    pub cells: usize,
    pub links: Vec<Step>,
}

/// A value between links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    /// Numbers per row.
    pub width: usize,
    /// Where the value begins among the cells of a block, in cells per row.
    pub at: usize,
}

impl RowChainKernel {
    /// The chain of `links`. `widths` are those of the values.
    pub(crate) fn new(rows: usize, widths: &[usize], links: Vec<Step>) -> Self {
        let (values, cells) = place(widths, &links);
        Self { rows, values, cells, links }
    }

    /// Rows that a workgroup with `words` words of memory processes at a time. `None` if not even one fits.
    pub(crate) fn block(&self, words: usize) -> Option<usize> {
        let words = words.checked_sub(if self.folds() { LANES } else { 0 })?;
        let fitting = (words.checked_div(self.cells).unwrap_or(BLOCK)).min(BLOCK).min(self.rows.next_power_of_two());
        // A power of two, so that rows divide evenly among threads.
        (fitting > 0).then(|| 1 << fitting.ilog2())
    }

    /// Whether the threads of a row exchange sums.
    fn folds(&self) -> bool {
        self.links.iter().any(|link| !matches!(link.kernel, Kernel::MatMul(_) | Kernel::Map(_)))
    }

    /// Whether an input has rows. Weights have none.
    pub(crate) fn has_rows(&self, input: usize) -> bool {
        let is_input = |operand: &Operand| operand.source == Source::Slot(input as u32);
        self.links.iter().any(|link| {
            let own = link.inputs.iter().take(rowed_inputs(&link.kernel));
            own.chain(link.epilogue.iter().flat_map(|fused| &fused.inputs)).any(is_input)
        })
    }
}

/// How many of a link's inputs have rows. The others are weights.
pub(crate) fn rowed_inputs(kernel: &Kernel) -> usize {
    if kernel.as_map().is_some() { usize::MAX } else { 1 }
}

/// Places values by lifetime: a value may take the place of those that no later link reads. Returns the total.
fn place(widths: &[usize], links: &[Step]) -> (Vec<Kept>, usize) {
    let mut values: Vec<Kept> = widths.iter().map(|&width| Kept { width, at: 0 }).collect();
    let touches = |link: &Step, value: usize| {
        let is_value = |operand: &Operand| operand.source == Source::Scratch(value as u32);
        link.reads().chain(&link.outputs).any(is_value)
    };
    let lives: Vec<[usize; 2]> = (0..values.len())
        .map(|value| {
            let mut touched = (0..links.len()).filter(|&at| touches(&links[at], value));
            let first = touched.next().unwrap_or(0);
            [first, touched.next_back().unwrap_or(first)]
        })
        .collect();
    let mut total = 0;
    for value in 0..values.len() {
        let mut taken: Vec<[usize; 2]> = (0..value)
            .filter(|&other| lives[other][1] >= lives[value][0] && lives[other][0] <= lives[value][1])
            .map(|other| [values[other].at, values[other].at + values[other].width])
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for [start, end] in taken {
            if at + values[value].width <= start {
                break;
            }
            at = at.max(end);
        }
        values[value].at = at;
        total = total.max(at + values[value].width);
    }
    (values, total)
}

/// The names of the inputs in the text.
const NAMES: [&str; INPUTS] = [
    "i0x", "i1x", "i2x", "i3x", "i4x", "i5x", "i6x", "i7x", "i8x", "i9x", "i10x", "i11x", "i12x", "i13x", "i14x",
    "i15x", "i16x", "i17x", "i18x", "i19x", "i20x", "i21x", "i22x", "i23x", "i24x", "i25x", "i26x", "i27x", "i28x",
    "i29x", "i30x", "i31x",
];

impl KernelSpec for RowChainKernel {
    fn name(&self) -> &'static str {
        "row_chain"
    }

    fn input_names(&self) -> InputNames {
        InputNames::from_slice(&NAMES)
    }

    fn need(_input: usize) -> Need {
        Need::Strided
    }

    fn fusing(&self) -> Fusing {
        // Chains are made after everything else was fused.
        Fusing::NONE
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        let fused = |link: &Step| link.epilogue.as_ref().map_or(0, |fused| fused.map.flops());
        self.links.iter().map(|link| link.kernel.spec().flops() + fused(link)).sum()
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        let [output] = &step.outputs[..] else { return Vec::new() };
        let half = |range: core::ops::Range<usize>| {
            let mut inputs = step.inputs.clone();
            for (i, input) in inputs.iter_mut().enumerate().filter(|(i, _)| self.has_rows(*i)) {
                debug_assert_eq!(input.layout.shape.first(), Some(&self.rows), "input {i} has rows");
                input.layout = input.layout.slice(0, range.start, range.len(), 1);
            }
            let layout = output.layout.slice(0, range.start, range.len(), 1);
            let output = PartOutput::Place(Operand { layout, ..output.clone() });
            Part { kernel: self.with_rows(range.len()).into(), inputs, output }
        };
        two_ranges(self.rows).map(|ranges| ranges.map(half)).into_iter().collect()
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        SmallVec::from_slice(&[("rows", self.rows), ("links", self.links.len()), ("cells", self.cells)])
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        wgsl::lower(step, self, caps)
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        cpu::run(self, call);
        Ok(0)
    }
}

impl RowChainKernel {
    /// The same chain over another number of rows.
    fn with_rows(&self, rows: usize) -> Self {
        Self { rows, links: self.links.iter().map(|link| link::with_rows(link, rows)).collect(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{DType, Layout};
    use crate::kernel::SoftmaxKernel;

    #[test]
    fn values_that_no_later_link_reads_make_room() {
        let operand = |source| Operand { source, dtype: DType::F32, layout: Layout::contiguous([4, 8]) };
        let kernel = SoftmaxKernel { log: false, outer: 4, n: 8, inner: 1 };
        let link = |from, to| Step::new(kernel.clone(), [operand(from)], operand(to));
        let value = Source::Scratch;
        let links = vec![
            link(Source::Slot(0), value(0)),
            link(value(0), value(1)),
            link(value(1), value(2)),
            link(value(2), Source::Slot(1)),
        ];
        let chain = RowChainKernel::new(4, &[8, 8, 8], links);
        assert_eq!(chain.values.iter().map(|value| value.at).collect::<Vec<_>>(), [0, 8, 0]);
        assert_eq!(chain.cells, 16);
        // At most as many rows as there are, and as fit.
        assert_eq!(chain.block(4096), Some(4));
        assert_eq!(chain.block(LANES + 40), Some(2));
        assert_eq!(chain.block(LANES + 15), None);
        assert!(chain.has_rows(0) && !chain.has_rows(1));
    }
}
