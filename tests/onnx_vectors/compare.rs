//! Compares what an op gave with what a case expects: first type and shape, then every element.

use bevy_tensor_compute::prelude::*;
use half::{bf16, f16};

use super::bounds::Bound;
use super::case::{Host, Values};

/// How far a result was from the expected one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distance {
    /// The largest distance in units in the last place of the expected type.
    pub ulps: f64,
    /// The largest distance of those elements that are only close in absolute terms.
    pub absolute: f64,
}

impl Distance {
    pub fn grow(&mut self, other: Distance) {
        self.ulps = self.ulps.max(other.ulps);
        self.absolute = self.absolute.max(other.absolute);
    }
}

/// Fails unless type and shape are those expected and every element is within the bound.
pub fn compare(actual: &TensorData, expected: &Host, bound: Bound) -> Result<Distance, String> {
    let dtype = expected.dtype()?;
    if actual.dtype() != dtype {
        return Err(format!("is {}, expected {dtype}", actual.dtype()));
    }
    let shape = &actual.shape()[..];
    // Files that do not tell which values have no axes store them with one.
    let scalar = shape.is_empty() && expected.perhaps_scalar;
    if !scalar && shape != expected.shape {
        return Err(format!("has shape {}, expected {:?}", actual.shape(), expected.shape));
    }
    match &expected.values {
        Values::Floats(values) => floats(actual, values, bound),
        Values::Integers(values) => integers(actual, values, bound),
    }
}

/// Whether any of the bound's measures accepts a difference.
fn near(ulps: f64, difference: f64, expected: f64, bound: Bound) -> bool {
    let relative = expected.is_finite() && difference <= bound.relative * expected.abs();
    ulps <= bound.ulps || difference <= bound.absolute || relative
}

fn floats(actual: &TensorData, expected: &[f64], bound: Bound) -> Result<Distance, String> {
    let mut worst = Distance::default();
    for (i, (a, &e)) in actual.to_f32().into_iter().zip(expected).enumerate() {
        // The expected value in the type of the result.
        let (ulps, e) = match actual.dtype() {
            DType::F16 => (ulps_f16(f16::from_f32(a), f16::from_f64(e)), f16::from_f64(e).to_f64()),
            DType::BF16 => (ulps_bf16(bf16::from_f32(a), bf16::from_f64(e)), bf16::from_f64(e).to_f64()),
            _ => (ulps_f32(a, e as f32), f64::from(e as f32)),
        };
        let a = f64::from(a);
        if a == e || (a.is_nan() && e.is_nan()) {
            continue;
        }
        let difference = (a - e).abs();
        // NaN equals only NaN. An infinity is the neighbour of the largest number.
        if a.is_nan() || e.is_nan() || !near(ulps, difference, e, bound) {
            return Err(format!("element {i} is {a}, expected {e}: {ulps} ulp apart, allowed is {bound}"));
        }
        if ulps <= bound.ulps {
            worst.ulps = worst.ulps.max(ulps);
        } else {
            worst.absolute = worst.absolute.max(difference);
        }
    }
    Ok(worst)
}

fn integers(actual: &TensorData, expected: &[i128], bound: Bound) -> Result<Distance, String> {
    let mut worst = Distance::default();
    for (i, (a, &e)) in whole(actual)?.into_iter().zip(expected).enumerate() {
        let distance = a.abs_diff(e) as f64;
        // One unit of an integer is its last place.
        if distance != 0.0 && !near(distance, distance, e as f64, bound) {
            return Err(format!("element {i} is {a}, expected {e}; allowed is {bound}"));
        }
        worst.ulps = worst.ulps.max(distance);
    }
    Ok(worst)
}

/// Steps between two numbers over the numbers of the type. Both zeros are one number.
pub fn ulps_f32(a: f32, b: f32) -> f64 {
    let place = |v: f32| {
        let size = i64::from(v.abs().to_bits());
        if v < 0.0 { -size } else { size }
    };
    place(a).abs_diff(place(b)) as f64
}

/// As [`ulps_f32`].
pub fn ulps_f16(a: f16, b: f16) -> f64 {
    let place = |v: f16| {
        let size = i64::from(v.to_bits() & 0x7fff);
        if v < f16::ZERO { -size } else { size }
    };
    place(a).abs_diff(place(b)) as f64
}

/// As [`ulps_f32`].
pub fn ulps_bf16(a: bf16, b: bf16) -> f64 {
    // The upper half of a 32-bit float.
    ulps_f32(a.to_f32(), b.to_f32()) / 65_536.0
}

fn whole(data: &TensorData) -> Result<Vec<i128>, String> {
    fn wide<T: bevy_tensor_compute::tensor::Element + Into<i128>>(data: &TensorData) -> Result<Vec<i128>, String> {
        Ok(data.as_slice::<T>().map_err(|error| error.to_string())?.iter().map(|&v| v.into()).collect())
    }
    match data.dtype() {
        DType::I32 => wide::<i32>(data),
        DType::U32 => wide::<u32>(data),
        DType::I8 => wide::<i8>(data),
        DType::U8 => wide::<u8>(data),
        DType::Bool => Ok(data.to_bools().map_err(|error| error.to_string())?.into_iter().map(i128::from).collect()),
        other => Err(format!("{other} holds no integers")),
    }
}
