//! Errors of loading and of running models.

use core::fmt;

use thiserror::Error;

use super::graph::ValueType;
use super::host::HostError;
use crate::error::{OpError, ReadError};
use crate::formats::WeightsError;
use crate::formats::onnx::OnnxFormatError;

/// A node that cannot run.
#[derive(Clone, Debug, PartialEq)]
pub struct UnsupportedNode {
    /// The name in the file, or a name made from the operator and the position.
    pub name: String,
    /// The operator.
    pub operator: String,
    /// The domain of the operator. Empty for the standard operators.
    pub domain: String,
    /// The version of the operator set.
    pub opset: i64,
    /// Why it cannot run.
    pub reason: String,
}

impl fmt::Display for UnsupportedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, operator, domain, opset, reason } = self;
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        write!(f, "\"{name}\" ({operator}, {domain} {opset}): {reason}")
    }
}

/// Why a model cannot be loaded.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// The bytes of the file are not valid.
    #[error(transparent)]
    Format(#[from] OnnxFormatError),
    /// The file could not be read.
    #[error("{path}: {message}")]
    Io {
        /// Path of the file.
        path: String,
        /// The message of the reader.
        message: String,
    },
    /// The graph is not valid: a cycle, a value that nothing produces, a name that is used twice.
    #[error("the graph is not valid: {reason}")]
    Graph {
        /// Why it is not valid.
        reason: String,
    },
    /// The model needs what the crate does not support. Lists every such node.
    #[error("{} of {total} nodes cannot run:{}", nodes.len(), list(nodes))]
    Unsupported {
        /// The nodes.
        nodes: Vec<UnsupportedNode>,
        /// Number of nodes of the model.
        total: usize,
    },
    /// The weights could not be uploaded.
    #[error("{0}")]
    Weights(String),
}

fn list(nodes: &[UnsupportedNode]) -> String {
    nodes.iter().map(|node| format!("\n  {node}")).collect()
}

impl From<WeightsError> for OnnxError {
    fn from(error: WeightsError) -> Self {
        Self::Weights(error.to_string())
    }
}

/// Why a model did not run.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum OnnxRunError {
    /// The model is not loaded yet.
    #[error("the model is not loaded yet")]
    NotReady,
    /// The model could not be loaded.
    #[error("the model could not be loaded: {0}")]
    Load(Box<OnnxError>),
    /// An input of the model is missing.
    #[error("the input \"{name}\" ({declared}) is missing")]
    MissingInput {
        /// Name of the input.
        name: String,
        /// Its declared type.
        declared: String,
    },
    /// The model has no input or output of this name.
    #[error("the model has no {what} \"{name}\"; it has {has}")]
    UnknownName {
        /// `input` or `output`.
        what: &'static str,
        /// The name given.
        name: String,
        /// The names that there are.
        has: String,
    },
    /// An input does not have the declared element type or kind.
    #[error("the input \"{name}\" is {given}, but the model declares {declared}")]
    InputType {
        /// Name of the input.
        name: String,
        /// The type given.
        given: String,
        /// The declared type.
        declared: ValueType,
    },
    /// An operand of an input cannot be used.
    #[error("the input \"{name}\": {error}")]
    Input {
        /// Name of the input.
        name: String,
        /// The underlying error.
        error: Box<OpError>,
    },
    /// A node could not be recorded.
    #[error("node \"{node}\" ({operator}): {reason}")]
    Node {
        /// Name of the node.
        node: String,
        /// Its operator.
        operator: String,
        /// Why not.
        reason: NodeError,
    },
    /// The model needs values on the host that a device computes. Use
    /// [`run_staged`](crate::ops::TensorCommands::run_staged).
    #[error("node \"{node}\" ({operator}) needs values on the host that the device computes; use run_staged")]
    NeedsStages {
        /// Name of the node.
        node: String,
        /// Its operator.
        operator: String,
    },
    /// The graph runs more nodes than a run may have.
    #[error("the run has more than {limit} nodes; a loop may not end")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// An output could not be converted.
    #[error("the output \"{name}\": {error}")]
    Output {
        /// Name of the output.
        name: String,
        /// The underlying error.
        error: HostError,
    },
    /// Values could not be read back.
    #[error("values could not be read back: {0}")]
    Readback(ReadError),
    /// An op of the crate failed outside of a node.
    #[error(transparent)]
    Op(#[from] OpError),
}

/// Why a node could not be recorded.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The operator does not support these types, shapes or settings.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The model or its inputs are not valid.
    #[error("{0}")]
    Invalid(String),
    /// An op of the crate refused its operands.
    #[error(transparent)]
    Op(#[from] OpError),
}
