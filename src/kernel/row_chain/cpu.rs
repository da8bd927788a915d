//! Chains on the CPU. Each task runs all links for a block of rows, whose values stay in its cache. A link runs the twin
//! of its kernel, so the results are those of the separate steps.

use bytemuck::cast_slice_mut;
use smallvec::SmallVec;

use super::link::{kernel_with_rows, width};
use super::{RowChainKernel, rowed_inputs};
use crate::ir::{DType, Operand, Source};
use crate::kernel::host::fused::{Places, run_map};
use crate::kernel::host::memory::{Elements, ElementsMut, Input};
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::{CpuCall, CpuPool, HostWords};
use crate::kernel::map::cpu::MapSource;
use crate::kernel::matmul::cpu::matmul;
use crate::kernel::row_norm::row_norm;
use crate::kernel::softmax::softmax;
use crate::kernel::spec::KernelSpec;
use crate::kernel::{Kernel, Step};

/// Words of values that a block should have at most, so that they fit the L2 cache.
const CACHED: usize = 48 << 10;
/// Rows that a block should have at least. Products of fewer rows read their weights too often.
const LEAST: usize = 48;

/// What all blocks of a chain read.
struct Shared<'a> {
    kernel: &'a RowChainKernel,
    inputs: &'a [Input<'a>],
    /// The storages of the inputs, which may have cached them in packed form.
    storages: &'a [Option<&'a HostWords>],
    scalars: &'a [u32],
    /// The calling thread alone: blocks are the tasks.
    alone: &'a CpuPool,
}

/// The CPU twin.
pub(crate) fn run(kernel: &RowChainKernel, call: &mut CpuCall) {
    let storages: SmallVec<[_; 8]> = (0..call.inputs.len()).map(|input| call.storage(input)).collect();
    let mut places = call.take_places();
    let widths: SmallVec<[usize; 2]> = call.step.outputs.iter().map(|output| width(&output.layout)).collect();
    let rows = kernel.rows;
    let per = kernel.flops() / rows.max(1);
    let parts = call.pool.parts(rows.saturating_mul(per.div_ceil(16)));
    let most = (CACHED / kernel.cells.max(1)).max(LEAST);
    // Blocks of equal size, because threads would wait for a larger one.
    let block = rows.div_ceil(parts * rows.div_ceil(parts * most));
    let alone = CpuPool::new(1).with_counters(call.pool.counters().clone());
    let shared = Shared { kernel, inputs: call.inputs, storages: &storages, scalars: call.scalars, alone: &alone };
    // Every output has a memory of its own, in the same order.
    let outputs = places.memories.iter_mut().zip(&call.step.outputs).map(|(memory, output)| {
        let start = output.layout.offset;
        memory.words(start..start + output.layout.elements())
    });
    // The rows of each block in every output.
    let mut pieces: SmallVec<[_; 2]> =
        outputs.zip(&widths).map(|(words, &width)| words.chunks_mut((block * width).max(1))).collect();
    let blocks = (0..rows).step_by(block.max(1)).map(|first| {
        let outputs: SmallVec<[&mut [u32]; 2]> = pieces.iter_mut().filter_map(Iterator::next).collect();
        (first, block.min(rows - first), outputs)
    });
    call.pool.each(blocks.collect::<Vec<_>>(), |(first, len, mut outputs)| {
        with_scratch(kernel.cells * len, |cells: &mut [u32]| {
            for link in &kernel.links {
                shared.run(link, [first, len], cells, &mut outputs);
            }
        });
    });
}

