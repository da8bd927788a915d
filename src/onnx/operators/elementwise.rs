//! Functions of one value, element by element.

use super::super::call::{Call, Outputs, failed, one};
use super::super::value::Value;
use super::Operator;
use crate::error::OpResult;
use crate::formats::onnx::ElementType;
use crate::ir::DType;
use crate::record::{TensorCommands, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Abs").record(|call| unary(call, |ops, x| ops.abs(x))),
    Operator::new("Neg").record(|call| unary(call, |ops, x| ops.neg(x))),
    Operator::new("Sign").record(|call| unary(call, |ops, x| ops.sign(x))),
    Operator::new("Relu").record(|call| unary(call, |ops, x| ops.relu(x))),
    Operator::new("Floor").record(|call| unary(call, |ops, x| ops.floor(x))),
    Operator::new("Ceil").record(|call| unary(call, |ops, x| ops.ceil(x))),
    Operator::new("Round").record(|call| unary(call, |ops, x| ops.round(x))),
    Operator::new("Sqrt").record(|call| unary(call, |ops, x| ops.sqrt(x))),
    Operator::new("Exp").record(|call| unary(call, |ops, x| ops.exp(x))),
    Operator::new("Log").record(|call| unary(call, |ops, x| ops.log(x))),
    Operator::new("Reciprocal").record(|call| unary(call, |ops, x| ops.recip(x))),
    Operator::new("Sin").record(|call| unary(call, |ops, x| ops.sin(x))),
    Operator::new("Cos").record(|call| unary(call, |ops, x| ops.cos(x))),
    Operator::new("Tan").record(|call| unary(call, |ops, x| ops.tan(x))),
    Operator::new("Asin").record(|call| unary(call, |ops, x| ops.asin(x))),
    Operator::new("Acos").record(|call| unary(call, |ops, x| ops.acos(x))),
    Operator::new("Atan").record(|call| unary(call, |ops, x| ops.atan(x))),
    Operator::new("Sinh").record(|call| unary(call, |ops, x| ops.sinh(x))),
    Operator::new("Cosh").record(|call| unary(call, |ops, x| ops.cosh(x))),
    Operator::new("Asinh").record(|call| unary(call, |ops, x| ops.asinh(x))),
    Operator::new("Acosh").record(|call| unary(call, |ops, x| ops.acosh(x))),
    Operator::new("Atanh").record(|call| unary(call, |ops, x| ops.atanh(x))),
    Operator::new("Erf").record(erf),
    Operator::new("Sigmoid").record(|call| unary(call, |ops, x| ops.sigmoid(x))),
    Operator::new("Tanh").record(|call| unary(call, |ops, x| ops.tanh(x))),
    Operator::new("Softplus").record(|call| unary(call, |ops, x| ops.softplus(x))),
    Operator::new("Softsign").record(|call| unary(call, |ops, x| ops.softsign(x))),
    Operator::new("Mish").record(|call| unary(call, |ops, x| ops.mish(x))),
    Operator::new("HardSwish").record(|call| unary(call, |ops, x| ops.hard_swish(x))),
    Operator::new("LeakyRelu").record(|call| with(call, [("alpha", 0.01)], |ops, x, [a]| ops.leaky_relu(x, a))),
    Operator::new("Elu").record(|call| with(call, [("alpha", 1.0)], |ops, x, [a]| ops.elu(x, a))),
    Operator::new("Celu").record(|call| with(call, [("alpha", 1.0)], |ops, x, [a]| ops.celu(x, a))),
    Operator::new("ThresholdedRelu")
        .record(|call| with(call, [("alpha", 1.0)], |ops, x, [a]| ops.thresholded_relu(x, a))),
    Operator::new("HardSigmoid")
        .record(|call| with(call, [("alpha", 0.2), ("beta", 0.5)], |ops, x, [a, b]| ops.hard_sigmoid(x, a, b))),
    Operator::new("Selu").record(|call| {
        with(call, [("alpha", 1.673_263_2), ("gamma", 1.050_701)], |ops, x, [a, g]| ops.mul(ops.elu(x, a)?, g))
    }),
    Operator::new("Swish").record(|call| {
        with(call, [("alpha", 1.0)], |ops, x, [a]| if a == 1.0 { ops.silu(x) } else { ops.swish(x, a) })
    }),
    Operator::new("Shrink").record(shrink),
    Operator::new("Affine")
        .record(|call| with(call, [("alpha", 1.0), ("beta", 0.0)], |ops, x, [a, b]| ops.value(x * a + b))),
    Operator::new("ScaledTanh")
        .record(|call| with(call, [("alpha", 1.0), ("beta", 1.0)], |ops, x, [a, b]| ops.mul(ops.tanh(x * b)?, a))),
    Operator::new("ParametricSoftplus")
        .record(|call| with(call, [("alpha", 1.0), ("beta", 1.0)], |ops, x, [a, b]| ops.mul(ops.softplus(x * b)?, a))),
    Operator::new("Gelu").record(gelu),
    Operator::new("Not").record(|call| unary(call, |ops, x| ops.not(x))),
    Operator::new("BitwiseNot").record(bit_not),
    Operator::new("IsNaN").record(|call| one(call.ops.is_nan(call.x(0)?)?, ElementType::Bool)),
    Operator::new("IsInf").record(is_inf),
    Operator::new("Clip").record(clip),
    Operator::new("Identity").record(identity),
    Operator::new("Dropout").record(dropout),
];

