//! Runs batches on the device, in order, each in one pass and one submission. Never waits: a batch whose pipelines are still compiling
//! stays in the queue, and so do those behind it.

use std::collections::VecDeque;
use std::sync::Arc;

use bevy::platform::collections::HashMap;
use bevy::platform::time::Instant;
use bevy::prelude::*;
use crossbeam_channel::Sender;

use super::buffers::{DeviceBuffer, ErrorScope, Gpu, Purpose};
use super::compiled::{Compiled, fault_stride};
use super::pipelines::Pipelines;
use super::staging::Staging;
use crate::diagnostics::{Count, TensorDiagnostics};
use crate::error::{ReadError, RunError};
use crate::fault::TensorFault;
use crate::kernel::Caps;
use crate::plan::{Batch, Operand, Plan, PlanCache, PlanLimits, Source};
use crate::readback::ReadRequest;
use crate::record::Part;
use crate::support::Backend;
use crate::tensor::{Initial, Layout, Storage};

/// Everything the GPU backend keeps; made anew for every device.
#[derive(Resource)]
pub(crate) struct GpuExecutor {
    gpu: Gpu,
    caps: Caps,
    plans: PlanCache,
    /// By the plan's number.
    compiled: HashMap<u64, Compiled>,
    pipelines: Pipelines,
    scratch: Option<Arc<DeviceBuffer>>,
    staging: Staging,
    waiting: VecDeque<Batch>,
    diagnostics: TensorDiagnostics,
    faults: Sender<TensorFault>,
}

/// Settings of the GPU backend that come from the plugin.
#[derive(Resource, Clone, Copy)]
pub(crate) struct GpuSettings {
    pub synchronous_pipelines: bool,
    pub idle_staging_bytes: u64,
    pub fuse: bool,
}

/// A readback on its way.
struct Flight {
    staging: Arc<DeviceBuffer>,
    request: ReadRequest,
    words: usize,
}

impl GpuExecutor {
    pub(crate) fn new(
        gpu: Gpu,
        caps: Caps,
        settings: GpuSettings,
        diagnostics: TensorDiagnostics,
        faults: Sender<TensorFault>,
    ) -> Self {
        let limits = PlanLimits {
            buffers: gpu.limits.max_storage_buffers_per_shader_stage.clamp(4, 16) as usize,
            alignment: (gpu.limits.min_storage_buffer_offset_alignment as usize / 4).max(4),
            fuse: settings.fuse,
        };
        Self {
            pipelines: Pipelines::new(gpu.clone(), settings.synchronous_pipelines),
            staging: Staging::new(settings.idle_staging_bytes),
            plans: PlanCache::new(limits),
            compiled: HashMap::default(),
            scratch: None,
            waiting: VecDeque::new(),
            gpu,
            caps,
            diagnostics,
            faults,
        }
    }

    /// Takes a frame's recordings and runs all that can run.
    pub(crate) fn run(&mut self, parts: Vec<Part>) {
        let start = Instant::now();
        // Around everything, the uploads and layouts that no narrower scope watches included.
        let scope = ErrorScope::new(&self.gpu.device);
        self.accept(Batch::new(parts));
        self.pipelines.collect();
        self.staging.collect();
        while let Some(batch) = self.waiting.pop_front() {
            match self.prepare(&batch) {
                Ok(Some(id)) => self.execute(id, batch),
                Ok(None) => {
                    self.waiting.push_front(batch);
                    break;
                }
                Err(error) => self.fail(batch, error),
            }
        }
        if let Some(error) = scope.pop() {
            // The main world may have ended.
            let _ = self.faults.send(TensorFault::Run(RunError::Device(error.to_string())));
        }
        self.gpu.counters.batches_waiting_now.put(self.waiting.len() as u64);
        self.gpu.counters.encode_nanos.add(start.elapsed().as_nanos() as u64);
    }

    /// Queues a batch behind what makes its new storages.
    fn accept(&mut self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        for storage in batch.slots.clone() {
            if let Err(error) = self.make_resident(&storage) {
                self.fail(batch, error);
                return;
            }
        }
        self.waiting.push_back(batch);
    }

