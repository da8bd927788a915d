//! Convolution on the CPU: products of the weights and the input. A 1×1 window reads the input in place. Otherwise the
//! input lines of a band of output rows are gathered with zero padding, and every tap reads them from a different start.
//! Where the padding would make that wasteful, columns are gathered into panels instead. Groups that turn one channel
//! into a few use [`mod@depthwise`].

mod depthwise;

use core::ops::Range;
use std::borrow::Cow;

use smallvec::SmallVec;

use self::depthwise::{Lines, depthwise};
use crate::ir::Window;
use crate::kernel::ConvKernel;
use crate::kernel::host::CpuPool;
use crate::kernel::host::fused::Finish;
use crate::kernel::host::memory::Input;
use crate::kernel::host::packed::HostWords;
use crate::kernel::host::scratch::with_scratch;
use crate::kernel::host::simd::vectorised;
use crate::kernel::matmul::gemm::{Matrix, PANEL, Right, multiply, pack_panels, packed_len};

/// Floats of gathered columns and results that fit the L2 cache.
const COLUMNS: usize = 1 << 17;
/// Channels are split into multiples of this number, which products process together.
const STRIP: usize = 8;
/// Minimum number of channels for which gathering columns pays.
const TALL: usize = 32;
/// How often an element must be used for packing to pay, per row that it is packed with.
const USED: usize = 4;
/// Groups that turn one channel into at most this many are convolved channel by channel.
const FEW: usize = 4;

/// Positions `o` of an axis with `from` positions whose tap, at `o · stride + tap · dilation − before`, is inside the
/// `to` elements that it reads.
pub(crate) fn valid(window: &Window, axis: usize, tap: usize, from: usize, to: usize) -> Range<usize> {
    let (stride, shift) = (window.stride[axis], tap * window.dilation[axis]);
    let first = window.before[axis].saturating_sub(shift).div_ceil(stride);
    let end = (to + window.before[axis]).saturating_sub(shift).div_ceil(stride).min(from);
    first.min(end)..end
}

/// The element that the tap of position `o` reads. Only for valid positions.
pub(crate) fn place(window: &Window, axis: usize, tap: usize, o: usize) -> usize {
    o * window.stride[axis] + tap * window.dilation[axis] - window.before[axis]
}

/// All taps of a window, row-major.
pub(crate) fn taps(window: &Window) -> impl Iterator<Item = [usize; 3]> + use<> {
    let [d, h, w] = window.size;
    (0..d * h * w).map(move |t| [t / (h * w), t / w % h, t % w])
}

/// Some output positions for some channels of one group and batch element.
struct Tile<'a> {
    batch: usize,
    /// Index among all channels.
    channel: usize,
    /// The first position and the number of positions.
    position: usize,
    width: usize,
    /// One slice of whole planes, or one slice per channel.
    pieces: Vec<&'a mut [f32]>,
}

/// The CPU twin. Inputs: x, weight, and the bias if flagged. `words` are those of the weight's storage, if it has one.
/// The epilogue runs on each tile while its results are in the cache.
pub(crate) fn conv(
    kernel: &ConvKernel,
    inputs: &[Input],
    words: Option<&HostWords>,
    out: &mut [f32],
    pool: &CpuPool,
    finish: Option<&Finish>,
) {
    let [x, weight, ..] = inputs else { return };
    let x = x.contiguous::<f32>(pool);
    let bias = if kernel.bias { inputs.get(2).map(|bias| bias.contiguous::<f32>(pool)) } else { None };
    let bias = bias.as_deref().unwrap_or_default();
    if out.is_empty() {
        return;
    }
    let (channels_in, channels) = (kernel.channels_in / kernel.groups, kernel.channels_out / kernel.groups);
    let kept = words.and_then(|words| weight.widened(words, pool));
    let weight = kept.as_ref().map_or_else(|| weight.contiguous::<f32>(pool), |kept| Cow::Borrowed(&kept.floats));
    if channels_in == 1 && channels <= FEW {
        return depthwise(kernel, &x, &weight, bias, out, pool, finish);
    }
    products(kernel, &x, &weight, bias, out, pool, finish);
}

