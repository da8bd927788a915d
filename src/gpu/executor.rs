//! Runs work on the device, in order, each batch in one pass and one submission. Never waits: work whose pipelines are still compiling, or for which
//! room is still being made, stays in the queue, and so does all behind it.

mod images;
mod room;
mod warm;

use core::time::Duration;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use bevy::platform::collections::HashMap;
use bevy::platform::time::Instant;
use bevy::prelude::*;
use crossbeam_channel::Sender;

use self::images::ImageKernels;
use self::warm::Warming;
use super::buffers::{DeviceBuffer, ErrorScope, Gpu, Purpose};
use super::compiled::{Compiled, fault_stride};
use super::encode::encode;
use super::faults::watch_faults;
use super::persist::Persistence;
use super::pipelines::{Pipelines, URGENT};
use super::readbacks::{Flight, Readbacks};
use super::residency::Residents;
use super::timing::Timer;
use super::tuner::Tuner;
use crate::error::{ReadError, RunError, TensorFault};
use crate::figures::{Count, TensorDiagnostics};
use crate::ir::{Backend, Layout, Operand, Source};
use crate::kernel::Caps;
use crate::mailbox::{CopyWay, MemoryRequest, PipelineRequest};
use crate::memory::{Gauge, HostCopies, MemoryNews, MemorySettings};
use crate::pipelines::TensorPipelines;
use crate::plan::{Effect, Plan, PlanCache, PlanLimits};
use crate::readback::ReadRequest;
use crate::record::{Batch, Part, TuneSettings, generate};
use crate::support::AdapterFacts;
use crate::tensor::{Generator, Storage};

pub(crate) use self::images::ImageJob;

/// Everything the GPU backend keeps; made anew for every device.
#[derive(Resource)]
pub(crate) struct GpuExecutor {
    gpu: Gpu,
    caps: Caps,
    plans: PlanCache,
    /// By the plan's number.
    compiled: HashMap<u64, Compiled>,
    pipelines: Pipelines,
    shared: TensorPipelines,
    persistence: Option<Persistence>,
    warming: Vec<Warming>,
    tuner: Tuner,
    /// How kernels of new plans are tuned, if they are.
    tune: Option<TuneSettings>,
    timer: Timer,
    /// Counts frames.
    frame: u64,
    /// Whether debug mode is on: launches have debug groups, and numbers that are not finite are traced.
    debug: bool,
    scratch: Option<Arc<DeviceBuffer>>,
    residents: Residents,
    images: ImageKernels,
    /// Whether pipelines are compiled on the spot.
    synchronous: bool,
    waiting: VecDeque<Work>,
    readbacks: Readbacks,
    gauge: Gauge,
    diagnostics: TensorDiagnostics,
    outlets: Outlets,
}

/// Where the executor reports to.
#[derive(Clone)]
pub(crate) struct Outlets {
    pub faults: Sender<TensorFault>,
    pub news: Sender<MemoryNews>,
}

/// Settings of the GPU backend that come from the plugin.
#[derive(Resource, Clone)]
pub(crate) struct GpuSettings {
    pub synchronous_pipelines: bool,
    pub fuse: bool,
    /// Pipelines kept.
    pub capacity: usize,
    /// The folder of the cache file.
    pub cache: Option<PathBuf>,
    pub tune: Option<TuneSettings>,
    pub cpu_fallback: Option<Duration>,
    /// The app's memory settings at the start.
    pub memory: MemorySettings,
}

/// What one frame brings to the device.
#[derive(Default)]
pub(crate) struct Frame {
    pub parts: Vec<Part>,
    pub requests: Vec<MemoryRequest>,
    pub images: Vec<ImageJob>,
    pub pipelines: Vec<PipelineRequest>,
    pub settings: MemorySettings,
    /// Real time.
    pub now: Duration,
}

impl Frame {
    /// All of it, leaving what is not work.
    pub(crate) fn take(&mut self) -> Self {
        let (settings, now) = (self.settings, self.now);
        core::mem::replace(self, Self { settings, now, ..Self::default() })
    }
}