impl Shared<'_> {
    /// Runs a link for a block of rows: its first one and their number.
    fn run(&self, link: &Step, [first, len]: [usize; 2], cells: &mut [u32], outputs: &mut [&mut [u32]]) {
        let count = self.inputs.len();
        // The values that the link reads or writes lie apart from each other.
        let mut touched: SmallVec<[u32; 8]> = SmallVec::new();
        for operand in link.reads().chain(&link.outputs) {
            if let Source::Scratch(value) = operand.source
                && !touched.contains(&value)
            {
                touched.push(value);
            }
        }
        touched.sort_unstable_by_key(|&value| self.kernel.values[value as usize].at);
        let (mut rest, mut at) = (cells, 0);
        let mut values: SmallVec<[(u32, &mut [u32]); 8]> = SmallVec::new();
        for value in touched {
            let kept = self.kernel.values[value as usize];
            let (_, after) = rest.split_at_mut(kept.at * len - at);
            let (own, after) = after.split_at_mut(kept.width * len);
            values.push((value, own));
            (rest, at) = (after, (kept.at + kept.width) * len);
        }
        // The memories of the results are taken out, and everything else is read.
        let mut sources: SmallVec<[Source; 2]> = SmallVec::new();
        let mut memories: Vec<ElementsMut> = Vec::new();
        for output in &link.outputs {
            let words = match output.source {
                Source::Slot(number) => core::mem::take(&mut outputs[number as usize - count]),
                _ => match values.iter().position(|(value, _)| Source::Scratch(*value) == output.source) {
                    Some(place) => values.swap_remove(place).1,
                    None => continue,
                },
            };
            sources.push(output.source);
            memories.push(ElementsMut::new(words, DType::F32));
        }
        let input = |operand: &Operand, rowed: bool| match operand.source {
            Source::Slot(number) => {
                let Input { elements, layout } = &self.inputs[number as usize];
                let layout = if rowed { layout.slice(0, first, len, 1) } else { layout.clone() };
                Input { elements: *elements, layout }
            }
            source => {
                let words = values.iter().find(|(value, _)| Source::Scratch(*value) == source);
                let words = words.map_or(&[][..], |(_, words)| &**words);
                Input { elements: Elements::new(words, DType::F32), layout: operand.layout.slice(0, 0, len, 1) }
            }
        };
        let rowed = rowed_inputs(&link.kernel);
        let own: SmallVec<[Input; 4]> = link.inputs.iter().enumerate().map(|(i, o)| input(o, i < rowed)).collect();
        let before = link.outputs.first().map_or(1, |output| output.layout.shape[0]);
        let kernel = kernel_with_rows(&link.kernel, before, len);
        let layout = |operand: &Operand| Operand { layout: operand.layout.slice(0, 0, len, 1), ..operand.clone() };
        let places: SmallVec<[Operand; 2]> = link.outputs.iter().map(layout).collect();
        if let Kernel::Map(map) = &kernel {
            let operands: SmallVec<[Operand; 4]> = link.inputs.iter().map(layout).collect();
            let none = MapSource::Elements(Elements::U32(&[]));
            let places = Places { outputs: &places, sources: &sources, memories };
            run_map(map, (&operands, &own), none, places, &self.numbers(&link.scalars), self.alone);
        } else {
            self.kernel(&kernel, link, &own, &mut memories);
            if let Some(fused) = &link.epilogue {
                let mut map = fused.map.clone();
                map.shape.dims_mut()[0] = len;
                let value = |operand: &Operand| match operand.source {
                    Source::Fused => Input { elements: Elements::U32(&[]), layout: layout(operand).layout },
                    _ => input(operand, true),
                };
                let inputs: SmallVec<[Input; 4]> = fused.inputs.iter().map(value).collect();
                let operands: SmallVec<[Operand; 4]> = fused.inputs.iter().map(layout).collect();
                let places = Places { outputs: &places, sources: &sources, memories };
                let value = MapSource::InPlace(0);
                run_map(&map, (&operands, &inputs), value, places, &self.numbers(&fused.scalars), self.alone);
            } else if let [from, others @ ..] = &mut memories[..] {
                let width = link.outputs.first().map_or(0, |output| width(&output.layout));
                for to in others {
                    to.words(0..len * width).copy_from_slice(from.words(0..len * width));
                }
            }
        }
        // Later links read the results that stay in the chain from the cells. Results that leave it are complete.
    }

    /// Runs the twin of a link's kernel into the first result.
    fn kernel(&self, kernel: &Kernel, link: &Step, inputs: &[Input], memories: &mut [ElementsMut]) {
        let Some(ElementsMut::F32(out)) = memories.first_mut() else { return };
        if let Kernel::MatMul(product) = kernel {
            let storage = match link.inputs.get(1).map(|operand| operand.source) {
                Some(Source::Slot(number)) => self.storages[number as usize],
                _ => None,
            };
            matmul(product, inputs, storage, cast_slice_mut(out), self.alone);
        } else if let Kernel::Softmax(kernel) = kernel {
            softmax(kernel, inputs, out, self.alone);
        } else if let Kernel::RowNorm(kernel) = kernel {
            row_norm(kernel, inputs, out, &self.numbers(&link.scalars), self.alone);
        }
    }

    fn numbers(&self, scalars: &[u32]) -> SmallVec<[u32; 4]> {
        scalars.iter().map(|&scalar| self.scalars[scalar as usize]).collect()
    }
}
