//! Resampling of axes, as ONNX defines it. Tables of positions and weights are computed here and are part of the plan.

use super::part::Part;
use super::{Arg, Recorder, TensorAxis, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{DType, NodeId, Shape, Truth};
use crate::tensor::pack;

/// The new sizes of the resized axes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResizeTo<'a> {
    /// One size for each axis.
    Sizes(&'a [usize]),
    /// One factor for each axis. The new size is ⌊old size · factor⌋. Positions are computed with the factor.
    Scales(&'a [f32]),
    /// One size and one factor for each axis. Positions are computed with the factor.
    ScaledSizes {
        /// One size for each axis.
        sizes: &'a [usize],
        /// One factor for each axis.
        scales: &'a [f32],
    },
    /// Sizes that cover only a region of each axis. A region may extend beyond the axis. Positions are spread evenly
    /// over it; the settings' coordinates are not used.
    Region {
        /// One size for each axis.
        sizes: &'a [usize],
        /// The first and the last position: 0 is the first element of the axis, 1 the last.
        regions: &'a [[f32; 2]],
        /// The value of positions outside the axis.
        outside: f64,
    },
}

/// How an output element is computed from input elements.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum ResizeMode {
    /// It is one of them.
    Nearest(ResizeRounding),
    /// From the two around it, weighted by distance.
    #[doc(alias = "bilinear")]
    #[default]
    Linear,
    /// From the four around it, with a cubic of coefficient `a` (−0.75 in ONNX and PyTorch, −0.5 in Pillow).
    #[doc(alias = "bicubic")]
    Cubic {
        /// The coefficient.
        a: f32,
    },
}

/// Which of two neighbours [`ResizeMode::Nearest`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ResizeRounding {
    /// The nearer one. Halves are rounded down.
    #[default]
    HalfDown,
    /// The nearer one. Halves are rounded up.
    HalfUp,
    /// The lower one.
    Floor,
    /// The upper one.
    Ceil,
}

/// How an output position `x` is mapped to an input position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ResizeCoordinates {
    /// `(x + 0.5) / scale − 0.5`.
    #[default]
    HalfPixel,
    /// `HalfPixel`, but a single output position is mapped to the first input position.
    PytorchHalfPixel,
    /// The first and last positions of input and output coincide.
    AlignCorners,
    /// `x / scale`.
    Asymmetric,
    /// `HalfPixel`, centred if the factor does not give a whole size.
    HalfPixelSymmetric,
}

/// Settings of [`resize`](TensorCommands::resize).
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct ResizeSettings {
    /// How elements are combined. Linear by default.
    pub mode: ResizeMode,
    /// How positions are mapped. Half-pixel by default.
    pub coordinates: ResizeCoordinates,
    /// Whether a smaller output uses a wider filter, so that no element is skipped.
    pub antialias: bool,
    /// Whether positions outside the input have no weight. Otherwise the edge element is used for them.
    pub exclude_outside: bool,
}

/// One resized axis.
#[derive(Clone, Copy)]
struct Resampling {
    input: usize,
    out: usize,
    scale: f64,
    /// The output size before rounding.
    width: f64,
    /// The region of the input that the output covers, if it is not all: 0 is the first element, 1 the last.
    region: Option<[f64; 2]>,
}

impl Resampling {
    /// The input position of output position `x`.
    fn origin(self, x: usize, coordinates: ResizeCoordinates) -> f64 {
        let Self { input, out, scale, width, region } = self;
        let (x, input) = (x as f64, input as f64);
        if let Some([start, end]) = region {
            let last = input - 1.0;
            return if out > 1 {
                start * last + x * (end - start) * last / (out as f64 - 1.0)
            } else {
                0.5 * (start + end) * last
            };
        }
        let half_pixel = (x + 0.5) / scale - 0.5;
        match coordinates {
            ResizeCoordinates::AlignCorners if width == 1.0 => 0.0,
            ResizeCoordinates::AlignCorners => x * (input - 1.0) / (width - 1.0),
            ResizeCoordinates::Asymmetric => x / scale,
            ResizeCoordinates::PytorchHalfPixel if width == 1.0 => -0.5,
            ResizeCoordinates::PytorchHalfPixel | ResizeCoordinates::HalfPixel => half_pixel,
            ResizeCoordinates::HalfPixelSymmetric => input / 2.0 * (1.0 - out as f64 / width) + half_pixel,
        }
    }

