//! Host tensors in files: ONNX's own messages, and NumPy arrays.

use prost::bytes::Bytes;

use super::build::read_tensor;
use super::error::OnnxError;
use super::graph::ValueType;
use super::host::HostTensor;
use super::stages::OnnxAnswer;
use crate::formats::onnx::{
    ElementType, ExternalFiles, OnnxFormatError, OptionalProto, SequenceProto, TensorProto, decode,
};
use crate::formats::{FormatError, npy_bytes, parse_npy};
use std::path::{Path, PathBuf};

/// Reads a value that is stored as a message, as in the test data of ONNX: a tensor, or what `declared` says.
pub fn read_pb(bytes: impl Into<Vec<u8>>, declared: Option<&ValueType>) -> Result<OnnxAnswer, OnnxError> {
    let bytes = Bytes::from(bytes.into());
    match declared {
        Some(ValueType::Sequence(_)) => sequence(&decode(bytes)?),
        Some(ValueType::Optional(of)) => {
            let proto: OptionalProto = decode(bytes)?;
            match (&proto.tensor_value, &proto.sequence_value, &**of) {
                (Some(value), ..) => tensor(value),
                (None, Some(value), _) => sequence(value),
                (None, None, ValueType::Sequence(_)) if proto.elem_type != 0 => Ok(OnnxAnswer::Sequence(Vec::new())),
                (None, None, _) => Ok(OnnxAnswer::Nothing),
            }
        }
        _ => tensor(&decode(bytes)?),
    }
}

fn tensor(proto: &TensorProto) -> Result<OnnxAnswer, OnnxError> {
    Ok(OnnxAnswer::Tensor(read_tensor(proto, &ExternalFiles::new())?.into()))
}

fn sequence(proto: &SequenceProto) -> Result<OnnxAnswer, OnnxError> {
    Ok(OnnxAnswer::Sequence(proto.tensor_values.iter().map(tensor).collect::<Result<_, _>>()?))
}

impl HostTensor {
    /// Reads a NumPy array.
    pub fn from_npy(bytes: &[u8]) -> Result<Self, OnnxFormatError> {
        let invalid = |reason: String| OnnxFormatError::Tensor { name: "npy".to_owned(), reason };
        let array = parse_npy(bytes).map_err(invalid)?;
        let element = match array.kind.trim_start_matches(['<', '|', '=']) {
            "f4" => ElementType::Float32,
            "f8" => ElementType::Float64,
            "f2" => ElementType::Float16,
            "i8" => ElementType::Int64,
            "i4" => ElementType::Int32,
            "i2" => ElementType::Int16,
            "i1" => ElementType::Int8,
            "u8" => ElementType::Uint64,
            "u4" => ElementType::Uint32,
            "u2" => ElementType::Uint16,
            "u1" => ElementType::Uint8,
            "b1" => ElementType::Bool,
            other => return Err(invalid(format!("the type \"{other}\" is not supported"))),
        };
        let shape = array.shape;
        if array.fortran {
            let reversed: Vec<usize> = shape.iter().rev().copied().collect();
            let stored = Self::from_bytes(element, reversed.clone(), array.data);
            let stored = stored.map_err(|error| invalid(error.to_string()))?;
            let order: Vec<usize> = (0..reversed.len()).rev().collect();
            let layout = crate::ir::Layout::contiguous(reversed).permute(&order);
            let positions = super::host_ops::positions(&layout);
            return stored.take(shape.into(), positions.into_iter()).map_err(|error| invalid(error.to_string()));
        }
        Self::from_bytes(element, shape, array.data).map_err(|error| invalid(error.to_string()))
    }

    /// The bytes of a NumPy array. Types that NumPy does not have are widened to `float32` or `int8`.
    pub fn to_npy(&self) -> Result<Vec<u8>, super::HostError> {
        let kind = match self.element() {
            ElementType::Float32 => "<f4",
            ElementType::Float64 => "<f8",
            ElementType::Float16 => "<f2",
            ElementType::Int64 => "<i8",
            ElementType::Int32 => "<i4",
            ElementType::Int16 => "<i2",
            ElementType::Int8 | ElementType::Int4 | ElementType::Int2 => "|i1",
            ElementType::Uint64 => "<u8",
            ElementType::Uint32 => "<u4",
            ElementType::Uint16 => "<u2",
            ElementType::Uint8 | ElementType::Uint4 | ElementType::Uint2 => "|u1",
            ElementType::Bool => "|b1",
            _ => {
                let values: Vec<u8> = self.to_f32()?.iter().flat_map(|v| v.to_le_bytes()).collect();
                return Ok(npy_bytes("<f4", self.shape(), &values));
            }
        };
        Ok(npy_bytes(kind, self.shape(), self.bytes()))
    }

    /// Writes a NumPy array for `numpy.load`. An existing file is replaced atomically.
    pub fn save_npy(&self, path: impl AsRef<Path>) -> Result<(), FormatError> {
        let path: PathBuf = path.as_ref().to_owned();
        let fail = |kind, message| FormatError::Io { path: path.clone(), kind, message };
        let bytes = self.to_npy().map_err(|error| fail(std::io::ErrorKind::InvalidData, error.to_string()))?;
        crate::disk::replace_file(&path, &bytes).map_err(|error| fail(error.kind(), error.to_string()))
    }
}
