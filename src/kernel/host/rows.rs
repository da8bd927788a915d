//! Sums, maxima and exponentials of rows of floats, in vectors.

use pulp::{Simd, WithSimd};

use crate::kernel::host::math::{self, EXP, EXP_LEAST, ROUND};
use crate::kernel::host::simd::{Contraction, with_vectors};

/// Number of elements summed in 32-bit lanes before the lanes are combined. The constant size also makes results
/// independent of the number of threads.
const BLOCK: usize = 1024;
/// Number of independent vectors of sums, which hides the latency of additions.
const SUMS: usize = 4;

/// The largest element. NaN may be ignored.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    with_vectors(Largest(x))
}

/// The sum of all elements. Blocks are summed in lanes, and the sums of blocks in double precision.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f64 {
    with_vectors(Sum::<false> { x, mean: 0.0 })
}

/// The sum of the squared differences from `mean`, summed like [`sum`].
#[inline(always)]
pub(crate) fn sum_squares(x: &[f32], mean: f32) -> f64 {
    with_vectors(Sum::<true> { x, mean })
}

/// `out = exp(x − top)` for a `top` that is not less than any element, and the sum of `out`. Without `x`, `out` itself
/// is replaced.
#[inline(always)]
pub(crate) fn exponentials(x: Option<&[f32]>, out: &mut [f32], top: f32) -> f64 {
    with_vectors(Exponentials { x, out, top })
}

struct Largest<'a>(&'a [f32]);

impl WithSimd for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (x, tail) = S::as_simd_f32s(self.0);
        let mut tops = [simd.splat_f32s(f32::NEG_INFINITY); SUMS];
        let (groups, rest) = x.as_chunks::<SUMS>();
        // The operand that a comparison with NaN selects comes second.
        for group in groups {
            for i in 0..SUMS {
                tops[i] = simd.max_f32s(group[i], tops[i]);
            }
        }
        for &v in rest {
            tops[0] = simd.max_f32s(v, tops[0]);
        }
        let top = simd.max_f32s(simd.max_f32s(tops[0], tops[1]), simd.max_f32s(tops[2], tops[3]));
        tail.iter().fold(simd.reduce_max_f32s(top), |top, &v| if v > top { v } else { top })
    }
}

struct Sum<'a, const SQUARES: bool> {
    x: &'a [f32],
    mean: f32,
}

impl<const SQUARES: bool> WithSimd for Sum<'_, SQUARES> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let mean = simd.splat_f32s(self.mean);
        let add = |sum, v| {
            if SQUARES {
                let d = simd.sub_f32s(v, mean);
                simd.mul_add_e_f32s(d, d, sum)
            } else {
                simd.add_f32s(sum, v)
            }
        };
        let mut total = 0.0;
        for block in self.x.chunks(BLOCK) {
            let (x, tail) = S::as_simd_f32s(block);
            let mut sums = [simd.splat_f32s(0.0); SUMS];
            let (groups, rest) = x.as_chunks::<SUMS>();
            for group in groups {
                for i in 0..SUMS {
                    sums[i] = add(sums[i], group[i]);
                }
            }
            for &v in rest {
                sums[0] = add(sums[0], v);
            }
            let sum = simd.add_f32s(simd.add_f32s(sums[0], sums[1]), simd.add_f32s(sums[2], sums[3]));
            let one = |v: f32| if SQUARES { (v - self.mean) * (v - self.mean) } else { v };
            total += f64::from(tail.iter().fold(simd.reduce_sum_f32s(sum), |sum, &v| sum + one(v)));
        }
        total
    }
}

struct Exponentials<'a> {
    x: Option<&'a [f32]>,
    out: &'a mut [f32],
    top: f32,
}

