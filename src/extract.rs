//! Extraction: the only file that accesses both the main world and the render world. It moves recorded work, and costs
//! nothing per existing tensor.

use core::time::Duration;
use std::sync::Arc;

use bevy::prelude::*;
use bevy::render::MainWorld;
use bevy::render::render_asset::RenderAssets;
use bevy::render::texture::GpuImage;

use crate::cpu::CpuExecutor;
use crate::error::TensorFault;
use crate::gpu::{Frame, FrameWork, GpuExecutor, GpuSettings, ImageJob};
use crate::ir::Backend;
use crate::mailbox::{ImageCopy, Letter, MemoryRequest, Outbox, SyncDirection};
use crate::memory::{MemoryNews, MemorySettings, NewsSender};
use crate::pipelines::TensorPipelines;
use crate::record::{Batch, FrameRecordings, move_storage};
use crate::support::{ModelBackend, TensorSupport};
use crate::tensor::{ModelTensors, Storage, Tensor};

/// Data that was extracted and not yet run.
#[derive(Resource, Default)]
pub(crate) struct Extracted {
    frame: Frame,
    /// Copies between images and tensors. Includes earlier copies whose images were not on the device yet.
    copies: Vec<ImageCopy>,
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
                Letter::Memory(request) => self.frame.work.push(FrameWork::Request(request)),
                Letter::Image(copy) => copies.push(copy),
                Letter::Pipelines(request) => self.frame.pipelines.push(request),
            }
        }
        self.copies.retain(|old| !copies.iter().any(|new| new.replaces(old)));
        self.copies.append(&mut copies);
    }
}

/// Sends the recordings of the frame to the backends: CPU work at once, GPU work with the next extraction.
pub(crate) fn hand_over_recordings(
    mut frame: ResMut<FrameRecordings>,
    mut outbox: ResMut<Outbox>,
    pipelines: Res<TensorPipelines>,
    support: Option<Res<TensorSupport>>,
    cpu: Res<CpuExecutor>,
) {
    let mut cpu_parts = Vec::new();
    let letters = outbox.take();
    for recording in frame.0.drain(..) {
        let open = [(Backend::Gpu, recording.gpu), (Backend::Cpu, recording.cpu)];
        for (backend, part) in recording.sealed.into_iter().chain(open) {
            match backend {
                _ if part.graph.nodes.is_empty() => {}
                Backend::Gpu => outbox.post(part),
                Backend::Cpu => cpu_parts.push(part),
            }
        }
        recording.asides.into_iter().for_each(|aside| pipelines.accept(aside));
    }
    Batch::split(cpu_parts).into_iter().for_each(|batch| cpu.send(batch));
    let device = support.is_some_and(|support| support.adapter.is_some());
    for letter in letters {
        match letter {
            Letter::Memory(MemoryRequest::Synchronize(storage, SyncDirection::ToDevice))
                if storage.decided_home() == Some(Backend::Cpu) =>
            {
                cpu.take_in(storage);
            }
            // Without a device there is no device memory.
            Letter::Memory(_) | Letter::Image(_) if !device => {}
            letter => outbox.post(letter),
        }
    }
    pipelines.take_requests().into_iter().for_each(|request| outbox.post(request));
}

/// Moves the tensors of models whose [`ModelBackend`] was changed or removed. Work recorded in this frame still uses
/// them on the old backend. Later work waits for their content on the new backend.
#[expect(clippy::too_many_arguments, reason = "a system's parameters")]
pub(crate) fn move_models(
    changed: Query<(Entity, &ModelBackend), Changed<ModelBackend>>,
    mut removed: RemovedComponents<ModelBackend>,
    models: Query<&ModelTensors>,
    tensors: Query<&Tensor>,
    support: Option<Res<TensorSupport>>,
    mut outbox: ResMut<Outbox>,
    cpu: Res<CpuExecutor>,
    mut commands: Commands,
) {
    let Some(support) = support else { return };
    let back = removed.read().map(|model| (model, support.backend)).collect::<Vec<_>>();
    let wished = changed.iter().map(|(model, wish)| (model, wish.0));
    for (model, wish) in wished.chain(back) {
        if support.available(wish) != wish {
            commands.trigger(TensorFault::NoDevice { model });
            continue;
        }
        for tensor in models.get(model).into_iter().flat_map(|tensors| tensors.iter()) {
            let storage = tensors.get(tensor).ok().map(Tensor::storage);
            match storage.and_then(|storage| move_storage(storage, wish)) {
                Some((Backend::Gpu, part)) => outbox.post(part),
                Some((Backend::Cpu, part)) => cpu.send(Batch::new([part])),
                None => {}
            }
        }
    }
}

/// Moves letters to the render world. Extraction continues if the renderer stops; see [`give_up_gpu`].
pub(crate) fn extract_recordings(
    mut main_world: ResMut<MainWorld>,
    mut extracted: ResMut<Extracted>,
    executor: Option<ResMut<GpuExecutor>>,
    settings: Res<GpuSettings>,
) {
    if let Some(mut outbox) = main_world.get_resource_mut::<Outbox>() {
        extracted.receive(outbox.take());
    }
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

/// Runs the recorded work of the frame, before all cameras. All work is submitted to one queue, so it runs in
/// submission order.
pub(crate) fn run_batches(
    mut executor: ResMut<GpuExecutor>,
    mut extracted: ResMut<Extracted>,
    images: Option<Res<RenderAssets<GpuImage>>>,
) {
    extracted.untaken = None;
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
