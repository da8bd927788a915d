//! Blocks go from one memory to another.

use super::memory::{Elements, Input};
use crate::kernel::BlocksKernel;

/// The twin. Input: blocks. They go to `words` from block `first` on.
pub(super) fn block_copy(kernel: &BlocksKernel, inputs: &[Input], words: &mut [u32], first: usize) {
    let [Input { elements: Elements::Blocks(format, from), layout }] = inputs else { return };
    let start = layout.offset / format.elements;
    for block in 0..kernel.blocks {
        let (scale, quants) = (format.scale(from, start + block), format.quants(from, start + block));
        format.put(words, first + block, scale, quants);
    }
}
