//! Elementwise arithmetic and comparisons. Integers wrap as their type does. Floats are computed in 64 bits and rounded
//! to their type, which gives the correctly rounded result for `+ - · /` and the square root.

use super::{HostCall, HostOutputs, broadcast, broadcast_positions};
use crate::ir::Shape;
use crate::onnx::call::{Stop, axis_index, failed, unsupported};
use crate::onnx::host::{HostTensor, Numbers};

type IntFn = fn(i128, i128) -> Option<i128>;
type FloatFn = fn(f64, f64) -> f64;

/// A function of two numbers of one type.
fn binary(call: &HostCall, int: IntFn, float: FloatFn) -> HostOutputs {
    let (a, b) = (call.x(0)?, &legacy(call)?);
    Ok(vec![combine(a, b, int, float)?])
}

/// The second operand. Before version 7 it begins at an axis of the first, which an attribute names.
fn legacy(call: &HostCall) -> Result<HostTensor, Stop> {
    let (a, b) = (call.x(0)?, call.x(1)?);
    let Some(axis) = call.maybe_int("axis").filter(|_| call.version < 7 && call.flag("broadcast", false)) else {
        return Ok(b.clone());
    };
    let first = axis_index(axis, a.shape().rank())?;
    let behind = a.shape().rank().saturating_sub(first + b.shape().rank());
    let shape: Vec<usize> = b.shape().iter().copied().chain(core::iter::repeat_n(1, behind)).collect();
    Ok(b.reshaped(shape)?)
}

fn combine(a: &HostTensor, b: &HostTensor, int: IntFn, float: FloatFn) -> Result<HostTensor, Stop> {
    let shape = broadcast(a.shape(), b.shape())?;
    let at = pairs(a, b, &shape);
    let numbers = match (a.numbers()?, b.numbers()?) {
        (Numbers::Int(x), Numbers::Int(y)) => {
            let values: Option<Vec<i128>> = at.map(|(i, j)| int(x[i], y[j])).collect();
            Numbers::Int(values.ok_or_else(|| Stop::Failed("an integer is divided by zero".to_owned()))?)
        }
        (Numbers::Float(x), Numbers::Float(y)) => Numbers::Float(at.map(|(i, j)| float(x[i], y[j])).collect()),
        _ => return failed(format!("{} and {} are not of one type", a.element(), b.element())),
    };
    Ok(HostTensor::from_numbers(a.element(), shape, &numbers)?)
}

fn pairs(a: &HostTensor, b: &HostTensor, shape: &Shape) -> impl Iterator<Item = (usize, usize)> {
    broadcast_positions(a.shape(), shape).into_iter().zip(broadcast_positions(b.shape(), shape))
}

/// A test of two numbers of one type.
fn compare(call: &HostCall, int: fn(&i128, &i128) -> bool, float: fn(&f64, &f64) -> bool) -> HostOutputs {
    let (a, b) = (call.x(0)?, &legacy(call)?);
    let shape = broadcast(a.shape(), b.shape())?;
    let at = pairs(a, b, &shape);
    let values: Vec<bool> = match (a.numbers()?, b.numbers()?) {
        (Numbers::Int(x), Numbers::Int(y)) => at.map(|(i, j)| int(&x[i], &y[j])).collect(),
        (Numbers::Float(x), Numbers::Float(y)) => at.map(|(i, j)| float(&x[i], &y[j])).collect(),
        _ => return failed(format!("{} and {} are not of one type", a.element(), b.element())),
    };
    Ok(vec![HostTensor::from_bools(&values, shape)?])
}

/// A function of one number.
fn unary(call: &HostCall, int: fn(i128) -> i128, float: fn(f64) -> f64) -> HostOutputs {
    let x = call.x(0)?;
    let numbers = match x.numbers()? {
        Numbers::Int(values) => Numbers::Int(values.into_iter().map(int).collect()),
        Numbers::Float(values) => Numbers::Float(values.into_iter().map(float).collect()),
    };
    Ok(vec![HostTensor::from_numbers(x.element(), x.shape(), &numbers)?])
}

/// A function of one float.
fn float_only(call: &HostCall, float: fn(f64) -> f64) -> HostOutputs {
    if !call.x(0)?.element().is_float() {
        return failed(format!("{} is no float", call.x(0)?.element()));
    }
    unary(call, |v| v, float)
}

