//! Prepares the operands of each step and calls its CPU twin.

use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use bevy::platform::time::Instant;
use bytemuck::{cast_slice, cast_slice_mut};
use smallvec::SmallVec;

use super::slot::words_of;
use crate::error::RunError;
use crate::ir::{DType, Operand, Source};
use crate::kernel::host::fused::{Places, Temporary, run_epilogue, run_prologue, shared_output};
use crate::kernel::host::memory::{Elements, ElementsMut, Input};
use crate::kernel::host::{CpuCall, Epilogue, zeroed};
use crate::kernel::{CpuPool, HostWords, Step};
use crate::plan::{Plan, Region};
use crate::tensor::Storage;

/// The memory that steps access.
struct Memory<'a> {
    slots: &'a [Arc<Storage>],
    scratch: &'a mut [u32],
    /// Stored after the scratch memory: values passed between a kernel and its fused prologue or epilogue.
    temporary: &'a mut [u32],
    regions: &'a [Region],
    constants: &'a [Arc<[u32]>],
}

/// What to observe while a plan runs. Nothing by default.
#[derive(Default)]
pub(crate) struct Watch {
    /// Start and end time of each step.
    pub clock: Option<Vec<(Instant, Instant)>>,
    /// For debug mode: the first step that produced NaNs or infinities from finite inputs, with their counts.
    pub non_finite: Option<Option<NonFinite>>,
}

/// A step with non-finite results although its operands were finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NonFinite {
    pub step: usize,
    pub nans: u32,
    pub infinities: u32,
}

/// Runs all uploads and steps of `plan` in order. `scalars` are those of the batch. Returns the number of out-of-range
/// indices of each step that had any. Returns an error if the CPU function of a custom kernel fails or is missing.
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
    let needed = scratch_words(plan);
    if scratch.len() < needed {
        // The old content is not needed, so it does not have to fit beside the new.
        *scratch = Vec::new();
        *scratch = zeroed(needed).ok_or_else(|| RunError::OutOfMemory {
            what: "scratch memory on the CPU".to_owned(),
            requested: needed as u64 * 4,
        })?;
    }
    for upload in &plan.uploads {
        let words = &host[upload.host as usize];
        let start = upload.to.dtype.word_of(upload.to.layout.offset);
        let copy = |to: &mut [u32]| {
            let count = upload.to.dtype.words(upload.to.layout.elements()).min(words.len());
            to[start..start + count].copy_from_slice(&words[..count]);
        };
        match upload.to.source {
            Source::Slot(s) => copy(&mut words_of(&slots[s as usize]).write().unwrap_or_else(PoisonError::into_inner)),
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

/// Words of scratch memory that a plan needs: its regions, and the values between a kernel and the work fused to it.
pub(crate) fn scratch_words(plan: &Plan) -> usize {
    let temporary = plan.steps.iter().map(|step| Temporary::of(step).words()).max().unwrap_or(0);
    plan.scratch_words + temporary
}

/// The name of a custom elementwise function that the step uses and that has no CPU implementation.
fn without_cpu_function(step: &Step) -> Option<&'static str> {
    let own = step.kernel.as_map();
    let fused = step.prologue.iter().chain(&step.epilogue).map(|fused| &fused.map);
    let mut functions = own.into_iter().chain(fused).flat_map(|map| &map.program.functions);
    functions.find(|function| function.cpu.is_none()).map(|function| function.name)
}

/// The words of a contiguous operand, packed according to its dtype. The last word is padded with zeros.
pub(crate) fn read_words(
    plan: &Plan,
    operand: &Operand,
    slots: &[Arc<Storage>],
    scratch: &[u32],
) -> Result<Vec<u32>, RunError> {
    let elements = operand.layout.elements();
    let words = operand.dtype.words(elements);
    let mut out = zeroed(words).ok_or_else(|| RunError::OutOfMemory {
        what: "the result of a read on the CPU".to_owned(),
        requested: words as u64 * 4,
    })?;
    let mut copy = |words: &[u32]| {
        let start = operand.dtype.bytes(operand.layout.offset);
        let bytes = &cast_slice::<_, u8>(words)[start..start + operand.dtype.bytes(elements)];
        cast_slice_mut::<_, u8>(&mut out)[..bytes.len()].copy_from_slice(bytes);
    };
    match operand.source {
        Source::Slot(s) => copy(&words_of(&slots[s as usize]).read().unwrap_or_else(PoisonError::into_inner)),
        Source::Scratch(r) => {
            let region = plan.regions[r as usize];
            copy(&scratch[region.offset..region.offset + region.words]);
        }
        Source::Constant(c) => copy(&plan.constants[c as usize]),
        Source::Iota => (0..elements).for_each(|i| out[i] = operand.layout.position(i) as u32),
        // Fused values never leave their step.
        Source::Fused => {}
    }
    Ok(out)
}

/// A storage locked for one step.
enum Guard<'a> {
    Read(RwLockReadGuard<'a, HostWords>),
    Write(RwLockWriteGuard<'a, HostWords>),
}

/// A copy of an operand that shares memory with an output, and the position of its first element in the copy.
type Copied = Option<(Vec<u32>, usize)>;

/// Locks every slot of a step once. Slots are locked in order of age, so that plans on different threads cannot
/// deadlock.
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
            let host = words_of(&slots[s as usize]);
            let guard = if write {
                Guard::Write(host.write().unwrap_or_else(PoisonError::into_inner))
            } else {
                Guard::Read(host.read().unwrap_or_else(PoisonError::into_inner))
            };
            (s, guard)
        })
        .collect()
}

