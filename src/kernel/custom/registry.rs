//! Registered kernels, and how they are updated when their shader assets change.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use bevy::asset::{AssetEvent, AssetId, Assets};
use bevy::prelude::*;
use bevy::shader::{Shader, Source as ShaderSource};

use super::{CustomKernel, Source, code, element};
use crate::error::{KernelError, TensorFault, catch};
use crate::ir::{Dispatch, ElementFunction, KernelCode};

/// A registered kernel. Clones refer to the same kernel. Dropping the last one frees the kernel's name; work already
/// recorded with it still runs.
#[derive(Clone)]
pub struct TensorKernel(Arc<Registered>);

struct Registered {
    description: CustomKernel,
    state: RwLock<State>,
}

/// Current state of a kernel.
#[derive(Default)]
struct State {
    /// The most recent text, valid or not.
    text: Option<String>,
    code: Option<Code>,
    versions: u64,
    error: Option<KernelError>,
}

/// Code that can be recorded.
#[derive(Clone)]
pub(crate) enum Code {
    Kernel(Arc<KernelCode>),
    Element(Arc<ElementFunction>),
}

impl TensorKernel {
    /// The kernel's name.
    pub fn name(&self) -> &'static str {
        self.0.description.name
    }

    /// Whether the kernel can be recorded. Kernels from shader assets are not ready until the asset is loaded.
    pub fn is_ready(&self) -> bool {
        self.read(|state| state.code.is_some())
    }

    /// Number of versions that compiled so far: 1 for the first, and one more for every edit that compiled.
    pub fn version(&self) -> u64 {
        self.read(|state| state.versions)
    }

    /// The error in the current text. An earlier version may still be in use.
    pub fn error(&self) -> Option<KernelError> {
        self.read(|state| state.error.clone())
    }

    pub(crate) fn code(&self) -> Result<Code, KernelError> {
        self.read(|state| match (&state.code, &state.error) {
            (Some(code), _) => Ok(code.clone()),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Err(KernelError::NotLoaded { kernel: self.name() }),
        })
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.0.state.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl core::fmt::Debug for TensorKernel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TensorKernel")
            .field("name", &self.name())
            .field("version", &self.version())
            .field("error", &self.error())
            .finish_non_exhaustive()
    }
}

impl Registered {
    /// [`Registered::compile`]. naga may panic on texts that nobody has thought of; that is an error of the text.
    fn compile_caught(&self, text: &str, device: Option<&Device>) -> Result<Code, KernelError> {
        catch(|| self.compile(text, device)).unwrap_or_else(|panic| {
            let message = format!("the WGSL compiler panicked: {panic}");
            Err(KernelError::Wgsl { kernel: self.description.name, place: None, message })
        })
    }

    fn compile(&self, text: &str, device: Option<&Device>) -> Result<Code, KernelError> {
        let features = device.map(|device| device.features);
        if self.description.elementwise {
            return Ok(Code::Element(Arc::new(element::compile(&self.description, text, features)?)));
        }
        let code = code::compile(&self.description, text, features)?;
        if let Some(device) = device {
            code.fits(&device.limits)?;
        }
        Ok(Code::Kernel(Arc::new(code)))
    }

