//! The runner: brings a step's operands to hand and calls its twin.

use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use bytemuck::{cast_slice, cast_slice_mut};
use smallvec::SmallVec;

use super::map::{MapInput, MapOutput, MapSource};
use super::memory::{Elements, ElementsMut, Input};
use super::{CpuPool, attention, block_copy, conv, conv_transpose, cumsum, gather, map, matmul, pool as pooling};
use super::{quant_matmul, quantize, reduce, row_norm, scatter, softmax, taps, top_k};
use crate::kernel::{Kernel, MapKernel};
use crate::plan::{Operand, Plan, Region, Source, Step};
use crate::tensor::Storage;

/// Words of every memory that steps touch.
struct Memory<'a> {
    slots: &'a [Arc<Storage>],
    scratch: &'a mut [u32],
    regions: &'a [Region],
    constants: &'a [Arc<[u32]>],
}

/// Runs all uploads and steps of `plan` in order. `scalars` are the batch's; returns the out-of-range indices of each step that had any.
pub(crate) fn run_plan(
    plan: &Plan,
    slots: &[Arc<Storage>],
    host: &[Arc<[u32]>],
    scalars: &[u32],
    scratch: &mut Vec<u32>,
    pool: &CpuPool,
) -> Vec<(usize, u32)> {
    if scratch.len() < plan.scratch_words {
        scratch.resize(plan.scratch_words, 0);
    }
    for upload in &plan.uploads {
        let words = &host[upload.host as usize];
        let start = upload.to.dtype.word_of(upload.to.layout.offset);
        let copy = |to: &mut [u32]| {
            let count = upload.to.dtype.words(upload.to.layout.elements()).min(words.len());
            to[start..start + count].copy_from_slice(&words[..count]);
        };
        match upload.to.source {
            Source::Slot(s) => copy(&mut slots[s as usize].host.write().unwrap_or_else(PoisonError::into_inner)),
            Source::Scratch(r) => {
                let region = plan.regions[r as usize];
                copy(&mut scratch[region.offset..region.offset + region.words]);
            }
            Source::Constant(_) | Source::Iota => {}
        }
    }
    let mut memory = Memory { slots, scratch, regions: &plan.regions, constants: &plan.constants };
    let mut faults = Vec::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let numbers: SmallVec<[u32; 4]> = step.scalars.iter().map(|&s| scalars[s as usize]).collect();
        let count = memory.run(step, &numbers, pool);
        if count > 0 {
            faults.push((i, count));
        }
    }
    faults
}

/// The words of a contiguous operand, packed as its dtype asks, the last padded with zeros.
pub(crate) fn read_words(plan: &Plan, operand: &Operand, slots: &[Arc<Storage>], scratch: &[u32]) -> Vec<u32> {
    let elements = operand.layout.elements();
    let mut out = vec![0u32; operand.dtype.words(elements)];
    let mut copy = |words: &[u32]| {
        let start = operand.dtype.bytes(operand.layout.offset);
        let bytes = &cast_slice::<_, u8>(words)[start..start + operand.dtype.bytes(elements)];
        cast_slice_mut::<_, u8>(&mut out)[..bytes.len()].copy_from_slice(bytes);
    };
    match operand.source {
        Source::Slot(s) => copy(&slots[s as usize].host.read().unwrap_or_else(PoisonError::into_inner)),
        Source::Scratch(r) => {
            let region = plan.regions[r as usize];
            copy(&scratch[region.offset..region.offset + region.words]);
        }
        Source::Constant(c) => copy(&plan.constants[c as usize]),
        Source::Iota => (0..elements).for_each(|i| out[i] = operand.layout.position(i) as u32),
    }
    out
}

/// A storage locked for one step.
enum Guard<'a> {
    Read(RwLockReadGuard<'a, Vec<u32>>),
    Write(RwLockWriteGuard<'a, Vec<u32>>),
}

/// The words of one operand that shares its memory with an output, and the position of the first element there.
type Copied = Option<(Vec<u32>, usize)>;

/// Every slot of a step, locked once. In order of age, so that plans on other threads cannot wait for each other in a circle.
fn lock<'a>(slots: &'a [Arc<Storage>], step: &Step) -> SmallVec<[(u32, Guard<'a>); 4]> {
    let mut named: SmallVec<[(u64, u32, bool); 8]> = SmallVec::new();
    let outputs = step.outputs.iter().map(|o| (o, true));
    for (operand, write) in outputs.chain(step.inputs.iter().map(|i| (i, false))) {
        if let Source::Slot(s) = operand.source
            && named.iter().all(|n| n.1 != s)
        {
            named.push((slots[s as usize].id(), s, write));
        }
    }
    named.sort_unstable();
    named
        .iter()
        .map(|&(_, s, write)| {
            let host = &slots[s as usize].host;
            let guard = if write {
                Guard::Write(host.write().unwrap_or_else(PoisonError::into_inner))
            } else {
                Guard::Read(host.read().unwrap_or_else(PoisonError::into_inner))
            };
            (s, guard)
        })
        .collect()
}

/// Scratch words by where they start: what lies between the regions to write, and those regions.
type Split<'a> = (SmallVec<[(usize, &'a [u32]); 4]>, SmallVec<[(Region, &'a mut [u32]); 2]>);

/// Takes the regions that a step writes out of the scratch memory.
fn split_scratch<'a>(mut rest: &'a mut [u32], written: &[Region]) -> Split<'a> {
    let mut cuts: SmallVec<[Region; 2]> = written.into();
    cuts.sort_unstable_by_key(|r| r.offset);
    cuts.dedup();
    let (mut gaps, mut pieces, mut at) = (SmallVec::new(), SmallVec::new(), 0);
    for cut in cuts {
        // Regions of one step's outputs do not overlap.
        let Some(skip) = cut.offset.checked_sub(at) else { continue };
        let (gap, after) = rest.split_at_mut(skip);
        gaps.push((at, &*gap));
        let (piece, after) = after.split_at_mut(cut.words);
        pieces.push((cut, piece));
        (rest, at) = (after, cut.offset + cut.words);
    }
    gaps.push((at, &*rest));
    (gaps, pieces)
}

