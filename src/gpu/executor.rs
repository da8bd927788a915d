//! Runs work on the device, in order. Each batch is one compute pass and one submission.
//!
//! The executor never waits. If the pipelines of a batch are still compiling, or if room is being made for its tensors,
//! the batch stays at the front of the queue and is tried again in the next frame.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;

use bevy::platform::time::Instant;
use bevy::prelude::*;

use super::buffers::DeviceBuffer;
use super::compiler::URGENT;
use super::device::{ErrorScope, Gpu};
use super::frame::{Frame, GpuSettings, Outlets};
use super::housekeeping::Housekeeping;
use super::image_copies::ImageCopies;
use super::programs::Programs;
use super::submission::Submitter;
use super::warm_ups::WarmUps;
use super::work::{Outcome, Work, WorkQueue, split_by_direction};
use super::workspace::Workspace;
use crate::error::{ReadError, RunError, StallStage};
use crate::figures::{Count, TensorDiagnostics};
use crate::ir::Backend;
use crate::kernel::Caps;
use crate::mailbox::PipelineRequest;
use crate::memory::{MemoryNews, MemorySettings};
use crate::pipelines::TensorPipelines;
use crate::record::{Batch, WarmUpId};
use crate::support::AdapterFacts;
use crate::tensor::Storage;

/// The GPU backend. Created again for every new device.
#[derive(Resource)]
pub(crate) struct GpuExecutor {
    gpu: Gpu,
    /// Work that has not run yet.
    queue: WorkQueue,
    /// Plans and their compiled programs.
    programs: Programs,
    /// Tensors on the device, and scratch memory.
    workspace: Workspace,
    submitter: Submitter,
    images: ImageCopies,
    warm_ups: WarmUps,
    housekeeping: Housekeeping,
    diagnostics: TensorDiagnostics,
    outlets: Outlets,
    /// Pieces of work that were done in this frame.
    done: u64,
    /// Number of submissions at the end of the last frame.
    submits: u64,
}

impl GpuExecutor {
    pub(crate) fn new(
        gpu: Gpu,
        caps: Caps,
        facts: &AdapterFacts,
        settings: &GpuSettings,
        diagnostics: TensorDiagnostics,
        shared: TensorPipelines,
        outlets: Outlets,
    ) -> Self {
        shared.serve();
        let (faults, news) = (outlets.faults.clone(), outlets.news.clone());
        // Those of an earlier device do not count.
        let submits = gpu.counters.submits.load(Ordering::Relaxed);
        Self {
            queue: WorkQueue::default(),
            programs: Programs::new(gpu.clone(), caps, facts, settings, shared.clone(), diagnostics.debug()),
            workspace: Workspace::new(gpu.clone()),
            submitter: Submitter::new(gpu.clone(), diagnostics.clone(), shared.clone(), faults),
            images: ImageCopies::new(gpu.clone(), settings.synchronous_pipelines, outlets.clone()),
            warm_ups: WarmUps::new(gpu.clone(), shared),
            housekeeping: Housekeeping::new(diagnostics.clone(), news),
            gpu,
            diagnostics,
            outlets,
            done: 0,
            submits,
        }
    }

    /// Runs one frame: queues its input, and does all work that is possible now.
    pub(crate) fn run(&mut self, frame: Frame) {
        let start = Instant::now();
        // Catches the errors that no inner scope catches, such as those of uploads and layouts.
        let scope = ErrorScope::new(&self.gpu.device);
        let settings = frame.settings;
        self.begin_frame(&settings, frame.now);
        self.accept(frame);
        self.work_through_queue();
        self.end_frame(&settings);
        if let Some(error) = scope.pop() {
            self.outlets.report(RunError::Device(error.to_string()));
        }
        self.gpu.counters.batches_waiting_now.put(self.queue.batches() as u64);
        self.show_progress();
        self.gpu.counters.encode_nanos.add(start.elapsed().as_nanos() as u64);
    }

    /// Tells the watchdog how far the work has come.
    fn show_progress(&mut self) {
        let done = core::mem::take(&mut self.done);
        self.diagnostics.progress(StallStage::Queue).advance(done, self.queue.batches() as u64);
        let submits = self.gpu.counters.submits.load(Ordering::Relaxed);
        if core::mem::replace(&mut self.submits, submits) != submits {
            let diagnostics = self.diagnostics.clone();
            let number = diagnostics.progress(StallStage::Device).begin();
            self.gpu.queue.on_submitted_work_done(move || diagnostics.device_answered(number));
        }
    }

