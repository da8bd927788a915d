//! Convolution: columns of the input gathered per tile of output positions, right into the panels that the weights are multiplied by; plain
//! loops where a group has one input channel.

use core::ops::Range;

use smallvec::SmallVec;

use super::CpuPool;
use super::gemm::{Matrix, PANEL, multiply, pack_panels, packed_len};
use super::memory::Input;
use super::scratch::with_scratch;
use super::simd::vectorised;
use crate::kernel::ConvKernel;
use crate::record::Window;

/// Floats of gathered columns that stay in the second-level cache.
const COLUMNS: usize = 1 << 17;

/// Positions `o` of an axis of `from` places whose tap, at `o · stride + tap · dilation − before`, lies in the `to` places it is taken from.
pub(super) fn valid(window: &Window, axis: usize, tap: usize, from: usize, to: usize) -> Range<usize> {
    let (stride, shift) = (window.stride[axis], tap * window.dilation[axis]);
    let first = window.before[axis].saturating_sub(shift).div_ceil(stride);
    let end = (to + window.before[axis]).saturating_sub(shift).div_ceil(stride).min(from);
    first.min(end)..end
}

/// Where the tap of position `o` lies; only for valid positions.
pub(super) fn place(window: &Window, axis: usize, tap: usize, o: usize) -> usize {
    o * window.stride[axis] + tap * window.dilation[axis] - window.before[axis]
}

/// All taps of a window, row-major.
pub(super) fn taps(window: &Window) -> impl Iterator<Item = [usize; 3]> + use<> {
    let [d, h, w] = window.size;
    (0..d * h * w).map(move |t| [t / (h * w), t / w % h, t % w])
}

/// Some output positions of some channels of one group of one batch element.
struct Tile<'a> {
    batch: usize,
    group: usize,
    /// The first position and the first channel of the group.
    position: usize,
    channel: usize,
    rows: Vec<&'a mut [f32]>,
}

/// The twin. Inputs: x, weight, bias if flagged.
pub(super) fn conv(kernel: &ConvKernel, inputs: &[Input], out: &mut [f32], pool: &CpuPool) {
    let [x, weight, ..] = inputs else { return };
    let (x, weight) = (x.contiguous::<f32>(pool), weight.contiguous::<f32>(pool));
    let bias = if kernel.bias { inputs.get(2).map(|bias| bias.contiguous::<f32>(pool)) } else { None };
    let bias = |channel: usize| bias.as_ref().map_or(0.0, |bias| bias[channel]);
    let plane: usize = kernel.output.iter().product();
    let source: usize = kernel.input.iter().product();
    let window: usize = kernel.window.size.iter().product();
    let (channels_in, channels) = (kernel.channels_in / kernel.groups, kernel.channels_out / kernel.groups);
    let depth = channels_in * window;
    if out.is_empty() {
        return;
    }
    if channels_in == 1 {
        return pool.each_unit(out, plane, plane * window, |first, out| {
            for (i, out) in out.chunks_mut(plane).enumerate() {
                let (batch, channel) = ((first + i) / kernel.channels_out, (first + i) % kernel.channels_out);
                let x = &x[(batch * kernel.channels_in + channel / channels) * source..][..source];
                out.fill(bias(channel));
                vectorised(
                    #[inline(always)]
                    || direct(kernel, x, &weight[channel * window..][..window], out),
                );
            }
        });
    }

    // A window of one element at every place needs no gathering.
    let pointwise = window == 1 && kernel.window.stride == [1; 3] && kernel.input == kernel.output;
    let groups = kernel.batch * kernel.groups;
    let (width, height) = tile_size(depth, plane, channels, groups, pool.threads());
    let mut tiles = Vec::new();
    for (at, out) in out.chunks_mut(plane * channels).enumerate() {
        for (c, block) in out.chunks_mut(plane * height).enumerate() {
            let first = tiles.len();
            for (r, row) in block.chunks_mut(plane).enumerate() {
                for (p, cells) in row.chunks_mut(width).enumerate() {
                    if r == 0 {
                        tiles.push(Tile {
                            batch: at / kernel.groups,
                            group: at % kernel.groups,
                            position: p * width,
                            channel: c * height,
                            rows: Vec::with_capacity(height),
                        });
                    }
                    tiles[first + p].rows.push(cells);
                }
            }
        }
    }
    pool.each(tiles, |tile| {
        let width = tile.rows[0].len();
        let x = &x[(tile.batch * kernel.channels_in + tile.group * channels_in) * source..][..channels_in * source];
        let channel = tile.group * channels + tile.channel;
        let weights = Matrix { data: &weight, offset: (channel * depth) as isize, row: depth as isize, column: 1 };
        let height = tile.rows.len();
        with_scratch(packed_len(depth, width) + height * width, |buffer: &mut [f32]| {
            let (panels, block) = buffer.split_at_mut(packed_len(depth, width));
            if pointwise {
                let x = Matrix { data: x, offset: tile.position as isize, row: source as isize, column: 1 };
                pack_panels(x, depth, width, panels);
            } else {
                vectorised(
                    #[inline(always)]
                    || gather(kernel, x, tile.position, width, panels),
                );
            }
            multiply([height, width, depth], block, width, false, weights, panels);
            for (i, (row, cells)) in tile.rows.into_iter().zip(block.chunks(width)).enumerate() {
                let bias = bias(channel + i);
                row.iter_mut().zip(cells).for_each(|(o, &v)| *o = v + bias);
            }
        });
    });
}

