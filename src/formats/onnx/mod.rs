//! Reading ONNX files: protobuf to plain data. What the graph means is the business of the module `onnx`.

mod element;
mod error;
mod message;
mod scan;
mod tensor;

use prost::Message;
use prost::bytes::Bytes;

pub use element::ElementType;
pub use error::OnnxFormatError;

pub(crate) use message::{
    AttributeProto, DimensionProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    OptionalProto, SequenceProto, TensorProto, TypeProto, ValueInfoProto,
};
pub(crate) use tensor::{ExternalFiles, StoredContent, StoredTensor};

/// Decodes a model.
pub(crate) fn decode_model(bytes: Bytes) -> Result<ModelProto, OnnxFormatError> {
    scan::check_size(&bytes)?;
    decode(bytes)
}

/// Decodes a message.
pub(crate) fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, OnnxFormatError> {
    M::decode(bytes).map_err(|error| OnnxFormatError::Protobuf { reason: error.to_string() })
}
