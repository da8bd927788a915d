//! What does run on the device: memory, pipelines, bind groups, submission, staging.

mod buffers;
mod compiled;
mod encode;
mod executor;
mod faults;
mod persist;
mod pipelines;
mod readbacks;
mod residency;
mod timing;
mod tuner;

use std::sync::Arc;

use bevy::prelude::*;
use bevy::render::render_asset::RenderAssets;
use bevy::render::renderer::{RenderAdapterInfo, RenderDevice, RenderQueue};
use bevy::render::texture::GpuImage;

pub(crate) use buffers::{DeviceBuffer, Gpu};
pub(crate) use executor::{GpuExecutor, GpuSettings, ImageJob, Outlets};

use crate::diagnostics::{Count, TensorDiagnostics};
use crate::extract::Extracted;
use crate::fault::FaultSender;
use crate::kernel::Caps;
use crate::memory::NewsSender;
use crate::pipelines::TensorPipelines;
use crate::support::AdapterFacts;

/// Makes the executor for a new device: at the start, and again after a device was lost.
#[expect(clippy::too_many_arguments, reason = "a system's parameters")]
pub(crate) fn create_executor(
    device: Res<RenderDevice>,
    queue: Res<RenderQueue>,
    adapter: Res<RenderAdapterInfo>,
    settings: Res<GpuSettings>,
    extracted: Res<Extracted>,
    diagnostics: Res<TensorDiagnostics>,
    pipelines: Res<TensorPipelines>,
    faults: Res<FaultSender>,
    news: Res<NewsSender>,
    mut old: Option<ResMut<GpuExecutor>>,
    mut commands: Commands,
) {
    let counters = diagnostics.counters().clone();
    let gpu = Gpu::new(device.wgpu_device().clone(), (**queue.0).clone(), counters, extracted.settings);
    diagnostics.counters().devices.add(1);
    diagnostics.set_pools(gpu.pools());
    let facts = AdapterFacts::new(&device, &adapter);
    let caps = caps(&facts, &gpu.limits);
    let outlets = Outlets { faults: faults.0.clone(), news: news.0.clone() };
    let (diagnostics, pipelines) = (diagnostics.clone(), pipelines.clone());
    let mut executor = GpuExecutor::new(gpu, caps, &facts, &settings, diagnostics, pipelines, outlets);
    if let Some(old) = &mut old {
        executor.take_over(old);
    }
    commands.insert_resource(executor);
}

fn caps(facts: &AdapterFacts, limits: &wgpu::Limits) -> Caps {
    let subgroups = facts.features.contains(wgpu::Features::SUBGROUP);
    Caps {
        subgroup: facts.subgroup_size.filter(|(min, max)| subgroups && min == max).map(|(size, _)| size),
        software: facts.software,
        wide: facts.features.contains(wgpu::Features::SHADER_INT64),
        halves: facts.features.contains(wgpu::Features::SHADER_F16),
        invocations: limits.max_compute_invocations_per_workgroup,
        workgroup_memory: limits.max_compute_workgroup_storage_size,
        workgroups: limits.max_compute_workgroups_per_dimension,
        variant: None,
    }
}

/// Runs what the frame recorded, ahead of all cameras: one queue, so what is submitted first runs first.
pub(crate) fn run_batches(
    mut executor: ResMut<GpuExecutor>,
    mut extracted: ResMut<Extracted>,
    images: Option<Res<RenderAssets<GpuImage>>>,
) {
    let mut frame = extracted.take();
    let mut jobs = Vec::new();
    for copy in frame.copies.drain(..) {
        match images.as_ref().and_then(|images| images.get(copy.image)) {
            Some(image) => jobs.push(ImageJob { copy, texture: (*image.texture).clone() }),
            // Not on the device yet. Unless nobody has the tensor any more, the copy waits for it.
            None if Arc::strong_count(copy.pixels.storage()) > 1 => extracted.copies.push(copy),
            None => {}
        }
    }
    executor.run(frame, jobs);
}
