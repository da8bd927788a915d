//! Gathering and scattering.

use super::super::call::{Call, Outputs, Stop, axis_index, failed, signed};
use super::Operator;
use crate::ir::DType;
use crate::record::ScatterMode;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Gather").record(gather),
    Operator::new("GatherElements").record(gather_elements),
    Operator::new("GatherND").record(gather_nd),
    Operator::new("Scatter").record(scatter_elements),
    Operator::new("ScatterElements").record(scatter_elements),
    Operator::new("ScatterND").record(scatter_nd),
    Operator::new("OneHot").record(one_hot),
    Operator::new("TensorScatter").record(tensor_scatter),
    Operator::new("Compress").record(compress),
];

fn axis(call: &Call) -> isize {
    signed(&[call.int("axis", 0)])[0]
}

fn gather<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.like(0, call.ops.gather(call.x(0)?, call.x(1)?, axis(call))?)
}

fn gather_elements<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.like(0, call.ops.gather_elements(call.x(0)?, call.x(1)?, axis(call))?)
}

pub(super) fn gather_nd<'a>(call: &Call<'a>) -> Outputs<'a> {
    let batch = usize::try_from(call.int("batch_dims", 0)).unwrap_or(usize::MAX);
    call.like(0, call.ops.gather_nd(call.x(0)?, call.x(1)?, batch)?)
}

fn mode(call: &Call) -> Result<ScatterMode, Stop> {
    Ok(match call.text("reduction", "none") {
        "none" => ScatterMode::Replace,
        "add" => ScatterMode::Add,
        "mul" => ScatterMode::Mul,
        "min" => ScatterMode::Min,
        "max" => ScatterMode::Max,
        other => return failed(format!("{other:?} is not a reduction")),
    })
}

fn scatter_elements<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.like(0, call.ops.scatter_elements(call.x(0)?, call.x(1)?, call.x(2)?, axis(call), mode(call)?)?)
}

fn scatter_nd<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.like(0, call.ops.scatter_nd(call.x(0)?, call.x(1)?, call.x(2)?, mode(call)?)?)
}

/// Indices of any number type; those out of range give a row without the value.
fn one_hot<'a>(call: &Call<'a>) -> Outputs<'a> {
    let depth = call.host_number(1)?.unwrap_or(0.0).max(0.0) as usize;
    let mut indices = call.x(0)?;
    if !call.dtype_of(0)?.is_integer() {
        indices = call.ops.cast(indices, DType::I32)?;
    }
    let hot = call.ops.one_hot(indices, depth, DType::Bool)?;
    let rank = call.ops.shape(hot)?.rank();
    let at = axis_index(call.int("axis", -1), rank)?;
    let mut order: Vec<isize> = (0..rank as isize - 1).collect();
    order.insert(at, rank as isize - 1);
    let hot = call.ops.permute(hot, &order)?;
    let values = call.x(2)?;
    let (off, on) = (call.ops.slice(values, 0, 0, 1)?, call.ops.slice(values, 0, 1, 2)?);
    call.like(2, call.ops.select(hot, on, off)?)
}

/// Writes a part of a cache at a position per batch: `cache [b, …, t, …]`, `update [b, …, s, …]`.
fn tensor_scatter<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (cache, update) = (call.shape_of(0)?, call.shape_of(1)?);
    let along = axis_index(call.int("axis", -2), cache.rank())?;
    if along == 0 {
        return failed("the axis is that of the batch");
    }
    let steps = call.steps(update[along])?;
    let mut sizes = vec![1; cache.rank()];
    sizes[along] = update[along] as isize;
    let mut positions = call.ops.reshape(steps, &sizes)?;
    if call.has(2) {
        let mut sizes = vec![1; cache.rank()];
        sizes[0] = cache[0] as isize;
        positions = call.ops.add(positions, call.ops.reshape(call.x_as(2, DType::I32)?, &sizes)?)?;
    }
    match call.text("mode", "linear") {
        "linear" => {}
        "circular" => positions = call.ops.modulo(positions, cache[along] as u32)?,
        other => return failed(format!("{other:?} is not a mode")),
    }
    let positions = call.ops.broadcast_to(positions, update)?;
    let written = call.ops.scatter_elements(call.x(0)?, positions, call.x(1)?, along, ScatterMode::Replace)?;
    call.like(0, written)
}

/// The condition decides the result's size, so the host must know it. The data stays where it is.
fn compress<'a>(call: &Call<'a>) -> Outputs<'a> {
    let kept: Vec<i32> = call
        .host_ints(1)?
        .unwrap_or_default()
        .iter()
        .enumerate()
        .filter(|&(_, &keep)| keep != 0)
        .map(|(i, _)| i as i32)
        .collect();
    let (mut x, mut axis) = (call.x(0)?, 0);
    match call.maybe_int("axis") {
        Some(given) => axis = axis_index(given, call.shape_of(0)?.rank())?,
        None => x = call.ops.reshape(x, &[-1])?,
    }
    let indices = super::super::host::HostTensor::from_i32(&kept, [kept.len()])?;
    call.like(0, call.ops.gather(x, call.constant(indices)?, axis)?)
}
