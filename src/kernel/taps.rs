//! Weighted sums of selected elements along an axis: interpolation and other resampling.

use bytemuck::cast_slice_mut;

use crate::error::RunError;
use crate::ir::Node;
use crate::kernel::host::memory::Input;
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, around, names};
use crate::kernel::split::{InParts, Levels, Part, by_rows};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, Launch, Step, Variants};

/// `out[o, j, i] = Σₜ weight[j, t] · x[o, position[j, t], i]` for `x [outer, n, inner]`. Positions are in range. All
/// are floats.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TapsKernel {
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
    pub out: usize,
    pub taps: usize,
}

impl TapsKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &axis: &usize) -> Self {
        let (outer, n, inner) = around(&inputs[0].layout.shape, axis);
        let table = &inputs[1].layout.shape;
        Self { outer, n, inner, out: table[0], taps: table[1] }
    }
}

impl KernelSpec for TapsKernel {
    fn name(&self) -> &'static str {
        "taps"
    }

    fn input_names(&self) -> InputNames {
        names(&["x", "position", "weight"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        Fusing::AFTER
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        2 * self.outer * self.out * self.inner * self.taps
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        by_rows(step, self.outer, self.n * self.inner, self.out * self.inner, |outer| Self { outer, ..self.clone() })
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        None
    }

    fn sizes(&self) -> Sizes {
        Sizes::new()
    }

    fn forms(&self, _caps: &Caps) -> Variants {
        Variants::new()
    }

    fn wgsl(&self, step: &Step, caps: &Caps) -> Option<Launch> {
        Some(lower(step, self, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        taps(self, inputs, cast_slice_mut(out), pool);
        Ok(0)
    }
}

pub(crate) fn lower(step: &Step, kernel: &TapsKernel, caps: &Caps) -> Launch {
    let count = kernel.outer * kernel.out * kernel.inner;
    let mut builder = Builder::new(step);
    builder.params.size("n", kernel.n).size("inner", kernel.inner).size("out", kernel.out).size("taps", kernel.taps);
    builder.finish_threads(include_str!("../../assets/kernels/taps.wgsl"), count, caps)
}

/// The CPU twin. Inputs: x, positions, weights.
pub(crate) fn taps(kernel: &TapsKernel, inputs: &[Input], out: &mut [f32], pool: &CpuPool) {
    let [x, position, weight] = inputs else { return };
    let (n, inner, taps) = (kernel.n, kernel.inner, kernel.taps);
    let x = x.contiguous::<f32>(pool);
    let position = position.contiguous::<i32>(pool);
    let weight = weight.contiguous::<f32>(pool);
    pool.each_unit(out, inner, inner * taps, |first, out| {
        for (i, out) in out.chunks_mut(inner).enumerate() {
            let (outer, j) = ((first + i) / kernel.out, (first + i) % kernel.out);
            out.fill(0.0);
            for t in j * taps..(j + 1) * taps {
                let (row, weight) = (outer * n + position[t] as usize, weight[t]);
                let row = &x[row * inner..][..inner];
                out.iter_mut().zip(row).for_each(|(o, &v)| *o += weight * v);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Layout;
    use crate::kernel::host::memory::Elements;

    #[test]
    fn taps_match_the_definition() {
        for (outer, n, inner, out, taps_count) in [(1, 1, 1, 1, 1), (3, 7, 1, 65, 2), (2, 63, 65, 7, 4)] {
            let kernel = TapsKernel { outer, n, inner, out, taps: taps_count };
            let x: Vec<f32> = (0..outer * n * inner).map(|i| (i % 11) as f32).collect();
            let p: Vec<i32> = (0..out * taps_count).map(|i| (i * 5 % n) as i32).collect();
            let w: Vec<f32> = (0..out * taps_count).map(|i| (i % 5) as f32 - 2.0).collect();
            let input = |elements, n| Input { elements, layout: Layout::contiguous([n]) };
            let inputs = [
                input(Elements::F32(&x), x.len()),
                input(Elements::I32(&p), p.len()),
                input(Elements::F32(&w), w.len()),
            ];
            let mut got = vec![0.0; outer * out * inner];
            taps(&kernel, &inputs, &mut got, &CpuPool::new(2));
            for (at, &got) in got.iter().enumerate() {
                let (o, j, i) = (at / (out * inner), at / inner % out, at % inner);
                let term = |t: usize| w[j * taps_count + t] * x[(o * n + p[j * taps_count + t] as usize) * inner + i];
                assert_eq!(got, (0..taps_count).map(term).sum::<f32>(), "{kernel:?} at {at}");
            }
        }
    }
}
