//! Tensors as Bevy components.
#![allow(dead_code, unused_imports)]

mod anywhere;
mod cpu;
mod diagnostics;
mod error;
mod extract;
mod fault;
mod gpu;
mod kernel;
mod plan;
mod plugin;
mod readback;
mod record;
mod support;
mod tensor;

pub use anywhere::{AnywherePlugins, has_adapter, has_display};
pub use diagnostics::{TensorDiagnostics, TensorFigures};
pub use error::{OpError, OperandInfo, ReadError, RunError, TensorError};
pub use fault::TensorFault;
pub use plan::{PlanReport, StepReport};
pub use plugin::{MemorySettings, PipelineSettings, TensorComputePlugin, TensorSystems};
pub use readback::{TensorReady, TensorReceiver};
pub use record::{
    AttentionSettings, Axes, Axis, BinaryOp, ConvSettings, ConvTransposeSettings, DepthOrder, PadMode, Padding,
    PoolSettings, ResizeCoordinates, ResizeMode, ResizeRounding, ResizeSettings, ResizeTo, RopeLayout, ScatterMode,
    TensorCommands, TensorExpression, TensorOperand, TensorValue, UnaryOp,
};
pub use support::{AdapterFacts, Backend, BackendChoice, ModelBackend, TensorSupport};
pub use tensor::{
    DType, Element, Layout, ModelTensors, NameError, Shape, ShareError, Strides, Tensor, TensorData, TensorModel,
    TensorModels, TensorOf, Truth,
};

/// Everything most apps use. [`Axis`](crate::Axis) is not in it, since Bevy's prelude has one of its own.
pub mod prelude {
    pub use crate::{
        AnywherePlugins, Axes, Backend, BackendChoice, DType, ModelBackend, Shape, Tensor, TensorCommands,
        TensorComputePlugin, TensorData, TensorDiagnostics, TensorFault, TensorModel, TensorModels, TensorOf,
        TensorReady, TensorReceiver, TensorSupport, TensorSystems, TensorValue, Truth,
    };
}
