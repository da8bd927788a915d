//! Values at positions between the elements: grids, regions, deformed windows.
//!
//! Positions are computed on the device. Neighbours are gathered and weighed there.

use super::super::call::{Call, Outputs, Stop, device_type, failed, one, sizes};
use super::super::host::HostTensor;
use super::Operator;
use crate::ir::{DType, Shape};
use crate::record::{Axes, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("GridSample").record(grid_sample),
    Operator::new("RoiAlign").record(roi_align),
    Operator::new("DeformConv").record(deform_conv),
];

/// What lies outside of the value.
#[derive(Clone, Copy, PartialEq)]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// A value `[n, c, …]` whose elements are looked up.
struct Source<'a> {
    /// `[n, c, elements]`.
    flat: TensorValue<'a>,
    batch: usize,
    channels: usize,
    spatial: Vec<usize>,
    outside: Outside,
    corners: bool,
}

impl<'a> Source<'a> {
    fn new(call: &Call<'a>, x: TensorValue<'a>, outside: Outside, corners: bool) -> Result<Self, Stop> {
        let shape = call.ops.shape(x)?;
        let [batch, channels, spatial @ ..] = &shape[..] else { return failed(format!("{shape} has no channels")) };
        let elements: usize = spatial.iter().product();
        let flat = call.ops.reshape(x, &[*batch as isize, *channels as isize, elements as isize])?;
        Ok(Self { flat, batch: *batch, channels: *channels, spatial: spatial.to_vec(), outside, corners })
    }

