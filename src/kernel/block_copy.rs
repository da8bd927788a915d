//! Copies quantised blocks between memories.

use crate::error::RunError;
use crate::ir::{DType, Operand};
use crate::kernel::host::CpuCall;
use crate::kernel::host::memory::{Elements, Input};
use crate::kernel::spec::{Fusing, InputNames, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part};
use crate::kernel::wgsl::Builder;
use crate::kernel::wgsl::blocks::block_code;
use crate::kernel::{Caps, Launch, Step, Variants};

/// Copies blocks of a quantised type between arbitrary positions of two different memories.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockCopyKernel {
    pub dtype: DType,
    pub blocks: usize,
}

impl BlockCopyKernel {
    /// A copy of all blocks of an operand.
    pub(crate) fn of(operand: &Operand) -> Self {
        let blocks = operand.layout.elements() / operand.dtype.block().unwrap_or(1);
        Self { dtype: operand.dtype, blocks }
    }
}

impl KernelSpec for BlockCopyKernel {
    fn name(&self) -> &'static str {
        "block_copy"
    }

    fn input_names(&self) -> InputNames {
        names(&["x"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        Fusing::NONE
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

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        Vec::new()
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
        lower(step, self, caps)
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let inputs = call.inputs;
        if let Some((words, first)) = call.blocks() {
            block_copy(self, inputs, words, first);
        }
        Ok(0)
    }
}

/// The launch that copies the blocks. Each thread writes a group of two destination blocks.
pub(crate) fn lower(step: &Step, kernel: &BlockCopyKernel, caps: &Caps) -> Option<Launch> {
    let format = kernel.dtype.block_format()?;
    let mut builder = Builder::new(step);
    block_code(&mut builder, kernel.dtype, format);
    let (from, to) = (step.inputs.first()?.layout.offset, step.outputs.first()?.layout.offset);
    let (from, to) = (from / format.elements, to / format.elements);
    builder.params.size("blocks", kernel.blocks).size("x_first", from).size("y_first", to);
    let body = include_str!("../../assets/kernels/block_copy.wgsl");
    Some(builder.finish_threads(body, (to + kernel.blocks).div_ceil(2) - to / 2, caps))
}

/// The CPU twin. Input: blocks. They are written to `words` from block `first` on.
pub(crate) fn block_copy(kernel: &BlockCopyKernel, inputs: &[Input], words: &mut [u32], first: usize) {
    let [Input { elements: Elements::Blocks(format, from), layout }] = inputs else { return };
    let start = layout.offset / format.elements;
    for block in 0..kernel.blocks {
        let (scale, quants) = (format.scale(from, start + block), format.quants(from, start + block));
        format.put(words, first + block, scale, quants);
    }
}
