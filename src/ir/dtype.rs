//! Element types of tensors.

use bevy::reflect::Reflect;
use bytemuck::Pod;
use half::{bf16, f16};

use super::blocks::{BlockFormat, Coding};

/// The element type of a tensor.
///
/// `F16`, `BF16`, `I8`, `U8` and `Bool` are packed, two or four to a 32-bit word, on both backends. Arithmetic on them uses the
/// 32-bit type of the same [`Class`]. Adapters without `SHADER_F16` can therefore store and compute `F16` tensors too.
///
/// The *quantised* types ([`DType::QUANTIZED`]) store `f32` values in blocks along the last axis. Each block has one
/// half-precision scale. `Q8_0` and `Q4_0` have the same scales and values as the GGUF types of these names. Quantised
/// types are meant for weights: matrix products, row lookups and [`dequantize`] read them. See
/// [`TensorCommands::quantize`]. The other types of GGUF files ([`DType::Gguf`]) are read in the same way, but nothing
/// can be quantised to them.
///
/// [`dequantize`]: crate::ops::TensorCommands::dequantize
/// [`TensorCommands::quantize`]: crate::ops::TensorCommands::quantize
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Reflect)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 16-bit float. Arithmetic uses 32 bits.
    F16,
    /// The upper half of a 32-bit float: its range, with 8 bits of precision. Arithmetic uses 32 bits.
    BF16,
    /// 32-bit signed integer. Arithmetic wraps.
    I32,
    /// 32-bit unsigned integer. Arithmetic wraps.
    U32,
    /// 8-bit signed integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// Boolean, stored as one byte: 0 or 1.
    Bool,
    /// Blocks of 32 signed bytes with one scale: 8.5 bits per element. GGUF's `Q8_0`.
    Q8_0,
    /// Blocks of 32 4-bit values, offset by 8, with one scale: 4.5 bits per element. GGUF's `Q4_0`.
    Q4_0,
    /// As [`DType::Q4_0`], with blocks of 128: 4.125 bits per element.
    Q4_128,
    /// A block type that exists only in GGUF files. Values of these types are loaded, not computed.
    Gguf(GgufType),
}

/// The block types of GGUF files besides `Q8_0` and `Q4_0`. The blocks are those of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Reflect)]
pub enum GgufType {
    /// Blocks of 32 4-bit values with a scale and a minimum.
    Q4_1,
    /// Blocks of 32 5-bit values, offset by 16, with a scale.
    Q5_0,
    /// Blocks of 32 5-bit values with a scale and a minimum.
    Q5_1,
    /// Blocks of 256 2-bit values in groups of 16 with 4-bit scales and minima.
    Q2K,
    /// Blocks of 256 3-bit values in groups of 16 with 6-bit scales.
    Q3K,
    /// Blocks of 256 4-bit values in groups of 32 with 6-bit scales and minima.
    Q4K,
    /// Blocks of 256 5-bit values in groups of 32 with 6-bit scales and minima.
    Q5K,
    /// Blocks of 256 6-bit values in groups of 16 with 8-bit scales.
    Q6K,
    /// Blocks of 32 4-bit positions in a table of 16 values, with a scale.
    Iq4Nl,
    /// Blocks of 256 4-bit positions in a table of 16 values, in groups of 32 with 6-bit scales.
    Iq4Xs,
}

impl GgufType {
    /// All of them.
    pub const ALL: [GgufType; 10] = [
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
    ];

    /// The lower-case name, for example `q4_k`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
        }
    }
}

/// The 32-bit arithmetic that a [`DType`] uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// `f32`.
    Float,
    /// `i32`.
    Int,
    /// `u32`. Also booleans, as 0 and 1.
    Uint,
}

impl DType {
    /// All types that are not quantised, in declaration order.
    pub const ALL: [DType; 8] =
        [Self::F32, Self::F16, Self::BF16, Self::I32, Self::U32, Self::I8, Self::U8, Self::Bool];

    /// The quantised types that values can be converted to. Values of the types of GGUF files are only loaded; see
    /// [`DType::Gguf`].
    pub const QUANTIZED: [DType; 3] = [Self::Q8_0, Self::Q4_0, Self::Q4_128];

    /// Elements per block. `None` for types that are not quantised.
    pub const fn block(self) -> Option<usize> {
        match self.block_format() {
            Some(format) => Some(format.elements),
            None => None,
        }
    }

    /// Whether this is a quantised type.
    pub const fn is_quantized(self) -> bool {
        self.block_format().is_some()
    }

    /// The block layout. `None` for types that are not quantised.
    pub(crate) const fn block_format(self) -> Option<BlockFormat> {
        match self {
            Self::Q8_0 => Some(BlockFormat { elements: 32, bits: 8, coding: Coding::Plain }),
            Self::Q4_0 => Some(BlockFormat { elements: 32, bits: 4, coding: Coding::Plain }),
            Self::Q4_128 => Some(BlockFormat { elements: 128, bits: 4, coding: Coding::Plain }),
            Self::Gguf(kind) => Some(BlockFormat::of_gguf(kind)),
            Self::F32 | Self::F16 | Self::BF16 | Self::I32 | Self::U32 | Self::I8 | Self::U8 | Self::Bool => None,
        }
    }

