//! Plans and everything needed to run them: the plan cache, compiled programs, the pipeline compiler, the tuner and the
//! cache file.

use std::sync::Arc;

use bevy::platform::collections::HashMap;

use super::compiler::{Compiler, PipelineEntry};
use super::device::Gpu;
use super::frame::GpuSettings;
use super::persist::Persistence;
use super::program::Program;
use super::tuner::Tuner;
use crate::error::RunError;
use crate::figures::Count;
use crate::kernel::Caps;
use crate::mailbox::ListedKernel;
use crate::pipelines::TensorPipelines;
use crate::plan::{PlanCache, PlanLimits};
use crate::record::{Batch, TuneSettings};
use crate::support::AdapterFacts;

/// The programs of a device, by the id of their plan.
pub(super) struct Programs {
    gpu: Gpu,
    caps: Caps,
    plans: PlanCache,
    programs: HashMap<u64, Program>,
    compiler: Compiler,
    tuner: Tuner,
    /// How the kernels of new plans are tuned, if automatic tuning is on.
    tune: Option<TuneSettings>,
    /// The file that keeps pipelines and the tuning table for the next start.
    persistence: Option<Persistence>,
    shared: TensorPipelines,
    /// Whether new programs are lowered in debug mode.
    debug: bool,
}

impl Programs {
    pub(super) fn new(
        gpu: Gpu,
        caps: Caps,
        facts: &AdapterFacts,
        settings: &GpuSettings,
        shared: TensorPipelines,
        debug: bool,
    ) -> Self {
        let (persistence, known) = match &settings.cache {
            Some(folder) => {
                let (persistence, known) = Persistence::open(folder, &gpu, facts, &shared);
                (Some(persistence), known)
            }
            None => Default::default(),
        };
        let driver = persistence.as_ref().and_then(Persistence::driver);
        let (synchronous, capacity) = (settings.synchronous_pipelines, settings.capacity);
        let short_loops = facts.name.contains("llvmpipe");
        let mut plans = PlanCache::new(plan_limits(&gpu, settings.fuse));
        plans.set_chains(!debug);
        Self {
            plans,
            programs: HashMap::default(),
            compiler: Compiler::new(gpu.clone(), (synchronous, short_loops), capacity, shared.clone(), driver, known),
            tuner: Tuner::new(&gpu),
            tune: settings.tune,
            persistence,
            shared,
            debug,
            gpu,
            caps,
        }
    }

    /// Starts a frame: collects compiled pipelines, and drops programs that have to be lowered again.
    pub(super) fn begin_frame(&mut self, debug: bool) {
        for wgsl in self.compiler.collect() {
            self.programs.retain(|_, program| !program.uses(&wgsl));
        }
        if debug != self.debug {
            self.debug = debug;
            self.plans.set_chains(!debug);
            self.programs.clear();
        }
    }

    /// Ends a frame: continues tuning, and writes the cache file when it is time.
    pub(super) fn end_frame(&mut self) {
        if self.tuner.advance(&self.gpu, &mut self.compiler, &self.caps, &self.shared) {
            // A faster variant was found. Programs are lowered again to use it.
            self.programs.clear();
        }
        if let Some(persistence) = &mut self.persistence {
            persistence.tick();
        }
    }

    /// Returns the id of the batch's plan. Plans the batch, lowers the plan and requests its pipelines as far as that
    /// is needed.
    pub(super) fn plan_of(&mut self, batch: &Batch, priority: i32) -> Result<u64, RunError> {
        let (built, hits) = (self.plans.built, self.plans.hits);
        let (id, plan) = self.plans.plan(&batch.structure, &batch.scalars);
        self.gpu.counters.plans_built.add(self.plans.built - built);
        self.gpu.counters.plan_hits.add(self.plans.hits - hits);
        if !self.programs.contains_key(&id) {
            for dropped in self.plans.take_dropped() {
                self.programs.remove(&dropped);
            }
            let elements: Vec<usize> = batch.slots.iter().map(|storage| storage.elements()).collect();
            if let Some(settings) = self.tune {
                self.tuner.add(&plan.steps, &batch.scalars, settings, &self.caps, &self.shared);
            }
            let table = self.shared.tuning();
            let program = Program::new(plan, &elements, &self.gpu, &self.caps, &table, self.debug)?;
            self.programs.insert(id, program);
        }
        if let Some(program) = self.programs.get_mut(&id) {
            program.request(&mut self.compiler, priority);
        }
        Ok(id)
    }

    pub(super) fn get(&self, id: u64) -> Option<&Program> {
        self.programs.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Program> {
        self.programs.get_mut(&id)
    }

    /// Whether all pipelines of a program are compiled. An error if one failed to compile.
    pub(super) fn is_ready(&mut self, id: u64) -> Result<bool, RunError> {
        self.programs.get_mut(&id).map_or(Ok(false), Program::is_ready)
    }

    /// Drops all other programs to free their buffers. Returns whether there were any.
    pub(super) fn keep_only(&mut self, id: Option<u64>) -> bool {
        let before = self.programs.len();
        self.programs.retain(|&other, _| Some(other) == id);
        self.programs.len() < before
    }

    /// Queues the kernels of a batch for tuning.
    pub(super) fn tune(&mut self, batch: &Batch, settings: TuneSettings) {
        let (_, plan) = self.plans.plan(&batch.structure, &batch.scalars);
        self.tuner.add(&plan.steps, &batch.scalars, settings, &self.caps, &self.shared);
    }

    /// Requests the pipelines of listed kernels.
    pub(super) fn precompile<'a>(
        &mut self,
        kernels: impl Iterator<Item = &'a ListedKernel>,
        priority: i32,
    ) -> Vec<Arc<PipelineEntry>> {
        kernels.map(|kernel| self.compiler.request_listed(kernel, priority)).collect()
    }

    /// Compiles a pipeline again.
    pub(super) fn rebuild(&mut self, pipeline: u64) {
        self.compiler.rebuild(pipeline);
    }

    /// Evicts all pipelines that no program uses.
    pub(super) fn evict_pipelines(&mut self) {
        self.compiler.evict(0);
    }

    /// Writes the cache file.
    pub(super) fn save(&mut self) {
        if let Some(persistence) = &mut self.persistence {
            persistence.save();
        }
    }
}

fn plan_limits(gpu: &Gpu, fuse: bool) -> PlanLimits {
    PlanLimits {
        buffers: gpu.limits.max_storage_buffers_per_shader_stage.clamp(4, 16) as usize,
        alignment: gpu.binding_alignment(),
        binding: gpu.binding_words(),
        passes: true,
        fuse,
        // What every device has. Most have twice as much, so that two workgroups can run at the same time.
        chain: gpu.limits.max_compute_workgroup_storage_size.min(16384) as usize / 4,
    }
}