    /// The element before an input position and the distance from it, in (0, 1]. A whole position has distance 1.
    fn base(origin: f64) -> (isize, f64) {
        let base = origin.ceil() - 1.0;
        (base as isize, origin - base)
    }

    /// Whether an output position is outside the input.
    fn is_outside(self, x: usize) -> bool {
        let origin = self.origin(x, ResizeCoordinates::default());
        !(0.0..=self.input as f64 - 1.0).contains(&origin)
    }

    /// The element that each output position takes.
    fn nearest(self, rounding: ResizeRounding, coordinates: ResizeCoordinates) -> Vec<i32> {
        (0..self.out)
            .map(|x| {
                let (base, ratio) = Self::base(self.origin(x, coordinates));
                let up = ratio == 1.0
                    || match rounding {
                        ResizeRounding::HalfDown => ratio > 0.5,
                        ResizeRounding::HalfUp => ratio >= 0.5,
                        ResizeRounding::Floor => false,
                        ResizeRounding::Ceil => true,
                    };
                (base + isize::from(up)).clamp(0, self.input as isize - 1) as i32
            })
            .collect()
    }

    /// Entries for each output position in the tables of a resampling.
    fn table_width(self, settings: &ResizeSettings) -> usize {
        let reach = match settings.mode {
            ResizeMode::Nearest(_) => return 1,
            ResizeMode::Linear => 1.0,
            ResizeMode::Cubic { .. } => 2.0,
        };
        if self.out == 0 { 0 } else { self.first_tap(reach, settings).1 }
    }

    /// The position of the first tap, and the number of taps, of a filter that extends `reach` elements to each side.
    fn first_tap(self, reach: f64, settings: &ResizeSettings) -> (isize, usize) {
        // A wider filter for a smaller output, so that every input element contributes. An output of at least one element
        // is not smaller than by the size of the input.
        let stretch = if settings.antialias { self.scale.clamp(1.0 / self.input.max(1) as f64, 1.0) } else { 1.0 };
        let first = (-reach / stretch).floor() as isize + 1;
        (first, (2 - 2 * first) as usize)
    }

    /// Tap tables `[out, taps]` of a filter that extends `reach` elements to each side.
    fn taps(self, reach: f64, filter: impl Fn(f64) -> f64, settings: &ResizeSettings) -> (Vec<i32>, Vec<f32>) {
        if self.out == 0 {
            return (Vec::new(), Vec::new());
        }
        let stretch = if settings.antialias { self.scale.min(1.0) } else { 1.0 };
        let (first, taps) = self.first_tap(reach, settings);
        let (mut positions, mut weights) = (Vec::with_capacity(self.out * taps), Vec::with_capacity(self.out * taps));
        let mut row = vec![0.0; taps];
        for x in 0..self.out {
            let (base, ratio) = Self::base(self.origin(x, settings.coordinates));
            for (tap, weight) in row.iter_mut().enumerate() {
                let offset = first + tap as isize;
                let inside = (0..self.input as isize).contains(&(base + offset));
                *weight =
                    if settings.exclude_outside && !inside { 0.0 } else { filter((offset as f64 - ratio) * stretch) };
                positions.push((base + offset).clamp(0, self.input as isize - 1) as i32);
            }
            let sum: f64 = row.iter().sum();
            weights.extend(row.iter().map(|&weight| (weight / sum) as f32));
        }
        (positions, weights)
    }
}

/// The cubic convolution kernel.
fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}

