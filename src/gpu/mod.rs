//! What does run on the device: memory, pipelines, bind groups, submission, staging.

mod buffers;
mod compiled;
mod executor;
mod pipelines;
mod staging;

use bevy::prelude::*;
use bevy::render::renderer::{RenderDevice, RenderQueue};

pub(crate) use buffers::{DeviceBuffer, Gpu};
pub(crate) use executor::{GpuExecutor, GpuSettings};

use crate::diagnostics::TensorDiagnostics;
use crate::extract::ExtractedParts;
use crate::fault::FaultSender;
use crate::kernel::Caps;
use crate::support::AdapterFacts;

/// The adapter behind the device, as kernels are chosen by it.
#[derive(Resource, Clone)]
pub(crate) struct GpuFacts(pub AdapterFacts);

/// Makes the executor for a new device: at the start, and again after a device was lost.
pub(crate) fn create_executor(
    device: Res<RenderDevice>,
    queue: Res<RenderQueue>,
    facts: Res<GpuFacts>,
    settings: Res<GpuSettings>,
    diagnostics: Res<TensorDiagnostics>,
    faults: Res<FaultSender>,
    mut commands: Commands,
) {
    let gpu = Gpu {
        device: device.wgpu_device().clone(),
        queue: (**queue.0).clone(),
        limits: device.limits(),
        counters: diagnostics.counters().clone(),
    };
    let caps = caps(&facts.0, &gpu.limits);
    commands.insert_resource(GpuExecutor::new(gpu, caps, *settings, diagnostics.clone(), faults.0.clone()));
}

fn caps(facts: &AdapterFacts, limits: &wgpu::Limits) -> Caps {
    let subgroups = facts.features.contains(wgpu::Features::SUBGROUP);
    Caps {
        subgroup: facts.subgroup_size.filter(|(min, max)| subgroups && min == max).map(|(size, _)| size),
        software: facts.software,
        wide: facts.features.contains(wgpu::Features::SHADER_INT64),
        invocations: limits.max_compute_invocations_per_workgroup,
        workgroup_memory: limits.max_compute_workgroup_storage_size,
        workgroups: limits.max_compute_workgroups_per_dimension,
    }
}

/// Runs what the frame recorded, ahead of all cameras: one queue, so what is submitted first runs first.
pub(crate) fn run_batches(mut executor: ResMut<GpuExecutor>, mut parts: ResMut<ExtractedParts>) {
    executor.run(core::mem::take(&mut parts.0));
}
