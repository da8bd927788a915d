//! Pooling.

use core::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};

use crate::error::RunError;
use crate::ir::{Class, Node, PoolKind, Window, scalar_bits};
use crate::kernel::conv::cpu::{place, valid};
use crate::kernel::conv::wgsl::window_params;
use crate::kernel::host::memory::Input;
use crate::kernel::host::number::{Number, with_class};
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::pool_parts;
use crate::kernel::reduce::wgsl::beats_code;
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names, product, spatial};
use crate::kernel::split::{InParts, Levels, Part, by_rows};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, Launch, Step, Variants, wgsl_type};

/// Pools each plane of `[planes, in…]` to `[planes, out…]`. A window entirely outside the input gives 0 (average) or
/// the lowest value (max).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKernel {
    pub kind: PoolKind,
    pub class: Class,
    pub window: Window,
    pub planes: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
    /// The maximum of a window wholly outside of the input, as bits of the 32-bit type of the class.
    pub lowest: u32,
}

impl PoolKernel {
    pub(crate) fn describe(node: &Node, inputs: &mut Inputs, &kind: &PoolKind, &window: &Window) -> Self {
        let (x, shape) = (&inputs[0], &inputs[0].layout.shape);
        Self {
            kind,
            class: x.dtype.class(),
            window,
            planes: shape[0] * shape[1],
            input: spatial(shape),
            output: spatial(&node.shape),
            lowest: scalar_bits(x.dtype.lowest(), x.dtype.wide()),
        }
    }
}

impl KernelSpec for PoolKernel {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn input_names(&self) -> InputNames {
        names(&["x"], &[])
    }

    fn need(_input: usize) -> Need {
        Need::Contiguous
    }

    fn fusing(&self) -> Fusing {
        let each = product(&self.window.size).div_ceil(product(&self.window.stride)).max(1);
        Fusing::both(each, self.planes * product(&self.output))
    }

    fn counts_faults(&self) -> bool {
        false
    }

    fn writes_all(&self) -> bool {
        true
    }

    fn flops(&self) -> usize {
        (self.planes * product(&self.output)).saturating_mul(product(&self.window.size))
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, step: &Step) -> Vec<[Part; 2]> {
        by_rows(step, self.planes, product(&self.input), product(&self.output), |planes| Self {
            planes,
            ..self.clone()
        })
    }

    fn in_parts(&self, _step: &Step, _fits: bool) -> InParts {
        InParts::Whole
    }

    fn levels(&self) -> Option<Levels> {
        pool_parts::levels(self)
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
        self::pool(self, inputs, out, pool);
        Ok(0)
    }
}

/// The position of the maximum of a window wholly outside of the input is 0. A NaN is above every number, so it wins, as in
/// `max`.
pub(crate) fn lower(step: &Step, kernel: &PoolKernel, caps: &Caps) -> Launch {
    let count = kernel.planes * kernel.output.iter().product::<usize>();
    let mut builder = Builder::new(step);
    pool_code(&mut builder, kernel);
    beats_code(&mut builder, ">", kernel.class);
    result_code(&mut builder, kernel.kind);
    builder.finish_threads(include_str!("../../assets/kernels/pool.wgsl"), count, caps)
}

/// `taps_of(element)`: the taps of a window that are inside the input; and the parameters of the window.
pub(crate) fn pool_code(builder: &mut Builder, kernel: &PoolKernel) {
    builder.alias("T", wgsl_type(kernel.class)).code(include_str!("../../assets/kernels/pool_taps.wgsl"));
    let params = &mut builder.params;
    // As a parameter, since WGSL has no way to write an infinity.
    match kernel.class {
        Class::Float => params.float("lowest", f32::from_bits(kernel.lowest)),
        Class::Int => params.signed("lowest", kernel.lowest as i32 as isize),
        Class::Uint => params.size("lowest", kernel.lowest as usize),
    };
    window_params(params, &kernel.window, kernel.input, kernel.output);
    for (axis, name) in ["padded_d", "padded_h", "padded_w"].into_iter().enumerate() {
        params.size(name, kernel.window.before[axis] + kernel.input[axis] + kernel.window.after[axis]);
    }
}

/// `result(state)`: what a window gives.
pub(crate) fn result_code(builder: &mut Builder, kind: PoolKind) {
    builder.code(match kind {
        PoolKind::Max => "fn result(state: State) -> T { return state.best; }",
        PoolKind::ArgMax => "fn result(state: State) -> i32 { return i32(state.place); }",
        PoolKind::Average { include_pad: true } => {
            "fn result(state: State) -> T { return state.sum / T(max(state.padded, 1u)); }"
        }
        PoolKind::Average { include_pad: false } => {
            "fn result(state: State) -> T { return state.sum / T(max(state.inside, 1u)); }"
        }
    });
}

