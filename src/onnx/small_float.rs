//! Floats of 8 and 4 bits: their codes and their values.

use crate::formats::onnx::ElementType;

/// A floating-point format of at most 8 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SmallFloat {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    signed: bool,
    special: Special,
}

/// The codes that are not numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Special {
    /// Infinities and NaN in the largest exponent, as in IEEE 754.
    Ieee,
    /// All ones is NaN. There is no infinity.
    AllOnes,
    /// Negative zero is NaN. There is no infinity.
    NegativeZero,
    /// Every code is a number.
    None,
}

impl SmallFloat {
    /// The format of an element type.
    pub(crate) fn of(element: ElementType) -> Option<Self> {
        let format = |exponent_bits, mantissa_bits, bias, special| {
            Some(Self { exponent_bits, mantissa_bits, bias, signed: true, special })
        };
        match element {
            ElementType::Float8E4M3Fn => format(4, 3, 7, Special::AllOnes),
            ElementType::Float8E4M3Fnuz => format(4, 3, 8, Special::NegativeZero),
            ElementType::Float8E5M2 => format(5, 2, 15, Special::Ieee),
            ElementType::Float8E5M2Fnuz => format(5, 2, 16, Special::NegativeZero),
            ElementType::Float4E2M1 => format(2, 1, 1, Special::None),
            ElementType::Float8E8M0 => {
                Some(Self { exponent_bits: 8, mantissa_bits: 0, bias: 127, signed: false, special: Special::AllOnes })
            }
            _ => None,
        }
    }

    fn sign_bit(self) -> u8 {
        if self.signed { 1 << (self.exponent_bits + self.mantissa_bits) } else { 0 }
    }

    /// The largest code of a finite positive number.
    fn max_code(self) -> u8 {
        let all = ((1u32 << (self.exponent_bits + self.mantissa_bits)) - 1) as u8;
        match self.special {
            Special::Ieee => all - (1 << self.mantissa_bits),
            Special::AllOnes => all - 1,
            Special::NegativeZero | Special::None => all,
        }
    }

    fn nan(self) -> u8 {
        match self.special {
            Special::NegativeZero => self.sign_bit(),
            Special::Ieee | Special::AllOnes => ((1u32 << (self.exponent_bits + self.mantissa_bits)) - 1) as u8,
            Special::None => 0,
        }
    }

    /// The value of a code.
    pub(crate) fn decode(self, code: u8) -> f64 {
        let negative = code & self.sign_bit() != 0;
        let bits = code & !self.sign_bit() & ((1u32 << (self.exponent_bits + self.mantissa_bits)) - 1) as u8;
        let magnitude = match self.special {
            Special::NegativeZero if negative && bits == 0 => return f64::NAN,
            Special::AllOnes if bits > self.max_code() => return f64::NAN,
            Special::Ieee if bits == self.max_code() + 1 => f64::INFINITY,
            Special::Ieee if bits > self.max_code() => return f64::NAN,
            _ => self.magnitude(bits),
        };
        if negative { -magnitude } else { magnitude }
    }

    fn magnitude(self, bits: u8) -> f64 {
        let exponent = i32::from(bits >> self.mantissa_bits);
        let mantissa = f64::from(bits & ((1 << self.mantissa_bits) - 1)) / f64::from(1u32 << self.mantissa_bits);
        if exponent == 0 && self.signed {
            mantissa * 2f64.powi(1 - self.bias)
        } else {
            (1.0 + mantissa) * 2f64.powi(exponent - self.bias)
        }
    }

    /// The code of a value: the nearest, ties to even. Values out of range become the largest finite number if
    /// `saturate`, else an infinity or NaN.
    pub(crate) fn encode(self, value: f64, saturate: bool) -> u8 {
        if value.is_nan() {
            return self.nan()
                | if value.is_sign_negative() && self.special != Special::NegativeZero { self.sign_bit() } else { 0 };
        }
        let sign = if value.is_sign_negative() { self.sign_bit() } else { 0 };
        let size = value.abs();
        let max = self.max_code();
        if !self.signed && value < 0.0 {
            return self.nan();
        }
        // Codes are in the order of their values.
        let (mut low, mut high) = (0u8, max);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.magnitude(middle) <= size { low = middle } else { high = middle - 1 }
        }
        let below = self.magnitude(low);
        let code = if low == max {
            // Half a step beyond the largest number is still that number.
            let step = below - self.magnitude(max - 1);
            let even = low & 1 == 0;
            let near = size - below < step / 2.0 || (size - below == step / 2.0 && even);
            if near || saturate { low } else { self.beyond() }
        } else {
            let above = self.magnitude(low + 1);
            let (down, up) = (size - below, above - size);
            if down < up || (down == up && low & 1 == 0) { low } else { low + 1 }
        };
        match self.special {
            // There is no negative zero.
            Special::NegativeZero if code == 0 => 0,
            Special::NegativeZero if code == self.sign_bit() => code,
            _ => code | sign,
        }
    }

    /// The code of a power of two, by the rounding mode of the standard: `up`, `down` or `nearest`.
    pub(crate) fn encode_power(self, value: f64, mode: &str, saturate: bool) -> u8 {
        if value.is_nan() {
            return self.nan();
        }
        // The type has no sign.
        let value = value.abs();
        let max = self.max_code();
        if value > self.magnitude(max) {
            return if saturate && (mode != "nearest" || value.is_finite()) { max } else { self.nan() };
        }
        let code = (0..=max).rev().find(|&code| self.magnitude(code) <= value).unwrap_or(0);
        let (below, exact) = (self.magnitude(code), self.magnitude(code) >= value);
        match mode {
            "up" if !exact && code < max => code + 1,
            "nearest" if value >= below * 1.5 && code < max => code + 1,
            _ => code,
        }
    }

    /// The code of a number that is out of range.
    fn beyond(self) -> u8 {
        match self.special {
            Special::Ieee => self.max_code() + 1,
            Special::AllOnes | Special::NegativeZero => self.nan(),
            Special::None => self.max_code(),
        }
    }
}
