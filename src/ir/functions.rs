//! Inverse and hyperbolic functions as scalar expressions: polynomials near 0, where the closed form would cancel, and
//! closed forms beyond. Coefficients are those of the Cephes library.

use super::BinaryOp::{Add, Div, Gt, Lt, Mul, Sub};
use super::expr::{Expr, Primitive, Program, Reg};

impl Program {
    /// `a` where `condition`, else `b`.
    fn choose(&mut self, condition: Reg, a: Reg, b: Reg) -> Reg {
        self.push(Expr::Select(condition, a, b))
    }

    fn apply(&mut self, function: Primitive, x: Reg) -> Reg {
        self.push(Expr::Unary(function, x))
    }

    /// `f(x, value)`.
    fn with(&mut self, f: super::BinaryOp, x: Reg, value: f32) -> Reg {
        let value = self.constant(x, value);
        self.binary(f, x, value)
    }

    /// `x + x³ · p(x²)`, with the coefficients of `p` from the highest power down.
    fn odd(&mut self, x: Reg, coefficients: &[f32]) -> Reg {
        let square = self.binary(Mul, x, x);
        let p = self.polynomial(square, coefficients);
        let p = self.binary(Mul, p, square);
        let p = self.binary(Mul, p, x);
        self.binary(Add, p, x)
    }

    /// A polynomial with the coefficients from the highest power down.
    fn polynomial(&mut self, x: Reg, coefficients: &[f32]) -> Reg {
        let mut sum = self.constant(x, 0.0);
        for (i, &coefficient) in coefficients.iter().enumerate() {
            let coefficient = self.constant(x, coefficient);
            sum = match i {
                0 => coefficient,
                _ => {
                    let product = self.binary(Mul, sum, x);
                    self.binary(Add, product, coefficient)
                }
            };
        }
        sum
    }

    /// The value with the sign of `x`. It is at least 0.
    fn signed(&mut self, value: Reg, x: Reg) -> Reg {
        let minus = self.apply(Primitive::Neg, value);
        let negative = self.with(Lt, x, 0.0);
        self.choose(negative, minus, value)
    }

    pub(super) fn atan(&mut self, x: Reg) -> Reg {
        let m = self.apply(Primitive::Abs, x);
        // The angle is π/2 − atan(1/m), π/4 + atan((m − 1) / (m + 1)) or atan(m), so that the rest is below π/8.
        let far = self.with(Gt, m, 2.414_213_6);
        let middle = self.with(Gt, m, 0.414_213_57);
        let minus_one = self.constant(m, -1.0);
        let inverse = self.binary(Div, minus_one, m);
        let (below, above) = (self.with(Sub, m, 1.0), self.with(Add, m, 1.0));
        let turned = self.binary(Div, below, above);
        let rest = self.choose(middle, turned, m);
        let rest = self.choose(far, inverse, rest);
        let [none, eighth, quarter] =
            [0.0, core::f32::consts::FRAC_PI_4, core::f32::consts::FRAC_PI_2].map(|angle| self.constant(m, angle));
        let base = self.choose(middle, eighth, none);
        let base = self.choose(far, quarter, base);
        let rest = self.odd(rest, &[8.053_744_5e-2, -1.387_768_6e-1, 1.997_771_1e-1, -3.333_295e-1]);
        let angle = self.binary(Add, base, rest);
        self.signed(angle, x)
    }

    /// `atan(x / √(1 − x²))`. At ±1 the quotient is infinite, beyond the root is NaN.
    pub(super) fn asin(&mut self, x: Reg) -> Reg {
        let one = self.constant(x, 1.0);
        let (below, above) = (self.binary(Sub, one, x), self.binary(Add, one, x));
        let square = self.binary(Mul, below, above);
        let root = self.apply(Primitive::Sqrt, square);
        let quotient = self.binary(Div, x, root);
        self.atan(quotient)
    }

    /// `2 · atan(√((1 − x) / (1 + x)))`, which does not cancel near 1.
    pub(super) fn acos(&mut self, x: Reg) -> Reg {
        let one = self.constant(x, 1.0);
        let (below, above) = (self.binary(Sub, one, x), self.binary(Add, one, x));
        let quotient = self.binary(Div, below, above);
        let root = self.apply(Primitive::Sqrt, quotient);
        let half = self.atan(root);
        self.binary(Add, half, half)
    }

