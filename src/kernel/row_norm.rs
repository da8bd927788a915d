//! Normalisation of rows.

use bytemuck::cast_slice_mut;
use smallvec::SmallVec;

use crate::error::RunError;
use crate::ir::{Class, Node, NormKind};
use crate::kernel::host::memory::Input;
use crate::kernel::host::rows;
use crate::kernel::host::simd::vectorised;
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names, rows_of};
use crate::kernel::split::{InParts, Levels, Part, by_rows};
use crate::kernel::wgsl::Builder;
use crate::kernel::wgsl::rows::Rows;
use crate::kernel::{Caps, Launch, Step, Variants, choose};

/// Normalises each row of `[rows, n]`. Inputs: x, weight `[n]` if flagged, bias `[n]` if flagged. Scalar 0: epsilon.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowNormKernel {
    pub kind: NormKind,
    pub weight: bool,
    pub bias: bool,
    pub rows: usize,
    pub n: usize,
}

impl RowNormKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &kind: &NormKind, &weight: &bool, &bias: &bool) -> Self {
        let (rows, n) = rows_of(&inputs[0].layout.shape);
        Self { kind, weight, bias, rows, n }
    }
}

impl KernelSpec for RowNormKernel {
    fn name(&self) -> &'static str {
        "row_norm"
    }

    fn input_names(&self) -> InputNames {
        names(&["x"], &[(self.weight, "weight"), (self.bias, "bias")])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        // One pass for the statistics of the row, one for the result.
        Fusing::both(2, self.rows)
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        // Mean and variance in one pass, then the scaled difference.
        self.rows * self.n * 8
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        by_rows(step, self.rows, self.n, self.n, |rows| Self { rows, ..self.clone() })
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        SmallVec::from_slice(&[("rows", self.rows), ("n", self.n)])
    }

    fn forms(&self, caps: &Caps) -> Variants {
        shape(self).variants(caps)
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        lower(step, self, caps)
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, scalars, pool } = call.values();
        row_norm(self, inputs, cast_slice_mut(out), scalars, pool);
        Ok(0)
    }
}

fn shape(kernel: &RowNormKernel) -> Rows {
    Rows { rows: kernel.rows, n: kernel.n, inner: 1, fields: &["count", "mean", "squares"] }
}

/// The launch of a normalisation.
pub(crate) fn lower(step: &Step, kernel: &RowNormKernel, caps: &Caps) -> Option<Launch> {
    if kernel.rows == 0 || kernel.n == 0 {
        return None;
    }
    let rows = shape(kernel);
    // Every row uses the same weights, so only their start matters.
    let begins = |input: usize| step.inputs.get(input).is_some_and(|o| o.layout.offset.is_multiple_of(4));
    let quads = [
        ("x", rows.aligned(&step.inputs[0])),
        ("weight", begins(1)),
        ("bias", begins(1 + usize::from(kernel.weight))),
        ("y", rows.aligned(&step.outputs[0])),
    ];
    let mut builder = Builder::with_quads(step, &quads, caps);
    builder.alias("T", "f32");
    match step.scalars.first() {
        Some(&epsilon) => builder.params.scalar("epsilon", Class::Float, epsilon),
        None => builder.params.float("epsilon", 0.0),
    };
    let kind = match kernel.kind {
        NormKind::Layer => 0,
        NormKind::Rms => 1,
        NormKind::L2 => 2,
    };
    builder.constant("KIND", kind);
    builder.need("min_max");
    for (name, given, without) in [("weight", kernel.weight, "1.0"), ("bias", kernel.bias, "0.0")] {
        let (one, four) = match given {
            true => {
                (format!("load_{name}(params.{name}_offset + p)"), format!("load_{name}4(params.{name}_offset + p)"))
            }
            false => (without.to_owned(), format!("vec4<f32>({without})")),
        };
        builder.code(&format!("fn {name}_at(p: u32) -> f32 {{ return {one}; }}"));
        builder.code(&format!("fn {name}4_at(p: u32) -> vec4<f32> {{ return {four}; }}"));
    }
    rows.loads(&mut builder);
    rows.stores(&mut builder);
    let variant = choose(&rows.variants(caps), caps)?;
    Some(rows.finish(builder, variant, include_str!("../../assets/kernels/row_norm.wgsl"), caps))
}

/// The CPU twin. Inputs: x, weight if flagged, bias if flagged. Scalar 0 is epsilon.
pub(crate) fn row_norm(kernel: &RowNormKernel, inputs: &[Input], out: &mut [f32], scalars: &[u32], pool: &CpuPool) {
    let Some((x, affine)) = inputs.split_first() else { return };
    let epsilon = f64::from(scalars.first().map_or(0.0, |&bits| f32::from_bits(bits)));
    let n = kernel.n;
    let x = x.contiguous::<f32>(pool);
    let mut affine = affine.iter().map(|input| input.contiguous::<f32>(pool));
    let weight = if kernel.weight { affine.next() } else { None };
    let bias = if kernel.bias { affine.next() } else { None };
    pool.each_unit(out, n, n * 4, |first, out| {
        for (out, x) in out.chunks_mut(n).zip(x[first * n..].chunks(n)) {
            let (mean, scale) = statistics(kernel.kind, epsilon, x);
            vectorised(
                #[inline(always)]
                || {
                    let values = out.iter_mut().zip(x);
                    match (&weight, &bias) {
                        (None, None) => values.for_each(|(o, &v)| *o = (v - mean) * scale),
                        (Some(weight), None) => {
                            values.zip(&weight[..]).for_each(|((o, &v), &w)| *o = (v - mean) * scale * w);
                        }
                        (None, Some(bias)) => {
                            values.zip(&bias[..]).for_each(|((o, &v), &b)| *o = (v - mean) * scale + b);
                        }
                        (Some(weight), Some(bias)) => {
                            let affine = weight.iter().zip(&bias[..]);
                            values.zip(affine).for_each(|((o, &v), (&w, &b))| *o = (v - mean) * scale * w + b);
                        }
                    }
                },
            );
        }
    });
}

/// What is subtracted from the elements of a row, and the factor that follows.
fn statistics(kind: NormKind, epsilon: f64, x: &[f32]) -> (f32, f32) {
    let n = x.len() as f64;
    let (mean, scale) = match kind {
        NormKind::Layer => {
            let mean = (rows::sum(x) / n) as f32;
            (mean, (rows::sum_squares(x, mean) / n + epsilon).sqrt())
        }
        NormKind::Rms => (0.0, (rows::sum_squares(x, 0.0) / n + epsilon).sqrt()),
        NormKind::L2 => {
            let norm = rows::sum_squares(x, 0.0).sqrt();
            // This form preserves NaN.
            (0.0, if norm < epsilon { epsilon } else { norm })
        }
    };
    (mean, (1.0 / scale) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Layout;
    use crate::kernel::host::memory::Elements;

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