    /// Mirrored at both ends, as often as needed.
    fn reflected(&self, call: &Call<'a>, at: TensorValue<'a>, axis: usize) -> Result<TensorValue<'a>, Stop> {
        let n = self.spatial[axis] as f32;
        let (low, high) = if self.corners { (0.0, n - 1.0) } else { (-0.5, n - 0.5) };
        let range = high - low;
        if range <= 0.0 {
            return Ok(call.ops.mul(at, 0.0)?);
        }
        let turned = call.ops.modulo(at - low, 2.0 * range)?;
        let folded = call.ops.abs(turned - range)?;
        Ok(call.ops.value(folded * -1.0 + (range + low))?)
    }

    /// Positions moved inside, if what is outside is a border or a reflection. Others stay.
    fn inside(&self, call: &Call<'a>, at: TensorValue<'a>, axis: usize) -> Result<TensorValue<'a>, Stop> {
        let last = self.spatial[axis] as f64 - 1.0;
        Ok(match self.outside {
            Outside::Zeros => at,
            Outside::Border => call.ops.clamp(at, 0.0, last)?,
            Outside::Reflection => self.reflected(call, at, axis)?,
        })
    }

    /// The elements `[n, c, points]` at whole positions `[n, points]` per axis, times a weight `[n, points]`.
    fn pick(
        &self,
        call: &Call<'a>,
        at: &[TensorValue<'a>],
        weight: Option<TensorValue<'a>>,
    ) -> Result<TensorValue<'a>, Stop> {
        let ops = call.ops;
        let mut place: Option<TensorValue> = None;
        let mut weight = weight;
        for (axis, (&at, &n)) in at.iter().zip(&self.spatial).enumerate() {
            let last = n as f64 - 1.0;
            let at = match self.outside {
                // Positions are whole, so a reflection of one is whole up to rounding.
                Outside::Reflection => ops.round(self.reflected(call, at, axis)?)?,
                Outside::Border => at,
                Outside::Zeros => {
                    let known = ops.and(ops.greater_equal(at, 0.0)?, ops.less_equal(at, last)?)?;
                    let known = ops.cast(known, DType::F32)?;
                    weight = Some(match weight {
                        Some(weight) => ops.mul(weight, known)?,
                        None => known,
                    });
                    at
                }
            };
            let at = ops.cast(ops.clamp(at, 0.0, last)?, DType::I32)?;
            place = Some(match place {
                Some(before) => ops.add(ops.mul(before, n as u32)?, at)?,
                None => at,
            });
        }
        let Some(place) = place else { return failed("a value without spatial axes") };
        let points = ops.shape(place)?[1];
        let place = ops.broadcast_to(ops.unsqueeze(place, &[1])?, [self.batch, self.channels, points])?;
        let values = ops.gather_elements(self.flat, place, 2)?;
        Ok(match weight {
            Some(weight) => ops.mul(values, ops.cast(ops.unsqueeze(weight, &[1])?, ops.dtype(values)?)?)?,
            None => values,
        })
    }

    /// The sum over all neighbours. `taps` has the offsets along an axis and the weight of each, for a fraction.
    fn interpolated(
        &self,
        call: &Call<'a>,
        at: &[TensorValue<'a>],
        taps: impl Fn(TensorValue<'a>) -> Result<Vec<(f32, TensorValue<'a>)>, Stop>,
    ) -> Result<TensorValue<'a>, Stop> {
        let ops = call.ops;
        let mut axes = Vec::new();
        for &at in at {
            let floor = ops.floor(at)?;
            axes.push((floor, taps(ops.sub(at, floor)?)?));
        }
        let counts: Vec<usize> = axes.iter().map(|(_, taps)| taps.len()).collect();
        let mut sum: Option<TensorValue> = None;
        for mut number in 0..counts.iter().product::<usize>() {
            let (mut place, mut weight) = (Vec::new(), None);
            for ((floor, taps), &count) in axes.iter().zip(&counts) {
                let (offset, of_tap) = taps[number % count];
                number /= count;
                place.push(ops.add(*floor, offset)?);
                weight = Some(match weight {
                    Some(weight) => ops.mul(weight, of_tap)?,
                    None => of_tap,
                });
            }
            let part = self.pick(call, &place, weight)?;
            sum = Some(match sum {
                Some(sum) => ops.add(sum, part)?,
                None => part,
            });
        }
        sum.map_or_else(|| failed("a value without spatial axes"), Ok)
    }

    /// Between the two neighbours along every axis.
    fn linear(&self, call: &Call<'a>, at: &[TensorValue<'a>]) -> Result<TensorValue<'a>, Stop> {
        self.interpolated(call, at, |t| Ok(vec![(0.0, call.ops.value(t * -1.0 + 1.0)?), (1.0, t)]))
    }

    /// Four neighbours along every axis, with the cubic convolution of a = −0.75.
    fn cubic(&self, call: &Call<'a>, at: &[TensorValue<'a>]) -> Result<TensorValue<'a>, Stop> {
        const A: f32 = -0.75;
        let ops = call.ops;
        let near = |t: TensorValue<'a>| -> Result<TensorValue<'a>, Stop> {
            Ok(ops.value((t * (A + 2.0) - (A + 3.0)) * ops.mul(t, t)? + 1.0)?)
        };
        let far = |t: TensorValue<'a>| -> Result<TensorValue<'a>, Stop> {
            Ok(ops.value(((t * A - 5.0 * A) * t + 8.0 * A) * t - 4.0 * A)?)
        };
        self.interpolated(call, at, |t| {
            let rest = ops.value(t * -1.0 + 1.0)?;
            Ok(vec![
                (-1.0, far(ops.value(t + 1.0)?)?),
                (0.0, near(t)?),
                (1.0, near(rest)?),
                (2.0, far(ops.value(rest + 1.0)?)?),
            ])
        })
    }
}

