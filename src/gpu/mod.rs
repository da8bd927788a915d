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

use bevy::prelude::*;
use bevy::render::renderer::{RenderAdapterInfo, RenderDevice, RenderQueue};

pub(crate) use buffers::Gpu;
pub(crate) use executor::{Frame, GpuExecutor, GpuSettings, ImageJob, Outlets};

use crate::error::FaultSender;
use crate::figures::{Count, TensorDiagnostics};
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
    diagnostics: Res<TensorDiagnostics>,
    pipelines: Res<TensorPipelines>,
    faults: Res<FaultSender>,
    news: Res<NewsSender>,
    mut old: Option<ResMut<GpuExecutor>>,
    mut commands: Commands,
) {
    let counters = diagnostics.counters().clone();
    let gpu = Gpu::new(device.wgpu_device().clone(), (**queue.0).clone(), counters, settings.memory);
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
