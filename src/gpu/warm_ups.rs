//! Warm-ups: pipelines are compiled before they are needed, and each kernel runs once on temporary memory. The frame's
//! work does not wait for them.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use bevy::platform::collections::HashSet;

use super::buffers::{DeviceBuffer, Purpose};
use super::compiler::PipelineEntry;
use super::device::{ErrorScope, Gpu};
use super::program::Program;
use super::programs::Programs;
use super::work::WorkQueue;
use super::workspace::Workspace;
use crate::error::RunError;
use crate::pipelines::{TensorPipelines, WarmUpState};
use crate::record::{Batch, WarmUpId};
use crate::tensor::Storage;

/// The warm-ups in progress.
pub(super) struct WarmUps {
    gpu: Gpu,
    running: Vec<WarmUp>,
    shared: TensorPipelines,
}

/// A warm-up in progress.
struct WarmUp {
    id: WarmUpId,
    priority: i32,
    stage: Stage,
}

enum Stage {
    /// Waits for the pipelines of a list of kernels.
    List(Vec<Arc<PipelineEntry>>),
    /// Recorded work, and the number of its kernels that have run.
    Batch(Batch, usize),
    /// Everything is submitted. Set when the device has finished.
    Submitted(Arc<AtomicBool>),
}

impl WarmUps {
    pub(super) fn new(gpu: Gpu, shared: TensorPipelines) -> Self {
        Self { gpu, running: Vec::new(), shared }
    }

    /// Adds recorded work to warm up.
    pub(super) fn add_batch(&mut self, id: WarmUpId, priority: i32, batch: Batch) {
        self.running.push(WarmUp { id, priority, stage: Stage::Batch(batch, 0) });
    }

    /// Adds pipelines that only have to be compiled.
    pub(super) fn add_list(&mut self, id: WarmUpId, priority: i32, entries: Vec<Arc<PipelineEntry>>) {
        self.running.push(WarmUp { id, priority, stage: Stage::List(entries) });
    }

    /// Continues the warm-ups of a lost device.
    pub(super) fn take_over(&mut self, old: &mut Self, programs: &mut Programs) {
        for WarmUp { id, priority, stage } in old.running.drain(..) {
            let stage = match stage {
                Stage::Batch(batch, _) => Stage::Batch(batch, 0),
                Stage::List(entries) => {
                    let kernels = entries.iter().map(|entry| &entry.record.kernel);
                    Stage::List(programs.precompile(kernels, priority))
                }
                // The lost device will never finish. The warm-up ends here.
                Stage::Submitted(_) => Stage::List(Vec::new()),
            };
            self.running.push(WarmUp { id, priority, stage });
        }
    }

    /// Ends a warm-up with an error.
    pub(super) fn fail(&mut self, id: WarmUpId, error: RunError) {
        self.running.retain(|warm_up| warm_up.id != id);
        self.shared.update_warm_up(id, |progress| progress.state = WarmUpState::Failed(error));
    }

    /// Advances every warm-up by one step.
    pub(super) fn advance(&mut self, programs: &mut Programs, workspace: &mut Workspace, queue: &mut WorkQueue) {
        for mut warm_up in core::mem::take(&mut self.running) {
            let id = warm_up.id;
            match self.advance_one(&mut warm_up, programs, workspace, queue) {
                Ok(true) => self.shared.update_warm_up(id, |progress| progress.state = WarmUpState::Ready),
                Ok(false) => self.running.push(warm_up),
                Err(error) => self.shared.update_warm_up(id, |progress| progress.state = WarmUpState::Failed(error)),
            }
        }
    }

