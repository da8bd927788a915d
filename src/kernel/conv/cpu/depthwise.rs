//! Convolutions whose groups turn one channel into a few. The input lines of a band of the output are gathered first,
//! with zero padding and with columns separated by their remainder modulo the stride. Every tap then reads one long
//! contiguous range from a different start.

use core::ops::Range;

use pulp::{Simd, WithSimd};
use smallvec::SmallVec;

use crate::kernel::ConvKernel;
use crate::kernel::conv::cpu::{copy_every, place, taps, valid};
use crate::kernel::host::CpuPool;
use crate::kernel::host::fused::Finish;
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::with_vectors;

/// Floats of a band of results. Together with their inputs they fit the L2 cache.
const BAND: usize = 1 << 14;
/// Number of multiply-adds that cost as much as one elementary operation.
const TOGETHER: usize = 8;
/// Largest number of SIMD lanes.
const WIDEST: usize = 16;

/// The CPU twin of such convolutions. `bias` holds one number per output channel, or is empty.
pub(crate) fn depthwise(
    kernel: &ConvKernel,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    out: &mut [f32],
    pool: &CpuPool,
    finish: Option<&Finish>,
) {
    let [depth, height, width] = kernel.output;
    let plane = depth * height * width;
    let source: usize = kernel.input.iter().product();
    let window: usize = kernel.window.size.iter().product();
    let channels = kernel.channels_out / kernel.groups;
    let lines = Lines::of(kernel, (BAND / width).clamp(1, height));
    let band = |index: usize, deep: usize, high: Range<usize>, out: &mut [f32]| {
        let (batch, channel) = (index / kernel.channels_out, index % kernel.channels_out);
        let x = &x[(batch * kernel.channels_in + channel / channels) * source..][..source];
        let bias = bias.get(channel).copied().unwrap_or(0.0);
        lines.convolve(x, &weight[channel * window..][..window], bias, deep, high, out);
    };
    if plane <= BAND {
        // Small planes are processed whole, several per task.
        let cost = (plane * window).div_ceil(TOGETHER);
        return pool.each_unit(out, plane, cost, |first, out| {
            for (i, out) in out.chunks_mut(plane).enumerate() {
                for (deep, out) in out.chunks_mut(height * width).enumerate() {
                    band(first + i, deep, 0..height, out);
                }
            }
            finish.into_iter().for_each(|finish| finish.apply(first * plane, out));
        });
    }
    let slabs = out.chunks_mut(height * width).enumerate();
    let bands = slabs.flat_map(|(slab, out)| {
        let bands = out.chunks_mut(lines.high * width).enumerate();
        bands.map(move |(i, out)| (slab, i, out))
    });
    pool.each(bands, |(slab, i, out)| {
        let first = i * lines.high;
        band(slab / depth, slab % depth, first..first + out.len() / width, out);
        finish.into_iter().for_each(|finish| finish.apply((slab * height + first) * width, out));
    });
}

/// How the lines of a band are arranged in a buffer: by tap along the depth, then by row modulo the stride, then by
/// column modulo the stride.
pub(super) struct Lines<'a> {
    kernel: &'a ConvKernel,
    /// Maximum number of output rows of a band.
    pub high: usize,
    /// Rows and columns of one such part.
    rows: usize,
    pub pitch: usize,
    /// Position of the first element of each tap.
    pub starts: SmallVec<[usize; 25]>,
}

impl<'a> Lines<'a> {
    pub(super) fn of(kernel: &'a ConvKernel, high: usize) -> Self {
        let window = &kernel.window;
        // Input extent of `count` results, divided by the stride.
        let reach = |axis: usize, count: usize| {
            ((count - 1) * window.stride[axis] + (window.size[axis] - 1) * window.dilation[axis] + 1)
                .div_ceil(window.stride[axis])
        };
        let (rows, pitch) = (reach(1, high), reach(2, kernel.output[2]));
        let start = |[deep, row, column]: [usize; 3]| {
            let (row, column) = (row * window.dilation[1], column * window.dilation[2]);
            let [_, high, wide] = window.stride;
            let part = (deep * high + row % high) * wide + column % wide;
            (part * rows + row / high) * pitch + column / wide
        };
        Self { kernel, high, rows, pitch, starts: taps(window).map(start).collect() }
    }

