//! Quantises floats to blocks.

use crate::error::RunError;
use crate::ir::{DType, Node};
use crate::kernel::host::memory::Input;
use crate::kernel::host::{CpuCall, CpuPool};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names};
use crate::kernel::split::{InParts, Levels, Part, by_rows};
use crate::kernel::wgsl::Builder;
use crate::kernel::wgsl::blocks::block_code;
use crate::kernel::{Caps, Launch, Step, Variants};

/// Quantises floats to blocks of a quantised type. The output starts at a group boundary and ends at one, or at the end
/// of its memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QuantizeKernel {
    pub dtype: DType,
    pub blocks: usize,
}

impl QuantizeKernel {
    pub(crate) fn describe(node: &Node, _inputs: &mut Inputs) -> Self {
        let blocks = node.shape.elements() / node.dtype.block().unwrap_or(1);
        Self { dtype: node.dtype, blocks }
    }
}

impl KernelSpec for QuantizeKernel {
    fn name(&self) -> &'static str {
        "quantize"
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

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        let elements = self.dtype.block().unwrap_or(1);
        by_rows(step, self.blocks, elements, elements, |blocks| Self { blocks, ..self.clone() })
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
        let (inputs, pool) = (call.inputs, call.pool);
        if let Some((words, first)) = call.blocks() {
            quantize(self, inputs, words, first, pool);
        }
        Ok(0)
    }
}

/// The launch. Each thread computes one group of two blocks.
pub(crate) fn lower(step: &Step, kernel: &QuantizeKernel, caps: &Caps) -> Option<Launch> {
    let format = kernel.dtype.block_format()?;
    let mut builder = Builder::new(step);
    block_code(&mut builder, kernel.dtype, format);
    builder.need("bits_f16").constant("BITS", format.bits as u32);
    let first = step.outputs.first()?.layout.offset / format.elements;
    builder.params.size("blocks", kernel.blocks).size("y_first", first);
    let body = include_str!("../../assets/kernels/quantize.wgsl");
    Some(builder.finish_threads(body, kernel.blocks.div_ceil(2), caps))
}

/// The CPU twin. Input: floats. Blocks are written to `words`, starting at the group that contains block `first`.
pub(crate) fn quantize(kernel: &QuantizeKernel, inputs: &[Input], words: &mut [u32], first: usize, pool: &CpuPool) {
    let ([x], Some(format)) = (inputs, kernel.dtype.block_format()) else { return };
    let start = first / 2 * format.group_words();
    let words = &mut words[start..start + format.words_of(kernel.blocks)];
    pool.each_unit(words, format.group_words(), format.elements * 8, |group, words| {
        let mut values = [0f32; 128];
        let values = &mut values[..format.elements];
        // The last group may have only one block.
        let blocks = 2 * words.len() / format.group_words();
        for block in 0..blocks {
            x.range((group * 2 + block) * format.elements, values);
            format.quantize(values, words, block);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{DType, Layout};
    use crate::kernel::host::memory::Elements;

    #[test]
    fn blocks_are_those_of_the_host_wherever_they_go() {
        for dtype in DType::QUANTIZED {
            let format = dtype.block_format().expect("a quantised type");
            for blocks in [1, 2, 5, 64] {
                let values: Vec<f32> =
                    (0..blocks * format.elements + 3).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
                let layout = Layout { offset: 3, ..Layout::contiguous([blocks * format.elements]) };
                let x = Input { elements: Elements::F32(&values), layout };
                let mut words = vec![7; format.words_of(blocks + 4)];
                quantize(&QuantizeKernel { dtype, blocks }, &[x], &mut words, 2, &CpuPool::new(3));
                let (before, rest) = words.split_at(format.group_words());
                assert!(before.iter().all(|&w| w == 7));
                let (made, after) = rest.split_at(format.words_of(blocks));
                assert_eq!(made, format.pack(&values[3..]), "{blocks} blocks of {dtype}");
                assert!(after.iter().all(|&w| w == 7));
            }
        }
    }
}
