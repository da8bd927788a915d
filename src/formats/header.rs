//! The header of a safetensors file, and the conversion of its data to host data.

use core::fmt;
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::safetensors::{FormatError, io_error};
use crate::error::TensorError;
use crate::ir::{DType, Shape};
use crate::tensor::{TensorData, pack};

/// Maximum size of the header. This is the limit of the format.
const MAX_HEADER: u64 = 100_000_000;

/// Number of bytes before the header. They contain its length.
pub(super) const LENGTH: u64 = 8;

/// The key of the file's metadata. The format does not allow a tensor of this name.
pub(super) const METADATA: &str = "__metadata__";

/// A header that was validated against the length of its file.
#[derive(Debug)]
pub(super) struct Header {
    content: Content,
    /// Position of the tensors in `content`, by name.
    by_name: HashMap<String, usize>,
    /// Position of the first tensor byte in the file.
    start: u64,
    /// Number of tensor bytes.
    bytes: u64,
}

/// The JSON object of a header. Unlike a map, it keeps duplicate keys.
#[derive(Debug, Default)]
struct Content {
    metadata: HashMap<String, String>,
    tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
                let mut content = Content::default();
                let mut described = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name != METADATA {
                        content.tensors.push((name, map.next_value()?));
                    } else if core::mem::replace(&mut described, true) {
                        return Err(A::Error::custom("the metadata is declared twice"));
                    } else {
                        content.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
                    }
                }
                Ok(content)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

impl Content {
    /// Sorts the tensors by position and checks that they cover the data without gaps or overlaps, that their sizes match
    /// their shapes, and that no name is used twice. Gives the number of tensor bytes and the tensors by name.
    fn validate(&mut self) -> Result<(u64, HashMap<String, usize>), String> {
        self.tensors.sort_by(|(a, left), (b, right)| (left.data_offsets, a).cmp(&(right.data_offsets, b)));
        let mut by_name = HashMap::with_capacity(self.tensors.len());
        let mut end = 0;
        for (at, (name, info)) in self.tensors.iter().enumerate() {
            if by_name.insert(name.clone(), at).is_some() {
                return Err(format!("there are two tensors named \"{name}\""));
            }
            let (from, to) = info.data_offsets;
            if from != end || to < from {
                return Err(format!("the data of \"{name}\" is at {from}..{to}, but should start at {end}"));
            }
            end = to;
            // An axis of size 0 makes a tensor empty, even if the other sizes overflow.
            let bits = if info.shape.contains(&0) {
                Some(0)
            } else {
                let all = info.shape.iter().copied().chain([info.dtype.bitsize()]);
                all.reduce(|n, size| n.saturating_mul(size)).filter(|&bits| bits < usize::MAX)
            };
            match bits {
                Some(bits) if bits.is_multiple_of(8) && bits / 8 == to - from => {}
                _ => {
                    let (shape, bytes) = (&info.shape, to - from);
                    return Err(format!("\"{name}\" of type {:?} and shape {shape:?} has {bytes} bytes", info.dtype));
                }
            }
        }
        Ok((end as u64, by_name))
    }
}

