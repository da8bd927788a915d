//! Softmax and log-softmax over the middle axis of `[outer, n, inner]`. As in NumPy, a row that is entirely −∞ gives
//! NaN.

use bytemuck::cast_slice_mut;
use smallvec::SmallVec;

use crate::error::RunError;
use crate::ir::Node;
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::Number;
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::{Contraction, contracted, vectorised};
use crate::kernel::host::{CpuCall, CpuPool, Values, math, rows};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, around, names};
use crate::kernel::split::{InParts, Levels, Part, by_rows};
use crate::kernel::wgsl::Builder;
use crate::kernel::wgsl::rows::Rows;
use crate::kernel::{Caps, Launch, Step, Variants, choose};

/// Softmax over the middle axis of `[outer, n, inner]`. The maximum is subtracted first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SoftmaxKernel {
    pub log: bool,
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

impl SoftmaxKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &axis: &usize, &log: &bool) -> Self {
        let (outer, n, inner) = around(&inputs[0].layout.shape, axis);
        Self { log, outer, n, inner }
    }
}

impl KernelSpec for SoftmaxKernel {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn input_names(&self) -> InputNames {
        names(&["x"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        // One pass for the statistics of the row, one for the result.
        Fusing::both(2, self.outer * self.inner)
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        // The maximum, the difference, its exponential, the sum, the quotient.
        self.outer * self.n * self.inner * 24
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        let plane = self.n * self.inner;
        by_rows(step, self.outer, plane, plane, |outer| Self { outer, ..self.clone() })
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        SmallVec::from_slice(&[("outer", self.outer), ("n", self.n), ("inner", self.inner)])
    }

    fn forms(&self, caps: &Caps) -> Variants {
        shape(self).variants(caps)
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        lower(step, self, caps)
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        softmax(self, inputs, cast_slice_mut(out), pool);
        Ok(0)
    }
}

fn shape(kernel: &SoftmaxKernel) -> Rows {
    Rows { rows: kernel.outer * kernel.inner, n: kernel.n, inner: kernel.inner, fields: &["top", "sum"] }
}

/// The launch of a softmax.
pub(crate) fn lower(step: &Step, kernel: &SoftmaxKernel, caps: &Caps) -> Option<Launch> {
    let SoftmaxKernel { log, outer, n, inner } = *kernel;
    if outer * inner == 0 || n == 0 {
        return None;
    }
    let rows = shape(kernel);
    let quads = [("x", rows.aligned(&step.inputs[0])), ("y", rows.aligned(&step.outputs[0]))];
    let mut builder = Builder::with_quads(step, &quads, caps);
    builder.alias("T", "f32").constant("LOG", u32::from(log));
    rows.loads(&mut builder);
    rows.stores(&mut builder);
    for file in ["min_max", "exp_f32", "log_f32", "is_inf", "from_bits"] {
        builder.need(file);
    }
    let variant = choose(&rows.variants(caps), caps)?;
    Some(rows.finish(builder, variant, include_str!("../../assets/kernels/softmax.wgsl"), caps))
}

/// The CPU twin. Input: x.
pub(crate) fn softmax(kernel: &SoftmaxKernel, inputs: &[Input], out: &mut [f32], pool: &CpuPool) {
    let [x] = inputs else { return };
    let x = x.contiguous::<f32>(pool);
    let (n, inner) = (kernel.n, kernel.inner);
    if out.is_empty() {
        return;
    }
    pool.each_unit(out, n * inner, n * inner * 8, |first, out| {
        let mut planes = out.chunks_mut(n * inner).zip(x[first * n * inner..].chunks(n * inner));
        if inner == 1 {
            return planes.for_each(|(out, x)| row(x, out, kernel.log));
        }
        with_scratch(2 * inner, |lines: &mut [f32]| {
            contracted(
                #[inline(always)]
                |c| {
                    for (out, x) in planes.by_ref() {
                        columns(c, x, out, lines, kernel.log);
                    }
                },
            );
        });
    });
}

/// Computes one contiguous row. A NaN makes the sum NaN, so the maximum may ignore it.
fn row(x: &[f32], out: &mut [f32], log: bool) {
    let max = rows::largest(x);
    let sum = rows::exponentials(Some(x), out, max);
    vectorised(
        #[inline(always)]
        || {
            if log {
                let shift = sum.ln() as f32;
                out.iter_mut().zip(x).for_each(|(o, &v)| *o = v - max - shift);
            } else {
                let scale = (1.0 / sum) as f32;
                out.iter_mut().for_each(|o| *o *= scale);
            }
        },
    );
}

/// Computes all columns of `[n, inner]` together, row by row. `lines` is a buffer for two rows.
#[inline(always)]
fn columns(c: Contraction, x: &[f32], out: &mut [f32], lines: &mut [f32], log: bool) {
    let inner = lines.len() / 2;
    let (max, sum) = lines.split_at_mut(inner);
    max.fill(f32::LOWEST);
    sum.fill(0.0);
    for x in x.chunks(inner) {
        max.iter_mut().zip(x).for_each(|(m, &v)| *m = m.larger(v));
    }
    for (out, x) in out.chunks_mut(inner).zip(x.chunks(inner)) {
        for (((o, &v), &m), s) in out.iter_mut().zip(x).zip(&*max).zip(&mut *sum) {
            *o = math::exp_decay(c, v - m);
            *s += *o;
        }
    }
    sum.iter_mut().for_each(|s| *s = if log { math::log(c, *s) } else { 1.0 / *s });
    for (out, x) in out.chunks_mut(inner).zip(x.chunks(inner)) {
        if log {
            out.iter_mut().zip(x).zip(max.iter().zip(&*sum)).for_each(|((o, &v), (&m, &s))| *o = v - m - s);
        } else {
            out.iter_mut().zip(&*sum).for_each(|(o, &s)| *o *= s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Layout;
    use crate::kernel::host::memory::Elements;

    #[test]
    fn softmax_matches_the_definition_at_awkward_sizes() {
        crate::kernel::host::simd::forced::each(softmax_matches);
    }

    fn softmax_matches() {
        let pool = CpuPool::new(3);
        for (outer, n, inner) in [(1, 1, 1), (7, 63, 1), (65, 65, 1), (3, 7, 65), (2, 1757, 1), (64, 33, 31)] {
            let x: Vec<f32> = (0..outer * n * inner).map(|i| ((i * 37) % 101) as f32 * 0.2 - 200.0).collect();
            for log in [false, true] {
                let mut out = vec![0.0; x.len()];
                let input = Input { elements: Elements::F32(&x), layout: Layout::contiguous([x.len()]) };
                softmax(&SoftmaxKernel { log, outer, n, inner }, &[input], &mut out, &pool);
                for (at, &actual) in out.iter().enumerate() {
                    let (o, i) = (at / (n * inner), at % inner);
                    let of = |j: usize| f64::from(x[(o * n + j) * inner + i]) + 180.0;
                    let sum: f64 = (0..n).map(|j| of(j).exp()).sum();
                    let value = of(at / inner % n).exp() / sum;
                    let expected = if log { value.ln() } else { value };
                    let error = (f64::from(actual) - expected).abs();
                    // The logarithm of a number near 1 loses relative accuracy in the subtraction.
                    let floor = if log { 0.1 } else { 1e-3 };
                    assert!(error < 2e-6 * expected.abs().max(floor), "{outer} {n} {inner}: {actual} {expected}");
                }
            }
        }
    }

    #[test]
    fn rows_of_minus_infinity_give_nan() {
        let mut out = [0.0; 4];
        let x = [f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, 3.0];
        let input = Input { elements: Elements::F32(&x), layout: Layout::contiguous([4]) };
        softmax(&SoftmaxKernel { log: false, outer: 2, n: 2, inner: 1 }, &[input], &mut out, &CpuPool::new(1));
        assert!(out[0].is_nan() && out[1].is_nan());
        assert_eq!(out[2..], [0.0, 1.0]);
    }
}
