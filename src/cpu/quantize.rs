//! Numbers become blocks.

use super::CpuPool;
use super::memory::Input;
use crate::kernel::BlocksKernel;

/// The twin. Input: floats. Blocks go to `words` from the group with block `first` on.
pub(super) fn quantize(kernel: &BlocksKernel, inputs: &[Input], words: &mut [u32], first: usize, pool: &CpuPool) {
    let ([x], Some(format)) = (inputs, kernel.dtype.block_format()) else { return };
    let start = first / 2 * format.group_words();
    let words = &mut words[start..start + format.words_of(kernel.blocks)];
    pool.each_unit(words, format.group_words(), format.elements * 8, |group, words| {
        let mut values = [0f32; 128];
        let values = &mut values[..format.elements];
        // A last group may have one block.
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
    use crate::cpu::memory::Elements;
    use crate::ir::{DType, Layout};

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
                quantize(&BlocksKernel { dtype, blocks }, &[x], &mut words, 2, &CpuPool::new(3));
                let (before, rest) = words.split_at(format.group_words());
                assert!(before.iter().all(|&w| w == 7));
                let (made, after) = rest.split_at(format.words_of(blocks));
                assert_eq!(made, format.pack(&values[3..]), "{blocks} blocks of {dtype}");
                assert!(after.iter().all(|&w| w == 7));
            }
        }
    }
}
