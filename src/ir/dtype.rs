//! Element types of tensors.

use bevy::reflect::Reflect;
use bytemuck::Pod;
use half::f16;

use super::blocks::BlockFormat;

/// The element type of a tensor.
///
/// `F16`, `I8`, `U8` and `Bool` are really packed (two or four to a 32-bit word) on every backend; arithmetic on them happens in
/// the 32-bit type of the same [`Class`], so an adapter without `SHADER_F16` stores and computes `F16` tensors all the same.
///
/// The *quantised* types ([`DType::QUANTIZED`]) hold `f32` numbers in blocks along the last axis, each with one half-precision scale, with
/// the bytes of the GGUF types of the same names. They are for weights: products, row look-ups and [`dequantize`] read them; see
/// [`TensorCommands::quantize`].
///
/// [`dequantize`]: crate::TensorCommands::dequantize
/// [`TensorCommands::quantize`]: crate::TensorCommands::quantize
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Reflect)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 16-bit float; computed in 32 bits.
    F16,
    /// 32-bit signed integer, wrapping.
    I32,
    /// 32-bit unsigned integer, wrapping.
    U32,
    /// 8-bit signed integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// Truth value, one byte: 0 or 1.
    Bool,
    /// Blocks of 32 signed bytes times a scale: 8.5 bits an element, GGUF's `Q8_0`.
    Q8_0,
    /// Blocks of 32 numbers of 4 bits, less 8, times a scale: 4.5 bits an element, GGUF's `Q4_0`.
    Q4_0,
    /// As [`DType::Q4_0`] with blocks of 128: 4.125 bits an element.
    Q4_128,
}

/// The arithmetic a [`DType`] is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// `f32`.
    Float,
    /// `i32`.
    Int,
    /// `u32`; also truth values, as 0 and 1.
    Uint,
}

impl DType {
    /// Every type whose elements stand on their own, in declaration order.
    pub const ALL: [DType; 7] = [Self::F32, Self::F16, Self::I32, Self::U32, Self::I8, Self::U8, Self::Bool];

    /// The types whose elements stand in blocks.
    pub const QUANTIZED: [DType; 3] = [Self::Q8_0, Self::Q4_0, Self::Q4_128];

    /// Elements of a block, for quantised types.
    pub const fn block(self) -> Option<usize> {
        match self.block_format() {
            Some(format) => Some(format.elements),
            None => None,
        }
    }

    /// Whether elements stand in blocks with a scale.
    pub const fn is_quantized(self) -> bool {
        self.block_format().is_some()
    }

    /// How blocks are packed, for quantised types.
    pub(crate) const fn block_format(self) -> Option<BlockFormat> {
        match self {
            Self::Q8_0 => Some(BlockFormat { elements: 32, bits: 8 }),
            Self::Q4_0 => Some(BlockFormat { elements: 32, bits: 4 }),
            Self::Q4_128 => Some(BlockFormat { elements: 128, bits: 4 }),
            _ => None,
        }
    }

    /// Bytes that `elements` of this type take, without padding at the end; blocks count whole.
    pub const fn bytes(self, elements: usize) -> usize {
        match self.block_format() {
            Some(_) => self.words(elements) * 4,
            None => elements * self.size(),
        }
    }

    /// Bytes one element takes. Not for quantised types.
    pub(crate) const fn size(self) -> usize {
        4 / self.per_word()
    }

    /// Elements that share one 32-bit word. Not for quantised types, whose elements are not found by words.
    pub(crate) const fn per_word(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 4,
            _ => 1,
        }
    }

    /// The shortest run of elements that takes whole words, and those words.
    pub(crate) const fn group(self) -> (usize, usize) {
        match self.block_format() {
            Some(format) => (2 * format.elements, format.group_words()),
            None => (self.per_word(), 1),
        }
    }

    /// The word at which a group that begins with this element begins.
    pub(crate) const fn word_of(self, element: usize) -> usize {
        let (elements, words) = self.group();
        element / elements * words
    }

    /// The arithmetic this type is computed in.
    pub const fn class(self) -> Class {
        match self {
            Self::F32 | Self::F16 | Self::Q8_0 | Self::Q4_0 | Self::Q4_128 => Class::Float,
            Self::I32 | Self::I8 => Class::Int,
            Self::U32 | Self::U8 | Self::Bool => Class::Uint,
        }
    }

    /// The 32-bit type of the same class.
    pub const fn wide(self) -> DType {
        self.class().dtype()
    }

    /// Whether this is `F32` or `F16`.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16)
    }

    /// Whether this is a signed or unsigned integer; truth values are not.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I32 | Self::U32 | Self::I8 | Self::U8)
    }

    /// 32-bit words that `elements` of this type take.
    pub const fn words(self, elements: usize) -> usize {
        match self.block_format() {
            Some(format) => format.words_of(elements.div_ceil(format.elements)),
            None => elements.div_ceil(self.per_word()),
        }
    }

    /// The lower-case name, as in `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::Bool => "bool",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_128 => "q4_128",
        }
    }
}

impl Class {
    /// The 32-bit element type of this class.
    pub const fn dtype(self) -> DType {
        match self {
            Self::Float => DType::F32,
            Self::Int => DType::I32,
            Self::Uint => DType::U32,
        }
    }
}

impl core::fmt::Display for DType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that a tensor's host data can be made of and read as.
///
/// `bool` is not `Pod`; truth values travel as [`Truth`].
pub trait Element: Pod + PartialEq + core::fmt::Debug + Send + Sync + 'static {
    /// The tensor type this maps to.
    const DTYPE: DType;
}

/// One truth value of a [`DType::Bool`] tensor in host data: a byte that is 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Truth(u8);

impl Truth {
    /// True.
    pub const TRUE: Truth = Truth(1);
    /// False.
    pub const FALSE: Truth = Truth(0);
    /// As a plain `bool`.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        Truth(value as u8)
    }
}

// SAFETY: a transparent wrapper of `u8`: any byte is a value (non-zero reads as true), zero is one too, and there is no padding.
unsafe impl bytemuck::Zeroable for Truth {}
// SAFETY: as above.
unsafe impl Pod for Truth {}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
elements!(f32 => F32, f16 => F16, i32 => I32, u32 => U32, i8 => I8, u8 => U8, Truth => Bool);

/// A number as the bits of `dtype`'s 32-bit type, converted as a cast would.
pub(crate) fn scalar_bits(value: f64, dtype: DType) -> u32 {
    match dtype {
        DType::F32 | DType::F16 | DType::Q8_0 | DType::Q4_0 | DType::Q4_128 => (value as f32).to_bits(),
        DType::I32 => value as i32 as u32,
        DType::U32 => value as u32,
        DType::I8 => value as i8 as i32 as u32,
        DType::U8 => u32::from(value as u8),
        DType::Bool => u32::from(value != 0.0),
    }
}
