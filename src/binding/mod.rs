//! Tensors in materials and other passes, without copies.
//!
//! A [`TensorBinding`] makes the buffer of a [`Tensor`] the content of a `Handle<ShaderBuffer>`. `AsBindGroup` takes
//! the handle as it is, so every `Material`, `Material2d`, `UiMaterial` and custom pass can read the tensor:
//!
//! ```
//! # use bevy::prelude::*;
//! # use bevy::render::render_resource::AsBindGroup;
//! # use bevy::render::storage::ShaderBuffer;
//! # use bevy_tensor_compute::prelude::*;
//! #[derive(Asset, AsBindGroup, TypePath, Clone)]
//! struct WaterMaterial {
//!     #[storage(0, read_only)]
//!     heights: Handle<ShaderBuffer>,
//! }
//!
//! fn spawn_water(
//!     mut commands: Commands,
//!     mut bindings: TensorBindings,
//!     mut materials: ResMut<Assets<WaterMaterial>>,
//! ) -> Result {
//!     let heights = Tensor::zeros([512, 512], DType::F32)?;
//!     let binding = bindings.create(&heights, BindingSettings::new("heights"))?;
//!     materials.add(WaterMaterial { heights: binding.buffer().clone() });
//!     commands.spawn((heights, binding));
//!     Ok(())
//! }
//! ```
//!
//! The shader imports what it needs to read the tensor. The module follows the tensor's shape, also when that changes:
//!
//! ```wgsl
//! #import tensor::heights
//!
//! let height = heights::at(row, column);      // also `element(n)`, `SHAPE`, `STRIDES`, `OFFSET`, `ELEMENTS`, `words`
//! ```
//!
//! Tensor work that was recorded in a frame runs before all cameras of that frame, so shaders see its results. A bound
//! tensor is pinned to the device. When its buffer is replaced, because the tensor was resized or the device was lost,
//! [`TensorMaterialPlugin`] marks the materials as changed.
//!
//! On the CPU backend, the content is uploaded to the storage buffer whenever it changed, a few frames later.
//!
//! [`TensorBindings::tensor_from_buffer`] goes the other way: a storage buffer of the app becomes a tensor.

mod accessor;
mod bound;
mod material;

use bevy::app::{App, PostUpdate};
use bevy::asset::{AssetEventSystems, Assets, Handle, RenderAssetUsages};
use bevy::ecs::system::SystemParam;
use bevy::prelude::*;
use bevy::render::render_resource::BufferUsages;
use bevy::render::storage::ShaderBuffer;
use bevy::shader::Shader;

pub use material::TensorMaterialPlugin;

use crate::error::BindingError;
use crate::gpu::buffer_size;
use crate::ir::{Backend, DType, Shape};
use crate::mailbox::{BindingNewsSender, BindingRequest, Outbox};
use crate::support::TensorSupport;
use crate::tensor::Tensor;
use bound::BoundTensors;

/// The settings of a [`TensorBinding`].
#[derive(Clone, Debug, PartialEq, Reflect)]
#[reflect(Debug, Clone, PartialEq)]
pub struct BindingSettings {
    /// The name of the WGSL module: shaders use it with `#import tensor::name`.
    pub name: String,
    /// The bind group in the WGSL module. Default: `#{MATERIAL_BIND_GROUP}`, the group of materials.
    pub group: String,
    /// The binding in the WGSL module. Default: 0.
    pub binding: u32,
    /// The element type that the shader expects. Default: any.
    pub dtype: Option<DType>,
    /// The number of elements that the shader expects at least. Default: 0.
    pub elements: usize,
    /// Whether the shader writes the tensor. Passes that write it and tensor work of the same frame are ordered as they
    /// are submitted: tensor work first. Default: false.
    pub writable: bool,
}

