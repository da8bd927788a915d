//! Reductions of `[outer, n, inner]` over the middle axis, on the CPU.

use bytemuck::{cast_slice, cast_slice_mut};

use crate::ir::ReduceKind;
use crate::kernel::ReduceKernel;
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::{Number, with_class};
use crate::kernel::host::rows;
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::vectorised;
use crate::kernel::host::{CpuPool, GRAIN};

/// Number of independent sums, which allows vectorisation and hides latency.
const LANES: usize = 32;

/// Folds a slice in lanes.
#[inline(always)]
fn fold<T: Number>(x: &[T], start: T, f: impl Fn(T, T) -> T + Copy, join: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = f(*lane, v);
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    tail.iter().fold(lanes[0], |a, &v| f(a, v))
}

/// Summation for a class.
trait Sum: Number {
    /// Sums a contiguous row.
    fn sum_row(x: &[Self], squares: bool) -> Self;
}

impl Sum for f32 {
    #[inline(always)]
    fn sum_row(x: &[f32], squares: bool) -> f32 {
        (if squares { rows::sum_squares(x, 0.0) } else { rows::sum(x) }) as f32
    }
}

macro_rules! wrapping_sum {
    ($($type:ty),*) => {$(
        impl Sum for $type {
            #[inline(always)]
            fn sum_row(x: &[$type], squares: bool) -> $type {
                if squares {
                    x.iter().fold(0, |a, &v| a.wrapping_add(v.wrapping_mul(v)))
                } else {
                    x.iter().fold(0, |a, &v| a.wrapping_add(v))
                }
            }
        }
    )*};
}
wrapping_sum!(i32, u32);

/// Reduces one contiguous row.
#[inline(always)]
fn row<T: Sum>(kind: ReduceKind, x: &[T]) -> T {
    match kind {
        ReduceKind::Sum => T::sum_row(x, false),
        ReduceKind::Mean => T::sum_row(x, false).div_count(x.len()),
        ReduceKind::SumSquares => T::sum_row(x, true),
        ReduceKind::Max => fold(x, T::LOWEST, T::larger, T::larger),
        ReduceKind::Min => fold(x, T::HIGHEST, T::smaller, T::smaller),
        ReduceKind::Prod => fold(x, T::ONE, T::mul, T::mul),
        ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => T::ZERO,
    }
}

/// Reduces columns `start..start + out.len()` of one `[n, inner]`, row by row. `block` is a buffer of the same length.
#[inline(always)]
fn columns<T: Number>(kind: ReduceKind, x: &[T], inner: usize, start: usize, block: &mut [T], out: &mut [T]) {
    let n = x.len() / inner;
    let rows = || x.chunks(inner).map(|row| &row[start..]);
    macro_rules! fold {
        ($first:expr, $f:expr) => {{
            out.fill($first);
            for row in rows() {
                out.iter_mut().zip(row).for_each(|(o, &v)| *o = $f(*o, v));
            }
        }};
    }
    match kind {
        ReduceKind::Sum | ReduceKind::Mean | ReduceKind::SumSquares => {
            // Two levels, so that rounding errors grow with the number of blocks instead of rows.
            block.fill(T::ZERO);
            out.fill(T::ZERO);
            for (i, row) in rows().enumerate() {
                if kind == ReduceKind::SumSquares {
                    block.iter_mut().zip(row).for_each(|(b, &v)| *b = b.add(v.mul(v)));
                } else {
                    block.iter_mut().zip(row).for_each(|(b, &v)| *b = b.add(v));
                }
                if i % 64 == 63 || i + 1 == n {
                    for (o, b) in out.iter_mut().zip(&mut *block) {
                        *o = o.add(*b);
                        *b = T::ZERO;
                    }
                }
            }
            if kind == ReduceKind::Mean {
                out.iter_mut().for_each(|o| *o = o.div_count(n));
            }
        }
        ReduceKind::Max => fold!(T::LOWEST, T::larger),
        ReduceKind::Min => fold!(T::HIGHEST, T::smaller),
        ReduceKind::Prod => fold!(T::ONE, T::mul),
        ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => {}
    }
}

/// Whether `new` replaces the earlier `best`. NaN is better than any number. An equal value replaces it only if `last`
/// is set. Without branches, so that loops over it are vectorised.
#[inline(always)]
fn better<T: Number>(new: T, best: T, largest: bool, last: bool) -> bool {
    let beats = (largest & (new > best)) | (!largest & (new < best)) | (last & (new == best));
    let (new, best) = (new.is_nan(), best.is_nan());
    (best & last & new) | (!best & (new | beats))
}

