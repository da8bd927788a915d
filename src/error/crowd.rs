//! Errors of crowds.

use thiserror::Error;

use super::{OpError, ReadError, TensorError};
use crate::ir::{DType, Shape};

/// Why a step of a crowd gave no actions.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum CrowdError {
    /// The network could not be recorded.
    #[error(transparent)]
    Network(#[from] OpError),
    /// The ONNX model of the crowd could not be run.
    #[error("the ONNX model: {0}")]
    Onnx(String),
    /// The result of the network does not have one row per row of its input, or a row is not an action.
    #[error("the network returned {dtype} of shape {found}; the actions are f32 of shape {expected}")]
    Actions {
        /// The element type of the result.
        dtype: DType,
        /// The shape of the result.
        found: Shape,
        /// The rows of the input and the number of `f32` in an action.
        expected: Shape,
    },
    /// The tensor of the observations could not be created.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The actions did not arrive.
    #[error(transparent)]
    Read(#[from] ReadError),
}
