//! A decoder as layers over ops: one step of several speakers, or a piece of one speaker's prompt.

use bevy::prelude::*;

use super::config::{DecoderConfig, TextArchitecture, TextError};
use crate::error::OpResult;
use crate::ir::{Backend, DType};
use crate::nn::{Linear, Weights};
use crate::record::{AttentionSettings, LAST, TensorCommands, TensorValue};
use crate::tensor::TensorData;

/// The weights of a layer.
#[derive(Clone, Debug)]
struct Layer {
    attention_norm: Entity,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    query_norm: Option<Entity>,
    key_norm: Option<Entity>,
    post_attention_norm: Option<Entity>,
    ffn_norm: Entity,
    gate: Linear,
    up: Linear,
    down: Linear,
    post_ffn_norm: Option<Entity>,
}

/// The weights of a decoder, and how they are used.
#[derive(Clone, Debug)]
pub(super) struct Decoder {
    pub config: DecoderConfig,
    embedding: Entity,
    layers: Vec<Layer>,
    norm: Entity,
    output: Linear,
    /// Frequencies of all pairs and the factor of the rotated elements: for most layers, and for those with a window.
    frequencies: (Vec<f64>, f64),
    local_frequencies: Option<(Vec<f64>, f64)>,
}

/// The keys and values of one layer of a speaker: `[1, kv heads, room, size]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cache {
    pub keys: Entity,
    pub values: Entity,
}

/// Rows of one speaker in a step. They follow each other in its context.
pub(super) struct Rows<'c> {
    pub caches: &'c [Cache],
    /// Position of the first row.
    pub position: usize,
    /// Number of rows.
    pub count: usize,
}

impl Decoder {
    /// Finds the weights of a model. `factors` are those of the frequencies, if the file has any.
    pub(super) fn find(config: DecoderConfig, weights: &Weights, factors: &[f32]) -> Result<Self, TextError> {
        let weight = |weights: &Weights| weights.find("weight");
        let optional = |weights: &Weights| weights.find_optional("weight");
        let embedding = weight(&weights.at("token_embd"))?;
        let output = match optional(&weights.at("output"))? {
            Some(weight) => Linear { weight, bias: None },
            None => Linear { weight: embedding, bias: None },
        };
        let mut layers = Vec::with_capacity(config.layers);
        for i in 0..config.layers {
            let at = weights.at("blk").at(i);
            layers.push(Layer {
                attention_norm: weight(&at.at("attn_norm"))?,
                query: Linear::find(&at.at("attn_q"))?,
                key: Linear::find(&at.at("attn_k"))?,
                value: Linear::find(&at.at("attn_v"))?,
                output: Linear::find(&at.at("attn_output"))?,
                query_norm: optional(&at.at("attn_q_norm"))?,
                key_norm: optional(&at.at("attn_k_norm"))?,
                post_attention_norm: optional(&at.at("post_attention_norm"))?,
                ffn_norm: weight(&at.at("ffn_norm"))?,
                gate: Linear::find(&at.at("ffn_gate"))?,
                up: Linear::find(&at.at("ffn_up"))?,
                down: Linear::find(&at.at("ffn_down"))?,
                post_ffn_norm: optional(&at.at("post_ffw_norm"))?,
            });
        }
        let frequencies = config.rope.frequencies(config.rotary, factors);
        let local_frequencies = config.local_rope.as_ref().map(|rope| rope.frequencies(config.rotary, &[]));
        let norm = weight(&weights.at("output_norm"))?;
        Ok(Self { config, embedding, layers, norm, output, frequencies, local_frequencies })
    }

