//! Normalisation of rows.

use super::CpuPool;
use super::memory::Input;
use super::reduce::sum_f32;
use super::simd::vectorised;
use crate::ir::NormKind;
use crate::kernel::RowNormKernel;

/// The twin. Inputs: x, weight if flagged, bias if flagged; scalar 0 is epsilon.
pub(super) fn row_norm(kernel: &RowNormKernel, inputs: &[Input], out: &mut [f32], scalars: &[u32], pool: &CpuPool) {
    let Some((x, affine)) = inputs.split_first() else { return };
    let epsilon = f64::from(scalars.first().map_or(0.0, |&bits| f32::from_bits(bits)));
    let n = kernel.n;
    let x = x.contiguous::<f32>(pool);
    let mut affine = affine.iter().map(|input| input.contiguous::<f32>(pool));
    let weight = if kernel.weight { affine.next() } else { None };
    let bias = if kernel.bias { affine.next() } else { None };
    pool.each_unit(out, n, n * 4, |first, out| {
        vectorised(
            #[inline(always)]
            || {
                for (out, x) in out.chunks_mut(n).zip(x[first * n..].chunks(n)) {
                    row(kernel.kind, epsilon, x, out);
                    if let Some(weight) = &weight {
                        out.iter_mut().zip(weight.iter()).for_each(|(o, &w)| *o *= w);
                    }
                    if let Some(bias) = &bias {
                        out.iter_mut().zip(bias.iter()).for_each(|(o, &b)| *o += b);
                    }
                }
            },
        );
    });
}

/// One row, without weight and bias.
#[inline(always)]
fn row(kind: NormKind, epsilon: f64, x: &[f32], out: &mut [f32]) {
    let n = x.len() as f64;
    let (mean, scale) = match kind {
        NormKind::Layer => {
            let mean = (sum_f32(x, |v| v) / n) as f32;
            let variance = sum_f32(x, |v| (v - mean) * (v - mean)) / n;
            (mean, (variance + epsilon).sqrt())
        }
        NormKind::Rms => (0.0, (sum_f32(x, |v| v * v) / n + epsilon).sqrt()),
        NormKind::L2 => {
            let norm = sum_f32(x, |v| v * v).sqrt();
            // In this form NaN stays.
            (0.0, if norm < epsilon { epsilon } else { norm })
        }
    };
    let scale = (1.0 / scale) as f32;
    out.iter_mut().zip(x).for_each(|(o, &v)| *o = (v - mean) * scale);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::memory::Elements;
    use crate::ir::Layout;

    #[test]
    fn norms_match_the_definition_at_awkward_sizes() {
        let pool = CpuPool::new(3);
        let epsilon = 1e-5f32;
        for kind in [NormKind::Layer, NormKind::Rms, NormKind::L2] {
            for (rows, n, weight, bias) in
                [(1, 1, false, false), (7, 63, true, false), (65, 65, true, true), (3, 1757, false, true)]
            {
                let x: Vec<f32> = (0..rows * n).map(|i| (i * 29 % 97) as f32 * 0.1 + 100.0).collect();
                let w: Vec<f32> = (0..n).map(|i| i as f32 * 0.01 + 0.5).collect();
                let input = |v, n| Input { elements: Elements::F32(v), layout: Layout::contiguous([n]) };
                let mut inputs = vec![input(&x, rows * n)];
                inputs.extend(weight.then(|| input(&w, n)));
                inputs.extend(bias.then(|| input(&w, n)));
                let mut out = vec![0.0; rows * n];
                let kernel = RowNormKernel { kind, weight, bias, rows, n };
                row_norm(&kernel, &inputs, &mut out, &[epsilon.to_bits()], &pool);
                for (r, row) in x.chunks(n).enumerate() {
                    let row: Vec<f64> = row.iter().map(|&v| f64::from(v)).collect();
                    let mean = row.iter().sum::<f64>() / n as f64;
                    let squares = row.iter().map(|v| v * v).sum::<f64>();
                    let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
                    for (c, v) in row.iter().enumerate() {
                        let e = f64::from(epsilon);
                        let mut expected = match kind {
                            NormKind::Layer => (v - mean) / (variance + e).sqrt(),
                            NormKind::Rms => v / (squares / n as f64 + e).sqrt(),
                            NormKind::L2 => v / squares.sqrt().max(e),
                        };
                        expected *= if weight { f64::from(w[c]) } else { 1.0 };
                        expected += if bias { f64::from(w[c]) } else { 0.0 };
                        let got = f64::from(out[r * n + c]);
                        assert!((got - expected).abs() < 1e-4 * expected.abs().max(0.1), "{kernel:?} {got} {expected}");
                    }
                }
            }
        }
    }
}
