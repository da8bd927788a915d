//! Exact values on the host, of every element type of ONNX.

use core::fmt;
use std::sync::Arc;

use half::{bf16, f16};

use super::small_float::SmallFloat;
use crate::formats::onnx::{ElementType, StoredContent, StoredTensor};
use crate::ir::{DType, Shape};
use crate::tensor::TensorData;

/// Values on the host with a shape and an element type of ONNX. Unlike [`TensorData`], it holds 64-bit numbers exactly.
///
/// ```
/// use bevy_tensor_compute::onnx::HostTensor;
/// let ids = HostTensor::from_i64(&[101, 7592, 102], [1, 3]).unwrap();
/// assert_eq!(ids.to_i64().unwrap(), [101, 7592, 102]);
/// ```
#[derive(Clone, PartialEq)]
pub struct HostTensor {
    element: ElementType,
    shape: Shape,
    content: Content,
}

#[derive(Clone, PartialEq)]
enum Content {
    /// Little-endian elements without gaps, in 32-bit words like [`TensorData`]. Elements below 8 bits take a byte.
    Words(Arc<[u32]>),
    Strings(Arc<[Vec<u8>]>),
}

/// The elements of a tensor in the widest type of their kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Integers and truth values.
    Int(Vec<i128>),
    /// Floats.
    Float(Vec<f64>),
}

impl Numbers {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Int(values) => values.len(),
            Self::Float(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As floats. Integers are rounded to the nearest `f64`.
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            Self::Int(values) => values.iter().map(|&v| v as f64).collect(),
            Self::Float(values) => values.clone(),
        }
    }
}

/// Why host values cannot be used as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The number of values does not fit the shape.
    #[error("{values} values for the shape {shape}")]
    Length {
        /// The shape.
        shape: Shape,
        /// Number of values.
        values: usize,
    },
    /// A value does not fit in the 32-bit type that it has on a device.
    #[error("{value} of type {element} does not fit in {dtype}")]
    Range {
        /// The first value that does not fit.
        value: String,
        /// Its type.
        element: ElementType,
        /// The type on the device.
        dtype: DType,
    },
    /// The type has no numbers, or none of the kind that was asked for.
    #[error("{element} values are not {wanted}")]
    Type {
        /// The type.
        element: ElementType,
        /// What was asked for.
        wanted: &'static str,
    },
}

/// Packs bytes into words. The last word is padded with zeros.
fn words(bytes: &[u8]) -> Arc<[u32]> {
    let mut words = vec![0u32; bytes.len().div_ceil(4)];
    bytemuck::cast_slice_mut::<_, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
    words.into()
}

macro_rules! constructors {
    ($($name:ident, $get:ident, $rust:ty, $element:ident;)*) => { $(
        #[doc = concat!("Creates a tensor of `", stringify!($rust), "` from values in row-major order.")]
        pub fn $name(values: &[$rust], shape: impl Into<Shape>) -> Result<Self, HostError> {
            Self::from_bytes(ElementType::$element, shape.into(), bytemuck::cast_slice(values))
        }
    )* };
}

impl HostTensor {
    constructors! {
        from_f32, to_f32, f32, Float32;
        from_f64, to_f64, f64, Float64;
        from_i64, to_i64, i64, Int64;
        from_u64, to_u64, u64, Uint64;
        from_i32, to_i32, i32, Int32;
        from_u32, to_u32, u32, Uint32;
        from_i8, to_i8, i8, Int8;
        from_u8, to_u8, u8, Uint8;
        from_f16, to_f16, f16, Float16;
    }

    /// Creates a tensor of truth values in row-major order.
    pub fn from_bools(values: &[bool], shape: impl Into<Shape>) -> Result<Self, HostError> {
        let bytes: Vec<u8> = values.iter().map(|&v| u8::from(v)).collect();
        Self::from_bytes(ElementType::Bool, shape.into(), &bytes)
    }

    /// Creates a tensor of strings in row-major order.
    pub fn from_strings(values: Vec<Vec<u8>>, shape: impl Into<Shape>) -> Result<Self, HostError> {
        let shape = shape.into();
        if shape.checked_elements() != Some(values.len()) {
            return Err(HostError::Length { shape, values: values.len() });
        }
        Ok(Self { element: ElementType::String, shape, content: Content::Strings(values.into()) })
    }

