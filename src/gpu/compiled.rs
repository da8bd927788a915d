//! A plan made ready for the device once: its launches, parameters and constants, and bind groups per set of buffers.

use core::ops::Range;
use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::buffers::{DeviceBuffer, Gpu, Purpose};
use super::faults::{Look, Watched};
use super::pipelines::{Pipeline, PipelineEntry, Pipelines};
use crate::error::RunError;
use crate::figures::Count;
use crate::ir::Source;
use crate::kernel::{Caps, Kernel, Launch, Step, bucket, lower, non_finite};
use crate::pipelines::TuningTable;
use crate::plan::{Effect, Plan, effects, shift, sources, window};

/// Bind-group sets kept per plan: models of one structure that take turns.
const INSTANCES: usize = 8;

/// Words of large memories that a launch sees.
type Windows = SmallVec<[(Source, Range<usize>); 1]>;

/// A plan's launches and what they bind, apart from the storages and the scratch memory.
pub(crate) struct Compiled {
    pub plan: Arc<Plan>,
    pub launches: Vec<Launch>,
    /// The launches' entries in the cache of pipelines, which stay there for as long as they are kept here.
    pub entries: Vec<Arc<PipelineEntry>>,
    /// The launches' pipelines, once all have been compiled.
    pub pipelines: Vec<Pipeline>,
    /// How urgent the pipelines were when they were asked for.
    priority: i32,
    /// The step behind each launch.
    pub steps: Vec<usize>,
    /// What each launch is for: its step's work, or a look at its operands.
    looks: Vec<Option<Look>>,
    /// The form of each launch.
    variants: Vec<Arc<str>>,
    /// Parts of memories that the launches see, where those are larger than a binding.
    windows: Vec<Windows>,
    /// Words from one parameter block to the next.
    stride: usize,
    /// All parameter blocks as last written.
    params: Vec<u32>,
    params_written: bool,
    /// The plan's own buffers, once it has any.
    own: Option<OwnBuffers>,
    /// Launches that can fault.
    pub faulting: Vec<usize>,
    instances: Vec<Instance>,
    /// What the plan does to each storage.
    pub effects: Vec<Effect>,
}

/// Buffers that a plan keeps for itself.
struct OwnBuffers {
    params: Option<Arc<DeviceBuffer>>,
    constants: Vec<Arc<DeviceBuffer>>,
    /// One counter per launch that can fault, each at a block of its own.
    faults: Option<Arc<DeviceBuffer>>,
}

struct Instance {
    /// Ids of the storages' buffers, and of the scratch buffer.
    key: SmallVec<[u64; 8]>,
    groups: Vec<wgpu::BindGroup>,
}

impl Compiled {
    /// Lowers a plan; forms of kernels are as the table says, or the device's defaults. With `trace`, every float operand is looked at before and
    /// after the launches that read and write it.
    pub(crate) fn new(
        plan: Arc<Plan>,
        elements: &[usize],
        gpu: &Gpu,
        caps: &Caps,
        table: &TuningTable,
        trace: bool,
    ) -> Result<Self, RunError> {
        let (mut steps, mut launches, mut windows) = (Vec::new(), Vec::new(), Vec::new());
        let (mut looks, mut variants) = (Vec::new(), Vec::new());
        let none: Arc<str> = "".into();
        for (i, step) in plan.steps.iter().enumerate() {
            let variant = if table.choices.is_empty() { None } else { table.get(&bucket(step)) };
            let caps = &Caps { variant, ..*caps };
            let (step, shown) = show(step, &plan, i, elements, gpu)?;
            let Some(launch) = lower(&step, caps) else { continue };
            let mut push = |launch: Launch, look: Option<Look>| {
                variants.push(launch.variant.map_or(none.clone(), |variant| variant.to_string().into()));
                launches.push(launch);
                steps.push(i);
                windows.push(shown.clone());
                looks.push(look);
            };
            if trace {
                let read = step.reads().filter_map(|operand| non_finite(operand, false, caps));
                read.for_each(|launch| push(launch, Some(Look::Before)));
            }
            push(launch, None);
            if trace {
                let written = step.outputs.iter().filter_map(|operand| non_finite(operand, true, caps));
                written.for_each(|launch| push(launch, Some(Look::After)));
            }
        }
        let alignment = match launches.iter().any(|launch| launch.params_in_storage) {
            true => gpu.limits.min_uniform_buffer_offset_alignment.max(gpu.limits.min_storage_buffer_offset_alignment),
            false => gpu.limits.min_uniform_buffer_offset_alignment,
        };
        let alignment = alignment as usize / 4;
        let longest = launches.iter().map(|launch| launch.params.len()).max().unwrap_or(0);
        let stride = longest.next_multiple_of(alignment.max(4));
        let mut params = vec![0; stride * launches.len()];
        for (block, launch) in params.chunks_mut(stride.max(1)).zip(&launches) {
            block[..launch.params.len()].copy_from_slice(&launch.params);
        }
        let faulting = (0..launches.len()).filter(|&i| launches[i].counts_faults).collect();
        let effects = effects(&plan, elements);
        Ok(Self {
            plan,
            launches,
            entries: Vec::new(),
            pipelines: Vec::new(),
            priority: i32::MIN,
            steps,
            looks,
            variants,
            windows,
            stride,
            params,
            params_written: false,
            own: None,
            faulting,
            instances: Vec::new(),
            effects,
        })
    }

