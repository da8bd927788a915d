//! The runner: brings a step's operands to hand and calls its twin.

use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use bevy::platform::time::Instant;
use bytemuck::{cast_slice, cast_slice_mut};
use smallvec::SmallVec;

use crate::error::RunError;
use crate::ir::{DType, Operand, Source};
use crate::kernel::custom::run_on_cpu;
use crate::kernel::host::fused::{Finish, Places, Temporary, run_map, run_prologue, shared_output};
use crate::kernel::host::memory::{Elements, ElementsMut, Input};
use crate::kernel::map::cpu::MapSource;
use crate::kernel::*;
use crate::plan::{Plan, Region};
use crate::tensor::Storage;

/// Words of every memory that steps touch.
struct Memory<'a> {
    slots: &'a [Arc<Storage>],
    scratch: &'a mut [u32],
    /// Behind the scratch memory: values between a kernel and what is fused to it.
    temporary: &'a mut [u32],
    regions: &'a [Region],
    constants: &'a [Arc<[u32]>],
}

/// What is watched while a plan runs; nothing by default.
#[derive(Default)]
pub(crate) struct Watch {
    /// When each step began and ended.
    pub clock: Option<Vec<(Instant, Instant)>>,
    /// The first step that made NaNs or infinities of finite numbers, and how many: for debug mode.
    pub non_finite: Option<Option<NonFinite>>,
}

/// A step whose results are not all finite, though its operands were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NonFinite {
    pub step: usize,
    pub nans: u32,
    pub infinities: u32,
}

/// Runs all uploads and steps of `plan` in order. `scalars` are the batch's; returns the out-of-range indices of each step that had any. Fails at a
/// user's kernel whose CPU function fails or is missing.
pub(crate) fn run_plan(
    plan: &Plan,
    slots: &[Arc<Storage>],
    host: &[Arc<[u32]>],
    scalars: &[u32],
    scratch: &mut Vec<u32>,
    pool: &CpuPool,
    watch: &mut Watch,
) -> Result<Vec<(usize, u32)>, RunError> {
    if let Some(kernel) = plan.steps.iter().find_map(without_cpu_function) {
        let message = "it has no CPU function".to_owned();
        return Err(RunError::CpuFunction { kernel, message });
    }
    let temporary = plan.steps.iter().map(|step| Temporary::of(step).words()).max().unwrap_or(0);
    if scratch.len() < plan.scratch_words + temporary {
        scratch.resize(plan.scratch_words + temporary, 0);
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
            Source::Constant(_) | Source::Iota | Source::Fused => {}
        }
    }
    let (scratch, temporary) = scratch.split_at_mut(plan.scratch_words);
    let mut memory = Memory { slots, scratch, temporary, regions: &plan.regions, constants: &plan.constants };
    let mut faults = Vec::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let before = memory.looks(watch).then(|| memory.non_finite(step.reads()));
        let start = watch.clock.is_some().then(Instant::now);
        let count = memory.run(step, scalars, pool)?;
        if let (Some(clock), Some(start)) = (&mut watch.clock, start) {
            clock.push((start, Instant::now()));
        }
        if count > 0 {
            faults.push((i, count));
        }
        if let Some([nans_in, infinities_in]) = before {
            let [nans, infinities] = memory.non_finite(step.outputs.iter());
            if nans > 0 && nans_in == 0 || infinities > 0 && nans_in == 0 && infinities_in == 0 {
                watch.non_finite = Some(Some(NonFinite { step: i, nans, infinities }));
            }
        }
    }
    Ok(faults)
}

/// An elementwise function of a user's that a step calls and that is not there on the CPU.
fn without_cpu_function(step: &Step) -> Option<&'static str> {
    let own = match &step.kernel {
        Kernel::Map(map) => Some(map),
        _ => None,
    };
    let fused = step.prologue.iter().chain(&step.epilogue).map(|fused| &fused.map);
    let mut functions = own.into_iter().chain(fused).flat_map(|map| &map.program.functions);
    functions.find(|function| function.cpu.is_none()).map(|function| function.name)
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
        // Never leaves its step.
        Source::Fused => {}
    }
    out
}

