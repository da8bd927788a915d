//! A plan that is prepared for the device once and run many times: its launches, parameters, constants and bind groups.

use std::sync::Arc;

use smallvec::SmallVec;

use super::buffers::{DeviceBuffer, Purpose};
use super::compile::Pipeline;
use super::compiler::{Compiler, PipelineEntry};
use super::device::Gpu;
use super::faults::{Look, Watched};
use super::lowering::{PlannedLaunch, lower_plan};
use crate::error::RunError;
use crate::kernel::Caps;
use crate::pipelines::TuningTable;
use crate::plan::{Effect, Plan, effects};

/// A plan's launches and everything they bind, except for the storages and the scratch buffer.
pub(crate) struct Program {
    pub plan: Arc<Plan>,
    pub launches: Vec<PlannedLaunch>,
    /// The pipeline cache entries of the launches. They are not evicted while they are held here.
    pub entries: Vec<Arc<PipelineEntry>>,
    /// The pipelines of the launches, once all are compiled.
    pub pipelines: Vec<Pipeline>,
    /// The highest priority with which the pipelines were requested.
    priority: i32,
    pub(super) params: ParamBlocks,
    /// The plan's own buffers, once allocated.
    pub(super) own: Option<OwnBuffers>,
    /// Indices of the launches that have a fault counter.
    pub(super) faulting: Vec<usize>,
    /// Bind groups, most recently used last.
    pub(super) instances: Vec<Instance>,
    /// The effect of the plan on each storage.
    pub effects: Vec<Effect>,
    /// Whether it was lowered in debug mode: operands are checked, and launches have debug groups.
    pub debug: bool,
}

/// The parameter blocks of all launches.
pub(super) struct ParamBlocks {
    /// Words from one block to the next.
    pub stride: usize,
    words: Vec<u32>,
    /// Whether the buffer holds `words`.
    written: bool,
}

/// Buffers that belong to a plan.
pub(super) struct OwnBuffers {
    pub params: Option<Arc<DeviceBuffer>>,
    pub constants: Vec<Arc<DeviceBuffer>>,
    /// One block per launch with a fault counter.
    pub faults: Option<Arc<DeviceBuffer>>,
}

/// The bind groups for one set of buffers.
pub(super) struct Instance {
    /// Ids of the storages' buffers, and of the scratch buffer.
    pub key: SmallVec<[u64; 8]>,
    pub groups: Vec<wgpu::BindGroup>,
}

impl Program {
    /// Lowers a plan. The tuning table selects the variants of kernels; without an entry the device's default is used.
    /// With `debug`, every float operand is checked for NaNs and infinities before it is read and after it is written.
    pub(crate) fn new(
        plan: Arc<Plan>,
        elements: &[usize],
        gpu: &Gpu,
        caps: &Caps,
        table: &TuningTable,
        debug: bool,
    ) -> Result<Self, RunError> {
        let launches = lower_plan(&plan, elements, gpu, caps, table, debug)?;
        let params = ParamBlocks::new(&launches, gpu);
        let faulting = (0..launches.len()).filter(|&at| launches[at].launch.counts_faults).collect();
        let effects = effects(&plan, elements);
        Ok(Self {
            plan,
            launches,
            entries: Vec::new(),
            pipelines: Vec::new(),
            priority: i32::MIN,
            params,
            own: None,
            faulting,
            instances: Vec::new(),
            effects,
            debug,
        })
    }

    /// Requests the pipelines of all launches. A second request can only raise their priority.
    pub(crate) fn request(&mut self, compiler: &mut Compiler, priority: i32) {
        if self.entries.len() < self.launches.len() {
            let request = |planned: &PlannedLaunch| compiler.request(&planned.launch, &planned.variant, priority);
            self.entries = self.launches.iter().map(request).collect();
        } else if priority > self.priority && self.pipelines.len() < self.launches.len() {
            self.entries.iter().for_each(|entry| compiler.hurry(entry, priority));
        }
        self.priority = self.priority.max(priority);
    }

