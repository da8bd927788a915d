//! The same elements under other shapes, joining and splitting, and shapes as values.

use super::super::call::{Call, Outputs, Stop, axis_index, failed, signed, sizes};
use super::super::host::HostTensor;
use super::super::host_ops::movement;
use super::super::value::Value;
use super::Operator;
use crate::ir::Shape;
use crate::record::{Axes, DepthOrder, PadMode, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Shape").record(shape),
    Operator::new("Size").record(size),
    Operator::new("Reshape").record(reshape),
    Operator::new("Flatten").record(flatten),
    Operator::new("Transpose").record(transpose),
    Operator::new("Squeeze").record(squeeze),
    Operator::new("Unsqueeze").record(unsqueeze),
    Operator::new("Expand").record(expand),
    Operator::new("Slice").record(slice),
    Operator::new("Split").record(split),
    Operator::new("Concat").record(concat),
    Operator::new("Tile").record(tile),
    Operator::new("DepthToSpace").record(depth_to_space),
    Operator::new("SpaceToDepth").record(space_to_depth),
    Operator::new("ReverseSequence").record(reverse_sequence),
    Operator::new("CenterCropPad").record(center_crop_pad),
];

/// The shape of a value is known on the host, wherever the value is.
fn shape<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = movement::shape_range(call, &call.shape_of(0)?);
    Ok(vec![Some(Value::constant(HostTensor::from_i64(&shape, [shape.len()])?))])
}

fn size<'a>(call: &Call<'a>) -> Outputs<'a> {
    let count = call.shape_of(0)?.elements() as i64;
    Ok(vec![Some(Value::constant(HostTensor::from_i64(&[count], Shape::default())?))])
}

fn reshape<'a>(call: &Call<'a>) -> Outputs<'a> {
    let from: Shape = call.shape_of(0)?;
    let asked = call.ints_of("shape", 1)?.unwrap_or_default();
    let to = movement::resolve_shape(&from, &asked, call.flag("allowzero", false))?;
    call.like(0, call.ops.reshape(call.x(0)?, &signed(&to))?)
}

fn flatten<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = call.shape_of(0)?;
    let axis = call.int("axis", 1);
    // The axis may also be the rank: everything before it.
    let axis = if axis == shape.rank() as i64 { shape.rank() } else { axis_index(axis, shape.rank())? };
    let rows: usize = shape[..axis].iter().product();
    let columns: usize = shape[axis..].iter().product();
    call.like(0, call.ops.reshape(call.x(0)?, &[rows as isize, columns as isize])?)
}

fn transpose<'a>(call: &Call<'a>) -> Outputs<'a> {
    let rank = call.shape_of(0)?.rank() as i64;
    let order = call.ints("perm").map_or_else(|| (0..rank).rev().collect(), <[i64]>::to_vec);
    call.like(0, call.ops.permute(call.x(0)?, &signed(&order))?)
}

fn squeeze<'a>(call: &Call<'a>) -> Outputs<'a> {
    let axes = call.ints_of("axes", 1)?.map_or(Axes::ALL, |axes| Axes::of(signed(&axes)));
    call.like(0, call.ops.squeeze(call.x(0)?, axes)?)
}

fn unsqueeze<'a>(call: &Call<'a>) -> Outputs<'a> {
    let axes = call.ints_of("axes", 1)?.unwrap_or_default();
    call.like(0, call.ops.unsqueeze(call.x(0)?, &signed(&axes))?)
}

/// Either operand may be the larger one along an axis.
fn expand<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = call.shape_of(0)?;
    let asked = Shape::from(sizes(&call.host_ints(1)?.unwrap_or_default())?);
    let Some(to) = shape.broadcast(&asked) else { return failed(format!("{shape} does not expand to {asked}")) };
    call.like(0, call.ops.broadcast_to(call.x(0)?, to)?)
}

/// Starts, ends and axes are attributes before version 10.
fn slice<'a>(call: &Call<'a>) -> Outputs<'a> {
    let starts = call.ints_of("starts", 1)?.unwrap_or_default();
    let ends = call.ints_of("ends", 2)?.unwrap_or_default();
    let axes = call.ints_of("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = call.host_ints(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return failed("starts, ends, axes and steps differ in number");
    }
    let mut value = call.x(0)?;
    for (i, range) in signed(&starts).into_iter().zip(signed(&ends)).enumerate() {
        let (axis, step) = (signed(&axes)[i], signed(&steps)[i]);
        value = call.ops.slice_step(value, axis, range.0, range.1, step)?;
    }
    call.like(0, value)
}