/// Convolution as a product of weights and gathered input columns.
fn products(
    kernel: &ConvKernel,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    out: &mut [f32],
    pool: &CpuPool,
    finish: Option<&Finish>,
) {
    let plane: usize = kernel.output.iter().product();
    let source: usize = kernel.input.iter().product();
    let window: usize = kernel.window.size.iter().product();
    let (channels_in, channels) = (kernel.channels_in / kernel.groups, kernel.channels_out / kernel.groups);
    let depth = channels_in * window;
    // A 1×1 window with stride 1 needs no gathering.
    let pointwise = window == 1 && kernel.window.stride == [1; 3] && kernel.input == kernel.output;
    let groups = kernel.batch * kernel.groups;
    let lines = if pointwise { None } else { bands(kernel, pool.threads()) };
    let (width, height) = match &lines {
        Some(lines) => {
            let (width, wanted) = (lines.high * kernel.output[2], tasks(groups, pool.threads()));
            let height = channels.div_ceil(wanted.div_ceil(plane.div_ceil(width))).max(TALL);
            (width, height.next_multiple_of(STRIP).min(channels))
        }
        // Whole planes are written in place.
        None if pointwise && channels >= STRIP * tasks(groups, pool.threads()) => {
            (plane, channels.div_ceil(tasks(groups, pool.threads())).next_multiple_of(STRIP))
        }
        None => tile_size(depth, plane, channels, groups, pool.threads()),
    };
    // Where the rows that the weights are multiplied by begin in the lines of all channels.
    let starts: Vec<usize> = lines
        .iter()
        .flat_map(|lines| {
            (0..channels_in)
                .flat_map(move |channel| lines.starts.iter().map(move |start| channel * lines.len() + start))
        })
        .collect();
    let mut tiles: Vec<Tile> = Vec::new();
    for (at, out) in out.chunks_mut(plane * channels).enumerate() {
        for (c, block) in out.chunks_mut(plane * height).enumerate() {
            let channel = at % kernel.groups * channels + c * height;
            let tile =
                |position, width| Tile { batch: at / kernel.groups, channel, position, width, pieces: Vec::new() };
            if width == plane {
                tiles.push(Tile { pieces: vec![block], ..tile(0, plane) });
                continue;
            }
            let first = tiles.len();
            tiles.extend((0..plane).step_by(width).map(|position| tile(position, width.min(plane - position))));
            for row in block.chunks_mut(plane) {
                tiles[first..].iter_mut().zip(row.chunks_mut(width)).for_each(|(tile, cells)| tile.pieces.push(cells));
            }
        }
    }
    pool.each(tiles, |mut tile| {
        let width = tile.width;
        let height = tile.pieces.iter().map(|piece| piece.len()).sum::<usize>() / width;
        let group = tile.channel / channels;
        let x = &x[(tile.batch * kernel.channels_in + group * channels_in) * source..][..channels_in * source];
        let multiplied = |block: &mut [f32], width: usize, right: Right| {
            for (i, row) in block.chunks_mut(width).enumerate() {
                row.fill(bias.get(tile.channel + i).copied().unwrap_or(0.0));
            }
            let weights =
                Matrix { data: weight, offset: (tile.channel * depth) as isize, row: depth as isize, column: 1 };
            multiply([height, width, depth], block, width, true, weights, right);
        };
        let in_one = width == plane;
        if let Some(lines) = &lines {
            // Results are as far apart as the lines that they are made of.
            let (columns, first) = (kernel.output[2], tile.position / kernel.output[2]);
            let rows = width / columns;
            let reach = (rows - 1) * lines.pitch + columns;
            with_scratch(channels_in * lines.len() + PANEL + height * reach, |buffer: &mut [f32]| {
                let (gathered, block) = buffer.split_at_mut(channels_in * lines.len() + PANEL);
                for (x, gathered) in x.chunks(source).zip(gathered.chunks_mut(lines.len())) {
                    lines.gather(x, 0, first..first + rows, gathered);
                }
                multiplied(block, reach, Right::Starts(gathered, &starts));
                let cells = tile.pieces.iter_mut().flat_map(|piece| piece.chunks_mut(width));
                for (cells, block) in cells.zip(block.chunks(reach)) {
                    let rows = cells.chunks_mut(columns).zip(block.chunks(lines.pitch));
                    rows.for_each(|(cells, row)| cells.copy_from_slice(&row[..columns]));
                }
            });
        } else {
            // Packing pays if each element is used often.
            let in_place = pointwise && (height <= USED * depth || depth * width > COLUMNS);
            let packed = if in_place { 0 } else { packed_len(depth, width) };
            let block = if in_one { 0 } else { height * width };
            with_scratch(packed + block, |buffer: &mut [f32]| {
                let (panels, block) = buffer.split_at_mut(packed);
                let matrix = Matrix { data: x, offset: tile.position as isize, row: source as isize, column: 1 };
                if pointwise && !in_place {
                    pack_panels(matrix, depth, width, panels);
                } else if !pointwise {
                    vectorised(
                        #[inline(always)]
                        || gather(kernel, x, tile.position, width, panels),
                    );
                }
                let right = if in_place { Right::Matrix(matrix) } else { Right::Panels(panels) };
                match &mut tile.pieces[..] {
                    [piece] if in_one => multiplied(piece, width, right),
                    pieces => {
                        multiplied(block, width, right);
                        pieces.iter_mut().zip(block.chunks(width)).for_each(|(piece, row)| piece.copy_from_slice(row));
                    }
                }
            });
        }
        if let Some(finish) = finish {
            let first = (tile.batch * kernel.channels_out + tile.channel) * plane + tile.position;
            tile.pieces.iter_mut().enumerate().for_each(|(i, piece)| finish.apply(first + i * plane, piece));
        }
    });
}

