//! Tensors as Bevy components.
#![allow(dead_code, unused_imports)]

mod cpu;
mod error;
mod fault;
mod gpu;
mod kernel;
mod plan;
mod readback;
mod record;
mod support;
mod tensor;

pub use error::{OpError, OperandInfo, ReadError, RunError, TensorError};
pub use fault::TensorFault;
pub use plan::{PlanReport, StepReport};
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
