//! The three types used for all computations.

use bytemuck::Pod;

use crate::kernel::host::memory::Elements;

/// A 32-bit number. Integers wrap; for floats, NaN wins every comparison.
pub(crate) trait Number: Pod + PartialOrd + PartialEq + core::fmt::Debug + Send + Sync {
    const ZERO: Self;
    const ONE: Self;
    /// Less than every other value.
    const LOWEST: Self;
    /// Greater than every other value except NaN.
    const HIGHEST: Self;
    /// Returns the slice itself if the elements have this type.
    fn borrow(elements: Elements<'_>) -> Option<&[Self]>;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div_count(self, count: usize) -> Self;
    fn is_nan(self) -> bool;
    /// The larger number. NaN wins.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other || self.is_nan() { self } else { other }
    }
    /// The smaller number. NaN wins.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if self < other || self.is_nan() { self } else { other }
    }
    /// Bits that sort like the values. Both zeros are equal and NaN is the largest.
    fn key(self) -> u32;
}

impl Number for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const LOWEST: Self = f32::NEG_INFINITY;
    const HIGHEST: Self = f32::INFINITY;
    fn borrow(elements: Elements<'_>) -> Option<&[Self]> {
        match elements {
            Elements::F32(values) => Some(values),
            _ => None,
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self - other
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self * other
    }
    #[inline(always)]
    fn div_count(self, count: usize) -> Self {
        self / count as f32
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.is_nan()
    }
    fn key(self) -> u32 {
        if self.is_nan() {
            return u32::MAX;
        }
        // Adding 0 turns -0 into 0. The bits of negative floats sort in reverse.
        let bits = (self + 0.0).to_bits();
        if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
    }
}

macro_rules! whole {
    ($type:ty, $variant:ident, $key:expr) => {
        impl Number for $type {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = <$type>::MIN;
            const HIGHEST: Self = <$type>::MAX;
            fn borrow(elements: Elements<'_>) -> Option<&[Self]> {
                match elements {
                    Elements::$variant(values) => Some(values),
                    _ => None,
                }
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn div_count(self, count: usize) -> Self {
                // Counts are sizes of windows and axes, far below 2³¹.
                self / (count.max(1) as Self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            fn key(self) -> u32 {
                $key(self)
            }
        }
    };
}
whole!(i32, I32, |v: i32| v as u32 ^ 0x8000_0000);
whole!(u32, U32, |v: u32| v);

/// Runs a body with `$T` bound to the type of a class.
macro_rules! with_class {
    ($class:expr, $T:ident => $body:expr) => {
        match $class {
            $crate::ir::Class::Float => {
                type $T = f32;
                $body
            }
            $crate::ir::Class::Int => {
                type $T = i32;
                $body
            }
            $crate::ir::Class::Uint => {
                type $T = u32;
                $body
            }
        }
    };
}
pub(crate) use with_class;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_values_do() {
        let sorted = [f32::NEG_INFINITY, -2.0, -1e-40, 0.0, 1e-40, 1.0, f32::INFINITY, f32::NAN];
        assert!(sorted.windows(2).all(|w| w[0].key() < w[1].key()));
        assert_eq!((-0.0f32).key(), 0.0f32.key());
        assert!((-1i32).key() < 0i32.key() && i32::MIN.key() == 0);
    }
}