/// Position of the best element of a contiguous row. Finds the value first, which is fast, then its position.
#[inline(always)]
fn row_position<T: Number>(x: &[T], largest: bool, last: bool) -> i32 {
    let best =
        if largest { fold(x, T::LOWEST, T::larger, T::larger) } else { fold(x, T::HIGHEST, T::smaller, T::smaller) };
    let hit = |v: &T| *v == best || (v.is_nan() && best.is_nan());
    (if last { x.iter().rposition(hit) } else { x.iter().position(hit) }).unwrap_or(0) as i32
}

/// Positions of the best elements of columns `start..start + out.len()` of one `[n, inner]`. `best` is a buffer of the
/// same length.
#[inline(always)]
fn positions<T: Number>(
    x: &[T],
    inner: usize,
    start: usize,
    best: &mut [T],
    out: &mut [i32],
    largest: bool,
    last: bool,
) {
    best.copy_from_slice(&x[start..start + out.len()]);
    out.fill(0);
    for (i, row) in x.chunks(inner).enumerate().skip(1) {
        for ((o, best), &v) in out.iter_mut().zip(&mut *best).zip(&row[start..]) {
            let take = better(v, *best, largest, last);
            *best = if take { v } else { *best };
            *o = if take { i as i32 } else { *o };
        }
    }
}

/// The CPU twin. Input: x.
pub(crate) fn reduce(kernel: &ReduceKernel, inputs: &[Input], out: &mut [u32], pool: &CpuPool) {
    let [x] = inputs else { return };
    if out.is_empty() || kernel.n == 0 {
        return;
    }
    let (n, inner) = (kernel.n, kernel.inner);
    with_class!(kernel.class, T => {
           let x = x.contiguous::<T>(pool);
           let plane = |outer: usize| &x[outer * n * inner..][..n * inner];
           if let ReduceKind::ArgMax { last } | ReduceKind::ArgMin { last } = kernel.kind {
               let largest = matches!(kernel.kind, ReduceKind::ArgMax { .. });
               pool.each_unit(cast_slice_mut::<_, i32>(out), 1, n * 2, |first, out| {
                   if inner == 1 {
                       let mut rows = out.iter_mut().zip(x[first * n..].chunks(n));
                       return vectorised(
                           #[inline(always)]
                           || {
    for (o, x) in rows.by_ref() {
    *o = row_position(x, largest, last);
    }
    },
                       );
                   }
                   with_scratch(inner.min(out.len()), |best: &mut [T]| {
                       spans(first, out, inner, |outer, start, out| {
                           let best = &mut best[..out.len()];
                           vectorised(
                               #[inline(always)]
                               || positions(plane(outer), inner, start, best, out, largest, last),
                           );
                       });
                   });
               });
           } else if inner == 1 && kernel.outer == 1 && n > 2 * GRAIN && kernel.kind != ReduceKind::Prod {
               long_row::<T>(kernel.kind, &x, out, pool);
           } else if inner == 1 {
               pool.each_unit(cast_slice_mut::<_, T>(out), 1, n, |first, out| {
                   let mut rows = out.iter_mut().zip(x[first * n..].chunks(n));
                   vectorised(
                       #[inline(always)]
                       || {
    for (o, x) in rows.by_ref() {
    *o = row(kernel.kind, x);
    }
    },
                   );
               });
           } else {
               pool.each_unit(cast_slice_mut::<_, T>(out), 1, n, |first, out| {
                   with_scratch(inner.min(out.len()), |block: &mut [T]| {
                       spans(first, out, inner, |outer, start, out| {
                           let block = &mut block[..out.len()];
                           vectorised(
                               #[inline(always)]
                               || columns(kernel.kind, plane(outer), inner, start, block, out),
                           );
                       });
                   });
               });
           }
       });
}

/// Reduces a row that is long enough for several threads: parts of fixed length, then their results.
fn long_row<T: Sum>(kind: ReduceKind, x: &[T], out: &mut [u32], pool: &CpuPool) {
    let mut parts = vec![T::ZERO; x.len().div_ceil(GRAIN)];
    let (each, all) = match kind {
        ReduceKind::Mean => (ReduceKind::Sum, ReduceKind::Sum),
        ReduceKind::SumSquares => (ReduceKind::SumSquares, ReduceKind::Sum),
        kind => (kind, kind),
    };
    pool.each_unit(&mut parts, 1, GRAIN, |first, parts| {
        let mut rows = parts.iter_mut().zip(x[first * GRAIN..].chunks(GRAIN));
        vectorised(
            #[inline(always)]
            || {
                for (part, x) in rows.by_ref() {
                    *part = row(each, x);
                }
            },
        );
    });
    let mut result = row(all, &parts);
    if kind == ReduceKind::Mean {
        result = result.div_count(x.len());
    }
    out.copy_from_slice(cast_slice(&[result]));
}

