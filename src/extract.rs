//! The border: the only file that sees both worlds. Recordings move over whole; tensors that exist cost nothing.

use core::time::Duration;

use bevy::prelude::*;
use bevy::render::MainWorld;

use crate::cpu::CpuExecutor;
use crate::gpu::{GpuExecutor, GpuSettings};
use crate::image::{ImageCopy, OutgoingCopies};
use crate::memory::{MemoryNews, MemoryRequest, MemorySettings, NewsSender, OutgoingRequests};
use crate::plan::Batch;
use crate::record::{FrameRecordings, Part};
use crate::support::TensorSupport;
use crate::tensor::{Storage, Tensor};

/// Recorded work for the GPU, waiting to be extracted.
#[derive(Resource, Default)]
pub(crate) struct OutgoingParts(Vec<Part>);

/// Recorded work and requests in the render world, with what the executor has to know of the main world.
#[derive(Resource, Default)]
pub(crate) struct Extracted {
    pub parts: Vec<Part>,
    pub requests: Vec<MemoryRequest>,
    /// Copies between images and tensors; also earlier ones, whose images were not on the device yet.
    pub copies: Vec<ImageCopy>,
    pub settings: MemorySettings,
    /// Real time.
    pub now: Duration,
    /// Since when nobody has taken what was extracted, because the renderer stands still.
    untaken: Option<Duration>,
    /// Whether the GPU has been given up, and work goes to the CPU.
    given_up: bool,
}

impl Extracted {
    /// With settings of the app.
    pub(crate) fn new(settings: MemorySettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// All of it, leaving what is not work.
    pub(crate) fn take(&mut self) -> Self {
        self.untaken = None;
        Self {
            parts: core::mem::take(&mut self.parts),
            requests: core::mem::take(&mut self.requests),
            copies: core::mem::take(&mut self.copies),
            settings: self.settings,
            now: self.now,
            ..Self::default()
        }
    }
}

/// Hands the frame's recordings to the backends: the CPU's at once, the GPU's with the next extraction.
pub(crate) fn hand_over_recordings(
    mut frame: ResMut<FrameRecordings>,
    mut outgoing: ResMut<OutgoingParts>,
    mut requests: ResMut<OutgoingRequests>,
    support: Option<Res<TensorSupport>>,
    cpu: Res<CpuExecutor>,
) {
    if support.is_none_or(|support| support.adapter.is_none()) {
        // There is no device whose memory they could be about.
        requests.0.clear();
    }
    let mut cpu_parts = Vec::new();
    for recording in frame.0.drain(..) {
        if !recording.gpu.graph.nodes.is_empty() {
            outgoing.0.push(recording.gpu);
        }
        if !recording.cpu.graph.nodes.is_empty() {
            cpu_parts.push(recording.cpu);
        }
    }
    if !cpu_parts.is_empty() {
        cpu.send(Batch::new(cpu_parts));
    }
}

/// Moves recorded work and requests to the render world. Extraction goes on when the renderer does not; see [`give_up_gpu`].
pub(crate) fn extract_recordings(
    mut main_world: ResMut<MainWorld>,
    mut extracted: ResMut<Extracted>,
    executor: Option<ResMut<GpuExecutor>>,
    settings: Res<GpuSettings>,
) {
    if let Some(mut outgoing) = main_world.get_resource_mut::<OutgoingParts>() {
        extracted.parts.append(&mut outgoing.0);
    }
    if let Some(mut outgoing) = main_world.get_resource_mut::<OutgoingRequests>() {
        extracted.requests.append(&mut outgoing.0);
    }
    if let Some(mut outgoing) = main_world.get_resource_mut::<OutgoingCopies>() {
        extracted.copies.retain(|old| !outgoing.0.iter().any(|new| new.replaces(old)));
        extracted.copies.append(&mut outgoing.0);
    }
    if let Some(settings) = main_world.get_resource::<MemorySettings>() {
        extracted.settings = *settings;
    }
    if let Some(time) = main_world.get_resource::<Time<Real>>() {
        extracted.now = time.elapsed();
    }
    let now = extracted.now;
    let since = *extracted.untaken.get_or_insert(now);
    if extracted.given_up || settings.cpu_fallback.is_some_and(|patience| now.saturating_sub(since) > patience) {
        give_up_gpu(&mut main_world, &mut extracted, executor);
    }
}

/// The renderer has stood still for too long, as it does after a lost device in an app that does not recover: tensors and waiting work move to the
/// CPU, in order. What only the device had is reported.
fn give_up_gpu(main_world: &mut World, extracted: &mut Extracted, executor: Option<ResMut<GpuExecutor>>) {
    let (mut lost, mut batches) = executor.map_or_else(Default::default, |mut executor| executor.surrender());
    batches.push(Batch::new(core::mem::take(&mut extracted.parts)));
    extracted.requests.clear();
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