    /// Records the layers for rows of one or more speakers: ids `[rows]` to states `[rows, width]`. The keys and values
    /// of the rows are written to the caches.
    pub(super) fn layers<'a>(
        &self,
        ops: &'a TensorCommands,
        backend: Backend,
        ids: TensorValue<'a>,
        speakers: &[Rows],
    ) -> OpResult<TensorValue<'a>> {
        let config = &self.config;
        let positions: Vec<usize> =
            speakers.iter().flat_map(|rows| rows.position..rows.position + rows.count).collect();
        let angles = rope_angles(ops, backend, &positions, &self.frequencies)?;
        let local = match &self.local_frequencies {
            Some(frequencies) => rope_angles(ops, backend, &positions, frequencies)?,
            None => angles,
        };
        let mut x = ops.cast(ops.embedding(self.embedding, ids)?, DType::F32)?;
        if config.embedding_scale != 1.0 {
            x = ops.mul(x, config.embedding_scale)?;
        }
        // Windows differ by speaker, not by layer.
        let masks = speakers.iter().map(|rows| self.mask(ops, rows)).collect::<OpResult<Vec<_>>>()?;
        for (i, layer) in self.layers.iter().enumerate() {
            let is_local = config.is_local(i);
            let angles = if is_local { local } else { angles };
            let normed = ops.rms_norm(x, layer.attention_norm, LAST, config.eps)?;
            let attended = self.attend(ops, layer, i, normed, angles, speakers, is_local.then_some(&masks[..]))?;
            let mut attended = layer.output.apply(ops, attended)?;
            if let Some(norm) = layer.post_attention_norm {
                attended = ops.rms_norm(attended, norm, LAST, config.eps)?;
            }
            x = ops.add(x, attended)?;
            let normed = ops.rms_norm(x, layer.ffn_norm, LAST, config.eps)?;
            let gate = layer.gate.apply(ops, normed)?;
            let gate = match config.architecture {
                TextArchitecture::Gemma3 => ops.gelu_tanh(gate)?,
                TextArchitecture::Llama | TextArchitecture::Qwen2 | TextArchitecture::Qwen3 => ops.silu(gate)?,
            };
            let inner = ops.mul(gate, layer.up.apply(ops, normed)?)?;
            let mut out = layer.down.apply(ops, inner)?;
            if let Some(norm) = layer.post_ffn_norm {
                out = ops.rms_norm(out, norm, LAST, config.eps)?;
            }
            x = ops.add(x, out)?;
        }
        Ok(x)
    }

    /// States `[rows, width]` to logits `[rows, vocabulary]`.
    pub(super) fn logits<'a>(&self, ops: &'a TensorCommands, x: TensorValue<'a>) -> OpResult<TensorValue<'a>> {
        let x = ops.rms_norm(x, self.norm, LAST, self.config.eps)?;
        let logits = self.output.apply(ops, x)?;
        match self.config.final_cap {
            cap if cap > 0.0 => ops.mul(ops.tanh(ops.mul(logits, 1.0 / cap)?)?, cap),
            _ => Ok(logits),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one layer")]
    fn attend<'a>(
        &self,
        ops: &'a TensorCommands,
        layer: &Layer,
        index: usize,
        x: TensorValue<'a>,
        angles: (TensorValue<'a>, TensorValue<'a>),
        speakers: &[Rows],
        masks: Option<&[Option<TensorValue<'a>>]>,
    ) -> OpResult<TensorValue<'a>> {
        let config = &self.config;
        let heads =
            |x: TensorValue<'a>, count: usize, size: usize| ops.reshape(x, &[-1, count as isize, size as isize]);
        let mut query = heads(layer.query.apply(ops, x)?, config.heads, config.key)?;
        let mut key = heads(layer.key.apply(ops, x)?, config.kv_heads, config.key)?;
        let value = heads(layer.value.apply(ops, x)?, config.kv_heads, config.value)?;
        if let Some(norm) = layer.query_norm {
            query = ops.rms_norm(query, norm, LAST, config.eps)?;
        }
        if let Some(norm) = layer.key_norm {
            key = ops.rms_norm(key, norm, LAST, config.eps)?;
        }
        let query = ops.rope_with(query, angles.0, angles.1, config.layout)?;
        let key = ops.rope_with(key, angles.0, angles.1, config.layout)?;
        let mut parts = Vec::with_capacity(speakers.len());
        let mut start = 0;
        for (i, rows) in speakers.iter().enumerate() {
            // `[rows, heads, size]` as `[1, heads, rows, size]`.
            let own = |x: TensorValue<'a>| {
                let x = ops.slice(x, 0, start as isize, (start + rows.count) as isize)?;
                ops.unsqueeze(ops.permute(x, &[1, 0, 2])?, &[0])
            };
            let cache = rows.caches[index];
            let stored = ops.dtype(cache.keys)?;
            ops.append(cache.keys, ops.cast(own(key)?, stored)?, 2, rows.position)?;
            ops.append(cache.values, ops.cast(own(value)?, stored)?, 2, rows.position)?;
            let settings = AttentionSettings {
                causal: true,
                softcap: config.attention_cap,
                mask: masks.and_then(|masks| masks[i]).map(Into::into),
                valid_keys: Some(rows.position + rows.count),
                position: Some(rows.position),
                ..Default::default()
            };
            let mixed = ops.attention(own(query)?, cache.keys, cache.values, settings)?;
            let mixed = ops.permute(ops.squeeze(mixed, 0)?, &[1, 0, 2])?;
            parts.push(ops.flatten(mixed, 1, 2)?);
            start += rows.count;
        }
        match parts[..] {
            [one] => Ok(one),
            _ => ops.concat(parts, 0),
        }
    }

    /// Which keys the rows of a speaker see in layers with a window: `[rows, room]`. `None` without windows.
    fn mask<'a>(&self, ops: &'a TensorCommands, rows: &Rows) -> OpResult<Option<TensorValue<'a>>> {
        let (Some(window), Some(cache)) = (self.config.window, rows.caches.first()) else { return Ok(None) };
        let room = ops.shape(cache.keys)?[2];
        let key = ops.arange(0.0, 1.0, room, DType::I32)?;
        let row = ops.unsqueeze(ops.arange(0.0, 1.0, rows.count, DType::I32)?, &[1])?;
        // The first key that a row sees. Positions are numbers, which need no new plan.
        let first = ops.add(row, rows.position as f64 - window as f64 + 1.0)?;
        ops.greater_equal(key, first).map(Some)
    }
}

type Angles<'a> = (TensorValue<'a>, TensorValue<'a>);

/// Cosines and sines of rows at these positions: `[rows, 1, pairs]`.
fn rope_angles<'a>(
    ops: &'a TensorCommands,
    backend: Backend,
    positions: &[usize],
    (frequencies, factor): &(Vec<f64>, f64),
) -> OpResult<Angles<'a>> {
    let of = |function: fn(f64) -> f64| -> Vec<f32> {
        let rows = positions.iter().flat_map(|&p| frequencies.iter().map(move |f| p as f64 * f));
        rows.map(|angle| (function(angle) * factor) as f32).collect()
    };
    let value = |values: Vec<f32>| {
        let shape = [positions.len(), 1, frequencies.len()];
        let data = TensorData::new(&values, shape)
            .map_err(|error| crate::error::OpError::Argument { op: "rope", reason: error.to_string() })?;
        ops.host_value(backend, &data, false)
    };
    Ok((value(of(f64::cos))?, value(of(f64::sin))?))
}
