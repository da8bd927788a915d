//! Sampling at positions that are data: grids, regions of interest and deformable convolutions.

use super::conv::SpatialAxis;
use super::{Arg, ConvSettings, OptionalOperand, Part, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{
    BinaryOp, DType, InnerOp, NodeId, Op, RoiKind, RoiPooling, SampleCoordinates, SampleFilter, SamplePadding,
    Sampling, Shape,
};
use crate::tensor::pack;

/// Settings of [`grid_sample`](TensorCommands::grid_sample).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SampleSettings {
    /// How the elements around a position are combined. Linear by default.
    pub filter: SampleFilter,
    /// What is outside the picture. Zeros by default.
    pub padding: SamplePadding,
    /// Whether −1 and 1 are the centres of the first and the last element, and not their outer edges.
    pub align_corners: bool,
}

/// Settings of [`roi_align`](TensorCommands::roi_align).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoiAlignSettings {
    /// Height and width of the result. 1 by default.
    pub size: [usize; 2],
    /// Factor from the coordinates of regions to those of the picture. 1 by default.
    pub scale: f32,
    /// Samples along each axis of a cell, at most 128. 0, the default, means as many as the cell has elements.
    pub samples: u32,
    /// Whether the centre of the first element is at 0.5. True by default.
    pub half_pixel: bool,
    /// Keeps the largest sample and not the average.
    pub max: bool,
}

impl Default for RoiAlignSettings {
    fn default() -> Self {
        Self { size: [1, 1], scale: 1.0, samples: 0, half_pixel: true, max: false }
    }
}