/// A function of the only input, which keeps its type.
pub(super) fn unary<'a>(
    call: &Call<'a>,
    f: impl FnOnce(&'a TensorCommands<'a, 'a>, TensorValue<'a>) -> OpResult<TensorValue<'a>>,
) -> Outputs<'a> {
    call.like(0, f(call.ops, call.x(0)?)?)
}

/// A function of the only input with numbers as attributes.
pub(super) fn with<'a, const N: usize>(
    call: &Call<'a>,
    settings: [(&str, f32); N],
    f: impl FnOnce(&'a TensorCommands<'a, 'a>, TensorValue<'a>, [f32; N]) -> OpResult<TensorValue<'a>>,
) -> Outputs<'a> {
    let settings = settings.map(|(name, default)| call.float(name, default));
    unary(call, |ops, x| f(ops, x, settings))
}

/// Integers are shrunk as floats, as ONNX's own formula does, and truncated again.
fn shrink<'a>(call: &Call<'a>) -> Outputs<'a> {
    let dtype = call.dtype_of(0)?;
    let (lambda, bias) = (call.float("lambd", 0.5), call.float("bias", 0.0));
    if dtype.is_float() {
        return unary(call, |ops, x| ops.shrink(x, lambda, bias));
    }
    unary(call, |ops, x| ops.cast(ops.shrink(ops.cast(x, DType::F32)?, lambda, bias)?, dtype))
}

/// Integers too, which are truncated again.
fn erf<'a>(call: &Call<'a>) -> Outputs<'a> {
    let dtype = call.dtype_of(0)?;
    unary(call, |ops, x| ops.cast(ops.erf(if dtype.is_float() { x } else { ops.cast(x, DType::F32)? })?, dtype))
}

fn gelu<'a>(call: &Call<'a>) -> Outputs<'a> {
    match call.text("approximate", "none") {
        "none" => unary(call, |ops, x| ops.gelu(x)),
        "tanh" => unary(call, |ops, x| ops.gelu_tanh(x)),
        other => failed(format!("{other} is not an approximation of gelu")),
    }
}

/// Integers narrower than on the device keep their width.
fn bit_not<'a>(call: &Call<'a>) -> Outputs<'a> {
    let inverted = call.ops.bit_not(call.x(0)?)?;
    call.like(0, call.narrowed(inverted, call.type_of(0)?)?)
}

fn is_inf<'a>(call: &Call<'a>) -> Outputs<'a> {
    let x = call.x(0)?;
    let found = match (call.flag("detect_negative", true), call.flag("detect_positive", true)) {
        (true, true) => call.ops.is_inf(x)?,
        (true, false) => call.ops.is_neg_inf(x)?,
        (false, true) => call.ops.is_pos_inf(x)?,
        (false, false) => call.full(call.shape_of(0)?, 0.0, DType::Bool)?,
    };
    one(found, ElementType::Bool)
}

/// Bounds are attributes up to version 6, inputs since 11. The upper bound wins where they cross.
fn clip<'a>(call: &Call<'a>) -> Outputs<'a> {
    let mut x = call.x(0)?;
    if call.version < 11 {
        let (low, high) = (call.float("min", f32::NEG_INFINITY), call.float("max", f32::INFINITY));
        return call.like(0, call.ops.clamp(x, low.into(), high.into())?);
    }
    let known = |i: usize| call.value(i).is_none_or(|value| value.as_host().is_some());
    if known(1) && known(2) {
        let low = call.host_number(1)?.unwrap_or(f64::NEG_INFINITY);
        let high = call.host_number(2)?.unwrap_or(f64::INFINITY);
        return call.like(0, call.ops.clamp(x, low, high)?);
    }
    if let Some(low) = call.maybe(1)? {
        x = call.ops.max(x, call.ops.reshape(low, &[])?)?;
    }
    if let Some(high) = call.maybe(2)? {
        x = call.ops.min(x, call.ops.reshape(high, &[])?)?;
    }
    call.like(0, x)
}

/// The same value, wherever it is.
pub(super) fn identity<'a>(call: &Call<'a>) -> Outputs<'a> {
    Ok(vec![Some(call.need(0)?.clone())])
}

/// At inference the value itself, and a mask of ones.
fn dropout<'a>(call: &Call<'a>) -> Outputs<'a> {
    if call.version >= 12 && call.has(2) {
        let ratio = if call.has(1) { call.host_number(1)? } else { None }.unwrap_or(0.5);
        let training = call.host_number(2)?.unwrap_or(0.0) != 0.0;
        if training && ratio != 0.0 {
            return super::refuse("dropout in training draws random numbers");
        }
    }
    let kept = match call.wants(1) {
        false => None,
        true => {
            // Before version 10 the mask has the type of the data.
            let element = if call.version < 10 { call.type_of(0)? } else { ElementType::Bool };
            let dtype = super::super::call::device_type(element)?;
            Some(Value::Device(call.full(call.shape_of(0)?, 1.0, dtype)?, element))
        }
    };
    Ok(vec![Some(call.need(0)?.clone()), kept])
}