    /// Advances one warm-up. Returns whether it has ended.
    fn advance_one(
        &self,
        warm_up: &mut WarmUp,
        programs: &mut Programs,
        workspace: &mut Workspace,
        queue: &mut WorkQueue,
    ) -> Result<bool, RunError> {
        let (batch, run) = match &mut warm_up.stage {
            Stage::Submitted(done) => return Ok(done.load(Ordering::Relaxed)),
            Stage::List(entries) => return self.count_ready(warm_up.id, entries),
            Stage::Batch(batch, run) => (batch, run),
        };
        let plan = programs.plan_of(batch, warm_up.priority)?;
        let entries = programs.get(plan).map_or(&[][..], |program| &program.entries);
        if !self.count_ready(warm_up.id, entries)? {
            return Ok(false);
        }
        self.shared.update_warm_up(warm_up.id, |progress| progress.state = WarmUpState::Running);
        if !workspace.admit(programs, &batch.slots, Some(plan))? {
            return Ok(false);
        }
        let fills = workspace.bring_in_for(warm_up.id, &batch.slots)?;
        if !fills.is_empty() {
            queue.push_all_front(fills);
            return Ok(false);
        }
        let missing = || RunError::Device("the plan of a warm-up is missing".to_owned());
        let program = programs.get_mut(plan).ok_or_else(missing)?;
        if !program.is_ready()? {
            return Err(missing());
        }
        // One kernel per frame, because some drivers compile during the submission.
        match self.run_kernel(program, workspace, batch, *run)? {
            Some(done) => warm_up.stage = Stage::Submitted(done),
            None => *run += 1,
        }
        Ok(false)
    }

    /// Updates the progress. Returns whether all pipelines are compiled, or the error of one that failed.
    fn count_ready(&self, id: WarmUpId, entries: &[Arc<PipelineEntry>]) -> Result<bool, RunError> {
        let different: HashSet<u64> = entries.iter().map(|entry| entry.record.id).collect();
        let mut ready = HashSet::new();
        for entry in entries {
            if let Some(result) = entry.get() {
                result?;
                ready.insert(entry.record.id);
            }
        }
        let (done, total) = (ready.len(), different.len());
        self.shared.update_warm_up(id, |progress| (progress.done, progress.total) = (done, total));
        Ok(done == total)
    }

    /// Runs one workgroup of kernel number `run` of the program, on the batch's real operands except for those that the
    /// plan writes. After the last kernel, returns a flag that is set when the device has finished.
    fn run_kernel(
        &self,
        program: &mut Program,
        workspace: &mut Workspace,
        batch: &Batch,
        run: usize,
    ) -> Result<Option<Arc<AtomicBool>>, RunError> {
        let kernels = different_kernels(program);
        let Some(&at) = kernels.get(run) else {
            // The plan has no kernels, only copies.
            return Ok(Some(Arc::new(AtomicBool::new(true))));
        };
        program.allocate(&self.gpu)?;
        let scratch = workspace.scratch(program.plan.scratch_words)?;
        let slots = self.temporary_slots(program, batch)?;
        let scope = ErrorScope::new(&self.gpu.device);
        program.write_params(&self.gpu, &batch.scalars);
        program.bind(&self.gpu, &slots, scratch.as_ref())?;
        self.submit_workgroup(program, at);
        // The temporary buffers are never used again, and neither are their bind groups.
        program.unbind();
        if let Some(error) = scope.pop() {
            return Err(RunError::Device(error.to_string()));
        }
        if run + 1 < kernels.len() {
            return Ok(None);
        }
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        self.gpu.queue.on_submitted_work_done(move || flag.store(true, Ordering::Relaxed));
        Ok(Some(done))
    }

    /// The buffers of the batch's storages, with temporary ones in place of those that the plan writes.
    fn temporary_slots(&self, program: &Program, batch: &Batch) -> Result<Vec<Arc<DeviceBuffer>>, RunError> {
        let missing = || RunError::Device("a storage of a warm-up has no buffer".to_owned());
        let slot = |(slot, storage): (usize, &Arc<Storage>)| match program.plan.written_slots.contains(&(slot as u32)) {
            true => self.gpu.allocate(Purpose::Tensor, storage.words()),
            false => self.gpu.buffer(storage).ok_or_else(missing),
        };
        batch.slots.iter().enumerate().map(slot).collect()
    }

    fn submit_workgroup(&self, program: &Program, at: usize) {
        let label = Some("tensor:warm-up");
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label });
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label, timestamp_writes: None });
        pass.set_pipeline(&program.pipelines[at].pipeline);
        pass.set_bind_group(0, &program.groups()[at], &[]);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        self.gpu.queue.submit([encoder.finish()]);
    }
}

/// The first launch of each different pipeline.
fn different_kernels(program: &Program) -> Vec<usize> {
    let mut seen = HashSet::new();
    (0..program.entries.len()).filter(|&at| seen.insert(program.entries[at].record.id)).collect()
}