/// Number of tiles that each group should have, so that all threads are busy.
fn tasks(groups: usize, threads: usize) -> usize {
    if threads == 1 { 1 } else { (threads * 2).div_ceil(groups) }
}

/// Bands of output rows whose input lines and results fit the L2 cache. `None` if much of what they compute would be
/// thrown away: the results of the padding between lines.
fn bands(kernel: &ConvKernel, threads: usize) -> Option<Lines<'_>> {
    let [deep, high, wide] = kernel.output;
    let channels = (kernel.channels_in + kernel.channels_out) / kernel.groups;
    if deep != 1 {
        return None;
    }
    let one = Lines::of(kernel, 1);
    if one.pitch * 4 > wide * 5 {
        return None;
    }
    let most = (COLUMNS / (channels * one.pitch * kernel.window.stride[1] * kernel.window.stride[2])).max(1);
    let wanted = tasks(kernel.batch * kernel.groups, threads);
    Some(Lines::of(kernel, high.div_ceil(wanted).min(most)))
}

/// Positions and channels of a tile. Small planes are processed whole, with their results in one slice. Otherwise the
/// positions are split first, and the channels only if threads would be idle.
fn tile_size(depth: usize, plane: usize, channels: usize, groups: usize, threads: usize) -> (usize, usize) {
    let wanted = tasks(groups, threads);
    if depth * plane <= COLUMNS / 2 && channels / wanted >= TALL {
        return (plane, channels.div_ceil(wanted).next_multiple_of(STRIP));
    }
    // Room for the gathered columns and their results.
    let most = (COLUMNS / (depth + channels)).min(plane.div_ceil(wanted));
    let width = most.next_multiple_of(PANEL).clamp(64, 4096).min(plane);
    let tiles = plane.div_ceil(width);
    let height = channels.div_ceil(wanted.div_ceil(tiles)).max(TALL).next_multiple_of(STRIP).min(channels);
    (width, height)
}

/// Gathers the columns of output positions `first..first + width` into panels, with a row per input channel and tap.
#[inline(always)]
fn gather(kernel: &ConvKernel, x: &[f32], first: usize, width: usize, panels: &mut [f32]) {
    let window = &kernel.window;
    let [_, height_out, width_out] = kernel.output;
    let [depth_in, height_in, width_in] = kernel.input;
    let source = depth_in * height_in * width_in;
    let depth = x.len() / source * window.size.iter().product::<usize>();
    if !width.is_multiple_of(PANEL) {
        // Pads positions after the last one.
        let last = panels.len() - depth * PANEL;
        panels[last..].fill(0.0);
    }
    // Output lines of the tile (the first and last may be partial): indices, first column, and positions in the tile.
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
                // Padding, elements, padding.
                let (begin, end) = (to.start + range.start - start, to.start + range.end - start);
                each_piece(panels, depth, row, to.start..begin, |cells, _| cells.fill(0.0));
                each_piece(panels, depth, row, end..to.end, |cells, _| cells.fill(0.0));
                each_piece(panels, depth, row, begin..end, |cells, done| {
                    let from = &from[done * window.stride[2]..];
                    match cells.first_chunk_mut::<PANEL>() {
                        // A whole row of a panel has a constant size, which the compiler can unroll.
                        Some(cells) => copy_every(from, window.stride[2], cells),
                        None => copy_every(from, window.stride[2], cells),
                    }
                });
            }
        }
    }
}

