//! Extraction: the only file that accesses both the main world and the render world. It moves recorded work, and costs
//! nothing per existing tensor.

use core::time::Duration;
use std::sync::Arc;

use bevy::ecs::system::SystemParam;
use bevy::prelude::*;
use bevy::render::MainWorld;
use bevy::render::render_asset::RenderAssets;
use bevy::render::storage::GpuShaderBuffer;
use bevy::render::texture::GpuImage;

use crate::cpu::CpuExecutor;
use crate::error::{StallStage, TensorFault};
use crate::figures::{Count, TensorDiagnostics};
use crate::gpu::{Frame, FrameWork, GpuExecutor, GpuSettings, ImageJob, SharedBuffers};
use crate::ir::Backend;
use crate::mailbox::{BindingRequest, Held, ImageCopy, Letter, MemoryRequest, Outbox, Released, Rules, SyncDirection};
use crate::memory::{MemoryNews, MemorySettings, NewsSender};
use crate::pipelines::TensorPipelines;
use crate::record::{Batch, FrameRecordings, Recording, move_storage};
use crate::schedule::{BacklogSettings, Owner, TensorBacklog, TensorBacklogs};
use crate::support::{ModelBackend, TensorSupport};
use crate::tensor::{ModelTensors, Storage, Tensor};

/// Data that was extracted and not yet run.
#[derive(Resource, Default)]
pub(crate) struct Extracted {
    frame: Frame,
    /// Copies between images and tensors. Includes earlier copies whose images were not on the device yet.
    copies: Vec<ImageCopy>,
    bindings: Vec<BindingRequest>,
    /// Time at which the renderer stopped taking extracted data.
    untaken: Option<Duration>,
    /// Whether the GPU was abandoned, so that work goes to the CPU.
    given_up: bool,
}

impl Extracted {
    /// With the initial memory settings.
    pub(crate) fn new(settings: MemorySettings) -> Self {
        Self { frame: Frame { settings, ..Frame::default() }, ..Self::default() }
    }

    /// Sorts letters by type.
    fn receive(&mut self, letters: Vec<Letter>) {
        let mut copies = Vec::new();
        for letter in letters {
            match letter {
                Letter::Work(part) => self.frame.work.push(FrameWork::Part(part)),
                Letter::Memory(request) => self.frame.add_request(request),
                Letter::Image(copy) => copies.push(copy),
                Letter::Pipelines(request) => self.frame.pipelines.push(request),
                Letter::Binding(request) => self.bindings.push(request),
            }
        }
        self.copies.retain(|old| !copies.iter().any(|new| new.replaces(old)));
        self.copies.append(&mut copies);
    }
}

/// The way of recorded work to the backends.
#[derive(SystemParam)]
pub(crate) struct Gate<'w, 's> {
    held: ResMut<'w, Held>,
    outbox: ResMut<'w, Outbox>,
    cpu: Res<'w, CpuExecutor>,
    backlogs: Res<'w, TensorBacklogs>,
    settings: Res<'w, BacklogSettings>,
    policies: Query<'w, 's, &'static TensorBacklog>,
    time: Option<Res<'w, Time<Real>>>,
    diagnostics: Res<'w, TensorDiagnostics>,
}

impl Gate<'_, '_> {
    /// Lets the recordings of the frame and the memory requests through, as far as the backends may take them. CPU work
    /// is sent at once, GPU work with the next extraction.
    fn let_through(&mut self, recordings: Vec<Recording>, requests: Vec<MemoryRequest>) {
        let (settings, policies) = (*self.settings, &self.policies);
        let policy =
            |owner: Owner| owner.and_then(|model| policies.get(model).ok()).copied().unwrap_or(settings.policy);
        let now = self.time.as_ref().map_or(Duration::ZERO, |time| time.elapsed());
        let rules = Rules { backlogs: &self.backlogs, limit: settings.in_flight, policy, now };
        let mut released = Vec::new();
        self.held.begin_frame();
        for recording in recordings {
            self.held.add(recording, &rules, &mut released);
        }
        let replaced = self.held.proceed(&rules, &mut released);
        for request in requests {
            self.held.add_request(request, &mut released);
        }
        self.backlogs.update(&self.held.waiting(now), settings.in_flight, policy);
        self.count(now, replaced);
        self.deliver(released);
    }