    /// Whether values can be converted to this type. Those of GGUF files are only loaded.
    pub(crate) const fn can_be_made(self) -> bool {
        !matches!(self, Self::Gguf(_))
    }

    /// The quantised type with this name.
    pub(crate) fn quantized_by_name(name: &str) -> Option<DType> {
        let of_files = GgufType::ALL.into_iter().map(Self::Gguf);
        Self::QUANTIZED.into_iter().chain(of_files).find(|dtype| dtype.name() == name)
    }

    /// Bytes that `elements` elements take, without padding. For quantised types, partial blocks are rounded up.
    pub const fn bytes(self, elements: usize) -> usize {
        match self.block_format() {
            Some(_) => self.words(elements) * 4,
            None => elements * self.size(),
        }
    }

    /// Bytes per element. Not valid for quantised types.
    pub(crate) const fn size(self) -> usize {
        4 / self.per_word()
    }

    /// Elements per 32-bit word. Not valid for quantised types.
    pub(crate) const fn per_word(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 4,
            Self::F32 | Self::I32 | Self::U32 | Self::Q8_0 | Self::Q4_0 | Self::Q4_128 | Self::Gguf(_) => 1,
        }
    }

    /// The smallest number of elements that fills whole words, and the number of those words.
    pub(crate) const fn group(self) -> (usize, usize) {
        match self.block_format() {
            Some(format) => (2 * format.elements, format.group_words()),
            None => (self.per_word(), 1),
        }
    }

    /// The first word of the group that begins with this element.
    pub(crate) const fn word_of(self, element: usize) -> usize {
        let (elements, words) = self.group();
        element / elements * words
    }

    /// The 32-bit arithmetic that this type uses.
    pub const fn class(self) -> Class {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::Q8_0 | Self::Q4_0 | Self::Q4_128 | Self::Gguf(_) => Class::Float,
            Self::I32 | Self::I8 => Class::Int,
            Self::U32 | Self::U8 | Self::Bool => Class::Uint,
        }
    }

    /// The 32-bit type of the same class.
    pub const fn wide(self) -> DType {
        self.class().dtype()
    }

    /// A number that no element is below: the maximum of no elements.
    pub(crate) const fn lowest(self) -> f64 {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::Q8_0 | Self::Q4_0 | Self::Q4_128 | Self::Gguf(_) => {
                f64::NEG_INFINITY
            }
            Self::I32 => i32::MIN as f64,
            Self::I8 => i8::MIN as f64,
            Self::U32 | Self::U8 | Self::Bool => 0.0,
        }
    }

    /// Whether this is `F32`, `F16` or `BF16`.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Whether this is a float type that is narrower than 32 bits. Chains keep more bits until they are stored.
    pub(crate) const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }

    /// Whether this is a signed or unsigned integer type. `Bool` is not.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I32 | Self::U32 | Self::I8 | Self::U8)
    }

    /// 32-bit words that `elements` elements take.
    pub const fn words(self, elements: usize) -> usize {
        match self.block_format() {
            Some(format) => format.words_of(elements.div_ceil(format.elements)),
            None => elements.div_ceil(self.per_word()),
        }
    }

    /// The lower-case name, for example `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::Bool => "bool",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_128 => "q4_128",
            Self::Gguf(kind) => kind.name(),
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

/// A Rust type that can be the element type of a tensor's host data.
///
/// `bool` is not `Pod`, so booleans use [`Truth`].
pub trait Element: Pod + PartialEq + core::fmt::Debug + Send + Sync + 'static {
    /// The corresponding tensor element type.
    const DTYPE: DType;
}

/// One element of a [`DType::Bool`] tensor in host data: a byte that is 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Truth(u8);

impl Truth {
    /// True.
    pub const TRUE: Truth = Truth(1);
    /// False.
    pub const FALSE: Truth = Truth(0);
    /// Converts to a plain `bool`.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        Truth(value as u8)
    }
}

// SAFETY: a transparent wrapper around `u8`. Every byte is a valid value (non-zero reads as true), zero included, and
// there is no padding.
unsafe impl bytemuck::Zeroable for Truth {}
// SAFETY: as above.
unsafe impl Pod for Truth {}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
elements!(f32 => F32, f16 => F16, bf16 => BF16, i32 => I32, u32 => U32, i8 => I8, u8 => U8, Truth => Bool);

/// Converts a number to the bits of `dtype`'s 32-bit type, as a cast does.
pub(crate) fn scalar_bits(value: f64, dtype: DType) -> u32 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0 | DType::Q4_0 | DType::Q4_128 | DType::Gguf(_) => {
            (value as f32).to_bits()
        }
        DType::I32 => value as i32 as u32,
        DType::U32 => value as u32,
        DType::I8 => value as i8 as i32 as u32,
        DType::U8 => u32::from(value as u8),
        DType::Bool => u32::from(value != 0.0),
    }
}
