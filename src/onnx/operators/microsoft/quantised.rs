//! Quantised operators of onnxruntime.

use super::super::super::call::{Call, Outputs, Stop, device_type, failed, one};
use super::super::super::value::Value;
use super::super::quantise::{self, dynamically, saturated};
use super::super::windows::average_of;
use super::super::{Operator, refuse};
use super::DOMAIN;
use crate::formats::onnx::ElementType;
use crate::ir::DType;
use crate::record::{TensorCommands, TensorOperand, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::of(DOMAIN, "QuantizeLinear").record(quantise::quantize),
    Operator::of(DOMAIN, "DequantizeLinear").record(quantise::dequantize),
    Operator::of(DOMAIN, "QLinearAdd").record(add),
    Operator::of(DOMAIN, "QLinearMul").record(mul),
    Operator::of(DOMAIN, "QLinearWhere").record(choose),
    Operator::of(DOMAIN, "QLinearAveragePool").record(|call| unary(call, average)),
    Operator::of(DOMAIN, "QLinearSoftmax").record(softmax),
    Operator::of(DOMAIN, "QLinearReduceMean").record(|call| unary(call, mean)),
    Operator::of(DOMAIN, "QLinearSigmoid").record(|call| unary(call, |call, x| Ok(call.ops.sigmoid(x)?))),
    Operator::of(DOMAIN, "QLinearLeakyRelu")
        .record(|call| unary(call, |call, x| Ok(call.ops.leaky_relu(x, call.float("alpha", 0.01))?))),
    Operator::of(DOMAIN, "QLinearGlobalAveragePool").record(|call| unary(call, global_average)),
    Operator::of(DOMAIN, "QLinearConcat").record(concat),
    Operator::of(DOMAIN, "QGemm").record(gemm),
    Operator::of(DOMAIN, "DynamicQuantizeMatMul").record(dynamic_matmul),
    Operator::of(DOMAIN, "MatMulIntegerToFloat").record(matmul_to_float),
    Operator::of(DOMAIN, "DynamicQuantizeLSTM").record(dynamic_lstm),
    Operator::of(DOMAIN, "MatMulNBits").record(matmul_n_bits),
];

/// `(x − zero) · scale` of the inputs with these numbers. Parameters are for the whole value, or for its last axis.
fn real<'a>(call: &Call<'a>, x: usize, scale: usize, zero: usize) -> Result<TensorValue<'a>, Stop> {
    let ops = call.ops;
    let mut wide = call.x_as(x, DType::I32)?;
    if let Some(zero) = call.maybe(zero)? {
        wide = ops.sub(wide, flat(call, ops.cast(zero, DType::I32)?)?)?;
    }
    Ok(ops.mul(ops.cast(wide, DType::F32)?, flat(call, call.x_as(scale, DType::F32)?)?)?)
}

/// One number without axes; more numbers as they are.
fn flat<'a>(call: &Call<'a>, value: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    let one = call.ops.shape(value)?.elements() == 1;
    Ok(if one { call.ops.reshape(value, &[])? } else { value })
}

/// A real value in the quantised type of an input, with the scale and zero point in these inputs.
fn requantised<'a>(call: &Call<'a>, y: TensorValue<'a>, scale: usize, zero: usize, to: ElementType) -> Outputs<'a> {
    let ops = call.ops;
    let scaled = ops.div(y, flat(call, call.x_as(scale, DType::F32)?)?)?;
    let zero = match call.maybe(zero)? {
        Some(zero) => Some(flat(call, ops.cast(zero, DType::F32)?)?),
        None => None,
    };
    one(saturated(call, scaled, zero, to)?, to)
}

/// `round(a · a_scale / y_scale + b · b_scale / y_scale + rest)`, where the rest is all about zero points. The order of
/// the steps is onnxruntime's, so that halves are rounded the same way.
fn add<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let number = |i: usize| -> Result<TensorValue<'a>, Stop> { flat(call, call.x_as(i, DType::F32)?) };
    let (of_a, of_b) = (ops.div(number(1)?, number(6)?)?, ops.div(number(4)?, number(6)?)?);
    let mut rest = if call.has(7) { number(7)? } else { call.number(0.0, DType::F32) };
    for (zero, ratio) in [(2, of_a), (5, of_b)] {
        if call.has(zero) {
            rest = ops.sub(rest, ops.mul(number(zero)?, ratio)?)?;
        }
    }
    let sum = ops.add(ops.mul(call.x_as(0, DType::F32)?, of_a)?, rest)?;
    let sum = ops.add(sum, ops.mul(call.x_as(3, DType::F32)?, of_b)?)?;
    let to = call.type_of(0)?;
    one(saturated(call, sum, None, to)?, to)
}

