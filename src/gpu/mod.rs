//! The GPU backend: runs plans on the device.
//!
//! ```text
//! Frame ──▶ executor ──▶ work (queue) ──▶ programs ──▶ workspace ──▶ submission ──▶ readbacks, faults, timing
//!                                         plan, lower,  room for      encode and      what comes back
//!                                         compile       tensors       submit
//! ```
//!
//! - `executor`: runs a frame from start to end; `frame` has its input and the settings.
//! - `work`: the queue of work.
//! - `programs`: plans and their compiled form; `program`, `lowering` and `bind_groups` for one plan, `compiler` and
//!   `compile` for pipelines, `tuner` for the choice of kernel variants, `persist` for the cache file.
//! - `workspace`: device memory for work; `residency` moves tensors, `housekeeping` evicts and reports after each
//!   frame.
//! - `submission`: encodes and submits batches; `encode` for the launches, `readbacks`, `faults` and `timing` for the
//!   results.
//! - `image_copies`, `warm_ups`: the other kinds of work; `bindings` shares buffers with other shaders.
//! - `device`, `buffers`, `copier`: the device, its memory, and the thread for large copies to the host.

mod bind_groups;
mod bindings;
mod buffers;
mod compile;
mod compiler;
mod copier;
mod device;
mod encode;
mod executor;
mod faults;
mod flying;
mod frame;
mod housekeeping;
mod image_copies;
mod image_kernels;
mod lowering;
mod persist;
mod program;
mod programs;
mod readbacks;
mod residency;
mod submission;
mod timing;
mod tuner;
mod warm_ups;
mod work;
mod workspace;

use bevy::prelude::*;
use bevy::render::renderer::{RenderAdapterInfo, RenderDevice, RenderQueue};

pub(crate) use bindings::SharedBuffers;
pub(crate) use device::{Gpu, buffer_size};
pub(crate) use executor::GpuExecutor;
pub(crate) use frame::{Frame, FrameWork, GpuSettings, Outlets};
pub(crate) use image_copies::ImageJob;
pub use persist::{cache_file, sealed_cache_file};

use crate::error::FaultSender;
use crate::figures::{Count, TensorDiagnostics};
use crate::kernel::Caps;
use crate::memory::NewsSender;
use crate::pipelines::TensorPipelines;
use crate::support::AdapterFacts;

/// Creates the executor for a new device: at the start, and again after a device was lost.
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
    let (device_handle, failures) = (device.wgpu_device().clone(), diagnostics.failures().clone());
    let gpu = Gpu::new(device_handle, (**queue.0).clone(), counters, settings.memory, failures);
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
