//! The header of a GGUF file. Every count is checked against the bytes that exist before anything is allocated for it.

use std::collections::HashMap;
use std::path::Path;

use super::value::{GgufArray, GgufValue};
use crate::error::TensorError;
use crate::formats::FormatError;
use crate::ir::{DType, GgufType, Shape};
use crate::tensor::TensorData;

/// Maximum size of the header in bytes. Vocabularies of 256,000 tokens take about 20 MB.
const MAX_HEADER: u64 = 1 << 28;
/// Maximum number of axes of a tensor.
const MAX_AXES: u32 = 8;
/// Maximum depth of arrays in arrays.
const MAX_DEPTH: u32 = 4;
/// Position of tensor data, if the file does not say so.
const ALIGNMENT: u64 = 32;

/// Everything before the tensor data of a GGUF file.
#[derive(Debug)]
pub struct GgufHeader {
    version: u32,
    metadata: Vec<(String, GgufValue)>,
    keys: HashMap<String, usize>,
    tensors: Vec<GgufTensor>,
    names: HashMap<String, usize>,
    data_start: u64,
    /// Number of bytes of the header itself. A file without tensors may end there.
    length: u64,
}

/// One tensor of a GGUF file.
#[derive(Clone, Debug)]
pub struct GgufTensor {
    name: String,
    shape: Shape,
    kind: u32,
    offset: u64,
    bytes: u64,
}

impl GgufTensor {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sizes of the axes. Rows are along the last axis, so the order is the reverse of that in the file.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The element type. `None` if it is not supported.
    pub fn dtype(&self) -> Option<DType> {
        known_type(self.kind).and_then(|known| known.3)
    }

    /// The name of the type in GGUF, for example `Q4_K`.
    pub fn type_name(&self) -> String {
        known_type(self.kind).map_or_else(|| format!("number {}", self.kind), |known| known.0.to_owned())
    }

    /// Position of the data, from the start of all data.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Size of the data.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Converts the bytes in the file to host data.
    pub(super) fn decode(&self, bytes: &[u8]) -> Result<TensorData, FormatError> {
        let Some(dtype) = self.dtype() else {
            return Err(FormatError::Type { name: self.name.clone(), stored: self.type_name() });
        };
        let failed = |error: TensorError| FormatError::Tensor { name: self.name.clone(), error: Box::new(error) };
        if dtype.is_quantized() {
            return TensorData::from_gguf_blocks(dtype, self.shape.clone(), bytes).map_err(failed);
        }
        let (whole, rest) = bytes.as_chunks::<4>();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(&last);
        let words = whole.iter().chain(last).map(|&bytes| u32::from_le_bytes(bytes)).collect();
        Ok(TensorData::from_words(dtype, self.shape.clone(), words))
    }
}

/// The types of GGUF: name, elements per block, bytes per block, and the element type if it is supported.
fn known_type(kind: u32) -> Option<(&'static str, u64, u64, Option<DType>)> {
    let gguf = |kind| Some(DType::Gguf(kind));
    Some(match kind {
        0 => ("F32", 1, 4, Some(DType::F32)),
        1 => ("F16", 1, 2, Some(DType::F16)),
        2 => ("Q4_0", 32, 18, Some(DType::Q4_0)),
        3 => ("Q4_1", 32, 20, gguf(GgufType::Q4_1)),
        6 => ("Q5_0", 32, 22, gguf(GgufType::Q5_0)),
        7 => ("Q5_1", 32, 24, gguf(GgufType::Q5_1)),
        8 => ("Q8_0", 32, 34, Some(DType::Q8_0)),
        9 => ("Q8_1", 32, 36, None),
        10 => ("Q2_K", 256, 84, gguf(GgufType::Q2K)),
        11 => ("Q3_K", 256, 110, gguf(GgufType::Q3K)),
        12 => ("Q4_K", 256, 144, gguf(GgufType::Q4K)),
        13 => ("Q5_K", 256, 176, gguf(GgufType::Q5K)),
        14 => ("Q6_K", 256, 210, gguf(GgufType::Q6K)),
        15 => ("Q8_K", 256, 292, None),
        16 => ("IQ2_XXS", 256, 66, None),
        17 => ("IQ2_XS", 256, 74, None),
        18 => ("IQ3_XXS", 256, 98, None),
        19 => ("IQ1_S", 256, 50, None),
        20 => ("IQ4_NL", 32, 18, gguf(GgufType::Iq4Nl)),
        21 => ("IQ3_S", 256, 110, None),
        22 => ("IQ2_S", 256, 82, None),
        23 => ("IQ4_XS", 256, 136, gguf(GgufType::Iq4Xs)),
        24 => ("I8", 1, 1, Some(DType::I8)),
        25 => ("I16", 1, 2, None),
        26 => ("I32", 1, 4, Some(DType::I32)),
        27 => ("I64", 1, 8, None),
        28 => ("F64", 1, 8, None),
        29 => ("IQ1_M", 256, 56, None),
        30 => ("BF16", 1, 2, Some(DType::BF16)),
        34 => ("TQ1_0", 256, 54, None),
        35 => ("TQ2_0", 256, 66, None),
        39 => ("MXFP4", 32, 17, None),
        _ => return None,
    })
}

