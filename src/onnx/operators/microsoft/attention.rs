//! Attention as onnxruntime's optimiser writes it.

use super::super::super::call::{Call, Outputs, Stop, failed};
use super::super::super::value::Value;
use super::super::attention::{heads, merged, rotated};
use super::super::{Operator, refuse};
use super::DOMAIN;
use crate::ir::DType;
use crate::record::{AttentionSettings, RopeLayout, ScatterMode, TensorOperand, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::of(DOMAIN, "Attention").record(attention),
    Operator::of(DOMAIN, "QAttention").record(quantised_attention),
    Operator::of(DOMAIN, "MultiHeadAttention").record(multi_head),
    Operator::of(DOMAIN, "GroupQueryAttention").record(group_query),
    Operator::of(DOMAIN, "RotaryEmbedding").record(rotary),
];

fn count(call: &Call, name: &str) -> Result<i64, Stop> {
    match call.int(name, 0) {
        count @ 1.. => Ok(count),
        count => failed(format!("{name} is {count}")),
    }
}

/// Part `i` of an axis of size `of`, which is dropped.
fn pick<'a>(call: &Call<'a>, x: TensorValue<'a>, axis: isize, i: isize) -> Result<TensorValue<'a>, Stop> {
    Ok(call.ops.squeeze(call.ops.slice(x, axis, i, i + 1)?, axis)?)
}

/// A mask over keys as a truth value that broadcasts to `[b, h, s, t]`: `[b, t]` of 0 and 1, `[b, s, t]`, `[b, 1, s, t]`,
/// or the number of valid keys per row `[b]`.
fn key_mask<'a>(call: &Call<'a>, i: usize, t: usize) -> Result<Option<TensorValue<'a>>, Stop> {
    let Some(mask) = call.maybe(i)? else { return Ok(None) };
    let shape = call.shape_of(i)?;
    let ops = call.ops;
    let seen = match shape.rank() {
        1 => {
            let lengths = ops.reshape(ops.cast(mask, DType::I32)?, &[-1, 1])?;
            let seen = ops.less(call.steps(t)?, lengths)?;
            return Ok(Some(ops.unsqueeze(seen, &[1, 2])?));
        }
        2 => ops.unsqueeze(mask, &[1, 2])?,
        3 => ops.unsqueeze(mask, &[1])?,
        4 => mask,
        rank => return refuse(format!("a mask of {rank} axes")),
    };
    Ok(Some(ops.cast(seen, DType::Bool)?))
}

/// A float mask: a bias on the scores, and minus infinity where a key is hidden.
fn combined<'a>(
    call: &Call<'a>,
    seen: Option<TensorValue<'a>>,
    bias: Option<TensorValue<'a>>,
) -> Result<Option<TensorOperand<'a>>, Stop> {
    Ok(match (seen, bias) {
        (None, bias) => bias.map(TensorOperand::from),
        (Some(seen), None) => Some(seen.into()),
        (Some(seen), Some(bias)) => Some(call.ops.select(seen, bias, f64::NEG_INFINITY)?.into()),
    })
}

/// One projection for queries, keys and values, then attention.
fn attention<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let mut all = ops.matmul(call.x(0)?, call.x(1)?)?;
    if let Some(bias) = call.maybe(2)? {
        all = ops.add(all, bias)?;
    }
    projected(call, all, [3, 4, 5])
}

/// The projection is one of bytes, whose sums are exact. Parameters of the weights are for all, or one per column.
fn quantised_attention<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let centred = |x: usize, zero: usize| -> Result<TensorValue<'a>, Stop> {
        let x = call.x_as(x, DType::I32)?;
        Ok(match call.maybe(zero)? {
            Some(zero) => ops.sub(x, single(call, ops.cast(zero, DType::I32)?)?)?,
            None => x,
        })
    };
    let sums = ops.cast(ops.matmul(centred(0, 6)?, centred(1, 7)?)?, DType::F32)?;
    let scale = ops.mul(single(call, call.x_as(3, DType::F32)?)?, single(call, call.x_as(4, DType::F32)?)?)?;
    let all = ops.add(ops.mul(sums, scale)?, call.x_as(2, DType::F32)?)?;
    projected(call, all, [5, 8, usize::MAX])
}

/// One number without axes; more numbers as they are.
fn single<'a>(call: &Call<'a>, value: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    let one = call.ops.shape(value)?.elements() == 1;
    Ok(if one { call.ops.reshape(value, &[])? } else { value })
}

