//! Softmax and normalisation.

use super::super::call::{Call, Outputs, Stop, axis_index, device_type, failed, one, signed};
use super::super::value::Value;
use super::Operator;
use crate::error::OpResult;
use crate::formats::onnx::ElementType;
use crate::ir::DType;
use crate::record::{Axes, PadMode, TensorCommands, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Softmax").record(|call| along(call, |ops, x, axis| ops.softmax(x, axis))),
    Operator::new("LogSoftmax").record(|call| along(call, |ops, x, axis| ops.log_softmax(x, axis))),
    Operator::new("Hardmax").record(|call| along(call, hardmax)),
    Operator::new("LayerNormalization").record(layer),
    Operator::new("RMSNormalization").record(rms),
    Operator::new("BatchNormalization").record(batch),
    Operator::new("InstanceNormalization").record(instance),
    Operator::new("GroupNormalization").record(group),
    Operator::new("LpNormalization").record(lp),
    Operator::new("MeanVarianceNormalization").record(mean_variance),
    Operator::new("LRN").record(local_response),
];

/// Before version 13 all axes from the given one on are taken as one.
fn along<'a>(
    call: &Call<'a>,
    f: impl FnOnce(&'a TensorCommands<'a, 'a>, TensorValue<'a>, usize) -> OpResult<TensorValue<'a>>,
) -> Outputs<'a> {
    let shape = call.shape_of(0)?;
    let old = call.version < 13;
    let axis = axis_index(call.int("axis", if old { 1 } else { -1 }), shape.rank().max(1))?;
    if shape.rank() == 0 {
        let row = call.ops.reshape(call.x(0)?, &[1])?;
        return call.like(0, call.ops.reshape(f(call.ops, row, 0)?, &[])?);
    }
    if !old || axis + 1 == shape.rank() {
        return call.like(0, f(call.ops, call.x(0)?, axis)?);
    }
    let rows: usize = shape[..axis].iter().product();
    let columns: usize = shape[axis..].iter().product();
    let flat = call.ops.reshape(call.x(0)?, &[rows as isize, columns as isize])?;
    let sizes: Vec<isize> = shape.iter().map(|&n| n as isize).collect();
    call.like(0, call.ops.reshape(f(call.ops, flat, 1)?, &sizes)?)
}

/// One where the first largest element is.
fn hardmax<'a>(ops: &'a TensorCommands<'a, 'a>, x: TensorValue<'a>, axis: usize) -> OpResult<TensorValue<'a>> {
    let (shape, dtype) = (ops.shape(x)?, ops.dtype(x)?);
    let hot = ops.one_hot(ops.argmax(x, axis)?, shape[axis], dtype)?;
    let mut order: Vec<isize> = (0..shape.rank() as isize - 1).collect();
    order.insert(axis, shape.rank() as isize - 1);
    ops.permute(hot, &order)
}

/// Parameters may have another float type than the data.
pub(super) fn parameter<'a>(call: &Call<'a>, i: usize, dtype: DType) -> Result<Option<TensorValue<'a>>, Stop> {
    Ok(match call.maybe(i)? {
        Some(value) => Some(call.ops.cast(value, dtype)?),
        None => None,
    })
}

fn layer<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (axis, eps) = (call.int("axis", -1), call.float("epsilon", 1e-5));
    let (x, dtype) = (call.x(0)?, call.dtype_of(0)?);
    let (weight, bias) = (parameter(call, 1, dtype)?, parameter(call, 2, dtype)?);
    let at = signed(&[axis])[0];
    let y = call.ops.layer_norm(x, weight.map(Into::into), bias.map(Into::into), at, eps)?;
    let mut outputs = vec![Some(Value::Device(y, call.type_of(0)?))];
    if call.wants(1) || call.wants(2) {
        let rank = call.shape_of(0)?.rank();
        let axes = Axes::of(axis_index(axis, rank)? as isize..rank as isize);
        let x = call.ops.cast(x, DType::F32)?;
        let mean = call.ops.mean(x, axes.clone().keep())?;
        let variance = call.ops.var(x, axes.keep(), 0)?;
        let inverse = call.ops.rsqrt(variance + eps)?;
        outputs.extend([mean, inverse].map(|value| Some(Value::Device(value, ElementType::Float32))));
    }
    Ok(outputs)
}

fn rms<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (axis, eps) = (signed(&[call.int("axis", -1)])[0], call.float("epsilon", 1e-5));
    let weight = parameter(call, 1, call.dtype_of(0)?)?;
    call.like(0, call.ops.rms_norm(call.x(0)?, weight.map(Into::into), axis, eps)?)
}