/// A storage locked for one step.
enum Guard<'a> {
    Read(RwLockReadGuard<'a, HostWords>),
    Write(RwLockWriteGuard<'a, HostWords>),
}

/// The words of one operand that shares its memory with an output, and the position of the first element there.
type Copied = Option<(Vec<u32>, usize)>;

/// Every slot of a step, locked once. In order of age, so that plans on other threads cannot wait for each other in a circle.
fn lock<'a>(slots: &'a [Arc<Storage>], step: &Step) -> SmallVec<[(u32, Guard<'a>); 4]> {
    let mut named: SmallVec<[(u64, u32, bool); 8]> = SmallVec::new();
    let outputs = step.outputs.iter().map(|o| (o, true));
    for (operand, write) in outputs.chain(step.reads().map(|i| (i, false))) {
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

impl Memory<'_> {
    /// Whether the next step is to be looked at: until one is found.
    fn looks(&self, watch: &Watch) -> bool {
        matches!(watch.non_finite, Some(None))
    }

    /// NaNs and infinities among the elements of float operands in memory.
    fn non_finite<'a>(&self, operands: impl Iterator<Item = &'a Operand>) -> [u32; 2] {
        let mut counts = [0; 2];
        for operand in operands.filter(|operand| operand.dtype.is_float()) {
            let mut look = |words: &[u32]| {
                for i in 0..operand.layout.elements() {
                    let at = operand.layout.position(i);
                    let value = match operand.dtype {
                        DType::F16 => half::f16::from_bits((words[at / 2] >> (at % 2 * 16)) as u16).to_f32(),
                        _ => f32::from_bits(words[at]),
                    };
                    counts[0] += u32::from(value.is_nan());
                    counts[1] += u32::from(value.is_infinite());
                }
            };
            match operand.source {
                Source::Slot(s) => look(&self.slots[s as usize].host.read().unwrap_or_else(PoisonError::into_inner)),
                Source::Scratch(r) => {
                    let region = self.regions[r as usize];
                    look(&self.scratch[region.offset..region.offset + region.words]);
                }
                Source::Constant(c) => look(&self.constants[c as usize]),
                Source::Iota | Source::Fused => {}
            }
        }
        counts
    }

    /// One step; gives its out-of-range indices. `scalars` are the batch's.
    fn run(&mut self, step: &Step, scalars: &[u32], pool: &CpuPool) -> Result<u32, RunError> {
        let mut guards = lock(self.slots, step);
        let written: SmallVec<[Region; 2]> =
            step.outputs.iter().filter_map(|o| self.region(o.source)).filter(|r| r.words > 0).collect();
        // The kernel's own operands, then those of what is fused to it.
        let fused = [&step.prologue, &step.epilogue].map(|fused| fused.as_ref().map_or(&[][..], |f| &f.inputs[..]));
        let operands: SmallVec<[&Operand; 8]> = step.inputs.iter().chain(fused.into_iter().flatten()).collect();
        // Elementwise work may read an element where it will be written, unless a number moves that place.
        let still = match &step.kernel {
            Kernel::Map(kernel) if kernel.dynamic_out.is_none() => 0,
            Kernel::Map(_) => operands.len(),
            _ => operands.len() - fused[1].len(),
        };
        let in_place = |i: usize| i >= still && shared_output(operands[i], &step.outputs).is_some();
        let copies: SmallVec<[Copied; 8]> = (0..operands.len())
            .map(|i| if in_place(i) { None } else { self.copy_shared(operands[i], &guards, &written) })
            .collect();
        let (gaps, mut pieces) = split_scratch(self.scratch, &written);
        let (mut reads, mut writes) =
            (SmallVec::<[(u32, &HostWords); 4]>::new(), SmallVec::<[(u32, &mut [u32]); 2]>::new());
        for (s, guard) in &mut guards {
            match guard {
                Guard::Read(words) => reads.push((*s, &**words)),
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
                Source::Constant(_) | Source::Iota | Source::Fused => None,
            };
            memories.push(ElementsMut::new(words.unwrap_or_default(), output.dtype));
            sources.push(output.source);
        }

        let mut inputs: SmallVec<[Input; 8]> = operands
            .iter()
            .zip(&copies)
            .map(|(input, copied)| {
                let mut layout = input.layout.clone();
                if let Some((words, start)) = copied {
                    layout.offset -= start;
                    return Input { elements: Elements::new(words, input.dtype), layout };
                }
                let words = match input.source {
                    Source::Slot(s) => reads.iter().find(|r| r.0 == s).map_or(&[][..], |r| &r.1[..]),
                    Source::Scratch(r) => {
                        let Region { offset, words } = self.regions[r as usize];
                        let gap = gaps.iter().find(|g| g.0 <= offset && offset + words <= g.0 + g.1.len());
                        gap.map_or(&[][..], |g| &g.1[offset - g.0..][..words])
                    }
                    Source::Constant(c) => &self.constants[c as usize],
                    Source::Iota | Source::Fused => &[],
                };
                Input { elements: Elements::new(words, input.dtype), layout }
            })
            .collect();

        let numbers =
            |positions: &[u32]| -> SmallVec<[u32; 4]> { positions.iter().map(|&s| scalars[s as usize]).collect() };
        let own = numbers(&step.scalars);
        if let Kernel::Map(kernel) = &step.kernel {
            let places = Places { outputs: &step.outputs, sources: &sources, memories };
            let none = MapSource::Elements(Elements::U32(&[]));
            run_map(kernel, (&step.inputs, &inputs), none, places, &own, pool);
            return Ok(0);
        }
        if let Kernel::Custom(call) = &step.kernel {
            let words: SmallVec<[_; 4]> = inputs.iter().map(|input| input.contiguous_words(pool)).collect();
            let shapes = step.inputs.iter().map(|input| input.layout.shape.clone());
            let inputs = words.iter().map(|words| &words[..]).zip(shapes).collect();
            // Every output has a memory of its own; scratch, which comes last, is for devices.
            let outputs = step.outputs.iter().zip(&mut memories).take(call.code.outputs.len());
            let outputs = outputs.map(|(output, memory)| {
                let start = output.layout.offset;
                (memory.words(start..start + output.layout.elements()), output.layout.shape.clone())
            });
            return run_on_cpu(&call.code, inputs, outputs.collect(), &own).map(|()| 0);
        }
        if let (Some(output), Some(ElementsMut::U32(words))) = (step.outputs.first(), memories.first_mut())
            && let Some(format) = output.dtype.block_format()
        {
            let first = output.layout.offset / format.elements;
            match &step.kernel {
                Kernel::Quantize(kernel) => quantize::quantize(kernel, &inputs, words, first, pool),
                Kernel::BlockCopy(kernel) => block_copy::block_copy(kernel, &inputs, words, first),
                _ => {}
            }
            return Ok(0);
        }
        let temporary = Temporary::of(step);
        let (x, rest) = self.temporary.split_at_mut(temporary.x);
        let value = &mut rest[..temporary.value];
        let (own_inputs, fused_inputs) = inputs.split_at_mut(step.inputs.len());
        let (prologue_inputs, epilogue_inputs) = fused_inputs.split_at(fused[0].len());
        if let Some(prologue) = &step.prologue {
            run_prologue(prologue, prologue_inputs, x, &numbers(&prologue.scalars), pool);
            own_inputs[0].elements = Elements::new(x, step.inputs[0].dtype);
        }
        let out = match temporary.target {
            Some(target) => {
                let layout = &step.outputs[target].layout;
                memories[target].words(layout.offset..layout.offset + layout.elements())
            }
            None => &mut *value,
        };
        let words = step.inputs.get(1).and_then(|input| reads.iter().find(|r| Source::Slot(r.0) == input.source));
        let finish = match (&step.epilogue, &step.kernel, &step.outputs[..]) {
            (Some(epilogue), Kernel::Conv(_), [output]) if temporary.target == Some(0) => {
                Finish::new(epilogue, epilogue_inputs, output, numbers(&epilogue.scalars))
            }
            _ => None,
        };
        let faults = run_twin(&step.kernel, own_inputs, words.map(|r| r.1), out, &own, pool, finish.as_ref());
        if let (Some(epilogue), None) = (&step.epilogue, finish) {
            let value = match temporary.target {
                Some(target) => MapSource::InPlace(target),
                None => MapSource::Elements(Elements::U32(value)),
            };
            let places = Places { outputs: &step.outputs, sources: &sources, memories };
            let operands = (&epilogue.inputs[..], epilogue_inputs);
            run_map(&epilogue.map, operands, value, places, &numbers(&epilogue.scalars), pool);
        }
        Ok(faults)
    }

    /// A copy of an input that shares words with an output without being in place: it is read before anything is written.
    fn copy_shared(&self, input: &Operand, guards: &[(u32, Guard)], written: &[Region]) -> Copied {
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
            Source::Constant(_) | Source::Iota | Source::Fused => return None,
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

/// All other kernels; `out` is what they write, of their output's 32-bit type, `words` are those of input 1 if it is a storage; kernels that are given
/// `finish` compute their epilogue by it. Gives the out-of-range indices.
fn run_twin(
    kernel: &Kernel,
    inputs: &[Input],
    words: Option<&HostWords>,
    out: &mut [u32],
    scalars: &[u32],
    pool: &CpuPool,
    finish: Option<&Finish>,
) -> u32 {
    match kernel {
        // Run by themselves.
        Kernel::Map(_) | Kernel::Custom(_) => {}
        Kernel::MatMul(kernel) => matmul::cpu::matmul(kernel, inputs, words, out, pool),
        Kernel::QuantMatMul(kernel) => quant_matmul::cpu::quant_matmul(kernel, inputs, cast_slice_mut(out), pool),
        // Their outputs are not of 32 bits.
        Kernel::Quantize(_) | Kernel::BlockCopy(_) => {}
        Kernel::Reduce(kernel) => reduce::cpu::reduce(kernel, inputs, out, pool),
        Kernel::Softmax(kernel) => softmax::softmax(kernel, inputs, cast_slice_mut(out), pool),
        Kernel::RowNorm(kernel) => row_norm::row_norm(kernel, inputs, cast_slice_mut(out), scalars, pool),
        Kernel::CumSum(kernel) => cumsum::cumsum(kernel, inputs, out, pool),
        Kernel::TopK(kernel) => top_k::top_k(kernel, inputs, cast_slice_mut(out), pool),
        Kernel::Conv(kernel) => conv::cpu::conv(kernel, inputs, words, cast_slice_mut(out), pool, finish),
        Kernel::ConvTranspose(kernel) => conv_transpose::conv_transpose(kernel, inputs, cast_slice_mut(out), pool),
        Kernel::Pool(kernel) => pool::pool(kernel, inputs, out, pool),
        Kernel::Taps(kernel) => taps::taps(kernel, inputs, cast_slice_mut(out), pool),
        Kernel::Gather(kernel) => return gather::cpu::gather(kernel, inputs, out, pool),
        Kernel::GatherElements(kernel) => return gather::cpu::gather_elements(kernel, inputs, out, pool),
        Kernel::GatherNd(kernel) => return gather::cpu::gather_nd(kernel, inputs, out, pool),
        Kernel::ScatterElements(kernel) => return scatter::cpu::scatter_elements(kernel, inputs, out),
        Kernel::ScatterNd(kernel) => return scatter::cpu::scatter_nd(kernel, inputs, out),
        Kernel::Attention(kernel) => attention::cpu::attention(kernel, inputs, cast_slice_mut(out), scalars, pool),
    }
    0
}

#[cfg(test)]
mod tests;