    /// Bytes of the device that the plan's own buffers will take, once [`Compiled::allocate`] makes them.
    pub(crate) fn missing_bytes(&self, gpu: &Gpu) -> u64 {
        match self.own {
            Some(_) => 0,
            None => self.own_words(gpu).filter(|&words| words > 0).map(|words| gpu.bytes(Purpose::Plan, words)).sum(),
        }
    }

    /// Words of the parameters, of the fault counters, and of each constant.
    fn own_words(&self, gpu: &Gpu) -> impl Iterator<Item = usize> {
        let constants = self.plan.constants.iter().map(|words| words.len().max(1));
        [self.params.len(), fault_stride(gpu) * self.faulting.len()].into_iter().chain(constants)
    }

    /// Makes the plan's own buffers, unless it has them.
    pub(crate) fn allocate(&mut self, gpu: &Gpu) -> Result<(), RunError> {
        if self.own.is_some() {
            return Ok(());
        }
        let some = |words: usize| match words {
            0 => Ok(None),
            _ => gpu.allocate(Purpose::Plan, words).map(Some),
        };
        let params = some(self.params.len())?;
        let faults = some(fault_stride(gpu) * self.faulting.len())?;
        let mut constants = Vec::with_capacity(self.plan.constants.len());
        for words in &self.plan.constants {
            let buffer = gpu.allocate(Purpose::Plan, words.len())?;
            gpu.write(&buffer.buffer, 0, words);
            constants.push(buffer);
        }
        self.own = Some(OwnBuffers { params, constants, faults });
        Ok(())
    }

    /// The counters of launches that can fault.
    pub(crate) fn faults(&self) -> Option<&Arc<DeviceBuffer>> {
        self.own.as_ref()?.faults.as_ref()
    }

    /// Asks for the pipelines of all launches, or, if that was done with less urgency, again.
    pub(crate) fn request(&mut self, pipelines: &mut Pipelines, priority: i32) {
        if self.entries.len() < self.launches.len() {
            let launches = self.launches.iter().zip(&self.variants);
            self.entries = launches.map(|(launch, variant)| pipelines.request(launch, variant, priority)).collect();
        } else if priority > self.priority && self.pipelines.len() < self.launches.len() {
            self.entries.iter().for_each(|entry| pipelines.hurry(entry, priority));
        }
        self.priority = self.priority.max(priority);
    }

    /// Whether every launch has its pipeline by now, or the error of one that never will.
    pub(crate) fn is_ready(&mut self) -> Result<bool, RunError> {
        if self.pipelines.len() < self.launches.len() {
            let found: Option<Vec<_>> = self.entries.iter().map(|entry| entry.get()).collect();
            let Some(found) = found.filter(|found| found.len() == self.launches.len()) else { return Ok(false) };
            self.pipelines = found.into_iter().map(|pipeline| pipeline.cloned()).collect::<Result<_, _>>()?;
        }
        Ok(true)
    }