/// Scratch words by start offset: the gaps between the written regions, and the written regions.
type Split<'a> = (SmallVec<[(usize, &'a [u32]); 4]>, SmallVec<[(Region, &'a mut [u32]); 2]>);

/// Splits the regions that a step writes off the scratch memory.
fn split_scratch<'a>(mut rest: &'a mut [u32], written: &[Region]) -> Split<'a> {
    let mut cuts: SmallVec<[Region; 2]> = written.into();
    cuts.sort_unstable_by_key(|r| r.offset);
    cuts.dedup();
    let (mut gaps, mut pieces, mut at) = (SmallVec::new(), SmallVec::new(), 0);
    for cut in cuts {
        // The output regions of one step do not overlap.
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
    /// Whether the next step must be checked for non-finite values. Checking stops at the first one found.
    fn looks(&self, watch: &Watch) -> bool {
        matches!(watch.non_finite, Some(None))
    }

    /// Counts NaNs and infinities in float operands that are in memory.
    fn non_finite<'a>(&self, operands: impl Iterator<Item = &'a Operand>) -> [u32; 2] {
        let mut counts = [0; 2];
        for operand in operands.filter(|operand| operand.dtype.is_float()) {
            let mut look = |words: &[u32]| {
                for i in 0..operand.layout.elements() {
                    let at = operand.layout.position(i);
                    let value = match operand.dtype {
                        DType::F16 => half::f16::from_bits((words[at / 2] >> (at % 2 * 16)) as u16).to_f32(),
                        DType::BF16 => half::bf16::from_bits((words[at / 2] >> (at % 2 * 16)) as u16).to_f32(),
                        _ => f32::from_bits(words[at]),
                    };
                    counts[0] += u32::from(value.is_nan());
                    counts[1] += u32::from(value.is_infinite());
                }
            };
            match operand.source {
                Source::Slot(s) => {
                    look(&words_of(&self.slots[s as usize]).read().unwrap_or_else(PoisonError::into_inner))
                }
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

    /// Runs one step and returns its number of out-of-range indices. `scalars` are those of the batch.
    fn run(&mut self, step: &Step, scalars: &[u32], pool: &CpuPool) -> Result<u32, RunError> {
        let mut guards = lock(self.slots, step);
        let written: SmallVec<[Region; 2]> =
            step.outputs.iter().filter_map(|o| self.region(o.source)).filter(|r| r.words > 0).collect();
        let operands = Operands::of(step);
        let copies: SmallVec<[Copied; 8]> = (0..operands.all.len())
            .map(|i| if operands.in_place(i) { None } else { self.copy_shared(operands.all[i], &guards, &written) })
            .collect();
        let (gaps, pieces) = split_scratch(self.scratch, &written);
        let (reads, writes) = views(&mut guards);
        let (sources, memories) = written_memories(step, self.regions, writes, pieces);
        let readable = Readable { reads: &reads, gaps: &gaps, regions: self.regions, constants: self.constants };
        let mut inputs: SmallVec<[Input; 8]> =
            operands.all.iter().zip(&copies).map(|(operand, copied)| readable.input(operand, copied)).collect();
        let places = Places { outputs: &step.outputs, sources: &sources, memories };
        launch(&operands, &mut inputs, places, &reads, self.temporary, scalars, pool)
    }

    /// Copies an input that shares memory with an output without being in place, so that it is read before anything is
    /// written.
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

/// The operands of a step: those of the kernel, followed by those of its fused prologue and epilogue.
struct Operands<'a> {
    step: &'a Step,
    all: SmallVec<[&'a Operand; 8]>,
    /// Number of operands of the prologue and of the epilogue.
    prologue: usize,
    epilogue: usize,
}

impl<'a> Operands<'a> {
    fn of(step: &'a Step) -> Self {
        let fused = [&step.prologue, &step.epilogue].map(|fused| fused.as_ref().map_or(&[][..], |f| &f.inputs[..]));
        let all = step.inputs.iter().chain(fused.into_iter().flatten()).collect();
        Self { step, all, prologue: fused[0].len(), epilogue: fused[1].len() }
    }

    /// Whether an operand is read from where the output is written. Elementwise kernels allow this unless a scalar
    /// moves the output.
    fn in_place(&self, i: usize) -> bool {
        let first = match self.step.kernel.as_map() {
            Some(map) if map.dynamic_out.is_none() => 0,
            Some(_) => self.all.len(),
            None => self.all.len() - self.epilogue,
        };
        i >= first && shared_output(self.all[i], &self.step.outputs).is_some()
    }
}

/// The storages that a step reads and the words of those that it writes, by slot.
type Views<'a> = (SmallVec<[(u32, &'a HostWords); 4]>, SmallVec<[(u32, &'a mut [u32]); 2]>);

fn views<'a>(guards: &'a mut [(u32, Guard)]) -> Views<'a> {
    let (mut reads, mut writes) = (SmallVec::new(), SmallVec::new());
    for (s, guard) in guards {
        match guard {
            Guard::Read(words) => reads.push((*s, &**words)),
            Guard::Write(words) => writes.push((*s, &mut words[..])),
        }
    }
    (reads, writes)
}

/// Every memory that a step writes, once. An output finds its own by source.
fn written_memories<'a>(
    step: &Step,
    regions: &[Region],
    mut writes: SmallVec<[(u32, &'a mut [u32]); 2]>,
    mut pieces: SmallVec<[(Region, &'a mut [u32]); 2]>,
) -> (SmallVec<[Source; 2]>, Vec<ElementsMut<'a>>) {
    let mut sources: SmallVec<[Source; 2]> = SmallVec::new();
    let mut memories: Vec<ElementsMut> = Vec::new();
    for output in step.outputs.iter() {
        if sources.contains(&output.source) {
            continue;
        }
        let words = match output.source {
            Source::Slot(s) => writes.iter().position(|w| w.0 == s).map(|i| writes.swap_remove(i).1),
            Source::Scratch(r) => {
                pieces.iter().position(|p| p.0 == regions[r as usize]).map(|i| pieces.swap_remove(i).1)
            }
            Source::Constant(_) | Source::Iota | Source::Fused => None,
        };
        memories.push(ElementsMut::new(words.unwrap_or_default(), output.dtype));
        sources.push(output.source);
    }
    (sources, memories)
}

/// What a step can read while it writes.
struct Readable<'a> {
    reads: &'a [(u32, &'a HostWords)],
    /// Scratch words between the written regions.
    gaps: &'a [(usize, &'a [u32])],
    regions: &'a [Region],
    constants: &'a [Arc<[u32]>],
}