/// A function of all inputs, which broadcast.
fn variadic(call: &HostCall, int: IntFn, float: FloatFn) -> HostOutputs {
    let mut all = call.x(0)?.clone();
    for i in 1..call.inputs.len() {
        all = combine(&all, call.x(i)?, int, float)?;
    }
    Ok(vec![all])
}

pub(super) fn add(call: &HostCall) -> HostOutputs {
    binary(call, |a, b| Some(a + b), |a, b| a + b)
}

pub(super) fn sub(call: &HostCall) -> HostOutputs {
    binary(call, |a, b| Some(a - b), |a, b| a - b)
}

pub(super) fn mul(call: &HostCall) -> HostOutputs {
    binary(call, |a, b| Some(a.wrapping_mul(b)), |a, b| a * b)
}

pub(super) fn div(call: &HostCall) -> HostOutputs {
    binary(call, i128::checked_div, |a, b| a / b)
}

pub(super) fn modulo(call: &HostCall) -> HostOutputs {
    if call.flag("fmod", false) {
        return binary(call, i128::checked_rem, |a, b| a % b);
    }
    // The sign of the divisor.
    let int: IntFn = |a, b| a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r });
    binary(call, int, |a, b| a - b * (a / b).floor())
}

pub(super) fn pow(call: &HostCall) -> HostOutputs {
    let (a, b) = (call.x(0)?, call.x(1)?);
    let shape = broadcast(a.shape(), b.shape())?;
    let at = pairs(a, b, &shape);
    let numbers = match (a.numbers()?, b.numbers()?) {
        (Numbers::Int(x), Numbers::Int(y)) => Numbers::Int(
            at.map(|(i, j)| u32::try_from(y[j]).map_or(i128::from(x[i] == 1), |power| x[i].wrapping_pow(power)))
                .collect(),
        ),
        (x, y) => {
            let (x, y) = (x.to_f64(), y.to_f64());
            Numbers::Float(at.map(|(i, j)| x[i].powf(y[j])).collect())
        }
    };
    Ok(vec![HostTensor::from_numbers(a.element(), shape, &numbers)?])
}

pub(super) fn max(call: &HostCall) -> HostOutputs {
    variadic(call, |a, b| Some(a.max(b)), |a, b| if a.is_nan() || a > b { a } else { b })
}

pub(super) fn min(call: &HostCall) -> HostOutputs {
    variadic(call, |a, b| Some(a.min(b)), |a, b| if a.is_nan() || a < b { a } else { b })
}

pub(super) fn sum(call: &HostCall) -> HostOutputs {
    variadic(call, |a, b| Some(a + b), |a, b| a + b)
}

pub(super) fn neg(call: &HostCall) -> HostOutputs {
    unary(call, |v| -v, |v| -v)
}

pub(super) fn abs(call: &HostCall) -> HostOutputs {
    unary(call, i128::abs, f64::abs)
}

pub(super) fn sign(call: &HostCall) -> HostOutputs {
    unary(call, i128::signum, |v| if v == 0.0 || v.is_nan() { v } else { v.signum() })
}

pub(super) fn floor(call: &HostCall) -> HostOutputs {
    float_only(call, f64::floor)
}

pub(super) fn ceil(call: &HostCall) -> HostOutputs {
    float_only(call, f64::ceil)
}

pub(super) fn round(call: &HostCall) -> HostOutputs {
    float_only(call, f64::round_ties_even)
}

pub(super) fn sqrt(call: &HostCall) -> HostOutputs {
    float_only(call, f64::sqrt)
}

pub(super) fn exp(call: &HostCall) -> HostOutputs {
    float_only(call, f64::exp)
}

pub(super) fn log(call: &HostCall) -> HostOutputs {
    float_only(call, f64::ln)
}

pub(super) fn reciprocal(call: &HostCall) -> HostOutputs {
    float_only(call, f64::recip)
}

pub(super) fn cos(call: &HostCall) -> HostOutputs {
    float_only(call, f64::cos)
}

pub(super) fn sin(call: &HostCall) -> HostOutputs {
    float_only(call, f64::sin)
}

pub(super) fn not(call: &HostCall) -> HostOutputs {
    unary(call, |v| i128::from(v == 0), |v| v)
}

pub(super) fn and(call: &HostCall) -> HostOutputs {
    binary(call, |a, b| Some(a & b), |a, _| a)
}

pub(super) fn or(call: &HostCall) -> HostOutputs {
    binary(call, |a, b| Some(a | b), |a, _| a)
}

