//! Functions of one float, written without branches or calls so that loops over them are vectorised.

use crate::kernel::host::simd::Contraction;

/// Selects one of two values with a mask. With a plain `if`, the compiler may branch around the other value, which
/// prevents vectorisation.
#[inline(always)]
fn select(condition: bool, a: f32, b: f32) -> f32 {
    let mask = u32::from(condition).wrapping_neg();
    f32::from_bits(a.to_bits() & mask | b.to_bits() & !mask)
}

/// Adding and subtracting 1.5 · 2²³ rounds to an integer, which is then also in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0;
/// [`exp_decay`] is 0 here and below: this number is `2ⁿ` with the exponent bits of 0.
pub(crate) const EXP_LEAST: f32 = -88.1;

/// Numbers that the exponential is made of.
pub(crate) struct ExpNumbers {
    /// The negated natural logarithm of 2 in two parts.
    pub high: f32,
    pub low: f32,
    /// Coefficients of a polynomial, highest power first.
    pub terms: [f32; 8],
}

pub(crate) const EXP: ExpNumbers = ExpNumbers {
    high: -0.693_359_4,
    low: 2.121_944_4e-4,
    terms: [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5, 1.0, 1.0],
};

/// `eˣ / 2ⁿ`, and `n + bias` in the low bits of a float.
#[inline(always)]
fn exp_reduced(c: Contraction, x: f32, bias: f32) -> (f32, f32) {
    let shifted = c.mul_add(x, core::f32::consts::LOG2_E, ROUND + bias);
    let n = shifted - (ROUND + bias);
    let r = c.mul_add(n, EXP.high, x);
    let r = c.mul_add(n, EXP.low, r);
    let [first, rest @ ..] = EXP.terms;
    let p = rest.iter().fold(first, |p, &term| c.mul_add(p, r, term));
    (p, shifted)
}

/// `eˣ` to about 2 ulp. Exact at ±∞ and NaN, with gradual underflow.
#[inline(always)]
pub(crate) fn exp(c: Contraction, x: f32) -> f32 {
    // Comparisons in this form preserve NaN.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let (y, shifted) = exp_reduced(c, x, 0.0);
    // Two factors, because 2ⁿ may be out of range where the product is not.
    let whole = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = whole >> 1;
    let power = |e: i32| f32::from_bits((e.wrapping_add(127) as u32) << 23);
    y * power(half) * power(whole.wrapping_sub(half))
}

/// `eˣ` to about 2 ulp for `x` that is not positive. Results below the smallest normal number
/// may be 0.
#[inline(always)]
pub(crate) fn exp_decay(c: Contraction, x: f32) -> f32 {
    let (y, shifted) = exp_reduced(c, if x < EXP_LEAST { EXP_LEAST } else { x }, 127.0);
    // The low bits are the exponent bits of 2ⁿ. All bits above them are shifted out.
    y * f32::from_bits(shifted.to_bits() << 23)
}

/// Natural logarithm to about 1 ulp, also of subnormal numbers.
#[inline(always)]
pub(crate) fn log(c: Contraction, x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = select(tiny, x * 8_388_608.0, x);
    let bits = scaled.to_bits();
    let e = ((bits >> 23) & 0xff) as i32 as f32 - select(tiny, 149.0, 126.0);
    let m = f32::from_bits(bits & 0x007f_ffff | 0x3f00_0000);
    let low = m < core::f32::consts::FRAC_1_SQRT_2;
    let e = e - select(low, 1.0, 0.0);
    let m = m + select(low, m, 0.0) - 1.0;
    let z = m * m;
    let p = c.mul_add(7.037_683_6e-2, m, -1.151_461e-1);
    let p = c.mul_add(p, m, 1.167_699_9e-1);
    let p = c.mul_add(p, m, -1.242_014_1e-1);
    let p = c.mul_add(p, m, 1.424_932_3e-1);
    let p = c.mul_add(p, m, -1.666_805_8e-1);
    let p = c.mul_add(p, m, 2.000_071_5e-1);
    let p = c.mul_add(p, m, -2.499_999_4e-1);
    let p = c.mul_add(p, m, 3.333_333e-1);
    let y = c.mul_add(p * m, z, -2.121_944_4e-4 * e);
    let y = c.mul_add(-0.5, z, y);
    let y = c.mul_add(0.693_359_4, e, m + y);
    let y = select(x == f32::INFINITY, x, y);
    let y = select(x == 0.0, f32::NEG_INFINITY, y);
    select(x >= 0.0, y, f32::NAN)
}

