//! Requests about pipelines: compiling ahead, one run of each on memory that nobody sees, tuning, rebuilding. None of it holds up the frame's work.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use bevy::platform::collections::HashSet;

use super::super::buffers::{ErrorScope, Purpose};
use super::super::pipelines::PipelineEntry;
use super::{GpuExecutor, fills};
use crate::error::RunError;
use crate::mailbox::PipelineRequest;
use crate::pipelines::WarmUpState;
use crate::record::{Batch, WarmUpId};

/// A warm-up under way.
pub(super) struct Warming {
    id: WarmUpId,
    priority: i32,
    work: Warm,
}

enum Warm {
    /// A list of kernels.
    List(Vec<Arc<PipelineEntry>>),
    /// Recorded work, and how many of its kernels have been run.
    Batch(Batch, usize),
    /// All of it has been submitted; set when the device is done.
    Flying(Arc<AtomicBool>),
}

impl GpuExecutor {
    /// Takes what the main world asks about pipelines.
    pub(super) fn take_pipeline_requests(&mut self, requests: Vec<PipelineRequest>) {
        for request in requests {
            match request {
                PipelineRequest::Rebuild(id) => self.pipelines.rebuild(id),
                PipelineRequest::Evict => self.pipelines.evict(0),
                PipelineRequest::Save => {
                    if let Some(persistence) = &mut self.persistence {
                        persistence.save();
                    }
                }
                PipelineRequest::WarmUp { id, priority, part } => {
                    self.warming.push(Warming { id, priority, work: Warm::Batch(Batch::new([part]), 0) });
                }
                PipelineRequest::Precompile { id, priority, list } => {
                    let request = |kernel| self.pipelines.request_listed(kernel, priority);
                    let entries = list.iter().map(request).collect();
                    self.warming.push(Warming { id, priority, work: Warm::List(entries) });
                }
                PipelineRequest::Tune { settings, part } => {
                    let batch = Batch::new([part]);
                    let (_, plan) = self.plans.plan(&batch.structure, &batch.scalars);
                    self.tuner.add(&plan.steps, &batch.scalars, settings, &self.caps, &self.shared);
                }
            }
        }
    }

    /// Goes on with the warm-ups of the executor of a lost device.
    pub(super) fn take_over_warm_ups(&mut self, old: &mut Self) {
        for Warming { id, priority, work } in old.warming.drain(..) {
            let work = match work {
                Warm::Batch(batch, _) => Warm::Batch(batch, 0),
                Warm::List(entries) => {
                    let request =
                        |entry: &Arc<PipelineEntry>| self.pipelines.request_listed(&entry.record.kernel, priority);
                    Warm::List(entries.iter().map(request).collect())
                }
                // Its last run will not end any more, and would tell nothing of the new device.
                Warm::Flying(_) => Warm::List(Vec::new()),
            };
            self.warming.push(Warming { id, priority, work });
        }
    }

    /// Goes on with what is warmed up.
    pub(super) fn advance_warm_ups(&mut self) {
        for warming in core::mem::take(&mut self.warming) {
            let id = warming.id;
            match self.advance_warm_up(warming) {
                Ok(None) => self.shared.update_warm_up(id, |progress| progress.state = WarmUpState::Ready),
                Ok(Some(warming)) => self.warming.push(warming),
                Err(error) => self.shared.update_warm_up(id, |progress| progress.state = WarmUpState::Failed(error)),
            }
        }
    }