impl<'a> Readable<'a> {
    /// Resolves an operand to an input, from its copy if there is one.
    fn input(&self, operand: &Operand, copied: &'a Copied) -> Input<'a> {
        let mut layout = operand.layout.clone();
        if let Some((words, start)) = copied {
            layout.offset -= start;
            return Input { elements: Elements::new(words, operand.dtype), layout };
        }
        Input { elements: Elements::new(self.words(operand.source), operand.dtype), layout }
    }

    fn words(&self, source: Source) -> &'a [u32] {
        match source {
            Source::Slot(s) => self.reads.iter().find(|r| r.0 == s).map_or(&[][..], |r| &r.1[..]),
            Source::Scratch(r) => {
                let Region { offset, words } = self.regions[r as usize];
                let gap = self.gaps.iter().find(|g| g.0 <= offset && offset + words <= g.0 + g.1.len());
                gap.map_or(&[][..], |g| &g.1[offset - g.0..][..words])
            }
            Source::Constant(c) => &self.constants[c as usize],
            Source::Iota | Source::Fused => &[],
        }
    }
}

/// Runs the prologue, the kernel's twin and the epilogue. `inputs` are the inputs of `operands`. `storages` are those
/// that the step reads, by slot.
fn launch<'a>(
    operands: &Operands,
    inputs: &mut [Input<'a>],
    places: Places,
    storages: &[(u32, &HostWords)],
    temporary: &'a mut [u32],
    scalars: &[u32],
    pool: &CpuPool,
) -> Result<u32, RunError> {
    let step = operands.step;
    let numbers =
        |positions: &[u32]| -> SmallVec<[u32; 4]> { positions.iter().map(|&s| scalars[s as usize]).collect() };
    let kept = Temporary::of(step);
    let (x, rest) = temporary.split_at_mut(kept.x);
    let (own, fused) = inputs.split_at_mut(step.inputs.len());
    let (prologue_inputs, epilogue_inputs) = fused.split_at(operands.prologue);
    if let Some(prologue) = &step.prologue {
        run_prologue(prologue, prologue_inputs, x, &numbers(&prologue.scalars), pool);
        own[0].elements = Elements::new(x, step.inputs[0].dtype);
    }
    let epilogue = step.epilogue.as_ref().map(|fused| Epilogue {
        fused,
        inputs: epilogue_inputs,
        scalars: numbers(&fused.scalars),
    });
    let mut call = CpuCall {
        step,
        inputs: own,
        scalars: &numbers(&step.scalars),
        pool,
        places,
        value: &mut rest[..kept.value],
        target: kept.target,
        epilogue,
        storages,
    };
    let faults = step.kernel.spec().run(&mut call)?;
    run_epilogue(call);
    Ok(faults)
}

#[cfg(test)]
mod tests;