    /// Whether a launch uses the pipeline of this text.
    pub(crate) fn uses(&self, wgsl: &str) -> bool {
        self.launches.iter().any(|launch| launch.wgsl == wgsl)
    }

    /// Step and form of each launch, in order; looks are of no step.
    pub(crate) fn timed(&self) -> impl Iterator<Item = (usize, Arc<str>)> {
        let step = |(&step, look): (&usize, &Option<Look>)| if look.is_some() { usize::MAX } else { step };
        self.steps.iter().zip(&self.looks).map(step).zip(self.variants.iter().cloned())
    }

    /// What is known of each launch that counts something.
    pub(crate) fn watched(&self) -> Vec<Watched> {
        let watched = |&launch: &usize| {
            let step = self.steps[launch];
            let report = &self.plan.report.steps[step];
            Watched { step, look: self.looks[launch], op: report.op, ops: report.ops.clone(), site: report.site }
        };
        self.faulting.iter().map(watched).collect()
    }

    /// What debuggers call a launch.
    pub(crate) fn debug_label(&self, at: usize) -> String {
        let (launch, report) = (&self.launches[at], &self.plan.report.steps[self.steps[at]]);
        format!("tensor:{} for {} at {}", launch.name, report.op, report.site)
    }

    /// Forgets the bind groups made last.
    pub(crate) fn unbind(&mut self) {
        self.instances.pop();
    }

    /// Puts the batch's numbers into the parameters and sends them if anything changed.
    pub(crate) fn write_params(&mut self, gpu: &Gpu, scalars: &[u32]) {
        let mut changed = !self.params_written;
        for (i, launch) in self.launches.iter().enumerate() {
            for &(word, scalar) in &launch.patches {
                let place = &mut self.params[i * self.stride + word as usize];
                changed |= core::mem::replace(place, scalars[scalar as usize]) != scalars[scalar as usize];
            }
        }
        if changed && let Some(buffer) = self.own.as_ref().and_then(|own| own.params.as_ref()) {
            gpu.write(&buffer.buffer, 0, &self.params);
            self.params_written = true;
        }
    }

    /// Makes sure that the bind groups for these buffers are there, made once per set of buffers. The compiled plan must be ready.
    pub(crate) fn bind(
        &mut self,
        gpu: &Gpu,
        slots: &[Arc<DeviceBuffer>],
        scratch: Option<&Arc<DeviceBuffer>>,
    ) -> Result<(), RunError> {
        let key: SmallVec<[u64; 8]> = slots.iter().chain(scratch).map(|buffer| buffer.id).collect();
        if let Some(at) = self.instances.iter().position(|instance| instance.key == key) {
            // Most recently used last.
            let instance = self.instances.remove(at);
            self.instances.push(instance);
        } else {
            let groups =
                (0..self.launches.len()).map(|i| self.group(gpu, i, slots, scratch)).collect::<Result<_, _>>()?;
            if self.instances.len() == INSTANCES {
                self.instances.remove(0);
            }
            self.instances.push(Instance { key, groups });
        }
        Ok(())
    }

    /// The bind groups that were bound last, by launch.
    pub(crate) fn groups(&self) -> &[wgpu::BindGroup] {
        self.instances.last().map_or(&[], |instance| &instance.groups)
    }

