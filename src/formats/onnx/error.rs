//! Errors of reading ONNX files.

use thiserror::Error;

/// Why the bytes of an ONNX file are not valid.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum OnnxFormatError {
    /// The bytes are not a protobuf message, or are cut off.
    #[error("not a valid ONNX file: {reason}")]
    Protobuf {
        /// The decoder's reason.
        reason: String,
    },
    /// The message has more parts than a reader accepts.
    #[error("the file has more than {limit} {what}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A stored tensor is not valid.
    #[error("tensor \"{name}\": {reason}")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// Why it is not valid.
        reason: String,
    },
    /// A file with the values of tensors is missing, too short, or outside of the model's folder.
    #[error("tensor \"{name}\": external data \"{location}\": {reason}")]
    External {
        /// Name of the tensor.
        name: String,
        /// The path in the model.
        location: String,
        /// Why it cannot be used.
        reason: String,
    },
}