/// Positions and channels of a tile: positions first, channels only where those leave threads idle.
fn tile_size(depth: usize, plane: usize, channels: usize, groups: usize, threads: usize) -> (usize, usize) {
    let wanted = if threads == 1 { 1 } else { (threads * 2).div_ceil(groups) };
    let width = (COLUMNS / depth.max(1)).min(plane.div_ceil(wanted)).next_multiple_of(16).clamp(64, 4096).min(plane);
    let tiles = plane.div_ceil(width);
    let height = channels.div_ceil(wanted.div_ceil(tiles)).max(32).min(channels);
    (width, height)
}

/// Columns of output positions `first..first + width` as panels, with a row for every input channel and tap.
#[inline(always)]
fn gather(kernel: &ConvKernel, x: &[f32], first: usize, width: usize, panels: &mut [f32]) {
    let window = &kernel.window;
    let [_, height_out, width_out] = kernel.output;
    let [depth_in, height_in, width_in] = kernel.input;
    let source = depth_in * height_in * width_in;
    let depth = x.len() / source * window.size.iter().product::<usize>();
    if !width.is_multiple_of(PANEL) {
        // Positions past the last.
        let last = panels.len() - depth * PANEL;
        panels[last..].fill(0.0);
    }
    // Output lines of the tile, of which the first and the last may be partial: indices, first column, and positions in the tile.
    let mut lines: SmallVec<[([usize; 3], Range<usize>); 16]> = SmallVec::new();
    let mut at = first;
    while at < first + width {
        let (line, start) = (at / width_out, at % width_out);
        let length = (width_out - start).min(first + width - at);
        lines.push(([line / height_out, line % height_out, start], at - first..at - first + length));
        at += length;
    }
    let ranges =
        |tap: [usize; 3]| [0, 1, 2].map(|axis| valid(window, axis, tap[axis], kernel.output[axis], kernel.input[axis]));
    let taps: SmallVec<[_; 16]> = taps(window).map(|tap| (tap, ranges(tap))).collect();
    for (channel, plane) in x.chunks(source).enumerate() {
        for (t, (tap, [deep, high, wide])) in taps.iter().enumerate() {
            let row = channel * taps.len() + t;
            for ([d, h, start], to) in &lines {
                let range = wide.start.clamp(*start, start + to.len())..wide.end.clamp(*start, start + to.len());
                if !deep.contains(d) || !high.contains(h) || range.is_empty() {
                    each_piece(panels, depth, row, to.clone(), |cells, _| cells.fill(0.0));
                    continue;
                }
                let line = place(window, 0, tap[0], *d) * height_in + place(window, 1, tap[1], *h);
                let from = &plane[line * width_in + place(window, 2, tap[2], range.start)..];
                // Zeros, elements, zeros.
                let (begin, end) = (to.start + range.start - start, to.start + range.end - start);
                each_piece(panels, depth, row, to.start..begin, |cells, _| cells.fill(0.0));
                each_piece(panels, depth, row, end..to.end, |cells, _| cells.fill(0.0));
                each_piece(panels, depth, row, begin..end, |cells, done| {
                    if let (1, Some(cells)) = (window.stride[2], cells.first_chunk_mut::<PANEL>()) {
                        // A whole row of a panel, of known size.
                        cells.copy_from_slice(&from[done..done + PANEL]);
                    } else {
                        let from = from[done * window.stride[2]..].iter().step_by(window.stride[2]);
                        cells.iter_mut().zip(from).for_each(|(c, &v)| *c = v);
                    }
                });
            }
        }
    }
}

/// The cells of positions of a row, cut where panels end, with the number of cells before.
#[inline(always)]
fn each_piece(
    panels: &mut [f32],
    depth: usize,
    row: usize,
    positions: Range<usize>,
    mut work: impl FnMut(&mut [f32], usize),
) {
    let mut at = positions.start;
    while at < positions.end {
        let (panel, column) = (at / PANEL, at % PANEL);
        let length = (PANEL - column).min(positions.end - at);
        work(&mut panels[(panel * depth + row) * PANEL + column..][..length], at - positions.start);
        at += length;
    }
}