/// Splits a part of `[outer, inner]` that starts at element `first` at the outer indices. Calls `work` with the outer
/// index, the first column and the slice.
pub(crate) fn spans<T>(first: usize, out: &mut [T], inner: usize, mut work: impl FnMut(usize, usize, &mut [T])) {
    let (mut at, mut rest) = (first, out);
    while !rest.is_empty() {
        let start = at % inner;
        let length = (inner - start).min(rest.len());
        let (piece, after) = rest.split_at_mut(length);
        work(at / inner, start, piece);
        (at, rest) = (at + length, after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Class, Layout};
    use crate::kernel::host::memory::Elements;

    const KINDS: [ReduceKind; 10] = [
        ReduceKind::Sum,
        ReduceKind::Mean,
        ReduceKind::Max,
        ReduceKind::Min,
        ReduceKind::Prod,
        ReduceKind::SumSquares,
        ReduceKind::ArgMax { last: false },
        ReduceKind::ArgMax { last: true },
        ReduceKind::ArgMin { last: false },
        ReduceKind::ArgMin { last: true },
    ];

    fn naive(kind: ReduceKind, column: &[f64]) -> f64 {
        let best = |largest: bool, last: bool| {
            let extreme = column.iter().copied().fold(column[0], |a, v| if largest { a.max(v) } else { a.min(v) });
            let hit = |v: &f64| *v == extreme;
            (if last { column.iter().rposition(hit) } else { column.iter().position(hit) }).expect("there") as f64
        };
        match kind {
            ReduceKind::Sum => column.iter().sum(),
            ReduceKind::Mean => column.iter().sum::<f64>() / column.len() as f64,
            ReduceKind::Max => column.iter().copied().fold(f64::MIN, f64::max),
            ReduceKind::Min => column.iter().copied().fold(f64::MAX, f64::min),
            ReduceKind::Prod => column.iter().product(),
            ReduceKind::SumSquares => column.iter().map(|v| v * v).sum(),
            ReduceKind::ArgMax { last } => best(true, last),
            ReduceKind::ArgMin { last } => best(false, last),
        }
    }

    #[test]
    fn reductions_match_the_definition_at_awkward_sizes() {
        let pool = CpuPool::new(3);
        for kind in KINDS {
            for (outer, n, inner) in
                [(1, 1, 1), (7, 63, 1), (3, 65, 7), (1, 7, 65), (2, 129, 1), (1, 70_001, 1), (5, 200, 300)]
            {
                let x: Vec<f32> = (0..outer * n * inner)
                    .map(|i| {
                        if kind == ReduceKind::Prod { 1.0 + (i % 3) as f32 * 1e-3 } else { (i * 31 % 17) as f32 - 8.0 }
                    })
                    .collect();
                if kind == ReduceKind::Prod && n > 1000 {
                    continue;
                }
                let kernel = ReduceKernel { kind, class: Class::Float, outer, n, inner };
                let mut out = vec![0u32; outer * inner];
                let input = Input { elements: Elements::F32(&x), layout: Layout::contiguous([outer, n, inner]) };
                reduce(&kernel, &[input], &mut out, &pool);
                for (at, &bits) in out.iter().enumerate() {
                    let (o, i) = (at / inner, at % inner);
                    let column: Vec<f64> = (0..n).map(|j| f64::from(x[(o * n + j) * inner + i])).collect();
                    let expected = naive(kind, &column);
                    let got = match kind {
                        ReduceKind::ArgMax { .. } | ReduceKind::ArgMin { .. } => f64::from(bits as i32),
                        _ => f64::from(f32::from_bits(bits)),
                    };
                    assert!((got - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{kernel:?}: {got} {expected}");
                }
            }
        }
    }

    #[test]
    fn nan_wins_and_whole_numbers_wrap() {
        let pool = CpuPool::new(1);
        let run = |kind, class, elements, n| {
            let mut out = vec![0u32; 1];
            let input = Input { elements, layout: Layout::contiguous([n]) };
            reduce(&ReduceKernel { kind, class, outer: 1, n, inner: 1 }, &[input], &mut out, &pool);
            out[0]
        };
        let x = [3.0, f32::NAN, 5.0, f32::NAN, 1.0];
        for kind in [ReduceKind::Max, ReduceKind::Min] {
            assert!(f32::from_bits(run(kind, Class::Float, Elements::F32(&x), 5)).is_nan());
        }
        assert_eq!(run(ReduceKind::ArgMin { last: false }, Class::Float, Elements::F32(&x), 5), 1);
        assert_eq!(run(ReduceKind::ArgMax { last: true }, Class::Float, Elements::F32(&x), 5), 3);
        assert_eq!(run(ReduceKind::Sum, Class::Int, Elements::I32(&[i32::MAX, 2]), 2) as i32, i32::MIN + 1);
        assert_eq!(run(ReduceKind::Sum, Class::Int, Elements::I8(&[-100, -100, 7]), 3) as i32, -193);
        assert_eq!(run(ReduceKind::Max, Class::Uint, Elements::U8(&[1, 250, 7]), 3), 250);
    }
}