/// The CPU twin. Input: x. A window entirely outside the input gives position 0.
pub(crate) fn pool(kernel: &PoolKernel, inputs: &[Input], out: &mut [u32], pool: &CpuPool) {
    let [x] = inputs else { return };
    let plane: usize = kernel.output.iter().product();
    let source: usize = kernel.input.iter().product();
    let cost = kernel.window.size.iter().fold(plane, |cost, &size| cost.saturating_mul(size));
    with_class!(kernel.class, T => {
        let x = x.contiguous::<T>(pool);
        let lowest = cast_slice::<u32, T>(&[kernel.lowest])[0];
        let plane_of = |index: usize| &x[index * source..][..source];
        match kernel.kind {
            PoolKind::ArgMax => pool.each_unit(cast_slice_mut::<_, i32>(out), plane, cost, |first, out| {
                let mut best = vec![lowest; plane];
                for (i, out) in out.chunks_mut(plane).enumerate() {
                    // -1 until an element is seen.
                    out.fill(-1);
                    let x = plane_of(first + i);
                    each_tap(kernel, |to, from| {
                        if out[to] < 0 || x[from] > best[to] || (x[from].is_nan() && !best[to].is_nan()) {
                            (best[to], out[to]) = (x[from], from as i32);
                        }
                    });
                    out.iter_mut().for_each(|o| *o = (*o).max(0));
                }
            }),
            PoolKind::Max => pool.each_unit(cast_slice_mut::<_, T>(out), plane, cost, |first, out| {
                for (i, out) in out.chunks_mut(plane).enumerate() {
                    let x = plane_of(first + i);
                    out.fill(lowest);
                    each_tap(kernel, |to, from| out[to] = out[to].larger(x[from]));
                }
            }),
            PoolKind::Average { include_pad } => {
                let counts = counts(kernel, include_pad);
                pool.each_unit(cast_slice_mut::<_, T>(out), plane, cost, |first, out| {
                    for (i, out) in out.chunks_mut(plane).enumerate() {
                        let x = plane_of(first + i);
                        out.fill(T::ZERO);
                        each_tap(kernel, |to, from| out[to] = out[to].add(x[from]));
                        out.iter_mut().zip(&counts).for_each(|(o, &count)| *o = o.div_count(count));
                    }
                });
            }
        }
    });
}

/// Calls `work` with every output position and each input position under its window, in the plane. A window's positions
/// come in row-major order.
#[inline(always)]
pub(crate) fn each_tap(kernel: &PoolKernel, mut work: impl FnMut(usize, usize)) {
    let window = &kernel.window;
    let [deep_taps, high_taps, wide_taps] = [0, 1, 2].map(|axis| useful_taps(kernel, axis));
    let lines = deep_taps.flat_map(|d| high_taps.clone().map(move |h| [d, h]));
    for tap in lines.flat_map(|[d, h]| wide_taps.clone().map(move |w| [d, h, w])) {
        let [deep, high, wide] =
            [0, 1, 2].map(|axis| valid(window, axis, tap[axis], kernel.output[axis], kernel.input[axis]));
        if wide.is_empty() {
            continue;
        }
        for d in deep {
            for h in high.clone() {
                let line = place(window, 0, tap[0], d) * kernel.input[1] + place(window, 1, tap[1], h);
                let mut from = line * kernel.input[2] + place(window, 2, tap[2], wide.start);
                let to = (d * kernel.output[1] + h) * kernel.output[2];
                for w in wide.clone() {
                    work(to + w, from);
                    from += window.stride[2];
                }
            }
        }
    }
}

/// A range of taps of an axis without those that are in the padding of every window.
fn useful_taps(kernel: &PoolKernel, axis: usize) -> Range<usize> {
    let window = &kernel.window;
    let last = kernel.output[axis].saturating_sub(1) * window.stride[axis];
    let (start, end) = (window.before[axis].saturating_sub(last), window.before[axis] + kernel.input[axis]);
    let dilation = window.dilation[axis];
    let end = end.div_ceil(dilation).min(window.size[axis]);
    start.div_ceil(dilation).min(end)..end
}

