//! Attention and rotary embeddings.

use bevy_tensor_compute::prelude::*;

use super::call::{Call, Outputs, Stop};

pub fn apply<'a>(call: &Call<'a>) -> Option<Outputs<'a>> {
    Some(match call.case.op.as_str() {
        "Attention" => attention(call),
        "RotaryEmbedding" => rotary(call),
        _ => return None,
    })
}

/// Turns `[b, s, heads · d]` into `[b, heads, s, d]`. Four axes stay unchanged.
fn heads<'a>(call: &Call<'a>, x: TensorOperand<'a>, count: i64) -> Result<TensorValue<'a>, Stop> {
    let shape = call.ops.shape(x.clone())?;
    if shape.rank() == 4 {
        return Ok(call.ops.copy(x)?);
    }
    let (b, s, hidden) = (shape[0] as isize, shape[1] as isize, shape[2] as isize);
    let split = call.ops.reshape(x, &[b, s, count as isize, hidden / count as isize])?;
    Ok(call.ops.permute(split, &[0, 2, 1, 3])?)
}

/// The reverse, back to three axes.
fn merged<'a>(call: &Call<'a>, x: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    let shape = call.ops.shape(x)?;
    let rows = call.ops.permute(x, &[0, 2, 1, 3])?;
    let sizes = [shape[0] as isize, shape[2] as isize, (shape[1] * shape[3]) as isize];
    Ok(call.ops.reshape(rows, &sizes)?)
}

fn attention<'a>(call: &Call<'a>) -> Outputs<'a> {
    let case = call.case;
    let three = call.shape_of(0).len() == 3;
    let (q, k, v) = (call.x(0)?, call.x(1)?, call.x(2)?);
    let q = heads(call, q, case.int("q_num_heads", 1))?;
    let mut k = heads(call, k, case.int("kv_num_heads", 1))?;
    let mut v = heads(call, v, case.int("kv_num_heads", 1))?;
    let mut past = 0;
    if let (Some(past_k), Some(past_v)) = (call.maybe(4)?, call.maybe(5)?) {
        past = call.shape_of(4)[2];
        k = call.ops.concat([past_k, k.into()], 2)?;
        v = call.ops.concat([past_v, v.into()], 2)?;
    }
    let (of_q, of_k) = (call.ops.shape(q)?, call.ops.shape(k)?);
    let (s, t) = (of_q[2], of_k[2]);
    let causal = case.flag("is_causal", false);
    let per_batch = call.has(6);
    let mask = mask(call, s, t, causal && per_batch && !call.has(4))?;
    let settings = AttentionSettings {
        causal: causal && (!per_batch || call.has(4)),
        scale: case.attrs.contains_key("scale").then(|| case.float("scale", 1.0)),
        softcap: case.float("softcap", 0.0),
        mask: mask.map(TensorOperand::from),
        valid_keys: None,
        position: Some(past),
    };
    let scores = if call.wants(3) { Some(scores(call, q, k, &settings)?) } else { None };
    let mut y = call.ops.attention(q, k, v, settings)?;
    if three {
        y = merged(call, y)?;
    }
    Ok(vec![Some(y), Some(k), Some(v), scores])
}

/// The given mask extended to all keys, with the keys after each batch element's length hidden.
fn mask<'a>(call: &Call<'a>, s: usize, t: usize, causal: bool) -> Result<Option<TensorValue<'a>>, Stop> {
    let mut all = None;
    if let Some(mask) = call.maybe(3)? {
        let shape = call.shape_of(3);
        let bool = call.dtype_of(3)? == DType::Bool;
        let mut pads = vec![(0, 0); shape.len()];
        let last = shape.len() - 1;
        pads[last].1 = t as isize - shape[last] as isize;
        let hidden = if bool { 0.0 } else { f64::NEG_INFINITY };
        all = Some(call.ops.pad(mask, &pads, PadMode::Constant(hidden))?);
    }
    if let Some(lengths) = call.maybe(6)? {
        let lengths = call.ops.reshape(lengths, &[-1, 1, 1, 1])?;
        let keys = call.ops.arange(0.0, 1.0, t, DType::I32)?;
        let mut seen = call.ops.less(keys, lengths)?;
        if causal {
            // Queries are the last of each batch element's keys.
            let queries = call.ops.arange(1.0 - s as f64, 1.0, s, DType::I32)?;
            let queries = call.ops.reshape(queries, &[s as isize, 1])?;
            let ends = call.ops.add(lengths, queries)?;
            let before = call.ops.less(keys, ends)?;
            seen = call.ops.and(seen, before)?;
        }
        all = Some(hide(call, all, seen)?);
    }
    if let Some(seen) = sliding(call, s, t)? {
        all = Some(hide(call, all, seen)?);
    }
    Ok(all)
}

