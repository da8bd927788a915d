//! Stored tensors: from the fields of a message to bytes in row-major order.

use std::collections::HashMap;

use prost::bytes::Bytes;

use super::element::ElementType;
use super::error::OnnxFormatError;
use super::message::{SparseTensorProto, TensorProto};

/// The largest number of elements that a tensor may have.
const MAX_ELEMENTS: usize = i32::MAX as usize;

/// A stored tensor: the bytes of its elements, little-endian, without gaps. Elements below 8 bits take a byte each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredTensor {
    pub element: ElementType,
    pub shape: Vec<usize>,
    pub content: StoredContent,
}

/// The elements of a stored tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StoredContent {
    Bytes(Bytes),
    Strings(Vec<Bytes>),
}

/// The contents of external files, by the path in the model.
pub(crate) type ExternalFiles = HashMap<String, Bytes>;

/// Where a tensor's values are in another file.
pub(crate) struct External<'a> {
    pub location: &'a str,
    pub offset: u64,
    pub length: Option<u64>,
}

impl TensorProto {
    fn invalid(&self, reason: impl Into<String>) -> OnnxFormatError {
        OnnxFormatError::Tensor { name: self.name.clone(), reason: reason.into() }
    }

    /// The sizes of the axes, checked to be addressable.
    fn shape(&self) -> Result<(Vec<usize>, usize), OnnxFormatError> {
        checked_shape(&self.dims).map_err(|reason| self.invalid(reason))
    }