    fn group(
        &self,
        gpu: &Gpu,
        at: usize,
        slots: &[Arc<DeviceBuffer>],
        scratch: Option<&Arc<DeviceBuffer>>,
    ) -> Result<wgpu::BindGroup, RunError> {
        let launch = &self.launches[at];
        let missing = || RunError::Device(format!("kernel {} has nothing to bind", launch.name));
        let layout = &self.pipelines.get(at).ok_or_else(missing)?.layout;
        let own = self.own.as_ref().ok_or_else(missing)?;
        // What was asked for, not what the buffer has room for: kernels may ask for the length.
        let whole = |buffer: &'_ Arc<DeviceBuffer>| (buffer.buffer.clone(), 0, core::num::NonZeroU64::new(buffer.size));
        let mut bindings: Vec<(wgpu::Buffer, u64, Option<core::num::NonZeroU64>)> = Vec::new();
        let params = own.params.as_ref().ok_or_else(missing)?;
        let params_bytes = core::num::NonZeroU64::new(launch.params.len() as u64 * 4);
        bindings.push((params.buffer.clone(), (at * self.stride) as u64 * 4, params_bytes));
        for binding in &launch.bindings {
            let (buffer, start, size) = match binding.source {
                Source::Slot(slot) => whole(&slots[slot as usize]),
                Source::Constant(constant) => whole(&own.constants[constant as usize]),
                Source::Scratch(value) => {
                    let region = self.plan.regions[value as usize];
                    // Whole 16-byte groups, as for buffers; regions start and end on larger multiples.
                    let bytes = (region.words as u64 * 4).next_multiple_of(16);
                    let buffer = scratch.ok_or_else(missing)?;
                    (buffer.buffer.clone(), region.offset as u64 * 4, core::num::NonZeroU64::new(bytes))
                }
                Source::Iota | Source::Fused => return Err(missing()),
            };
            let (start, size) = match self.windows[at].iter().find(|(source, _)| *source == binding.source) {
                Some((_, words)) => {
                    let bytes = (words.len() as u64 * 4).next_multiple_of(16);
                    (start + words.start as u64 * 4, core::num::NonZeroU64::new(bytes))
                }
                None => (start, size),
            };
            bindings.push(match binding.part {
                Some((first, words)) => {
                    (buffer, start + first as u64 * 4, core::num::NonZeroU64::new(words as u64 * 4))
                }
                None => (buffer, start, size),
            });
        }
        if launch.counts_faults {
            let index = self.faulting.iter().position(|&i| i == at).unwrap_or(0);
            let buffer = own.faults.as_ref().ok_or_else(missing)?;
            let offset = (index * fault_stride(gpu)) as u64 * 4;
            let bytes = if self.looks[at].is_some() { 8 } else { 4 };
            bindings.push((buffer.buffer.clone(), offset, core::num::NonZeroU64::new(bytes)));
        }
        let entries: Vec<wgpu::BindGroupEntry> = bindings
            .iter()
            .enumerate()
            .map(|(i, (buffer, offset, size))| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: *offset, size: *size }),
            })
            .collect();
        gpu.counters.bind_groups_made.add(1);
        Ok(gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&format!("tensor:{}", launch.name)),
            layout,
            entries: &entries,
        }))
    }
}

/// A step as its launch sees it: of a memory that is larger than a binding, only the part that it touches.
fn show<'a>(
    step: &'a Step,
    plan: &Plan,
    at: usize,
    elements: &[usize],
    gpu: &Gpu,
) -> Result<(Cow<'a, Step>, Windows), RunError> {
    let limit = gpu.binding_words();
    let (mut step, mut windows) = (Cow::Borrowed(step), Windows::new());
    if let Kernel::Custom(_) = step.kernel {
        // Each operand has a binding of its own, of its elements alone.
        return Ok((step, windows));
    }
    for source in sources(&step) {
        let memory = match source {
            Source::Slot(slot) => {
                let operand = step.reads().chain(&step.outputs).find(|operand| operand.source == source);
                operand.map_or(0, |operand| operand.dtype.words(elements[slot as usize]))
            }
            Source::Scratch(value) => plan.regions[value as usize].words,
            Source::Constant(constant) => plan.constants[constant as usize].len(),
            Source::Iota | Source::Fused => 0,
        };
        if memory <= limit {
            continue;
        }
        // The place of a store may be known only when it runs.
        let moves = step.kernel.as_map().is_some_and(|map| map.dynamic_out.is_some());
        let words = if moves && step.outputs[0].source == source {
            0..memory
        } else {
            window(&step, source, gpu.binding_alignment())
        };
        if words.len() > limit {
            let what = format!("memory that one launch of \"{}\" sees", plan.report.steps[at].op);
            let (requested, available) = (words.len() as u64 * 4, limit as u64 * 4);
            return Err(RunError::Limit { what, requested, available });
        }
        shift(step.to_mut(), source, words.start);
        windows.push((source, words));
    }
    Ok((step, windows))
}

/// Words from one fault counter to the next.
pub(crate) fn fault_stride(gpu: &Gpu) -> usize {
    (gpu.limits.min_storage_buffer_offset_alignment as usize / 4).max(2)
}
