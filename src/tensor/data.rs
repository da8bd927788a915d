//! Host data: typed values with a shape, packed in 32-bit words.

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use half::{bf16, f16};

use crate::error::TensorError;
use crate::ir::{BlockFormat, DType, Element, Shape, Truth};

/// Values on the host with a shape and an element type. Readbacks return it, and tensors can be created from it.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorData {
    dtype: DType,
    shape: Shape,
    /// Elements packed as on the device. Bytes after the last element are padding.
    words: Words,
}

/// Words that something else holds for as long as it exists, such as a mapped buffer.
pub(crate) trait HeldWords: Send + Sync {
    fn words(&self) -> &[u32];
}

/// Packed elements.
#[derive(Clone)]
enum Words {
    Own(Arc<[u32]>),
    /// Where the backend put them. Copies share them.
    Held(Arc<dyn HeldWords>),
}

impl Deref for Words {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Self::Own(words) => words,
            Self::Held(held) => held.words(),
        }
    }
}

impl<T: Into<Arc<[u32]>>> From<T> for Words {
    fn from(words: T) -> Self {
        Self::Own(words.into())
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl TensorData {
    /// Creates data of `shape` from values in row-major order.
    pub fn new<T: Element>(values: &[T], shape: impl Into<Shape>) -> Result<Self, TensorError> {
        let shape = shape.into();
        if shape.checked_elements() != Some(values.len()) {
            return Err(TensorError::Length { shape, values: values.len() });
        }
        check_size(T::DTYPE, &shape)?;
        Ok(Self { dtype: T::DTYPE, shape, words: pack(values).into() })
    }

    /// Quantises numbers to a type of [`DType::QUANTIZED`]. The result is the same as that of
    /// [`TensorCommands::quantize`](crate::ops::TensorCommands::quantize) on a backend.
    pub fn quantized(dtype: DType, shape: impl Into<Shape>, values: &[f32]) -> Result<Self, TensorError> {
        let shape = shape.into();
        let format = quantized_format("quantized", dtype, &shape)?;
        if !dtype.can_be_made() {
            return Err(TensorError::UnsupportedType { constructor: "quantized", dtype });
        }
        if shape.checked_elements() != Some(values.len()) {
            return Err(TensorError::Length { shape, values: values.len() });
        }
        check_size(dtype, &shape)?;
        Ok(Self { dtype, shape, words: format.pack(values).into() })
    }

    /// Creates quantised data from the blocks of a GGUF file. ([`DType::Q4_128`] is not a GGUF type. Its blocks are like those of `Q4_0`, with 64 bytes of quants.)
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
        check_size(dtype, &shape)?;
        Ok(Self { dtype, shape, words: format.words_of_gguf(bytes).into() })
    }

    /// Returns the blocks of quantised data in the order of a GGUF file.
    pub fn to_gguf_blocks(&self) -> Result<Vec<u8>, TensorError> {
        let format = quantized_format("to_gguf_blocks", self.dtype, &self.shape)?;
        Ok(format.to_gguf(&self.words, self.shape.elements() / format.elements))
    }

    /// Creates data from words packed as backends store them. There must be enough words for the shape.
    pub(crate) fn from_words(dtype: DType, shape: Shape, words: Arc<[u32]>) -> Self {
        debug_assert!(words.len() >= dtype.words(shape.elements()));
        Self { dtype, shape, words: words.into() }
    }

    /// Like [`from_words`](Self::from_words), without a copy. The words stay where they are until the last clone of the
    /// data is dropped.
    pub(crate) fn from_held(dtype: DType, shape: Shape, words: Arc<dyn HeldWords>) -> Self {
        debug_assert!(words.words().len() >= dtype.words(shape.elements()));
        Self { dtype, shape, words: Words::Held(words) }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The raw bytes in row-major order, without padding. Quantised data returns the words as backends store them; use
    /// [`to_gguf_blocks`](Self::to_gguf_blocks) for a portable order.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice::<u32, u8>(&self.words)[..self.dtype.bytes(self.shape.elements())]
    }

    /// Copies rows of the first axis. The range must start at a word boundary, and end at one unless it includes the
    /// last row.
    pub(crate) fn rows(&self, rows: core::ops::Range<usize>) -> Self {
        let mut shape = self.shape.clone();
        let row = shape.elements() / shape.first().copied().unwrap_or(1).max(1);
        if let Some(count) = shape.dims_mut().first_mut() {
            *count = rows.len();
        }
        let words = self.dtype.words(rows.start * row)..self.dtype.words(rows.end * row);
        Self { dtype: self.dtype, shape, words: self.words[words].into() }
    }

    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    /// The words, to be kept. Copies them if something else holds them.
    pub(crate) fn shared_words(&self) -> Arc<[u32]> {
        match &self.words {
            Words::Own(words) => words.clone(),
            Words::Held(held) => held.words().into(),
        }
    }

    /// Returns the values as a slice. Fails if `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        if T::DTYPE != self.dtype {
            return Err(TensorError::ElementType { held: self.dtype, asked: T::DTYPE });
        }
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// Converts the values to `f32`, whatever their type. Truth values become 0 and 1; quantised values are
    /// dequantised.
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
            DType::BF16 => bytemuck::cast_slice::<_, bf16>(bytes).iter().map(|v| v.to_f32()).collect(),
            DType::I32 => bytemuck::cast_slice::<_, i32>(bytes).iter().map(|&v| v as f32).collect(),
            DType::U32 => bytemuck::cast_slice::<_, u32>(bytes).iter().map(|&v| v as f32).collect(),
            DType::I8 => bytemuck::cast_slice::<_, i8>(bytes).iter().map(|&v| f32::from(v)).collect(),
            DType::U8 => bytes.iter().map(|&v| f32::from(v)).collect(),
            _ => bytes.iter().map(|&v| f32::from(v != 0)).collect(),
        }
    }

    /// Returns the values of a [`DType::Bool`] tensor.
    pub fn to_bools(&self) -> Result<Vec<bool>, TensorError> {
        Ok(self.as_slice::<Truth>()?.iter().map(|t| t.get()).collect())
    }

    /// Returns the only value. Fails if there is not exactly one, or if `T` is not the element type.
    pub fn item<T: Element>(&self) -> Result<T, TensorError> {
        match self.as_slice()? {
            [value] => Ok(*value),
            values => Err(TensorError::Length { shape: Shape::default(), values: values.len() }),
        }
    }
}