/// Attention over queries, keys and values that follow one another. The inputs with these numbers are the mask, the past
/// `[2, b, h, p, d]` and a bias on the scores.
fn projected<'a>(call: &Call<'a>, all: TensorValue<'a>, [mask, past, bias]: [usize; 3]) -> Outputs<'a> {
    let ops = call.ops;
    let element = crate::formats::onnx::ElementType::of_device(ops.dtype(all)?);
    let n = count(call, "num_heads")?;
    let width = call.shape_of(1)?.last().copied().unwrap_or(0) as isize;
    let sizes: Vec<isize> = match call.ints("qkv_hidden_sizes") {
        Some(&[q, k, v]) => vec![q as isize, k as isize, v as isize],
        _ => vec![width / 3; 3],
    };
    let q = heads(call, ops.slice(all, -1, 0, sizes[0])?, n)?;
    let mut k = heads(call, ops.slice(all, -1, sizes[0], sizes[0] + sizes[1])?, n)?;
    let mut v = heads(call, ops.slice(all, -1, sizes[0] + sizes[1], sizes.iter().sum())?, n)?;
    let mut past_length = 0;
    if let Some(past) = call.maybe(past)? {
        let (past_k, past_v) = (pick(call, past, 0, 0)?, pick(call, past, 0, 1)?);
        past_length = ops.shape(past_k)?[2];
        (k, v) = (ops.concat([past_k, k], 2)?, ops.concat([past_v, v], 2)?);
    }
    let t = ops.shape(k)?[2];
    let settings = AttentionSettings {
        causal: call.flag("unidirectional", false),
        scale: call.maybe_float("scale").filter(|&scale| scale != 0.0),
        mask: combined(call, key_mask(call, mask, t)?, call.maybe(bias)?)?,
        position: Some(past_length),
        ..AttentionSettings::default()
    };
    let y = merged(call, ops.attention(q, k, v, settings)?)?;
    let present = if call.wants(1) { Some(Value::Device(ops.stack([k, v], 0)?, element)) } else { None };
    Ok(vec![Some(Value::Device(y, element)), present])
}

fn multi_head<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let (n, element) = (count(call, "num_heads")?, call.type_of(0)?);
    let query = call.x(0)?;
    let bias = call.maybe(3)?;
    // The bias holds those of queries, keys and values one after another.
    let biased = |x: TensorValue<'a>, i: usize| -> Result<TensorValue<'a>, Stop> {
        let Some(bias) = bias else { return Ok(x) };
        let width = ops.shape(x)?.last().copied().unwrap_or(0) as isize;
        let total = ops.shape(bias)?.elements() as isize;
        let hidden = ops.shape(query)?.last().copied().unwrap_or(0) as isize;
        let start = match i {
            0 => 0,
            1 => hidden,
            _ => total - width,
        };
        Ok(ops.add(x, ops.slice(bias, 0, start, start + width)?)?)
    };
    let (q, mut k, mut v) = match (ops.shape(query)?.rank(), call.maybe(1)?, call.maybe(2)?) {
        // Packed: `[b, s, heads, 3, d]`.
        (5, None, None) => {
            let part = |i: isize| -> Result<TensorValue<'a>, Stop> {
                Ok(ops.permute(pick(call, query, 3, i)?, &[0, 2, 1, 3])?)
            };
            (part(0)?, part(1)?, part(2)?)
        }
        (3, Some(key), None) => {
            // `[b, t, heads, 2, d]`.
            let part =
                |i: isize| -> Result<TensorValue<'a>, Stop> { Ok(ops.permute(pick(call, key, 3, i)?, &[0, 2, 1, 3])?) };
            (heads(call, biased(query, 0)?, n)?, part(0)?, part(1)?)
        }
        (3, Some(key), Some(value)) => {
            let separate = ops.shape(key)?.rank() == 3;
            let (key, value) = if separate { (biased(key, 1)?, biased(value, 2)?) } else { (key, value) };
            (heads(call, biased(query, 0)?, n)?, heads(call, key, n)?, heads(call, value, n)?)
        }
        (rank, ..) => return refuse(format!("a query of {rank} axes with these keys and values")),
    };
    let mut past = 0;
    if let (Some(past_k), Some(past_v)) = (call.maybe(6)?, call.maybe(7)?) {
        past = ops.shape(past_k)?[2];
        (k, v) = (ops.concat([past_k, k], 2)?, ops.concat([past_v, v], 2)?);
    }
    let t = ops.shape(k)?[2];
    let settings = AttentionSettings {
        causal: call.flag("unidirectional", false),
        scale: call.maybe_float("scale").filter(|&scale| scale != 0.0),
        mask: combined(call, key_mask(call, 4, t)?, call.maybe(5)?)?,
        position: Some(past),
        ..AttentionSettings::default()
    };
    let y = merged(call, ops.attention(q, k, v, settings)?)?;
    Ok([y, k, v].map(|value| Some(Value::Device(value, element))).into())
}

