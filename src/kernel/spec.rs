//! The trait through which a kernel describes itself.

use smallvec::SmallVec;

use super::host::CpuCall;
use super::split::{InParts, Levels, Part};
use super::{Caps, Launch, Step, Variants};
use crate::error::RunError;
use crate::ir::{Operand, Shape};

/// Everything that the planner and both backends need to know about a kernel.
///
/// No method has a default, so the compiler reports what a new kernel is missing. In addition, a kernel that implements
/// an op has a function `describe`, which the table calls with the attributes of the op: see the list in
/// [`kernel`](crate::kernel).
pub(crate) trait KernelSpec {
    /// The name of the kernel, of its `.wgsl` file and of its label.
    fn name(&self) -> &'static str;

    /// Names of the inputs in operand order, as used in the WGSL text.
    fn input_names(&self) -> InputNames;

    /// The form in which the kernel needs input number `input`.
    fn need(input: usize) -> Need
    where
        Self: Sized;

    /// Which elementwise work can be fused into the launch.
    fn fusing(&self) -> Fusing;

    /// Whether the kernel reads positions from memory and counts out-of-range ones as faults.
    fn counts_faults(&self) -> bool;

    /// Whether the launch writes every element of its output, alone or together with the other parts of its step, so
    /// that the previous content does not matter.
    fn writes_all(&self) -> bool;

    /// Additions, multiplications and comparisons. A function such as `exp` counts as several. 0 for kernels that only
    /// move elements.
    fn flops(&self) -> usize;

    /// Bytes of the kernel's own inputs that it must read. Most kernels use [`all_inputs`].
    fn bytes_read(&self, step: &Step) -> usize;

    /// The ways to split a step of this kernel in two, for memory that is larger than a binding. Empty if it cannot be
    /// split.
    fn halves(&self, step: &Step) -> Vec<[Part; 2]>;

    /// How to split a step that fits a launch, because one launch would keep few workers busy for a long time; or a
    /// step that does not fit although no [half](KernelSpec::halves) needs less memory.
    fn in_parts(&self, step: &Step, fits: bool) -> InParts;

    /// Splits the kernel into two consecutive launches if that keeps more workers busy. Called once, when the op is
    /// planned.
    fn levels(&self) -> Option<Levels>;

    /// The sizes that determine which variant is fastest, by name. The tuner rounds them to powers of two. Empty for
    /// kernels with a single variant.
    fn sizes(&self) -> Sizes;

    /// The variants that can run on a device, the default first. Empty for kernels with a single variant.
    fn forms(&self, caps: &Caps) -> Variants;

    /// The launch on a device, or `None` if there is nothing to do. The output is not empty.
    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch>;

    /// The CPU twin. Returns the number of out-of-range positions.
    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError>;
}

/// Names of a kernel's inputs.
pub(crate) type InputNames = SmallVec<[&'static str; 4]>;

/// A kernel's inputs in memory.
pub(crate) type Inputs = SmallVec<[Operand; 4]>;

/// Sizes of a kernel, by name.
pub(crate) type Sizes = SmallVec<[(&'static str, usize); 6]>;

/// The form in which a kernel needs an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// In memory, with any layout.
    Strided,
    /// Contiguous, at any offset.
    Contiguous,
    /// Contiguous, starting at a word boundary. Blocks of quantised types always do.
    ContiguousAtWord,
    /// Contiguous, starting at a valid binding offset.
    Bindable,
}

/// Which elementwise work can be fused into a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fusing {
    /// Work on input 0 as it is read. `Some` if input 0 is one contiguous operand that is only read through `load_x`.
    pub before: Option<Reads>,
    /// Work on each result before it is written. True if every result is written once, through `store_y`, and never
    /// read back.
    pub after: bool,
}

/// How a kernel reads input 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    /// How often it reads each element.
    pub each: usize,
    /// Number of independent lines it processes.
    pub lines: usize,
}

impl Fusing {
    pub(crate) const NONE: Self = Self { before: None, after: false };
    pub(crate) const AFTER: Self = Self { before: None, after: true };

    /// Fusing on both ends, for a kernel that reads each element `each` times on `lines` independent lines.
    pub(crate) const fn both(each: usize, lines: usize) -> Self {
        Self { before: Some(Reads { each, lines }), after: true }
    }
}

/// The names in `base`, followed by those of `flags` that are set.
pub(crate) fn names(base: &[&'static str], flags: &[(bool, &'static str)]) -> InputNames {
    base.iter().copied().chain(flags.iter().filter(|flag| flag.0).map(|flag| flag.1)).collect()
}

/// Bytes of all inputs that are in memory, each element counted once.
pub(crate) fn all_inputs(step: &Step) -> usize {
    step.inputs.iter().filter(|input| input.source.has_memory()).map(bytes).sum()
}

/// Like [`all_inputs`], for kernels that read only as many elements of input 0 as they write.
pub(crate) fn chosen_inputs(step: &Step) -> usize {
    let chosen = step.outputs.first().map_or(0, |output| output.layout.elements());
    let read = |(i, operand): (usize, &Operand)| match i {
        0 => operand.dtype.bytes(chosen.min(operand.layout.elements())),
        _ => bytes(operand),
    };
    step.inputs.iter().enumerate().filter(|(_, input)| input.source.has_memory()).map(read).sum()
}

/// Bytes of the distinct elements of an operand. Broadcast elements count once.
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