    fn count(&self, now: Duration, replaced: u64) {
        let counters = self.diagnostics.counters();
        let (waiting, age) = self.held.oldest(now);
        counters.recordings_waiting_now.put(waiting as u64);
        counters.oldest_waiting_nanos_now.put(age.as_nanos() as u64);
        counters.recordings_in_flight_now.put(self.backlogs.in_flight() as u64);
        counters.recordings_replaced.add(replaced);
        counters.ops_refused.add(self.backlogs.take_refused());
    }

    fn deliver(&mut self, released: Vec<Released>) {
        let mut cpu_parts = Vec::new();
        for work in released {
            match work {
                Released::Part(Backend::Gpu, part) => self.outbox.post(part),
                Released::Part(Backend::Cpu, part) => cpu_parts.push(part),
                Released::Memory(request) => self.outbox.post(request),
            }
        }
        Batch::split(cpu_parts).into_iter().for_each(|batch| self.cpu.send(batch));
    }
}

/// Sends the recordings of the frame to the backends.
pub(crate) fn hand_over_recordings(
    mut frame: ResMut<FrameRecordings>,
    pipelines: Res<TensorPipelines>,
    support: Option<Res<TensorSupport>>,
    mut gate: Gate,
) {
    let letters = gate.outbox.take_new();
    let (mut others, mut requests) = (Vec::new(), Vec::new());
    let device = support.is_some_and(|support| support.adapter.is_some());
    for letter in letters {
        match letter {
            Letter::Memory(MemoryRequest::Synchronize(storage, SyncDirection::ToDevice))
                if storage.decided_home() == Some(Backend::Cpu) =>
            {
                gate.cpu.take_in(storage);
            }
            // Without a device there is no device memory.
            Letter::Memory(_) | Letter::Image(_) | Letter::Binding(_) if !device => {}
            Letter::Memory(request) => requests.push(request),
            letter => others.push(letter),
        }
    }
    let mut recordings = core::mem::take(&mut frame.0);
    for recording in &mut recordings {
        recording.asides.drain(..).for_each(|aside| pipelines.accept(aside));
    }
    gate.let_through(recordings, requests);
    others.into_iter().for_each(|letter| gate.outbox.post(letter));
    pipelines.take_requests().into_iter().for_each(|request| gate.outbox.post(request));
}

/// Moves the tensors of models whose [`ModelBackend`] was changed or removed. Work recorded in this frame still uses
/// them on the old backend. Later work waits for their content on the new backend.
pub(crate) fn move_models(
    changed: Query<(Entity, &ModelBackend), Changed<ModelBackend>>,
    mut removed: RemovedComponents<ModelBackend>,
    models: Query<&ModelTensors>,
    tensors: Query<&Tensor>,
    support: Option<Res<TensorSupport>>,
    mut gate: Gate,
    mut commands: Commands,
) {
    let Some(support) = support else { return gate.outbox.seal() };
    let back = removed.read().map(|model| (model, support.backend)).collect::<Vec<_>>();
    let wished = changed.iter().map(|(model, wish)| (model, wish.0));
    for (model, wish) in wished.chain(back) {
        if support.available(wish) != wish {
            commands.trigger(TensorFault::NoDevice { model });
            continue;
        }
        for tensor in models.get(model).into_iter().flat_map(|tensors| tensors.iter()) {
            let storage = tensors.get(tensor).ok().map(Tensor::storage);
            if let Some((backend, part)) = storage.and_then(|storage| move_storage(storage, wish)) {
                let mut released = Vec::new();
                gate.held.add_move(backend, part, &mut released);
                gate.deliver(released);
            }
        }
    }
    gate.outbox.seal();
}

/// Moves letters to the render world. Extraction continues if the renderer stops; see [`give_up_gpu`].
pub(crate) fn extract_recordings(
    mut main_world: ResMut<MainWorld>,
    mut extracted: ResMut<Extracted>,
    executor: Option<ResMut<GpuExecutor>>,
    settings: Res<GpuSettings>,
    diagnostics: Res<TensorDiagnostics>,
) {
    if let Some(mut outbox) = main_world.get_resource_mut::<Outbox>() {
        extracted.receive(outbox.take());
    }
    let waiting = extracted.frame.work.iter().filter(|work| matches!(work, FrameWork::Part(_))).count();
    diagnostics.progress(StallStage::Renderer).advance(0, waiting as u64);
    if let Some(settings) = main_world.get_resource::<MemorySettings>() {
        extracted.frame.settings = *settings;
    }
    if let Some(time) = main_world.get_resource::<Time<Real>>() {
        extracted.frame.now = time.elapsed();
    }
    let now = extracted.frame.now;
    let since = *extracted.untaken.get_or_insert(now);
    if extracted.given_up || settings.cpu_fallback.is_some_and(|patience| now.saturating_sub(since) > patience) {
        give_up_gpu(&mut main_world, &mut extracted, executor);
    }
}

