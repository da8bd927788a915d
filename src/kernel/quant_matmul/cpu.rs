//! Matrix products with quantised weights on the CPU. For very few rows, the quants are used directly. For some rows, a
//! few rows of the weights at a time are widened and stay in the L1 cache while all rows are multiplied by them. For
//! many rows, strips of the weights are widened into a buffer that fits the L2 cache and are passed to `gemm`.

use std::borrow::Cow;

use pulp::{Simd, WithSimd};

use crate::ir::{BlockFormat, Coding};
use crate::kernel::QuantMatMulKernel;
use crate::kernel::host::CpuPool;
use crate::kernel::host::memory::{Elements, Input};
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::{Contraction, contracted, vectorised, with_vectors};
use crate::kernel::matmul::gemm::{Matrix, gemm};

/// Maximum number of rows for which the quants are used directly: widening the weights would cost more than it saves.
const FEW: usize = 3;
/// Maximum number of rows for which a few rows of the weights are widened at a time.
const SOME: usize = 64;
/// Number of weight rows widened at a time in that case.
const WIDE: usize = 4;
/// Bytes of widened weights at a time: half of a typical L2 cache.
const PANEL: usize = 1 << 17;

/// Weights `[n, k]`, starting at row 0.
#[derive(Clone, Copy)]
pub(super) enum Weights<'a> {
    Blocks { format: BlockFormat, words: &'a [u32], first: usize },
    Bytes(&'a [i8]),
}

impl Weights<'_> {
    /// Widens a row.
    #[inline(always)]
    fn row(self, row: usize, out: &mut [f32]) {
        match self {
            Self::Blocks { format, words, first } => {
                let start = first + row * (out.len() / format.elements);
                for (i, out) in out.chunks_exact_mut(format.elements).enumerate() {
                    format.dequantize(words, start + i, out);
                }
            }
            Self::Bytes(values) => {
                let start = row * out.len();
                for (out, &v) in out.iter_mut().zip(&values[start..]) {
                    *out = f32::from(v);
                }
            }
        }
    }

    /// The dot product of a row with `x`, which has the same length.
    #[inline(always)]
    fn dot(self, c: Contraction, row: usize, x: &[f32]) -> f32 {
        let mut sums = [0f32; LANES];
        let mut rest = 0.0;
        match self {
            Self::Blocks { format, words, first } => {
                let start = first + row * (x.len() / format.elements);
                let mut wide = [0.0; 256];
                for (i, x) in x.chunks_exact(format.elements).enumerate() {
                    if format.coding != Coding::Plain {
                        let wide = &mut wide[..format.elements];
                        format.dequantize(words, start + i, wide);
                        add_floats(c, wide, x, &mut sums);
                        continue;
                    }
                    let (quants, scale) = (format.quants(words, start + i), format.scale(words, start + i).to_f32());
                    if format.bits == 8 {
                        rest += add_bytes(c, bytemuck::cast_slice(quants), scale, x, &mut sums);
                    } else {
                        add_halves(c, quants, scale, x, &mut sums);
                    }
                }
            }
            Self::Bytes(values) => {
                rest = add_bytes(c, &values[row * x.len()..(row + 1) * x.len()], 1.0, x, &mut sums);
            }
        }
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                sums[i] += sums[i + half];
            }
            half /= 2;
        }
        sums[0] + rest
    }
}

/// Number of independent sums. They are combined at the end of a row.
const LANES: usize = 32;

/// Adds the products of scaled quants and numbers to the sums. Returns the sum of those that fill no whole lanes.
#[inline(always)]
fn add_bytes(c: Contraction, quants: &[i8], scale: f32, x: &[f32], sums: &mut [f32; LANES]) -> f32 {
    let ((quants, quants_rest), (x, x_rest)) = (quants.as_chunks::<LANES>(), x.as_chunks::<LANES>());
    for (q, x) in quants.iter().zip(x) {
        for i in 0..LANES {
            sums[i] = c.mul_add(f32::from(q[i]) * scale, x[i], sums[i]);
        }
    }
    quants_rest.iter().zip(x_rest).map(|(&q, &x)| f32::from(q) * scale * x).sum()
}