/// The exact product of the integers, times one factor. The zero point is added before rounding.
fn mul<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let centred = |x: usize, zero: usize| -> Result<TensorValue<'a>, Stop> {
        let x = call.x_as(x, DType::I32)?;
        Ok(match call.maybe(zero)? {
            Some(zero) => ops.sub(x, flat(call, ops.cast(zero, DType::I32)?)?)?,
            None => x,
        })
    };
    let product = ops.cast(ops.mul(centred(0, 2)?, centred(3, 5)?)?, DType::F32)?;
    let number = |i: usize| -> Result<TensorValue<'a>, Stop> { flat(call, call.x_as(i, DType::F32)?) };
    let factor = ops.div(ops.mul(number(1)?, number(4)?)?, number(6)?)?;
    let mut y = ops.mul(product, factor)?;
    if call.has(7) {
        y = ops.add(y, number(7)?)?;
    }
    let to = call.type_of(0)?;
    one(saturated(call, y, None, to)?, to)
}

fn choose<'a>(call: &Call<'a>) -> Outputs<'a> {
    let y = call.ops.select(call.x(0)?, real(call, 1, 2, 3)?, real(call, 4, 5, 6)?)?;
    requantised(call, y, 7, 8, call.type_of(1)?)
}

fn average<'a>(call: &Call<'a>, x: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    match call.flag("channels_last", false) {
        true => refuse("pooling with channels last"),
        false => average_of(call, x),
    }
}

fn mean<'a>(call: &Call<'a>, x: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    let axes = match call.ints("axes") {
        Some(axes) => crate::record::Axes::of(super::super::super::call::signed(axes)),
        None => crate::record::Axes::ALL,
    };
    Ok(call.ops.mean(x, if call.flag("keepdims", true) { axes.keep() } else { axes })?)
}

/// Before version 13 of the standard operators all axes from the given one on are taken as one.
fn softmax<'a>(call: &Call<'a>) -> Outputs<'a> {
    let rank = call.shape_of(0)?.rank();
    let axis = super::super::super::call::axis_index(call.int("axis", -1), rank)?;
    if call.int("opset", 13) < 13 && axis + 1 != rank {
        return refuse("a softmax over several axes");
    }
    let y = call.ops.softmax(real(call, 0, 1, 2)?, axis)?;
    requantised(call, y, 3, 4, call.type_of(0)?)
}

fn unary<'a>(
    call: &Call<'a>,
    f: impl FnOnce(&Call<'a>, TensorValue<'a>) -> Result<TensorValue<'a>, Stop>,
) -> Outputs<'a> {
    let y = f(call, real(call, 0, 1, 2)?)?;
    requantised(call, y, 3, 4, call.type_of(0)?)
}

fn global_average<'a>(call: &Call<'a>, x: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    if call.flag("channels_last", false) {
        let rank = call.ops.shape(x)?.rank() as isize;
        return Ok(call.ops.mean(x, crate::record::Axes::of(1..rank - 1).keep())?);
    }
    Ok(call.ops.global_avg_pool(x)?)
}

/// The output's parameters come first, then value, scale and zero point of each part.
fn concat<'a>(call: &Call<'a>) -> Outputs<'a> {
    let mut parts = Vec::new();
    for i in (2..call.count()).step_by(3) {
        parts.push(real(call, i, i + 1, i + 2)?);
    }
    let axis = super::super::super::call::signed(&[call.int("axis", 1)])[0];
    let y = call.ops.concat(parts, axis)?;
    requantised(call, y, 0, 1, call.type_of(1)?)
}