/// A grid of positions from −1 to 1, whose last axis lists x, y and z.
fn grid_sample<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let (shape, of_grid, element) = (call.shape_of(0)?, call.shape_of(1)?, call.type_of(0)?);
    let outside = match call.text("padding_mode", "zeros") {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection,
        other => return failed(format!("{other:?} is not a padding mode")),
    };
    let corners = call.flag("align_corners", false);
    let rank = shape.rank().saturating_sub(2);
    if rank == 0 || of_grid.rank() != rank + 2 || of_grid.last() != Some(&rank) {
        return failed(format!("{of_grid} is not a grid for {shape}"));
    }
    let points: usize = of_grid[1..=rank].iter().product();
    let source = Source::new(call, call.x(0)?, outside, corners)?;
    let grid = ops.reshape(call.x_as(1, DType::F32)?, &[of_grid[0] as isize, points as isize, rank as isize])?;
    let mut at = Vec::new();
    for axis in 0..rank {
        // The grid lists the last axis first.
        let i = (rank - 1 - axis) as isize;
        let unit = ops.squeeze(ops.slice(grid, 2, i, i + 1)?, 2)?;
        let n = source.spatial[axis] as f32;
        let place = match corners {
            true => ops.value((unit + 1.0) * ((n - 1.0) / 2.0))?,
            false => ops.value((unit + 1.0) * (n / 2.0) - 0.5)?,
        };
        at.push(place);
    }
    let nearest = call.text("mode", "linear") == "nearest";
    for (axis, at) in at.iter_mut().enumerate() {
        if nearest {
            *at = ops.round(*at)?;
        }
        *at = source.inside(call, *at, axis)?;
    }
    let value = match call.text("mode", "linear") {
        "nearest" => {
            let whole = at.iter().map(|&at| Ok(ops.round(at)?)).collect::<Result<Vec<_>, Stop>>()?;
            source.pick(call, &whole, None)?
        }
        "linear" | "bilinear" => source.linear(call, &at)?,
        "cubic" | "bicubic" => source.cubic(call, &at)?,
        other => return failed(format!("{other:?} is not a mode")),
    };
    let to: Vec<isize> = shape[..2].iter().chain(&of_grid[1..=rank]).map(|&n| n as isize).collect();
    one(ops.cast(ops.reshape(value, &to)?, device_type(element)?)?, element)
}