/// Copies every `stride`-th element.
#[inline(always)]
pub(crate) fn copy_every(from: &[f32], stride: usize, to: &mut [f32]) {
    match stride {
        1 => to.copy_from_slice(&from[..to.len()]),
        2 => {
            // The compiler vectorises the pairs. The last one may be incomplete.
            let (last, to) = to.split_last_mut().map_or((None, &mut [][..]), |(last, to)| (Some(last), to));
            let (pairs, _) = from.as_chunks::<2>();
            if let Some(last) = last {
                *last = from[to.len() * 2];
            }
            to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0]);
        }
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, &from)| *to = from),
    }
}

/// Calls a function with the cells of the given positions of a row, split at panel boundaries, and the number of cells
/// before them.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ir::Layout;
    use crate::kernel::host::memory::Elements;

    /// A kernel with the matching output size, regular or transposed.
    pub(crate) fn kernel(
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
    pub(crate) fn windows() -> Vec<(Window, [usize; 3])> {
        let window = |size, stride, dilation, before, after| Window { size, stride, dilation, before, after };
        vec![
            (window([1; 3], [1; 3], [1; 3], [0; 3], [0; 3]), [1, 5, 7]),
            (window([1, 3, 3], [1; 3], [1; 3], [0, 1, 1], [0, 1, 1]), [1, 9, 65]),
            (window([1, 3, 5], [1, 2, 3], [1, 2, 1], [0, 2, 0], [0, 1, 3]), [1, 11, 13]),
            (window([2, 2, 3], [2, 1, 2], [1, 1, 2], [1, 0, 4], [0, 0, 3]), [3, 4, 6]),
            (window([1, 1, 3], [1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 1]), [1, 1, 1]),
        ]
    }

    pub(crate) fn values(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i * 31 % 19) as f32 - 9.0).collect()
    }

    /// Checks every element of a convolution.
    fn check(k: &ConvKernel, pool: &CpuPool) {
        let (window, groups) = (&k.window, k.groups);
        let taps_count: usize = window.size.iter().product();
        let (source, plane): (usize, usize) = (k.input.iter().product(), k.output.iter().product());
        let cin = k.channels_in / groups;
        let x = values(k.batch * k.channels_in * source);
        let w = values(k.channels_out * cin * taps_count);
        let b = values(k.channels_out);
        let input = |v| Input { elements: Elements::F32(v), layout: Layout::contiguous([v.len()]) };
        let mut inputs = vec![input(&x[..]), input(&w[..])];
        inputs.extend(k.bias.then(|| input(&b[..])));
        let mut out = vec![f32::NAN; k.batch * k.channels_out * plane];
        conv(k, &inputs, None, &mut out, pool, None);
        for (at, &result) in out.iter().enumerate() {
            let (n, co) = (at / plane / k.channels_out, at / plane % k.channels_out);
            let group = co / (k.channels_out / groups);
            let o = [at % plane / (k.output[1] * k.output[2]), at / k.output[2] % k.output[1], at % k.output[2]];
            let mut expected = if k.bias { b[co] } else { 0.0 };
            for c in 0..cin {
                for (t, tap) in taps(window).enumerate() {
                    let i = [0, 1, 2].map(|a| {
                        (o[a] * window.stride[a] + tap[a] * window.dilation[a]) as isize - window.before[a] as isize
                    });
                    if (0..3).all(|a| i[a] >= 0 && i[a] < k.input[a] as isize) {
                        let i = i.map(|i| i as usize);
                        let place = (i[0] * k.input[1] + i[1]) * k.input[2] + i[2];
                        expected += w[(co * cin + c) * taps_count + t]
                            * x[(n * k.channels_in + group * cin + c) * source + place];
                    }
                }
            }
            assert_eq!(result, expected, "{k:?} at {at}");
        }
    }

    #[test]
    fn convolutions_match_the_definition() {
        crate::kernel::host::simd::forced::each(convolutions_match);
    }

    fn convolutions_match() {
        let pool = CpuPool::new(3);
        for (window, input) in windows() {
            for (groups, channels) in [(1, [3, 5]), (2, [4, 6]), (3, [3, 6]), (1, [2, 65]), (1, [1, 7])] {
                check(&kernel(window, groups, channels, input, false), &pool);
            }
        }
    }

    #[test]
    fn large_planes_are_convolved_in_parts() {
        let window = |stride| Window { size: [1, 3, 3], stride, dilation: [1; 3], before: [0, 1, 0], after: [0, 1, 1] };
        for (window, input) in [(window([1; 3]), [1, 97, 203]), (window([1, 2, 2]), [1, 300, 260])] {
            for (groups, channels) in [(2, [2, 2]), (1, [2, 7])] {
                check(&kernel(window, groups, channels, input, false), &CpuPool::new(2));
            }
        }
    }
}
