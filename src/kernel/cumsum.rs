//! Cumulative sums along the middle axis of `[outer, n, inner]`.

use bytemuck::cast_slice_mut;

use crate::error::RunError;
use crate::ir::{Class, Node};
use crate::kernel::cumsum_parts;
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::{Number, with_class};
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, around, names};
use crate::kernel::split::{InParts, Levels, Part, by_rows};
use crate::kernel::wgsl::Builder;
use crate::kernel::wgsl::rows::THREAD_ROW;
use crate::kernel::{Caps, Launch, Step, Variants, wgsl_type};

/// Cumulative sums along the middle axis of `[outer, n, inner]`. Exclusive sums start at 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CumSumKernel {
    pub class: Class,
    pub exclusive: bool,
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

impl CumSumKernel {
    pub(crate) fn describe(_node: &Node, inputs: &mut Inputs, &axis: &usize, &exclusive: &bool) -> Self {
        let x = &inputs[0];
        let (outer, n, inner) = around(&x.layout.shape, axis);
        Self { class: x.dtype.class(), exclusive, outer, n, inner }
    }
}

impl KernelSpec for CumSumKernel {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn input_names(&self) -> InputNames {
        names(&["x"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        Fusing::both(1, self.outer * self.inner)
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        self.outer * self.n * self.inner
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
        cumsum_parts::levels(self)
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
        cumsum(self, inputs, out, pool);
        Ok(0)
    }
}

pub(crate) fn lower(step: &Step, kernel: &CumSumKernel, caps: &Caps) -> Launch {
    let lines = kernel.outer * kernel.inner;
    let mut builder = Builder::new(step);
    builder.alias("T", wgsl_type(kernel.class)).constant("EXCLUSIVE", u32::from(kernel.exclusive));
    builder.params.size("n", kernel.n).size("inner", kernel.inner);
    // A few long rows leave a GPU idle unless a workgroup shares each row. A software adapter pays for the barriers, so
    // there one thread processes the whole row.
    let shared = if caps.software { kernel.n > THREAD_ROW } else { lines < 1024 && kernel.n >= 256 };
    if shared && caps.invocations >= 256 {
        builder.finish_workgroups(include_str!("../../assets/kernels/cumsum_scan.wgsl"), 256, lines, caps)
    } else {
        builder.finish_threads(include_str!("../../assets/kernels/cumsum.wgsl"), lines, caps)
    }
}

/// The CPU twin. Input: x.
pub(crate) fn cumsum(kernel: &CumSumKernel, inputs: &[Input], out: &mut [u32], pool: &CpuPool) {
    let [x] = inputs else { return };
    let (inner, plane) = (kernel.inner, kernel.n * kernel.inner);
    with_class!(kernel.class, T => {
        let x = x.contiguous::<T>(pool);
        pool.each_unit(cast_slice_mut::<_, T>(out), plane, plane, |first, out| {
            for (out, x) in out.chunks_mut(plane).zip(x[first * plane..].chunks(plane)) {
                let mut sums = vec![T::ZERO; inner];
                for (out, x) in out.chunks_mut(inner).zip(x.chunks(inner)) {
                    for ((o, &v), sum) in out.iter_mut().zip(x).zip(&mut sums) {
                        let next = sum.add(v);
                        *o = if kernel.exclusive { *sum } else { next };
                        *sum = next;
                    }
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Class, Layout};
    use crate::kernel::host::memory::Elements;

    #[test]
    fn running_sums_match_the_definition() {
        for (outer, n, inner, exclusive) in [(1, 1, 1, false), (3, 63, 1, true), (2, 7, 65, false), (65, 65, 7, true)] {
            let x: Vec<i8> = (0..outer * n * inner).map(|i| (i * 31 % 251) as u8 as i8).collect();
            let mut out = vec![0; x.len()];
            let input = Input { elements: Elements::I8(&x), layout: Layout::contiguous([x.len()]) };
            let kernel = CumSumKernel { class: Class::Int, exclusive, outer, n, inner };
            cumsum(&kernel, &[input], &mut out, &CpuPool::new(2));
            for (at, &sum) in out.iter().enumerate() {
                let (o, j, i) = (at / (n * inner), at / inner % n, at % inner);
                let end = if exclusive { j } else { j + 1 };
                let expected: i32 = (0..end).map(|j| i32::from(x[(o * n + j) * inner + i])).sum();
                assert_eq!(sum as i32, expected, "{kernel:?} at {at}");
            }
        }
    }
}