/// The error function, within 5e-7.
#[inline(always)]
pub(crate) fn erf(c: Contraction, x: f32) -> f32 {
    let z = x * x;
    // An odd polynomial below 1, so that small values keep their relative accuracy; Abramowitz and Stegun 7.1.26 above.
    let p = c.mul_add(7.853_861e-5, z, -8.010_194e-4);
    let p = c.mul_add(p, z, 5.188_327_6e-3);
    let p = c.mul_add(p, z, -2.685_381_2e-2);
    let p = c.mul_add(p, z, 1.128_358_5e-1);
    let p = c.mul_add(p, z, -3.761_262_6e-1);
    let p = c.mul_add(p, z, core::f32::consts::FRAC_2_SQRT_PI);
    let near = x * p;
    let a = x.abs();
    let t = 1.0 / c.mul_add(0.327_591_1, a, 1.0);
    let q = c.mul_add(1.061_405_4, t, -1.453_152);
    let q = c.mul_add(q, t, 1.421_413_7);
    let q = c.mul_add(q, t, -0.284_496_74);
    let q = c.mul_add(q, t, 0.254_829_6);
    let far = c.mul_add(-q * t, exp_decay(c, -z), 1.0).copysign(x);
    select(a < 1.0, near, far)
}

/// Hyperbolic tangent to about 2 ulp.
#[inline(always)]
pub(crate) fn tanh(c: Contraction, x: f32) -> f32 {
    let z = x * x;
    let p = c.mul_add(-5.704_988_7e-3, z, 2.063_909e-2);
    let p = c.mul_add(p, z, -5.373_971_6e-2);
    let p = c.mul_add(p, z, 1.333_144_2e-1);
    let p = c.mul_add(p, z, -3.333_328e-1);
    let near = c.mul_add(p * z, x, x);
    let a = x.abs();
    // The same as (e²ᵃ − 1) / (e²ᵃ + 1), without overflow.
    let e = exp_decay(c, -(a + a));
    let far = ((1.0 - e) / (1.0 + e)).copysign(x);
    select(a < 0.625, near, far)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units in the last place of `expected`.
    fn ulps(got: f32, expected: f64) -> f64 {
        let e = expected as f32;
        let ulp = f64::from(f32::from_bits(e.abs().to_bits() + 1)) - f64::from(e.abs());
        (f64::from(got) - expected).abs() / ulp
    }

    /// The series, which converges everywhere.
    fn erf_series(x: f64) -> f64 {
        if x.abs() > 4.0 {
            return x.signum();
        }
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-18 {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * 2.0 / core::f64::consts::PI.sqrt()
    }

    #[test]
    fn functions_stay_close_to_double_precision() {
        for c in [Contraction::NONE, Contraction::FULL] {
            close_to_double_precision(c);
        }
    }

    fn close_to_double_precision(c: Contraction) {
        for i in -20_000..20_000 {
            let x = i as f32 * 0.0044;
            let wide = f64::from(x);
            if x > -87.0 {
                assert!(ulps(exp(c, x), wide.exp()) < 2.5, "exp(c, {x})");
            }
            assert!(ulps(tanh(c, x), wide.tanh()) < 3.0 || x == 0.0, "tanh(c, {x}) = {}", tanh(c, x));
            assert!((f64::from(erf(c, x)) - erf_series(wide)).abs() < 5e-7, "erf(c, {x}) = {}", erf(c, x));
            if x > 0.0 && (x - 1.0).abs() > 1e-3 {
                assert!(ulps(log(c, x), wide.ln()) < 2.0, "log(c, {x})");
            }
        }
        for x in [1e-42f32, 1e-38, 3e-20, 1e-3, 1.0001, 7e18, 3e38] {
            assert!(ulps(log(c, x), f64::from(x).ln()) < 2.0, "log(c, {x})");
        }
    }

    #[test]
    fn functions_keep_their_limits() {
        for c in [Contraction::NONE, Contraction::FULL] {
            limits(c);
        }
    }

    fn limits(c: Contraction) {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!(
            (exp(c, inf), exp(c, -inf), exp(c, 0.0), exp(c, 1000.0), exp(c, -1000.0)),
            (inf, 0.0, 1.0, inf, 0.0)
        );
        assert_eq!((exp_decay(c, -inf), exp_decay(c, -100.0), exp_decay(c, 0.0)), (0.0, 0.0, 1.0));
        assert_eq!((log(c, inf), log(c, 0.0), log(c, 1.0)), (inf, -inf, 0.0));
        assert_eq!((tanh(c, inf), tanh(c, -inf), tanh(c, 0.0)), (1.0, -1.0, 0.0));
        assert_eq!((erf(c, inf), erf(c, -inf), erf(c, 0.0)), (1.0, -1.0, 0.0));
        for f in [exp, exp_decay, log, tanh, erf] {
            assert!(f(c, nan).is_nan());
        }
        assert!(log(c, -1.0).is_nan() && log(c, -inf).is_nan());
        assert!(exp(c, 88.7).is_finite() && exp(c, -100.0) > 0.0);
    }
}