    /// The place of the values, if they are in another file.
    pub(crate) fn external(&self) -> Result<Option<External<'_>>, OnnxFormatError> {
        if self.data_location != 1 {
            return Ok(None);
        }
        let entry = |key: &str| self.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => {
                text.parse().map(Some).map_err(|_| self.invalid(format!("the {key} \"{text}\" is no number")))
            }
        };
        let location = entry("location").ok_or_else(|| self.invalid("external data without a location"))?;
        Ok(Some(External { location, offset: number("offset")?.unwrap_or(0), length: number("length")? }))
    }

    /// Reads the elements.
    pub(crate) fn read(&self, files: &ExternalFiles) -> Result<StoredTensor, OnnxFormatError> {
        let element = ElementType::from_code(self.data_type.into())
            .ok_or_else(|| self.invalid(format!("{} is no element type", self.data_type)))?;
        let (shape, elements) = self.shape()?;
        let Some(bits) = element.bits() else {
            if self.string_data.len() != elements {
                return Err(self.invalid(format!("{} strings for {elements} elements", self.string_data.len())));
            }
            return Ok(StoredTensor { element, shape, content: StoredContent::Strings(self.string_data.clone()) });
        };
        // At most 2³¹ elements of 128 bits: no overflow.
        let packed = (elements * bits).div_ceil(8);
        let bytes = if let Some(external) = self.external()? {
            self.external_bytes(&external, packed, files)?
        } else if let Some(raw) = &self.raw_data {
            raw.clone()
        } else {
            return Ok(StoredTensor { element, shape, content: StoredContent::Bytes(self.typed(element, elements)?) });
        };
        if bytes.len() != packed {
            return Err(self.invalid(format!("{} bytes for {elements} elements of {element}", bytes.len())));
        }
        let bytes = if bits < 8 { unpack(&bytes, element, elements) } else { bytes };
        Ok(StoredTensor { element, shape, content: StoredContent::Bytes(bytes) })
    }

    fn external_bytes(
        &self,
        external: &External,
        packed: usize,
        files: &ExternalFiles,
    ) -> Result<Bytes, OnnxFormatError> {
        let fail = |reason: String| OnnxFormatError::External {
            name: self.name.clone(),
            location: external.location.to_owned(),
            reason,
        };
        let file = files.get(external.location).ok_or_else(|| fail("the file is not there".to_owned()))?;
        let length = external.length.unwrap_or(packed as u64);
        let end = external.offset.checked_add(length).filter(|&end| end <= file.len() as u64);
        let Some(end) = end else {
            return Err(fail(format!(
                "{length} bytes from offset {} are beyond the end of {} bytes",
                external.offset,
                file.len()
            )));
        };
        Ok(file.slice(external.offset as usize..end as usize))
    }

    /// Elements that are stored in the field of their type.
    fn typed(&self, element: ElementType, elements: usize) -> Result<Bytes, OnnxFormatError> {
        use ElementType as E;
        let count = |has: usize, needs: usize| {
            if has == needs { Ok(()) } else { Err(self.invalid(format!("{has} values for {needs} of {element}"))) }
        };
        let out: Vec<u8> = match element {
            E::Float32 | E::Complex64 => {
                count(self.float_data.len(), elements * element.size() / 4)?;
                self.float_data.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            E::Float64 | E::Complex128 => {
                count(self.double_data.len(), elements * element.size() / 8)?;
                self.double_data.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            E::Int64 => {
                count(self.int64_data.len(), elements)?;
                self.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            E::Uint64 => {
                count(self.uint64_data.len(), elements)?;
                self.uint64_data.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            E::Uint32 => {
                count(self.uint64_data.len(), elements)?;
                self.uint64_data.iter().flat_map(|&v| (v as u32).to_le_bytes()).collect()
            }
            E::Int32 => {
                count(self.int32_data.len(), elements)?;
                self.int32_data.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            E::Int16 | E::Uint16 | E::Float16 | E::Bfloat16 => {
                count(self.int32_data.len(), elements)?;
                self.int32_data.iter().flat_map(|&v| (v as u16).to_le_bytes()).collect()
            }
            E::Int8
            | E::Uint8
            | E::Bool
            | E::Float8E4M3Fn
            | E::Float8E4M3Fnuz
            | E::Float8E5M2
            | E::Float8E5M2Fnuz
            | E::Float8E8M0 => {
                count(self.int32_data.len(), elements)?;
                self.int32_data.iter().map(|&v| v as u8).collect()
            }
            E::Int4 | E::Uint4 | E::Float4E2M1 | E::Int2 | E::Uint2 => {
                let packed = (elements * element.bits().unwrap_or(8)).div_ceil(8);
                count(self.int32_data.len(), packed)?;
                let bytes: Vec<u8> = self.int32_data.iter().map(|&v| v as u8).collect();
                return Ok(unpack(&bytes, element, elements));
            }
            E::String => return Err(self.invalid("strings have no numbers")),
        };
        Ok(out.into())
    }
}

impl SparseTensorProto {
    /// Reads the elements into a dense tensor.
    pub(crate) fn read(&self, files: &ExternalFiles) -> Result<(String, StoredTensor), OnnxFormatError> {
        let values = self.values.clone().unwrap_or_default();
        let name = values.name.clone();
        let invalid = |reason: String| OnnxFormatError::Tensor { name: name.clone(), reason };
        let stored = values.read(files)?;
        let indices = self.indices.clone().unwrap_or_default().read(files)?;
        let (shape, elements) = checked_shape(&self.dims).map_err(invalid)?;
        // A few stored elements can declare a tensor of any size.
        if elements > 1 << 26 {
            return Err(invalid(format!("a sparse tensor of {elements} elements is too large")));
        }
        let (StoredContent::Bytes(values), StoredContent::Bytes(positions)) = (&stored.content, &indices.content)
        else {
            return Err(invalid("a sparse tensor of strings".to_owned()));
        };
        if indices.element != ElementType::Int64 {
            return Err(invalid("indices of a sparse tensor must be int64".to_owned()));
        }
        let positions: Vec<i64> = bytemuck::pod_collect_to_vec(positions);
        let (size, count) = (stored.element.size(), stored.shape.iter().product::<usize>());
        let depth = if indices.shape.len() == 2 { indices.shape[1] } else { 1 };
        if depth * count != positions.len() || (indices.shape.len() == 2 && depth != shape.len()) {
            return Err(invalid("indices of a sparse tensor do not fit its values".to_owned()));
        }
        let mut out = vec![0; elements * size];
        for i in 0..count {
            let index = &positions[i * depth..(i + 1) * depth];
            let at = if indices.shape.len() == 2 {
                index
                    .iter()
                    .zip(&shape)
                    .try_fold(0i64, |at, (&i, &n)| (0..n as i64).contains(&i).then(|| at * n as i64 + i))
            } else {
                index.first().copied()
            };
            let at = at.and_then(|at| usize::try_from(at).ok()).filter(|&at| at < elements);
            let at = at.ok_or_else(|| invalid("an index of a sparse tensor is out of range".to_owned()))?;
            out[at * size..(at + 1) * size].copy_from_slice(&values[i * size..(i + 1) * size]);
        }
        let content = StoredContent::Bytes(out.into());
        Ok((name, StoredTensor { element: stored.element, shape, content }))
    }
}

/// The sizes of the axes and their product.
fn checked_shape(dims: &[i64]) -> Result<(Vec<usize>, usize), String> {
    let sizes = dims.iter().map(|&n| usize::try_from(n)).collect::<Result<Vec<_>, _>>();
    let sizes = sizes.map_err(|_| format!("the shape {dims:?} has a negative size"))?;
    let elements = if sizes.contains(&0) { Some(0) } else { sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) };
    match elements.filter(|&n| n <= MAX_ELEMENTS) {
        Some(elements) => Ok((sizes, elements)),
        None => Err(format!("a tensor of shape {dims:?} is too large")),
    }
}

/// Elements of 4 or 2 bits, first in the low bits, as one byte each. Signed ones are extended.
fn unpack(bytes: &[u8], element: ElementType, elements: usize) -> Bytes {
    let bits = element.bits().unwrap_or(8);
    let per_byte = 8 / bits;
    let signed = matches!(element, ElementType::Int4 | ElementType::Int2);
    (0..elements)
        .map(|i| {
            let value = bytes[i / per_byte] >> (i % per_byte * bits) & ((1 << bits) - 1);
            if signed { (((value << (8 - bits)) as i8) >> (8 - bits)) as u8 } else { value }
        })
        .collect::<Vec<u8>>()
        .into()
}
