//! Errors of making tensors, views and host data.

use thiserror::Error;

use crate::ir::{DType, Shape};

/// Making a tensor, a view of one, or host data.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The number of values is not what the shape asks for.
    #[error("a tensor of shape {shape} cannot be made of {values} values")]
    Length {
        /// The shape asked for.
        shape: Shape,
        /// The values given.
        values: usize,
    },
    /// Rows of different lengths.
    #[error("row {row} has {length} values but the first row has {expected}")]
    Ragged {
        /// The first row that differs.
        row: usize,
        /// Its length.
        length: usize,
        /// The length of the first row.
        expected: usize,
    },
    /// More elements than can be addressed.
    #[error("a tensor of shape {shape} and type {dtype} is too large to address")]
    TooLarge {
        /// The shape asked for.
        shape: Shape,
        /// The element type asked for.
        dtype: DType,
    },
    /// Host data is of another type than asked for.
    #[error("the values are {held}, not {asked}")]
    ElementType {
        /// What the data is.
        held: DType,
        /// What was asked for.
        asked: DType,
    },
    /// The constructor has no meaning for this element type.
    #[error("{constructor} makes no {dtype} tensors")]
    UnsupportedType {
        /// The constructor.
        constructor: &'static str,
        /// The element type asked for.
        dtype: DType,
    },
    /// Rows that are not made of whole blocks.
    #[error(
        "a {dtype} tensor of shape {shape} cannot be made: the last axis is not a multiple of {block}, the block of the type"
    )]
    Blocks {
        /// The shape asked for.
        shape: Shape,
        /// The quantised type.
        dtype: DType,
        /// Elements of its blocks.
        block: usize,
    },
    /// The number of bytes is not what the blocks take.
    #[error("a {dtype} tensor of shape {shape} is made of {expected} bytes, not {bytes}")]
    BlockBytes {
        /// The shape asked for.
        shape: Shape,
        /// The quantised type.
        dtype: DType,
        /// The bytes its blocks take.
        expected: usize,
        /// The bytes given.
        bytes: usize,
    },
    /// A view of a quantised tensor that is not a run of whole rows.
    #[error("a {dtype} tensor of shape {shape} can only be seen as a run of whole rows; dequantize it first")]
    QuantizedView {
        /// The shape of the tensor.
        shape: Shape,
        /// The quantised type.
        dtype: DType,
    },
    /// An axis that the shape does not have.
    #[error("axis {axis} does not exist in shape {shape}")]
    Axis {
        /// The axis asked for.
        axis: isize,
        /// The shape.
        shape: Shape,
    },
    /// A range that leaves its axis, or a step of 0.
    #[error("{start}..{end} step {step} is not a range of axis {axis} of shape {shape}")]
    Range {
        /// Start asked for.
        start: isize,
        /// End asked for.
        end: isize,
        /// Step asked for.
        step: isize,
        /// The axis.
        axis: usize,
        /// The shape.
        shape: Shape,
    },
    /// The axes given are not each axis once.
    #[error("{order:?} does not list every axis of shape {shape} once")]
    Permutation {
        /// The order asked for.
        order: Vec<isize>,
        /// The shape.
        shape: Shape,
    },
    /// Shapes that hold different numbers of elements.
    #[error("shape {from} has {} elements and cannot become {to} with {}", .from.elements(), .to.elements())]
    Reshape {
        /// The shape there is.
        from: Shape,
        /// The shape asked for.
        to: Shape,
    },
    /// The view is strided in a way the new shape cannot express without copying.
    #[error("a strided view of shape {from} cannot be seen as {to} without a copy; record `ops.reshape` instead")]
    NeedsCopy {
        /// The shape there is.
        from: Shape,
        /// The shape asked for.
        to: Shape,
    },
    /// A shape that does not broadcast to another.
    #[error("shape {from} does not broadcast to {to}")]
    Broadcast {
        /// The shape there is.
        from: Shape,
        /// The shape asked for.
        to: Shape,
    },
    /// A window beyond the end of the tensor.
    #[error("{size} elements from {offset} do not lie within a tensor of {elements}")]
    Window {
        /// First element asked for.
        offset: usize,
        /// Elements asked for.
        size: usize,
        /// Elements there are.
        elements: usize,
    },
}