    /// Gives a storage its buffer and content. What it starts as is kept until that has worked, so a failure loses nothing.
    fn make_resident(&mut self, storage: &Arc<Storage>) -> Result<(), RunError> {
        if storage.device().is_some() {
            return Ok(());
        }
        let buffer = self.gpu.allocate(Purpose::Tensor, storage.words())?;
        match storage.take_initial() {
            Some(Initial::Data(words)) => self.gpu.write(&buffer.buffer, 0, &words),
            Some(Initial::Generated(generator)) if storage.elements() > 0 => {
                self.waiting.push_back(Batch::new([generator.recording(storage)]));
            }
            // Buffers start zeroed.
            _ => {}
        }
        storage.set_device(buffer);
        Ok(())
    }

    /// The number of a batch's plan once all its pipelines are there; `None` while some compile.
    fn prepare(&mut self, batch: &Batch) -> Result<Option<u64>, RunError> {
        let (built, hits) = (self.plans.built, self.plans.hits);
        let (id, plan) = self.plans.plan(batch);
        self.gpu.counters.plans_built.add(self.plans.built - built);
        self.gpu.counters.plan_hits.add(self.plans.hits - hits);
        if !self.compiled.contains_key(&id) {
            for dropped in self.plans.take_dropped() {
                self.compiled.remove(&dropped);
            }
            let compiled = Compiled::new(plan, &self.gpu, &self.caps)?;
            for launch in &compiled.launches {
                self.pipelines.request(launch);
            }
            self.compiled.insert(id, compiled);
        }
        match self.compiled.get_mut(&id) {
            Some(compiled) => Ok(compiled.is_ready(&self.pipelines)?.then_some(id)),
            None => Ok(None),
        }
    }

    /// Runs a batch whose pipelines are ready.
    fn execute(&mut self, id: u64, mut batch: Batch) {
        let result = self.submit(id, &mut batch);
        match result {
            Ok(flights) => flights.into_iter().for_each(|flight| self.fly(flight)),
            Err(error) => self.fail(batch, error),
        }
    }

