//! Functions of one float, written without branches or calls so that loops over them are vectorised.

/// Selects one of two values with a mask. With a plain `if`, the compiler may branch around the other value, which
/// prevents vectorisation.
#[inline(always)]
fn select(condition: bool, a: f32, b: f32) -> f32 {
    let mask = u32::from(condition).wrapping_neg();
    f32::from_bits(a.to_bits() & mask | b.to_bits() & !mask)
}

/// `eˣ` to about 2 ulp. Exact at ±∞ and NaN, with gradual underflow.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons in this form preserve NaN.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    // Adding and subtracting 1.5 · 2²³ rounds to an integer, which is then also in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x * core::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4;
    let r = r + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 0.166_666_65;
    let p = p * r + 0.5;
    let y = p * r * r + r + 1.0;
    // Two factors, because 2ⁿ may be out of range where the product is not.
    let whole = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = whole >> 1;
    let power = |e: i32| f32::from_bits((e.wrapping_add(127) as u32) << 23);
    y * power(half) * power(whole.wrapping_sub(half))
}

/// Natural logarithm to about 1 ulp, also of subnormal numbers.
#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = select(tiny, x * 8_388_608.0, x);
    let bits = scaled.to_bits();
    let e = ((bits >> 23) & 0xff) as i32 as f32 - select(tiny, 149.0, 126.0);
    let m = f32::from_bits(bits & 0x007f_ffff | 0x3f00_0000);
    let low = m < core::f32::consts::FRAC_1_SQRT_2;
    let e = e - select(low, 1.0, 0.0);
    let m = m + select(low, m, 0.0) - 1.0;
    let z = m * m;
    let p = 7.037_683_6e-2;
    let p = p * m - 1.151_461e-1;
    let p = p * m + 1.167_699_9e-1;
    let p = p * m - 1.242_014_1e-1;
    let p = p * m + 1.424_932_3e-1;
    let p = p * m - 1.666_805_8e-1;
    let p = p * m + 2.000_071_5e-1;
    let p = p * m - 2.499_999_4e-1;
    let p = p * m + 3.333_333e-1;
    let y = p * m * z - 2.121_944_4e-4 * e - 0.5 * z;
    let y = m + y + 0.693_359_4 * e;
    let y = select(x == f32::INFINITY, x, y);
    let y = select(x == 0.0, f32::NEG_INFINITY, y);
    select(x >= 0.0, y, f32::NAN)
}

/// The error function, within 5e-7.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let z = x * x;
    // An odd polynomial below 1, so that small values keep their relative accuracy; Abramowitz and Stegun 7.1.26 above.
    let p = 7.853_861e-5;
    let p = p * z - 8.010_194e-4;
    let p = p * z + 5.188_327_6e-3;
    let p = p * z - 2.685_381_2e-2;
    let p = p * z + 1.128_358_5e-1;
    let p = p * z - 3.761_262_6e-1;
    let p = p * z + core::f32::consts::FRAC_2_SQRT_PI;
    let near = x * p;
    let a = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let q = 1.061_405_4;
    let q = q * t - 1.453_152;
    let q = q * t + 1.421_413_7;
    let q = q * t - 0.284_496_74;
    let q = q * t + 0.254_829_6;
    let far = (1.0 - q * t * exp(-z)).copysign(x);
    select(a < 1.0, near, far)
}

/// Hyperbolic tangent to about 2 ulp.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let z = x * x;
    let p = -5.704_988_7e-3;
    let p = p * z + 2.063_909e-2;
    let p = p * z - 5.373_971_6e-2;
    let p = p * z + 1.333_144_2e-1;
    let p = p * z - 3.333_328e-1;
    let near = p * z * x + x;
    let a = x.abs();
    let far = (1.0 - 2.0 / (exp(a + a) + 1.0)).copysign(x);
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
        for i in -20_000..20_000 {
            let x = i as f32 * 0.0044;
            let wide = f64::from(x);
            if x > -87.0 {
                assert!(ulps(exp(x), wide.exp()) < 2.5, "exp({x})");
            }
            assert!(ulps(tanh(x), wide.tanh()) < 3.0 || x == 0.0, "tanh({x}) = {}", tanh(x));
            assert!((f64::from(erf(x)) - erf_series(wide)).abs() < 5e-7, "erf({x}) = {}", erf(x));
            if x > 0.0 && (x - 1.0).abs() > 1e-3 {
                assert!(ulps(log(x), wide.ln()) < 2.0, "log({x})");
            }
        }
        for x in [1e-42f32, 1e-38, 3e-20, 1e-3, 1.0001, 7e18, 3e38] {
            assert!(ulps(log(x), f64::from(x).ln()) < 2.0, "log({x})");
        }
    }

    #[test]
    fn functions_keep_their_limits() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!((exp(inf), exp(-inf), exp(0.0), exp(1000.0), exp(-1000.0)), (inf, 0.0, 1.0, inf, 0.0));
        assert_eq!((log(inf), log(0.0), log(1.0)), (inf, -inf, 0.0));
        assert_eq!((tanh(inf), tanh(-inf), tanh(0.0)), (1.0, -1.0, 0.0));
        assert_eq!((erf(inf), erf(-inf), erf(0.0)), (1.0, -1.0, 0.0));
        for f in [exp, log, tanh, erf] {
            assert!(f(nan).is_nan());
        }
        assert!(log(-1.0).is_nan() && log(-inf).is_nan());
        assert!(exp(88.7).is_finite() && exp(-100.0) > 0.0);
    }
}