/// Each cell of a region is the mean, or the largest, of samples in it. Without a sampling ratio their number depends on the
/// region's size, so the host must know the regions.
fn roi_align<'a>(call: &Call<'a>) -> Outputs<'a> {
    const MOST_SAMPLES: usize = 64;
    let ops = call.ops;
    let (shape, element) = (call.shape_of(0)?, call.type_of(0)?);
    let &[_, channels, height, width] = &shape[..] else { return failed(format!("{shape} is not a picture")) };
    let out = sizes(&[call.int("output_height", 1), call.int("output_width", 1)])?;
    let scale = call.float("spatial_scale", 1.0);
    let default = if call.version < 16 { "output_half_pixel" } else { "half_pixel" };
    let half = call.text("coordinate_transformation_mode", default) == "half_pixel";
    let largest = match call.text("mode", "avg") {
        "avg" => false,
        "max" => true,
        other => return failed(format!("{other:?} is not a mode")),
    };
    let regions = call.shape_of(1)?.first().copied().unwrap_or(0);
    let ratio = usize::try_from(call.int("sampling_ratio", 0)).unwrap_or(0);
    // Samples per cell along both axes, for each region.
    let counts: [Vec<f32>; 2] = match ratio {
        0 => {
            let corners = call.host_floats(1)?.unwrap_or_default();
            let count = |from: usize, to: usize, cells: usize| -> Vec<f32> {
                let size = |roi: &[f64]| {
                    let size = (roi[to] - roi[from]) * f64::from(scale);
                    let size = if half { size } else { size.max(1.0) };
                    (size / cells as f64).ceil().max(1.0) as f32
                };
                corners.chunks_exact(4).map(size).collect()
            };
            [count(1, 3, out[0]), count(0, 2, out[1])]
        }
        ratio => [vec![ratio as f32; regions], vec![ratio as f32; regions]],
    };
    let most: Vec<usize> = counts.iter().map(|list| list.iter().fold(1.0f32, |a, &b| a.max(b)) as usize).collect();
    if most.iter().any(|&n| n > MOST_SAMPLES) {
        return super::refuse(format!("{most:?} samples per cell of a region"));
    }
    let rois = call.x_as(1, DType::F32)?;
    let limits = [height, width];
    // Per axis: positions `[regions, cells, samples]`, and whether each sample exists.
    let (mut at, mut counted) = (Vec::new(), Vec::new());
    for axis in 0..2 {
        let edge = |i: isize| ops.reshape(ops.slice(rois, 1, i, i + 1)?, &[-1, 1, 1]);
        let offset = if half { 0.5 } else { 0.0 };
        let (from, to) = (edge(1 - axis as isize)?, edge(3 - axis as isize)?);
        let (from, to) = (ops.value(from * scale - offset)?, ops.value(to * scale - offset)?);
        let size = ops.sub(to, from)?;
        let size = if half { size } else { ops.max(size, 1.0)? };
        let cell = ops.div(size, out[axis] as f32)?;
        let count = call.constant(HostTensor::from_f32(&counts[axis], [regions, 1, 1])?)?;
        let cells = ops.cast(ops.reshape(call.steps(out[axis])?, &[1, -1, 1])?, DType::F32)?;
        let samples = ops.cast(ops.reshape(call.steps(most[axis])?, &[1, 1, -1])?, DType::F32)?;
        let within = ops.div(samples + 0.5, count)?;
        at.push(ops.add(from, ops.mul(ops.add(cells, within)?, cell)?)?);
        counted.push((ops.less(samples, count)?, count));
    }
    // All pairs of rows and columns: `[regions, rows, columns, samples, samples]`.
    let full = Shape::from([regions, out[0], out[1], most[0], most[1]]);
    let spread = |value: TensorValue<'a>, axis: usize| -> Result<TensorValue<'a>, Stop> {
        let value = if axis == 0 { ops.unsqueeze(value, &[2, 4])? } else { ops.unsqueeze(value, &[1, 3])? };
        Ok(ops.broadcast_to(value, full.clone())?)
    };
    let mut alive = ops.and(spread(counted[0].0, 0)?, spread(counted[1].0, 1)?)?;
    let mut neighbours = Vec::new();
    for axis in 0..2 {
        let (place, n) = (spread(at[axis], axis)?, limits[axis] as f64);
        // Samples further than one element outside are 0; nearer ones are moved to the edge.
        let near = ops.and(ops.greater_equal(place, -1.0)?, ops.less_equal(place, n)?)?;
        alive = ops.and(alive, near)?;
        let place = ops.clamp(place, 0.0, n - 1.0)?;
        let low = ops.floor(place)?;
        let fraction = ops.sub(place, low)?;
        let high = ops.min(ops.value(low + 1.0)?, n - 1.0)?;
        neighbours.push([(low, ops.value(fraction * -1.0 + 1.0)?), (high, fraction)]);
    }
    let alive = ops.cast(alive, DType::F32)?;
    // Pictures follow one another along the gathered axis: `[c, n · h · w]`.
    let flat = ops.reshape(ops.permute(call.x_as(0, DType::F32)?, &[1, 0, 2, 3])?, &[channels as isize, -1])?;
    let base = ops.reshape(ops.mul(call.x_as(2, DType::I32)?, (height * width) as u32)?, &[-1, 1, 1, 1, 1])?;
    let mut result: Option<TensorValue> = None;
    for (row, of_row) in neighbours[0] {
        for (column, of_column) in neighbours[1] {
            let place = ops.cast(ops.value(row * width as f32 + column)?, DType::I32)?;
            let values = ops.gather(flat, ops.add(place, base)?, 1)?;
            let part = ops.mul(values, ops.mul(ops.mul(of_row, of_column)?, alive)?)?;
            result = Some(match result {
                None => part,
                Some(before) if largest => ops.max(before, part)?,
                Some(before) => ops.add(before, part)?,
            });
        }
    }
    let Some(samples) = result else { return failed("no samples") };
    // `[c, regions, rows, columns, samples, samples]`.
    let value = if largest {
        let counted = ops.and(spread(counted[0].0, 0)?, spread(counted[1].0, 1)?)?;
        let samples = ops.select(counted, samples, f64::NEG_INFINITY)?;
        ops.max_of(samples, Axes::of([-2isize, -1]))?
    } else {
        let count = ops.reshape(ops.mul(counted[0].1, counted[1].1)?, &[-1, 1, 1])?;
        ops.div(ops.sum(samples, Axes::of([-2isize, -1]))?, count)?
    };
    one(ops.cast(ops.permute(value, &[1, 0, 2, 3])?, device_type(element)?)?, element)
}