fn split<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = call.shape_of(0)?;
    let axis = axis_index(call.int("axis", 0), shape.rank())?;
    let parts = match call.ints_of("split", 1)? {
        Some(list) => sizes(&list)?,
        None => {
            let count = usize::try_from(call.int("num_outputs", call.outputs.len() as i64)).unwrap_or(0).max(1);
            // All of one size but the last, which may be smaller.
            let size = shape[axis].div_ceil(count);
            (0..count).map(|i| shape[axis].saturating_sub(i * size).min(size)).collect()
        }
    };
    let element = call.type_of(0)?;
    let values = call.ops.split(call.x(0)?, axis, &parts)?;
    Ok(values.into_iter().map(|value| Some(Value::Device(value, element))).collect())
}

fn concat<'a>(call: &Call<'a>) -> Outputs<'a> {
    let parts: Vec<TensorValue> = (0..call.count()).map(|i| call.x(i)).collect::<Result<_, _>>()?;
    let axis = signed(&[call.int("axis", 1)])[0];
    call.like(0, call.ops.concat(parts, axis)?)
}

fn tile<'a>(call: &Call<'a>) -> Outputs<'a> {
    let rank = call.shape_of(0)?.rank();
    let mut counts = sizes(&call.host_ints(1)?.unwrap_or_default())?;
    if call.version < 6 {
        // Version 1: how often, and along which axis.
        let axis = axis_index(call.host_ints(2)?.and_then(|axis| axis.first().copied()).unwrap_or(0), rank)?;
        let mut all = vec![1; rank];
        all[axis] = counts.first().copied().unwrap_or(1);
        counts = all;
    }
    call.like(0, call.ops.tile(call.x(0)?, &counts)?)
}

fn block(call: &Call) -> Result<usize, Stop> {
    match usize::try_from(call.int("blocksize", 0)) {
        Ok(block @ 1..) => Ok(block),
        _ => failed("the block size must be positive"),
    }
}

fn depth_to_space<'a>(call: &Call<'a>) -> Outputs<'a> {
    let order = match call.text("mode", "DCR") {
        "CRD" => DepthOrder::ColumnRowDepth,
        "DCR" => DepthOrder::DepthColumnRow,
        other => return failed(format!("{other:?} is not a mode")),
    };
    call.like(0, call.ops.depth_to_space(call.x(0)?, block(call)?, order)?)
}

fn space_to_depth<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.like(0, call.ops.space_to_depth(call.x(0)?, block(call)?)?)
}

/// Element `t` of a row of length `n` comes from `n − 1 − t`, and stays behind the length.
fn reverse_sequence<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = call.shape_of(0)?;
    let rank = shape.rank();
    let (time, batch) = (axis_index(call.int("time_axis", 0), rank)?, axis_index(call.int("batch_axis", 1), rank)?);
    if time == batch {
        return failed("the time axis is the batch axis");
    }
    let lengths = call.x_as(1, crate::ir::DType::I32)?;
    let mut sizes = vec![1; rank];
    sizes[batch] = shape[batch] as isize;
    let lengths = call.ops.reshape(lengths, &sizes)?;
    let mut sizes = vec![1; rank];
    sizes[time] = shape[time] as isize;
    let steps = call.ops.reshape(call.steps(shape[time])?, &sizes)?;
    let mirrored = call.ops.sub(call.ops.sub(lengths, 1)?, steps)?;
    let from = call.ops.select(call.ops.less(steps, lengths)?, mirrored, steps)?;
    let from = call.ops.broadcast_to(from, shape)?;
    call.like(0, call.ops.gather_elements(call.x(0)?, from, time)?)
}

/// Cuts or pads each axis around its centre to the given size.
fn center_crop_pad<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = call.shape_of(0)?;
    let target = call.host_ints(1)?.unwrap_or_default();
    let axes = call.ints("axes").map_or_else(|| (0..shape.rank() as i64).collect(), <[i64]>::to_vec);
    let mut pads = vec![(0isize, 0isize); shape.rank()];
    for (&axis, &to) in axes.iter().zip(&target) {
        let axis = axis_index(axis, shape.rank())?;
        let more = signed(&[to])[0] - shape[axis] as isize;
        // An odd difference: padding and cropping both begin with the smaller half.
        let before = if more >= 0 { more / 2 } else { -((-more) / 2) };
        pads[axis] = (before, more - before);
    }
    call.like(0, call.ops.pad(call.x(0)?, &pads, PadMode::Constant(0.0))?)
}