impl BindingSettings {
    /// The default settings, with a name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            group: "#{MATERIAL_BIND_GROUP}".to_owned(),
            binding: 0,
            dtype: None,
            elements: 0,
            writable: false,
        }
    }

    /// Fails if the tensor is not what the shader expects.
    fn check(&self, tensor: &Tensor) -> Result<(), BindingError> {
        let (found, shape) = (tensor.dtype(), tensor.shape().clone());
        if let Some(expected) = self.dtype.filter(|expected| *expected != found) {
            return Err(BindingError::Type { name: self.name.clone(), expected, found, shape });
        }
        let (expected, found) = (self.elements, shape.elements());
        if found < expected {
            return Err(BindingError::TooFewElements { name: self.name.clone(), expected, found, shape });
        }
        Ok(())
    }

    /// Fails if the name cannot be that of a WGSL module.
    fn check_name(&self) -> Result<(), BindingError> {
        let word = self.name.starts_with(|first: char| first.is_ascii_alphabetic())
            && self.name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        // Keywords are words too.
        match word && naga::front::wgsl::parse_str(&format!("const {} = 1;", self.name)).is_ok() {
            true => Ok(()),
            false => Err(BindingError::Name { name: self.name.clone() }),
        }
    }
}

/// Makes the buffer of the [`Tensor`] on the same entity a storage buffer of shaders. Create it with
/// [`TensorBindings::create`] or [`TensorBindings::bind`].
///
/// To resize, insert another `Tensor`. Remove the component to unbind. Shaders that still use the buffer then see its
/// last content, and a [`TensorFault::Binding`](crate::error::TensorFault::Binding) says so.
#[derive(Component, Clone, Debug, Reflect)]
#[component(immutable)]
#[reflect(Component, Debug, Clone)]
pub struct TensorBinding {
    settings: BindingSettings,
    buffer: Handle<ShaderBuffer>,
    module: Handle<Shader>,
}

impl TensorBinding {
    /// The storage buffer, for the fields of materials and for `RenderAssets<GpuShaderBuffer>`.
    ///
    /// The buffer can be larger than the tensor, so `arrayLength` is not its number of elements.
    pub fn buffer(&self) -> &Handle<ShaderBuffer> {
        &self.buffer
    }

    /// The WGSL module that reads the tensor.
    pub fn module(&self) -> &Handle<Shader> {
        &self.module
    }

    /// The settings.
    pub fn settings(&self) -> &BindingSettings {
        &self.settings
    }
}

/// Whether shaders can see a bound tensor.
#[derive(Clone, Debug, PartialEq, Default)]
#[non_exhaustive]
pub enum BindingState {
    /// The buffer is not on the device yet. Materials that use it are not drawn.
    #[default]
    Waiting,
    /// Shaders read the tensor's own buffer.
    Shared,
    /// Shaders read a copy of a tensor of the CPU backend. It is updated when the tensor changes.
    Uploaded,
    /// The tensor cannot be bound. If it was bound before, shaders see that content.
    Failed(BindingError),
}

/// System parameter that binds tensors as storage buffers, and makes tensors of storage buffers.
#[derive(SystemParam)]
pub struct TensorBindings<'w, 's> {
    tensors: Query<'w, 's, (&'static Tensor, Option<&'static TensorBinding>)>,
    bound: Res<'w, BoundTensors>,
    buffers: Option<ResMut<'w, Assets<ShaderBuffer>>>,
    shaders: Option<ResMut<'w, Assets<Shader>>>,
    support: Res<'w, TensorSupport>,
    outbox: ResMut<'w, Outbox>,
    commands: Commands<'w, 's>,
}

impl TensorBindings<'_, '_> {
    /// Creates the binding of a tensor. Insert it on the entity of the tensor.
    pub fn create(&mut self, tensor: &Tensor, settings: BindingSettings) -> Result<TensorBinding, BindingError> {
        settings.check_name()?;
        settings.check(tensor)?;
        let (Some(buffers), Some(shaders)) = (&mut self.buffers, &mut self.shaders) else {
            return Err(BindingError::NoRenderer);
        };
        // The renderer must not create a buffer for it.
        let asset_usage = RenderAssetUsages::MAIN_WORLD;
        let buffer = buffers.add(ShaderBuffer { asset_usage, ..ShaderBuffer::default() });
        let module = shaders.add(module(tensor, &settings));
        Ok(TensorBinding { settings, buffer, module })
    }

    /// Binds the tensor of an entity by inserting a [`TensorBinding`], and returns its storage buffer. A tensor that
    /// has a binding with the same settings keeps it.
    pub fn bind(&mut self, entity: Entity, settings: BindingSettings) -> Result<Handle<ShaderBuffer>, BindingError> {
        let (tensor, old) = self.tensors.get(entity).map_err(|_| BindingError::UnknownTensor { entity })?;
        if let Some(old) = old.filter(|old| old.settings == settings) {
            settings.check(tensor)?;
            return Ok(old.buffer.clone());
        }
        let tensor = tensor.clone();
        let binding = self.create(&tensor, settings)?;
        let buffer = binding.buffer.clone();
        self.commands.entity(entity).try_insert(binding);
        Ok(buffer)
    }

