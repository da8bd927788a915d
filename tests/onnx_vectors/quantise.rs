//! Quantisation with basic ops: divide, round, clamp, cast.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, Stop, index, one, unsupported};
use super::case::{device_type, onnx_type};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    Some(match call.case.op.as_str() {
        "QuantizeLinear" => quantise(call),
        "DequantizeLinear" => dequantise(call),
        "DynamicQuantizeLinear" => dynamic(call),
        "MatMulInteger" => matmul_integer(call),
        "QLinearMatMul" => quantised_matmul(call),
        _ => return None,
    })
}

/// The range of an integer type.
fn range(onnx: &str) -> Result<(f64, f64), Stop> {
    Ok(match onnx {
        "INT2" => (-2.0, 1.0),
        "UINT2" => (0.0, 3.0),
        "INT4" => (-8.0, 7.0),
        "UINT4" => (0.0, 15.0),
        "INT8" => (-128.0, 127.0),
        "UINT8" => (0.0, 255.0),
        "INT16" => (-32768.0, 32767.0),
        "UINT16" => (0.0, 65535.0),
        other => return unsupported(format!("{other} is no tensor type")),
    })
}

/// Expands a scale or zero point to the shape of its tensor: one value for all, one per index of an axis, or one per
/// block of an axis.
fn spread<'a>(call: &Call<'a>, i: usize, dtype: DType) -> Result<Option<TensorValue<'a>>, Stop> {
    let Some(parameter) = call.maybe(i)? else { return Ok(None) };
    let (shape, of_x) = (call.shape_of(i), call.shape_of(0));
    let parameter = call.ops.cast(parameter, dtype)?;
    let axis = index(call.case.int("axis", 1), of_x.len().max(1));
    let block = call.case.int("block_size", 0) as usize;
    Ok(Some(if shape.iter().product::<usize>() == 1 && block == 0 {
        call.ops.reshape(parameter, &[])?
    } else if block > 0 {
        let repeated = call.ops.repeat(parameter, axis, block)?;
        call.ops.slice(repeated, axis, 0, of_x[axis] as isize)?
    } else {
        let mut sizes = vec![1; of_x.len()];
        sizes[axis] = -1;
        call.ops.reshape(parameter, &sizes)?
    }))
}

/// `saturate(round(x / scale) + zero)` as an integer type.
fn saturate<'a>(
    call: &Call<'a>,
    scaled: TensorValue<'a>,
    zero: Option<TensorValue<'a>>,
    onnx: &str,
) -> Result<TensorValue<'a>, Stop> {
    let (low, high) = range(onnx)?;
    let mut value = call.ops.round(scaled)?;
    if let Some(zero) = zero {
        value = call.ops.add(value, zero)?;
    }
    let clamped = call.ops.clamp(value, low, high)?;
    let to = device_type(onnx).map_err(Stop::Unsupported)?;
    Ok(call.ops.cast(clamped, to)?)
}

fn quantise<'a>(call: &Call<'a>) -> Outputs<'a> {
    let named = call.case.int("output_dtype", 0);
    let onnx = if named == 0 { call.onnx_of(2).unwrap_or("UINT8") } else { onnx_type(named) };
    range(onnx)?;
    let Some(scale) = spread(call, 1, DType::F32)? else { return unsupported("no scale") };
    let zero = spread(call, 2, DType::F32)?;
    let x = call.x(0)?;
    let x = call.ops.cast(x, DType::F32)?;
    let scaled = call.ops.div(x, scale)?;
    one(Ok(saturate(call, scaled, zero, onnx)?))
}

fn dequantise<'a>(call: &Call<'a>) -> Outputs<'a> {
    let Some(scale) = spread(call, 1, DType::F32)? else { return unsupported("no scale") };
    let zero = spread(call, 2, DType::I32)?;
    let x = call.x(0)?;
    let mut x = call.ops.cast(x, DType::I32)?;
    if let Some(zero) = zero {
        x = call.ops.sub(x, zero)?;
    }
    let x = call.ops.cast(x, DType::F32)?;
    let value = call.ops.mul(x, scale)?;
    let to = call.type_attribute("output_dtype")?.map_or_else(|| call.dtype_of(1), Ok)?;
    one(call.ops.cast(value, to))
}

fn dynamic<'a>(call: &Call<'a>) -> Outputs<'a> {
    let x = call.x(0)?;
    let low = call.ops.min_of(x.clone(), Axes::ALL)?;
    let low = call.ops.min(low, 0.0)?;
    let high = call.ops.max_of(x.clone(), Axes::ALL)?;
    let high = call.ops.max(high, 0.0)?;
    let width = call.ops.sub(high, low)?;
    let scale = call.ops.div(width, 255.0)?;
    let start = call.ops.div(-low, scale)?;
    let start = call.ops.round(start)?;
    let zero = call.ops.clamp(start, 0.0, 255.0)?;
    let scaled = call.ops.div(x, scale)?;
    let y = saturate(call, scaled, Some(zero), "UINT8")?;
    let zero = call.ops.cast(zero, DType::U8)?;
    Ok(vec![Some(y), Some(scale), Some(zero)])
}

/// An integer matrix minus its zero point. Zero points of the left matrix belong to rows, those of the right one to
/// columns.
fn centred<'a>(call: &Call<'a>, matrix: usize, zero: usize, rows: bool) -> Result<TensorValue<'a>, Stop> {
    let x = call.x(matrix)?;
    let x = call.ops.cast(x, DType::I32)?;
    let Some(point) = along(call, zero, DType::I32, rows)? else { return Ok(x) };
    Ok(call.ops.sub(x, point)?)
}

/// A parameter per row or per column of a matrix, or one for all.
fn along<'a>(call: &Call<'a>, i: usize, dtype: DType, rows: bool) -> Result<Option<TensorValue<'a>>, Stop> {
    let Some(parameter) = call.maybe(i)? else { return Ok(None) };
    let shape = call.shape_of(i);
    let parameter = call.ops.cast(parameter, dtype)?;
    Ok(Some(if shape.is_empty() || shape == [1] {
        call.ops.reshape(parameter, &[])?
    } else if shape.len() == 1 && rows {
        call.ops.reshape(parameter, &[-1, 1])?
    } else {
        parameter
    }))
}

fn matmul_integer<'a>(call: &Call<'a>) -> Outputs<'a> {
    let a = centred(call, 0, 2, true)?;
    let b = centred(call, 1, 3, false)?;
    one(call.ops.matmul(a, b))
}

fn quantised_matmul<'a>(call: &Call<'a>) -> Outputs<'a> {
    let a = centred(call, 0, 2, true)?;
    let b = centred(call, 3, 5, false)?;
    let product = call.ops.matmul(a, b)?;
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
    let onnx = call.onnx_of(7).unwrap_or("UINT8");
    one(Ok(saturate(call, value, zero, onnx)?))
}
