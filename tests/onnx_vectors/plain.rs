//! Ops by their own names, for cases of operators that ONNX does not have.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, Stop, one};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    Some(match call.case.op.as_str() {
        "flip" => call.x(0).and_then(|x| one(call.ops.flip(x, axis(call)))),
        "stack" => stack(call),
        "embedding" => embedding(call),
        "quantize" => quantize(call),
        "quantize_i8" => call.x(0).and_then(|x| two(call.ops.quantize_i8(x))),
        "quantize_i8_channels" => call.x(0).and_then(|x| two(call.ops.quantize_i8_channels(x, axis(call)))),
        "dequantize_i8" => both(call, |ops, values, scale| ops.dequantize_i8(values, scale)),
        "linear_i8" => linear_i8(call),
        "rope" => rope(call),
        "rope_with" => rope_with(call),
        "pairwise_l2" => both(call, |ops, a, b| ops.pairwise_l2(a, b)),
        "pairwise_cosine" => both(call, |ops, a, b| ops.pairwise_cosine(a, b)),
        "l2_distance" => both(call, |ops, a, b| ops.l2_distance(a, b, axis(call))),
        "cosine_similarity" => {
            both(call, |ops, a, b| ops.cosine_similarity(a, b, axis(call), call.case.float("eps", 1e-8)))
        }
        "l2_normalize" => call.x(0).and_then(|x| one(call.ops.l2_normalize(x, axis(call)))),
        _ => return None,
    })
}

fn axis(call: &Call) -> TensorAxis {
    TensorAxis(call.case.int("axis", -1) as isize)
}

fn two<'a>(values: OpResult<(TensorValue<'a>, TensorValue<'a>)>) -> Outputs<'a> {
    let (a, b) = values?;
    Ok(vec![Some(a), Some(b)])
}

fn both<'a>(
    call: &Call<'a>,
    op: impl FnOnce(&'a TensorCommands<'a, 'a>, TensorOperand<'a>, TensorOperand<'a>) -> OpResult<TensorValue<'a>>,
) -> Outputs<'a> {
    let (a, b) = (call.x(0)?, call.x(1)?);
    one(op(call.ops, a, b))
}

fn stack<'a>(call: &Call<'a>) -> Outputs<'a> {
    let parts = (0..call.count()).map(|i| call.x(i)).collect::<Result<Vec<_>, Stop>>()?;
    one(call.ops.stack(parts, axis(call)))
}

/// The quantised type that a case names.
fn blocks(call: &Call) -> Option<DType> {
    match call.case.text("blocks", "") {
        "q8_0" => Some(DType::Q8_0),
        "q4_0" => Some(DType::Q4_0),
        "q4_128" => Some(DType::Q4_128),
        _ => None,
    }
}

fn embedding<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (mut table, ids) = (call.x(0)?, call.x(1)?);
    if let Some(dtype) = blocks(call) {
        table = call.ops.quantize(table, dtype)?.into();
    }
    one(call.ops.embedding(table, ids))
}

/// Blocks are compared by the numbers they stand for.
fn quantize<'a>(call: &Call<'a>) -> Outputs<'a> {
    let dtype = blocks(call).ok_or_else(|| Stop::Failed("no type of blocks".to_owned()))?;
    let made = call.ops.quantize(call.x(0)?, dtype)?;
    one(call.ops.dequantize(made))
}

fn linear_i8<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, weight, scale, bias) = (call.x(0)?, call.x(1)?, call.x(2)?, call.maybe(3)?);
    // One scale for each row is a column.
    let scale = if call.shape_of(2) == [1] { scale } else { call.ops.unsqueeze(scale, &[1])?.into() };
    one(call.ops.linear_i8(x, weight, scale, bias))
}

fn layout(call: &Call) -> RopeLayout {
    if call.case.text("layout", "half") == "interleaved" { RopeLayout::Interleaved } else { RopeLayout::Half }
}

fn rope<'a>(call: &Call<'a>) -> Outputs<'a> {
    let rotary = call.case.attrs.get("rotary").and_then(|n| n.as_u64()).map(|n| n as usize);
    let position = call.case.int("position", 0) as usize;
    let settings = RopeSettings { position, base: call.case.float("base", 10_000.0), layout: layout(call), rotary };
    one(call.ops.rope(call.x(0)?, settings))
}

fn rope_with<'a>(call: &Call<'a>) -> Outputs<'a> {
    let (x, cos, sin) = (call.x(0)?, call.x(1)?, call.x(2)?);
    one(call.ops.rope_with(x, cos, sin, layout(call)))
}