/// What is done in order.
#[derive(Debug)]
pub(crate) enum Work {
    Batch(Batch),
    /// Makes the content of a storage that the batch behind it needs.
    Fill(Arc<Storage>, Batch),
    Request(MemoryRequest),
    /// Copies of one kind between images and tensors.
    Images(Vec<ImageJob>),
}

/// What became of a piece of work.
enum Outcome {
    Done,
    /// It has to be tried again with a later frame.
    Wait(Work),
    /// It has to be tried again after these.
    After(Vec<Work>, Work),
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
        let (persistence, known) = match &settings.cache {
            Some(folder) => {
                let (persistence, known) = Persistence::open(folder, &gpu, facts, &shared);
                (Some(persistence), known)
            }
            None => Default::default(),
        };
        let driver = persistence.as_ref().and_then(Persistence::driver);
        let limits = PlanLimits {
            buffers: gpu.limits.max_storage_buffers_per_shader_stage.clamp(4, 16) as usize,
            alignment: gpu.binding_alignment(),
            binding: gpu.binding_words(),
            fuse: settings.fuse,
        };
        Self {
            pipelines: Pipelines::new(
                gpu.clone(),
                settings.synchronous_pipelines,
                settings.capacity,
                shared.clone(),
                driver,
                known,
            ),
            shared,
            persistence,
            warming: Vec::new(),
            tuner: Tuner::new(&gpu),
            tune: settings.tune,
            timer: Timer::new(&gpu, diagnostics.clone()),
            frame: 0,
            debug: diagnostics.debug(),
            plans: PlanCache::new(limits),
            compiled: HashMap::default(),
            scratch: None,
            residents: Residents::default(),
            images: ImageKernels::default(),
            synchronous: settings.synchronous_pipelines,
            waiting: VecDeque::new(),
            readbacks: Readbacks::default(),
            gauge: Gauge::default(),
            gpu,
            caps,
            diagnostics,
            outlets,
        }
    }

    /// Goes on where the executor of a lost device had to stop: work that had not begun is done here, tensors come back with their next use, and
    /// those of which nothing is left are reported.
    pub(crate) fn take_over(&mut self, old: &mut Self) {
        let lost = old.lose_device();
        if !lost.is_empty() {
            // The main world may have ended.
            let _ = self.outlets.news.send(MemoryNews::Lost(lost));
        }
        self.take_over_warm_ups(old);
        // What was to be made is made again when it is asked for; textures went with the device.
        self.waiting.extend(old.waiting.drain(..).filter(|work| !matches!(work, Work::Fill(..) | Work::Images(_))));
    }

    /// Gives everything up: the storages that were lost with the device, and the batches that have not been run.
    pub(crate) fn surrender(&mut self) -> (Vec<u64>, Vec<Batch>) {
        let batches = self.waiting.drain(..).filter_map(|work| match work {
            Work::Batch(batch) => Some(batch),
            _ => None,
        });
        let batches = batches.collect();
        (self.lose_device(), batches)
    }

    /// Answers what the device will not answer any more, and says which storages went with it.
    fn lose_device(&mut self) -> Vec<u64> {
        self.readbacks.fail(&self.gpu);
        core::mem::take(&mut self.residents)
            .into_storages(&self.gpu)
            .filter_map(|storage| storage.lose_device().then(|| storage.id()))
            .collect()
    }

    /// Takes a frame's recordings, requests and copies and does all that can be done.
    pub(crate) fn run(&mut self, frame: Frame) {
        let start = Instant::now();
        // Around everything, the uploads and layouts that no narrower scope watches included.
        let scope = ErrorScope::new(&self.gpu.device);
        self.gpu.begin_frame(frame.settings);
        self.residents.now = frame.now;
        self.residents.land(&self.gpu);
        self.readbacks.collect();
        self.frame += 1;
        self.timer.collect();
        for wgsl in self.pipelines.collect() {
            self.compiled.retain(|_, compiled| !compiled.uses(&wgsl));
        }
        if self.diagnostics.debug() != self.debug {
            // Plans are lowered again, with looks at their operands or without.
            self.debug = !self.debug;
            self.compiled.clear();
        }
        self.take_pipeline_requests(frame.pipelines);
        let (into_tensors, into_images): (Vec<_>, Vec<_>) =
            frame.images.into_iter().partition(|job| job.copy.way == CopyWay::IntoTensor);
        let copies = |jobs: Vec<ImageJob>| (!jobs.is_empty()).then_some(Work::Images(jobs));
        self.waiting.extend(copies(into_tensors));
        self.accept(frame.parts);
        self.waiting.extend(copies(into_images));
        self.waiting.extend(frame.requests.into_iter().map(Work::Request));
        while let Some(work) = self.waiting.pop_front() {
            match self.proceed(work) {
                Outcome::Done => {}
                Outcome::Wait(work) => {
                    self.waiting.push_front(work);
                    break;
                }
                Outcome::After(first, work) => {
                    self.waiting.push_front(work);
                    first.into_iter().rev().for_each(|work| self.waiting.push_front(work));
                }
            }
        }
        self.advance_warm_ups();
        if self.tuner.advance(&self.gpu, &mut self.pipelines, &self.caps, &self.shared) {
            // Plans are lowered again, with the forms that are faster.
            self.compiled.clear();
        }
        if let Some(persistence) = &mut self.persistence {
            persistence.tick();
        }
        self.images.end_frame(self.frame);
        self.keep_house(&frame.settings);
        if let Some(error) = scope.pop() {
            self.report(RunError::Device(error.to_string()));
        }
        let batches = self.waiting.iter().filter(|work| !matches!(work, Work::Request(_)));
        self.gpu.counters.batches_waiting_now.put(batches.count() as u64);
        self.gpu.counters.encode_nanos.add(start.elapsed().as_nanos() as u64);
    }

    /// Queues a frame's recordings: as one batch, or one by one where a budget has no room for all of them at once.
    fn accept(&mut self, parts: Vec<Part>) {
        let together = match self.gpu.settings().budget {
            Some(budget) if parts.len() > 1 => {
                let mut slots: Vec<&Arc<Storage>> = parts.iter().flat_map(|part| &part.slots).collect();
                slots.sort_unstable_by_key(|storage| storage.id());
                slots.dedup_by_key(|storage| storage.id());
                slots.iter().map(|storage| self.gpu.bytes(Purpose::of(storage), storage.words())).sum::<u64>() <= budget
            }
            _ => true,
        };
        let batches = match together {
            true => vec![Batch::new(parts)],
            false => parts.into_iter().map(|part| Batch::new([part])).collect(),
        };
        self.waiting.extend(batches.into_iter().filter(|batch| !batch.is_empty()).map(Work::Batch));
    }

    /// Does one piece of work, as far as it can be done now.
    fn proceed(&mut self, work: Work) -> Outcome {
        match work {
            Work::Request(request) => self.serve(request),
            Work::Images(jobs) => self.copy_images(jobs),
            // It has left again: whoever needs it brings it back.
            Work::Fill(storage, _) if storage.device(self.gpu.generation).is_none() => Outcome::Done,
            Work::Fill(storage, batch) => match self.prepare(&batch, &self.needed_next(&storage)) {
                Ok(Some(id)) => match self.submit(id, &mut { batch }, true) {
                    Ok(_) => Outcome::Done,
                    Err(error) => self.fail_fill(&storage, error),
                },
                Ok(None) => Outcome::Wait(Work::Fill(storage, batch)),
                Err(error) => self.fail_fill(&storage, error),
            },
            Work::Batch(batch) => match self.prepare(&batch, &batch.slots).and_then(|id| match id {
                Some(id) => Ok(Some((id, self.bring_in(&batch.slots, id)?))),
                None => Ok(None),
            }) {
                Ok(Some((id, fills))) if fills.is_empty() => {
                    self.execute(id, batch);
                    Outcome::Done
                }
                Ok(Some((_, fills))) => Outcome::After(fills, Work::Batch(batch)),
                Ok(None) => Outcome::Wait(Work::Batch(batch)),
                Err(error) => {
                    self.fail(batch, error);
                    Outcome::Done
                }
            },
        }
    }

    /// The storages that a fill is made for, which must not make room for it: they would only come back and send this one away.
    fn needed_next(&self, storage: &Arc<Storage>) -> Vec<Arc<Storage>> {
        let next = self.waiting.iter().find_map(|work| match work {
            Work::Batch(batch) => Some(batch.slots.clone()),
            _ => None,
        });
        next.filter(|slots| slots.iter().any(|slot| slot.id() == storage.id())).unwrap_or_else(|| vec![storage.clone()])
    }

    /// The number of a batch's plan once all its pipelines are there and there is room for `slots` beside it; `None` until then.
    fn prepare(&mut self, batch: &Batch, slots: &[Arc<Storage>]) -> Result<Option<u64>, RunError> {
        let id = self.plan_of(batch, URGENT)?;
        let Some(compiled) = self.compiled.get_mut(&id) else { return Ok(None) };
        if !compiled.is_ready()? {
            return Ok(None);
        }
        Ok(self.admit(slots, Some(id))?.then_some(id))
    }

    /// The number of a batch's plan, whose pipelines are asked for.
    fn plan_of(&mut self, batch: &Batch, priority: i32) -> Result<u64, RunError> {
        let (built, hits) = (self.plans.built, self.plans.hits);
        let (id, plan) = self.plans.plan(&batch.structure, &batch.scalars);
        self.gpu.counters.plans_built.add(self.plans.built - built);
        self.gpu.counters.plan_hits.add(self.plans.hits - hits);
        if !self.compiled.contains_key(&id) {
            for dropped in self.plans.take_dropped() {
                self.compiled.remove(&dropped);
            }
            let elements: Vec<usize> = batch.slots.iter().map(|storage| storage.elements()).collect();
            if let Some(settings) = self.tune {
                self.tuner.add(&plan.steps, &batch.scalars, settings, &self.caps, &self.shared);
            }
            let table = self.shared.tuning();
            let compiled = Compiled::new(plan, &elements, &self.gpu, &self.caps, &table, self.debug)?;
            self.compiled.insert(id, compiled);
        }
        if let Some(compiled) = self.compiled.get_mut(&id) {
            compiled.request(&mut self.pipelines, priority);
        }
        Ok(id)
    }

    /// Runs a batch whose pipelines and storages are ready.
    fn execute(&mut self, id: u64, mut batch: Batch) {
        let result = self.submit(id, &mut batch, false);
        match result {
            Ok(flights) => flights.into_iter().for_each(|flight| self.readbacks.fly(&self.gpu, flight)),
            Err(error) => self.fail(batch, error),
        }
    }

    /// Encodes and submits a batch. A fill only makes what is known of its storage true.
    fn submit(&mut self, id: u64, batch: &mut Batch, fill: bool) -> Result<Vec<Flight>, RunError> {
        self.residents.touch(&batch.slots);
        let Some(compiled) = self.compiled.get_mut(&id) else { return Ok(Vec::new()) };
        compiled.allocate(&self.gpu)?;
        let plan = compiled.plan.clone();
        self.diagnostics.set_last_plan(Backend::Gpu, &plan.report);
        let scratch_bytes = self.scratch.as_ref().map_or(0, |buffer| buffer.bytes);
        if plan.scratch_words as u64 * 4 > scratch_bytes {
            // The old one goes first, so that both need not fit at once.
            self.scratch = None;
            self.scratch = Some(self.gpu.allocate(Purpose::Scratch, plan.scratch_words)?);
        }
        let lost = || RunError::Device("a storage has no buffer".to_owned());
        let slots = batch
            .slots
            .iter()
            .map(|storage| self.gpu.buffer(storage).ok_or_else(lost))
            .collect::<Result<Vec<Arc<DeviceBuffer>>, RunError>>()?;
        if !fill {
            note_effects(&self.gpu, &compiled.effects, batch);
        }
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
        if let Some(faults) = compiled.faults() {
            encoder.clear_buffer(&faults.buffer, 0, None);
        }
        let (launches, mut stamps) = (compiled.launches.len(), None);
        if launches > 0 {
            let queries = self.timer.queries(&self.gpu, launches);
            let passes = encode(&mut encoder, compiled, queries, self.debug);
            stamps = queries.map(|queries| queries.resolve(&self.gpu, &mut encoder, launches)).transpose()?;
            let now = self.shared.now();
            compiled.entries.iter().for_each(|entry| entry.record.launched(now));
            self.gpu.counters.passes.add(passes);
            self.gpu.counters.dispatches.add(launches as u64);
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
                    let staging = self.gpu.allocate(Purpose::Staging, words)?;
                    let bytes = words as u64 * 4;
                    encoder.copy_buffer_to_buffer(&buffer.buffer, offset as u64 * 4, &staging.buffer, 0, bytes);
                    flights.push(Flight { staging, request, words });
                }
                _ => request.answer(&[]),
            }
        }
        let faults = match compiled.faults() {
            Some(faults) => {
                let words = faults.size as usize / 4;
                let staging = self.gpu.allocate(Purpose::Staging, words)?;
                encoder.copy_buffer_to_buffer(&faults.buffer, 0, &staging.buffer, 0, faults.size);
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
            watch_faults(staging, fault_stride(&self.gpu), compiled.watched(), self.outlets.faults.clone());
        }
        if let Some(stamps) = stamps {
            self.timer.watch(stamps, self.frame, compiled, batch);
        }
        Ok(flights)
    }

    /// Answers a batch's requests with an error and reports it.
    fn fail(&mut self, batch: Batch, error: RunError) {
        for request in batch.requests {
            request.fail(ReadError::Failed(error.clone()));
        }
        self.report(error);
    }

    /// A storage's content could not be made: the batch that needs it fails with it, and a later one may try again.
    fn fail_fill(&mut self, storage: &Storage, error: RunError) -> Outcome {
        storage.abandon();
        while let Some(work) = self.waiting.pop_front() {
            match work {
                Work::Fill(other, _) => other.abandon(),
                Work::Batch(batch) => {
                    self.fail(batch, error);
                    return Outcome::Done;
                }
                Work::Request(_) | Work::Images(_) => break,
            }
        }
        self.report(error);
        Outcome::Done
    }

    fn report(&self, error: RunError) {
        // The main world may have ended.
        let _ = self.outlets.faults.send(TensorFault::Run(error));
    }
}

impl Drop for GpuExecutor {
    fn drop(&mut self) {
        self.readbacks.fail(&self.gpu);
        for work in self.waiting.drain(..) {
            if let Work::Batch(batch) = work {
                batch.requests.into_iter().for_each(|request| request.fail(ReadError::DeviceLost));
            }
        }
    }
}

/// Notes what a batch does to its storages.
fn note_effects(gpu: &Gpu, effects: &[Effect], batch: &Batch) {
    let keep = gpu.settings().host_copies == HostCopies::Keep;
    for (storage, effect) in batch.slots.iter().zip(effects).filter(|(_, effect)| effect.writes) {
        let words = effect.host.filter(|_| keep).map(|host| batch.host[host as usize].clone());
        storage.wrote(words.filter(|words| words.len() == storage.words()), &gpu.counters);
    }
}

/// The work that makes contents on the device.
fn fills(make: Vec<(Arc<Storage>, Generator)>) -> Vec<Work> {
    make.into_iter()
        .map(|(storage, generator)| {
            let batch = Batch::new([generate(generator, &storage)]);
            Work::Fill(storage, batch)
        })
        .collect()
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