    /// Number of floats in the lines of a band.
    pub(super) fn len(&self) -> usize {
        let window = &self.kernel.window;
        window.size[0] * window.stride[1] * window.stride[2] * self.rows * self.pitch
    }

    /// Computes some rows of one plane at a given depth.
    fn convolve(&self, x: &[f32], weight: &[f32], bias: f32, deep: usize, high: Range<usize>, out: &mut [f32]) {
        let width = self.kernel.output[2];
        let gathered = self.len();
        let results = ((high.len() - 1) * self.pitch + width).next_multiple_of(WIDEST);
        // The last vectors read past the last line.
        with_scratch(gathered + WIDEST + results, |buffer: &mut [f32]| {
            let (lines, results) = buffer.split_at_mut(gathered + WIDEST);
            self.gather(x, deep, high, lines);
            with_vectors(Sums { lines, starts: &self.starts, weight, bias, out: results });
            for (out, line) in out.chunks_mut(width).zip(results.chunks(self.pitch)) {
                out.copy_from_slice(&line[..width]);
            }
        });
    }

    /// Gathers the input lines of some output rows.
    pub(super) fn gather(&self, x: &[f32], deep: usize, high: Range<usize>, lines: &mut [f32]) {
        let (window, input) = (&self.kernel.window, self.kernel.input);
        let [_, step, wide] = window.stride;
        let mut parts = lines.chunks_exact_mut(self.rows * self.pitch);
        for tap in 0..window.size[0] {
            let slab = valid(window, 0, tap, self.kernel.output[0], input[0]).contains(&deep);
            let slab = slab.then(|| &x[place(window, 0, tap, deep) * input[1] * input[2]..][..input[1] * input[2]]);
            for (row, column) in (0..step * wide).map(|rest| (rest / wide, rest % wide)) {
                let Some(part) = parts.next() else { return };
                for (i, line) in part.chunks_exact_mut(self.pitch).enumerate() {
                    let place = ((high.start + i) * step + row).checked_sub(window.before[1]);
                    match place.filter(|&place| place < input[1]).zip(slab) {
                        Some((place, slab)) => self.line(&slab[place * input[2]..][..input[2]], column, line),
                        None => line.fill(0.0),
                    }
                }
            }
        }
    }

    /// Copies the elements of one line whose column has the remainder `rest`, with zero padding.
    fn line(&self, from: &[f32], rest: usize, line: &mut [f32]) {
        let (stride, before) = (self.kernel.window.stride[2], self.kernel.window.before[2]);
        let first = before.saturating_sub(rest).div_ceil(stride).min(line.len());
        let end = (from.len() + before).saturating_sub(rest).div_ceil(stride).clamp(first, line.len());
        line[..first].fill(0.0);
        line[end..].fill(0.0);
        if first < end {
            copy_every(&from[first * stride + rest - before..], stride, &mut line[first..end]);
        }
    }
}

/// `out[i] = bias + Σₜ weight[t] · lines[starts[t] + i]`, for whole vectors of `out`.
struct Sums<'a> {
    lines: &'a [f32],
    starts: &'a [usize],
    weight: &'a [f32],
    bias: f32,
    out: &'a mut [f32],
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Several sums at a time hide the latency of the additions. The rest follows in smaller groups.
        let done = self.groups::<S, 8>(simd, 0);
        let done = self.groups::<S, 4>(simd, done);
        let done = self.groups::<S, 2>(simd, done);
        self.groups::<S, 1>(simd, done);
    }
}

impl Sums<'_> {
    /// Processes as many groups of `G` vectors as possible, starting at `done`. Returns the end position.
    #[inline(always)]
    fn groups<S: Simd, const G: usize>(&mut self, simd: S, mut done: usize) -> usize {
        let length = G * S::F32_LANES;
        for cells in self.out[done..].chunks_exact_mut(length) {
            let mut sums = [simd.splat_f32s(self.bias); G];
            for (&start, &weight) in self.starts.iter().zip(self.weight) {
                let weight = simd.splat_f32s(weight);
                let (vectors, _) = S::as_simd_f32s(&self.lines[start + done..][..length]);
                for (sum, &vector) in sums.iter_mut().zip(vectors) {
                    *sum = simd.mul_add_e_f32s(weight, vector, *sum);
                }
            }
            S::as_mut_simd_f32s(cells).0.copy_from_slice(&sums);
            done += length;
        }
        done
    }
}