/// What the first bytes of a file contain.
pub(super) enum Parsed {
    Header(GgufHeader),
    /// The header is longer. The file must have at least this many bytes.
    Incomplete {
        needs: u64,
    },
}

/// Why parsing stopped.
enum Stop {
    Incomplete(u64),
    Invalid(String),
}

type Step<T> = Result<T, Stop>;

impl GgufHeader {
    /// Parses the first bytes of a file.
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Parsed, FormatError> {
        let invalid = |reason: String| FormatError::Header { path: path.to_owned(), reason };
        let cursor = Cursor { bytes, at: 0 };
        match cursor.header() {
            Ok(header) => {
                header.check_types(path)?;
                Ok(Parsed::Header(header))
            }
            Err(Stop::Incomplete(needs)) if needs > MAX_HEADER => {
                Err(invalid(format!("the header has more than {MAX_HEADER} bytes, which is the limit")))
            }
            Err(Stop::Incomplete(needs)) => Ok(Parsed::Incomplete { needs }),
            Err(Stop::Invalid(reason)) => Err(invalid(reason)),
        }
    }

    /// The header of a file whose bytes are all there.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, FormatError> {
        let length = |needs| FormatError::Length { path: path.to_owned(), needs, has: bytes.len() as u64 };
        match Self::parse(path, bytes)? {
            Parsed::Header(header) if header.end() > bytes.len() as u64 => Err(length(header.end())),
            Parsed::Header(header) => Ok(header),
            Parsed::Incomplete { needs } => Err(length(needs)),
        }
    }

    /// Fails if a tensor has a type that is not supported. The error names the types and their tensors.
    fn check_types(&self, path: &Path) -> Result<(), FormatError> {
        let mut types: Vec<(String, Vec<String>)> = Vec::new();
        for tensor in self.tensors.iter().filter(|tensor| tensor.dtype().is_none()) {
            let name = tensor.type_name();
            match types.iter_mut().find(|(known, _)| *known == name) {
                Some((_, tensors)) => tensors.push(tensor.name.clone()),
                None => types.push((name, vec![tensor.name.clone()])),
            }
        }
        if types.is_empty() { Ok(()) } else { Err(FormatError::Types { path: path.to_owned(), types }) }
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All metadata, in file order.
    pub fn metadata(&self) -> &[(String, GgufValue)] {
        &self.metadata
    }

    /// A metadata value.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.keys.get(key).and_then(|&at| self.metadata.get(at)).map(|(_, value)| value)
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.names.get(name).and_then(|&at| self.tensors.get(at))
    }

    /// Position of the tensor data in the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Number of bytes that the file must have.
    pub fn end(&self) -> u64 {
        let ends = self.tensors.iter().map(|tensor| tensor.offset.saturating_add(tensor.bytes));
        ends.max().map_or(self.length, |end| self.data_start.saturating_add(end))
    }

    /// The architecture, for example `llama`.
    pub fn architecture(&self) -> Option<&str> {
        self.get("general.architecture").and_then(GgufValue::as_str)
    }
}

