//! Transposed convolution: every input element adds its weighted window to the output. The weighting is a matrix
//! product.

use bytemuck::cast_slice_mut;

use crate::error::RunError;
use crate::ir::{Node, Window};
use crate::kernel::conv::cpu::{place, taps, valid};
use crate::kernel::conv::wgsl::{channel_params, start_code, window_params};
use crate::kernel::host::memory::Input;
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::{CpuCall, CpuPool, Values};
use crate::kernel::matmul::gemm::{Matrix, gemm};
use crate::kernel::spec::{Fusing, InputNames, Inputs, KernelSpec, Need, Sizes, all_inputs, names, product};
use crate::kernel::split::{InParts, Levels, Part};
use crate::kernel::wgsl::Builder;
use crate::kernel::{Caps, ConvKernel, Launch, Step, Variants};

/// A transposed convolution of these sizes. The weight is `[channels_in, channels_out / groups, window…]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConvTransposeKernel(pub ConvKernel);

impl ConvTransposeKernel {
    pub(crate) fn describe(node: &Node, inputs: &mut Inputs, &window: &Window, &groups: &usize, &bias: &bool) -> Self {
        Self(ConvKernel::describe(node, inputs, &window, &groups, &bias))
    }
}

impl KernelSpec for ConvTransposeKernel {
    fn name(&self) -> &'static str {
        "conv_transpose"
    }

    fn input_names(&self) -> InputNames {
        names(&["x", "weight"], &[(self.0.bias, "bias")])
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
        let taps = self.0.channels_out / self.0.groups.max(1) * product(&self.0.window.size);
        2 * self.0.batch * self.0.channels_in * product(&self.0.input) * taps
    }

    fn bytes_read(&self, step: &Step) -> usize {
        all_inputs(step)
    }

    fn halves(&self, _step: &Step) -> Vec<[Part; 2]> {
        Vec::new()
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
        Some(lower(step, &self.0, caps))
    }

    fn run(&self, call: &mut CpuCall) -> Result<u32, RunError> {
        let Values { inputs, out, pool, .. } = call.values();
        conv_transpose(&self.0, inputs, cast_slice_mut(out), pool);
        Ok(0)
    }
}

pub(crate) fn lower(step: &Step, kernel: &ConvKernel, caps: &Caps) -> Launch {
    let count = kernel.batch * kernel.channels_out * kernel.output.iter().product::<usize>();
    let mut builder = Builder::new(step);
    start_code(&mut builder, kernel);
    channel_params(&mut builder.params, kernel);
    window_params(&mut builder.params, &kernel.window, kernel.input, kernel.output);
    builder.finish_threads(include_str!("../../assets/kernels/conv_transpose.wgsl"), count, caps)
}

/// Floats of weighted windows that fit the L2 cache.
const COLUMNS: usize = 1 << 17;

/// The CPU twin. Inputs: x, weight, and the bias if flagged.
pub(crate) fn conv_transpose(kernel: &ConvKernel, inputs: &[Input], out: &mut [f32], pool: &CpuPool) {
    let [x, weight, ..] = inputs else { return };
    let (x, weight) = (x.contiguous::<f32>(pool), weight.contiguous::<f32>(pool));
    let bias = if kernel.bias { inputs.get(2).map(|bias| bias.contiguous::<f32>(pool)) } else { None };
    let plane: usize = kernel.output.iter().product();
    let source: usize = kernel.input.iter().product();
    let window: usize = kernel.window.size.iter().product();
    let (channels_in, channels) = (kernel.channels_in / kernel.groups, kernel.channels_out / kernel.groups);
    if out.is_empty() {
        return;
    }
    // Channels of a task: enough for an efficient product, few enough to distribute the work.
    let wanted = (pool.threads() * 2).div_ceil(kernel.batch * kernel.groups);
    let block = channels.div_ceil(wanted).max(32usize.div_ceil(window)).min(channels);
    let mut tasks = Vec::new();
    for (at, out) in out.chunks_mut(plane * channels).enumerate() {
        let (batch, group) = (at / kernel.groups, at % kernel.groups);
        tasks.extend(out.chunks_mut(plane * block).enumerate().map(|(i, out)| (batch, group, i * block, out)));
    }
    pool.each(tasks, |(batch, group, channel, out)| {
        let count = out.len() / plane;
        for (i, out) in out.chunks_mut(plane).enumerate() {
            out.fill(bias.as_ref().map_or(0.0, |bias| bias[group * channels + channel + i]));
        }
        // `[channel · tap, channel in]`, a view of the weights `[channel in, channel, tap]`.
        let weights = Matrix {
            data: &weight,
            offset: ((group * channels_in * channels + channel) * window) as isize,
            row: 1,
            column: (channels * window) as isize,
        };
        let x = Matrix {
            data: &x,
            offset: ((batch * kernel.channels_in + group * channels_in) * source) as isize,
            row: source as isize,
            column: 1,
        };
        // Whole input lines, so that a line of a window is one contiguous range.
        let line = kernel.input[2];
        let lines = (COLUMNS / (count * window * line).max(1)).clamp(1, source / line);
        with_scratch(count * window * lines * line, |weighted: &mut [f32]| {
            for first in (0..source / line).step_by(lines) {
                let lines = lines.min(source / line - first);
                let width = lines * line;
                let weighted = &mut weighted[..count * window * width];
                gemm([count * window, width, channels_in], weighted, width, false, weights, x.at(0, first * line));
                for (out, weighted) in out.chunks_mut(plane).zip(weighted.chunks(window * width)) {
                    add_windows(kernel, first, weighted, width, out);
                }
            }
        });
    });
}