/// The same for widened quants, whose number is a multiple of the number of sums.
#[inline(always)]
fn add_floats(c: Contraction, wide: &[f32], x: &[f32], sums: &mut [f32; LANES]) {
    for (wide, x) in wide.as_chunks::<LANES>().0.iter().zip(x.as_chunks::<LANES>().0) {
        for i in 0..LANES {
            sums[i] = c.mul_add(wide[i], x[i], sums[i]);
        }
    }
}

/// The same for quants of four bits. The low halves of all bytes come first.
#[inline(always)]
fn add_halves(c: Contraction, quants: &[u8], scale: f32, x: &[f32], sums: &mut [f32; LANES]) {
    const HALF: usize = LANES / 2;
    let (low, high) = x.split_at(quants.len());
    let (low, high) = (low.as_chunks::<HALF>().0, high.as_chunks::<HALF>().0);
    for ((q, low), high) in quants.as_chunks::<HALF>().0.iter().zip(low).zip(high) {
        for i in 0..HALF {
            let (a, b) = (i32::from(q[i] & 15) - 8, i32::from(q[i] >> 4) - 8);
            sums[i] = c.mul_add(a as f32 * scale, low[i], sums[i]);
            sums[HALF + i] = c.mul_add(b as f32 * scale, high[i], sums[HALF + i]);
        }
    }
}

/// The CPU twin. Inputs: x, weight.
pub(crate) fn quant_matmul(kernel: &QuantMatMulKernel, inputs: &[Input], out: &mut [f32], pool: &CpuPool) {
    let [x, weight] = inputs else { return };
    let (m, n, k) = (kernel.m, kernel.n, kernel.k);
    if out.is_empty() {
        return;
    }
    let offset = weight.layout.offset;
    let weights = match weight.elements {
        Elements::Blocks(format, words) => Weights::Blocks { format, words, first: offset / format.elements },
        Elements::I8(values) => Weights::Bytes(&values[offset..]),
        // The planner produces no other inputs.
        _ => return,
    };
    let x: Cow<[f32]> = x.contiguous(pool);
    if m <= FEW {
        for (row, x) in out.chunks_mut(n).zip(x.chunks(k)) {
            pool.each_unit(row, 1, k / 2, |first, cells| {
                #[cfg(target_arch = "x86_64")]
                if super::wide::dots(weights, first, x, cells) {
                    return;
                }
                contracted(
                    #[inline(always)]
                    |c| {
                        for (j, cell) in cells.iter_mut().enumerate() {
                            *cell = weights.dot(c, first + j, x);
                        }
                    },
                );
            });
        }
        return;
    }
    // Multiply-adds cost less than other operations because many run at once.
    let width = n.div_ceil(pool.parts(m * n * k / 8)).next_multiple_of(WIDE);
    let mut strips: Vec<(usize, Vec<&mut [f32]>)> = (0..n.div_ceil(width)).map(|i| (i * width, Vec::new())).collect();
    for row in out.chunks_mut(n) {
        strips.iter_mut().zip(row.chunks_mut(width)).for_each(|(strip, cells)| strip.1.push(cells));
    }
    pool.each(strips, |(first, mut rows)| match m {
        0..=SOME => dots(kernel, weights, &x, first, &mut rows),
        _ => panels(kernel, weights, &x, first, &mut rows),
    });
}

/// Widens weight rows starting at `first`.
fn widen(weights: Weights, k: usize, first: usize, out: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (j, row) in out.chunks_exact_mut(k).enumerate() {
                weights.row(first + j, row);
            }
        },
    );
}