/// Every element of the window is sampled at its own offset; the samples are columns of a matrix product.
fn deform_conv<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let (shape, of_weight, of_offset) = (call.shape_of(0)?, call.shape_of(1)?, call.shape_of(2)?);
    let element = call.type_of(0)?;
    let rank = shape.rank().saturating_sub(2);
    if rank == 0 || of_weight.rank() != rank + 2 || of_offset.rank() != rank + 2 {
        return failed(format!("{shape}, {of_weight} and {of_offset} do not fit"));
    }
    let list = |name: &str, count: usize, value: i64| -> Result<Vec<i64>, Stop> {
        let list = call.ints(name).map_or_else(|| vec![value; count], <[i64]>::to_vec);
        if list.len() == count { Ok(list) } else { failed(format!("{name} has {} numbers", list.len())) }
    };
    let (strides, dilations, pads) =
        (list("strides", rank, 1)?, list("dilations", rank, 1)?, list("pads", 2 * rank, 0)?);
    let groups = usize::try_from(call.int("group", 1)).unwrap_or(0);
    let offset_groups = usize::try_from(call.int("offset_group", 1)).unwrap_or(0);
    let (batch, channels, outputs) = (shape[0], shape[1], of_weight[0]);
    if groups == 0
        || offset_groups == 0
        || channels % groups != 0
        || outputs % groups != 0
        || channels % offset_groups != 0
    {
        return failed(format!("{channels} channels in {groups} groups and {offset_groups} groups of offsets"));
    }
    let (kernel, out) = (&of_weight[2..], &of_offset[2..]);
    let (taps, points): (usize, usize) = (kernel.iter().product(), out.iter().product());
    let total = taps.saturating_mul(points);
    if total > super::super::host_ops::MAX_ELEMENTS {
        return super::refuse(format!("a deformed window of {taps} elements at {points} places"));
    }
    // `[n · offset groups, taps, axes, points]`.
    let rows = batch * offset_groups;
    let offsets =
        ops.reshape(call.x_as(2, DType::F32)?, &[rows as isize, taps as isize, rank as isize, points as isize])?;
    let x = ops.reshape(
        call.x_as(0, DType::F32)?,
        &[
            &[rows as isize, (channels / offset_groups) as isize][..],
            &shape[2..].iter().map(|&n| n as isize).collect::<Vec<_>>(),
        ]
        .concat(),
    )?;
    let source = Source::new(call, x, Outside::Zeros, false)?;
    let mut at = Vec::new();
    for axis in 0..rank {
        let inner = |sizes: &[usize]| sizes[axis + 1..].iter().product::<usize>();
        let mut base = Vec::with_capacity(total);
        for tap in 0..taps {
            for point in 0..points {
                let (tap, point) = (tap / inner(kernel) % kernel[axis], point / inner(out) % out[axis]);
                base.push((point as i64 * strides[axis] - pads[axis] + tap as i64 * dilations[axis]) as f32);
            }
        }
        let base = call.constant(HostTensor::from_f32(&base, [1, taps, points])?)?;
        let moved = ops.squeeze(ops.slice(offsets, 2, axis as isize, axis as isize + 1)?, 2)?;
        at.push(ops.reshape(ops.add(moved, base)?, &[rows as isize, total as isize])?);
    }
    // `[n · offset groups, channels, taps · points]`.
    let mut columns = source.linear(call, &at)?;
    if call.has(4) {
        let mask = ops.reshape(call.x_as(4, DType::F32)?, &[rows as isize, 1, total as isize])?;
        columns = ops.mul(columns, mask)?;
    }
    let (of_group, per_group) = (channels / groups * taps, outputs / groups);
    let columns = ops.reshape(columns, &[batch as isize, groups as isize, of_group as isize, points as isize])?;
    let weight = ops.reshape(call.x_as(1, DType::F32)?, &[groups as isize, per_group as isize, of_group as isize])?;
    let product = ops.matmul(weight, columns)?;
    let to: Vec<isize> = [batch, outputs].iter().chain(out).map(|&n| n as isize).collect();
    let mut y = ops.reshape(product, &to)?;
    if call.has(3) {
        let mut sizes = vec![1; rank + 2];
        sizes[1] = outputs as isize;
        y = ops.add(y, ops.reshape(call.x_as(3, DType::F32)?, &sizes)?)?;
    }
    one(ops.cast(y, device_type(element)?)?, element)
}
