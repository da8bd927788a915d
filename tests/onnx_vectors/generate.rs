//! Generators, and operators that depend on positions.

use std::f64::consts::PI;

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, one, sizes, unsupported};
use super::case::Values;

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    Some(match call.case.op.as_str() {
        "ConstantOfShape" => constant_of_shape(call),
        "Range" => range(call),
        "EyeLike" => eye_like(call),
        "Trilu" => triangle(call),
        "HannWindow" => window(call, &[0.5, -0.5]),
        "HammingWindow" => window(call, &[25.0 / 46.0, -21.0 / 46.0]),
        "BlackmanWindow" => window(call, &[0.42, -0.5, 0.08]),
        _ => return None,
    })
}

fn constant_of_shape<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = sizes(&call.host_ints(0).unwrap_or_default());
    let value = call.case.floats("value").and_then(|list| list.first().copied()).unwrap_or(0.0);
    let dtype = call.out_type(0)?;
    one(call.ops.full(shape, value, dtype))
}

fn range<'a>(call: &Call<'a>) -> Outputs<'a> {
    let [Some(start), Some(limit), Some(step)] = [0, 1, 2].map(|i| call.host_number(i)) else {
        return unsupported("a range without its numbers");
    };
    let count = ((limit - start) / step).ceil().max(0.0) as usize;
    let dtype = call.dtype_of(0)?;
    one(call.ops.arange(start, step, count, dtype))
}

fn eye_like<'a>(call: &Call<'a>) -> Outputs<'a> {
    let shape = call.shape_of(0);
    let (k, dtype) =
        (call.case.int("k", 0) as i32, call.type_attribute("dtype")?.map_or_else(|| call.dtype_of(0), Ok)?);
    one(call.ops.eye(shape[0], shape[1], k, dtype))
}

fn triangle<'a>(call: &Call<'a>) -> Outputs<'a> {
    let k = match call.host(1).map(|host| &host.values) {
        Some(Values::Integers(k)) => k[0].clamp(i32::MIN.into(), i32::MAX.into()) as i32,
        _ => 0,
    };
    let x = call.x(0)?;
    one(if call.case.flag("upper", true) { call.ops.triu(x, k) } else { call.ops.tril(x, k) })
}

/// A sum of cosines over one period: term `i` has frequency `i`.
fn window<'a>(call: &Call<'a>, terms: &[f32]) -> Outputs<'a> {
    let size = call.host_number(0).unwrap_or(0.0) as usize;
    let period = if call.case.flag("periodic", true) { size } else { size.saturating_sub(1) };
    let dtype = call.type_attribute("output_datatype")?.unwrap_or(DType::F32);
    if !dtype.is_float() {
        return unsupported("windows of integers");
    }
    let mut sum = call.ops.full([size], f64::from(terms[0]), DType::F32)?;
    for (i, &term) in terms.iter().enumerate().skip(1) {
        let angle = call.ops.arange(0.0, 2.0 * PI * i as f64 / period as f64, size, DType::F32)?;
        let cosine = call.ops.cos(angle)?;
        sum = call.ops.add(sum, cosine * term)?;
    }
    one(call.ops.cast(sum, dtype))
}