/// Computes the columns of `rows`, starting at column `first`, as dot products with the rows of the weights.
fn dots(kernel: &QuantMatMulKernel, weights: Weights, x: &[f32], first: usize, rows: &mut [&mut [f32]]) {
    let (m, k) = (kernel.m, kernel.k);
    let width = rows.first().map_or(0, |row| row.len());
    with_scratch(WIDE * (k + m), |buffer: &mut [f32]| {
        let (wide, sums) = buffer.split_at_mut(WIDE * k);
        for start in (0..width).step_by(WIDE) {
            let columns = WIDE.min(width - start);
            widen(weights, k, first + start, &mut wide[..columns * k]);
            // The sums of rows past the last one are not read.
            with_vectors(Dots { wide, x, k, sums });
            for (row, sums) in rows.iter_mut().zip(sums.as_chunks::<WIDE>().0) {
                row[start..start + columns].copy_from_slice(&sums[..columns]);
            }
        }
    });
}

/// Dot products of every row of `x` with [`WIDE`] rows, all of length `k`.
struct Dots<'a> {
    wide: &'a [f32],
    x: &'a [f32],
    k: usize,
    sums: &'a mut [f32],
}

impl WithSimd for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Two rows at a time fill the registers.
        for (x, sums) in self.x.chunks(2 * self.k).zip(self.sums.chunks_mut(2 * WIDE)) {
            if x.len() == 2 * self.k {
                dot_rows::<S, 2>(simd, self.wide, x, self.k, sums);
            } else {
                dot_rows::<S, 1>(simd, self.wide, x, self.k, sums);
            }
        }
    }
}

/// Computes the dot products of `M` rows of `x`.
#[inline(always)]
fn dot_rows<S: Simd, const M: usize>(simd: S, wide: &[f32], x: &[f32], k: usize, out: &mut [f32]) {
    let whole = k / S::F32_LANES;
    let (mut rows, mut xs) = ([&[][..]; WIDE], [&[][..]; M]);
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &S::as_simd_f32s(&wide[r * k..][..k]).0[..whole];
    }
    for (i, row) in xs.iter_mut().enumerate() {
        *row = &S::as_simd_f32s(&x[i * k..][..k]).0[..whole];
    }
    let mut sums = [[simd.splat_f32s(0.0); WIDE]; M];
    for p in 0..whole {
        for i in 0..M {
            let x = xs[i][p];
            for r in 0..WIDE {
                sums[i][r] = simd.mul_add_e_f32s(x, rows[r][p], sums[i][r]);
            }
        }
    }
    for i in 0..M {
        for r in 0..WIDE {
            let mut sum = simd.reduce_sum_f32s(sums[i][r]);
            for p in whole * S::F32_LANES..k {
                sum += x[i * k + p] * wide[r * k + p];
            }
            out[i * WIDE + r] = sum;
        }
    }
}

