//! The element types of ONNX.

use core::fmt;

use crate::ir::DType;

/// An element type of ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are those of ONNX")]
pub enum ElementType {
    Float32,
    Uint8,
    Int8,
    Uint16,
    Int16,
    Int32,
    Int64,
    String,
    Bool,
    Float16,
    Float64,
    Uint32,
    Uint64,
    Complex64,
    Complex128,
    Bfloat16,
    Float8E4M3Fn,
    Float8E4M3Fnuz,
    Float8E5M2,
    Float8E5M2Fnuz,
    Uint4,
    Int4,
    Float4E2M1,
    Float8E8M0,
    Uint2,
    Int2,
}

impl ElementType {
    /// All types, in the order of their codes. The first has code 1.
    pub const ALL: [Self; 26] = [
        Self::Float32,
        Self::Uint8,
        Self::Int8,
        Self::Uint16,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::String,
        Self::Bool,
        Self::Float16,
        Self::Float64,
        Self::Uint32,
        Self::Uint64,
        Self::Complex64,
        Self::Complex128,
        Self::Bfloat16,
        Self::Float8E4M3Fn,
        Self::Float8E4M3Fnuz,
        Self::Float8E5M2,
        Self::Float8E5M2Fnuz,
        Self::Uint4,
        Self::Int4,
        Self::Float4E2M1,
        Self::Float8E8M0,
        Self::Uint2,
        Self::Int2,
    ];

    /// The type with this code in a file.
    pub fn from_code(code: i64) -> Option<Self> {
        let index = usize::try_from(code).ok()?.checked_sub(1)?;
        Self::ALL.get(index).copied()
    }

    /// The code in a file.
    pub fn code(self) -> i64 {
        self as i64 + 1
    }

    /// The name, as ONNX writes it in types: `float`, `int64`, ….
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float",
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Uint16 => "uint16",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::String => "string",
            Self::Bool => "bool",
            Self::Float16 => "float16",
            Self::Float64 => "double",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Complex64 => "complex64",
            Self::Complex128 => "complex128",
            Self::Bfloat16 => "bfloat16",
            Self::Float8E4M3Fn => "float8e4m3fn",
            Self::Float8E4M3Fnuz => "float8e4m3fnuz",
            Self::Float8E5M2 => "float8e5m2",
            Self::Float8E5M2Fnuz => "float8e5m2fnuz",
            Self::Uint4 => "uint4",
            Self::Int4 => "int4",
            Self::Float4E2M1 => "float4e2m1",
            Self::Float8E8M0 => "float8e8m0",
            Self::Uint2 => "uint2",
            Self::Int2 => "int2",
        }
    }

    /// Bits of an element in a file. `None` for strings.
    pub const fn bits(self) -> Option<usize> {
        Some(match self {
            Self::String => return None,
            Self::Complex128 => 128,
            Self::Int64 | Self::Uint64 | Self::Float64 | Self::Complex64 => 64,
            Self::Int32 | Self::Uint32 | Self::Float32 => 32,
            Self::Int16 | Self::Uint16 | Self::Float16 | Self::Bfloat16 => 16,
            Self::Int4 | Self::Uint4 | Self::Float4E2M1 => 4,
            Self::Int2 | Self::Uint2 => 2,
            Self::Int8
            | Self::Uint8
            | Self::Bool
            | Self::Float8E4M3Fn
            | Self::Float8E4M3Fnuz
            | Self::Float8E5M2
            | Self::Float8E5M2Fnuz
            | Self::Float8E8M0 => 8,
        })
    }

    /// Bytes of an element on the host, where types below 8 bits take a byte. 0 for strings, which have no fixed size.
    pub const fn size(self) -> usize {
        match self.bits() {
            Some(bits) => bits.div_ceil(8),
            None => 0,
        }
    }

    /// Whether this is a real floating-point type of any width.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Float32 | Self::Float64 | Self::Float16 | Self::Bfloat16) || self.is_small_float()
    }

    /// Whether this is a floating-point type of 8 or 4 bits.
    pub const fn is_small_float(self) -> bool {
        matches!(
            self,
            Self::Float8E4M3Fn
                | Self::Float8E4M3Fnuz
                | Self::Float8E5M2
                | Self::Float8E5M2Fnuz
                | Self::Float4E2M1
                | Self::Float8E8M0
        )
    }

    /// Whether this is an integer type of any width. `Bool` is not.
    pub const fn is_integer(self) -> bool {
        self.integer_range().is_some()
    }

    /// Whether this is an integer type without negative numbers.
    pub const fn is_unsigned(self) -> bool {
        matches!(self, Self::Uint64 | Self::Uint32 | Self::Uint16 | Self::Uint8 | Self::Uint4 | Self::Uint2)
    }

    /// The smallest and the largest value of an integer type.
    pub const fn integer_range(self) -> Option<(i128, i128)> {
        Some(match self {
            Self::Int64 => (i64::MIN as i128, i64::MAX as i128),
            Self::Int32 => (i32::MIN as i128, i32::MAX as i128),
            Self::Int16 => (i16::MIN as i128, i16::MAX as i128),
            Self::Int8 => (-128, 127),
            Self::Int4 => (-8, 7),
            Self::Int2 => (-2, 1),
            Self::Uint64 => (0, u64::MAX as i128),
            Self::Uint32 => (0, u32::MAX as i128),
            Self::Uint16 => (0, u16::MAX as i128),
            Self::Uint8 => (0, 255),
            Self::Uint4 => (0, 15),
            Self::Uint2 => (0, 3),
            _ => return None,
        })
    }

    /// The type that values have on a device. Integers of 64 bits are checked to fit in 32 bits when they are uploaded.
    /// `f64` is rounded to `f32`. Floats of 8 and 4 bits, and `bfloat16`, are widened. `None` for strings and complex
    /// numbers.
    pub const fn device_type(self) -> Option<DType> {
        Some(match self {
            Self::Float16 => DType::F16,
            Self::Float32
            | Self::Float64
            | Self::Bfloat16
            | Self::Float8E4M3Fn
            | Self::Float8E4M3Fnuz
            | Self::Float8E5M2
            | Self::Float8E5M2Fnuz
            | Self::Float4E2M1
            | Self::Float8E8M0 => DType::F32,
            Self::Int64 | Self::Int32 | Self::Int16 => DType::I32,
            Self::Uint64 | Self::Uint32 | Self::Uint16 => DType::U32,
            Self::Int8 | Self::Int4 | Self::Int2 => DType::I8,
            Self::Uint8 | Self::Uint4 | Self::Uint2 => DType::U8,
            Self::Bool => DType::Bool,
            Self::String | Self::Complex64 | Self::Complex128 => return None,
        })
    }

    /// The type of ONNX whose values a device type holds exactly. Quantised types hold `float`.
    pub const fn of_device(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::Q8_0 | DType::Q4_0 | DType::Q4_128 | DType::Gguf(_) => Self::Float32,
            DType::F16 => Self::Float16,
            DType::BF16 => Self::Bfloat16,
            DType::I32 => Self::Int32,
            DType::U32 => Self::Uint32,
            DType::I8 => Self::Int8,
            DType::U8 => Self::Uint8,
            DType::Bool => Self::Bool,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