pub(super) fn xor(call: &HostCall) -> HostOutputs {
    binary(call, |a, b| Some(a ^ b), |a, _| a)
}

pub(super) fn bitwise_not(call: &HostCall) -> HostOutputs {
    unary(call, |v| !v, |v| v)
}

pub(super) fn bit_shift(call: &HostCall) -> HostOutputs {
    match call.text("direction", "") {
        "LEFT" => binary(call, |a, b| Some(u32::try_from(b).map_or(0, |b| if b < 64 { a << b } else { 0 })), |a, _| a),
        "RIGHT" => binary(call, |a, b| Some(u32::try_from(b).map_or(0, |b| if b < 64 { a >> b } else { 0 })), |a, _| a),
        other => failed(format!("\"{other}\" is no direction")),
    }
}

pub(super) fn equal(call: &HostCall) -> HostOutputs {
    let (a, b) = (call.x(0)?, call.x(1)?);
    if let (Some(x), Some(y)) = (a.strings(), b.strings()) {
        let shape = broadcast(a.shape(), b.shape())?;
        let values: Vec<bool> = pairs(a, b, &shape).map(|(i, j)| x[i] == y[j]).collect();
        return Ok(vec![HostTensor::from_bools(&values, shape)?]);
    }
    compare(call, |a, b| a == b, |a, b| a == b)
}

pub(super) fn less(call: &HostCall) -> HostOutputs {
    compare(call, |a, b| a < b, |a, b| a < b)
}

pub(super) fn less_or_equal(call: &HostCall) -> HostOutputs {
    compare(call, |a, b| a <= b, |a, b| a <= b)
}

pub(super) fn greater(call: &HostCall) -> HostOutputs {
    compare(call, |a, b| a > b, |a, b| a > b)
}

pub(super) fn greater_or_equal(call: &HostCall) -> HostOutputs {
    compare(call, |a, b| a >= b, |a, b| a >= b)
}

pub(super) fn select(call: &HostCall) -> HostOutputs {
    let (condition, yes, no) = (call.x(0)?, call.x(1)?, call.x(2)?);
    if yes.element() != no.element() {
        return failed(format!("{} and {} are not of one type", yes.element(), no.element()));
    }
    let shape = broadcast(&broadcast(condition.shape(), yes.shape())?, no.shape())?;
    let test = condition.to_i64()?;
    // Both as one list, so that elements of any type are only copied.
    let both = super::movement::join(&[&yes.reshaped([yes.elements()])?, &no.reshaped([no.elements()])?], 0)?;
    let (at, at_yes, at_no) = (
        broadcast_positions(condition.shape(), &shape),
        broadcast_positions(yes.shape(), &shape),
        broadcast_positions(no.shape(), &shape),
    );
    let positions = (0..at.len()).map(|i| if test[at[i]] != 0 { at_yes[i] } else { yes.elements() + at_no[i] });
    Ok(vec![both.take(shape, positions)?])
}

pub(super) fn clip(call: &HostCall) -> HostOutputs {
    let x = call.x(0)?;
    if call.attribute("min").is_some() || call.attribute("max").is_some() {
        return unsupported("limits as attributes");
    }
    let bound = |i: usize| call.maybe(i).map(HostTensor::numbers).transpose();
    let numbers = match (x.numbers()?, bound(1)?, bound(2)?) {
        (Numbers::Int(values), low, high) => {
            let limit = |numbers: Option<Numbers>, default: i128| match numbers {
                Some(Numbers::Int(v)) => v.first().copied().unwrap_or(default),
                Some(Numbers::Float(_)) | None => default,
            };
            let (low, high) = (limit(low, i128::MIN), limit(high, i128::MAX));
            Numbers::Int(values.into_iter().map(|v| v.max(low).min(high)).collect())
        }
        (Numbers::Float(values), low, high) => {
            let limit = |numbers: Option<Numbers>, default: f64| {
                numbers.and_then(|n| n.to_f64().first().copied()).unwrap_or(default)
            };
            let (low, high) = (limit(low, f64::NEG_INFINITY), limit(high, f64::INFINITY));
            Numbers::Float(values.into_iter().map(|v| if v.is_nan() { v } else { v.max(low).min(high) }).collect())
        }
    };
    Ok(vec![HostTensor::from_numbers(x.element(), x.shape(), &numbers)?])
}
