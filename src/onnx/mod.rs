//! ONNX models as assets, run as they are.

mod call;
mod graph;
mod host;
mod host_ops;
mod operators;
mod small_float;
mod value;

pub use graph::{Dimension, ValueType};
pub use host::{HostError, HostTensor, Numbers};

pub use crate::formats::onnx::{ElementType, OnnxFormatError};
