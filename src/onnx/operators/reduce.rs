//! Reductions, scans and searches along axes.

use super::super::call::{Call, Outputs, Stop, axis_index, device_type, failed, one, signed};
use super::super::value::Value;
use super::Operator;
use crate::error::OpResult;
use crate::formats::onnx::ElementType;
use crate::ir::DType;
use crate::record::{Axes, CumsumSettings, TensorAxis, TensorCommands, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("ReduceSum").record(|call| reduce(call, false, |ops, x, axes| ops.sum(x, axes))),
    Operator::new("ReduceMean").record(|call| reduce(call, true, |ops, x, axes| ops.mean(x, axes))),
    Operator::new("ReduceMax").record(|call| extreme(call, |ops, x, axes| ops.max_of(x, axes))),
    Operator::new("ReduceMin").record(|call| extreme(call, |ops, x, axes| ops.min_of(x, axes))),
    Operator::new("ReduceProd").record(|call| reduce(call, false, |ops, x, axes| ops.prod(x, axes))),
    Operator::new("ReduceSumSquare").record(|call| reduce(call, false, |ops, x, axes| ops.sum_squares(x, axes))),
    Operator::new("ReduceL1").record(|call| reduce(call, false, |ops, x, axes| ops.l1_norm(x, axes))),
    Operator::new("ReduceL2").record(|call| reduce(call, true, |ops, x, axes| ops.l2_norm(x, axes))),
    Operator::new("ReduceLogSum").record(|call| reduce(call, true, |ops, x, axes| ops.log(ops.sum(x, axes)?))),
    Operator::new("ReduceLogSumExp").record(|call| reduce(call, true, |ops, x, axes| ops.log_sum_exp(x, axes))),
    Operator::new("ArgMax").record(|call| {
        position(call, |ops, x, axes, last| if last { ops.argmax_last(x, axes) } else { ops.argmax(x, axes) })
    }),
    Operator::new("ArgMin").record(|call| {
        position(call, |ops, x, axes, last| if last { ops.argmin_last(x, axes) } else { ops.argmin(x, axes) })
    }),
    Operator::new("CumSum").record(cumsum),
    Operator::new("CumProd").record(cumprod),
    Operator::new("TopK").record(top_k),
];

/// The axes to reduce: an attribute in older versions, an input in newer ones. `None` if the value stays as it is.
pub(super) fn axes(call: &Call) -> Result<Option<Axes>, Stop> {
    let axes = match call.ints_of("axes", 1)? {
        Some(axes) if !axes.is_empty() => Axes::of(signed(&axes)),
        _ if call.flag("noop_with_empty_axes", false) => return Ok(None),
        _ => Axes::ALL,
    };
    Ok(Some(if call.flag("keepdims", true) { axes.keep() } else { axes }))
}

/// A reduction. `fractional` ones are computed in floats also for integers, and truncated.
fn reduce<'a>(
    call: &Call<'a>,
    fractional: bool,
    f: impl FnOnce(&'a TensorCommands<'a, 'a>, TensorValue<'a>, Axes) -> OpResult<TensorValue<'a>>,
) -> Outputs<'a> {
    let element = call.type_of(0)?;
    let mut x = call.x(0)?;
    // Without axes, each element is reduced on its own: the function of a single element.
    let axes = axes(call)?.unwrap_or_else(|| Axes::from([]));
    if fractional && !element.is_float() {
        x = call.ops.cast(x, DType::F32)?;
    }
    let value = f(call.ops, x, axes)?;
    let value = call.ops.cast(value, device_type(element)?)?;
    one(call.narrowed(value, element)?, element)
}

fn extreme<'a>(
    call: &Call<'a>,
    f: impl FnOnce(&'a TensorCommands<'a, 'a>, TensorValue<'a>, Axes) -> OpResult<TensorValue<'a>>,
) -> Outputs<'a> {
    reduce(call, false, f)
}

fn position<'a>(
    call: &Call<'a>,
    f: impl FnOnce(&'a TensorCommands<'a, 'a>, TensorValue<'a>, Axes, bool) -> OpResult<TensorValue<'a>>,
) -> Outputs<'a> {
    let axis = TensorAxis(signed(&[call.int("axis", 0)])[0]);
    let axes = if call.flag("keepdims", true) { axis.keep() } else { axis.into() };
    one(f(call.ops, call.x(0)?, axes, call.flag("select_last_index", false))?, ElementType::Int64)
}

/// The axis that an input names.
fn scan_axis(call: &Call) -> Result<isize, Stop> {
    let axis = call.host_ints(1)?.and_then(|axis| axis.first().copied()).unwrap_or(0);
    Ok(signed(&[axis])[0])
}

fn cumsum<'a>(call: &Call<'a>) -> Outputs<'a> {
    let settings = CumsumSettings { exclusive: call.flag("exclusive", false), reverse: call.flag("reverse", false) };
    let element = call.type_of(0)?;
    let sums = call.ops.cumsum_with(call.x(0)?, scan_axis(call)?, settings)?;
    let sums = call.ops.cast(sums, device_type(element)?)?;
    one(call.narrowed(sums, element)?, element)
}

/// Running products in log₂(n) rounds: each element is multiplied by the product of a growing window before it.
fn cumprod<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (shape, element) = (call.shape_of(0)?, call.type_of(0)?);
    let axis = axis_index(scan_axis(call)? as i64, shape.rank())?;
    let (count, reverse) = (shape[axis], call.flag("reverse", false));
    let mut x = call.x(0)?;
    if reverse {
        x = call.ops.flip(x, axis)?;
    }
    let shifted = |x: TensorValue<'a>, by: usize| -> Result<TensorValue<'a>, Stop> {
        let mut pads = vec![(0, 0); shape.rank()];
        pads[axis] = (by as isize, -(by as isize));
        Ok(call.ops.pad(x, &pads, crate::record::PadMode::Constant(1.0))?)
    };
    if call.flag("exclusive", false) && count > 0 {
        x = shifted(x, 1)?;
    }
    let mut window = 1;
    while window < count {
        x = call.narrowed(call.ops.mul(x, shifted(x, window)?)?, element)?;
        window *= 2;
    }
    if reverse {
        x = call.ops.flip(x, axis)?;
    }
    one(x, element)
}

/// `k` is an attribute in version 1 and an input since 10.
fn top_k<'a>(call: &Call<'a>) -> Outputs<'a> {
    let k = match call.maybe_int("k") {
        Some(k) => k,
        None => call.host_ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0),
    };
    let Ok(k) = usize::try_from(k) else { return failed(format!("{k} is not a number of elements")) };
    let axis = signed(&[call.int("axis", -1)])[0];
    let x = call.x(0)?;
    // Best first is also one of the orders that `sorted = 0` allows.
    let (values, positions) =
        if call.flag("largest", true) { call.ops.top_k(x, k, axis)? } else { call.ops.bottom_k(x, k, axis)? };
    Ok(vec![Some(Value::Device(values, call.type_of(0)?)), Some(Value::Device(positions, ElementType::Int64))])
}