/// Resizing.
impl TensorCommands<'_, '_> {
    /// Resamples axes one after the other. Nearest takes any element type, the other modes take floats.
    #[doc(alias = "interpolate")]
    #[doc(alias = "upsample")]
    #[track_caller]
    pub fn resize<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        axes: &[isize],
        to: ResizeTo,
        settings: ResizeSettings,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "resize";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.arg(OP, x)?;
        rec.resize_arg(OP, x, axes, to, settings)
    }

    /// Resizes `[n, c, h, w]` to `[n, c, …size]`, linearly with half-pixel positions.
    #[track_caller]
    pub fn resize2d_bilinear<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        size: [usize; 2],
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "resize2d_bilinear";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.image_arg(OP, x)?;
        rec.resize_arg(OP, x, &[2, 3], ResizeTo::Sizes(&size), ResizeSettings::default())
    }

    /// Resizes `[n, c, h, w]` to `[n, c, …size]`. Each element is the one at `⌊x / scale⌋`.
    #[track_caller]
    pub fn resize2d_nearest<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        size: [usize; 2],
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "resize2d_nearest";
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.image_arg(OP, x)?;
        let settings = ResizeSettings {
            mode: ResizeMode::Nearest(ResizeRounding::Floor),
            coordinates: ResizeCoordinates::Asymmetric,
            ..ResizeSettings::default()
        };
        rec.resize_arg(OP, x, &[2, 3], ResizeTo::Sizes(&size), settings)
    }
}

impl<'a> Recorder<'a> {
    /// Looks up an operand with four axes.
    fn image_arg(&mut self, op: &'static str, x: TensorOperand<'_>) -> OpResult<Arg> {
        let x = self.arg(op, x)?;
        if self.part_ref(x).shape(x.node).rank() == 4 {
            Ok(x)
        } else {
            Err(self.shape_error(op, &[x], "it must be [n, c, h, w]"))
        }
    }

    fn resize_arg(
        &mut self,
        op: &'static str,
        x: Arg,
        axes: &[isize],
        to: ResizeTo,
        settings: ResizeSettings,
    ) -> OpResult<TensorValue<'a>> {
        let count = match to {
            ResizeTo::Sizes(sizes) => sizes.len(),
            ResizeTo::Scales(scales) => scales.len(),
            ResizeTo::ScaledSizes { sizes, scales } if sizes.len() != scales.len() => {
                let reason = format!("{} sizes and {} scales were given", sizes.len(), scales.len());
                return Err(OpError::Argument { op, reason });
            }
            ResizeTo::ScaledSizes { sizes, .. } => sizes.len(),
            ResizeTo::Region { sizes, regions, .. } if sizes.len() != regions.len() => {
                let reason = format!("{} sizes and {} regions were given", sizes.len(), regions.len());
                return Err(OpError::Argument { op, reason });
            }
            ResizeTo::Region { sizes, .. } => sizes.len(),
        };
        if count != axes.len() {
            let reason = format!("{count} sizes were given for {} axes", axes.len());
            return Err(OpError::Argument { op, reason });
        }
        if !matches!(settings.mode, ResizeMode::Nearest(_)) && !self.dtype_of_arg(x).is_float() {
            return Err(self.type_error(op, &[x], "only nearest takes other types than floats; cast first"));
        }
        // Only checks the axes; they are resized in the caller's order.
        self.axes(op, x, axes.into())?;
        let shape = self.shape_of_arg(x);
        let mut node = x.node;
        for (i, &axis) in axes.iter().enumerate() {
            let axis = self.axis(op, x, TensorAxis(axis))?;
            let input = shape[axis];
            let resampling = match to {
                ResizeTo::Sizes(sizes) => {
                    let out = sizes[i];
                    Resampling { input, out, scale: out as f64 / input as f64, width: out as f64, region: None }
                }
                ResizeTo::Scales(scales) | ResizeTo::ScaledSizes { scales, .. } => {
                    let scale = scales[i];
                    if !(scale > 0.0 && scale.is_finite()) {
                        return Err(OpError::Argument { op, reason: format!("{scale} is not a scale") });
                    }
                    let out = match to {
                        ResizeTo::ScaledSizes { sizes, .. } => sizes[i],
                        _ => (input as f32 * scale).floor() as usize,
                    };
                    let scale = f64::from(scale);
                    Resampling { input, out, scale, width: input as f64 * scale, region: None }
                }
                ResizeTo::Region { sizes, regions, .. } => {
                    let (out, [start, end]) = (sizes[i], regions[i]);
                    if !(start.is_finite() && end.is_finite()) {
                        return Err(OpError::Argument { op, reason: format!("{start} to {end} is not a region") });
                    }
                    let region = Some([f64::from(start), f64::from(end)]);
                    Resampling { input, out, scale: out as f64 / input as f64, width: out as f64, region }
                }
            };
            if input == 0 && resampling.out > 0 {
                return Err(self.shape_error(op, &[x], format!("axis {axis} is empty")));
            }
            if resampling.out > i32::MAX as usize {
                let reason = format!("axis {axis} cannot have {} elements", resampling.out);
                return Err(OpError::Argument { op, reason });
            }
            // Before tables of that size are made.
            let mut resized = self.part_ref(x).shape(node).clone();
            resized.dims_mut()[axis] = resampling.out;
            self.check_size(op, &resized)?;
            self.check_table(op, resampling.out, resampling.table_width(&settings))?;
            if resampling.out == input && resampling.scale == 1.0 && resampling.region.is_none() {
                continue;
            }
            node = self.part(x).resample(node, axis, resampling, &settings);
            if let ResizeTo::Region { outside, .. } = to {
                node = self.part(x).hide_outside(node, axis, resampling, outside);
            }
        }
        self.value(x.backend, node)
    }
}

