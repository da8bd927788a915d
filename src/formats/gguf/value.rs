//! Typed metadata values.

/// A metadata value of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// 8-bit unsigned integer.
    U8(u8),
    /// 8-bit signed integer.
    I8(i8),
    /// 16-bit unsigned integer.
    U16(u16),
    /// 16-bit signed integer.
    I16(i16),
    /// 32-bit unsigned integer.
    U32(u32),
    /// 32-bit signed integer.
    I32(i32),
    /// 32-bit float.
    F32(f32),
    /// Truth value.
    Bool(bool),
    /// Text.
    String(String),
    /// Values of one type.
    Array(GgufArray),
    /// 64-bit unsigned integer.
    U64(u64),
    /// 64-bit signed integer.
    I64(i64),
    /// 64-bit float.
    F64(f64),
}

/// An array of metadata values of one type.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "named like the values")]
pub enum GgufArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<GgufArray>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl GgufArray {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values as `i64`. `None` if they are not integers or truth values, or one does not fit.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        match self {
            Self::U8(v) => Some(v.iter().map(|&v| i64::from(v)).collect()),
            Self::I8(v) => Some(v.iter().map(|&v| i64::from(v)).collect()),
            Self::U16(v) => Some(v.iter().map(|&v| i64::from(v)).collect()),
            Self::I16(v) => Some(v.iter().map(|&v| i64::from(v)).collect()),
            Self::U32(v) => Some(v.iter().map(|&v| i64::from(v)).collect()),
            Self::I32(v) => Some(v.iter().map(|&v| i64::from(v)).collect()),
            Self::Bool(v) => Some(v.iter().map(|&v| i64::from(v)).collect()),
            Self::U64(v) => v.iter().map(|&v| i64::try_from(v).ok()).collect(),
            Self::I64(v) => Some(v.clone()),
            Self::F32(_) | Self::String(_) | Self::Array(_) | Self::F64(_) => None,
        }
    }
}

impl GgufValue {
    /// The integer, whatever its width. `None` if it is not an integer.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::I64(v) => Some(v),
            Self::U64(v) => i64::try_from(v).ok(),
            Self::F32(_) | Self::Bool(_) | Self::String(_) | Self::Array(_) | Self::F64(_) => None,
        }
    }

    /// The number as `f32`. `None` if it is not a number.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(v) => Some(v),
            Self::F64(v) => Some(v as f32),
            _ => self.as_i64().map(|v| v as f32),
        }
    }

    /// The truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// The array.
    pub fn as_array(&self) -> Option<&GgufArray> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }
}
