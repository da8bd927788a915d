//! Quantisation, and products of quantised values.

use super::super::call::{Call, Outputs, Stop, axis_index, device_type, failed, one};
use super::super::value::Value;
use super::Operator;
use super::windows::run_conv;
use crate::formats::onnx::ElementType;
use crate::ir::DType;
use crate::record::{Axes, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("QuantizeLinear").record(quantize),
    Operator::new("DequantizeLinear").record(dequantize),
    Operator::new("DynamicQuantizeLinear").record(dynamic),
    Operator::new("MatMulInteger").record(matmul_integer),
    Operator::new("QLinearMatMul").record(quantised_matmul),
    Operator::new("ConvInteger").record(conv_integer),
    Operator::new("QLinearConv").record(quantised_conv),
];

/// A scale or zero point laid out like the value it belongs to: one for all, one per index of an axis, or one per block
/// of an axis.
fn spread<'a>(call: &Call<'a>, i: usize, dtype: DType) -> Result<Option<TensorValue<'a>>, Stop> {
    let Some(parameter) = call.maybe(i)? else { return Ok(None) };
    let (shape, of_x) = (call.shape_of(i)?, call.shape_of(0)?);
    let parameter = call.ops.cast(parameter, dtype)?;
    let block = usize::try_from(call.int("block_size", 0)).unwrap_or(0);
    if shape.elements() == 1 && block == 0 {
        return Ok(Some(call.ops.reshape(parameter, &[])?));
    }
    let axis = axis_index(call.int("axis", 1), of_x.rank())?;
    Ok(Some(if block > 0 {
        let repeated = call.ops.repeat(parameter, axis, block)?;
        call.ops.slice(repeated, axis, 0, of_x[axis] as isize)?
    } else {
        let mut sizes = vec![1; of_x.rank()];
        sizes[axis] = -1;
        call.ops.reshape(parameter, &sizes)?
    }))
}

/// `saturate(round(scaled) + zero)` as an element type.
pub(super) fn saturated<'a>(
    call: &Call<'a>,
    scaled: TensorValue<'a>,
    zero: Option<TensorValue<'a>>,
    to: ElementType,
) -> Result<TensorValue<'a>, Stop> {
    if to.is_small_float() {
        return call.rounded_to(scaled, to, call.flag("saturate", true));
    }
    let Some((low, high)) = to.integer_range() else { return super::refuse(format!("quantised values of type {to}")) };
    let mut value = call.ops.round(scaled)?;
    if let Some(zero) = zero {
        value = call.ops.add(value, zero)?;
    }
    let clamped = call.ops.clamp(value, low as f64, high as f64)?;
    Ok(call.ops.cast(clamped, device_type(to)?)?)
}

/// The type of the zero point, or what the attribute says, or `uint8`.
pub(super) fn quantize<'a>(call: &Call<'a>) -> Outputs<'a> {
    let to = match call.value(2) {
        Some(_) => call.type_of(2)?,
        None => match call.int("output_dtype", 0) {
            0 => ElementType::Uint8,
            code => match ElementType::from_code(code) {
                Some(element) => element,
                None => return failed(format!("{code} is not an element type")),
            },
        },
    };
    let Some(scale) = spread(call, 1, DType::F32)? else { return failed("no scale") };
    let zero = if to.is_small_float() { None } else { spread(call, 2, DType::F32)? };
    let scaled = call.ops.div(call.x_as(0, DType::F32)?, scale)?;
    one(saturated(call, scaled, zero, to)?, to)
}

pub(super) fn dequantize<'a>(call: &Call<'a>) -> Outputs<'a> {
    let to = match call.int("output_dtype", 0) {
        0 => call.type_of(1)?,
        code => match ElementType::from_code(code) {
            Some(element) => element,
            None => return failed(format!("{code} is not an element type")),
        },
    };
    let Some(scale) = spread(call, 1, DType::F32)? else { return failed("no scale") };
    let mut x = call.x(0)?;
    if call.type_of(0)?.is_float() {
        if let Some(zero) = spread(call, 2, DType::F32)? {
            x = call.ops.sub(x, zero)?;
        }
    } else if let Some(zero) = spread(call, 2, DType::I32)? {
        x = call.ops.sub(call.ops.cast(x, DType::I32)?, zero)?;
    }
    let value = call.ops.mul(call.ops.cast(x, DType::F32)?, scale)?;
    one(call.ops.cast(value, device_type(to)?)?, to)
}

fn dynamic<'a>(call: &Call<'a>) -> Outputs<'a> {
    let [y, scale, zero] = dynamically(call, call.x_as(0, DType::F32)?)?;
    Ok(vec![
        Some(Value::Device(y, ElementType::Uint8)),
        Some(Value::Device(scale, ElementType::Float32)),
        Some(Value::Device(zero, ElementType::Uint8)),
    ])
}

/// A value as bytes, with its scale and zero point.
pub(super) fn dynamically<'a>(call: &Call<'a>, x: TensorValue<'a>) -> Result<[TensorValue<'a>; 3], Stop> {
    let ops = call.ops;
    let low = ops.min(ops.min_of(x, Axes::ALL)?, 0.0)?;
    let high = ops.max(ops.max_of(x, Axes::ALL)?, 0.0)?;
    let scale = ops.div(ops.sub(high, low)?, 255.0)?;
    // All zeros: any scale gives zeros.
    let scale = ops.select(ops.equal(scale, 0.0)?, 1.0, scale)?;
    let zero = ops.clamp(ops.round(ops.div(ops.neg(low)?, scale)?)?, 0.0, 255.0)?;
    let y = saturated(call, ops.div(x, scale)?, Some(zero), ElementType::Uint8)?;
    Ok([y, scale, ops.cast(zero, DType::U8)?])
}

