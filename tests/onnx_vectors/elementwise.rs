//! Elementwise operators with one or two operands.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, Stop, one, unsupported};
use super::case::{device_type, onnx_type};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    let op = call.case.op.clone();
    unary(call, &op).or_else(|| parametric(call, &op)).or_else(|| binary(call, &op)).or_else(|| variadic(call, &op))
}

fn unary<'a>(call: &Call<'a>, op: &str) -> Option<Outputs<'a>> {
    type Unary = for<'a> fn(&'a TensorCommands, TensorOperand<'a>) -> OpResult<TensorValue<'a>>;
    let function: Unary = match op {
        "Abs" => |ops, x| ops.abs(x),
        "Neg" => |ops, x| ops.neg(x),
        "Exp" => |ops, x| ops.exp(x),
        "Log" => |ops, x| ops.log(x),
        "Sqrt" => |ops, x| ops.sqrt(x),
        "Reciprocal" => |ops, x| ops.recip(x),
        "Sin" => |ops, x| ops.sin(x),
        "Cos" => |ops, x| ops.cos(x),
        "Tan" => |ops, x| {
            let (sin, cos) = (ops.sin(x.clone())?, ops.cos(x)?);
            ops.div(sin, cos)
        },
        "Floor" => |ops, x| ops.floor(x),
        "Ceil" => |ops, x| ops.ceil(x),
        "Round" => |ops, x| ops.round(x),
        "Sign" => |ops, x| ops.sign(x),
        "Erf" => |ops, x| ops.erf(x),
        "Not" => |ops, x| ops.not(x),
        "IsNaN" => |ops, x| ops.is_nan(x),
        "Relu" => |ops, x| ops.relu(x),
        "Sigmoid" => |ops, x| ops.sigmoid(x),
        "Tanh" => |ops, x| ops.tanh(x),
        "Softplus" => |ops, x| ops.softplus(x),
        "Softsign" => |ops, x| ops.softsign(x),
        "Mish" => |ops, x| ops.mish(x),
        "HardSwish" => |ops, x| ops.hard_swish(x),
        "Identity" => |ops, x| ops.copy(x),
        _ => return None,
    };
    Some(call.x(0).and_then(|x| one(function(call.ops, x))))
}

/// One operand and settings.
fn parametric<'a>(call: &Call<'a>, op: &str) -> Option<Outputs<'a>> {
    let case = call.case;
    type Function<'f, 'a> = &'f dyn Fn(&'a TensorCommands<'a, 'a>, TensorOperand<'a>) -> OpResult<TensorValue<'a>>;
    let with = |call: &Call<'a>, f: Function<'_, 'a>| call.x(0).and_then(|x| one(f(call.ops, x)));
    Some(match op {
        "LeakyRelu" => with(call, &|ops, x| ops.leaky_relu(x, case.float("alpha", 0.01))),
        "Elu" => with(call, &|ops, x| ops.elu(x, case.float("alpha", 1.0))),
        "Celu" => with(call, &|ops, x| ops.celu(x, case.float("alpha", 1.0))),
        "ThresholdedRelu" => with(call, &|ops, x| ops.thresholded_relu(x, case.float("alpha", 1.0))),
        "HardSigmoid" => with(call, &|ops, x| ops.hard_sigmoid(x, case.float("alpha", 0.2), case.float("beta", 0.5))),
        "Selu" if !case.attrs.contains_key("alpha") && !case.attrs.contains_key("gamma") => {
            with(call, &|ops, x| ops.selu(x))
        }
        "Selu" => with(call, &|ops, x| {
            let elu = ops.elu(x, case.float("alpha", 1.673_263_2))?;
            ops.mul(elu, case.float("gamma", 1.050_701))
        }),
        "Swish" => with(call, &|ops, x| {
            let alpha = case.float("alpha", 1.0);
            if alpha == 1.0 {
                return ops.silu(x);
            }
            let scaled = ops.mul(x.clone(), alpha)?;
            let gate = ops.sigmoid(scaled)?;
            ops.mul(x, gate)
        }),
        "Gelu" if case.text("approximate", "none") == "tanh" => with(call, &|ops, x| ops.gelu_tanh(x)),
        "Gelu" => with(call, &|ops, x| ops.gelu(x)),
        "Shrink" => with(call, &|ops, x| {
            let (bias, lambda) = (case.float("bias", 0.0), case.float("lambd", 0.5));
            let low = ops.less(x.clone(), -lambda)?;
            let high = ops.greater(x.clone(), lambda)?;
            let (raised, lowered) = (ops.add(x.clone(), bias)?, ops.sub(x, bias)?);
            let high = ops.select(high, lowered, 0.0)?;
            ops.select(low, raised, high)
        }),
        "IsInf" => with(call, &|ops, x| {
            let infinite = ops.is_inf(x.clone())?;
            let side = match (case.flag("detect_negative", true), case.flag("detect_positive", true)) {
                (true, true) => return Ok(infinite),
                (true, false) => ops.less(x, 0.0)?,
                (false, true) => ops.greater(x, 0.0)?,
                (false, false) => ops.not_equal(x.clone(), x)?,
            };
            ops.and(infinite, side)
        }),
        "Clip" => clip(call),
        "Cast" | "CastLike" => cast(call),
        "Dropout" => dropout(call),
        _ => return None,
    })
}

