//! Fused elementwise work, norms and products.

use super::super::super::call::{Call, Outputs, Stop, failed};
use super::super::super::value::Value;
use super::super::elementwise::unary;
use super::super::norm::parameter;
use super::super::windows::run_conv;
use super::super::{Operator, refuse};
use super::DOMAIN;
use crate::formats::onnx::ElementType;
use crate::ir::DType;
use crate::record::{Axes, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::of(DOMAIN, "Gelu").record(|call| unary(call, |ops, x| ops.gelu(x))),
    Operator::of(DOMAIN, "QuickGelu").record(quick_gelu),
    Operator::of(DOMAIN, "FastGelu").record(|call| {
        let x = biased(call, 0, 1)?;
        call.like(0, call.ops.gelu_tanh(x)?)
    }),
    Operator::of(DOMAIN, "BiasGelu").record(|call| {
        let x = biased(call, 0, 1)?;
        call.like(0, call.ops.gelu(x)?)
    }),
    Operator::of(DOMAIN, "FusedMatMul").record(fused_matmul),
    Operator::of(DOMAIN, "TransposeMatMul").record(fused_matmul),
    Operator::of(DOMAIN, "FusedGemm").record(fused_gemm),
    Operator::of(DOMAIN, "FusedConv").record(fused_conv),
    Operator::of(DOMAIN, "SkipLayerNormalization").record(|call| skip_norm(call, Norm::Layer)),
    Operator::of(DOMAIN, "SkipSimplifiedLayerNormalization").record(|call| skip_norm(call, Norm::Rms)),
    Operator::of(DOMAIN, "SimplifiedLayerNormalization").record(simplified_norm),
    // onnxruntime has it in the standard domain.
    Operator::new("SimplifiedLayerNormalization").record(simplified_norm),
    Operator::of(DOMAIN, "GatherND").record(super::super::indexing::gather_nd),
    Operator::of(DOMAIN, "Trilu").record(super::super::generate::triangle),
    Operator::of(DOMAIN, "ExpandDims").record(expand_dims),
    Operator::of(DOMAIN, "EmbedLayerNormalization").record(embed_norm),
];

fn expand_dims<'a>(call: &Call<'a>) -> Outputs<'a> {
    let axis = super::super::super::call::signed(&call.host_ints(1)?.unwrap_or_default());
    call.like(0, call.ops.unsqueeze(call.x(0)?, &axis)?)
}

/// An input plus an optional bias.
fn biased<'a>(call: &Call<'a>, x: usize, bias: usize) -> Result<TensorValue<'a>, Stop> {
    let x = call.x(x)?;
    match call.maybe(bias)? {
        Some(bias) => Ok(call.ops.add(x, bias)?),
        None => Ok(x),
    }
}

fn quick_gelu<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, alpha) = (call.x(0)?, call.float("alpha", 1.702));
    call.like(0, call.ops.mul(x, call.ops.sigmoid(x * alpha)?)?)
}

/// A matrix with its last two axes swapped, or with the first axis moved before the last.
fn laid<'a>(call: &Call<'a>, i: usize, transposed: bool, batch: bool) -> Result<TensorValue<'a>, Stop> {
    let mut x = call.x(i)?;
    let rank = call.shape_of(i)?.rank() as isize;
    if batch && rank > 2 {
        // `[m, …, k]` is a batch of `[…, m, k]`.
        let order: Vec<isize> = (1..rank - 1).chain([0, rank - 1]).collect();
        x = call.ops.permute(x, &order)?;
    }
    Ok(if transposed && rank > 1 { call.ops.transpose(x)? } else { x })
}

fn fused_matmul<'a>(call: &Call<'a>) -> Outputs<'a> {
    let a = laid(call, 0, call.flag("transA", false), call.flag("transBatchA", false))?;
    let b = laid(call, 1, call.flag("transB", false), call.flag("transBatchB", false))?;
    let product = call.ops.matmul(a, b)?;
    let alpha = call.float("alpha", 1.0);
    call.like(0, if alpha == 1.0 { product } else { call.ops.mul(product, alpha)? })
}

/// The activation that a fused node ends with.
fn activated<'a>(call: &Call<'a>, x: TensorValue<'a>, numbers: &[f32]) -> Result<TensorValue<'a>, Stop> {
    let number = |i: usize, default: f32| numbers.get(i).copied().unwrap_or(default);
    let ops = call.ops;
    Ok(match call.text("activation", "") {
        "" => x,
        "Relu" => ops.relu(x)?,
        "Tanh" => ops.tanh(x)?,
        "Sigmoid" => ops.sigmoid(x)?,
        "LeakyRelu" => ops.leaky_relu(x, number(0, 0.01))?,
        "HardSigmoid" => ops.hard_sigmoid(x, number(0, 0.2), number(1, 0.5))?,
        "Clip" => ops.clamp(x, number(0, f32::NEG_INFINITY).into(), number(1, f32::INFINITY).into())?,
        "HardSwish" => ops.hard_swish(x)?,
        other => return refuse(format!("the activation {other:?}")),
    })
}