/// A mask that also hides keys that are not `seen`.
fn hide<'a>(call: &Call<'a>, mask: Option<TensorValue<'a>>, seen: TensorValue<'a>) -> Result<TensorValue<'a>, Stop> {
    Ok(match mask {
        None => seen,
        Some(mask) if call.ops.dtype(mask)? == DType::Bool => call.ops.and(mask, seen)?,
        Some(mask) => call.ops.select(seen, mask, f64::NEG_INFINITY)?,
    })
}

/// The keys within `left_window_size` before and `right_window_size` after each query.
fn sliding<'a>(call: &Call<'a>, s: usize, t: usize) -> Result<Option<TensorValue<'a>>, Stop> {
    let (left, right) = (call.case.int("left_window_size", -1), call.case.int("right_window_size", -1));
    if left < 0 && right < 0 {
        return Ok(None);
    }
    let past = if call.has(4) { call.shape_of(4)[2] } else { 0 };
    let queries = call.ops.arange(past as f64, 1.0, s, DType::I32)?;
    let mut queries = call.ops.reshape(queries, &[s as isize, 1])?;
    if let (Some(lengths), false) = (call.maybe(6)?, call.has(4)) {
        let lengths = call.ops.reshape(lengths, &[-1, 1, 1, 1])?;
        let first = call.ops.sub(lengths, s as u32)?;
        queries = call.ops.add(queries, first)?;
    }
    let keys = call.ops.arange(0.0, 1.0, t, DType::I32)?;
    let ahead = call.ops.sub(keys, queries)?;
    let low = if left < 0 { i64::from(i32::MIN) } else { -left };
    let high = if right < 0 { i64::from(i32::MAX) } else { right };
    let (after, before) = (call.ops.greater_equal(ahead, low as f64)?, call.ops.less_equal(ahead, high as f64)?);
    Ok(Some(call.ops.and(after, before)?))
}

/// The value that `qk_matmul_output_mode` asks for, computed with basic ops.
fn scores<'a>(
    call: &Call<'a>,
    q: TensorValue<'a>,
    k: TensorValue<'a>,
    settings: &AttentionSettings<'a>,
) -> Result<TensorValue<'a>, Stop> {
    let mode = call.case.int("qk_matmul_output_mode", 0);
    let (of_q, of_k) = (call.ops.shape(q)?, call.ops.shape(k)?);
    let k = call.ops.repeat(k, 1, of_q[1] / of_k[1])?;
    let scale = settings.scale.unwrap_or(1.0 / (of_q[3] as f32).sqrt());
    let product = call.ops.matmul_nt(q, k)?;
    let mut scores = call.ops.mul(product, scale)?;
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
            let mask = call.ops.cast(mask, dtype)?;
            call.ops.add(scores, mask)?
        };
    }
    if settings.causal {
        let ones = call.ops.full([of_q[2], of_k[2]], 1.0, DType::Bool)?;
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
    let case = call.case;
    let three = call.shape_of(0).len() == 3;
    let (x, mut cos, mut sin) = (call.x(0)?, call.x(1)?, call.x(2)?);
    let x = heads(call, x, case.int("num_heads", 1))?;
    if let Some(positions) = call.maybe(3)? {
        cos = call.ops.gather(cos, positions.clone(), 0)?.into();
        sin = call.ops.gather(sin, positions, 0)?.into();
    }
    // `[b, s, r / 2]`, the same for every head.
    let (cos, sin) = (call.ops.unsqueeze(cos, &[1])?, call.ops.unsqueeze(sin, &[1])?);
    let layout = if case.flag("interleaved", false) { RopeLayout::Interleaved } else { RopeLayout::Half };
    let rotated = case.int("rotary_embedding_dim", 0) as isize;
    let (cos, sin) = if rotated > 0 {
        (call.ops.slice(cos, -1, 0, rotated / 2)?, call.ops.slice(sin, -1, 0, rotated / 2)?)
    } else {
        (cos, sin)
    };
    let mut y = call.ops.rope_with(x, cos, sin, layout)?;
    if three {
        y = merged(call, y)?;
    }
    Ok(vec![Some(y)])
}
