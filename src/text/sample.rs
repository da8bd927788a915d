//! Sampling on the device.

use bevy::prelude::*;

use crate::error::{OpError, OpResult};
use crate::ir::{Backend, DType};
use crate::record::{CumsumSettings, LAST, ScatterMode, TensorCommands, TensorValue};
use crate::tensor::TensorData;

/// Number of best tokens that are considered if `top_k` is off.
const CANDIDATES: usize = 1024;

/// How the next token is chosen. The steps are: penalties, the best `top_k`, temperature, `top_p`, `min_p`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// Logits are divided by it. 0 always takes the best token.
    pub temperature: f32,
    /// Only so many of the best tokens are considered. 0 means 1024.
    pub top_k: usize,
    /// The best tokens whose probabilities add up to this are considered. 1 is off.
    pub top_p: f32,
    /// Tokens with less than this part of the best one's probability are not considered. 0 is off.
    pub min_p: f32,
    /// Positive logits of tokens that were said are divided by it, negative ones multiplied. 1 is off.
    pub repetition: f32,
    /// Subtracted from a token's logit for each time it was said. 0 is off.
    pub frequency: f32,
    /// Two speakers with the same seed, settings and prompt say the same.
    pub seed: u64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, repetition: 1.0, frequency: 0.0, seed: 0 }
    }
}

impl Sampler {
    /// Always takes the best token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..default() }
    }

    /// Sets the seed.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.top_k == 1
    }

    /// Whether the tokens that were said matter.
    pub(super) fn counts(&self) -> bool {
        self.repetition != 1.0 || self.frequency != 0.0
    }

    /// A number in [0, 1) for a token, the same in every run.
    fn chance(&self, token: usize) -> f32 {
        let mut z = self.seed ^ (token as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32
    }
}

/// A row of logits and how its token is chosen.
pub(super) struct Choice {
    pub sampler: Sampler,
    /// How often each token was said, `f32 [1, vocabulary]`, if the sampler needs it.
    pub counts: Option<Entity>,
    /// Number of the token in what the speaker says.
    pub token: usize,
}

/// Chooses a token for each row of `logits [rows, vocabulary]`. Gives `[rows, 1]` ids (i32) and their probabilities.
pub(super) fn sample<'a>(
    ops: &'a TensorCommands,
    backend: Backend,
    logits: TensorValue<'a>,
    rows: &[Choice],
) -> OpResult<(TensorValue<'a>, TensorValue<'a>)> {
    let raw = logits;
    let logits = penalise(ops, raw, rows)?;
    let sum = ops.log_sum_exp(raw, LAST.keep())?;
    if rows.iter().all(|row| row.sampler.is_greedy()) {
        let ids = ops.argmax(logits, LAST.keep())?;
        let best = ops.gather_elements(raw, ids, 1)?;
        return Ok((ids, ops.exp(ops.sub(best, sum)?)?));
    }
    let size = ops.shape(logits)?[1];
    let wanted = |row: &Choice| match row.sampler {
        sampler if sampler.is_greedy() => 1,
        Sampler { top_k: 0, .. } => CANDIDATES,
        Sampler { top_k, .. } => top_k,
    };
    let count = rows.iter().map(wanted).max().unwrap_or(1).min(CANDIDATES).min(size);
    let (values, places) = ops.top_k(logits, count, LAST)?;
    let numbers = rows.iter().flat_map(|row| {
        let s = &row.sampler;
        let heat = if s.temperature > 0.0 { 1.0 / s.temperature } else { 1.0 };
        // At least the best token is always considered.
        [heat, wanted(row) as f32, s.top_p.max(1e-6), s.min_p.clamp(0.0, 1.0), s.chance(row.token)]
    });
    let data = TensorData::new(&numbers.collect::<Vec<f32>>(), [rows.len(), 5])
        .map_err(|error| OpError::Argument { op: "sample", reason: error.to_string() })?;
    let numbers = ops.host_value(backend, &data, false)?;
    let number = |i: isize| ops.slice(numbers, 1, i, i + 1);
    let p = ops.softmax(ops.mul(values, number(0)?)?, LAST)?;
    let before = ops.cumsum_with(p, LAST, CumsumSettings { exclusive: true, ..default() })?;
    let rank = ops.arange(0.0, 1.0, count, DType::F32)?;
    let best = ops.slice(p, 1, 0, 1)?;
    let kept = ops.and(ops.less(before, number(2)?)?, ops.greater_equal(p, ops.mul(best, number(3)?)?)?)?;
    let kept = ops.cast(ops.and(kept, ops.less(rank, number(1)?)?)?, DType::F32)?;
    let p = ops.mul(p, kept)?;
    let goal = ops.mul(ops.sum(p, LAST.keep())?, number(4)?)?;
    let passed = ops.cast(ops.less_equal(ops.cumsum(p, LAST)?, goal)?, DType::F32)?;
    // Rounding could pass all of them.
    let last = ops.sub(ops.sum(kept, LAST.keep())?, 1.0)?;
    let at = ops.cast(ops.min(ops.sum(passed, LAST.keep())?, last)?, DType::I32)?;
    let ids = ops.gather_elements(places, at, 1)?;
    let chosen = ops.gather_elements(raw, ids, 1)?;
    Ok((ids, ops.exp(ops.sub(chosen, sum)?)?))
}

/// Applies the penalties of the rows that have any.
fn penalise<'a>(ops: &'a TensorCommands, logits: TensorValue<'a>, rows: &[Choice]) -> OpResult<TensorValue<'a>> {
    if rows.iter().all(|row| row.counts.is_none()) {
        return Ok(logits);
    }
    let mut parts = Vec::with_capacity(rows.len());
    for (i, row) in rows.iter().enumerate() {
        let own = ops.slice(logits, 0, i as isize, i as isize + 1)?;
        let Some(counts) = row.counts else {
            parts.push(own);
            continue;
        };
        let repetition = row.sampler.repetition.max(1e-3);
        let factor = ops.mul(ops.cast(ops.greater(own, 0.0)?, DType::F32)?, 1.0 / repetition - repetition)?;
        let reduced = ops.mul(own, ops.add(factor, repetition)?)?;
        let said = ops.select(ops.greater(counts, 0.0)?, reduced, own)?;
        parts.push(ops.sub(said, ops.mul(counts, row.sampler.frequency)?)?);
    }
    match parts[..] {
        [one] => Ok(one),
        _ => ops.concat(parts, 0),
    }
}

/// Counts a token, `ids [1, 1]`.
pub(super) fn count<'a>(ops: &'a TensorCommands, counts: Entity, id: TensorValue<'a>) -> OpResult<()> {
    let counted = ops.scatter_elements(counts, id, 1.0, 1, ScatterMode::Add)?;
    ops.store(counted, counts)
}