impl Part {
    fn resample(&mut self, x: NodeId, axis: usize, resampling: Resampling, settings: &ResizeSettings) -> NodeId {
        let (positions, weights) = match settings.mode {
            ResizeMode::Nearest(rounding) => {
                let table = resampling.nearest(rounding, settings.coordinates);
                return self.gather_table(x, axis, &table);
            }
            ResizeMode::Linear => resampling.taps(1.0, |x| (1.0 - x.abs()).max(0.0), settings),
            ResizeMode::Cubic { a } => resampling.taps(2.0, |x| cubic(x, f64::from(a)), settings),
        };
        self.taps(x, axis, resampling.out, &positions, &weights)
    }

    /// Writes a number at output positions outside the input.
    fn hide_outside(&mut self, x: NodeId, axis: usize, resampling: Resampling, value: f64) -> NodeId {
        let outside: Vec<Truth> = (0..resampling.out).map(|at| resampling.is_outside(at).into()).collect();
        if !outside.iter().any(|outside| outside.get()) {
            return x;
        }
        let (shape, dtype) = (self.shape(x).clone(), self.dtype(x));
        let along = Shape::new((0..shape.rank()).map(|i| if i == axis { shape[i] } else { 1 }));
        let mask = self.constant(pack(&outside), along, DType::Bool);
        let mask = self.broadcast(mask, &shape);
        let value = self.full(value, &shape, dtype);
        self.select(mask, value, x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(input: usize, out: usize) -> Resampling {
        Resampling { input, out, scale: out as f64 / input as f64, width: out as f64, region: None }
    }

    #[test]
    fn linear_doubling_uses_quarters() {
        let (positions, weights) = sized(2, 4).taps(1.0, |x| (1.0 - x.abs()).max(0.0), &ResizeSettings::default());
        assert_eq!(positions, [0, 0, 0, 1, 0, 1, 1, 1]);
        assert_eq!(weights, [0.25, 0.75, 0.75, 0.25, 0.25, 0.75, 0.75, 0.25]);
    }

    #[test]
    fn a_region_spans_its_part_and_knows_what_is_outside() {
        let region = Resampling { region: Some([0.5, 1.5]), ..sized(5, 3) };
        let origins: Vec<f64> = (0..3).map(|x| region.origin(x, ResizeCoordinates::default())).collect();
        assert_eq!(origins, [2.0, 4.0, 6.0]);
        assert_eq!([0, 1, 2].map(|x| region.is_outside(x)), [false, false, true]);
    }

    #[test]
    fn antialias_widens_the_filter() {
        let settings = ResizeSettings { antialias: true, ..ResizeSettings::default() };
        let (_, weights) = sized(8, 4).taps(1.0, |x| (1.0 - x.abs()).max(0.0), &settings);
        assert_eq!(weights.len() / 4, 4);
        assert!(weights.chunks(4).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-6));
    }

    #[test]
    fn nearest_rounds_as_asked() {
        let floor = sized(2, 4).nearest(ResizeRounding::Floor, ResizeCoordinates::Asymmetric);
        assert_eq!(floor, [0, 0, 1, 1]);
        let ceil = sized(2, 4).nearest(ResizeRounding::Ceil, ResizeCoordinates::Asymmetric);
        assert_eq!(ceil, [0, 1, 1, 1]);
    }
}