/// Divisor of each output position: the number of its taps inside the input, or inside the padded input. At least 1.
pub(crate) fn counts(kernel: &PoolKernel, include_pad: bool) -> Vec<usize> {
    let window = &kernel.window;
    let axis_counts = [0, 1, 2].map(|a| {
        let (before, input, after) = (window.before[a], kernel.input[a], window.after[a]);
        let count = |o: usize| {
            // Taps before a position, in the padded input.
            let corner = o * window.stride[a];
            let taps = |end: usize| end.saturating_sub(corner).div_ceil(window.dilation[a]).min(window.size[a]);
            if include_pad { taps(before + input + after) } else { taps(before + input) - taps(before) }
        };
        (0..kernel.output[a]).map(count).collect::<Vec<_>>()
    });
    let [deep, high, wide] = &axis_counts;
    let lines = deep.iter().flat_map(|d| high.iter().map(move |h| d * h));
    lines.flat_map(|line| wide.iter().map(move |w| (line * w).max(1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Class, Layout, Window};
    use crate::kernel::conv::cpu::taps;
    use crate::kernel::conv::cpu::tests::windows;
    use crate::kernel::host::memory::Elements;

    fn run(kernel: &PoolKernel, x: &[f32]) -> Vec<u32> {
        let mut out = vec![0; kernel.planes * kernel.output.iter().product::<usize>()];
        let input = Input { elements: Elements::F32(x), layout: Layout::contiguous([x.len()]) };
        pool(kernel, &[input], &mut out, &CpuPool::new(2));
        out
    }

    #[test]
    fn pools_match_the_definition() {
        for (window, input) in windows() {
            // One more than fits, as with ceil mode.
            let output = [0, 1, 2].map(|a| {
                let reach = (window.size[a] - 1) * window.dilation[a] + 1;
                (input[a] + window.before[a] + window.after[a] - reach).div_ceil(window.stride[a]) + 1
            });
            for kind in [
                PoolKind::Max,
                PoolKind::ArgMax,
                PoolKind::Average { include_pad: false },
                PoolKind::Average { include_pad: true },
            ] {
                let (source, plane): (usize, usize) = (input.iter().product(), output.iter().product());
                let x: Vec<f32> = (0..7 * source).map(|i| (i * 31 % 19) as f32 - 9.0).collect();
                let kernel = PoolKernel {
                    kind,
                    class: Class::Float,
                    window,
                    planes: 7,
                    input,
                    output,
                    lowest: f32::NEG_INFINITY.to_bits(),
                };
                for (at, bits) in run(&kernel, &x).into_iter().enumerate() {
                    let o = [at % plane / (output[1] * output[2]), at / output[2] % output[1], at % output[2]];
                    let (mut seen, mut padded) = (Vec::new(), 0);
                    for tap in taps(&window) {
                        let i = [0, 1, 2].map(|a| o[a] * window.stride[a] + tap[a] * window.dilation[a]);
                        padded += usize::from((0..3).all(|a| i[a] < window.before[a] + input[a] + window.after[a]));
                        if (0..3).all(|a| (window.before[a]..window.before[a] + input[a]).contains(&i[a])) {
                            let i = [0, 1, 2].map(|a| i[a] - window.before[a]);
                            seen.push((i[0] * input[1] + i[1]) * input[2] + i[2]);
                        }
                    }
                    let of = |p: &usize| x[at / plane * source + p];
                    let max = seen.iter().map(of).fold(f32::NEG_INFINITY, f32::max);
                    let sum: f32 = seen.iter().map(of).sum();
                    let got = f32::from_bits(bits);
                    match kind {
                        PoolKind::Max => assert_eq!(got, max),
                        PoolKind::ArgMax => {
                            let first = seen.iter().copied().find(|p| of(p) == max).unwrap_or(0);
                            assert_eq!(bits as usize, first, "{kernel:?} at {at}");
                        }
                        PoolKind::Average { include_pad: true } => assert_eq!(got, sum / padded.max(1) as f32),
                        PoolKind::Average { .. } => assert_eq!(got, sum / seen.len().max(1) as f32),
                    }
                }
            }
        }
    }

    #[test]
    fn nan_wins() {
        let window = Window { size: [1, 1, 3], stride: [1; 3], dilation: [1; 3], before: [0; 3], after: [0; 3] };
        let mut kernel = PoolKernel {
            kind: PoolKind::Max,
            class: Class::Float,
            window,
            planes: 1,
            input: [1, 1, 3],
            output: [1; 3],
            lowest: f32::NEG_INFINITY.to_bits(),
        };
        let x = [1.0, f32::NAN, 5.0];
        assert!(f32::from_bits(run(&kernel, &x)[0]).is_nan());
        kernel.kind = PoolKind::ArgMax;
        assert_eq!(run(&kernel, &x), [1]);
    }
}
