//! Errors of creating tensors, views and host data.

use thiserror::Error;

use crate::ir::{DType, Shape};

/// The error of creating a tensor, a view, or host data.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The number of values does not match the shape.
    #[error("a tensor of shape {shape} cannot be created from {values} values")]
    Length {
        /// The requested shape.
        shape: Shape,
        /// The number of values.
        values: usize,
    },
    /// The rows have different lengths.
    #[error("row {row} has {length} values but the first row has {expected}")]
    Ragged {
        /// The first row that differs.
        row: usize,
        /// Its length.
        length: usize,
        /// The length of the first row.
        expected: usize,
    },
    /// The tensor has more elements than can be addressed.
    #[error("a tensor of shape {shape} and type {dtype} is too large to address")]
    TooLarge {
        /// The requested shape.
        shape: Shape,
        /// The requested element type.
        dtype: DType,
    },
    /// The data has another type than requested.
    #[error("the data has type {held}, but {asked} was requested")]
    ElementType {
        /// The type of the data.
        held: DType,
        /// The requested type.
        asked: DType,
    },
    /// The constructor does not support the element type.
    #[error("{constructor} does not support {dtype} tensors")]
    UnsupportedType {
        /// The constructor.
        constructor: &'static str,
        /// The requested element type.
        dtype: DType,
    },
    /// The rows are not whole blocks.
    #[error(
        "a {dtype} tensor cannot have shape {shape}: the last axis is not a multiple of the block size {block} of the type"
    )]
    Blocks {
        /// The requested shape.
        shape: Shape,
        /// The quantised type.
        dtype: DType,
        /// Elements per block.
        block: usize,
    },
    /// The number of bytes does not match the blocks.
    #[error("a {dtype} tensor of shape {shape} needs {expected} bytes of blocks, but {bytes} were given")]
    BlockBytes {
        /// The requested shape.
        shape: Shape,
        /// The quantised type.
        dtype: DType,
        /// The bytes of its blocks.
        expected: usize,
        /// The number of bytes given.
        bytes: usize,
    },
    /// A view of a quantised tensor must be a range of whole rows.
    #[error("a view of a {dtype} tensor of shape {shape} must be a range of whole rows; dequantize it first")]
    QuantizedView {
        /// The shape of the tensor.
        shape: Shape,
        /// The quantised type.
        dtype: DType,
    },
    /// The shape does not have the axis.
    #[error("axis {axis} does not exist in shape {shape}")]
    Axis {
        /// The requested axis.
        axis: isize,
        /// The shape.
        shape: Shape,
    },
    /// The range is outside of the axis, or the step is 0.
    #[error("{start}..{end} with step {step} is not a valid range of axis {axis} of shape {shape}")]
    Range {
        /// The start.
        start: isize,
        /// The end.
        end: isize,
        /// The step.
        step: isize,
        /// The axis.
        axis: usize,
        /// The shape.
        shape: Shape,
    },
    /// The order does not contain every axis once.
    #[error("the order {order:?} does not contain every axis of shape {shape} once")]
    Permutation {
        /// The order.
        order: Vec<isize>,
        /// The shape.
        shape: Shape,
    },
    /// The shapes have different numbers of elements.
    #[error("shape {from} with {} elements cannot be reshaped to {to} with {}", .from.elements(), .to.elements())]
    Reshape {
        /// The current shape.
        from: Shape,
        /// The requested shape.
        to: Shape,
    },
    /// The strides of the view do not allow the new shape without a copy.
    #[error("a strided view of shape {from} cannot be reshaped to {to} without a copy; use `TensorCommands::reshape`")]
    NeedsCopy {
        /// The current shape.
        from: Shape,
        /// The requested shape.
        to: Shape,
    },
    /// The shape cannot be broadcast to the other.
    #[error("shape {from} does not broadcast to {to}")]
    Broadcast {
        /// The current shape.
        from: Shape,
        /// The requested shape.
        to: Shape,
    },
    /// The window is outside of the tensor.
    #[error("a window of {size} elements at {offset} is outside of a tensor of {elements} elements")]
    Window {
        /// The first element of the window.
        offset: usize,
        /// The size of the window.
        size: usize,
        /// The number of elements of the tensor.
        elements: usize,
    },
}
