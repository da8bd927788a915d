//! Encodes a batch, submits it, and delivers its results: values, fault counters and timestamps.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::buffers::{DeviceBuffer, Purpose};
use super::device::{ErrorScope, Gpu};
use super::encode::encode;
use super::faults::watch_faults;
use super::flying::Flying;
use super::program::{Program, fault_stride};
use super::readbacks::{Flight, Readbacks};
use super::timing::{Stamps, Timer};
use super::workspace::Workspace;
use crate::error::{ReadError, RunError, TensorFault};
use crate::figures::{Count, TensorDiagnostics};
use crate::ir::{Backend, Layout, Operand, Source};
use crate::memory::HostCopies;
use crate::pipelines::TensorPipelines;
use crate::plan::{Effect, Plan};
use crate::readback::ReadRequest;
use crate::record::Batch;

/// Submits batches. Never waits for the device: results are delivered in later frames.
pub(super) struct Submitter {
    gpu: Gpu,
    timer: Timer,
    readbacks: Readbacks,
    faults: Sender<TensorFault>,
    diagnostics: TensorDiagnostics,
    shared: TensorPipelines,
    /// Number of frames so far.
    frame: u64,
    flying: Flying,
}

/// The buffers that a batch runs on.
struct BatchBuffers {
    /// One per slot of the batch.
    slots: Vec<Arc<DeviceBuffer>>,
    scratch: Option<Arc<DeviceBuffer>>,
}

/// The staging buffers of a batch.
struct Staging {
    /// One per read of the plan, if it is copied.
    values: Vec<Option<Arc<DeviceBuffer>>>,
    faults: Option<Arc<DeviceBuffer>>,
}

/// Copies to the host that are submitted with a batch.
struct Returns {
    values: Vec<Flight>,
    faults: Option<Arc<DeviceBuffer>>,
    timestamps: Option<Stamps>,
}

impl Submitter {
    pub(super) fn new(
        gpu: Gpu,
        diagnostics: TensorDiagnostics,
        shared: TensorPipelines,
        faults: Sender<TensorFault>,
    ) -> Self {
        let timer = Timer::new(&gpu, diagnostics.clone());
        Self {
            gpu,
            timer,
            readbacks: Readbacks::default(),
            faults,
            diagnostics,
            shared,
            frame: 0,
            flying: Flying::default(),
        }
    }

    /// Starts a frame: takes in what has arrived from earlier frames.
    pub(super) fn begin_frame(&mut self) {
        self.readbacks.collect();
        self.flying.collect();
        self.frame += 1;
        self.timer.collect();
    }

    /// Answers the readbacks in flight with [`ReadError::DeviceLost`].
    pub(super) fn fail_readbacks(&mut self) {
        self.readbacks.fail(&self.gpu);
        self.flying = Flying::default();
    }

    /// Runs a batch. Its program must be ready, and its storages must be on the device.
    pub(super) fn submit(
        &mut self,
        program: &mut Program,
        workspace: &mut Workspace,
        batch: &mut Batch,
    ) -> Result<(), RunError> {
        let buffers = self.gather(program, workspace, batch)?;
        self.run(program, &buffers, batch, true)
    }

    /// Runs a batch that generates the content of its storage. The storage counts as unwritten, because the content is
    /// what its generator describes.
    pub(super) fn submit_fill(
        &mut self,
        program: &mut Program,
        workspace: &mut Workspace,
        batch: &mut Batch,
    ) -> Result<(), RunError> {
        let buffers = self.gather(program, workspace, batch)?;
        self.run(program, &buffers, batch, false)
    }

    /// Allocates the buffers that the program still lacks, and collects all of them.
    fn gather(
        &self,
        program: &mut Program,
        workspace: &mut Workspace,
        batch: &Batch,
    ) -> Result<BatchBuffers, RunError> {
        workspace.residents.touch(&batch.slots);
        program.allocate(&self.gpu)?;
        self.diagnostics.set_last_plan(Backend::Gpu, &program.plan.report, &program.plan.nodes);
        let scratch = workspace.scratch(program.plan.scratch_words)?;
        let missing = || RunError::Device("a storage of the batch has no buffer".to_owned());
        let slots = batch.slots.iter().map(|storage| self.gpu.buffer(storage).ok_or_else(missing));
        Ok(BatchBuffers { slots: slots.collect::<Result<_, _>>()?, scratch })
    }

    /// Records on the storages which of them the batch writes. A storage that is overwritten with host data may keep
    /// that data as its host copy.
    fn note_effects(&self, effects: &[Effect], batch: &Batch) {
        let keep = self.gpu.settings().host_copies == HostCopies::Keep;
        for (storage, effect) in batch.slots.iter().zip(effects).filter(|(_, effect)| effect.writes) {
            let words = effect.host.filter(|_| keep).map(|host| batch.host[host as usize].clone());
            storage.wrote(words.filter(|words| words.len() == storage.words()), &self.gpu.counters);
        }
    }