fn clip<'a>(call: &Call<'a>) -> Outputs<'a> {
    // Bounds are attributes up to version 6.
    let bound = |attr: &str, i: usize, default: f64| {
        let old = call.case.attrs.get(attr).and_then(serde_json::Value::as_f64);
        old.or_else(|| call.host_number(i)).unwrap_or(default)
    };
    let (low, high) = (bound("min", 1, f64::NEG_INFINITY), bound("max", 2, f64::INFINITY));
    let x = call.x(0)?;
    one(call.ops.clamp(x, low, high))
}

fn cast<'a>(call: &Call<'a>) -> Outputs<'a> {
    let x = call.x(0)?;
    let onnx = match call.case.op.as_str() {
        "CastLike" => call.onnx_of(1).unwrap_or_default().to_owned(),
        _ => onnx_type(call.case.int("to", 0)).to_owned(),
    };
    let to = device_type(&onnx).map_err(Stop::Unsupported)?;
    let narrow = match onnx.as_str() {
        "INT4" | "UINT4" => 16.0,
        "INT2" | "UINT2" => 4.0,
        "INT16" | "UINT16" => 65536.0,
        _ => return one(call.ops.cast(x, to)),
    };
    // The type is narrower than any type here, so wrap as an integer cast would.
    let wide = call.ops.cast(x, DType::I32)?;
    let low = call.ops.modulo(wide, narrow)?;
    let wrapped = if onnx.starts_with('U') {
        low
    } else {
        let above = call.ops.greater_equal(low, narrow / 2.0)?;
        let negative = call.ops.sub(low, narrow)?;
        call.ops.select(above, negative, low)?
    };
    one(call.ops.cast(wrapped, to))
}

fn dropout<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ratio = call.host_number(1).unwrap_or(f64::from(call.case.float("ratio", 0.5)));
    if call.host_number(2).is_some_and(|training| training != 0.0) && ratio != 0.0 {
        return unsupported("dropout in training draws ONNX's random numbers");
    }
    let x = call.x(0)?;
    let shape = call.shape_of(0);
    let mask = if call.case.opset < 10 { call.dtype_of(0)? } else { DType::Bool };
    let kept = if call.wants(1) { Some(call.ops.full(shape, 1.0, mask)?) } else { None };
    Ok(vec![Some(call.ops.copy(x)?), kept])
}

fn binary<'a>(call: &Call<'a>, op: &str) -> Option<Outputs<'a>> {
    type Binary = for<'a> fn(&'a TensorCommands, TensorOperand<'a>, TensorOperand<'a>) -> OpResult<TensorValue<'a>>;
    let function: Binary = match op {
        "Add" => |ops, a, b| ops.add(a, b),
        "Sub" => |ops, a, b| ops.sub(a, b),
        "Mul" => |ops, a, b| ops.mul(a, b),
        "Div" => |ops, a, b| ops.div(a, b),
        "Mod" if call.case.flag("fmod", false) => |ops, a, b| ops.rem(a, b),
        "Mod" => |ops, a, b| ops.modulo(a, b),
        "Equal" => |ops, a, b| ops.equal(a, b),
        "Less" => |ops, a, b| ops.less(a, b),
        "LessOrEqual" => |ops, a, b| ops.less_equal(a, b),
        "Greater" => |ops, a, b| ops.greater(a, b),
        "GreaterOrEqual" => |ops, a, b| ops.greater_equal(a, b),
        "And" => |ops, a, b| ops.and(a, b),
        "Or" => |ops, a, b| ops.or(a, b),
        "Xor" => |ops, a, b| ops.xor(a, b),
        "PRelu" => |ops, x, slope| {
            let negative = ops.less(x.clone(), 0.0)?;
            let scaled = ops.mul(x.clone(), slope)?;
            ops.select(negative, scaled, x)
        },
        "Pow" => return Some(pow(call)),
        "Where" => return Some(choose(call)),
        _ => return None,
    };
    Some(call.x(0).and_then(|a| call.x(1).and_then(|b| one(function(call.ops, a, b)))))
}

fn choose<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (condition, yes, no) = (call.x(0)?, call.x(1)?, call.x(2)?);
    one(call.ops.select(condition, yes, no))
}

/// Base and exponent may have different types. The result has the type of the base.
fn pow<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (base, exponent) = (call.x(0)?, call.x(1)?);
    let (of_base, of_exponent) = (call.dtype_of(0)?, call.dtype_of(1)?);
    if of_exponent.is_float() && !of_base.is_float() {
        let base = call.ops.cast(base, DType::F32)?;
        let exponent = call.ops.cast(exponent, DType::F32)?;
        let power = call.ops.pow(base, exponent)?;
        return one(call.ops.cast(power, of_base));
    }
    let exponent = call.ops.cast(exponent, of_base)?;
    one(call.ops.pow(base, exponent))
}

fn variadic<'a>(call: &Call<'a>, op: &str) -> Option<Outputs<'a>> {
    type Binary = for<'b> fn(&'b TensorCommands, TensorValue<'b>, TensorOperand<'b>) -> OpResult<TensorValue<'b>>;
    let function: Binary = match op {
        "Max" => |ops, a, b| ops.max(a, b),
        "Min" => |ops, a, b| ops.min(a, b),
        "Sum" | "Mean" => |ops, a, b| ops.add(a, b),
        _ => return None,
    };
    let fold = |call: &Call<'a>| -> Result<TensorValue<'a>, Stop> {
        let mut all = call.ops.value(call.x(0)?)?;
        for i in 1..call.count() {
            let next = call.x(i)?;
            all = function(call.ops, all, next)?;
        }
        if op == "Mean" { Ok(call.ops.div(all, call.count() as f32)?) } else { Ok(all) }
    };
    Some(fold(call).map(|value| vec![Some(value)]))
}
