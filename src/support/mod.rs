//! The backend that tensor work runs on, and the adapters of the machine.

mod anywhere;

pub use anywhere::{AnywherePlugins, adapters, has_adapter, has_display};

pub use crate::ir::Backend;

use bevy::prelude::*;
use bevy::render::renderer::{RenderAdapterInfo, RenderDevice};

/// The backend that an app requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Reflect)]
pub enum BackendChoice {
    /// The GPU if the app renders on a hardware adapter, else the CPU. A software adapter is slower than the CPU
    /// backend.
    #[default]
    Auto,
    /// The device that the app renders with, hardware or software. Without one, the CPU, with a warning.
    Gpu,
    /// The CPU.
    Cpu,
}

/// Selects the backend of one model. Models without it use the backend of the app.
///
/// Inserting, changing or removing it moves the model's tensors, in order with the recorded work. Without a device,
/// [`Backend::Gpu`] means the CPU.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq, Reflect)]
#[reflect(Component)]
pub struct ModelBackend(pub Backend);

/// A graphics adapter: the one that the app renders with, in [`TensorSupport`], or one of [`adapters`].
#[derive(Clone, Debug, PartialEq, Reflect)]
pub struct AdapterFacts {
    /// Name of the adapter.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// The graphics API: `vulkan`, `metal`, `dx12`, `gl`, ….
    pub api: String,
    /// `DiscreteGpu`, `IntegratedGpu`, `VirtualGpu`, `Cpu` or `Other`.
    pub kind: String,
    /// Whether the adapter is software that runs on the CPU.
    pub software: bool,
    /// Features that the device was created with, or that the adapter supports, in [`adapters`].
    #[reflect(ignore)]
    pub features: wgpu::Features,
    /// Limits that the device was created with, or that the adapter supports, in [`adapters`].
    #[reflect(ignore)]
    pub limits: wgpu::Limits,
    /// Smallest and largest subgroup size. `None` without subgroups.
    pub subgroup_size: Option<(u32, u32)>,
}

impl AdapterFacts {
    /// The adapter and device of the renderer.
    pub(crate) fn new(device: &RenderDevice, info: &RenderAdapterInfo) -> Self {
        Self::from_info(info, device.features(), device.limits())
    }

    fn from_info(info: &wgpu::AdapterInfo, features: wgpu::Features, limits: wgpu::Limits) -> Self {
        let subgroups = features.contains(wgpu::Features::SUBGROUP);
        Self {
            name: info.name.clone(),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            api: info.backend.to_string(),
            kind: format!("{:?}", info.device_type),
            software: info.device_type == wgpu::DeviceType::Cpu,
            features,
            limits,
            subgroup_size: subgroups.then_some((info.subgroup_min_size, info.subgroup_max_size)),
        }
    }
}

impl core::fmt::Display for AdapterFacts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({}, {}, {})", self.name, self.kind, self.api, self.driver)
    }
}

/// The backend that tensor work uses, and the reason. Available from [`PreStartup`] on.
#[derive(Resource, Clone, Debug, PartialEq, Reflect)]
#[reflect(Resource, Debug, PartialEq, Clone)]
pub struct TensorSupport {
    /// The backend of every model without a [`ModelBackend`].
    pub backend: Backend,
    /// The reason for the choice, as a sentence.
    pub reason: String,
    /// The adapter that the app renders with, also if the CPU was chosen. `None` without a renderer.
    pub adapter: Option<AdapterFacts>,
}

/// Asks for the number of floats in a vector.
struct Lanes;

impl pulp::WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

impl TensorSupport {
    /// The requested backend, or the CPU if there is no adapter.
    pub fn available(&self, wish: Backend) -> Backend {
        if self.adapter.is_some() { wish } else { Backend::Cpu }
    }

    /// The vector instructions that the CPU backend uses on this machine: `"AVX-512"`, `"AVX2"`, `"NEON"`, `"SIMD128"`,
    /// or `"none"` for plain loops.
    pub fn cpu_vectors(&self) -> &'static str {
        match pulp::Arch::new().dispatch(Lanes) {
            16.. => "AVX-512",
            8.. => "AVX2",
            4.. if cfg!(target_arch = "aarch64") => "NEON",
            4.. => "SIMD128",
            _ => "none",
        }
    }

    /// Switches to the CPU for good, because the device was lost.
    pub(crate) fn give_up_gpu(&mut self) {
        let name = self.adapter.take().map_or_else(|| "the device".to_owned(), |adapter| adapter.name);
        (self.backend, self.reason) = (Backend::Cpu, format!("{name} was lost and the renderer stopped"));
    }

    /// Chooses the backend from the request of the app and the adapter of the renderer.
    pub(crate) fn decide(choice: BackendChoice, adapter: Option<AdapterFacts>) -> Self {
        let (backend, reason) = match (choice, &adapter) {
            (BackendChoice::Cpu, _) => (Backend::Cpu, "the app requested the CPU".to_owned()),
            (_, None) => (Backend::Cpu, "the app has no renderer, so there is no device".to_owned()),
            (BackendChoice::Gpu, Some(a)) => (Backend::Gpu, format!("the app requested the GPU: {}", a.name)),
            (BackendChoice::Auto, Some(a)) if a.software => {
                (Backend::Cpu, format!("{} is a software adapter, which is slower than the CPU backend", a.name))
            }
            (BackendChoice::Auto, Some(a)) => (Backend::Gpu, format!("the app renders on {}", a.name)),
        };
        Self { backend, reason, adapter }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_machine_are_named() {
        let vectors = TensorSupport::decide(BackendChoice::Cpu, None).cpu_vectors();
        #[cfg(target_arch = "x86_64")]
        assert_eq!(vectors != "none", is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"), "{vectors}");
        assert!(["AVX-512", "AVX2", "NEON", "SIMD128", "none"].contains(&vectors));
    }
}