/// Computes the columns of `rows`, starting at column `first`, from widened weights.
fn panels(kernel: &QuantMatMulKernel, weights: Weights, x: &[f32], first: usize, rows: &mut [&mut [f32]]) {
    let (m, k) = (kernel.m, kernel.k);
    let width = rows.first().map_or(0, |row| row.len());
    let step = (PANEL / 4 / k).clamp(8, 128).min(width);
    with_scratch(step * (k + m), |buffer: &mut [f32]| {
        let (wide, block) = buffer.split_at_mut(step * k);
        for start in (0..width).step_by(step) {
            let columns = step.min(width - start);
            let wide = &mut wide[..columns * k];
            widen(weights, k, first + start, wide);
            let a = Matrix { data: x, offset: 0, row: k as isize, column: 1 };
            let b = Matrix { data: wide, offset: 0, row: 1, column: k as isize };
            gemm([m, columns, k], &mut block[..m * columns], columns, false, a, b);
            for (row, cells) in rows.iter_mut().zip(block.chunks(columns)) {
                row[start..start + columns].copy_from_slice(cells);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{DType, Layout};

    #[test]
    fn products_match_widened_weights_at_awkward_sizes() {
        crate::kernel::host::simd::forced::each(products_match);
    }

    fn products_match() {
        let pool = CpuPool::new(3);
        let noise =
            |count: usize, seed: usize| -> Vec<f32> { (0..count).map(|i| ((i * 37 + seed) as f32).sin()).collect() };
        for dtype in DType::QUANTIZED {
            let format = dtype.block_format().expect("a quantised type");
            for (m, n, k) in [(1, 1, 1), (1, 65, 3), (2, 3, 5), (3, 63, 2), (7, 65, 1), (33, 300, 4), (70, 37, 3)] {
                let k = k * format.elements;
                // One extra row in front, so that the weights begin inside a group.
                let (x, values) = (noise(m * k, 1), noise((n + 1) * k, 2));
                let words = format.pack(&values);
                let mut wide = vec![0f32; (n + 1) * k];
                for (block, out) in wide.chunks_exact_mut(format.elements).enumerate() {
                    format.dequantize(&words, block, out);
                }
                let inputs = [
                    Input { elements: Elements::F32(&x), layout: Layout::contiguous([m, k]) },
                    Input {
                        elements: Elements::Blocks(format, &words),
                        layout: Layout { offset: k, ..Layout::contiguous([n, k]) },
                    },
                ];
                let mut out = vec![f32::NAN; m * n];
                quant_matmul(&QuantMatMulKernel { weight: dtype, m, n, k }, &inputs, &mut out, &pool);
                for (at, &got) in out.iter().enumerate() {
                    let (i, j) = (at / n, at % n);
                    let pairs = x[i * k..(i + 1) * k].iter().zip(&wide[(j + 1) * k..(j + 2) * k]);
                    let want: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                    assert!(
                        (f64::from(got) - want).abs() <= 1e-5 * want.abs().max(1.0),
                        "{dtype} {m}×{n}×{k}: {i}, {j} is {got}, not {want}"
                    );
                }
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn dots_of_wide_vectors_match_those_of_any_machine() {
        for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4_128] {
            let format = dtype.block_format().expect("a quantised type");
            let (n, k) = (7, 3 * format.elements);
            let noise = |count: usize| -> Vec<f32> { (0..count).map(|i| (i as f32 * 0.7).sin()).collect() };
            let (x, words) = (noise(k), format.pack(&noise(n * k)));
            let weights = Weights::Blocks { format, words: &words, first: 0 };
            let mut wide = vec![0.0; n - 1];
            if !crate::kernel::quant_matmul::wide::dots(weights, 1, &x, &mut wide) {
                assert!(pulp::x86::V4::try_new().is_none(), "{dtype}: AVX-512 is there but not used");
                continue;
            }
            for (j, &got) in wide.iter().enumerate() {
                let expected = weights.dot(Contraction::NONE, j + 1, &x);
                assert!((got - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{dtype}: {got}, not {expected}");
            }
        }
    }

    #[test]
    fn bytes_are_widened_as_they_are() {
        let (m, n, k) = (5, 9, 12);
        let x: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
        let w: Vec<i8> = (0..n * k + 4).map(|i| (i * 29 % 251) as u8 as i8).collect();
        for m in [1, m] {
            let inputs = [
                Input { elements: Elements::F32(&x), layout: Layout::contiguous([m, k]) },
                Input { elements: Elements::I8(&w), layout: Layout { offset: 4, ..Layout::contiguous([n, k]) } },
            ];
            let mut out = vec![0f32; m * n];
            quant_matmul(&QuantMatMulKernel { weight: DType::I8, m, n, k }, &inputs, &mut out, &CpuPool::new(1));
            for (at, &got) in out.iter().enumerate() {
                let (i, j) = (at / n, at % n);
                let want: f32 = (0..k).map(|p| x[i * k + p] * f32::from(w[4 + j * k + p])).sum();
                assert_eq!(got, want, "{i}, {j}");
            }
        }
    }
}
