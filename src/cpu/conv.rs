//! Convolution: columns of the input gathered per tile of output positions and multiplied by the weights; plain loops where a group has
//! one input channel.

use core::ops::Range;

use super::CpuPool;
use super::matmul::{Matrix, gemm};
use super::memory::Input;
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
                direct(kernel, x, &weight[channel * window..][..window], out);
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
        let mut gathered = Vec::new();
        let columns = if pointwise {
            Matrix { data: x, offset: tile.position as isize, row: source as isize, column: 1 }
        } else {
            gathered.resize(depth * width, 0.0);
            gather(kernel, x, tile.position, width, &mut gathered);
            Matrix { data: &gathered, offset: 0, row: width as isize, column: 1 }
        };
        let channel = tile.group * channels + tile.channel;
        let weights = Matrix { data: &weight, offset: (channel * depth) as isize, row: depth as isize, column: 1 };
        let mut block = vec![0.0; tile.rows.len() * width];
        gemm([tile.rows.len(), width, depth], &mut block, width, false, weights, columns);
        for (i, (row, cells)) in tile.rows.into_iter().zip(block.chunks(width)).enumerate() {
            let bias = bias(channel + i);
            row.iter_mut().zip(cells).for_each(|(o, &v)| *o = v + bias);
        }
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

/// Columns of output positions `first..first + width`: a row for every input channel and tap.
fn gather(kernel: &ConvKernel, x: &[f32], first: usize, width: usize, columns: &mut [f32]) {
    let window = &kernel.window;
    let [_, height_out, width_out] = kernel.output;
    let [depth_in, height_in, width_in] = kernel.input;
    let mut rows = columns.chunks_mut(width);
    for plane in x.chunks(depth_in * height_in * width_in) {
        for tap in taps(window) {
            let Some(row) = rows.next() else { return };
            let [deep, high, wide] =
                [0, 1, 2].map(|axis| valid(window, axis, tap[axis], kernel.output[axis], kernel.input[axis]));
            // By output rows, of which the tile's first and last may be partial.
            let mut at = first;
            while at < first + width {
                let (line, start) = (at / width_out, at % width_out);
                let length = (width_out - start).min(first + width - at);
                let cells = &mut row[at - first..][..length];
                at += length;
                let (d, h) = (line / height_out, line % height_out);
                let range = wide.start.clamp(start, start + length)..wide.end.clamp(start, start + length);
                if !deep.contains(&d) || !high.contains(&h) || range.is_empty() {
                    cells.fill(0.0);
                    continue;
                }
                let line = place(window, 0, tap[0], d) * height_in + place(window, 1, tap[1], h);
                let source = &plane[line * width_in + place(window, 2, tap[2], range.start)..];
                cells[..range.start - start].fill(0.0);
                cells[range.end - start..].fill(0.0);
                let cells = &mut cells[range.start - start..range.end - start];
                if window.stride[2] == 1 {
                    cells.copy_from_slice(&source[..cells.len()]);
                } else {
                    cells.iter_mut().zip(source.iter().step_by(window.stride[2])).for_each(|(c, &v)| *c = v);
                }
            }
        }
    }
}

/// Adds the convolution of one plane with one window to `out`.
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
