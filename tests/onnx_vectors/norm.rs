//! Softmax and normalisation.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, index, one};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    Some(match call.case.op.as_str() {
        "Softmax" | "LogSoftmax" | "Hardmax" => softmax(call),
        "LayerNormalization" => layer(call),
        "RMSNormalization" => rms(call),
        "BatchNormalization" => batch(call),
        "InstanceNormalization" => instance(call),
        "GroupNormalization" => group(call),
        "LpNormalization" => lp(call),
        "MeanVarianceNormalization" => mean_variance(call),
        "LRN" => local_response(call),
        _ => return None,
    })
}

fn softmax<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, shape) = (call.x(0)?, call.shape_of(0));
    let sizes: Vec<isize> = shape.iter().map(|&n| n as isize).collect();
    // Before version 13, all axes from this one on are treated as one.
    let old = call.case.opset < 13;
    let axis = index(call.case.int("axis", if old { 1 } else { -1 }), shape.len());
    let (x, at) = if old {
        let rows: usize = shape[..axis].iter().product();
        let columns: usize = shape[axis..].iter().product();
        (call.ops.reshape(x, &[rows as isize, columns as isize])?, 1)
    } else {
        (call.ops.reshape(x, &sizes)?, axis)
    };
    let value = match call.case.op.as_str() {
        "Softmax" => call.ops.softmax(x, at)?,
        "LogSoftmax" => call.ops.log_softmax(x, at)?,
        _ => {
            let dtype = call.dtype_of(0)?;
            let best = call.ops.argmax(x, at)?;
            let flat = call.ops.shape(x)?;
            let hot = call.ops.one_hot(best, flat[at], dtype)?;
            let mut order: Vec<isize> = (0..flat.rank() as isize - 1).collect();
            order.insert(at, flat.rank() as isize - 1);
            call.ops.permute(hot, &order)?
        }
    };
    one(call.ops.reshape(value, &sizes))
}

fn layer<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (axis, eps) = (call.case.int("axis", -1), call.case.float("epsilon", 1e-5));
    let (x, weight, bias) = (call.x(0)?, call.maybe(1)?, call.maybe(2)?);
    let y = call.ops.layer_norm(x.clone(), weight, bias, axis as isize, eps)?;
    let rank = call.shape_of(0).len();
    let axes = Axes::of(index(axis, rank) as isize..rank as isize);
    let x = call.ops.cast(x, DType::F32)?;
    let mean = call.ops.mean(x, axes.clone().keep())?;
    let variance = call.ops.var(x, axes.keep(), 0)?;
    let inverse = call.ops.rsqrt(variance + eps)?;
    Ok(vec![Some(y), Some(mean), Some(inverse)])
}

fn rms<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (axis, eps) = (call.case.int("axis", -1), call.case.float("epsilon", 1e-5));
    let (x, weight) = (call.x(0)?, call.maybe(1)?);
    one(call.ops.rms_norm(x, weight, axis as isize, eps))
}

fn batch<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (eps, momentum) = (call.case.float("epsilon", 1e-5), call.case.float("momentum", 0.9));
    let (x, weight, bias) = (call.x(0)?, call.maybe(1)?, call.maybe(2)?);
    let (mean, variance) = (call.x(3)?, call.x(4)?);
    if !call.case.flag("training_mode", false) {
        return one(call.ops.batch_norm(x, mean, variance, weight, bias, eps));
    }
    let axes = Axes::of((0..call.shape_of(0).len() as isize).filter(|&axis| axis != 1));
    let now_mean = call.ops.mean(x.clone(), axes.clone())?;
    let now_variance = call.ops.var(x.clone(), axes, 0)?;
    let y = call.ops.batch_norm(x, now_mean, now_variance, weight, bias, eps)?;
    let mut running = [None, None];
    for (slot, (before, now)) in running.iter_mut().zip([(mean, now_mean), (variance, now_variance)]) {
        let kept = call.ops.mul(before, momentum)?;
        *slot = Some(call.ops.add(kept, now * (1.0 - momentum))?);
    }
    Ok(vec![Some(y), running[0], running[1]])
}

fn instance<'a>(call: &Call<'a>) -> Outputs<'a> {
    let eps = call.case.float("epsilon", 1e-5);
    let (x, weight, bias) = (call.x(0)?, call.maybe(1)?, call.maybe(2)?);
    one(call.ops.instance_norm(x, weight, bias, eps))
}

fn group<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (groups, eps) = (call.case.int("num_groups", 1) as usize, call.case.float("epsilon", 1e-5));
    let (x, mut weight, mut bias) = (call.x(0)?, call.maybe(1)?, call.maybe(2)?);
    let channels = call.shape_of(0)[1];
    // Before version 21 there is one factor per group. The op takes one per channel.
    if call.case.opset < 21 && call.shape_of(1)[0] == groups {
        for parameter in [&mut weight, &mut bias] {
            if let Some(per_group) = parameter.take() {
                *parameter = Some(call.ops.repeat(per_group, 0, channels / groups)?.into());
            }
        }
    }
    one(call.ops.group_norm(x, groups, weight, bias, eps))
}

fn lp<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (axis, p) = (call.case.int("axis", -1) as isize, call.case.int("p", 2) as u32);
    let x = call.x(0)?;
    one(call.ops.lp_normalize(x, axis, p))
}

fn mean_variance<'a>(call: &Call<'a>) -> Outputs<'a> {
    let axes = call.case.ints("axes").unwrap_or_else(|| vec![0, 2, 3]);
    let axes = Axes::of(super::call::signed(&axes));
    let x = call.x(0)?;
    let mean = call.ops.mean(x.clone(), axes.clone().keep())?;
    let deviation = call.ops.std(x.clone(), axes.keep(), 0)?;
    let centred = call.ops.sub(x, mean)?;
    one(call.ops.div(centred, deviation + 1e-9))
}

fn local_response<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let size = case.int("size", 1) as isize;
    let (x, shape) = (call.x(0)?, call.shape_of(0));
    let squares = call.ops.mul(x.clone(), x.clone())?;
    let mut pads = vec![(0, 0); shape.len()];
    pads[1] = ((size - 1) / 2, size / 2);
    let padded = call.ops.pad(squares, &pads, bevy_tensor_compute::ops::PadMode::Constant(0.0))?;
    let channels = shape[1] as isize;
    let mut sum = call.ops.slice(padded, 1, 0, channels)?;
    for i in 1..size {
        let next = call.ops.slice(padded, 1, i, i + channels)?;
        sum = call.ops.add(sum, next)?;
    }
    let scale = sum * (case.float("alpha", 1e-4) / size as f32) + case.float("bias", 1.0);
    let power = call.ops.pow(scale, case.float("beta", 0.75))?;
    one(call.ops.div(x, power))
}
