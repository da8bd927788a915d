//! Errors of recording ops.

use bevy::ecs::entity::Entity;
use thiserror::Error;

use super::KernelError;
use crate::ir::{Backend, DType, Shape};

/// An operand as an error names it.
#[derive(Clone, Debug, PartialEq)]
pub struct OperandInfo {
    /// The tensor's name, its entity where it has none, or `value` for an unnamed intermediate.
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
    operands.iter().map(OperandInfo::to_string).collect::<Vec<_>>().join(" but ")
}

fn list_types(operands: &[OperandInfo]) -> String {
    operands.iter().map(|o| format!("{} is {}", o.name, o.dtype)).collect::<Vec<_>>().join(" but ")
}

/// Recording an op. Nothing reached a device.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum OpError {
    /// The entity has no [`Tensor`](crate::Tensor): it was never spawned, is not spawned yet, or was despawned.
    #[error("{op}: entity {entity} has no tensor")]
    MissingTensor {
        /// The op.
        op: &'static str,
        /// The entity given.
        entity: Entity,
    },
    /// The tensor shares its name with another tensor of its model, so neither can be meant by it.
    #[error("{op}: model {model} has two tensors named \"{name}\"")]
    DuplicateName {
        /// The op.
        op: &'static str,
        /// The model.
        model: Entity,
        /// The name.
        name: String,
    },
    /// A value that another recording made: another system's, or an earlier frame's.
    #[error(
        "{op}: a value of another recording was given; values live for one run of one system, store them to keep them"
    )]
    ForeignValue {
        /// The op.
        op: &'static str,
    },
    /// Operands that live on different backends.
    #[error("{op}: {first} lives on the {first_backend} but {second} on the {second_backend}")]
    MixedBackends {
        /// The op.
        op: &'static str,
        /// An operand.
        first: String,
        /// Where it lives.
        first_backend: Backend,
        /// Another operand.
        second: String,
        /// Where that lives.
        second_backend: Backend,
    },
    /// Shapes that do not fit the op or each other.
    #[error("{op}: {}; {reason}", list_shapes(operands))]
    Shape {
        /// The op.
        op: &'static str,
        /// The operands concerned.
        operands: Vec<OperandInfo>,
        /// What does not fit.
        reason: String,
    },
    /// Element types that do not fit the op or each other.
    #[error("{op}: {}; {reason}", list_types(operands))]
    Type {
        /// The op.
        op: &'static str,
        /// The operands concerned.
        operands: Vec<OperandInfo>,
        /// What does not fit.
        reason: String,
    },
    /// An axis that the operand does not have, or one named twice.
    #[error("{op}: {operand}; axis {axis} {reason}")]
    Axis {
        /// The op.
        op: &'static str,
        /// The operand.
        operand: Box<OperandInfo>,
        /// The axis given.
        axis: isize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An argument (a size, a range, a number of groups) that the op cannot take.
    #[error("{op}: {reason}")]
    Argument {
        /// The op.
        op: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Host data that does not fit the tensor it is written to.
    #[error("{op}: {operand} of type {}; {reason}", operand.dtype)]
    Data {
        /// The op.
        op: &'static str,
        /// The tensor.
        operand: Box<OperandInfo>,
        /// What does not fit.
        reason: String,
    },
    /// The tensor cannot be written through this view: two of its indices are one element.
    #[error("{op}: {operand}; a broadcast view cannot be written")]
    ReadOnlyView {
        /// The op.
        op: &'static str,
        /// The view.
        operand: Box<OperandInfo>,
    },
    /// A custom kernel that cannot run: its shader is not there yet, or the device allows less than it needs.
    #[error("{0}")]
    Kernel(Box<KernelError>),
    /// A custom kernel without a CPU function was to run on the CPU.
    #[error("{op}: the kernel has no CPU function, and its tensors live on the CPU")]
    NoCpuFunction {
        /// The kernel.
        op: &'static str,
    },
}

/// The result of recording an op.
pub type OpResult<T> = Result<T, OpError>;

impl From<KernelError> for OpError {
    fn from(error: KernelError) -> Self {
        Self::Kernel(Box::new(error))
    }
}