fn fused_gemm<'a>(call: &Call<'a>) -> Outputs<'a> {
    let a = laid(call, 0, call.flag("transA", false), false)?;
    let b = laid(call, 1, call.flag("transB", false), false)?;
    let mut y = call.ops.mul(call.ops.matmul(a, b)?, call.float("alpha", 1.0))?;
    if let Some(c) = call.maybe(2)? {
        y = call.ops.add(y, call.ops.mul(c, call.float("beta", 1.0))?)?;
    }
    let numbers = [call.float("activation_alpha", 0.01), call.float("activation_beta", 0.5)];
    call.like(0, activated(call, y, &numbers)?)
}

fn fused_conv<'a>(call: &Call<'a>) -> Outputs<'a> {
    let mut y = run_conv(call, call.x(0)?, call.x(1)?, call.maybe(2)?)?;
    if let Some(sum) = call.maybe(3)? {
        y = call.ops.add(y, sum)?;
    }
    call.like(0, activated(call, y, call.floats("activation_params").unwrap_or_default())?)
}

#[derive(Clone, Copy, PartialEq)]
enum Norm {
    Layer,
    Rms,
}

/// The norm of `input + skip + bias`. The sum is output 3.
fn skip_norm<'a>(call: &Call<'a>, norm: Norm) -> Outputs<'a> {
    let (element, dtype) = (call.type_of(0)?, call.dtype_of(0)?);
    let eps = call.float("epsilon", 1e-12);
    let bias = if norm == Norm::Layer { 4 } else { 3 };
    let mut sum = call.ops.add(call.x(0)?, call.x(1)?)?;
    if let Some(bias) = call.maybe(bias)? {
        sum = call.ops.add(sum, bias)?;
    }
    let weight = parameter(call, 2, dtype)?.map(Into::into);
    let y = match norm {
        Norm::Layer => call.ops.layer_norm(sum, weight, parameter(call, 3, dtype)?.map(Into::into), -1, eps)?,
        Norm::Rms => call.ops.rms_norm(sum, weight, -1, eps)?,
    };
    let [mean, inverse] = statistics(call, sum, norm, eps)?;
    Ok(vec![Some(Value::Device(y, element)), mean, inverse, Some(Value::Device(sum, element))])
}

/// The mean and the inverse deviation along the last axis, if the node names them.
fn statistics<'a>(call: &Call<'a>, x: TensorValue<'a>, norm: Norm, eps: f32) -> Result<[Option<Value<'a>>; 2], Stop> {
    if !call.wants(1) && !call.wants(2) {
        return Ok([None, None]);
    }
    let ops = call.ops;
    let x = ops.cast(x, DType::F32)?;
    let last = || Axes::of([-1isize]).keep();
    let mean = ops.mean(x, last())?;
    let spread = match norm {
        Norm::Layer => ops.var(x, last(), 0)?,
        Norm::Rms => ops.mean(ops.mul(x, x)?, last())?,
    };
    let inverse = ops.rsqrt(spread + eps)?;
    Ok([mean, inverse].map(|value| Some(Value::Device(value, ElementType::Float32))))
}

fn simplified_norm<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (axis, eps) = (call.int("axis", -1), call.float("epsilon", 1e-5));
    let (element, dtype) = (call.type_of(0)?, call.dtype_of(0)?);
    let x = call.x(0)?;
    let axis = super::super::super::call::signed(&[axis])[0];
    let y = call.ops.rms_norm(x, parameter(call, 1, dtype)?.map(Into::into), axis, eps)?;
    let mut outputs = vec![Some(Value::Device(y, element))];
    if call.wants(1) {
        let wide = call.ops.cast(x, DType::F32)?;
        let rank = call.shape_of(0)?.rank() as isize;
        let first = if axis < 0 { axis + rank } else { axis };
        let squares = call.ops.mean(call.ops.mul(wide, wide)?, Axes::of(first..rank).keep())?;
        outputs.push(Some(Value::Device(call.ops.rsqrt(squares + eps)?, ElementType::Float32)));
    }
    Ok(outputs)
}

/// Words, positions and segments are looked up, added and normalised.
fn embed_norm<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let ids = call.x(0)?;
    let of_ids = call.shape_of(0)?;
    let &[batch, length] = &of_ids[..] else { return failed(format!("{of_ids} is not [batch, tokens]")) };
    let mut sum = ops.embedding(call.x(2)?, ids)?;
    let positions = match call.maybe(8)? {
        Some(positions) => ops.embedding(call.x(3)?, positions)?,
        None => ops.slice(call.x(3)?, 0, 0, length as isize)?,
    };
    sum = ops.add(sum, positions)?;
    if let (Some(segments), Some(table)) = (call.maybe(1)?, call.maybe(4)?) {
        sum = ops.add(sum, ops.embedding(table, segments)?)?;
    }
    let y = ops.layer_norm(sum, call.x(5)?, call.x(6)?, -1, call.float("epsilon", 1e-12))?;
    let element = call.type_of(2)?;
    // How many tokens of each row are not masked.
    let lengths = match call.maybe(7)? {
        Some(mask) => ops.sum(ops.cast(mask, DType::I32)?, Axes::of([1isize]))?,
        None => call.full([batch], 0.0, DType::I32)?,
    };
    Ok(vec![
        Some(Value::Device(y, element)),
        Some(Value::Device(lengths, ElementType::Int32)),
        Some(Value::Device(sum, element)),
    ])
}
