//! Host data: typed values with a shape, packed in words.

use std::sync::Arc;

use half::f16;

use crate::error::TensorError;
use crate::ir::{BlockFormat, DType, Element, Shape, Truth};

/// Values on the host: what a readback brings and what a tensor can be made from.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorData {
    dtype: DType,
    shape: Shape,
    /// Elements packed as on the device; bytes past the last element are padding.
    words: Arc<[u32]>,
}

impl TensorData {
    /// Values of `shape` from a slice in row-major order.
    pub fn new<T: Element>(values: &[T], shape: impl Into<Shape>) -> Result<Self, TensorError> {
        let shape = shape.into();
        if shape.checked_elements() != Some(values.len()) {
            return Err(TensorError::Length { shape, values: values.len() });
        }
        Ok(Self { dtype: T::DTYPE, shape, words: pack(values) })
    }

    /// Numbers of `shape` quantised to a type of [`DType::QUANTIZED`], exactly as
    /// [`TensorCommands::quantize`](crate::TensorCommands::quantize) does it on a backend.
    pub fn quantized(dtype: DType, shape: impl Into<Shape>, values: &[f32]) -> Result<Self, TensorError> {
        let shape = shape.into();
        let format = quantized_format("quantized", dtype, &shape)?;
        if shape.checked_elements() != Some(values.len()) {
            return Err(TensorError::Length { shape, values: values.len() });
        }
        Ok(Self { dtype, shape, words: format.pack(values).into() })
    }

    /// From blocks as they stand in a GGUF file: for each, the half-precision scale and then the quants. ([`DType::Q4_128`] is no type of
    /// GGUF; its blocks are like those of `Q4_0`, with 64 bytes of quants.)
    pub fn from_gguf_blocks(dtype: DType, shape: impl Into<Shape>, bytes: &[u8]) -> Result<Self, TensorError> {
        let shape = shape.into();
        let format = quantized_format("from_gguf_blocks", dtype, &shape)?;
        let expected = shape.checked_elements().map(|n| n / format.elements * format.gguf_bytes());
        if expected != Some(bytes.len()) {
            return Err(TensorError::BlockBytes {
                shape,
                dtype,
                expected: expected.unwrap_or(usize::MAX),
                bytes: bytes.len(),
            });
        }
        Ok(Self { dtype, shape, words: format.words_of_gguf(bytes).into() })
    }

    /// The blocks of quantised data as they stand in a GGUF file.
    pub fn to_gguf_blocks(&self) -> Result<Vec<u8>, TensorError> {
        let format = quantized_format("to_gguf_blocks", self.dtype, &self.shape)?;
        Ok(format.to_gguf(&self.words, self.shape.elements() / format.elements))
    }

    /// From words as a backend packs them; there must be enough of them.
    pub(crate) fn from_words(dtype: DType, shape: Shape, words: Arc<[u32]>) -> Self {
        debug_assert!(words.len() >= dtype.words(shape.elements()));
        Self { dtype, shape, words }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The raw bytes, row-major, without padding. Of quantised data, the words as backends keep them;
    /// [`to_gguf_blocks`](Self::to_gguf_blocks) gives an order that others know.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.dtype.bytes(self.shape.elements())]
    }

    /// Rows of the first axis, a copy. They must begin with a whole word, and end with one unless they are the last.
    pub(crate) fn rows(&self, rows: core::ops::Range<usize>) -> Self {
        let mut shape = self.shape.clone();
        let row = shape.elements() / shape.first().copied().unwrap_or(1).max(1);
        if let Some(count) = shape.dims_mut().first_mut() {
            *count = rows.len();
        }
        let words = self.dtype.words(rows.start * row)..self.dtype.words(rows.end * row);
        Self { dtype: self.dtype, shape, words: self.words[words].into() }
    }

    pub(crate) fn words(&self) -> &Arc<[u32]> {
        &self.words
    }

    /// The values, if `T` is their type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        if T::DTYPE != self.dtype {
            return Err(TensorError::ElementType { held: self.dtype, asked: T::DTYPE });
        }
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The values as `f32`, whatever their type (truth values as 0 and 1, quantised ones dequantised).
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes = self.bytes();
        if let Some(format) = self.dtype.block_format() {
            let mut values = vec![0.0; self.shape.elements()];
            for (block, out) in values.chunks_exact_mut(format.elements).enumerate() {
                format.dequantize(&self.words, block, out);
            }
            return values;
        }
        match self.dtype {
            DType::F32 => bytemuck::cast_slice(bytes).to_vec(),
            DType::F16 => bytemuck::cast_slice::<_, f16>(bytes).iter().map(|v| v.to_f32()).collect(),
            DType::I32 => bytemuck::cast_slice::<_, i32>(bytes).iter().map(|&v| v as f32).collect(),
            DType::U32 => bytemuck::cast_slice::<_, u32>(bytes).iter().map(|&v| v as f32).collect(),
            DType::I8 => bytemuck::cast_slice::<_, i8>(bytes).iter().map(|&v| f32::from(v)).collect(),
            DType::U8 => bytes.iter().map(|&v| f32::from(v)).collect(),
            _ => bytes.iter().map(|&v| f32::from(v != 0)).collect(),
        }
    }

    /// The truth values of a [`DType::Bool`] tensor.
    pub fn to_bools(&self) -> Result<Vec<bool>, TensorError> {
        Ok(self.as_slice::<Truth>()?.iter().map(|t| t.get()).collect())
    }

    /// The only value, if there is exactly one and `T` is its type.
    pub fn item<T: Element>(&self) -> Result<T, TensorError> {
        match self.as_slice()? {
            [value] => Ok(*value),
            values => Err(TensorError::Length { shape: Shape::default(), values: values.len() }),
        }
    }
}

/// How a quantised type packs a tensor of this shape, or why it cannot.
pub(crate) fn quantized_format(
    constructor: &'static str,
    dtype: DType,
    shape: &Shape,
) -> Result<BlockFormat, TensorError> {
    let format = dtype.block_format().ok_or(TensorError::UnsupportedType { constructor, dtype })?;
    check_blocks(dtype, shape)?;
    Ok(format)
}

/// Whether whole blocks fill the rows of a shape; true for types without blocks.
pub(crate) fn check_blocks(dtype: DType, shape: &Shape) -> Result<(), TensorError> {
    match dtype.block() {
        Some(block) if !shape.last().is_some_and(|n| n.is_multiple_of(block)) => {
            Err(TensorError::Blocks { shape: shape.clone(), dtype, block })
        }
        _ => Ok(()),
    }
}

/// Packs elements into words, the last padded with zeros.
pub(crate) fn pack<T: Element>(values: &[T]) -> Arc<[u32]> {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let mut words = vec![0u32; bytes.len().div_ceil(4)];
    bytemuck::cast_slice_mut::<_, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
    if T::DTYPE == DType::Bool {
        // Any non-zero byte is true on the host; backends rely on 0 and 1.
        for byte in bytemuck::cast_slice_mut::<_, u8>(&mut words) {
            *byte = (*byte != 0) as u8;
        }
    }
    words.into()
}