    /// Whether all pipelines are compiled. An error if one failed to compile.
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
        self.launches.iter().any(|planned| planned.launch.wgsl == wgsl)
    }

    /// Bytes that [`Program::allocate`] will take. Zero after it.
    pub(crate) fn missing_bytes(&self, gpu: &Gpu) -> u64 {
        match self.own {
            Some(_) => 0,
            None => self.own_words(gpu).filter(|&words| words > 0).map(|words| gpu.bytes(Purpose::Plan, words)).sum(),
        }
    }

    /// Sizes of the parameters, of the fault counters and of each constant, in words.
    fn own_words(&self, gpu: &Gpu) -> impl Iterator<Item = usize> {
        let constants = self.plan.constants.iter().map(|words| words.len().max(1));
        [self.params.words.len(), fault_stride(gpu) * self.faulting.len()].into_iter().chain(constants)
    }

    /// Allocates the plan's own buffers, if it has none.
    pub(crate) fn allocate(&mut self, gpu: &Gpu) -> Result<(), RunError> {
        if self.own.is_some() {
            return Ok(());
        }
        let some = |words: usize| match words {
            0 => Ok(None),
            _ => gpu.allocate(Purpose::Plan, words).map(Some),
        };
        let params = some(self.params.words.len())?;
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

    /// Writes the batch's scalars into the parameters, and uploads the parameters if anything changed.
    pub(crate) fn write_params(&mut self, gpu: &Gpu, scalars: &[u32]) {
        let params = &mut self.params;
        let mut changed = !params.written;
        for (i, planned) in self.launches.iter().enumerate() {
            for &(word, scalar) in &planned.launch.patches {
                let place = &mut params.words[i * params.stride + word as usize];
                changed |= core::mem::replace(place, scalars[scalar as usize]) != scalars[scalar as usize];
            }
        }
        if changed && let Some(buffer) = self.own.as_ref().and_then(|own| own.params.as_ref()) {
            gpu.write(&buffer.buffer, 0, &params.words);
            params.written = true;
        }
    }

    /// The buffer of the fault counters.
    pub(crate) fn faults(&self) -> Option<&Arc<DeviceBuffer>> {
        self.own.as_ref()?.faults.as_ref()
    }

    /// Describes each launch that has a fault counter.
    pub(crate) fn watched(&self) -> Vec<Watched> {
        let watched = |&at: &usize| {
            let PlannedLaunch { step, look, ref launch, .. } = self.launches[at];
            let loops = launch.loops.as_ref().map(|(bound, kernels)| (bound.turns, kernels.clone()));
            let report = &self.plan.report.steps[step];
            let nodes = self.plan.nodes.get(step).cloned().unwrap_or_default();
            Watched { step, loops, look, op: report.op, ops: report.ops.clone(), site: report.site, nodes }
        };
        self.faulting.iter().map(watched).collect()
    }

    /// Step and variant of each launch, in order. The step of a debug check is `usize::MAX`.
    pub(crate) fn timed(&self) -> impl Iterator<Item = (usize, Arc<str>)> {
        let step = |look: Option<Look>, step: usize| if look.is_some() { usize::MAX } else { step };
        self.launches.iter().map(move |planned| (step(planned.look, planned.step), planned.variant.clone()))
    }

    /// The name of a launch in graphics debuggers.
    pub(crate) fn debug_label(&self, at: usize) -> String {
        let planned = &self.launches[at];
        let report = &self.plan.report.steps[planned.step];
        let nodes = self.plan.nodes.get(planned.step).map(|nodes| nodes.join(", ")).unwrap_or_default();
        match nodes.is_empty() {
            true => format!("tensor:{} for {} at {}", planned.launch.name, report.op, report.site),
            false => format!("tensor:{} for {nodes} at {}", planned.launch.name, report.site),
        }
    }
}

impl ParamBlocks {
    fn new(launches: &[PlannedLaunch], gpu: &Gpu) -> Self {
        let launches = || launches.iter().map(|planned| &planned.launch);
        let alignment = match launches().any(|launch| launch.params_in_storage) {
            true => gpu.limits.min_uniform_buffer_offset_alignment.max(gpu.limits.min_storage_buffer_offset_alignment),
            false => gpu.limits.min_uniform_buffer_offset_alignment,
        };
        let alignment = alignment as usize / 4;
        let longest = launches().map(|launch| launch.params.len()).max().unwrap_or(0);
        let stride = longest.next_multiple_of(alignment.max(4));
        let mut words = vec![0; stride * launches().count()];
        for (block, launch) in words.chunks_mut(stride.max(1)).zip(launches()) {
            block[..launch.params.len()].copy_from_slice(&launch.params);
        }
        Self { stride, words, written: false }
    }
}

/// Words from one fault counter to the next.
pub(crate) fn fault_stride(gpu: &Gpu) -> usize {
    (gpu.limits.min_storage_buffer_offset_alignment as usize / 4).max(2)
}
