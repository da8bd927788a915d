//! Where tensor work runs, and why.

mod anywhere;

pub use anywhere::{AnywherePlugins, has_adapter, has_display};

pub use crate::ir::Backend;

use bevy::prelude::*;
use bevy::render::renderer::{RenderAdapterInfo, RenderDevice};

/// Which backend an app asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Reflect)]
pub enum BackendChoice {
    /// The GPU if the app renders on a hardware adapter; the CPU otherwise, since a software adapter is slower than the CPU itself.
    #[default]
    Auto,
    /// The device the app renders with, hardware or not; the CPU, with a warning, if there is none.
    Gpu,
    /// The CPU.
    Cpu,
}

/// Puts one model's tensors on a backend of its own choice; without it a model uses the app's.
///
/// Read when an op first touches a tensor, which stays there. Asking for [`Backend::Gpu`] without a device gives the CPU.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq, Reflect)]
#[reflect(Component)]
pub struct ModelBackend(pub Backend);

/// What is known about the adapter behind the GPU backend.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFacts {
    /// The adapter's name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Vulkan, Metal, DX12, WebGPU, ….
    pub api: String,
    /// Discrete, integrated, virtual or software.
    pub kind: String,
    /// Whether the adapter is a CPU in disguise.
    pub software: bool,
    /// What the device can do beyond the basics.
    pub features: wgpu::Features,
    /// What the device allows.
    pub limits: wgpu::Limits,
    /// Smallest and largest subgroup, where there are subgroups.
    pub subgroup_size: Option<(u32, u32)>,
}

impl AdapterFacts {
    /// What the renderer works with.
    pub(crate) fn new(device: &RenderDevice, info: &RenderAdapterInfo) -> Self {
        let features = device.features();
        let subgroups = features.contains(wgpu::Features::SUBGROUP);
        Self {
            name: info.name.clone(),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            api: info.backend.to_string(),
            kind: format!("{:?}", info.device_type),
            software: info.device_type == wgpu::DeviceType::Cpu,
            features,
            limits: device.limits(),
            subgroup_size: subgroups.then_some((info.subgroup_min_size, info.subgroup_max_size)),
        }
    }
}

/// Which backend tensor work uses, why, and on what. Present from [`PreStartup`] on.
#[derive(Resource, Clone, Debug, PartialEq)]
pub struct TensorSupport {
    /// The backend of every model that does not choose its own.
    pub backend: Backend,
    /// Why, in a sentence.
    pub reason: String,
    /// The adapter, where the app renders at all; also there when the CPU was chosen.
    pub adapter: Option<AdapterFacts>,
}

impl TensorSupport {
    /// The backend for a wish: the GPU needs an adapter.
    pub fn available(&self, wish: Backend) -> Backend {
        if self.adapter.is_some() { wish } else { Backend::Cpu }
    }

    /// The device is gone and will not come back.
    pub(crate) fn give_up_gpu(&mut self) {
        let name = self.adapter.take().map_or_else(|| "the device".to_owned(), |adapter| adapter.name);
        (self.backend, self.reason) = (Backend::Cpu, format!("{name} was lost and the renderer stopped"));
    }

    /// Decides from the app's choice and what the renderer has.
    pub(crate) fn decide(choice: BackendChoice, adapter: Option<AdapterFacts>) -> Self {
        let (backend, reason) = match (choice, &adapter) {
            (BackendChoice::Cpu, _) => (Backend::Cpu, "the app asked for the CPU".to_owned()),
            (_, None) => (Backend::Cpu, "the app has no renderer, so there is no device to share".to_owned()),
            (BackendChoice::Gpu, Some(a)) => (Backend::Gpu, format!("the app asked for the GPU: {}", a.name)),
            (BackendChoice::Auto, Some(a)) if a.software => {
                (Backend::Cpu, format!("{} is a software adapter, which the CPU itself outruns", a.name))
            }
            (BackendChoice::Auto, Some(a)) => (Backend::Gpu, format!("the app renders on {}", a.name)),
        };
        Self { backend, reason, adapter }
    }
}
