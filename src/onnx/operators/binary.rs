//! Functions of two or more values, element by element.

use super::super::call::{Call, Outputs, Stop, axis_index, failed, one};
use super::Operator;
use crate::error::OpResult;
use crate::formats::onnx::ElementType;
use crate::ir::DType;
use crate::record::{TensorCommands, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Add").record(|call| arithmetic(call, |ops, a, b| ops.add(a, b))),
    Operator::new("Sub").record(|call| arithmetic(call, |ops, a, b| ops.sub(a, b))),
    Operator::new("Mul").record(|call| arithmetic(call, |ops, a, b| ops.mul(a, b))),
    Operator::new("Div").record(|call| arithmetic(call, |ops, a, b| ops.div(a, b))),
    Operator::new("Mod").record(modulo),
    Operator::new("Pow").record(pow),
    Operator::new("Equal").record(|call| compare(call, |ops, a, b| ops.equal(a, b))),
    Operator::new("Less").record(|call| compare(call, |ops, a, b| ops.less(a, b))),
    Operator::new("LessOrEqual").record(|call| compare(call, |ops, a, b| ops.less_equal(a, b))),
    Operator::new("Greater").record(|call| compare(call, |ops, a, b| ops.greater(a, b))),
    Operator::new("GreaterOrEqual").record(|call| compare(call, |ops, a, b| ops.greater_equal(a, b))),
    Operator::new("And").record(|call| compare(call, |ops, a, b| ops.and(a, b))),
    Operator::new("Or").record(|call| compare(call, |ops, a, b| ops.or(a, b))),
    Operator::new("Xor").record(|call| compare(call, |ops, a, b| ops.xor(a, b))),
    Operator::new("BitwiseAnd").record(|call| arithmetic(call, |ops, a, b| ops.bit_and(a, b))),
    Operator::new("BitwiseOr").record(|call| arithmetic(call, |ops, a, b| ops.bit_or(a, b))),
    Operator::new("BitwiseXor").record(|call| arithmetic(call, |ops, a, b| ops.bit_xor(a, b))),
    Operator::new("BitShift").record(bit_shift),
    Operator::new("PRelu").record(prelu),
    Operator::new("Where").record(choose),
    Operator::new("Max").record(|call| fold(call, |ops, a, b| ops.max(a, b))),
    Operator::new("Min").record(|call| fold(call, |ops, a, b| ops.min(a, b))),
    Operator::new("Sum").record(|call| fold(call, |ops, a, b| ops.add(a, b))),
    Operator::new("Mean").record(mean),
];

type Pair<'a> = (TensorValue<'a>, TensorValue<'a>);

/// Both operands. Before version 7 the second begins at an axis of the first, which an attribute names.
fn operands<'a>(call: &Call<'a>) -> Result<Pair<'a>, Stop> {
    let (a, b) = (call.x(0)?, call.x(1)?);
    if call.version >= 7 || !call.flag("broadcast", false) {
        return Ok((a, b));
    }
    let (of_a, of_b) = (call.shape_of(0)?, call.shape_of(1)?);
    let first = match call.maybe_int("axis") {
        Some(axis) => axis_index(axis, of_a.rank())?,
        None => of_a.rank().saturating_sub(of_b.rank()),
    };
    let behind = of_a.rank().saturating_sub(first + of_b.rank());
    let axes: Vec<isize> = (0..behind).map(|i| (of_b.rank() + i) as isize).collect();
    Ok((a, call.ops.unsqueeze(b, &axes)?))
}

/// A result of the operands' type.
fn arithmetic<'a>(
    call: &Call<'a>,
    f: impl FnOnce(&'a TensorCommands<'a, 'a>, TensorValue<'a>, TensorValue<'a>) -> OpResult<TensorValue<'a>>,
) -> Outputs<'a> {
    let (a, b) = operands(call)?;
    call.like(0, call.narrowed(f(call.ops, a, b)?, call.type_of(0)?)?)
}