/// The output whose every element an input of a map shares, so that it can be read where it will be written.
fn in_place(step: &Step, input: &Operand) -> Option<usize> {
    match &step.kernel {
        // A moved output is not where its layout says.
        Kernel::Map(kernel) if kernel.dynamic_out.is_none() => step.outputs.iter().position(|output| output == input),
        _ => None,
    }
}

impl Memory<'_> {
    /// One step; gives its out-of-range indices.
    fn run(&mut self, step: &Step, scalars: &[u32], pool: &CpuPool) -> u32 {
        let mut guards = lock(self.slots, step);
        let written: SmallVec<[Region; 2]> =
            step.outputs.iter().filter_map(|o| self.region(o.source)).filter(|r| r.words > 0).collect();
        let copies: SmallVec<[Copied; 4]> =
            step.inputs.iter().map(|input| self.copy_shared(step, input, &guards, &written)).collect();
        let (gaps, mut pieces) = split_scratch(self.scratch, &written);
        let (mut reads, mut writes) =
            (SmallVec::<[(u32, &[u32]); 4]>::new(), SmallVec::<[(u32, &mut [u32]); 2]>::new());
        for (s, guard) in &mut guards {
            match guard {
                Guard::Read(words) => reads.push((*s, &words[..])),
                Guard::Write(words) => writes.push((*s, &mut words[..])),
            }
        }

        // Every written memory once; outputs say which is theirs.
        let mut sources: SmallVec<[Source; 2]> = SmallVec::new();
        let mut memories: Vec<ElementsMut> = Vec::new();
        for output in step.outputs.iter() {
            if sources.contains(&output.source) {
                continue;
            }
            let words = match output.source {
                Source::Slot(s) => writes.iter().position(|w| w.0 == s).map(|i| writes.swap_remove(i).1),
                Source::Scratch(r) => {
                    pieces.iter().position(|p| p.0 == self.regions[r as usize]).map(|i| pieces.swap_remove(i).1)
                }
                Source::Constant(_) | Source::Iota => None,
            };
            memories.push(ElementsMut::new(words.unwrap_or_default(), output.dtype));
            sources.push(output.source);
        }

        let inputs: SmallVec<[Input; 4]> = step
            .inputs
            .iter()
            .zip(&copies)
            .map(|(input, copied)| {
                let mut layout = input.layout.clone();
                if let Some((words, start)) = copied {
                    layout.offset -= start;
                    return Input { elements: Elements::new(words, input.dtype), layout };
                }
                let words = match input.source {
                    Source::Slot(s) => reads.iter().find(|r| r.0 == s).map_or(&[][..], |r| r.1),
                    Source::Scratch(r) => {
                        let Region { offset, words } = self.regions[r as usize];
                        let gap = gaps.iter().find(|g| g.0 <= offset && offset + words <= g.0 + g.1.len());
                        gap.map_or(&[][..], |g| &g.1[offset - g.0..][..words])
                    }
                    Source::Constant(c) => &self.constants[c as usize],
                    Source::Iota => &[],
                };
                Input { elements: Elements::new(words, input.dtype), layout }
            })
            .collect();

        if let Kernel::Map(kernel) = &step.kernel {
            run_map(kernel, step, &inputs, &sources, memories, scalars, pool);
            return 0;
        }
        let Some(output) = step.outputs.first() else { return 0 };
        if let (Some(format), Some(ElementsMut::U32(words))) = (output.dtype.block_format(), memories.first_mut()) {
            let first = output.layout.offset / format.elements;
            match &step.kernel {
                Kernel::Quantize(kernel) => quantize::quantize(kernel, &inputs, words, first, pool),
                Kernel::BlockCopy(kernel) => block_copy::block_copy(kernel, &inputs, words, first),
                _ => {}
            }
            return 0;
        }
        let range = output.layout.offset..output.layout.offset + output.layout.elements();
        let out: &mut [u32] = match memories.first_mut() {
            Some(ElementsMut::F32(out)) => cast_slice_mut(&mut out[range]),
            Some(ElementsMut::I32(out)) => cast_slice_mut(&mut out[range]),
            Some(ElementsMut::U32(out)) => &mut out[range],
            // Outputs of all but maps are 32 bits wide.
            _ => return 0,
        };
        run_twin(&step.kernel, &inputs, out, scalars, pool)
    }

    /// A copy of an input that shares words with an output without being in place: it is read before anything is written.
    fn copy_shared(&self, step: &Step, input: &Operand, guards: &[(u32, Guard)], written: &[Region]) -> Copied {
        if in_place(step, input).is_some() {
            return None;
        }
        let words = match input.source {
            Source::Slot(s) => match &guards.iter().find(|g| g.0 == s)?.1 {
                Guard::Write(words) => &words[..],
                Guard::Read(_) => return None,
            },
            Source::Scratch(_) => {
                let r = self.region(input.source)?;
                let meets = |w: &Region| w.offset < r.offset + r.words && r.offset < w.offset + w.words;
                written.iter().any(meets).then(|| &self.scratch[r.offset..r.offset + r.words])?
            }
            Source::Constant(_) | Source::Iota => return None,
        };
        let (span, (group, group_words)) = (input.layout.span(), input.dtype.group());
        let first = span.start / group;
        let start = first * group_words;
        Some((words[start..input.dtype.words(span.end).max(start)].to_vec(), first * group))
    }

    fn region(&self, source: Source) -> Option<Region> {
        match source {
            Source::Scratch(r) => self.regions.get(r as usize).copied(),
            _ => None,
        }
    }
}