    /// Applies settings, and takes in what the device and background tasks have finished since the last frame.
    fn begin_frame(&mut self, settings: &MemorySettings, now: Duration) {
        self.gpu.begin_frame(*settings);
        self.workspace.begin_frame(now);
        self.submitter.begin_frame();
        self.programs.begin_frame(self.diagnostics.debug());
    }

    /// Queues the input of a frame: image copies into tensors, then recordings and memory requests, then image copies
    /// out of tensors.
    fn accept(&mut self, frame: Frame) {
        self.accept_pipeline_requests(frame.pipelines);
        let (into_tensors, into_images) = split_by_direction(frame.images);
        self.queue.add_images(into_tensors);
        self.queue.add_frame(&self.gpu, frame.work);
        self.queue.add_images(into_images);
    }

    fn accept_pipeline_requests(&mut self, requests: Vec<PipelineRequest>) {
        for request in requests {
            match request {
                PipelineRequest::Rebuild(id) => self.programs.rebuild(id),
                PipelineRequest::Evict => self.programs.evict_pipelines(),
                PipelineRequest::Save => self.programs.save(),
                PipelineRequest::WarmUp { id, priority, part } => {
                    self.warm_ups.add_batch(id, priority, Batch::new([part]));
                }
                PipelineRequest::Precompile { id, priority, list } => {
                    let entries = self.programs.precompile(list.iter(), priority);
                    self.warm_ups.add_list(id, priority, entries);
                }
                PipelineRequest::Tune { settings, part } => self.programs.tune(&Batch::new([part]), settings),
            }
        }
    }

    /// Runs the work at the front of the queue until it is empty or the front has to wait.
    fn work_through_queue(&mut self) {
        while let Some(work) = self.queue.pop() {
            match self.proceed(work) {
                Outcome::Done => self.done += 1,
                Outcome::Wait(work) => {
                    self.queue.push_front(work);
                    break;
                }
                Outcome::After(first, work) => {
                    self.queue.push_front(work);
                    self.queue.push_all_front(first);
                }
            }
        }
    }

    /// Continues the background work, and keeps memory within its limits.
    fn end_frame(&mut self, settings: &MemorySettings) {
        self.warm_ups.advance(&mut self.programs, &mut self.workspace, &mut self.queue);
        self.programs.end_frame();
        self.images.end_frame();
        if let Err(error) = self.housekeeping.end_frame(&mut self.workspace, settings) {
            self.outlets.report(error);
        }
    }

    /// Runs one piece of work, as far as possible now.
    fn proceed(&mut self, work: Work) -> Outcome {
        let (programs, workspace) = (&mut self.programs, &mut self.workspace);
        let result = match work {
            Work::Batch(batch) => return self.run_batch(batch),
            Work::Fill(storage, batch, warm_up) => return self.run_fill(storage, batch, warm_up),
            Work::Request(request) => workspace.serve(programs, request),
            Work::Images(jobs) => self.images.copy(programs, workspace, jobs),
        };
        result.unwrap_or_else(|error| {
            self.outlets.report(error);
            Outcome::Done
        })
    }