fn batch<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (eps, momentum) = (call.float("epsilon", 1e-5), call.float("momentum", 0.9));
    let (x, dtype, element) = (call.x(0)?, call.dtype_of(0)?, call.type_of(0)?);
    let [weight, bias, mean, variance] = [1, 2, 3, 4].map(|i| parameter(call, i, dtype));
    let (weight, bias) = (weight?, bias?);
    let (Some(mean), Some(variance)) = (mean?, variance?) else { return failed("the mean or the variance is missing") };
    let ops = call.ops;
    if call.version < 9 && !call.flag("spatial", true) {
        // Parameters for every element of a sample.
        let factor = ops.rsqrt(variance + eps)?;
        let mut y = ops.mul(ops.sub(x, mean)?, factor)?;
        if let Some(weight) = weight {
            y = ops.mul(y, weight)?;
        }
        if let Some(bias) = bias {
            y = ops.add(y, bias)?;
        }
        return call.like(0, y);
    }
    let training =
        call.flag("training_mode", false) || (call.version < 7 && !call.flag("is_test", false) && call.wants(1));
    if !training {
        return call.like(0, ops.batch_norm(x, mean, variance, weight.map(Into::into), bias.map(Into::into), eps)?);
    }
    let axes = Axes::of((0..call.shape_of(0)?.rank() as isize).filter(|&axis| axis != 1));
    let now = [ops.mean(x, axes.clone())?, ops.var(x, axes, 0)?];
    let y = ops.batch_norm(x, now[0], now[1], weight.map(Into::into), bias.map(Into::into), eps)?;
    let mut outputs = vec![Some(Value::Device(y, element))];
    for (before, (now, i)) in [mean, variance].into_iter().zip(now.into_iter().zip([3, 4])) {
        let running = ops.add(ops.mul(before, momentum)?, now * (1.0 - momentum))?;
        let of = call.type_of(i)?;
        outputs.push(Some(Value::Device(ops.cast(running, device_type(of)?)?, of)));
    }
    Ok(outputs)
}

fn instance<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (eps, dtype) = (call.float("epsilon", 1e-5), call.dtype_of(0)?);
    let (weight, bias) = (parameter(call, 1, dtype)?, parameter(call, 2, dtype)?);
    call.like(0, call.ops.instance_norm(call.x(0)?, weight.map(Into::into), bias.map(Into::into), eps)?)
}

/// Before version 21 each group has one factor. The op has one per channel.
fn group<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (groups, eps) = (usize::try_from(call.int("num_groups", 1)).unwrap_or(0), call.float("epsilon", 1e-5));
    let (shape, dtype) = (call.shape_of(0)?, call.dtype_of(0)?);
    let Some(&channels) = shape.get(1) else { return failed(format!("{shape} has no channels")) };
    if groups == 0 || channels % groups != 0 {
        return failed(format!("{channels} channels do not make {groups} groups"));
    }
    let mut parameters = [parameter(call, 1, dtype)?, parameter(call, 2, dtype)?];
    if call.version < 21 {
        for value in parameters.iter_mut().flatten() {
            *value = call.ops.repeat(*value, 0, channels / groups)?;
        }
    }
    let [weight, bias] = parameters.map(|value| value.map(Into::into));
    call.like(0, call.ops.group_norm(call.x(0)?, groups, weight, bias, eps)?)
}

fn lp<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (axis, p) = (signed(&[call.int("axis", -1)])[0], call.int("p", 2).clamp(0, 3) as u32);
    call.like(0, call.ops.lp_normalize(call.x(0)?, axis, p)?)
}

fn mean_variance<'a>(call: &Call<'a>) -> Outputs<'a> {
    let axes = Axes::of(signed(call.ints("axes").unwrap_or(&[0, 2, 3])));
    let x = call.x(0)?;
    let mean = call.ops.mean(x, axes.clone().keep())?;
    let deviation = call.ops.std(x, axes.keep(), 0)?;
    call.like(0, call.ops.div(call.ops.sub(x, mean)?, deviation + 1e-9)?)
}

/// The squares of the neighbouring channels are summed as a window that moves over them.
fn local_response<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (shape, size) = (call.shape_of(0)?, call.int("size", 1).max(1) as isize);
    let Some(&channels) = shape.get(1) else { return failed(format!("{shape} has no channels")) };
    let channels = channels as isize;
    if size > 2 * channels {
        return super::refuse(format!("a window of {size} over {channels} channels"));
    }
    let x = call.x(0)?;
    let mut pads = vec![(0, 0); shape.rank()];
    pads[1] = ((size - 1) / 2, size / 2);
    let padded = call.ops.pad(call.ops.mul(x, x)?, &pads, PadMode::Constant(0.0))?;
    let mut sum = call.ops.slice(padded, 1, 0, channels)?;
    for i in 1..size {
        sum = call.ops.add(sum, call.ops.slice(padded, 1, i, i + channels)?)?;
    }
    let scale = sum * (call.float("alpha", 1e-4) / size as f32) + call.float("bias", 1.0);
    let power = call.ops.pow(scale, call.float("beta", 0.75))?;
    one(call.ops.div(x, power)?, call.type_of(0)?)
}