/// Adds the convolution of one plane with one window to `out`.
#[inline(always)]
fn direct(kernel: &ConvKernel, x: &[f32], weight: &[f32], out: &mut [f32]) {
    let window = &kernel.window;
    let [_, height_out, width_out] = kernel.output;
    let [_, height_in, width_in] = kernel.input;
    for (tap, &weight) in taps(window).zip(weight) {
        let [deep, high, wide] =
            [0, 1, 2].map(|axis| valid(window, axis, tap[axis], kernel.output[axis], kernel.input[axis]));
        if wide.is_empty() {
            continue;
        }
        for d in deep {
            for h in high.clone() {
                let line = place(window, 0, tap[0], d) * height_in + place(window, 1, tap[1], h);
                let source = &x[line * width_in + place(window, 2, tap[2], wide.start)..];
                let cells = &mut out[(d * height_out + h) * width_out..][wide.clone()];
                if window.stride[2] == 1 {
                    cells.iter_mut().zip(source).for_each(|(o, &v)| *o += weight * v);
                } else {
                    let source = source.iter().step_by(window.stride[2]);
                    cells.iter_mut().zip(source).for_each(|(o, &v)| *o += weight * v);
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cpu::memory::Elements;
    use crate::tensor::Layout;

    /// A kernel with the output size that follows, plainly or transposed.
    pub(in crate::cpu) fn kernel(
        window: Window,
        groups: usize,
        channels: [usize; 2],
        input: [usize; 3],
        transposed: bool,
    ) -> ConvKernel {
        let output = [0, 1, 2].map(|a| {
            let (reach, pad) = ((window.size[a] - 1) * window.dilation[a] + 1, window.before[a] + window.after[a]);
            if transposed {
                (input[a] - 1) * window.stride[a] + reach - pad
            } else {
                (input[a] + pad - reach) / window.stride[a] + 1
            }
        });
        ConvKernel {
            window,
            groups,
            bias: groups != 2,
            batch: 2,
            channels_in: channels[0],
            channels_out: channels[1],
            input,
            output,
        }
    }

    /// Windows that differ on every axis.
    pub(in crate::cpu) fn windows() -> Vec<(Window, [usize; 3])> {
        let window = |size, stride, dilation, before, after| Window { size, stride, dilation, before, after };
        vec![
            (window([1; 3], [1; 3], [1; 3], [0; 3], [0; 3]), [1, 5, 7]),
            (window([1, 3, 3], [1; 3], [1; 3], [0, 1, 1], [0, 1, 1]), [1, 9, 65]),
            (window([1, 3, 5], [1, 2, 3], [1, 2, 1], [0, 2, 0], [0, 1, 3]), [1, 11, 13]),
            (window([2, 2, 3], [2, 1, 2], [1, 1, 2], [1, 0, 4], [0, 0, 3]), [3, 4, 6]),
            (window([1, 1, 3], [1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 1]), [1, 1, 1]),
        ]
    }

    pub(in crate::cpu) fn values(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i * 31 % 19) as f32 - 9.0).collect()
    }

    #[test]
    fn convolutions_match_the_definition() {
        let pool = CpuPool::new(3);
        for (window, input) in windows() {
            for (groups, channels) in [(1, [3, 5]), (2, [4, 6]), (3, [3, 6]), (1, [2, 65])] {
                let k = kernel(window, groups, channels, input, false);
                let taps_count: usize = window.size.iter().product();
                let (source, plane): (usize, usize) = (k.input.iter().product(), k.output.iter().product());
                let cin = k.channels_in / groups;
                let x = values(k.batch * k.channels_in * source);
                let w = values(k.channels_out * cin * taps_count);
                let b = values(k.channels_out);
                let input = |v| Input { elements: Elements::F32(v), layout: Layout::contiguous([v.len()]) };
                let mut out = vec![0.0; k.batch * k.channels_out * plane];
                let mut inputs = vec![input(&x[..]), input(&w[..])];
                inputs.extend(k.bias.then(|| input(&b[..])));
                conv(&k, &inputs, &mut out, &pool);
                for (at, &got) in out.iter().enumerate() {
                    let (n, co) = (at / plane / k.channels_out, at / plane % k.channels_out);
                    let group = co / (k.channels_out / groups);
                    let o =
                        [at % plane / (k.output[1] * k.output[2]), at / k.output[2] % k.output[1], at % k.output[2]];
                    let mut expected = if k.bias { b[co] } else { 0.0 };
                    for c in 0..cin {
                        for (t, tap) in taps(&window).enumerate() {
                            let i = [0, 1, 2].map(|a| {
                                (o[a] * window.stride[a] + tap[a] * window.dilation[a]) as isize
                                    - window.before[a] as isize
                            });
                            if (0..3).all(|a| i[a] >= 0 && i[a] < k.input[a] as isize) {
                                let i = i.map(|i| i as usize);
                                let place = (i[0] * k.input[1] + i[1]) * k.input[2] + i[2];
                                expected += w[(co * cin + c) * taps_count + t]
                                    * x[(n * k.channels_in + group * cin + c) * source + place];
                            }
                        }
                    }
                    assert_eq!(got, expected, "{k:?} at {at}");
                }
            }
        }
    }
}