    /// `e^(m/2)` and `e^−m` of the magnitude. The square of the first may overflow only where the result does.
    fn exponentials(&mut self, x: Reg) -> (Reg, Reg) {
        let m = self.apply(Primitive::Abs, x);
        let half = self.with(Mul, m, 0.5);
        let minus = self.apply(Primitive::Neg, m);
        (self.apply(Primitive::Exp, half), self.apply(Primitive::Exp, minus))
    }

    /// `factor · (eˣ − 1) / x` by its series where x is near 0, where the difference would lose most of its digits.
    /// `far` elsewhere.
    pub(super) fn exp_minus_one(&mut self, x: Reg, factor: Reg, far: Reg) -> Reg {
        const SERIES: [f32; 8] =
            [1.0 / 40_320.0, 1.0 / 5_040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 1.0 / 2.0, 1.0];
        let sum = self.polynomial(x, &SERIES);
        let near = self.binary(Mul, factor, sum);
        let m = self.apply(Primitive::Abs, x);
        let small = self.with(Lt, m, 0.5);
        self.choose(small, near, far)
    }

    pub(super) fn sinh(&mut self, x: Reg) -> Reg {
        let (root, inverse) = self.exponentials(x);
        let (half_root, half_inverse) = (self.with(Mul, root, 0.5), self.with(Mul, inverse, 0.5));
        let grown = self.binary(Mul, half_root, root);
        let far = self.binary(Sub, grown, half_inverse);
        let far = self.signed(far, x);
        let near = self.odd(x, &[2.037_219_1e-4, 8.330_284e-3, 1.666_671_6e-1]);
        let m = self.apply(Primitive::Abs, x);
        let small = self.with(Lt, m, 1.0);
        self.choose(small, near, far)
    }

    pub(super) fn cosh(&mut self, x: Reg) -> Reg {
        let (root, inverse) = self.exponentials(x);
        let (half_root, half_inverse) = (self.with(Mul, root, 0.5), self.with(Mul, inverse, 0.5));
        let grown = self.binary(Mul, half_root, root);
        self.binary(Add, grown, half_inverse)
    }

    /// `ln(m + root)`, or `ln m + ln 2` where the square under the root would overflow.
    fn log_of_sum(&mut self, m: Reg, root: Reg) -> Reg {
        let sum = self.binary(Add, m, root);
        let large = self.with(Gt, m, 1500.0);
        let sum = self.choose(large, m, sum);
        let log = self.apply(Primitive::Log, sum);
        let more = self.with(Add, log, core::f32::consts::LN_2);
        self.choose(large, more, log)
    }

    pub(super) fn asinh(&mut self, x: Reg) -> Reg {
        let m = self.apply(Primitive::Abs, x);
        let square = self.binary(Mul, m, m);
        let square = self.with(Add, square, 1.0);
        let root = self.apply(Primitive::Sqrt, square);
        let far = self.log_of_sum(m, root);
        let far = self.signed(far, x);
        let near = self.odd(x, &[2.012_200_3e-2, -4.269_934e-2, 7.484_759e-2, -1.666_628_8e-1]);
        let small = self.with(Lt, m, 0.5);
        self.choose(small, near, far)
    }

    pub(super) fn acosh(&mut self, x: Reg) -> Reg {
        let (below, above) = (self.with(Sub, x, 1.0), self.with(Add, x, 1.0));
        let square = self.binary(Mul, below, above);
        let root = self.apply(Primitive::Sqrt, square);
        let far = self.log_of_sum(x, root);
        let p = [1.759_688_1e-3, -7.527_288_7e-3, 2.645_490_5e-2, -1.178_474_2e-1, core::f32::consts::SQRT_2];
        let p = self.polynomial(below, &p);
        let root = self.apply(Primitive::Sqrt, below);
        let near = self.binary(Mul, p, root);
        let small = self.with(Lt, x, 1.5);
        self.choose(small, near, far)
    }

    pub(super) fn atanh(&mut self, x: Reg) -> Reg {
        let one = self.constant(x, 1.0);
        let (below, above) = (self.binary(Sub, one, x), self.binary(Add, one, x));
        let quotient = self.binary(Div, above, below);
        let log = self.apply(Primitive::Log, quotient);
        let far = self.with(Mul, log, 0.5);
        let near = self.odd(x, &[1.817_400_8e-1, 8.243_703e-2, 1.466_914_3e-1, 1.997_821_6e-1, 3.333_373e-1]);
        let m = self.apply(Primitive::Abs, x);
        let small = self.with(Lt, m, 0.5);
        self.choose(small, near, far)
    }
}