/// Sampling at positions that are data.
impl TensorCommands<'_, '_> {
    /// Samples `x [n, c, h, w]` at `grid [n, …, 2]`, or `x [n, c, d, h, w]` at `grid [n, …, 3]`. The result is `[n, c, …]`.
    ///
    /// The last axis of the grid is x, y and z. −1 and 1 are the edges of the picture.
    #[track_caller]
    pub fn grid_sample<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        grid: impl Into<TensorOperand<'a>>,
        settings: SampleSettings,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "grid_sample";
        let (x, grid) = (x.into(), grid.into());
        let rec = &mut self.recorder();
        let mut args = [rec.float_arg(OP, x)?, rec.float_arg(OP, grid)?];
        let backend = rec.same_backend(OP, &mut args)?;
        let [x, grid] = args;
        let (of_x, of_grid) = (rec.shape_of_arg(x), rec.shape_of_arg(grid));
        let axes = of_x.rank().saturating_sub(2);
        let fits =
            matches!(axes, 2 | 3) && of_grid.rank() >= 2 && of_grid[0] == of_x[0] && of_grid.last() == Some(&axes);
        if !fits {
            let reason = "they must be [n, c, h, w] and [n, …, 2], or [n, c, d, h, w] and [n, …, 3]";
            return Err(rec.shape_error(OP, &[x, grid], reason));
        }
        if of_x[2..].contains(&0) && of_grid.elements() > 0 {
            return Err(rec.shape_error(OP, &[x], "a spatial axis is empty"));
        }
        let SampleSettings { filter, padding, align_corners } = settings;
        let coordinates = if align_corners { SampleCoordinates::Centres } else { SampleCoordinates::Edges };
        let inner = &of_grid[1..of_grid.rank() - 1];
        let shape = Shape::new(of_x[..2].iter().chain(inner).copied());
        let dtype = rec.dtype_of_arg(x);
        let points = Shape::from([of_x[0], inner.iter().product(), axes]);
        let part = rec.part(x);
        let points = part.reshape(grid.node, &points);
        let node = part.sample(x.node, points, Sampling { filter, padding, coordinates }, dtype);
        let node = part.reshape(node, &shape);
        rec.value(backend, node)
    }

    /// The grid of an affine map for [`grid_sample`](Self::grid_sample): `theta [n, 2, 3]` and a size `[h, w]` give
    /// `[n, h, w, 2]`; `theta [n, 3, 4]` and `[d, h, w]` give `[n, d, h, w, 3]`.
    #[track_caller]
    pub fn affine_grid<'a>(
        &'a self,
        theta: impl Into<TensorOperand<'a>>,
        size: &[usize],
        align_corners: bool,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "affine_grid";
        let theta = theta.into();
        let rec = &mut self.recorder();
        let theta = rec.float_arg(OP, theta)?;
        let (of_theta, axes) = (rec.shape_of_arg(theta), size.len());
        let n = match of_theta[..] {
            [n, rows, columns] if matches!(axes, 2 | 3) && rows == axes && columns == axes + 1 => n,
            _ => {
                let reason = "it must be [n, 2, 3] for two sizes, or [n, 3, 4] for three";
                return Err(rec.shape_error(OP, &[theta], reason));
            }
        };
        let dtype = rec.dtype_of_arg(theta);
        let shape = Shape::new([n].into_iter().chain(size.iter().copied()).chain([axes]));
        let part = rec.part(theta);
        let wide = part.cast(theta.node, DType::F32);
        let column = |part: &mut Part, i: usize| {
            let column = part.slice(wide, 2, i, 1, 1);
            let spread = Shape::new([n].into_iter().chain(core::iter::repeat_n(1, axes)).chain([axes]));
            part.reshape(column, &spread)
        };
        let mut sum = column(part, axes);
        for i in 0..axes {
            // Column 0 belongs to x, the last axis of the picture.
            let axis = axes - 1 - i;
            let count = size[axis];
            let positions = part.iota(count);
            let positions = part.cast(positions, DType::F32);
            let (step, start) = match align_corners {
                true if count > 1 => (2.0 / (count - 1) as f32, -1.0),
                true => (0.0, -1.0),
                false => (2.0 / count.max(1) as f32, 1.0 / count.max(1) as f32 - 1.0),
            };
            let positions = part.scale_shift(positions, step, start);
            let mut along = Shape::new(core::iter::repeat_n(1, axes + 2));
            along.dims_mut()[axis + 1] = count;
            let positions = part.reshape(positions, &along);
            let factor = column(part, i);
            let product = part.binary_broadcast(BinaryOp::Mul, factor, positions);
            sum = part.binary_broadcast(BinaryOp::Add, product, sum);
        }
        let sum = part.broadcast(sum, &shape);
        let node = part.cast(sum, dtype);
        rec.value(theta.backend, node)
    }

    /// Pools `regions [r, 4]` of `x [n, c, h, w]` to `[r, c, …size]`, with samples between the elements.
    ///
    /// A region is left, top, right, bottom. `pictures [r]` are integers that tell which picture each region is in. One that
    /// does not exist is clamped at run time and reported.
    #[track_caller]
    pub fn roi_align<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        regions: impl Into<TensorOperand<'a>>,
        pictures: impl Into<TensorOperand<'a>>,
        settings: RoiAlignSettings,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "roi_align";
        let (x, regions, pictures) = (x.into(), regions.into(), pictures.into());
        let rec = &mut self.recorder();
        let mut args = [rec.float_arg(OP, x)?, rec.float_arg(OP, regions)?, rec.index_arg(OP, pictures)?];
        rec.same_backend(OP, &mut args)?;
        let [x, regions, pictures] = args;
        let RoiAlignSettings { size, scale, samples, half_pixel, max } = settings;
        let kind = RoiKind::Samples { max, samples, half_pixel };
        rec.roi_op(OP, x, regions, pictures, RoiPooling { kind, size, scale: scale.to_bits() })
    }

    /// The largest elements of the cells of `regions [r, 5]` of `x [n, c, h, w]`, as `[r, c, …size]`.
    ///
    /// A region is the number of its picture, left, top, right, bottom. `scale` is the factor from the coordinates of
    /// regions to those of the picture. They are rounded to whole elements.
    #[track_caller]
    pub fn max_roi_pool<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        regions: impl Into<TensorOperand<'a>>,
        size: [usize; 2],
        scale: f32,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "max_roi_pool";
        let (x, regions) = (x.into(), regions.into());
        let rec = &mut self.recorder();
        let mut args = [rec.float_arg(OP, x)?, rec.float_arg(OP, regions)?];
        rec.same_backend(OP, &mut args)?;
        let [x, regions] = args;
        let &[count, 5] = &rec.shape_of_arg(regions)[..] else {
            return Err(rec.shape_error(OP, &[x, regions], "regions must be [r, 5]"));
        };
        let part = rec.part(x);
        let pictures = part.slice(regions.node, 1, 0, 1, 1);
        let pictures = part.cast(pictures, DType::I32);
        let pictures = Arg { node: part.reshape(pictures, &Shape::from([count])), ..regions };
        let bounds = Arg { node: part.slice(regions.node, 1, 1, 4, 1), ..regions };
        rec.roi_op(OP, x, bounds, pictures, RoiPooling { kind: RoiKind::Elements, size, scale: scale.to_bits() })
    }

    /// A convolution of `x [n, c, h, w]` with `weight [out, c / groups, kh, kw]` whose elements are displaced by
    /// `offset [n, offset groups · kh · kw · 2, oh, ow]` (down, then right) and scaled by
    /// `mask [n, offset groups · kh · kw, oh, ow]`. The number of offset groups follows from the shape of the offset.
    #[track_caller]
    pub fn deform_conv2d<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        weight: impl Into<TensorOperand<'a>>,
        offset: impl Into<TensorOperand<'a>>,
        bias: impl OptionalOperand<'a>,
        mask: impl OptionalOperand<'a>,
        settings: ConvSettings<2>,
    ) -> OpResult<TensorValue<'a>> {
        let operands = [x.into(), weight.into(), offset.into()];
        let given = [bias.optional(), mask.optional()];
        self.recorder().deform_conv("deform_conv2d", operands, given, settings)
    }
}