/// Keys and values are written behind those of the past, at a position per row, and queries see what is before them.
fn group_query<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let element = call.type_of(0)?;
    let (n, groups) = (count(call, "num_heads")?, count(call, "kv_num_heads")?);
    if call.flag("smooth_softmax", false) || call.has(11) {
        return refuse("attention sinks");
    }
    let query = call.x(0)?;
    let (q, k, v) = match (call.maybe(1)?, call.maybe(2)?) {
        (Some(key), Some(value)) => (heads(call, query, n)?, heads(call, key, groups)?, heads(call, value, groups)?),
        _ => {
            // Packed: queries, keys and values one after another.
            let width = ops.shape(query)?.last().copied().unwrap_or(0) as isize;
            let d = width / (n + 2 * groups) as isize;
            let (of_q, of_k) = (d * n as isize, d * groups as isize);
            let part = |from: isize, to: isize, count: i64| heads(call, ops.slice(query, -1, from, to)?, count);
            (part(0, of_q, n)?, part(of_q, of_q + of_k, groups)?, part(of_q + of_k, width, groups)?)
        }
    };
    let (s, past) = (ops.shape(q)?[2], if call.has(3) { call.shape_of(3)?[2] } else { 0 });
    // How many keys each row had before. It is the same for all rows unless lengths differ.
    let lengths = call.x_as(5, DType::I32)?;
    let before = match past {
        0 => ops.mul(lengths, 0)?,
        _ => ops.sub(lengths, s as i32 - 1)?,
    };
    let before = ops.reshape(before, &[-1, 1])?;
    let positions = ops.add(before, call.steps(s)?)?;
    let (mut q, mut k) = (q, k);
    if call.flag("do_rotary", false) {
        let layout = if call.flag("rotary_interleaved", false) { RopeLayout::Interleaved } else { RopeLayout::Half };
        let at = call.maybe(9)?.unwrap_or(positions);
        let table =
            |i: usize| -> Result<TensorValue<'a>, Stop> { Ok(ops.unsqueeze(ops.gather(call.x(i)?, at, 0)?, &[1])?) };
        let (cos, sin) = (table(7)?, table(8)?);
        (q, k) = (ops.rope_with(q, cos, sin, layout)?, ops.rope_with(k, cos, sin, layout)?);
    }
    let total = match call.host_ints(6)?.and_then(|total| total.first().copied()) {
        Some(total) => usize::try_from(total).unwrap_or(0).max(past),
        None => past + s,
    };
    let written = |cache: usize, new: TensorValue<'a>| -> Result<TensorValue<'a>, Stop> {
        let of_new = ops.shape(new)?;
        let Some(cache) = call.maybe(cache)?.filter(|_| past > 0) else { return Ok(new) };
        let longer = ops.pad(cache, &[(0, 0), (0, 0), (0, (total - past) as isize), (0, 0)], zeros())?;
        let at = ops.broadcast_to(ops.unsqueeze(positions, &[1, -1])?, of_new)?;
        Ok(ops.scatter_elements(longer, at, new, 2, ScatterMode::Replace)?)
    };
    let (k, v) = (written(3, k)?, written(4, v)?);
    let keys = call.steps(ops.shape(k)?[2])?;
    let queries = ops.unsqueeze(positions, &[1, -1])?;
    let mut seen = ops.less_equal(keys, queries)?;
    let window = call.int("local_window_size", -1);
    if window > 0 {
        let near = ops.greater(keys, ops.sub(queries, window.min(i32::MAX.into()) as i32)?)?;
        seen = ops.and(seen, near)?;
    }
    let settings = AttentionSettings {
        scale: call.maybe_float("scale").filter(|&scale| scale != 0.0),
        softcap: call.float("softcap", 0.0),
        mask: combined(call, Some(seen), call.maybe(10)?)?,
        ..AttentionSettings::default()
    };
    let y = merged(call, ops.attention(q, k, v, settings)?)?;
    Ok([y, k, v].map(|value| Some(Value::Device(value, element))).into())
}

fn zeros() -> crate::record::PadMode {
    crate::record::PadMode::Constant(0.0)
}

/// Positions are `[b, s]`, or one number for the first token.
fn rotary<'a>(call: &Call<'a>) -> Outputs<'a> {
    let ops = call.ops;
    let shape = call.shape_of(0)?;
    let width = call.int("rotary_embedding_dim", 0);
    let n = match (call.int("num_heads", 0), shape.rank()) {
        (0, 3) => {
            // The tables say how wide a head is.
            let half = call.shape_of(2)?.last().copied().unwrap_or(0);
            (shape[2] / (2 * half).max(1)) as i64
        }
        (n, _) => n,
    };
    let x = heads(call, call.x(0)?, n)?;
    let y = if call.shape_of(1)?.elements() == 1 {
        let s = ops.shape(x)?[2];
        let first = ops.reshape(call.x_as(1, DType::I32)?, &[1, 1])?;
        let at = ops.add(first, call.steps(s)?)?;
        let layout = if call.flag("interleaved", false) { RopeLayout::Interleaved } else { RopeLayout::Half };
        let table = |i: usize| -> Result<TensorValue<'a>, Stop> {
            let rows = ops.unsqueeze(ops.gather(call.x(i)?, at, 0)?, &[1])?;
            Ok(if width > 0 { ops.slice(rows, -1, 0, width as isize / 2)? } else { rows })
        };
        ops.rope_with(x, table(2)?, table(3)?, layout)?
    } else {
        rotated(call, x, [2, 3], 1, width)?
    };
    call.like(0, if shape.rank() == 3 { merged(call, y)? } else { y })
}
