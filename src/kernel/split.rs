//! Parts of a step: how kernels describe the ways they can be split. The planner allocates the memory that parts need.

use core::ops::Range;

use smallvec::SmallVec;

use super::spec::Inputs;
use super::{Kernel, ReduceKernel, Step};
use crate::ir::{DType, Layout, Operand, Shape};

/// Parts start at multiples of this many rows or elements if there are enough of them, so that they consist of whole
/// words, vectors and groups of blocks.
pub(crate) const EVEN: usize = 64;

/// A part of a step's work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub kernel: Kernel,
    pub inputs: Inputs,
    pub output: PartOutput,
}

/// Where the result of a part goes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PartOutput {
    /// Directly to its destination.
    Place(Operand),
    /// To scratch memory of this shape. It is then copied to its destination.
    Copied { shape: Shape, to: Operand },
    /// To scratch memory of this shape. It is then added to what an earlier part wrote to the destination.
    Added { shape: Shape, to: Operand },
}

/// How a step is split if halves do not apply.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "returned once for each step while a plan is built")]
pub(crate) enum InParts {
    /// The step is not split.
    Whole,
    /// Into these two parts.
    Halves([Part; 2]),
    /// A reduction of one long row: the planner reduces parts of the row, then their results.
    LongRow(ReduceKernel),
}

/// A kernel as several launches in a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Levels {
    /// The launches before the last. Each has a result of its own, for those after it.
    pub passes: Vec<Pass>,
    /// The last launch, which gives the result of the kernel.
    pub last: Kernel,
    pub inputs: PassInputs,
    /// What the result starts as, if the last launch writes only some of its elements.
    pub start: Option<PassInput>,
    /// Whether this is only for devices, whose threads must be many and their loops short. The CPU twin then does it all
    /// in one.
    pub device_only: bool,
}

/// A launch for the launches after it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pass {
    pub kernel: Kernel,
    pub inputs: PassInputs,
    /// Shape and type of the result.
    pub shape: Shape,
    pub dtype: DType,
}

/// The inputs of a launch.
pub(crate) type PassInputs = SmallVec<[PassInput; 6]>;

/// Where a launch of several finds an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassInput {
    /// An input of the kernel.
    Input(usize),
    /// The result of an earlier launch.
    Result(usize),
}

/// Splits `n` in two, if possible.
pub(crate) fn two_ranges(n: usize) -> Option<[Range<usize>; 2]> {
    let middle = match n {
        0 | 1 => return None,
        // Blocks of quantised types come in pairs.
        2..4 => 1,
        4..128 => n / 4 * 2,
        _ => (n / 2).next_multiple_of(EVEN),
    };
    Some([0..middle, middle..n])
}

/// Part of a contiguous operand, starting at element `start`.
pub(crate) fn part(operand: &Operand, start: usize, elements: usize) -> Operand {
    let layout = Layout { offset: operand.layout.offset + start, ..Layout::contiguous([elements]) };
    Operand { layout, ..operand.clone() }
}

/// Halves of a kernel that processes rows independently. `of_input` and `of_output` are the numbers of elements per row
/// of input 0 and of the output. Every row reads all other inputs. `with` returns the kernel for a number of rows.
pub(crate) fn by_rows<K: Into<Kernel>>(
    step: &Step,
    rows: usize,
    of_input: usize,
    of_output: usize,
    with: impl Fn(usize) -> K,
) -> Vec<[Part; 2]> {
    let part_of = |range: Range<usize>| {
        let mut inputs = step.inputs.clone();
        inputs[0] = part(&step.inputs[0], range.start * of_input, range.len() * of_input);
        let output = part(&step.outputs[0], range.start * of_output, range.len() * of_output);
        Part { kernel: with(range.len()).into(), inputs, output: PartOutput::Place(output) }
    };
    two_ranges(rows).map(|ranges| ranges.map(part_of)).into_iter().collect()
}

/// A step over a range of one axis of some inputs, given as (input, axis). Each index of the range has `of_output`
/// elements of the output.
pub(crate) fn sliced(
    step: &Step,
    kernel: impl Into<Kernel>,
    axes: &[(usize, usize)],
    range: &Range<usize>,
    of_output: usize,
) -> Part {
    let mut inputs = step.inputs.clone();
    for &(input, axis) in axes {
        let layout = &mut inputs[input].layout;
        *layout = layout.slice(axis, range.start, range.len(), 1);
    }
    let output = part(&step.outputs[0], range.start * of_output, range.len() * of_output);
    Part { kernel: kernel.into(), inputs, output: PartOutput::Place(output) }
}

/// Where columns `range` of the result `[m, n]` of a product go. With several rows they are not contiguous, so they go
/// through scratch memory.
pub(crate) fn columns(output: &Operand, m: usize, n: usize, range: &Range<usize>) -> PartOutput {
    if m == 1 {
        return PartOutput::Place(part(output, range.start, range.len()));
    }
    let whole = Layout { offset: output.layout.offset, ..Layout::contiguous([m, n]) };
    let to = Operand { layout: whole.slice(1, range.start, range.len(), 1), ..output.clone() };
    PartOutput::Copied { shape: Shape::from([m, range.len()]), to }
}