/// A parameter per row or per column of a matrix, or one for all.
fn along<'a>(call: &Call<'a>, i: usize, dtype: DType, rows: bool) -> Result<Option<TensorValue<'a>>, Stop> {
    let Some(parameter) = call.maybe(i)? else { return Ok(None) };
    let shape = call.shape_of(i)?;
    let parameter = call.ops.cast(parameter, dtype)?;
    Ok(Some(match shape.rank() {
        _ if shape.elements() == 1 => call.ops.reshape(parameter, &[])?,
        1 if rows => call.ops.reshape(parameter, &[-1, 1])?,
        _ => parameter,
    }))
}

/// An integer matrix minus its zero point. Points of the left matrix belong to rows, those of the right to columns.
fn centred<'a>(call: &Call<'a>, matrix: usize, zero: usize, rows: bool) -> Result<TensorValue<'a>, Stop> {
    let x = call.x_as(matrix, DType::I32)?;
    match along(call, zero, DType::I32, rows)? {
        Some(point) => Ok(call.ops.sub(x, point)?),
        None => Ok(x),
    }
}

fn matmul_integer<'a>(call: &Call<'a>) -> Outputs<'a> {
    let product = call.ops.matmul(centred(call, 0, 2, true)?, centred(call, 1, 3, false)?)?;
    one(product, ElementType::Int32)
}

fn quantised_matmul<'a>(call: &Call<'a>) -> Outputs<'a> {
    let product = call.ops.matmul(centred(call, 0, 2, true)?, centred(call, 3, 5, false)?)?;
    let mut value = call.ops.cast(product, DType::F32)?;
    for (scale, rows) in [(1, true), (4, false)] {
        if let Some(scale) = along(call, scale, DType::F32, rows)? {
            value = call.ops.mul(value, scale)?;
        }
    }
    if let Some(scale) = along(call, 6, DType::F32, true)? {
        value = call.ops.div(value, scale)?;
    }
    let zero = along(call, 7, DType::F32, true)?;
    let to = call.type_of(7)?;
    one(saturated(call, value, zero, to)?, to)
}

/// Bytes minus their zero point as f32. A point per channel belongs to `axis`.
fn wide<'a>(call: &Call<'a>, i: usize, zero: usize, axis: usize) -> Result<TensorValue<'a>, Stop> {
    let x = call.x_as(i, DType::F32)?;
    match call.maybe(zero)? {
        None => Ok(x),
        Some(point) => {
            let point = per_channel(call, point, call.shape_of(i)?.rank(), axis)?;
            Ok(call.ops.sub(x, call.ops.cast(point, DType::F32)?)?)
        }
    }
}

/// One number, or one per channel, laid out to broadcast along an axis.
fn per_channel<'a>(call: &Call<'a>, value: TensorValue<'a>, rank: usize, axis: usize) -> Result<TensorValue<'a>, Stop> {
    if call.ops.shape(value)?.elements() == 1 {
        return Ok(call.ops.reshape(value, &[])?);
    }
    let mut sizes = vec![1; rank];
    sizes[axis] = -1;
    Ok(call.ops.reshape(value, &sizes)?)
}

/// The exact sums of a convolution of bytes. Floats hold sums up to 2²⁴ exactly, so channels are taken in portions that
/// cannot exceed that.
fn integer_sums<'a>(call: &Call<'a>, x: TensorValue<'a>, weight: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    let shape = call.ops.shape(weight)?;
    let window: usize = shape.iter().skip(2).product();
    let channels = shape.get(1).copied().unwrap_or(1);
    const TERMS: usize = (1 << 24) / (255 * 255);
    let portion = (TERMS / window.max(1)).max(1);
    if window > TERMS {
        return super::refuse(format!("integer convolution with a window of {window} elements"));
    }
    if channels <= portion {
        return Ok(call.ops.cast(run_conv(call, x, weight, None)?, DType::I32)?);
    }
    if call.int("group", 1) != 1 {
        return super::refuse(format!("integer convolution with groups of {channels} channels"));
    }
    let mut sum: Option<TensorValue> = None;
    for start in (0..channels).step_by(portion) {
        let end = (start + portion).min(channels) as isize;
        let part = run_conv(
            call,
            call.ops.slice(x, 1, start as isize, end)?,
            call.ops.slice(weight, 1, start as isize, end)?,
            None,
        )?;
        let part = call.ops.cast(part, DType::I32)?;
        sum = Some(match sum {
            Some(sum) => call.ops.add(sum, part)?,
            None => part,
        });
    }
    sum.map_or_else(|| failed("no channels"), Ok)
}

fn conv_integer<'a>(call: &Call<'a>) -> Outputs<'a> {
    one(integer_sums(call, wide(call, 0, 2, 1)?, wide(call, 1, 3, 0)?)?, ElementType::Int32)
}

fn quantised_conv<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (ops, rank) = (call.ops, call.shape_of(0)?.rank());
    let mut sums = integer_sums(call, wide(call, 0, 2, 1)?, wide(call, 3, 5, 0)?)?;
    if let Some(bias) = call.maybe(8)? {
        sums = ops.add(sums, per_channel(call, ops.cast(bias, DType::I32)?, rank, 1)?)?;
    }
    let (of_x, of_y) = (ops.reshape(call.x(1)?, &[])?, ops.reshape(call.x(6)?, &[])?);
    let of_weight = per_channel(call, call.x(4)?, rank, 1)?;
    let factor = ops.div(ops.mul(of_weight, of_x)?, of_y)?;
    let scaled = ops.mul(ops.cast(sums, DType::F32)?, factor)?;
    let to = call.type_of(7)?;
    let zero = ops.reshape(call.x_as(7, DType::F32)?, &[])?;
    one(saturated(call, scaled, Some(zero), to)?, to)
}
