//! Attention and rotary positions.

use super::super::call::{Call, Outputs, Stop, failed};
use super::super::value::Value;
use super::Operator;
use crate::ir::DType;
use crate::record::{AttentionSettings, PadMode, RopeLayout, TensorAxis, TensorOperand, TensorValue};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("Attention").record(attention),
    Operator::new("RotaryEmbedding").record(rotary),
    Operator::new("LinearAttention").record(linear_attention),
    Operator::new("SwiGLU").record(swiglu),
];

/// `[b, s, heads · d]` as `[b, heads, s, d]`. Four axes stay.
pub(super) fn heads<'a>(call: &Call<'a>, x: TensorValue<'a>, count: i64) -> Result<TensorValue<'a>, Stop> {
    let shape = call.ops.shape(x)?;
    match shape[..] {
        [_, _, _, _] => Ok(x),
        [b, s, hidden] if count > 0 && hidden % count as usize == 0 => {
            let (b, s, count) = (b as isize, s as isize, count as isize);
            let split = call.ops.reshape(x, &[b, s, count, hidden as isize / count])?;
            Ok(call.ops.permute(split, &[0, 2, 1, 3])?)
        }
        _ => failed(format!("{shape} does not have {count} heads")),
    }
}

/// The way back to three axes.
pub(super) fn merged<'a>(call: &Call<'a>, x: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    let shape = call.ops.shape(x)?;
    let rows = call.ops.permute(x, &[0, 2, 1, 3])?;
    Ok(call.ops.reshape(rows, &[shape[0] as isize, shape[2] as isize, (shape[1] * shape[3]) as isize])?)
}

fn attention<'a>(call: &Call<'a>) -> Outputs<'a> {
    let three = call.shape_of(0)?.rank() == 3;
    let q = heads(call, call.x(0)?, call.int("q_num_heads", 1))?;
    let mut k = heads(call, call.x(1)?, call.int("kv_num_heads", 1))?;
    let mut v = heads(call, call.x(2)?, call.int("kv_num_heads", 1))?;
    let mut past = 0;
    if let (Some(past_k), Some(past_v)) = (call.maybe(4)?, call.maybe(5)?) {
        past = call.ops.shape(past_k)?[2];
        k = call.ops.concat([past_k, k], 2)?;
        v = call.ops.concat([past_v, v], 2)?;
    }
    let (s, t) = (call.ops.shape(q)?[2], call.ops.shape(k)?[2]);
    let causal = call.flag("is_causal", false);
    let lengths = call.has(6);
    let mask = mask(call, s, t, causal && lengths && !call.has(4))?;
    let settings = AttentionSettings {
        causal: causal && (!lengths || call.has(4)),
        scale: call.maybe_float("scale"),
        softcap: call.float("softcap", 0.0),
        mask: mask.map(TensorOperand::from),
        valid_keys: None,
        position: Some(past),
    };
    let scores = if call.wants(3) { Some(scores(call, q, k, &settings)?) } else { None };
    let mut y = call.ops.attention(q, k, v, settings)?;
    if three {
        y = merged(call, y)?;
    }
    let element = call.type_of(0)?;
    Ok(vec![
        Some(Value::Device(y, element)),
        Some(Value::Device(k, call.type_of(1)?)),
        Some(Value::Device(v, call.type_of(2)?)),
        scores.map(|scores| Value::Device(scores, element)),
    ])
}

/// The given mask stretched to all keys, with the keys behind each batch's length hidden.
fn mask<'a>(call: &Call<'a>, s: usize, t: usize, causal: bool) -> Result<Option<TensorValue<'a>>, Stop> {
    let mut all = None;
    if let Some(mask) = call.maybe(3)? {
        let shape = call.shape_of(3)?;
        let Some(last) = shape.rank().checked_sub(1) else { return failed("the mask has no axes") };
        let missing = t as isize - shape[last] as isize;
        let mut pads = vec![(0, 0); shape.rank()];
        pads[last].1 = missing;
        let hidden = if call.dtype_of(3)? == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
        all = Some(if missing == 0 { mask } else { call.ops.pad(mask, &pads, PadMode::Constant(hidden))? });
    }
    if let Some(lengths) = call.maybe(6)? {
        let lengths = call.ops.reshape(lengths, &[-1, 1, 1, 1])?;
        let keys = call.steps(t)?;
        let mut seen = call.ops.less(keys, lengths)?;
        if causal {
            // Queries are the last of each batch's keys.
            let queries = call.ops.sub(call.ops.reshape(call.steps(s)?, &[s as isize, 1])?, s as u32)?;
            let ends = call.ops.add(call.ops.add(lengths, queries)?, 1)?;
            seen = call.ops.and(seen, call.ops.less(keys, ends)?)?;
        }
        all = Some(hide(call, all, seen)?);
    }
    if let Some(seen) = sliding(call, s, t)? {
        all = Some(hide(call, all, seen)?);
    }
    Ok(all)
}