/// The block format of a quantised type. Fails if the shape has no whole blocks.
pub(crate) fn quantized_format(
    constructor: &'static str,
    dtype: DType,
    shape: &Shape,
) -> Result<BlockFormat, TensorError> {
    let format = dtype.block_format().ok_or(TensorError::UnsupportedType { constructor, dtype })?;
    check_blocks(dtype, shape)?;
    Ok(format)
}

/// Fails if the rows of a shape are not whole blocks. Types without blocks always pass.
pub(crate) fn check_blocks(dtype: DType, shape: &Shape) -> Result<(), TensorError> {
    match dtype.block() {
        Some(block) if !shape.last().is_some_and(|n| n.is_multiple_of(block)) => {
            Err(TensorError::Blocks { shape: shape.clone(), dtype, block })
        }
        _ => Ok(()),
    }
}

/// Fails if a tensor of this shape has more elements than can be addressed.
pub(crate) fn check_size(dtype: DType, shape: &Shape) -> Result<(), TensorError> {
    if shape.is_addressable() { Ok(()) } else { Err(TensorError::TooLarge { shape: shape.clone(), dtype }) }
}

/// Packs elements into words. The last word is padded with zeros.
pub(crate) fn pack<T: Element>(values: &[T]) -> Arc<[u32]> {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let mut words = vec![0u32; bytes.len().div_ceil(4)];
    bytemuck::cast_slice_mut::<_, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
    if T::DTYPE == DType::Bool {
        // On the host any non-zero byte is true, but backends need 0 or 1.
        for byte in bytemuck::cast_slice_mut::<_, u8>(&mut words) {
            *byte = (*byte != 0) as u8;
        }
    }
    words.into()
}