    fn submit(&mut self, id: u64, batch: &mut Batch) -> Result<Vec<Flight>, RunError> {
        let Some(compiled) = self.compiled.get_mut(&id) else { return Ok(Vec::new()) };
        let plan = compiled.plan.clone();
        self.diagnostics.set_last_plan(Backend::Gpu, &plan);
        let scratch_words = self.scratch.as_ref().map_or(0, |buffer| buffer.bytes as usize / 4);
        if plan.scratch_words > scratch_words {
            // The old one goes first, so that both need not fit at once.
            self.scratch = None;
            self.scratch = Some(self.gpu.allocate(Purpose::Scratch, plan.scratch_words)?);
        }
        let lost = || RunError::Device("a storage has no buffer".to_owned());
        let slots = batch
            .slots
            .iter()
            .map(|storage| storage.device().ok_or_else(lost))
            .collect::<Result<Vec<Arc<DeviceBuffer>>, RunError>>()?;
        let scope = ErrorScope::new(&self.gpu.device);
        for upload in &plan.uploads {
            if let Some((buffer, offset)) = place(&plan, &upload.to, &slots, self.scratch.as_ref()) {
                self.gpu.write(&buffer.buffer, offset, &batch.host[upload.host as usize]);
            }
        }
        compiled.write_params(&self.gpu, &batch.scalars);
        let scratch = self.scratch.as_ref().filter(|_| plan.scratch_words > 0);
        compiled.bind(&self.gpu, &slots, scratch)?;
        let label = Some("tensor:batch");
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label });
        if let Some(faults) = &compiled.faults {
            encoder.clear_buffer(&faults.buffer, 0, None);
        }
        if !compiled.launches.is_empty() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label, timestamp_writes: None });
            let launches = compiled.launches.iter().zip(&compiled.pipelines).zip(compiled.groups());
            for ((launch, pipeline), group) in launches {
                pass.set_pipeline(&pipeline.pipeline);
                pass.set_bind_group(0, group, &[]);
                let [x, y, z] = launch.workgroups;
                pass.dispatch_workgroups(x, y, z);
            }
            drop(pass);
            self.gpu.counters.passes.add(1);
            self.gpu.counters.dispatches.add(compiled.launches.len() as u64);
        }
        let mut flights = Vec::new();
        let mut requests: Vec<Option<ReadRequest>> =
            core::mem::take(&mut batch.requests).into_iter().map(Some).collect();
        for read in &plan.reads {
            let Some(request) = requests[read.request as usize].take() else { continue };
            if request.is_cancelled() {
                continue;
            }
            let words = read.from.dtype.words(read.from.layout.elements());
            match place(&plan, &read.from, &slots, self.scratch.as_ref()) {
                Some((buffer, offset)) if words > 0 => {
                    let staging = self.staging.take(&self.gpu, words)?;
                    let bytes = words as u64 * 4;
                    encoder.copy_buffer_to_buffer(&buffer.buffer, offset as u64 * 4, &staging.buffer, 0, bytes);
                    flights.push(Flight { staging, request, words });
                }
                _ => request.answer(&[]),
            }
        }
        let faults = match &compiled.faults {
            Some(faults) => {
                let words = faults.bytes as usize / 4;
                let staging = self.staging.take(&self.gpu, words)?;
                encoder.copy_buffer_to_buffer(&faults.buffer, 0, &staging.buffer, 0, faults.bytes);
                Some(staging)
            }
            None => None,
        };
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.counters.submits.add(1);
        self.gpu.counters.batches_run.add(1);
        if let Some(error) = scope.pop() {
            let error = RunError::Device(error.to_string());
            for flight in flights {
                flight.request.fail(ReadError::Failed(error.clone()));
            }
            return Err(error);
        }
        if let Some(staging) = faults {
            let stride = fault_stride(&self.gpu);
            let ops: Vec<&'static str> =
                compiled.faulting.iter().map(|&launch| plan.report.steps[compiled.steps[launch]].op).collect();
            self.watch_faults(staging, stride, ops);
        }
        Ok(flights)
    }

    /// Answers a request when its staging buffer can be read.
    fn fly(&self, Flight { staging, request, words }: Flight) {
        let counters = self.gpu.counters.clone();
        counters.readbacks.add(1);
        counters.readbacks_now.add(1);
        let back = self.staging.back();
        let buffer = staging.buffer.clone();
        buffer.slice(..words as u64 * 4).map_async(wgpu::MapMode::Read, move |result| {
            counters.readbacks_now.sub(1);
            match result {
                Ok(()) => {
                    let view = staging.buffer.slice(..words as u64 * 4).get_mapped_range();
                    request.answer(bytemuck::cast_slice(&view));
                    drop(view);
                    staging.buffer.unmap();
                    // The executor may be gone; then the buffer goes too.
                    let _ = back.send(staging);
                }
                Err(_) => request.fail(ReadError::DeviceLost),
            }
        });
    }

    /// Reports positions that kernels found out of range, when the counters have arrived.
    fn watch_faults(&self, staging: Arc<DeviceBuffer>, stride: usize, ops: Vec<&'static str>) {
        let (back, faults) = (self.staging.back(), self.faults.clone());
        let bytes = (stride * ops.len()) as u64 * 4;
        let buffer = staging.buffer.clone();
        buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| {
            if result.is_err() {
                return;
            }
            let view = staging.buffer.slice(..bytes).get_mapped_range();
            let words: &[u32] = bytemuck::cast_slice(&view);
            for (op, &count) in ops.into_iter().zip(words.iter().step_by(stride)) {
                if count > 0 {
                    let _ = faults.send(TensorFault::Run(RunError::IndexOutOfRange { op, count }));
                }
            }
            drop(view);
            staging.buffer.unmap();
            let _ = back.send(staging);
        });
    }

    /// Answers a batch's requests with an error and reports it.
    fn fail(&mut self, batch: Batch, error: RunError) {
        for request in batch.requests {
            request.fail(ReadError::Failed(error.clone()));
        }
        // The main world may have ended.
        let _ = self.faults.send(TensorFault::Run(error));
    }
}

impl Drop for GpuExecutor {
    fn drop(&mut self) {
        for request in self.waiting.drain(..).flat_map(|batch| batch.requests) {
            request.fail(ReadError::DeviceLost);
        }
    }
}

/// The buffer of an operand, and the word it starts at.
fn place<'a>(
    plan: &Plan,
    operand: &Operand,
    slots: &'a [Arc<DeviceBuffer>],
    scratch: Option<&'a Arc<DeviceBuffer>>,
) -> Option<(&'a Arc<DeviceBuffer>, usize)> {
    let first = |layout: &Layout| operand.dtype.word_of(layout.offset);
    match operand.source {
        Source::Slot(slot) => Some((&slots[slot as usize], first(&operand.layout))),
        Source::Scratch(value) => Some((scratch?, plan.regions[value as usize].offset + first(&operand.layout))),
        Source::Constant(_) | Source::Iota | Source::Fused => None,
    }
}