/// A mask that also hides what is not `seen`.
fn hide<'a>(call: &Call<'a>, mask: Option<TensorValue<'a>>, seen: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    Ok(match mask {
        None => seen,
        Some(mask) if call.ops.dtype(mask)? == DType::Bool => call.ops.and(mask, seen)?,
        Some(mask) => call.ops.select(seen, mask, f64::NEG_INFINITY)?,
    })
}

/// The keys within `left_window_size` before and `right_window_size` after each query.
fn sliding<'a>(call: &Call<'a>, s: usize, t: usize) -> Result<Option<TensorValue<'a>>, Stop> {
    let (left, right) = (call.int("left_window_size", -1), call.int("right_window_size", -1));
    if left < 0 && right < 0 {
        return Ok(None);
    }
    let past = if call.has(4) { call.shape_of(4)?[2] } else { 0 };
    let queries = call.ops.add(call.steps(s)?, past as u32)?;
    let mut queries = call.ops.reshape(queries, &[s as isize, 1])?;
    if let (Some(lengths), false) = (call.maybe(6)?, call.has(4)) {
        let lengths = call.ops.reshape(lengths, &[-1, 1, 1, 1])?;
        queries = call.ops.add(queries, call.ops.sub(lengths, s as u32)?)?;
    }
    let ahead = call.ops.sub(call.steps(t)?, queries)?;
    let low = if left < 0 { i32::MIN } else { (-left).max(i32::MIN.into()) as i32 };
    let high = if right < 0 { i32::MAX } else { right.min(i32::MAX.into()) as i32 };
    let (after, before) = (call.ops.greater_equal(ahead, low)?, call.ops.less_equal(ahead, high)?);
    Ok(Some(call.ops.and(after, before)?))
}

/// What `qk_matmul_output_mode` asks for, by plain ops.
fn scores<'a>(
    call: &Call<'a>,
    q: TensorValue<'a>,
    k: TensorValue<'a>,
    settings: &AttentionSettings<'a>,
) -> Result<TensorValue<'a>, Stop> {
    let mode = call.int("qk_matmul_output_mode", 0);
    let (of_q, of_k) = (call.ops.shape(q)?, call.ops.shape(k)?);
    let k = call.ops.repeat(k, 1, of_q[1] / of_k[1].max(1))?;
    let scale = settings.scale.unwrap_or(1.0 / (of_q[3] as f32).sqrt());
    let mut scores = call.ops.mul(call.ops.matmul_nt(q, k)?, scale)?;
    if mode == 0 {
        return Ok(scores);
    }
    if settings.softcap > 0.0 {
        let capped = call.ops.tanh(scores * (1.0 / settings.softcap))?;
        scores = call.ops.mul(capped, settings.softcap)?;
    }
    if mode == 1 {
        return Ok(scores);
    }
    let dtype = call.ops.dtype(scores)?;
    if let Some(mask) = settings.mask.clone() {
        scores = if call.ops.dtype(mask.clone())? == DType::Bool {
            call.ops.select(mask, scores, f64::NEG_INFINITY)?
        } else {
            call.ops.add(scores, call.ops.cast(mask, dtype)?)?
        };
    }
    if settings.causal {
        let ones = call.full([of_q[2], of_k[2]], 1.0, DType::Bool)?;
        let seen = call.ops.tril(ones, settings.position.unwrap_or(0) as i32)?;
        scores = call.ops.select(seen, scores, f64::NEG_INFINITY)?;
    }
    if mode == 2 {
        return Ok(scores);
    }
    let weights = call.ops.softmax(scores, -1)?;
    // A query that sees no key has no weights.
    let best = call.ops.max_of(scores, TensorAxis(-1).keep())?;
    let blind = call.ops.equal(best, f64::NEG_INFINITY)?;
    Ok(call.ops.select(blind, 0.0, weights)?)
}

fn rotary<'a>(call: &Call<'a>) -> Outputs<'a> {
    let three = call.shape_of(0)?.rank() == 3;
    let x = heads(call, call.x(0)?, call.int("num_heads", 1))?;
    let y = rotated(call, x, [1, 2], 3, call.int("rotary_embedding_dim", 0))?;
    call.like(0, if three { merged(call, y)? } else { y })
}