impl Part {
    /// `x [n, c, …]` of two or three spatial axes at `points [n, count, axes]`, as `[n, c, count]`.
    fn sample(&mut self, x: NodeId, points: NodeId, sampling: Sampling, dtype: DType) -> NodeId {
        let (of_x, of_points) = (self.shape(x).clone(), self.shape(points).clone());
        let x = self.lift(x);
        let shape = Shape::from([of_x[0], of_x[1], of_points[1]]);
        self.push(Op::Sample { sampling }, &[x, points], shape, dtype, &[])
    }
}

impl<'a> Recorder<'a> {
    fn roi_op(
        &mut self,
        op: &'static str,
        x: Arg,
        regions: Arg,
        pictures: Arg,
        pooling: RoiPooling,
    ) -> OpResult<TensorValue<'a>> {
        let (of_x, of_regions) = (self.shape_of_arg(x), self.shape_of_arg(regions));
        let (&[n, c, h, w], &[count, 4]) = (&of_x[..], &of_regions[..]) else {
            return Err(self.shape_error(op, &[x, regions], "they must be [n, c, h, w] and [r, 4]"));
        };
        if self.shape_of_arg(pictures)[..] != [count] {
            return Err(self.shape_error(op, &[regions, pictures], format!("the pictures must be [{count}]")));
        }
        if count > 0 && [n, h, w].contains(&0) {
            return Err(self.shape_error(op, &[x], "there is nothing to pool"));
        }
        let [height, width] = pooling.size;
        if height == 0 || width == 0 {
            return Err(OpError::Argument { op, reason: "the size must be at least 1".to_owned() });
        }
        let dtype = self.dtype_of_arg(x);
        let part = self.part(x);
        let pictures = part.cast(pictures.node, DType::I32);
        let shape = Shape::from([count, c, height, width]);
        let node = part.push(Op::RoiPool { pooling }, &[x.node, regions.node, pictures], shape, dtype, &[]);
        self.value(x.backend, node)
    }

    fn deform_conv(
        &mut self,
        op: &'static str,
        [x, weight, offset]: [TensorOperand<'_>; 3],
        [bias, mask]: [Option<TensorOperand<'_>>; 2],
        settings: ConvSettings<2>,
    ) -> OpResult<TensorValue<'a>> {
        let (x, weight, offset) = (self.float_arg(op, x)?, self.float_arg(op, weight)?, self.float_arg(op, offset)?);
        let (bias, mask) = (self.optional_float_arg(op, bias)?, self.optional_float_arg(op, mask)?);
        let mut args = [x, weight, offset, bias.unwrap_or(x), mask.unwrap_or(x)];
        let backend = self.same_backend(op, &mut args)?;
        let [x, weight, offset, of_bias, of_mask] = args;
        let (bias, mask) = (bias.map(|_| of_bias), mask.map(|_| of_mask));
        let shapes = [x, weight, offset].map(|arg| self.shape_of_arg(arg));
        let (&[n, c, h, w], &[out, of_group, kh, kw], &[batch, displacements, oh, ow]) =
            (&shapes[0][..], &shapes[1][..], &shapes[2][..])
        else {
            return Err(self.shape_error(op, &[x, weight, offset], "all must have four axes"));
        };
        let ConvSettings { stride, padding, dilation, groups } = settings;
        if groups == 0 || stride.contains(&0) || dilation.contains(&0) {
            let reason = "groups, strides and dilations must be at least 1".to_owned();
            return Err(OpError::Argument { op, reason });
        }
        if of_group.checked_mul(groups) != Some(c) || !out.is_multiple_of(groups) {
            let reason = format!("{c} channels in {groups} groups do not fit the weight");
            return Err(self.shape_error(op, &[x, weight], reason));
        }
        let taps = kh * kw;
        let offset_groups = displacements.checked_div(2 * taps).unwrap_or(0);
        if offset_groups == 0 || offset_groups * 2 * taps != displacements || !c.is_multiple_of(offset_groups) {
            let reason = format!("{displacements} displacements of {taps} taps do not fit {c} channels");
            return Err(self.shape_error(op, &[x, weight, offset], reason));
        }
        let mut before = [0; 2];
        let mut sizes = [0; 2];
        for axis in 0..2 {
            let (input, size) = ([h, w][axis], [kh, kw][axis]);
            let spatial = SpatialAxis { input, size, stride: stride[axis], dilation: dilation[axis] };
            let Some((pad, _, count)) = spatial.slide(axis, padding, false) else {
                return Err(self.window_error(op, &[x, weight], axis + 2));
            };
            (before[axis], sizes[axis]) = (pad, count);
        }
        if batch != n || [oh, ow] != sizes {
            let reason = format!("the offset must be [{n}, {displacements}, {}, {}]", sizes[0], sizes[1]);
            return Err(self.shape_error(op, &[x, offset], reason));
        }
        if let Some(mask) = mask
            && self.shape_of_arg(mask)[..] != [n, displacements / 2, oh, ow]
        {
            let reason = format!("the mask must be [{n}, {}, {oh}, {ow}]", displacements / 2);
            return Err(self.shape_error(op, &[offset, mask], reason));
        }
        if let Some(bias) = bias
            && self.shape_of_arg(bias)[..] != [out]
        {
            return Err(self.shape_error(op, &[weight, bias], format!("the bias must be [{out}]")));
        }

        let dtype = self.dtype_of_arg(x);
        let part = self.part(x);
        let rows = n * offset_groups;
        // Positions down and right of every tap of every output element, in elements of the input.
        let offset = part.cast(offset.node, DType::F32);
        let offset = part.reshape(offset, &Shape::from([rows, taps, 2, oh, ow]));
        let plane = Shape::from([rows, taps, oh, ow]);
        let mut points = [offset; 2];
        for axis in 0..2 {
            let moved = part.slice(offset, 2, axis, 1, 1);
            let moved = part.reshape(moved, &plane);
            let of_tap = |tap: usize| if axis == 0 { tap / kw } else { tap % kw };
            let starts: Vec<f32> =
                (0..taps).map(|tap| (of_tap(tap) * dilation[axis]) as f32 - before[axis] as f32).collect();
            let starts = part.constant(pack(&starts), Shape::from([taps, 1, 1]), DType::F32);
            let count = sizes[axis];
            let steps = part.iota(count);
            let steps = part.cast(steps, DType::F32);
            let steps = part.scale_shift(steps, stride[axis] as f32, 0.0);
            let steps = part.reshape(steps, &if axis == 0 { Shape::from([count, 1]) } else { Shape::from([1, count]) });
            let origin = part.binary_broadcast(BinaryOp::Add, starts, steps);
            let origin = part.broadcast(origin, &plane);
            let sum = part.binary(BinaryOp::Add, moved, origin);
            points[axis] = part.reshape(sum, &Shape::from([rows, taps * oh * ow, 1]));
        }
        let points = part.concat(&[points[1], points[0]], 2);
        let source = part.reshape(x.node, &Shape::from([rows, c / offset_groups, h, w]));
        let sampling = Sampling {
            filter: SampleFilter::Linear,
            padding: SamplePadding::Zeros,
            coordinates: SampleCoordinates::Pixels,
        };
        let mut columns = part.sample(source, points, sampling, DType::F32);
        if let Some(mask) = mask {
            let mask = part.cast(mask.node, DType::F32);
            let mask = part.reshape(mask, &Shape::from([rows, 1, taps * oh * ow]));
            columns = part.binary_broadcast(BinaryOp::Mul, columns, mask);
        }
        let inner = of_group * taps;
        let columns = part.reshape(columns, &Shape::from([n * groups, inner, oh * ow]));
        let weight = part.reshape(weight.node, &Shape::from([1, groups, out / groups, inner]));
        let weight = part.broadcast(weight, &Shape::from([n, groups, out / groups, inner]));
        let weight = part.reshape(weight, &Shape::from([n * groups, out / groups, inner]));
        let shape = Shape::from([n * groups, out / groups, oh * ow]);
        let product = Op::MatMul { inner: InnerOp::Product };
        let mut node = part.push(product, &[weight, columns], shape, DType::F32, &[]);
        node = part.reshape(node, &Shape::from([n, out, oh, ow]));
        if let Some(bias) = bias {
            let bias = part.cast(bias.node, DType::F32);
            let bias = part.reshape(bias, &Shape::from([out, 1, 1]));
            node = part.binary_broadcast(BinaryOp::Add, node, bias);
        }
        let node = part.cast(node, dtype);
        self.value(backend, columns)?;
        self.value(backend, node)
    }
}