    /// Creates a tensor from little-endian elements. Elements below 8 bits take a byte each.
    pub fn from_bytes(element: ElementType, shape: impl Into<Shape>, bytes: &[u8]) -> Result<Self, HostError> {
        let shape = shape.into();
        let size = element.size();
        if size == 0 || shape.checked_elements().and_then(|n| n.checked_mul(size)) != Some(bytes.len()) {
            return Err(HostError::Length { shape, values: bytes.len() / size.max(1) });
        }
        Ok(Self { element, shape, content: Content::Words(words(bytes)) })
    }

    pub(crate) fn from_stored(stored: StoredTensor) -> Result<Self, HostError> {
        match stored.content {
            StoredContent::Bytes(bytes) => Self::from_bytes(stored.element, stored.shape, &bytes),
            StoredContent::Strings(strings) => {
                Self::from_strings(strings.iter().map(|s| s.to_vec()).collect(), stored.shape)
            }
        }
    }

    /// Creates a tensor from numbers, converted to `element`: integers wrap, floats are rounded to nearest. Floats to
    /// integers truncate and saturate, and any number but 0 is true.
    pub fn from_numbers(element: ElementType, shape: impl Into<Shape>, numbers: &Numbers) -> Result<Self, HostError> {
        use ElementType as E;
        let shape = shape.into();
        if shape.checked_elements() != Some(numbers.len()) {
            return Err(HostError::Length { shape, values: numbers.len() });
        }
        fn ints<const N: usize>(numbers: &Numbers, range: (i128, i128), bytes: fn(i128) -> [u8; N]) -> Vec<u8> {
            match numbers {
                Numbers::Int(values) => values.iter().flat_map(|&v| bytes(v)).collect(),
                Numbers::Float(values) => {
                    values.iter().flat_map(|&v| bytes((v as i128).clamp(range.0, range.1))).collect()
                }
            }
        }
        fn floats<const N: usize>(numbers: &Numbers, bytes: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
            match numbers {
                Numbers::Int(values) => values.iter().flat_map(|&v| bytes(v as f64)).collect(),
                Numbers::Float(values) => values.iter().flat_map(|&v| bytes(v)).collect(),
            }
        }
        let range = element.integer_range().unwrap_or_default();
        let bytes = match element {
            E::Float32 => floats(numbers, |v| (v as f32).to_le_bytes()),
            E::Float64 => floats(numbers, f64::to_le_bytes),
            E::Float16 => floats(numbers, |v| f16::from_f64(v).to_le_bytes()),
            E::Bfloat16 => floats(numbers, |v| bf16::from_f64(v).to_le_bytes()),
            E::Int64 | E::Uint64 => ints(numbers, range, |v| (v as i64).to_le_bytes()),
            E::Int32 | E::Uint32 => ints(numbers, range, |v| (v as i32).to_le_bytes()),
            E::Int16 | E::Uint16 => ints(numbers, range, |v| (v as i16).to_le_bytes()),
            E::Int8 | E::Uint8 => ints(numbers, range, |v| [v as u8]),
            E::Uint4 => ints(numbers, range, |v| [v as u8 & 15]),
            E::Uint2 => ints(numbers, range, |v| [v as u8 & 3]),
            E::Int4 => ints(numbers, range, |v| [((v as i8) << 4 >> 4) as u8]),
            E::Int2 => ints(numbers, range, |v| [((v as i8) << 6 >> 6) as u8]),
            E::Bool => match numbers {
                Numbers::Int(values) => values.iter().map(|&v| u8::from(v != 0)).collect(),
                Numbers::Float(values) => values.iter().map(|&v| u8::from(v != 0.0)).collect(),
            },
            E::Float8E4M3Fn | E::Float8E4M3Fnuz | E::Float8E5M2 | E::Float8E5M2Fnuz | E::Float4E2M1 | E::Float8E8M0 => {
                match SmallFloat::of(element) {
                    Some(small) => floats(numbers, |v| [small.encode(v, v.is_finite())]),
                    None => return Err(HostError::Type { element, wanted: "numbers" }),
                }
            }
            E::String | E::Complex64 | E::Complex128 => {
                return Err(HostError::Type { element, wanted: "numbers" });
            }
        };
        Self::from_bytes(element, shape, &bytes)
    }