/// `alpha · a · b + c`, with `c` in 32-bit integers of the product's scale.
fn gemm<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let centred = |x: usize, zero: usize| -> Result<TensorValue<'a>, Stop> {
        let x = call.x_as(x, DType::I32)?;
        Ok(match call.maybe(zero)? {
            Some(zero) => ops.sub(x, flat(call, ops.cast(zero, DType::I32)?)?)?,
            None => x,
        })
    };
    let mut a = centred(0, 2)?;
    if call.flag("transA", false) {
        a = ops.transpose(a)?;
    }
    // Parameters per column belong to the rows of a transposed matrix.
    let transposed = call.flag("transB", false);
    let b = call.x_as(3, DType::I32)?;
    let mut b = if transposed { ops.transpose(b)? } else { b };
    if let Some(zero) = call.maybe(5)? {
        b = ops.sub(b, flat(call, ops.cast(zero, DType::I32)?)?)?;
    }
    let mut sums = ops.matmul(a, b)?;
    if let Some(c) = call.maybe(6)? {
        sums = ops.add(sums, ops.cast(c, DType::I32)?)?;
    }
    let scale = ops.mul(flat(call, call.x_as(1, DType::F32)?)?, flat(call, call.x_as(4, DType::F32)?)?)?;
    let y = ops.mul(ops.mul(ops.cast(sums, DType::F32)?, scale)?, call.float("alpha", 1.0))?;
    if call.has(7) {
        return requantised(call, y, 7, 8, call.type_of(0)?);
    }
    one(y, ElementType::Float32)
}

/// The product of bytes with their zero points, as f32 and scaled.
struct Product<'a> {
    a: TensorValue<'a>,
    a_zero: Option<TensorValue<'a>>,
    a_scale: TensorValue<'a>,
    b: usize,
    b_scale: usize,
    b_zero: usize,
    bias: usize,
}

impl<'a> Product<'a> {
    fn value(self, call: &Call<'a>) -> Result<TensorValue<'a>, Stop> {
        let ops = call.ops;
        let centred = |x: TensorValue<'a>, zero: Option<TensorValue<'a>>| -> Result<TensorValue<'a>, Stop> {
            let x = ops.cast(x, DType::I32)?;
            Ok(match zero {
                Some(zero) => ops.sub(x, flat(call, ops.cast(zero, DType::I32)?)?)?,
                None => x,
            })
        };
        let sums = ops.matmul(centred(self.a, self.a_zero)?, centred(call.x(self.b)?, call.maybe(self.b_zero)?)?)?;
        let scale = ops.mul(flat(call, self.a_scale)?, flat(call, call.x_as(self.b_scale, DType::F32)?)?)?;
        let y = ops.mul(ops.cast(sums, DType::F32)?, scale)?;
        Ok(match call.maybe(self.bias)? {
            Some(bias) => ops.add(y, ops.cast(bias, DType::F32)?)?,
            None => y,
        })
    }
}

fn dynamic_matmul<'a>(call: &Call<'a>) -> Outputs<'a> {
    let [a, a_scale, zero] = dynamically(call, call.x_as(0, DType::F32)?)?;
    let product = Product { a, a_zero: Some(zero), a_scale, b: 1, b_scale: 2, b_zero: 3, bias: 4 };
    one(product.value(call)?, ElementType::Float32)
}

fn matmul_to_float<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (a, a_zero, a_scale) = (call.x(0)?, call.maybe(4)?, call.x_as(2, DType::F32)?);
    let to = call.type_of(2)?;
    let y = Product { a, a_zero, a_scale, b: 1, b_scale: 3, b_zero: 5, bias: 6 }.value(call)?;
    one(call.ops.cast(y, device_type(to)?)?, to)
}

