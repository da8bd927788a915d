//! The border: the only file that sees both worlds. Recordings cross it whole; tensors that exist cost nothing.

use core::time::Duration;
use std::sync::Arc;

use bevy::prelude::*;
use bevy::render::MainWorld;
use bevy::render::render_asset::RenderAssets;
use bevy::render::texture::GpuImage;

use crate::cpu::CpuExecutor;
use crate::gpu::{Frame, GpuExecutor, GpuSettings, ImageJob};
use crate::ir::Backend;
use crate::mailbox::{ImageCopy, Letter, MemoryRequest, Outbox, SyncDirection};
use crate::memory::{MemoryNews, MemorySettings, NewsSender};
use crate::pipelines::TensorPipelines;
use crate::record::{Batch, FrameRecordings};
use crate::support::TensorSupport;
use crate::tensor::{Storage, Tensor};

/// What has crossed the border and not been taken yet.
#[derive(Resource, Default)]
pub(crate) struct Extracted {
    frame: Frame,
    /// Copies between images and tensors; also earlier ones, whose images were not on the device yet.
    copies: Vec<ImageCopy>,
    /// Since when nobody has taken what was extracted, because the renderer stands still.
    untaken: Option<Duration>,
    /// Whether the GPU has been given up, and work goes to the CPU.
    given_up: bool,
}

impl Extracted {
    /// With settings of the app.
    pub(crate) fn new(settings: MemorySettings) -> Self {
        Self { frame: Frame { settings, ..Frame::default() }, ..Self::default() }
    }

    /// Sorts letters by what the executor does with them.
    fn receive(&mut self, letters: Vec<Letter>) {
        let mut copies = Vec::new();
        for letter in letters {
            match letter {
                Letter::Work(part) => self.frame.parts.push(part),
                Letter::Memory(request) => self.frame.requests.push(request),
                Letter::Image(copy) => copies.push(copy),
                Letter::Pipelines(request) => self.frame.pipelines.push(request),
            }
        }
        self.copies.retain(|old| !copies.iter().any(|new| new.replaces(old)));
        self.copies.append(&mut copies);
    }
}

/// Hands the frame's recordings to the backends: the CPU's at once, the GPU's with the next extraction.
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
        if !recording.gpu.graph.nodes.is_empty() {
            outbox.post(recording.gpu);
        }
        if !recording.cpu.graph.nodes.is_empty() {
            cpu_parts.push(recording.cpu);
        }
        recording.asides.into_iter().for_each(|aside| pipelines.accept(aside));
    }
    if !cpu_parts.is_empty() {
        cpu.send(Batch::new(cpu_parts));
    }
    let device = support.is_some_and(|support| support.adapter.is_some());
    for letter in letters {
        match letter {
            Letter::Memory(MemoryRequest::Synchronize(storage, SyncDirection::ToDevice))
                if storage.decided_home() == Some(Backend::Cpu) =>
            {
                cpu.take_in(storage);
            }
            // There is no device whose memory they could be about.
            Letter::Memory(_) | Letter::Image(_) if !device => {}
            letter => outbox.post(letter),
        }
    }
    pipelines.take_requests().into_iter().for_each(|request| outbox.post(request));
}

/// Moves the mail to the render world. Extraction goes on when the renderer does not; see [`give_up_gpu`].
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

/// Runs what the frame recorded, ahead of all cameras: one queue, so what is submitted first runs first.
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
            // Not on the device yet. Unless nobody has the tensor any more, the copy waits for it.
            None if Arc::strong_count(copy.pixels.storage()) > 1 => extracted.copies.push(copy),
            None => {}
        }
    }
    executor.run(frame);
}

/// The renderer has stood still for too long, as it does after a lost device in an app that does not recover: tensors and waiting work move to the
/// CPU, in order. What only the device had is reported.
fn give_up_gpu(main_world: &mut World, extracted: &mut Extracted, executor: Option<ResMut<GpuExecutor>>) {
    let (mut lost, mut batches) = executor.map_or_else(Default::default, |mut executor| executor.surrender());
    batches.push(Batch::new(core::mem::take(&mut extracted.frame.parts)));
    extracted.frame.requests.clear();
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
        // Its other end is in the same world.
        let _ = news.0.send(MemoryNews::Lost(lost));
    }
    if let Some(cpu) = main_world.get_resource::<CpuExecutor>() {
        batches.into_iter().filter(|batch| !batch.is_empty()).for_each(|batch| cpu.send(batch));
    }
}