/// Makes the first bytes of a file with these tensors, in this order: the length of the header and the header, padded so
/// that the data is aligned.
pub(super) fn write_header<'a>(
    metadata: &HashMap<String, String>,
    tensors: impl Iterator<Item = (&'a str, TensorInfo)>,
) -> serde_json::Result<Vec<u8>> {
    let mut text = String::from("{");
    if !metadata.is_empty() {
        let sorted: std::collections::BTreeMap<_, _> = metadata.iter().collect();
        text += &format!("{}:{}", serde_json::to_string(METADATA)?, serde_json::to_string(&sorted)?);
    }
    for (name, info) in tensors {
        let comma = if text.len() > 1 { "," } else { "" };
        text += &format!("{comma}{}:{}", serde_json::to_string(name)?, serde_json::to_string(&info)?);
    }
    text.push('}');
    text.extend(core::iter::repeat_n(' ', text.len().next_multiple_of(LENGTH as usize) - text.len()));
    Ok([&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat())
}

/// One tensor of a file.
#[derive(Debug)]
pub(super) struct Entry {
    stored: Dtype,
    /// The block type, for quantised tensors.
    quantized: Option<DType>,
    shape: Shape,
    elements: usize,
    /// Start and end of its bytes in the file.
    pub from: u64,
    pub to: u64,
}

impl Header {
    /// Reads and validates the header of a file with `has` bytes. Allocates no more than the size of the header.
    pub(super) fn read(path: &Path, file: &mut impl Read, has: u64) -> Result<Self, FormatError> {
        let io = io_error(path);
        let length = |needs: u64| FormatError::Length { path: path.to_owned(), needs, has };
        if has < LENGTH {
            return Err(length(LENGTH));
        }
        let mut size = [0; LENGTH as usize];
        file.read_exact(&mut size).map_err(&io)?;
        let size = Self::size(path, size)?;
        if LENGTH + size > has {
            return Err(length(LENGTH + size));
        }
        let mut text = vec![0; size as usize];
        file.read_exact(&mut text).map_err(&io)?;
        let header = Self::parse(path, &text)?;
        if header.end() != has {
            return Err(length(header.end()));
        }
        Ok(header)
    }

    /// The size of the header, from the first bytes of a file.
    pub(super) fn size(path: &Path, bytes: [u8; LENGTH as usize]) -> Result<u64, FormatError> {
        let size = u64::from_le_bytes(bytes);
        if size > MAX_HEADER {
            let reason = format!("the header has {size} bytes, which exceeds the limit of {MAX_HEADER}");
            return Err(FormatError::Header { path: path.to_owned(), reason });
        }
        Ok(size)
    }

    /// Parses the header. Does not check the length of the file.
    pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Self, FormatError> {
        let invalid = |reason: String| FormatError::Header { path: path.to_owned(), reason };
        let mut content: Content = serde_json::from_slice(text).map_err(|error| invalid(error.to_string()))?;
        let (bytes, by_name) = content.validate().map_err(invalid)?;
        Ok(Self { content, by_name, start: LENGTH + text.len() as u64, bytes })
    }

    /// Number of bytes that the file must have.
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    /// Names of the tensors, in the order of their bytes.
    pub(super) fn names(&self) -> Vec<String> {
        self.content.tensors.iter().map(|(name, _)| name.clone()).collect()
    }

    /// A metadata entry of the file.
    pub(super) fn metadata(&self, key: &str) -> Option<&str> {
        self.content.metadata.get(key).map(String::as_str)
    }

    /// Position, type and shape of a tensor.
    pub(super) fn entry(&self, path: &Path, name: &str) -> Result<Entry, FormatError> {
        let not_found = || FormatError::NotFound { path: path.to_owned(), name: name.to_owned() };
        let found = self.by_name.get(name).and_then(|&at| self.content.tensors.get(at));
        let &(_, TensorInfo { dtype: stored, ref shape, data_offsets: (from, to) }) = found.ok_or_else(not_found)?;
        // Before the end of the file, so these do not overflow.
        let (from, to) = (self.start.saturating_add(from as u64), self.start.saturating_add(to as u64));
        let mut shape = Shape::new(shape.iter().copied());
        let quantized = match self.metadata(&quantized_key(name)).filter(|_| stored == Dtype::U8) {
            Some(said) => {
                let found = DType::quantized_by_name(said);
                Some(found.ok_or_else(|| FormatError::Type { name: name.to_owned(), stored: said.to_owned() })?)
            }
            None => None,
        };
        let too_large = |shape: Shape| {
            let error = Box::new(TensorError::TooLarge { shape, dtype: quantized.unwrap_or(DType::F32) });
            FormatError::Tensor { name: name.to_owned(), error }
        };
        if let Some(format) = quantized.and_then(DType::block_format) {
            let bytes = format.gguf_bytes();
            let Some(row) = shape.last().copied().filter(|last| last.is_multiple_of(bytes)) else {
                let reason = format!("the row size of \"{name}\" is not a multiple of the block size of {bytes} bytes");
                return Err(FormatError::Header { path: path.to_owned(), reason });
            };
            let Some(row) = (row / bytes).checked_mul(format.elements) else { return Err(too_large(shape)) };
            shape.dims_mut().last_mut().into_iter().for_each(|last| *last = row);
        }
        if !shape.is_addressable() {
            return Err(too_large(shape));
        }
        let elements = shape.elements();
        Ok(Entry { stored, quantized, shape, elements, from, to })
    }
}

impl Entry {
    /// Converts the bytes of the tensor to host data.
    pub(super) fn decode(self, name: &str, bytes: &[u8]) -> Result<TensorData, FormatError> {
        match self.quantized {
            Some(dtype) => TensorData::from_gguf_blocks(dtype, self.shape, bytes)
                .map_err(|error| FormatError::Tensor { name: name.to_owned(), error: Box::new(error) }),
            None => decode(name, self.stored, self.shape, self.elements, bytes),
        }
    }
}

/// The tensor type with the same byte representation, if there is one.
fn counterpart(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I32 => DType::I32,
        Dtype::U32 => DType::U32,
        Dtype::I8 => DType::I8,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}

/// The safetensors type for a tensor type.
pub(super) fn stored_type(name: &str, dtype: DType) -> Result<Dtype, FormatError> {
    let all = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::I32, Dtype::U32, Dtype::I8, Dtype::U8, Dtype::BOOL];
    if dtype.is_quantized() {
        return Ok(Dtype::U8);
    }
    all.into_iter()
        .find(|&stored| counterpart(stored) == Some(dtype))
        .ok_or_else(|| FormatError::Type { name: name.to_owned(), stored: dtype.to_string() })
}