    /// Submits a batch. On an error before the submission, nothing has changed and the batch keeps its requests.
    fn run(
        &mut self,
        program: &mut Program,
        buffers: &BatchBuffers,
        batch: &mut Batch,
        writes: bool,
    ) -> Result<(), RunError> {
        let scope = ErrorScope::new(&self.gpu.device);
        let staging = self.reserve(program, buffers, batch)?;
        program.bind(&self.gpu, &buffers.slots, buffers.scratch.as_ref())?;
        if writes {
            self.note_effects(&program.effects, batch);
        }
        self.upload(&program.plan, buffers, batch);
        program.write_params(&self.gpu, &batch.scalars);
        let label = Some("tensor:batch");
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label });
        let timestamps = self.encode_launches(&mut encoder, program);
        let values = self.copy_values(&mut encoder, &program.plan, buffers, staging.values, batch);
        let faults = staging.faults;
        if let (Some(from), Some(to)) = (program.faults(), &faults) {
            encoder.copy_buffer_to_buffer(&from.buffer, 0, &to.buffer, 0, from.size);
        }
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.counters.submits.add(1);
        self.gpu.counters.batches_run.add(1);
        self.flying.add(&self.gpu, core::mem::take(&mut batch.tickets));
        if let Some(error) = scope.pop() {
            let error = RunError::Device(error.to_string());
            values.into_iter().for_each(|flight| flight.request.fail(ReadError::Failed(error.clone())));
            return Err(error);
        }
        self.deliver(program, batch, Returns { values, faults, timestamps });
        Ok(())
    }

    /// Writes the batch's host data to the device.
    fn upload(&self, plan: &Plan, buffers: &BatchBuffers, batch: &Batch) {
        for upload in &plan.uploads {
            if let Some((buffer, offset)) = buffers.place(plan, &upload.to) {
                self.gpu.write(&buffer.buffer, offset, &batch.host[upload.host as usize]);
            }
        }
    }

    /// Allocates the staging buffers of a batch: one for each read that needs a copy, and one for the fault counters.
    fn reserve(&self, program: &Program, buffers: &BatchBuffers, batch: &Batch) -> Result<Staging, RunError> {
        let mut values = Vec::with_capacity(program.plan.reads.len());
        for read in &program.plan.reads {
            let cancelled = batch.requests.get(read.request as usize).is_none_or(ReadRequest::is_cancelled);
            let words = read.from.dtype.words(read.from.layout.elements());
            let copied = !cancelled && words > 0 && buffers.place(&program.plan, &read.from).is_some();
            values.push(copied.then(|| self.gpu.allocate(Purpose::Staging, words)).transpose()?);
        }
        let faults = program.faults().map(|faults| self.gpu.allocate(Purpose::Staging, faults.size as usize / 4));
        Ok(Staging { values, faults: faults.transpose()? })
    }

    /// Encodes all launches. Returns the timestamps that are taken, if timings are on and there is memory for them.
    fn encode_launches(&mut self, encoder: &mut wgpu::CommandEncoder, program: &Program) -> Option<Stamps> {
        if let Some(faults) = program.faults() {
            encoder.clear_buffer(&faults.buffer, 0, None);
        }
        let launches = program.launches.len();
        if launches == 0 {
            return None;
        }
        let queries = self.timer.queries(&self.gpu, launches);
        let passes = encode(encoder, program, queries);
        let timestamps = queries.and_then(|queries| queries.resolve(&self.gpu, encoder, launches).ok());
        let now = self.shared.now();
        program.entries.iter().for_each(|entry| entry.record.launched(now));
        self.gpu.counters.passes.add(passes);
        self.gpu.counters.dispatches.add(launches as u64);
        timestamps
    }

    /// Encodes the copies of requested values to their staging buffers. Requests for empty tensors are answered at once.
    fn copy_values(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        plan: &Plan,
        buffers: &BatchBuffers,
        staging: Vec<Option<Arc<DeviceBuffer>>>,
        batch: &mut Batch,
    ) -> Vec<Flight> {
        let mut flights = Vec::new();
        let mut requests: Vec<Option<ReadRequest>> =
            core::mem::take(&mut batch.requests).into_iter().map(Some).collect();
        for (read, staging) in plan.reads.iter().zip(staging) {
            let Some(request) = requests[read.request as usize].take() else { continue };
            if request.is_cancelled() {
                continue;
            }
            let words = read.from.dtype.words(read.from.layout.elements());
            match (buffers.place(plan, &read.from), staging) {
                (Some((buffer, offset)), Some(staging)) => {
                    let bytes = words as u64 * 4;
                    encoder.copy_buffer_to_buffer(&buffer.buffer, offset as u64 * 4, &staging.buffer, 0, bytes);
                    flights.push(Flight { staging, request, words });
                }
                _ => request.answer(&[]),
            }
        }
        flights
    }

    /// Delivers the results of a submitted batch when they arrive.
    fn deliver(&mut self, program: &Program, batch: &Batch, returns: Returns) {
        if let Some(staging) = returns.faults {
            watch_faults(staging, fault_stride(&self.gpu), program.watched(), self.faults.clone());
        }
        if let Some(timestamps) = returns.timestamps {
            self.timer.watch(timestamps, self.frame, program, batch);
        }
        for flight in returns.values {
            self.readbacks.fly(&self.gpu, flight);
        }
    }
}

impl BatchBuffers {
    /// The buffer of an operand, and the word at which the operand starts.
    fn place(&self, plan: &Plan, operand: &Operand) -> Option<(&Arc<DeviceBuffer>, usize)> {
        let first = |layout: &Layout| operand.dtype.word_of(layout.offset);
        match operand.source {
            Source::Slot(slot) => Some((&self.slots[slot as usize], first(&operand.layout))),
            Source::Scratch(value) => {
                Some((self.scratch.as_ref()?, plan.regions[value as usize].offset + first(&operand.layout)))
            }
            Source::Constant(_) | Source::Iota | Source::Fused => None,
        }
    }
}