/// Adds the weighted windows of input lines from `first` on to one output plane. `weighted` has one row per tap.
fn add_windows(kernel: &ConvKernel, first: usize, weighted: &[f32], width: usize, out: &mut [f32]) {
    let window = &kernel.window;
    let [_, height_in, width_in] = kernel.input;
    let [_, height_out, width_out] = kernel.output;
    for (tap, row) in taps(window).zip(weighted.chunks(width)) {
        let [deep, high, wide] =
            [0, 1, 2].map(|axis| valid(window, axis, tap[axis], kernel.input[axis], kernel.output[axis]));
        if wide.is_empty() {
            continue;
        }
        for (i, cells) in row.chunks(width_in).enumerate() {
            let (d, h) = ((first + i) / height_in, (first + i) % height_in);
            if !deep.contains(&d) || !high.contains(&h) {
                continue;
            }
            let line = place(window, 0, tap[0], d) * height_out + place(window, 1, tap[1], h);
            let target = &mut out[line * width_out + place(window, 2, tap[2], wide.start)..];
            let cells = &cells[wide.clone()];
            target.iter_mut().step_by(window.stride[2]).zip(cells).for_each(|(o, &v)| *o += v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Layout;
    use crate::kernel::conv::cpu::tests::{kernel, values, windows};
    use crate::kernel::host::memory::Elements;

    #[test]
    fn transposed_convolutions_match_the_definition() {
        let pool = CpuPool::new(3);
        for (window, input) in windows() {
            for (groups, channels) in [(1, [3, 5]), (2, [4, 6]), (3, [6, 3]), (1, [2, 65])] {
                let k = kernel(window, groups, channels, input, true);
                let count: usize = window.size.iter().product();
                let (source, plane): (usize, usize) = (k.input.iter().product(), k.output.iter().product());
                let (cin, cout) = (k.channels_in / groups, k.channels_out / groups);
                let x = values(k.batch * k.channels_in * source);
                let w = values(k.channels_in * cout * count);
                let b = values(k.channels_out);
                let mut expected = vec![0.0; k.batch * k.channels_out * plane];
                if k.bias {
                    expected.chunks_mut(plane).enumerate().for_each(|(i, p)| p.fill(b[i % k.channels_out]));
                }
                for (at, &v) in x.iter().enumerate() {
                    let (n, ci) = (at / source / k.channels_in, at / source % k.channels_in);
                    let i = [at % source / (k.input[1] * k.input[2]), at / k.input[2] % k.input[1], at % k.input[2]];
                    for co in 0..cout {
                        for (t, tap) in taps(&window).enumerate() {
                            let o = [0, 1, 2].map(|a| {
                                (i[a] * window.stride[a] + tap[a] * window.dilation[a]) as isize
                                    - window.before[a] as isize
                            });
                            if (0..3).all(|a| o[a] >= 0 && o[a] < k.output[a] as isize) {
                                let o = o.map(|o| o as usize);
                                let place = (o[0] * k.output[1] + o[1]) * k.output[2] + o[2];
                                expected[(n * k.channels_out + ci / cin * cout + co) * plane + place] +=
                                    v * w[(ci * cout + co) * count + t];
                            }
                        }
                    }
                }
                let input = |v| Input { elements: Elements::F32(v), layout: Layout::contiguous([v.len()]) };
                let mut inputs = vec![input(&x[..]), input(&w[..])];
                inputs.extend(k.bias.then(|| input(&b[..])));
                let mut out = vec![0.0; expected.len()];
                conv_transpose(&k, &inputs, &mut out, &pool);
                assert_eq!(out, expected, "{k:?}");
            }
        }
    }
}