/// The shape in the file. For quantised types, the last axis is in bytes.
pub(super) fn stored_shape(data: &TensorData) -> Shape {
    let mut shape = data.shape().clone();
    if let (Some(format), Some(last)) = (data.dtype().block_format(), shape.dims_mut().last_mut()) {
        *last = *last / format.elements * format.gguf_bytes();
    }
    shape
}

/// The metadata key that marks a tensor as quantised.
pub(super) fn quantized_key(name: &str) -> String {
    format!("dtype.{name}")
}

fn decode(name: &str, stored: Dtype, shape: Shape, elements: usize, bytes: &[u8]) -> Result<TensorData, FormatError> {
    let chunks = |size: usize| bytes.chunks_exact(size).take(elements);
    let array = |chunk: &[u8]| -> [u8; 8] {
        let mut array = [0; 8];
        array[..chunk.len()].copy_from_slice(chunk);
        array
    };
    let short = |chunk: &[u8]| u16::from_le_bytes([chunk[0], chunk[1]]);
    let range =
        |value: &dyn fmt::Display, dtype| FormatError::Range { name: name.to_owned(), value: value.to_string(), dtype };
    if let Some(dtype) = counterpart(stored) {
        let (whole, rest) = bytes.as_chunks::<4>();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(&last);
        // In a file any non-zero byte is true. The backends rely on 0 and 1.
        let truth = |bytes: [u8; 4]| bytes.map(|byte| u8::from(byte != 0));
        let words = whole.iter().chain(last).map(|&bytes| if dtype == DType::Bool { truth(bytes) } else { bytes });
        return Ok(TensorData::from_words(dtype, shape, words.map(u32::from_le_bytes).collect()));
    }
    let (dtype, words) = match stored {
        Dtype::I16 => (DType::I32, pack(&chunks(2).map(|c| i32::from(short(c) as i16)).collect::<Vec<_>>())),
        Dtype::U16 => (DType::I32, pack(&chunks(2).map(|c| i32::from(short(c))).collect::<Vec<_>>())),
        Dtype::I64 => {
            let narrow = |c: &[u8]| {
                let value = i64::from_le_bytes(array(c));
                i32::try_from(value).map_err(|_| range(&value, DType::I32))
            };
            (DType::I32, pack(&chunks(8).map(narrow).collect::<Result<Vec<_>, _>>()?))
        }
        Dtype::U64 => {
            let narrow = |c: &[u8]| {
                let value = u64::from_le_bytes(array(c));
                u32::try_from(value).map_err(|_| range(&value, DType::U32))
            };
            (DType::U32, pack(&chunks(8).map(narrow).collect::<Result<Vec<_>, _>>()?))
        }
        other => return Err(FormatError::Type { name: name.to_owned(), stored: format!("{other:?}") }),
    };
    Ok(TensorData::from_words(dtype, shape, words))
}