/// `x [b, h, s, d]` rotated by the tables in these inputs, at the positions of an input, if it is given.
pub(super) fn rotated<'a>(
    call: &Call<'a>,
    x: TensorValue<'a>,
    [cos, sin]: [usize; 2],
    positions: usize,
    width: i64,
) -> Result<TensorValue<'a>, Stop> {
    let (mut cos, mut sin) = (call.x(cos)?, call.x(sin)?);
    if let Some(positions) = call.maybe(positions)? {
        (cos, sin) = (call.ops.gather(cos, positions, 0)?, call.ops.gather(sin, positions, 0)?);
    }
    // `[b, s, r / 2]`, the same for every head.
    let (mut cos, mut sin) = (call.ops.unsqueeze(cos, &[1])?, call.ops.unsqueeze(sin, &[1])?);
    if width > 0 {
        let half = width as isize / 2;
        (cos, sin) = (call.ops.slice(cos, -1, 0, half)?, call.ops.slice(sin, -1, 0, half)?);
    }
    let layout = if call.flag("interleaved", false) { RopeLayout::Interleaved } else { RopeLayout::Half };
    Ok(call.ops.rope_with(x, cos, sin, layout)?)
}

/// The recurrence over tokens, one step at a time: the state is `[b, h, d_k, d_v]`.
fn linear_attention<'a>(call: &Call<'a>) -> Outputs<'a> {
    const MOST_STEPS: usize = 4096;
    let ops = call.ops;
    let (q_heads, kv_heads) = (call.int("q_num_heads", 1), call.int("kv_num_heads", 1));
    let q = heads(call, call.x(0)?, q_heads)?;
    let k = heads(call, call.x(1)?, kv_heads)?;
    let v = heads(call, call.x(2)?, kv_heads)?;
    let (of_q, of_k, of_v) = (ops.shape(q)?, ops.shape(k)?, ops.shape(v)?);
    let (batch, steps, d_k, d_v) = (of_k[0], of_k[2], of_k[3], of_v[3]);
    if steps > MOST_STEPS {
        return super::refuse(format!("linear attention over {steps} tokens"));
    }
    let element = call.type_of(0)?;
    let dtype = call.dtype_of(0)?;
    let rule = call.text("update_rule", "gated_delta");
    let (gated, delta) = match rule {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return failed(format!("{other:?} is not an update rule")),
    };
    let scale = match call.float("scale", 0.0) {
        0.0 => 1.0 / (d_k as f32).sqrt(),
        scale => scale,
    };
    // `[b, h, s, d_k]` or `[b, h, s, 1]`.
    let decay = if gated { Some(ops.exp(ops.cast(heads(call, call.x(4)?, kv_heads)?, DType::F32)?)?) } else { None };
    let beta = if delta {
        let shape = call.shape_of(5)?;
        let per_head = shape.last().copied().unwrap_or(1) as i64;
        let beta = heads(call, call.x(5)?, if per_head == kv_heads { kv_heads } else { 1 })?;
        Some(ops.cast(beta, DType::F32)?)
    } else {
        None
    };
    let [q, k, v] = [q, k, v].map(|x| ops.cast(x, DType::F32));
    let (q, k, v) = (q?, k?, v?);
    let mut state = match call.maybe(3)? {
        Some(past) => ops.cast(past, DType::F32)?,
        None => call.full([batch, of_k[1], d_k, d_v], 0.0, DType::F32)?,
    };
    let at = |x: TensorValue<'a>, t: isize| ops.slice(x, 2, t, t + 1);
    let group = (of_q[1] / of_k[1].max(1)).max(1);
    let mut outputs = Vec::with_capacity(steps);
    for t in 0..steps as isize {
        // `[b, h, 1, d]`, and the key as a column.
        let (q, v) = (at(q, t)?, at(v, t)?);
        let row = at(k, t)?;
        let column = ops.transpose(row)?;
        if let Some(decay) = decay {
            state = ops.mul(state, ops.transpose(at(decay, t)?)?)?;
        }
        let mut added = v;
        if let Some(beta) = beta {
            let known = ops.matmul(row, state)?;
            added = ops.mul(ops.sub(v, known)?, at(beta, t)?)?;
        }
        state = ops.add(state, ops.mul(column, added)?)?;
        let wide = if group == 1 { state } else { ops.repeat(state, 1, group)? };
        outputs.push(ops.mul(ops.matmul(q, wide)?, scale)?);
    }
    let y = ops.cast(merged(call, ops.concat(outputs, 2)?)?, dtype)?;
    let state_type = if call.has(3) { call.type_of(3)? } else { element };
    let state = ops.cast(state, super::super::call::device_type(state_type)?)?;
    Ok(vec![Some(Value::Device(y, element)), Some(Value::Device(state, state_type))])
}

/// `swish(a) · b`.
fn swiglu<'a>(call: &Call<'a>) -> Outputs<'a> {
    let alpha = call.float("alpha", 1.0);
    let a = call.x(0)?;
    let gate = if alpha == 1.0 { call.ops.silu(a)? } else { call.ops.mul(a, call.ops.sigmoid(a * alpha)?)? };
    call.like(0, call.ops.mul(gate, call.x(1)?)?)
}