    /// What is left to do; `None` at the end.
    fn advance_warm_up(&mut self, warming: Warming) -> Result<Option<Warming>, RunError> {
        let Warming { id, priority, work } = warming;
        let again = |work| Ok(Some(Warming { id, priority, work }));
        match work {
            Warm::Flying(done) if done.load(Ordering::Relaxed) => Ok(None),
            Warm::Flying(done) => again(Warm::Flying(done)),
            Warm::List(entries) => match self.count_ready(id, &entries)? {
                true => Ok(None),
                false => again(Warm::List(entries)),
            },
            Warm::Batch(batch, run) => {
                let plan = self.plan_of(&batch, priority)?;
                let entries = self.compiled.get(&plan).map(|compiled| compiled.entries.clone()).unwrap_or_default();
                if !self.count_ready(id, &entries)? {
                    return again(Warm::Batch(batch, run));
                }
                self.shared.update_warm_up(id, |progress| progress.state = WarmUpState::Running);
                if !self.admit(&batch.slots, Some(plan))? {
                    return again(Warm::Batch(batch, run));
                }
                // As they are: the work will not happen, so that nothing of them is overwritten.
                let first = fills(self.residents.bring_in(&self.gpu, &batch.slots, &[])?);
                if !first.is_empty() {
                    first.into_iter().rev().for_each(|work| self.waiting.push_front(work));
                    return again(Warm::Batch(batch, run));
                }
                let (done, last) = self.run_next(plan, &batch, run)?;
                // One in a frame: some drivers compile in the very call that hands them the work.
                again(if last { Warm::Flying(done) } else { Warm::Batch(batch, run + 1) })
            }
        }
    }

    /// Whether all pipelines are there, or the error of one that never will be.
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

    /// One workgroup of one kernel, the one after the `run` that were there before, on the plan's real operands but for those it writes. True once
    /// the device is done; and whether it was the last.
    fn run_next(&mut self, id: u64, batch: &Batch, run: usize) -> Result<(Arc<AtomicBool>, bool), RunError> {
        let done = Arc::new(AtomicBool::new(false));
        let missing = || RunError::Device("a plan that was warmed up is gone".to_owned());
        let compiled = self.compiled.get_mut(&id).ok_or_else(missing)?;
        if !compiled.is_ready()? {
            return Err(missing());
        }
        let mut seen = HashSet::new();
        let first: Vec<usize> =
            (0..compiled.entries.len()).filter(|&at| seen.insert(compiled.entries[at].record.id)).collect();
        let Some(&at) = first.get(run) else {
            // Nothing but copies.
            done.store(true, Ordering::Relaxed);
            return Ok((done, true));
        };
        compiled.allocate(&self.gpu)?;
        let words = compiled.plan.scratch_words;
        if self.scratch.as_ref().map_or(0, |buffer| buffer.bytes) < words as u64 * 4 {
            // The old one goes first, so that both need not fit at once.
            self.scratch = None;
            self.scratch = Some(self.gpu.allocate(Purpose::Scratch, words)?);
        }
        let scratch = self.scratch.as_ref().filter(|_| words > 0);
        let lost = || RunError::Device("a storage has no buffer".to_owned());
        let mut slots = Vec::with_capacity(batch.slots.len());
        for (slot, storage) in batch.slots.iter().enumerate() {
            slots.push(match compiled.plan.written_slots.contains(&(slot as u32)) {
                true => self.gpu.allocate(Purpose::Tensor, storage.words())?,
                false => self.gpu.buffer(storage).ok_or_else(lost)?,
            });
        }
        let scope = ErrorScope::new(&self.gpu.device);
        compiled.write_params(&self.gpu, &batch.scalars);
        compiled.bind(&self.gpu, &slots, scratch)?;
        let label = Some("tensor:warm-up");
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label });
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label, timestamp_writes: None });
        pass.set_pipeline(&compiled.pipelines[at].pipeline);
        pass.set_bind_group(0, &compiled.groups()[at], &[]);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        self.gpu.queue.submit([encoder.finish()]);
        // Its buffers are nobody's.
        compiled.unbind();
        if let Some(error) = scope.pop() {
            return Err(RunError::Device(error.to_string()));
        }
        let flag = done.clone();
        self.gpu.queue.on_submitted_work_done(move || flag.store(true, Ordering::Relaxed));
        Ok((done, run + 1 >= first.len()))
    }
}