    /// Whether shaders can see the tensor of an entity.
    pub fn state(&self, entity: Entity) -> Result<BindingState, BindingError> {
        let (_, binding) = self.tensors.get(entity).map_err(|_| BindingError::UnknownTensor { entity })?;
        let binding = binding.ok_or(BindingError::NotBound { entity })?;
        Ok(self.bound.state(binding.buffer.id()))
    }

    /// The WGSL that reads the tensor of an entity, for shaders without imports. The names that the module has without a
    /// prefix begin with the name of the binding: `heights_at`, `heights_SHAPE`.
    pub fn wgsl(&self, entity: Entity) -> Result<String, BindingError> {
        let (tensor, binding) = self.tensors.get(entity).map_err(|_| BindingError::UnknownTensor { entity })?;
        let settings = &binding.ok_or(BindingError::NotBound { entity })?.settings;
        Ok(accessor::accessor(tensor, settings, &format!("{}_", settings.name)))
    }

    /// Creates a tensor of the GPU backend whose device memory is a storage buffer of the app. Nothing is copied: ops
    /// and the app's shaders see each other's writes. Work that uses the tensor waits until the buffer is on the device.
    ///
    /// The buffer needs a multiple of 16 bytes, and the usages `STORAGE`, `COPY_SRC` and `COPY_DST`, which are the
    /// defaults of [`ShaderBuffer`]. If the app replaces it by a larger one, the tensor follows. If the device is lost,
    /// the content is what the app gives the new buffer.
    pub fn tensor_from_buffer(
        &mut self,
        buffer: &Handle<ShaderBuffer>,
        dtype: DType,
        shape: impl Into<Shape>,
    ) -> Result<Tensor, BindingError> {
        let buffers = self.buffers.as_ref().ok_or(BindingError::NoRenderer)?;
        if self.support.backend != Backend::Gpu {
            return Err(BindingError::NoDevice);
        }
        let asset = buffers.get(buffer).ok_or(BindingError::UnknownBuffer)?;
        let shape = shape.into();
        let found = asset.data.as_ref().map_or(asset.buffer_description.size, |data| data.len() as u64);
        let usage = asset.buffer_description.usage;
        let tensor = Tensor::borrowed(dtype, shape.clone())?;
        let expected = buffer_size(tensor.storage().words());
        // The data of a buffer that is only in the render world has been taken out of the asset.
        let known = asset.data.is_some() || found > 0;
        if known && found < expected {
            return Err(BindingError::BufferTooSmall { dtype, shape, expected, found });
        }
        if !usage.contains(BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST) {
            return Err(BindingError::BufferUsage);
        }
        self.outbox.post(BindingRequest::Borrow { asset: buffer.id(), tensor: tensor.clone() });
        Ok(tensor)
    }
}

/// The WGSL module of a tensor.
fn module(tensor: &Tensor, settings: &BindingSettings) -> Shader {
    let name = &settings.name;
    let text = format!("#define_import_path tensor::{name}\n\n{}", accessor::accessor(tensor, settings, ""));
    Shader::from_wgsl(text, format!("tensor/{name}.wgsl"))
}

/// Adds the systems of the main world. Those of the render world are in the plugin's schedule.
pub(crate) fn plugin(app: &mut App) {
    let (sender, receiver) = crossbeam_channel::unbounded();
    app.register_type::<BindingSettings>()
        .register_type::<TensorBinding>()
        .insert_resource(BindingNewsSender(sender))
        .insert_resource(BoundTensors::new(receiver))
        .add_message::<bevy::asset::AssetEvent<ShaderBuffer>>()
        .configure_sets(PostUpdate, bound::BindingSystems.before(AssetEventSystems))
        .add_systems(
            PostUpdate,
            (
                bound::begin_frame,
                bound::notice_removals,
                bound::bind_tensors,
                bound::follow_backends,
                bound::upload_contents,
                bound::hear_news,
            )
                .chain()
                .in_set(bound::BindingSystems),
        );
}
