//! What a kernel says about itself: the one trait behind the kernel table.

use smallvec::SmallVec;

use super::host::CpuCall;
use super::split::{InParts, Levels, Part};
use super::{Caps, Launch, Step, Variants};
use crate::error::RunError;
use crate::ir::{Operand, Shape};

/// Everything that the planner and both backends ask a kernel.
///
/// No method has a default, so the compiler names what a new kernel has left out. Beside this trait, a kernel that
/// carries out an op has a function `describe`, which the table calls with the op's attributes: see the list in
/// [`kernel`](crate::kernel).
pub(crate) trait KernelSpec {
    /// The name of the kernel, of its `.wgsl` file and of its label.
    fn name(&self) -> &'static str;

    /// Names of the inputs, in operand order; the WGSL text uses them.
    fn input_names(&self) -> InputNames;

    /// How the planner brings input number `input` before the kernel is described.
    fn need(input: usize) -> Need
    where
        Self: Sized;

    /// Which elementwise work may become part of the launch.
    fn fusing(&self) -> Fusing;

    /// Whether the kernel reads positions from memory, and counts those out of range as faults.
    fn counts_faults(&self) -> bool;

    /// Whether the launch writes every element of its output (alone, or together with the other parts of its step), so
    /// that the old content does not matter.
    fn writes_all(&self) -> bool;

    /// Additions, multiplications and comparisons; a function such as `exp` counts as the additions it takes. 0 for
    /// kernels that only move elements.
    fn flops(&self) -> usize;

    /// Bytes of the kernel's own inputs that it must read: [`all_inputs`] for most.
    fn bytes_read(&self, step: &Step) -> usize;

    /// The ways to do a step of this kernel as two, for memory that is larger than a binding. None if it cannot be done
    /// in parts.
    fn halves(&self, step: &Step) -> Vec<[Part; 2]>;

    /// How a step is done in parts though it fits a launch (because one launch would keep few workers busy for long),
    /// or though it does not fit and none of its [halves](KernelSpec::halves) needs less memory.
    fn in_parts(&self, step: &Step, fits: bool) -> InParts;

    /// The kernel as two launches in a row, where that keeps more workers busy; asked once, when its op is planned.
    fn levels(&self) -> Option<Levels>;

    /// The sizes that decide which form is fastest, by name. The tuner rounds them to powers of two. Empty for kernels
    /// of one form.
    fn sizes(&self) -> Sizes;

    /// The forms that fit a device, the default first. Empty for kernels of one form.
    fn forms(&self, caps: &Caps) -> Variants;

    /// The launch on a device; `None` if there is nothing to do. The output is not empty.
    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch>;

    /// The CPU twin. Gives the number of out-of-range positions.
    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError>;
}

/// Names of a kernel's inputs.
pub(crate) type InputNames = SmallVec<[&'static str; 4]>;

/// A kernel's inputs in memory.
pub(crate) type Inputs = SmallVec<[Operand; 4]>;

/// Sizes of a kernel, by name.
pub(crate) type Sizes = SmallVec<[(&'static str, usize); 6]>;

/// How a kernel takes an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// In whatever layout it has in memory.
    Strided,
    /// Without gaps, from any offset.
    Contiguous,
    /// Without gaps, beginning at a word. Blocks of quantised types always do.
    ContiguousAtWord,
    /// Without gaps, beginning where a binding may begin.
    Bindable,
}

/// Which elementwise work may become part of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fusing {
    /// Work on input 0 as it is read. `Some` if that is one contiguous operand that is read through `load_x` alone.
    pub before: Option<Reads>,
    /// Work on each result before it is written. True if every result is written once, through `store_y`, and never
    /// read back.
    pub after: bool,
}

/// How a kernel reads input 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    /// How often it reads an element.
    pub each: usize,
    /// The independent lines it works on.
    pub lines: usize,
}

impl Fusing {
    pub(crate) const NONE: Self = Self { before: None, after: false };
    pub(crate) const AFTER: Self = Self { before: None, after: true };

    /// Both ends, for a kernel that reads each element so often, on so many independent lines.
    pub(crate) const fn both(each: usize, lines: usize) -> Self {
        Self { before: Some(Reads { each, lines }), after: true }
    }
}

/// The names `base`, and those of `flags` that are set.
pub(crate) fn names(base: &[&'static str], flags: &[(bool, &'static str)]) -> InputNames {
    base.iter().copied().chain(flags.iter().filter(|flag| flag.0).map(|flag| flag.1)).collect()
}

/// Bytes of all inputs that are in memory, each element once.
pub(crate) fn all_inputs(step: &Step) -> usize {
    step.inputs.iter().filter(|input| input.source.has_memory()).map(bytes).sum()
}

/// As [`all_inputs`], for kernels that read only as many elements of input 0 as they write.
pub(crate) fn chosen_inputs(step: &Step) -> usize {
    let chosen = step.outputs.first().map_or(0, |output| output.layout.elements());
    let read = |(i, operand): (usize, &Operand)| match i {
        0 => operand.dtype.bytes(chosen.min(operand.layout.elements())),
        _ => bytes(operand),
    };
    step.inputs.iter().enumerate().filter(|(_, input)| input.source.has_memory()).map(read).sum()
}

/// Bytes of the different elements of an operand: repeated ones are read once.
pub(crate) fn bytes(operand: &Operand) -> usize {
    let layout = &operand.layout;
    let different =
        layout.shape.iter().zip(&layout.strides).map(|(&n, &stride)| if stride == 0 { n.min(1) } else { n });
    operand.dtype.bytes(different.product())
}

/// A shape as `[outer, n, inner]` around an axis.
pub(crate) fn around(shape: &Shape, axis: usize) -> (usize, usize, usize) {
    (product(&shape[..axis]), shape[axis], product(&shape[axis + 1..]))
}

/// A shape as `[rows, n]` over its last axis.
pub(crate) fn rows_of(shape: &Shape) -> (usize, usize) {
    let n = shape.last().copied().unwrap_or(1);
    (shape.elements() / n.max(1), n)
}

/// The number of elements of some axes.
pub(crate) fn product(sizes: &[usize]) -> usize {
    sizes.iter().product()
}

/// The depth, height and width of `[n, c, d, h, w]`.
pub(crate) fn spatial(shape: &Shape) -> [usize; 3] {
    [shape[2], shape[3], shape[4]]
}