    /// The buffer of a storage, which is brought to the device first. `None` while that is not possible.
    pub(super) fn resident(&mut self, storage: &Arc<Storage>) -> Result<Option<Arc<DeviceBuffer>>, RunError> {
        let elsewhere = storage.decided_home() == Some(Backend::Cpu) || !storage.has_moved(storage.moves());
        if elsewhere || self.gpu.buffer(storage).is_some() {
            return Ok(self.gpu.buffer(storage).filter(|_| !elsewhere));
        }
        let scope = ErrorScope::new(&self.gpu.device);
        let slots = core::slice::from_ref(storage);
        if !self.workspace.admit(&mut self.programs, slots, None)? {
            return Ok(None);
        }
        let fills = self.workspace.bring_in(slots, &[])?;
        self.queue.push_all_front(fills);
        match scope.pop() {
            None => Ok(self.gpu.buffer(storage)),
            Some(error) => Err(RunError::Device(error.to_string())),
        }
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    fn run_batch(&mut self, mut batch: Batch) -> Outcome {
        if !batch.has_content() {
            // Content is still in flight from the CPU.
            return Outcome::Wait(Work::Batch(batch));
        }
        let result = match self.make_ready(&batch) {
            Ok(None) => return Outcome::Wait(Work::Batch(batch)),
            Ok(Some((_, fills))) if !fills.is_empty() => return Outcome::After(fills, Work::Batch(batch)),
            Ok(Some((id, _))) => self.submit(id, &mut batch),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            self.fail(batch, error);
        }
        Outcome::Done
    }

    fn run_fill(&mut self, storage: Arc<Storage>, mut batch: Batch, warm_up: Option<WarmUpId>) -> Outcome {
        if storage.device(self.gpu.generation).is_none() {
            // The storage was evicted again. The next work that needs it brings it back.
            return Outcome::Done;
        }
        let needed = self.queue.needed_next(&storage);
        let result = match self.prepare(&batch, &needed) {
            Ok(None) => return Outcome::Wait(Work::Fill(storage, batch, warm_up)),
            Ok(Some(id)) => self.submit_fill(id, &mut batch),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            self.fail_fill(&storage, warm_up, error);
        }
        Outcome::Done
    }

    /// Prepares a batch and brings its tensors to the device. Returns the id of its plan and the fills that have to run
    /// first, or `None` while it has to wait.
    fn make_ready(&mut self, batch: &Batch) -> Result<Option<(u64, Vec<Work>)>, RunError> {
        let Some(id) = self.prepare(batch, &batch.slots)? else { return Ok(None) };
        let effects = self.programs.get(id).map_or(&[][..], |program| &program.effects);
        Ok(Some((id, self.workspace.bring_in(&batch.slots, effects)?)))
    }

    /// Returns the id of the batch's plan once its pipelines are compiled and there is room for `slots` and the
    /// program. `None` until then.
    fn prepare(&mut self, batch: &Batch, slots: &[Arc<Storage>]) -> Result<Option<u64>, RunError> {
        let id = self.programs.plan_of(batch, URGENT)?;
        if !self.programs.is_ready(id)? {
            return Ok(None);
        }
        Ok(self.workspace.admit(&mut self.programs, slots, Some(id))?.then_some(id))
    }

    fn submit(&mut self, id: u64, batch: &mut Batch) -> Result<(), RunError> {
        let Some(program) = self.programs.get_mut(id) else { return Ok(()) };
        self.submitter.submit(program, &mut self.workspace, batch)
    }

    fn submit_fill(&mut self, id: u64, batch: &mut Batch) -> Result<(), RunError> {
        let Some(program) = self.programs.get_mut(id) else { return Ok(()) };
        self.submitter.submit_fill(program, &mut self.workspace, batch)
    }

    /// Answers a batch's readbacks with an error, and reports it.
    fn fail(&mut self, batch: Batch, error: RunError) {
        for request in batch.requests {
            request.fail(ReadError::Failed(error.clone()));
        }
        self.outlets.report(error);
    }

    /// The content of a storage could not be generated. The work or the warm-up that needs it fails as well. Later work
    /// may try again.
    fn fail_fill(&mut self, storage: &Storage, warm_up: Option<WarmUpId>, error: RunError) {
        storage.abandon();
        if let Some(id) = warm_up {
            return self.warm_ups.fail(id, error);
        }
        match self.queue.remove_filled() {
            Some(batch) => self.fail(batch, error),
            None => self.outlets.report(error),
        }
    }

    /// Continues the work of the executor of a lost device. Tensors return with their next use; those whose content was
    /// lost are reported.
    pub(crate) fn take_over(&mut self, old: &mut Self) {
        let lost = old.lose_device();
        if !lost.is_empty() {
            // Fails only when the main world is gone.
            let _ = self.outlets.news.send(MemoryNews::Lost(lost));
        }
        self.warm_ups.take_over(&mut old.warm_ups, &mut self.programs);
        self.queue.take_over(&mut old.queue);
    }

    /// Gives up the device. Returns the storages whose content was lost with it, and the batches that have not run.
    pub(crate) fn surrender(&mut self) -> (Vec<u64>, Vec<Batch>) {
        let batches = self.queue.drain_batches().collect();
        (self.lose_device(), batches)
    }

    /// Answers the readbacks in flight, and returns the storages whose content was lost with the device.
    fn lose_device(&mut self) -> Vec<u64> {
        self.submitter.fail_readbacks();
        // Nothing will finish on that device.
        self.diagnostics.progress(StallStage::Device).end_all();
        self.workspace.lose_device()
    }
}

impl Drop for GpuExecutor {
    fn drop(&mut self) {
        self.submitter.fail_readbacks();
        self.queue.fail();
    }
}