/// Maps may have several outputs, anywhere. `sources` are those of the `memories`.
fn run_map(
    kernel: &MapKernel,
    step: &Step,
    inputs: &[Input],
    sources: &[Source],
    memories: Vec<ElementsMut>,
    scalars: &[u32],
    pool: &CpuPool,
) {
    let moved = match (kernel.dynamic_out, scalars.last()) {
        (Some(stride), Some(&steps)) => steps as isize * stride,
        _ => 0,
    };
    let inputs: Vec<MapInput> = inputs
        .iter()
        .zip(&step.inputs)
        .map(|(input, operand)| MapInput {
            source: match in_place(step, operand) {
                _ if operand.source == Source::Iota => MapSource::Iota,
                Some(output) => MapSource::InPlace(output),
                None => MapSource::Elements(input.elements),
            },
            strides: &input.layout.strides,
            offset: input.layout.offset as isize,
        })
        .collect();
    let outputs: Vec<MapOutput> = step
        .outputs
        .iter()
        .map(|output| MapOutput {
            memory: sources.iter().position(|s| *s == output.source).unwrap_or(0),
            strides: &output.layout.strides,
            offset: output.layout.offset as isize + moved,
        })
        .collect();
    map::map(kernel, &inputs, &outputs, memories, scalars, pool);
}

/// All other kernels; `out` is what they write, of their output's 32-bit type. Gives the out-of-range indices.
fn run_twin(kernel: &Kernel, inputs: &[Input], out: &mut [u32], scalars: &[u32], pool: &CpuPool) -> u32 {
    match kernel {
        Kernel::Map(_) => {}
        Kernel::MatMul(kernel) => matmul::matmul(kernel, inputs, out, pool),
        Kernel::QuantMatMul(kernel) => quant_matmul::quant_matmul(kernel, inputs, cast_slice_mut(out), pool),
        // Their outputs are not of 32 bits.
        Kernel::Quantize(_) | Kernel::BlockCopy(_) => {}
        Kernel::Reduce(kernel) => reduce::reduce(kernel, inputs, out, pool),
        Kernel::Softmax(kernel) => softmax::softmax(kernel, inputs, cast_slice_mut(out), pool),
        Kernel::RowNorm(kernel) => row_norm::row_norm(kernel, inputs, cast_slice_mut(out), scalars, pool),
        Kernel::CumSum(kernel) => cumsum::cumsum(kernel, inputs, out, pool),
        Kernel::TopK(kernel) => top_k::top_k(kernel, inputs, cast_slice_mut(out), pool),
        Kernel::Conv(kernel) => conv::conv(kernel, inputs, cast_slice_mut(out), pool),
        Kernel::ConvTranspose(kernel) => conv_transpose::conv_transpose(kernel, inputs, cast_slice_mut(out), pool),
        Kernel::Pool(kernel) => pooling::pool(kernel, inputs, out, pool),
        Kernel::Taps(kernel) => taps::taps(kernel, inputs, cast_slice_mut(out), pool),
        Kernel::Gather(kernel) => return gather::gather(kernel, inputs, out, pool),
        Kernel::GatherElements(kernel) => return gather::gather_elements(kernel, inputs, out),
        Kernel::GatherNd(kernel) => return gather::gather_nd(kernel, inputs, out),
        Kernel::ScatterElements(kernel) => return scatter::scatter_elements(kernel, inputs, out),
        Kernel::ScatterNd(kernel) => return scatter::scatter_nd(kernel, inputs, out),
        Kernel::Attention(kernel) => attention::attention(kernel, inputs, cast_slice_mut(out), scalars, pool),
    }
    0
}

#[cfg(test)]
mod tests;