/// A truth value.
fn compare<'a>(
    call: &Call<'a>,
    f: impl FnOnce(&'a TensorCommands<'a, 'a>, TensorValue<'a>, TensorValue<'a>) -> OpResult<TensorValue<'a>>,
) -> Outputs<'a> {
    let (a, b) = operands(call)?;
    one(f(call.ops, a, b)?, ElementType::Bool)
}

fn modulo<'a>(call: &Call<'a>) -> Outputs<'a> {
    if call.flag("fmod", false) {
        arithmetic(call, |ops, a, b| ops.rem(a, b))
    } else {
        arithmetic(call, |ops, a, b| ops.modulo(a, b))
    }
}

/// Base and exponent may differ in type. The result has the base's.
fn pow<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (base, exponent) = operands(call)?;
    let (of_base, of_exponent) = (call.dtype_of(0)?, call.dtype_of(1)?);
    if let Some(value) = call.value(1).and_then(|value| value.as_host())
        && of_base.is_float()
        && value.elements() == 1
        && value.shape().rank() <= call.shape_of(0)?.rank()
    {
        // Small powers are products: faster than `pow`, and exact in sign.
        match value.to_f64()?.first() {
            Some(1.0) => return call.like(0, base),
            Some(2.0) => return call.like(0, call.ops.mul(base, base)?),
            Some(3.0) => return call.like(0, call.ops.mul(call.ops.mul(base, base)?, base)?),
            Some(0.5) => return call.like(0, call.ops.sqrt(base)?),
            Some(-1.0) => return call.like(0, call.ops.recip(base)?),
            _ => {}
        }
    }
    if of_exponent.is_float() && !of_base.is_float() {
        let power = call.ops.pow(call.ops.cast(base, DType::F32)?, call.ops.cast(exponent, DType::F32)?)?;
        return call.like(0, call.converted(power, ElementType::Float32, call.type_of(0)?)?);
    }
    let power = call.ops.pow(base, call.ops.cast(exponent, of_base)?)?;
    call.like(0, call.narrowed(power, call.type_of(0)?)?)
}

fn bit_shift<'a>(call: &Call<'a>) -> Outputs<'a> {
    match call.text("direction", "") {
        "LEFT" => arithmetic(call, |ops, a, b| ops.shift_left(a, b)),
        "RIGHT" => arithmetic(call, |ops, a, b| ops.shift_right(a, b)),
        other => failed(format!("{other:?} is not a direction")),
    }
}

/// Before version 7 a slope of one axis belongs to the channels.
fn prelu<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, mut slope) = (call.x(0)?, call.x(1)?);
    let (of_x, of_slope) = (call.shape_of(0)?, call.shape_of(1)?);
    if call.version < 7 && of_slope.rank() == 1 && of_x.rank() > 2 && of_slope[0] != 1 {
        let axes: Vec<isize> = (1..of_x.rank() as isize - 1).collect();
        slope = call.ops.unsqueeze(slope, &axes)?;
    }
    call.like(0, call.ops.prelu(x, slope)?)
}

fn choose<'a>(call: &Call<'a>) -> Outputs<'a> {
    call.like(1, call.ops.select(call.x(0)?, call.x(1)?, call.x(2)?)?)
}

/// All inputs, combined from the first to the last.
fn folded<'a>(
    call: &Call<'a>,
    f: impl Fn(&'a TensorCommands<'a, 'a>, TensorValue<'a>, TensorValue<'a>) -> OpResult<TensorValue<'a>>,
) -> Result<TensorValue<'a>, Stop> {
    let mut all = call.x(0)?;
    for i in 1..call.count() {
        all = f(call.ops, all, call.x(i)?)?;
    }
    Ok(all)
}

fn fold<'a>(
    call: &Call<'a>,
    f: impl Fn(&'a TensorCommands<'a, 'a>, TensorValue<'a>, TensorValue<'a>) -> OpResult<TensorValue<'a>>,
) -> Outputs<'a> {
    call.like(0, folded(call, f)?)
}

fn mean<'a>(call: &Call<'a>) -> Outputs<'a> {
    let sum = folded(call, |ops, a, b| ops.add(a, b))?;
    call.like(0, call.ops.div(sum, call.count() as f32)?)
}
