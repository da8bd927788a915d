//! Plain data types that all other modules build on: shapes, element types, ops, graphs, scalar expressions and
//! operands.
//!
//! This module depends on neither the renderer nor wgpu.

mod backend;
mod blocks;
mod custom;
mod dtype;
mod expr;
mod fourier;
mod functions;
mod graph;
mod op;
mod operand;
mod recurrent;
mod sampling;
mod shape;
mod structure;

pub use backend::Backend;
pub use custom::{CpuKernelCall, Dispatch, OutputShape, SourcePlace};
pub use dtype::{Class, DType, Element, GgufType, Truth};
pub use op::{BinaryOp, UnaryOp};
pub use sampling::{SampleFilter, SamplePadding};
pub use shape::{Layout, Shape, Strides};

pub(crate) use blocks::{BlockFormat, Coding, GGUF_TABLE};
pub(crate) use custom::{
    BindingInfo, CpuElementFunction, CpuFunction, CustomCall, ElementFunction, KernelCode, MAX_ARGUMENTS, Member,
    Numbers, ParamsLayout,
};
pub(crate) use dtype::scalar_bits;
pub(crate) use expr::{Expr, Primitive, Program, Reg};
pub(crate) use fourier::{Fourier, FourierInput, FourierOutput};
pub(crate) use graph::{Graph, Node, NodeId};
pub(crate) use op::{InnerOp, NormKind, Op, OpKind, PoolKind, ReduceKind, ScatterReduce, View, Window};
pub(crate) use operand::{Operand, Source};
pub(crate) use recurrent::{Activation, ActivationFunction, Cell, Recurrence};
pub(crate) use sampling::{RoiKind, RoiPooling, SampleCoordinates, Sampling};
pub(crate) use structure::{PartStructure, Structure};
