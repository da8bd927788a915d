//! Blocks go from one memory to another.

use crate::kernel::host::memory::{Elements, Input};
use crate::kernel::wgsl::Builder;
use crate::kernel::wgsl::blocks::block_code;
use crate::kernel::{BlocksKernel, Caps, Launch, Step};

/// The launch that moves blocks: a thread for each group of two that any of them comes to lie in.
pub(crate) fn lower(step: &Step, kernel: &BlocksKernel, caps: &Caps) -> Option<Launch> {
    let format = kernel.dtype.block_format()?;
    let mut builder = Builder::new(step, "block_copy");
    block_code(&mut builder, kernel.dtype, format);
    let (from, to) = (step.inputs.first()?.layout.offset, step.outputs.first()?.layout.offset);
    let (from, to) = (from / format.elements, to / format.elements);
    builder.params.size("blocks", kernel.blocks).size("x_first", from).size("y_first", to);
    let body = include_str!("../../assets/kernels/block_copy.wgsl");
    Some(builder.finish_threads(body, (to + kernel.blocks).div_ceil(2) - to / 2, caps))
}

/// The twin. Input: blocks. They go to `words` from block `first` on.
pub(crate) fn block_copy(kernel: &BlocksKernel, inputs: &[Input], words: &mut [u32], first: usize) {
    let [Input { elements: Elements::Blocks(format, from), layout }] = inputs else { return };
    let start = layout.offset / format.elements;
    for block in 0..kernel.blocks {
        let (scale, quants) = (format.scale(from, start + block), format.quants(from, start + block));
        format.put(words, first + block, scale, quants);
    }
}