/// A position in the first bytes of a file.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The next bytes.
    fn take(&mut self, count: u64) -> Step<&'a [u8]> {
        let end = (self.at as u64).saturating_add(count);
        if end > self.bytes.len() as u64 {
            return Err(Stop::Incomplete(end));
        }
        let taken = &self.bytes[self.at..end as usize];
        self.at = end as usize;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn u32(&mut self) -> Step<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Step<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Fails unless there is room for `count` items of at least `size` bytes. Then `count` fits in memory.
    fn room(&self, count: u64, size: u64) -> Step<usize> {
        let end = count.saturating_mul(size).saturating_add(self.at as u64);
        if end > self.bytes.len() as u64 { Err(Stop::Incomplete(end)) } else { Ok(count as usize) }
    }

    fn string(&mut self) -> Step<String> {
        let length = self.u64()?;
        let bytes = self.take(length)?;
        match core::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(Stop::Invalid(format!("the text at byte {} is not UTF-8", self.at - bytes.len()))),
        }
    }

    fn value(&mut self, kind: u32) -> Step<GgufValue> {
        Ok(match kind {
            0 => GgufValue::U8(self.array().map(u8::from_le_bytes)?),
            1 => GgufValue::I8(self.array().map(i8::from_le_bytes)?),
            2 => GgufValue::U16(self.array().map(u16::from_le_bytes)?),
            3 => GgufValue::I16(self.array().map(i16::from_le_bytes)?),
            4 => GgufValue::U32(self.u32()?),
            5 => GgufValue::I32(self.array().map(i32::from_le_bytes)?),
            6 => GgufValue::F32(self.array().map(f32::from_le_bytes)?),
            7 => GgufValue::Bool(self.truth()?),
            8 => GgufValue::String(self.string()?),
            9 => GgufValue::Array(self.values(0)?),
            10 => GgufValue::U64(self.u64()?),
            11 => GgufValue::I64(self.array().map(i64::from_le_bytes)?),
            12 => GgufValue::F64(self.array().map(f64::from_le_bytes)?),
            _ => return Err(Stop::Invalid(format!("there is no metadata type number {kind}"))),
        })
    }

    fn truth(&mut self) -> Step<bool> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(Stop::Invalid(format!("a truth value at byte {} is {other}", self.at - 1))),
        }
    }

    fn values(&mut self, depth: u32) -> Step<GgufArray> {
        let (kind, count) = (self.u32()?, self.u64()?);
        Ok(match kind {
            0 => GgufArray::U8(self.take(count)?.to_vec()),
            1 => GgufArray::I8(self.numbers(count, i8::from_le_bytes)?),
            2 => GgufArray::U16(self.numbers(count, u16::from_le_bytes)?),
            3 => GgufArray::I16(self.numbers(count, i16::from_le_bytes)?),
            4 => GgufArray::U32(self.numbers(count, u32::from_le_bytes)?),
            5 => GgufArray::I32(self.numbers(count, i32::from_le_bytes)?),
            6 => GgufArray::F32(self.numbers(count, f32::from_le_bytes)?),
            7 => {
                let count = self.room(count, 1)?;
                GgufArray::Bool((0..count).map(|_| self.truth()).collect::<Step<_>>()?)
            }
            8 => {
                let count = self.room(count, 8)?;
                let mut strings = Vec::with_capacity(count);
                for _ in 0..count {
                    strings.push(self.string()?);
                }
                GgufArray::String(strings)
            }
            9 if depth < MAX_DEPTH => {
                let count = self.room(count, 12)?;
                let mut arrays = Vec::with_capacity(count);
                for _ in 0..count {
                    arrays.push(self.values(depth + 1)?);
                }
                GgufArray::Array(arrays)
            }
            9 => return Err(Stop::Invalid(format!("arrays are nested more than {MAX_DEPTH} deep"))),
            10 => GgufArray::U64(self.numbers(count, u64::from_le_bytes)?),
            11 => GgufArray::I64(self.numbers(count, i64::from_le_bytes)?),
            12 => GgufArray::F64(self.numbers(count, f64::from_le_bytes)?),
            _ => return Err(Stop::Invalid(format!("there is no metadata type number {kind}"))),
        })
    }

    fn numbers<T, const N: usize>(&mut self, count: u64, number: impl Fn([u8; N]) -> T) -> Step<Vec<T>> {
        let bytes = self.take(count.saturating_mul(N as u64))?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|&bytes| number(bytes)).collect())
    }

    fn header(mut self) -> Step<GgufHeader> {
        if self.take(4)? != b"GGUF" {
            return Err(Stop::Invalid("it is not a GGUF file".to_owned()));
        }
        let version = self.u32()?;
        match version {
            2 | 3 => {}
            _ if (1..1000).contains(&version.swap_bytes()) => {
                return Err(Stop::Invalid("big-endian GGUF files are not supported".to_owned()));
            }
            _ => return Err(Stop::Invalid(format!("GGUF version {version} is not supported, only 2 and 3"))),
        }
        let (tensors, pairs) = (self.u64()?, self.u64()?);
        // A key has at least a length, a type and a byte; a tensor a length, a number of axes, a type and an offset.
        let pairs = self.room(pairs, 13)?;
        let (mut metadata, mut keys) = (Vec::new(), HashMap::new());
        for at in 0..pairs {
            let key = self.string()?;
            let kind = self.u32()?;
            let value = self.value(kind)?;
            if keys.insert(key.clone(), at).is_some() {
                return Err(Stop::Invalid(format!("there are two values for \"{key}\"")));
            }
            metadata.push((key, value));
        }
        let alignment = match keys.get("general.alignment").and_then(|&at: &usize| metadata.get(at)) {
            None => ALIGNMENT,
            Some((_, GgufValue::U32(alignment))) if alignment.is_power_of_two() && *alignment >= 4 => {
                u64::from(*alignment)
            }
            Some((_, other)) => return Err(Stop::Invalid(format!("the alignment {other:?} is not a power of two"))),
        };
        let count = self.room(tensors, 24)?;
        let mut tensors = Vec::with_capacity(count);
        let mut names = HashMap::with_capacity(count);
        for at in 0..count {
            let tensor = self.tensor(alignment)?;
            if names.insert(tensor.name.clone(), at).is_some() {
                return Err(Stop::Invalid(format!("there are two tensors named \"{}\"", tensor.name)));
            }
            tensors.push(tensor);
        }
        check_places(&tensors)?;
        let length = self.at as u64;
        let data_start = length.next_multiple_of(alignment);
        Ok(GgufHeader { version, metadata, keys, tensors, names, data_start, length })
    }

    fn tensor(&mut self, alignment: u64) -> Step<GgufTensor> {
        let name = self.string()?;
        let invalid = |reason: String| Stop::Invalid(format!("\"{name}\" {reason}"));
        let axes = self.u32()?;
        if axes > MAX_AXES {
            return Err(invalid(format!("has {axes} axes")));
        }
        let mut sizes = Vec::new();
        for _ in 0..axes {
            let size = self.u64()?;
            sizes.push(usize::try_from(size).map_err(|_| invalid(format!("has an axis of {size}")))?);
        }
        let (kind, offset) = (self.u32()?, self.u64()?);
        let Some((type_name, elements, size, _)) = known_type(kind) else {
            return Err(invalid(format!("has the unknown type number {kind}")));
        };
        if !offset.is_multiple_of(alignment) {
            return Err(invalid(format!("is at {offset}, which is not a multiple of {alignment}")));
        }
        let row = sizes.first().copied().unwrap_or(1) as u64;
        if !row.is_multiple_of(elements) {
            return Err(invalid(format!("has rows of {row}, but blocks of {type_name} have {elements}")));
        }
        let shape = Shape::new(sizes.iter().rev().copied());
        if !shape.is_addressable() {
            return Err(invalid(format!("of shape {shape} is too large to address")));
        }
        let bytes = shape.elements() as u64 / elements * size;
        Ok(GgufTensor { name, shape, kind, offset, bytes })
    }
}

/// Fails if tensors overlap.
fn check_places(tensors: &[GgufTensor]) -> Step<()> {
    let mut order: Vec<&GgufTensor> = tensors.iter().collect();
    order.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
    let mut end = 0u64;
    for tensor in order {
        if tensor.offset < end && tensor.bytes > 0 {
            return Err(Stop::Invalid(format!("\"{}\" overlaps another tensor", tensor.name)));
        }
        let Some(next) = tensor.offset.checked_add(tensor.bytes) else {
            return Err(Stop::Invalid(format!("\"{}\" is at {}", tensor.name, tensor.offset)));
        };
        end = end.max(next);
    }
    Ok(())
}
