//! Errors of tensors as storage buffers of shaders, and of storage buffers as tensors.

use bevy::ecs::entity::Entity;
use thiserror::Error;

use super::{OpError, ReadError, RunError, TensorError};
use crate::ir::{DType, Shape};

/// The error of binding a tensor as a storage buffer, or of using a storage buffer as a tensor.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum BindingError {
    /// The app has no renderer, so there are no shaders that could read the tensor.
    #[error("the app has no renderer with storage buffers")]
    NoRenderer,
    /// The entity has no tensor: it is not spawned yet, or was despawned.
    #[error("entity {entity} has no tensor")]
    UnknownTensor {
        /// The entity given.
        entity: Entity,
    },
    /// The entity is not bound.
    #[error("entity {entity} has no TensorBinding")]
    NotBound {
        /// The entity given.
        entity: Entity,
    },
    /// The tensor does not have the element type that the shader expects.
    #[error("binding \"{name}\" expects {expected}, but the tensor is {found} of shape {shape}")]
    Type {
        /// The name of the binding.
        name: String,
        /// The type that [`BindingSettings::dtype`](crate::binding::BindingSettings::dtype) asks for.
        expected: DType,
        /// The type of the tensor.
        found: DType,
        /// The shape of the tensor.
        shape: Shape,
    },
    /// The tensor has fewer elements than the shader expects.
    #[error("binding \"{name}\" expects at least {expected} elements, but the tensor of shape {shape} has {found}")]
    TooFewElements {
        /// The name of the binding.
        name: String,
        /// The number that [`BindingSettings::elements`](crate::binding::BindingSettings::elements) asks for.
        expected: usize,
        /// The elements of the tensor.
        found: usize,
        /// The shape of the tensor.
        shape: Shape,
    },
    /// The tensor is larger than a binding of this device.
    #[error("binding \"{name}\" needs {bytes} bytes, but a binding of this device has at most {available}")]
    TooLarge {
        /// The name of the binding.
        name: String,
        /// Bytes of the tensor's buffer.
        bytes: u64,
        /// The limit of the device.
        available: u64,
    },
    /// The name is not a WGSL identifier.
    #[error("\"{name}\" is not a WGSL identifier")]
    Name {
        /// The name given.
        name: String,
    },
    /// The tensor was despawned, or its binding removed, while a handle of its buffer was in use. Shaders see its last
    /// content until the last handle is dropped.
    #[error("the tensor of binding \"{name}\" was removed from entity {entity} while its buffer was in use")]
    Removed {
        /// The name of the binding.
        name: String,
        /// The tensor's entity.
        entity: Entity,
    },
    /// Only tensors on the GPU backend can use a storage buffer of the app.
    #[error("a storage buffer of the app can only be a tensor of the GPU backend")]
    NoDevice,
    /// The handle has no storage buffer.
    #[error("the handle has no storage buffer: it is not added yet, or was removed")]
    UnknownBuffer,
    /// The storage buffer is smaller than the tensor. Tensors need a multiple of 16 bytes.
    #[error("{dtype} of shape {shape} needs a storage buffer of {expected} bytes, but this one has {found}")]
    BufferTooSmall {
        /// The type of the tensor.
        dtype: DType,
        /// The shape of the tensor.
        shape: Shape,
        /// Bytes that the tensor needs.
        expected: u64,
        /// Bytes of the buffer.
        found: u64,
    },
    /// The storage buffer lacks a usage flag.
    #[error("the storage buffer needs the usages STORAGE, COPY_SRC and COPY_DST")]
    BufferUsage,
    /// The tensor cannot be created.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The tensor cannot be read.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The content did not arrive from the CPU backend.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The tensor cannot be brought to the device.
    #[error(transparent)]
    Run(#[from] RunError),
}