/// Gives storage buffer assets the buffers of their tensors, before materials are prepared.
pub(crate) fn share_buffers(
    mut executor: ResMut<GpuExecutor>,
    mut extracted: ResMut<Extracted>,
    mut shared: ResMut<SharedBuffers>,
    assets: Option<ResMut<RenderAssets<GpuShaderBuffer>>>,
) {
    shared.accept(extracted.bindings.drain(..));
    if let Some(mut assets) = assets {
        shared.share(&mut executor, &mut assets);
    }
}

/// Gives tensors the buffers of their storage buffer assets, before the work of the frame.
pub(crate) fn borrow_buffers(
    executor: Res<GpuExecutor>,
    mut shared: ResMut<SharedBuffers>,
    assets: Option<Res<RenderAssets<GpuShaderBuffer>>>,
) {
    if let Some(assets) = assets {
        shared.borrow(&executor, &assets);
    }
}

/// Runs the recorded work of the frame, before all cameras. All work is submitted to one queue, so it runs in
/// submission order.
pub(crate) fn run_batches(
    mut executor: ResMut<GpuExecutor>,
    mut extracted: ResMut<Extracted>,
    images: Option<Res<RenderAssets<GpuImage>>>,
    diagnostics: Res<TensorDiagnostics>,
) {
    extracted.untaken = None;
    diagnostics.progress(StallStage::Renderer).end_all();
    let mut frame = extracted.frame.take();
    for copy in core::mem::take(&mut extracted.copies) {
        match images.as_ref().and_then(|images| images.get(copy.image)) {
            Some(image) => frame.images.push(ImageJob { copy, texture: (*image.texture).clone() }),
            // The image is not on the device yet. The copy waits for it, unless the tensor was dropped.
            None if Arc::strong_count(copy.pixels.storage()) > 1 => extracted.copies.push(copy),
            None => {}
        }
    }
    executor.run(frame);
}

/// Moves tensors and pending work to the CPU, in order, after the renderer was stopped for too long. This happens after
/// a lost device in an app that does not recover. Content that was only on the device is reported as lost.
fn give_up_gpu(main_world: &mut World, extracted: &mut Extracted, executor: Option<ResMut<GpuExecutor>>) {
    let (mut lost, mut batches) = executor.map_or_else(Default::default, |mut executor| executor.surrender());
    batches.extend(Batch::split(extracted.frame.take_parts()));
    batches.iter_mut().for_each(Batch::abandon_crossings);
    extracted.copies.clear();
    if let Some(diagnostics) = main_world.get_resource::<TensorDiagnostics>() {
        diagnostics.progress(StallStage::Renderer).end_all();
        diagnostics.progress(StallStage::Queue).end_all();
    }
    let mut move_over = |storage: &Storage| {
        if storage.fall_back() {
            lost.push(storage.id());
        }
    };
    batches.iter().flat_map(|batch| &batch.slots).for_each(|storage| move_over(storage));
    if !extracted.given_up {
        extracted.given_up = true;
        let mut tensors = main_world.query::<&Tensor>();
        tensors.iter(main_world).for_each(|tensor| move_over(tensor.storage()));
        if let Some(mut support) = main_world.get_resource_mut::<TensorSupport>() {
            support.give_up_gpu();
            warn!("tensor work runs on the {}: {}", support.backend, support.reason);
        }
    }
    if !lost.is_empty()
        && let Some(news) = main_world.get_resource::<NewsSender>()
    {
        // The receiver is in the same world, so this cannot fail.
        let _ = news.0.send(MemoryNews::Lost(lost));
    }
    if let Some(cpu) = main_world.get_resource::<CpuExecutor>() {
        batches.into_iter().filter(|batch| !batch.is_empty()).for_each(|batch| cpu.send(batch));
    }
}