    /// Compiles a text if it differs from the last one. An invalid text leaves the code unchanged.
    fn update(&self, text: &str, device: Option<&Device>) -> Result<(), KernelError> {
        if self.state.read().unwrap_or_else(PoisonError::into_inner).text.as_deref() == Some(text) {
            return Ok(());
        }
        let result = self.compile_caught(text, device);
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.text = Some(text.to_owned());
        match result {
            Ok(code) => {
                (state.code, state.error) = (Some(code), None);
                state.versions += 1;
                Ok(())
            }
            Err(error) => {
                state.error = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Reports a shader that is not WGSL text.
    fn refuse(&self, reason: &str) -> Result<(), KernelError> {
        let error = KernelError::Description { kernel: self.description.name, reason: reason.to_owned() };
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        (state.text, state.error) = (None, Some(error.clone()));
        Err(error)
    }

    /// Whether the shader has not been processed yet.
    fn is_waiting(&self) -> bool {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.code.is_none() && state.error.is_none()
    }

    /// The shader asset of the kernel.
    fn shader(&self) -> Option<AssetId<Shader>> {
        match &self.description.source {
            Source::Shader(handle) => Some(handle.id()),
            Source::Wgsl(_) => None,
        }
    }
}

/// The device that kernels are checked against.
#[derive(Clone, Debug)]
struct Device {
    features: wgpu::Features,
    limits: wgpu::Limits,
}

/// The app's custom kernels. The plugin inserts this resource; `app.register_kernel(…)` is a shortcut.
#[derive(Resource, Default)]
pub struct TensorKernels {
    kernels: Vec<Weak<Registered>>,
    device: Option<Device>,
}

impl TensorKernels {
    /// Validates a kernel so that it can be recorded. A kernel from a shader asset is validated when the asset is
    /// loaded; errors are then reported as [`TensorFault::Kernel`].
    pub fn register(&mut self, kernel: CustomKernel) -> Result<TensorKernel, KernelError> {
        self.kernels.retain(|kernel| kernel.strong_count() > 0);
        if self.live().any(|other| other.description.name == kernel.name) {
            return Err(KernelError::NameTaken { kernel: kernel.name });
        }
        check_description(&kernel)?;
        let registered = Arc::new(Registered { description: kernel, state: RwLock::default() });
        if let Source::Wgsl(text) = &registered.description.source {
            registered.update(text, self.device.as_ref())?;
        }
        self.kernels.push(Arc::downgrade(&registered));
        Ok(TensorKernel(registered))
    }

    /// Iterates over the registered kernels that are still in use.
    pub fn iter(&self) -> impl Iterator<Item = TensorKernel> + '_ {
        self.live().map(TensorKernel)
    }

    fn live(&self) -> impl Iterator<Item = Arc<Registered>> + '_ {
        self.kernels.iter().filter_map(Weak::upgrade)
    }

    /// Sets the device that existing and future kernels are checked against. Returns the errors of existing kernels.
    pub(crate) fn set_device(&mut self, features: wgpu::Features, limits: wgpu::Limits) -> Vec<KernelError> {
        self.device = Some(Device { features, limits });
        let mut errors = Vec::new();
        for kernel in self.live() {
            let Source::Wgsl(text) = &kernel.description.source else { continue };
            if let Err(error) = kernel.compile_caught(text, self.device.as_ref()) {
                *kernel.state.write().unwrap_or_else(PoisonError::into_inner) =
                    State { error: Some(error.clone()), ..State::default() };
                errors.push(error);
            }
        }
        errors
    }
}

/// Checks a description without its text.
fn check_description(kernel: &CustomKernel) -> Result<(), KernelError> {
    let wrong = |reason: String| Err(KernelError::Description { kernel: kernel.name, reason });
    if kernel.elementwise {
        return Ok(());
    }
    if kernel.outputs.is_empty() {
        return wrong("it has no output".to_owned());
    }
    if kernel.cpu_element.is_some() {
        return wrong("cpu_element is for elementwise kernels; use cpu".to_owned());
    }
    if let Dispatch::Workgroups(workgroups) = kernel.dispatch
        && workgroups.contains(&0)
    {
        return Err(KernelError::ZeroWorkgroups { kernel: kernel.name, workgroups });
    }
    let mut names: Vec<&str> = kernel.inputs.clone();
    names.extend(kernel.outputs.iter().map(|output| output.name));
    names.extend(kernel.scratch.iter().map(|(name, _)| *name));
    names.extend(kernel.params.map(|(name, _)| name));
    match names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
        Some((_, name)) => wrong(format!("`{name}` is named twice")),
        None => Ok(()),
    }
}

/// Adds `app.register_kernel(…)`.
pub trait RegisterTensorKernel {
    /// Registers a kernel with the app's [`TensorKernels`]; see [`TensorKernels::register`].
    fn register_kernel(&mut self, kernel: CustomKernel) -> Result<TensorKernel, KernelError>;
}

impl RegisterTensorKernel for App {
    fn register_kernel(&mut self, kernel: CustomKernel) -> Result<TensorKernel, KernelError> {
        self.init_resource::<TensorKernels>().world_mut().resource_mut::<TensorKernels>().register(kernel)
    }
}

/// Compiles shader assets that were loaded or changed, before anything is recorded in this frame.
pub(crate) fn reload_kernels(
    kernels: Res<TensorKernels>,
    shaders: Option<Res<Assets<Shader>>>,
    mut changes: MessageReader<AssetEvent<Shader>>,
    mut commands: Commands,
) {
    let Some(shaders) = shaders else { return };
    let changed: Vec<AssetId<Shader>> = changes
        .read()
        .filter_map(|change| match change {
            AssetEvent::Added { id } | AssetEvent::Modified { id } => Some(*id),
            _ => None,
        })
        .collect();
    for kernel in kernels.live() {
        let Some(id) = kernel.shader().filter(|id| changed.contains(id) || kernel.is_waiting()) else { continue };
        let Some(shader) = shaders.get(id) else { continue };
        let result = match &shader.source {
            ShaderSource::Wgsl(text) => kernel.update(text, kernels.device.as_ref()),
            _ => kernel.refuse("its shader is not WGSL"),
        };
        if let Err(error) = result {
            commands.trigger(TensorFault::Kernel(error));
        }
    }
}
