//! The exposure that brings an image to a common brightness.

use crate::error::OpResult;
use crate::record::{LAST, TensorCommands, TensorValue};

/// Largest side of the regions whose mean luminance counts, in pixels.
const REGION: usize = 16;

/// The brightness that the geometric mean of the luminance is brought to.
const KEY: f64 = 0.18;

/// Regions that are darker do not count.
const DARK: f64 = 1e-8;

/// The share of each channel in the luminance.
const LUMINANCE: [f32; 3] = [0.212671, 0.715160, 0.072169];

/// The factor for an image `[height, width, 3]` of finite colours, as `[1, 1, 1]`. It is 1 for black images.
pub(super) fn measure<'a>(
    ops: &'a TensorCommands,
    color: TensorValue<'a>,
    [height, width]: [usize; 2],
) -> OpResult<TensorValue<'a>> {
    let weights = ops.constant_like(color, &LUMINANCE, [1, 1, 3])?;
    let luminance = ops.sum(color * weights, LAST)?;
    let (down, across) = (mean_matrix(ops, color, height)?, mean_matrix(ops, color, width)?);
    let regions = ops.matmul_nt(ops.matmul(down, luminance)?, across)?;
    let bright = ops.greater(regions, DARK)?;
    let logs = ops.select(bright, ops.log(ops.max(regions, DARK)?)?, 0.0)?;
    let count = ops.sum(ops.select(bright, ops.add(regions * 0.0, 1.0)?, 0.0)?, [0, 1])?;
    let mean = ops.div(ops.sum(logs, [0, 1])?, ops.max(count, 1.0)?)?;
    let scale = ops.mul(ops.exp(ops.neg(mean)?)?, KEY)?;
    let scale = ops.select(ops.greater(count, 0.0)?, scale, 1.0)?;
    ops.reshape(scale, &[1, 1, 1])
}

/// The matrix `[regions, size]` that takes the mean of each region of an axis.
fn mean_matrix<'a>(ops: &'a TensorCommands, like: TensorValue<'a>, size: usize) -> OpResult<TensorValue<'a>> {
    let regions = size.div_ceil(REGION);
    let edge = |region: usize| (region * size / regions) as f32;
    let column = |value: &dyn Fn(usize) -> f32| {
        let values: Vec<f32> = (0..regions).map(value).collect();
        ops.constant_like(like, &values, [regions, 1])
    };
    let places: Vec<f32> = (0..size).map(|place| place as f32).collect();
    let places = ops.constant_like(like, &places, [1, size])?;
    let (first, end) = (column(&edge)?, column(&|region| edge(region + 1))?);
    let share = column(&|region| 1.0 / (edge(region + 1) - edge(region)))?;
    let inside = ops.and(ops.greater_equal(places, first)?, ops.less(places, end)?)?;
    ops.select(inside, share, 0.0)
}