    /// The values of a device, in the type that ONNX gives them.
    pub fn from_data(data: &TensorData, element: ElementType) -> Result<Self, HostError> {
        if element.device_type() == Some(data.dtype())
            && element.size() == data.dtype().bytes(1)
            && !element.is_small_float()
        {
            return Ok(Self { element, shape: data.shape().clone(), content: Content::Words(data.shared_words()) });
        }
        let own = Self::own(data);
        if own.element == element {
            return Ok(own);
        }
        if let Some(small) = SmallFloat::of(element) {
            // The device holds values of the type already, infinities too.
            let codes: Vec<u8> = own.to_f64()?.into_iter().map(|value| small.encode(value, false)).collect();
            return Self::from_bytes(element, own.shape, &codes);
        }
        Self::from_numbers(element, own.shape.clone(), &own.numbers()?)
    }

    /// The values of a device, in the type that they have there. Quantised values become `float`.
    pub(crate) fn own(data: &TensorData) -> Self {
        Self {
            element: ElementType::of_device(data.dtype()),
            shape: data.shape().clone(),
            content: match data.dtype().is_quantized() {
                true => Content::Words(words(bytemuck::cast_slice(&data.to_f32()))),
                false => Content::Words(data.shared_words()),
            },
        }
    }

    /// The element type.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Little-endian elements without gaps. Elements below 8 bits take a byte each. Empty for strings.
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Words(words) => {
                let bytes: &[u8] = bytemuck::cast_slice(words);
                &bytes[..(self.elements() * self.element.size()).min(bytes.len())]
            }
            Content::Strings(_) => &[],
        }
    }

    /// The strings, if the tensor has any.
    pub fn strings(&self) -> Option<&[Vec<u8>]> {
        match &self.content {
            Content::Strings(strings) => Some(strings),
            Content::Words(_) => None,
        }
    }

    /// The same elements with another shape.
    pub fn reshaped(&self, shape: impl Into<Shape>) -> Result<Self, HostError> {
        let shape = shape.into();
        if shape.checked_elements() != Some(self.elements()) {
            return Err(HostError::Length { shape, values: self.elements() });
        }
        Ok(Self { shape, ..self.clone() })
    }

    /// The elements at these positions, in this order.
    pub(crate) fn take(&self, shape: Shape, positions: impl Iterator<Item = usize>) -> Result<Self, HostError> {
        match &self.content {
            Content::Strings(strings) => {
                Self::from_strings(positions.filter_map(|at| strings.get(at).cloned()).collect(), shape)
            }
            Content::Words(_) => {
                let (bytes, size) = (self.bytes(), self.element.size());
                let mut out = Vec::with_capacity(shape.elements().min(1 << 24) * size);
                for at in positions {
                    out.extend_from_slice(&bytes[at * size..(at + 1) * size]);
                }
                Self::from_bytes(self.element, shape, &out)
            }
        }
    }

    /// All elements as numbers.
    pub fn numbers(&self) -> Result<Numbers, HostError> {
        use ElementType as E;
        fn read<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
            bytes.as_chunks::<N>().0.iter().map(|&chunk| read(chunk)).collect()
        }
        let bytes = self.bytes();
        Ok(match self.element {
            E::Float32 => Numbers::Float(read(bytes, |b| f32::from_le_bytes(b).into())),
            E::Float64 => Numbers::Float(read(bytes, f64::from_le_bytes)),
            E::Float16 => Numbers::Float(read(bytes, |b| f16::from_le_bytes(b).into())),
            E::Bfloat16 => Numbers::Float(read(bytes, |b| bf16::from_le_bytes(b).into())),
            E::Int64 => Numbers::Int(read(bytes, |b| i64::from_le_bytes(b).into())),
            E::Uint64 => Numbers::Int(read(bytes, |b| u64::from_le_bytes(b).into())),
            E::Int32 => Numbers::Int(read(bytes, |b| i32::from_le_bytes(b).into())),
            E::Uint32 => Numbers::Int(read(bytes, |b| u32::from_le_bytes(b).into())),
            E::Int16 => Numbers::Int(read(bytes, |b| i16::from_le_bytes(b).into())),
            E::Uint16 => Numbers::Int(read(bytes, |b| u16::from_le_bytes(b).into())),
            E::Int8 | E::Int4 | E::Int2 => Numbers::Int(read(bytes, |b| i8::from_le_bytes(b).into())),
            E::Uint8 | E::Uint4 | E::Uint2 => Numbers::Int(read(bytes, |b| u8::from_le_bytes(b).into())),
            E::Bool => Numbers::Int(bytes.iter().map(|&b| i128::from(b != 0)).collect()),
            E::Float8E4M3Fn | E::Float8E4M3Fnuz | E::Float8E5M2 | E::Float8E5M2Fnuz | E::Float4E2M1 | E::Float8E8M0 => {
                match SmallFloat::of(self.element) {
                    Some(small) => Numbers::Float(bytes.iter().map(|&b| small.decode(b)).collect()),
                    None => return Err(HostError::Type { element: self.element, wanted: "numbers" }),
                }
            }
            E::String | E::Complex64 | E::Complex128 => {
                return Err(HostError::Type { element: self.element, wanted: "numbers" });
            }
        })
    }

    /// The elements as `i64`. Fails for floats, strings, and `uint64` values that do not fit.
    pub fn to_i64(&self) -> Result<Vec<i64>, HostError> {
        let wrong = || HostError::Type { element: self.element, wanted: "integers" };
        match self.numbers()? {
            Numbers::Int(values) => values.iter().map(|&v| i64::try_from(v).map_err(|_| wrong())).collect(),
            Numbers::Float(_) => Err(wrong()),
        }
    }

    /// The elements as `f64`. Fails for strings and complex numbers.
    pub fn to_f64(&self) -> Result<Vec<f64>, HostError> {
        Ok(self.numbers()?.to_f64())
    }

    /// The elements as `f32`, rounded. Fails for strings and complex numbers.
    pub fn to_f32(&self) -> Result<Vec<f32>, HostError> {
        if self.element == ElementType::Float32 {
            return Ok(bytemuck::pod_collect_to_vec(self.bytes()));
        }
        Ok(self.to_f64()?.into_iter().map(|v| v as f32).collect())
    }

    /// The values as a device holds them. Fails for the first integer that does not fit in 32 bits, and for finite `f64`
    /// values beyond the range of `f32`.
    pub fn to_data(&self) -> Result<TensorData, HostError> {
        let element = self.element;
        let dtype = element.device_type().ok_or(HostError::Type { element, wanted: "numbers of a device" })?;
        if let Content::Words(words) = &self.content
            && element.size() == dtype.bytes(1)
            && !element.is_small_float()
        {
            return Ok(TensorData::from_words(dtype, self.shape.clone(), words.clone()));
        }
        let range = |value: String| HostError::Range { value, element, dtype };
        let bytes: Vec<u8> = match self.numbers()? {
            Numbers::Float(values) => {
                let mut out = Vec::with_capacity(values.len() * 4);
                for v in values {
                    let narrow = v as f32;
                    if narrow.is_infinite() && v.is_finite() {
                        return Err(range(v.to_string()));
                    }
                    out.extend(narrow.to_le_bytes());
                }
                out
            }
            Numbers::Int(values) => {
                let mut out = Vec::with_capacity(values.len() * 4);
                for v in values {
                    out.extend(match dtype {
                        DType::U32 => u32::try_from(v).map_err(|_| range(v.to_string()))?.to_le_bytes(),
                        _ => i32::try_from(v).map_err(|_| range(v.to_string()))?.to_le_bytes(),
                    });
                }
                out
            }
        };
        Ok(TensorData::from_words(dtype, self.shape.clone(), words(&bytes)))
    }
}

impl fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.element, self.shape)?;
        if self.elements() <= 8 {
            match (&self.content, self.numbers()) {
                (Content::Strings(strings), _) => {
                    f.debug_list().entries(strings.iter().map(|s| String::from_utf8_lossy(s))).finish()?;
                }
                (_, Ok(Numbers::Int(values))) => write!(f, " {values:?}")?,
                (_, Ok(Numbers::Float(values))) => write!(f, " {values:?}")?,
                (_, Err(_)) => {}
            }
        }
        Ok(())
    }
}
