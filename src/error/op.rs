//! Errors of recording ops.

use bevy::ecs::entity::Entity;
use thiserror::Error;

use super::KernelError;
use crate::ir::{Backend, DType, Shape};

/// The description of an operand in an error.
#[derive(Clone, Debug, PartialEq)]
pub struct OperandInfo {
    /// The tensor's name, or its entity if it has none. For a value, the op that made it.
    pub name: String,
    /// Sizes of its axes.
    pub shape: Shape,
    /// Its element type.
    pub dtype: DType,
}

impl core::fmt::Display for OperandInfo {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} is {}", self.name, self.shape)
    }
}

fn list_shapes(operands: &[OperandInfo]) -> String {
    list(operands.iter().map(OperandInfo::to_string).collect())
}

fn list_types(operands: &[OperandInfo]) -> String {
    list(operands.iter().map(|o| format!("{} is {}", o.name, o.dtype)).collect())
}

/// `a is … but b is …` for two operands, `a is …, b is … and c is …` for more.
fn list(facts: Vec<String>) -> String {
    match &facts[..] {
        [first @ .., last] if first.len() > 1 => format!("{} and {last}", first.join(", ")),
        facts => facts.join(" but "),
    }
}

fn owner(model: Option<Entity>) -> String {
    model.map_or_else(|| "work without a model".to_owned(), |model| format!("model {model}"))
}

/// An error of recording an op. Nothing was recorded for the op and nothing reached a device.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum OpError {
    /// The value was to move to the GPU, but the app has no device.
    #[error("{op}: there is no GPU to move to; the app has no renderer, or its device is gone")]
    NoDevice {
        /// The op.
        op: &'static str,
    },
    /// The entity has no [`Tensor`](crate::tensor::Tensor): it is not spawned yet, or was despawned.
    #[error("{op}: entity {entity} has no tensor")]
    MissingTensor {
        /// The op.
        op: &'static str,
        /// The entity given.
        entity: Entity,
    },
    /// The tensor is bound as a storage buffer of shaders, which need it on the device.
    #[error("{op}: {tensor} is bound as a storage buffer of shaders; remove its TensorBinding first")]
    Bound {
        /// The op.
        op: &'static str,
        /// The name of the tensor.
        tensor: String,
    },
    /// The model does not exist: it is not spawned yet, or was despawned.
    #[error("{op}: model {model} does not exist")]
    MissingModel {
        /// The op.
        op: &'static str,
        /// The entity given.
        model: Entity,
    },
    /// The model has no tensors.
    #[error("{op}: model {model} has no tensors")]
    EmptyModel {
        /// The op.
        op: &'static str,
        /// The model.
        model: Entity,
    },
    /// The tensors of the model are still being loaded.
    #[error("{op}: model {model} is still loading its tensors")]
    LoadingModel {
        /// The op.
        op: &'static str,
        /// The model.
        model: Entity,
    },
    /// The model has as many unfinished recordings as its [`TensorBacklog`](crate::schedule::TensorBacklog) allows. Record
    /// again in a later frame.
    #[error("{op}: {} is busy: {in_flight} recordings are in flight and {waiting} wait", owner(*model))]
    Busy {
        /// The op.
        op: &'static str,
        /// The model. `None` for tensors without a model.
        model: Option<Entity>,
        /// Frames whose recordings a backend has not finished.
        in_flight: usize,
        /// Frames whose recordings wait.
        waiting: usize,
    },
    /// The tensor has the same name as another tensor of its model, so the name is ambiguous.
    #[error("{op}: model {model} has two tensors named \"{name}\"")]
    DuplicateName {
        /// The op.
        op: &'static str,
        /// The model.
        model: Entity,
        /// The name.
        name: String,
    },
    /// A value of another recording: another `TensorCommands` of the same system, or the closure of a warm-up.
    #[error("{op}: the value belongs to another recording; store it in a tensor to share it")]
    ForeignValue {
        /// The op.
        op: &'static str,
    },
    /// Operands on different backends.
    #[error("{op}: {first} is on the {first_backend} but {second} is on the {second_backend}")]
    MixedBackends {
        /// The op.
        op: &'static str,
        /// An operand.
        first: String,
        /// Its backend.
        first_backend: Backend,
        /// Another operand.
        second: String,
        /// Its backend.
        second_backend: Backend,
    },
    /// The shapes are not valid for the op.
    #[error("{op}: {}; {reason}", list_shapes(operands))]
    Shape {
        /// The op.
        op: &'static str,
        /// The operands that do not fit.
        operands: Vec<OperandInfo>,
        /// The reason.
        reason: String,
    },
    /// The element types are not valid for the op.
    #[error("{op}: {}; {reason}", list_types(operands))]
    Type {
        /// The op.
        op: &'static str,
        /// The operands that do not fit.
        operands: Vec<OperandInfo>,
        /// The reason.
        reason: String,
    },
    /// An axis that does not exist or is named twice.
    #[error("{op}: {operand}; axis {axis} {reason}")]
    Axis {
        /// The op.
        op: &'static str,
        /// The operand.
        operand: Box<OperandInfo>,
        /// The axis given.
        axis: isize,
        /// The reason.
        reason: &'static str,
    },
    /// An invalid argument, such as a size, a range or a number of groups.
    #[error("{op}: {reason}")]
    Argument {
        /// The op.
        op: &'static str,
        /// The reason.
        reason: String,
    },
    /// Host data does not match the tensor that it is written to.
    #[error("{op}: {operand} of type {}; {reason}", operand.dtype)]
    Data {
        /// The op.
        op: &'static str,
        /// The tensor.
        operand: Box<OperandInfo>,
        /// The reason.
        reason: String,
    },
    /// The tensor is a broadcast view, in which several indices are the same element. It cannot be written.
    #[error("{op}: {operand}; a broadcast view cannot be written")]
    ReadOnlyView {
        /// The op.
        op: &'static str,
        /// The view.
        operand: Box<OperandInfo>,
    },
    /// A custom kernel that cannot run: its shader is not loaded, or it exceeds the limits of the device.
    #[error("{0}")]
    Kernel(Box<KernelError>),
    /// A custom kernel without a CPU function cannot run on the CPU.
    #[error("{op}: the kernel has no CPU function, but its tensors are on the CPU")]
    NoCpuFunction {
        /// The kernel.
        op: &'static str,
    },
}

/// The result of recording an op.
pub type OpResult<T> = Result<T, OpError>;

impl OpError {
    /// The result, or a value that the op needs on the way, has more elements than can be addressed.
    pub(crate) fn too_large(op: &'static str, shape: &Shape) -> Self {
        Self::Argument { op, reason: format!("a result of shape {shape} is too large to address") }
    }
}

impl From<KernelError> for OpError {
    fn from(error: KernelError) -> Self {
        Self::Kernel(Box::new(error))
    }
}