impl WithSimd for Exponentials<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let top = simd.splat_f32s(self.top);
        let mut total = 0.0;
        for (i, out) in self.out.chunks_mut(BLOCK).enumerate() {
            let x = self.x.map(|x| S::as_simd_f32s(&x[i * BLOCK..][..out.len()]));
            let (out, tail) = S::as_mut_simd_f32s(out);
            let mut sums = [simd.splat_f32s(0.0); SUMS];
            let (groups, rest) = out.as_chunks_mut::<SUMS>();
            let whole = groups.len();
            let from = x.map(|(x, _)| x.as_chunks::<SUMS>());
            for (j, group) in groups.iter_mut().enumerate() {
                let x = from.map_or(*group, |(x, _)| x[j]);
                for i in 0..SUMS {
                    group[i] = exp_decay(simd, simd.sub_f32s(x[i], top));
                    sums[i] = simd.add_f32s(sums[i], group[i]);
                }
            }
            for (j, v) in rest.iter_mut().enumerate() {
                let x = x.map_or(*v, |(x, _)| x[whole * SUMS + j]);
                *v = exp_decay(simd, simd.sub_f32s(x, top));
                sums[0] = simd.add_f32s(sums[0], *v);
            }
            let sum = simd.add_f32s(simd.add_f32s(sums[0], sums[1]), simd.add_f32s(sums[2], sums[3]));
            let mut sum = simd.reduce_sum_f32s(sum);
            if let Some((_, x)) = x {
                tail.copy_from_slice(x);
            }
            for v in tail {
                *v = math::exp_decay(Contraction::of::<S>(), *v - self.top);
                sum += *v;
            }
            total += f64::from(sum);
        }
        total
    }
}

/// [`math::exp_decay`] of a vector.
#[inline(always)]
fn exp_decay<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let splat = |v: f32| simd.splat_f32s(v);
    let (least, round) = (splat(EXP_LEAST), splat(ROUND + 127.0));
    // NaN is kept: comparisons with it are false.
    let x = simd.select_f32s(simd.less_than_f32s(x, least), least, x);
    let shifted = simd.mul_add_e_f32s(x, splat(core::f32::consts::LOG2_E), round);
    let n = simd.sub_f32s(shifted, round);
    let r = simd.mul_add_e_f32s(n, splat(EXP.high), x);
    let r = simd.mul_add_e_f32s(n, splat(EXP.low), r);
    let [first, rest @ ..] = EXP.terms;
    let p = rest.iter().fold(splat(first), |p, &term| simd.mul_add_e_f32s(p, r, splat(term)));
    let power = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    simd.mul_f32s(p, simd.transmute_f32s_u32s(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_awkward_lengths_match_double_precision() {
        crate::kernel::host::simd::forced::each(rows_match);
    }

    fn rows_match() {
        for n in [0, 1, 15, 16, 17, 63, 64, 65, 127, 1023, 1024, 1025, 3000] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37) % 101) as f32 * 0.3 - 20.0).collect();
            let wide = |f: &dyn Fn(f64) -> f64| x.iter().map(|&v| f(f64::from(v))).sum::<f64>();
            let top = largest(&x);
            assert_eq!(top, x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let close = |got: f64, expected: f64| (got - expected).abs() <= 1e-6 * expected.abs().max(n as f64);
            assert!(close(sum(&x), wide(&|v| v)), "{n}");
            assert!(close(sum_squares(&x, 1.5), wide(&|v| (v - 1.5) * (v - 1.5))), "{n}");
            let mut out = vec![f32::NAN; n];
            let total = exponentials(Some(&x), &mut out, top);
            let mut again = x.clone();
            assert_eq!(exponentials(None, &mut again, top), total);
            assert_eq!(out, again);
            for (&got, &v) in out.iter().zip(&x) {
                let expected = f64::from(v - top).exp();
                assert!((f64::from(got) - expected).abs() <= 3e-7 * expected, "{v} gives {got}, not {expected}");
            }
            assert!(close(total, out.iter().map(|&v| f64::from(v)).sum()), "{n}");
        }
    }

    #[test]
    fn nan_and_infinities_are_kept() {
        for n in [3, 40] {
            let mut x = vec![f32::NEG_INFINITY; n];
            x[0] = 1.0;
            assert_eq!(exponentials(None, &mut x, 1.0), 1.0);
            assert!(x[1..].iter().all(|&v| v == 0.0));
            x[n - 2] = f32::NAN;
            assert!(largest(&x) == 1.0 || largest(&x).is_nan());
            assert!(exponentials(None, &mut x, 1.0).is_nan());
            assert!(x[n - 2].is_nan());
        }
    }
}