/// The weights are `[directions, input, 4 · hidden]`, quantised. They are made floats again; the input is not quantised,
/// which is closer to the layer before quantisation than onnxruntime's own steps.
fn dynamic_lstm<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    if call.has(4) || call.has(7) || call.floats("activation_alpha").is_some() || call.maybe_float("clip").is_some() {
        return refuse("sequence lengths, peepholes or other activations in a quantised LSTM");
    }
    let weights = |x: usize, scale: usize, zero: usize| -> Result<TensorValue<'a>, Stop> {
        // One parameter per direction, or one per direction and column.
        let laid = |value: TensorValue<'a>| -> Result<TensorValue<'a>, Stop> {
            let shape = ops.shape(value)?;
            let directions = shape.first().copied().unwrap_or(1) as isize;
            Ok(ops.reshape(value, &[directions, 1, if shape.rank() > 1 { shape[1] as isize } else { 1 }])?)
        };
        let mut wide = call.x_as(x, DType::I32)?;
        if let Some(zero) = call.maybe(zero)? {
            wide = ops.sub(wide, laid(ops.cast(zero, DType::I32)?)?)?;
        }
        Ok(ops.transpose(ops.mul(ops.cast(wide, DType::F32)?, laid(call.x_as(scale, DType::F32)?)?)?)?)
    };
    let (w, r) = (weights(1, 8, 9)?, weights(2, 10, 11)?);
    let directions = ops.shape(w)?[0];
    let reversed = match call.text("direction", "forward") {
        "forward" => [false, false],
        "reverse" => [true, true],
        "bidirectional" => [false, true],
        other => return failed(format!("{other:?} is not a direction")),
    };
    let part = |x: Option<TensorValue<'a>>, i: usize| -> Result<Option<TensorOperand<'a>>, Stop> {
        let Some(x) = x else { return Ok(None) };
        Ok(Some(ops.squeeze(ops.slice(x, 0, i as isize, i as isize + 1)?, 0)?.into()))
    };
    let (mut all, mut last, mut cells) = (Vec::new(), Vec::new(), Vec::new());
    for (i, &reversed) in reversed.iter().enumerate().take(directions) {
        let (Some(w), Some(r)) = (part(Some(w), i)?, part(Some(r), i)?) else { return failed("no weights") };
        let (bias, h, c) = (part(call.maybe(3)?, i)?, part(call.maybe(5)?, i)?, part(call.maybe(6)?, i)?);
        let layer = if reversed { TensorCommands::lstm_reverse } else { TensorCommands::lstm };
        let (y, h, c) = layer(ops, call.x(0)?, w, r, bias, h, c)?;
        all.push(y);
        last.push(h);
        cells.push(c);
    }
    let outputs = [ops.stack(all, 1)?, ops.stack(last, 0)?, ops.stack(cells, 0)?];
    Ok(outputs.map(|value| Some(Value::Device(value, ElementType::Float32))).into())
}

/// Weights of 4 or 8 bits in blocks along the inner axis: `[n, blocks, bytes]` with a scale and a zero point per block.
fn matmul_n_bits<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let (k, n, bits) = (call.int("K", 0), call.int("N", 0), call.int("bits", 4));
    let block = call.int("block_size", 0);
    if !matches!(bits, 2 | 4 | 8) || k <= 0 || n <= 0 || block <= 0 {
        return refuse(format!("weights of {bits} bits in blocks of {block}"));
    }
    if call.has(4) {
        return refuse("weights in an order of their own (g_idx)");
    }
    let (k, n, block) = (k as isize, n as isize, block as isize);
    let blocks = (k + block - 1) / block;
    // `[n, blocks, block]`.
    let bytes = ops.reshape(call.x(1)?, &[n, blocks, -1])?;
    let codes = ops.slice(ops.reshape(unpacked(call, bytes, bits)?, &[n, blocks, -1])?, 2, 0, block)?;
    let zero = match call.maybe(3)? {
        None => call.number(f64::from(1u32 << (bits - 1)), DType::F32),
        Some(zero) if call.type_of(3)? == ElementType::Uint8 => {
            let packed = ops.reshape(zero, &[n, -1])?;
            let zeros = ops.slice(ops.reshape(unpacked(call, packed, bits)?, &[n, -1])?, 1, 0, blocks)?;
            ops.reshape(ops.cast(zeros, DType::F32)?, &[n, blocks, 1])?
        }
        Some(zero) => ops.reshape(ops.cast(zero, DType::F32)?, &[n, blocks, 1])?,
    };
    let scale = ops.reshape(call.x_as(2, DType::F32)?, &[n, blocks, 1])?;
    let weight = ops.mul(ops.sub(ops.cast(codes, DType::F32)?, zero)?, scale)?;
    let weight = ops.slice(ops.reshape(weight, &[n, blocks * block])?, 1, 0, k)?;
    let weight = ops.cast(weight, call.dtype_of(0)?)?;
    let bias = call.maybe(5)?.map(TensorOperand::from);
    call.like(0, ops.linear(call.x(0)?, weight, bias)?)
}

/// Bytes as the numbers packed into them, lowest bits first, along a new last axis.
fn unpacked<'a>(call: &Call<'a>, bytes: TensorValue<'a>, bits: i64) -> Result<TensorValue<'a>, Stop> {
    let ops = call.ops;
    if bits == 8 {
        return Ok(ops.unsqueeze(bytes, &[-1])?);
    }
    let span = 1u32 << bits;
    let mut parts = Vec::new();
    let mut rest = ops.cast(bytes, DType::I32)?;
    for _ in 0..8 / bits {
        parts.push(ops.modulo(rest, span)?);
        rest = ops.div(rest, span)?;
    }
    Ok(ops.stack(parts, -1)?)
}
